"""The page on claims in circulation, ``docs/claims.md``, with its pictures: generated, never typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from repro.errors import UserError

from . import formula_entries, paper_entries, synchronous_entries, worked_entries
from .writing import Entry, command, paragraph, table


def groups() -> dict[str, list[Entry]]:
    """All sections, by the part of the page that they are in."""
    return {
        "Formulas of the bubble": formula_entries.entries(),
        "GPipe and 1F1B": synchronous_entries.entries(),
        "Configurations": worked_entries.entries(),
        "The paper itself": paper_entries.entries(),
    }


def render(found: Mapping[str, Sequence[Entry]]) -> dict[str, str]:
    """Text of the page with ``groups`` and of every picture, by path from the page, which comes first."""
    pictures = {
        picture.path: picture.drawn() for entries in found.values() for entry in entries for picture in entry.pictures
    }
    parts = [*_opening(found)]
    for title, entries in found.items():
        parts.append(f"## {title}")
        for entry in entries:
            parts += [f"### {entry.heading}", _summary(entry), *entry.body]
    return {"claims.md": "\n\n".join(parts) + "\n", **pictures}


def write(page: Path) -> list[Path]:
    """Writes the page to ``page`` and its pictures into folders beside it; returns all paths.

    Raises:
        UserError: they cannot be written.
    """
    text, *pictures = render(groups()).items()
    targets = [(page, text[1]), *((page.parent / name, content) for name, content in pictures)]
    try:
        for path, content in targets:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--claims {page}: cannot write {error.filename}: {error.strerror}") from None
    return [path for path, _ in targets]


def _opening(found: Mapping[str, Sequence[Entry]]) -> list[str]:
    rows = [
        [entry.claim, entry.stated, entry.replayed, f"[{entry.verdict}](#{entry.anchor})"]
        for entries in found.values()
        for entry in entries
    ]
    return [
        "# Claims in circulation",
        paragraph(
            "After this page you know which formulas and figures about pipeline parallelism hold, what each of them "
            "assumes, and how to check one yourself."
        ),
        paragraph(
            "P is the number of stages, one per rank (K on the other pages), M of micro-batches, V of stages per rank; "
            "t_F and t_B are the costs of a forward and a backward of one micro-batch. The bubble is the idle time of "
            "all ranks / (ranks x makespan). [How it works](how_it_works.md) explains these words, "
            "[schedules](schedules.md) the schedules; [questions](questions.md) has answers."
        ),
        paragraph(
            '"Replayed" means: the schedule is built as the list of actions that the engine would run, and '
            "`repro.schedules.simulate` times it with exact fractions, stages that cost the same and messages that "
            "cost nothing, if not said otherwise. Such figures are simulated; nothing on this page is measured. What "
            "is stated, and where, is read from `data/paper/`."
        ),
        paragraph("The page is written by code, and a test compares it with what the code writes:"),
        command("repro report --claims docs/claims.md"),
        table(["claim", "it says", "replayed, or in the paper", "verdict"], rows),
    ]


def _summary(entry: Entry) -> str:
    return paragraph(
        f"**Claim:** {entry.claim}. **Stated:** {entry.stated}. **Found:** {entry.replayed}. **Verdict:** "
        f"{entry.verdict}."
    )
