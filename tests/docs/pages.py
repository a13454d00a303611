"""The pages of the documentation as blocks, inline commands and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        kind: the word after the fence.
        heading: the nearest heading above it.
        line: of its fence, 1-based.
        before: the block before it on the page.
    """

    page: str
    line: int
    kind: str
    heading: str
    text: str
    before: Block | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """Under which name a block of Python is saved: what its first line says, or one of its own."""
        named = re.match(r"# file: (\w+\.py)\n", self.text)
        return named[1] if named else f"{Path(self.page).stem.lower()}_{self.line}.py"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    heading, kind, start, lines = "", None, 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if kind is None and fence:
            kind, start, lines = fence[1], number, []
        elif kind is not None and fence:
            before = found[-1] if found else None
            found.append(Block(page.name, start, kind, heading, "\n".join(lines) + "\n", before))
            kind = None
        elif kind is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
    assert kind is None, f"{page.name}: the fence of line {start} is not closed"
    return found


ALL_BLOCKS = tuple(block for page in PAGES for block in blocks(page))


def commands(block: Block) -> list[str]:
    """The commands of a block of shell, those over several lines as one."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line and not line.startswith("#")]


def of_kind(kind: str) -> list[Block]:
    """The blocks of one kind on all pages."""
    return [block for block in ALL_BLOCKS if block.kind == kind]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    """The headings of a page."""
    return [line.lstrip("#").strip() for line in prose(page).splitlines() if line.startswith("#")]


def inline_code(page: Path) -> list[str]:
    """What stands between single backticks outside blocks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def links(page: Path) -> list[str]:
    """Targets of links and pictures outside blocks."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))
