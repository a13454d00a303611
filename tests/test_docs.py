"""Every command, snippet, error and link of README and docs/ is tried; a block of a kind that is not known fails."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed.run
import yaml

import repro.cli
from repro.experiments.accuracy.scales import SCALES
from repro.experiments.catalogue import TARGETS, find_target
from repro.report.targets import MODULES
from tests.datasets.builders import write_corpus, write_images
from tests.docs.on_ranks import run_commands, run_scripts
from tests.docs.pages import ALL_BLOCKS, PAGES, ROOT, Block, commands, headings, inline_code, links, of_kind
from tests.docs.restrictions import CASES
from tests.helpers.ranks import Pools

KINDS = {"python", "bash", "text", "error", "bibtex"}
COMMANDS = [(block, line) for block in of_kind("bash") for line in commands(block)]
ON_GPUS = [(block, line) for block, line in COMMANDS if block.heading == "Commands for more than one GPU"]
REPRO = [
    (block, line)
    for block, line in COMMANDS
    if re.match(r"(PYTHONPATH=\. )?repro (fit|verify) ", line) and (block, line) not in ON_GPUS
]
ON_TWO_RANKS = [(block, line) for block, line in REPRO if "--trainer.devices 2" in line]
ON_ONE_RANK = [one for one in REPRO if one not in ON_TWO_RANKS]
SIMULATED = [["repro", "schedule"], ["repro", "bubble"], ["repro", "plan"]]
TORCHRUN = [(block, line) for block, line in COMMANDS if line.startswith("torchrun ")]
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
RESTRICTIONS = ROOT / "docs" / "restrictions.md"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader works: the configs, the files that the pages name, and packaged sets (tiny ones)."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "configs").symlink_to(ROOT / "configs")
    for block in of_kind("python"):
        (folder / block.file).write_text(block.text, encoding="utf-8")
    write_images(folder / "packaged", train=60, test=10)
    write_corpus(folder / "packaged", ["de", "fr"])
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path, pools: Pools) -> dict[str, tuple[str, str]]:
    """What every block of Python prints, and its traceback or "", by file."""
    files = [block.file for block in of_kind("python")]
    return pools(1).run(run_scripts, str(folder), files, timeout=120)[0]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No width but the one that a command asks for."""
    monkeypatch.delenv("COLUMNS", raising=False)
    yield


def smaller(words: list[str], folder: Path) -> list[str]:
    """``repro fit`` or ``verify`` with the tiny sets and a model for them; two steps and one validation."""
    if "--print_config" in words:
        return words
    options = {"data.init_args.root": str(folder / "packaged"), "data.init_args.batch_size": "8"}
    if words[0] == "fit":
        options |= {"trainer.max_steps": "2", "trainer.val_check_interval": "2"}
    if "configs/amoebanet/base.yaml" in words:
        options |= {"data.init_args.validation": "8", "model.init_args.num_filters": "4"}
    else:
        options |= {"data.init_args.languages": "[de, fr]", "data.init_args.vocab_size": "320"}
        options |= {"model.init_args.vocab_size": "320", "model.init_args.d_model": "8"}
    quiet = QUIET if words[0] == "fit" else []
    return [*words, *(f"--{name}={value}" for name, value in options.items()), *quiet]


def assert_printed(block: Block, output: str) -> None:
    """``block`` of the page is what was printed, or what was printed between the tables and bars of Lightning."""
    wanted, got = ([line.rstrip() for line in text.splitlines()] for text in (block.text, output))
    places = range(len(got) - len(wanted) + 1)
    assert any(got[place : place + len(wanted)] == wanted for place in places), f"{block}, but printed is:\n{output}"


def test_only_known_kinds() -> None:
    unknown = [f"{block}: {block.kind or 'no kind'}" for block in ALL_BLOCKS if block.kind not in KINDS]
    assert not unknown


@pytest.mark.parametrize("block", of_kind("python"), ids=str)
def test_python_runs(block: Block, outcomes: dict[str, tuple[str, str]]) -> None:
    _, failure = outcomes[block.file]
    assert not failure, f"{block}:\n{failure}"


@pytest.mark.parametrize("block", of_kind("text"), ids=str)
def test_output_is_what_is_printed(
    block: Block, outcomes: dict[str, tuple[str, str]], terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert block.before is not None, f"{block}: output of what?"
    if block.before.kind == "python":
        return assert_printed(block, outcomes[block.before.file][0])
    command = shlex.split(block.before.text.strip().splitlines()[-1])
    assert command[:2] in SIMULATED, f"{block}: only the output of repro schedule, bubble and plan can be compared"
    assert repro.cli.main(command[1:]) == 0
    assert_printed(block, capsys.readouterr().out)


def test_readme_example_gives_the_same_loss_in_four_processes(
    folder: Path, outcomes: dict[str, tuple[str, str]], pools: Pools
) -> None:
    example = next(block for block in of_kind("python") if block.page == "README.md")
    assert example.text.count("devices=1") == 1
    processes = folder / "in_processes.py"
    processes.write_text(example.text.replace("devices=1", "devices=4"), encoding="utf-8")
    in_processes = pools(4).run(run_scripts, str(folder), [processes.name], timeout=120)
    printed = "loss [0-9.]+\n"
    assert re.search(printed, outcomes[example.file][0])
    assert re.findall(printed, in_processes[0][processes.name][0]) == re.findall(printed, outcomes[example.file][0])


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=lambda value: str(value)[:60])
def test_command_is_known(
    block: Block, line: str, folder: Path, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        # What it does takes minutes and downloads: here only that make would run it.
        dry = [*words, "-n", "-W", "pyproject.toml"]
        done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert all(word.partition("=")[2] in done.stdout for word in words if "=" in word)
    elif words[:2] in SIMULATED:
        assert repro.cli.main(words[1:]) == 0
        assert "bubble" in capsys.readouterr().out
    elif words[:3] == ["repro", "report", "--claims"]:
        page = folder / "claims.md"
        assert repro.cli.main([*words[1:3], str(page)]) == 0
        assert page.read_text(encoding="utf-8") == (ROOT / words[3]).read_text(encoding="utf-8")
    elif line == "wait":
        assert any(other.endswith("&") for _, other in COMMANDS if _ == block)
    else:
        assert (block, line) in REPRO + TORCHRUN + ON_GPUS, f"{block}: how is this command tested? {line}"


def test_commands_on_one_rank(folder: Path, pools: Pools) -> None:
    commands = [smaller(shlex.split(line.partition("repro ")[2]), folder) for _, line in ON_ONE_RANK]
    outcomes = pools(1).run(run_commands, str(folder), commands, {}, timeout=120)[0]
    for (block, line), (code, output) in zip(ON_ONE_RANK, outcomes, strict=True):
        assert code == 0, f"{block}: {line}\n{output}"
    assert any("schedule: early.early" in output for _, output in outcomes)


def launched(line: str) -> tuple[list[str], int, int, int]:
    """The words of ``repro`` in a torchrun command, its nodes, processes a node, and the number of this node."""
    options = torch.distributed.run.get_args_parser().parse_args(shlex.split(line.removesuffix("&"))[1:])
    assert options.module and options.training_script == "repro"
    words = options.training_script_args
    nodes, processes = int(options.nnodes.split(":")[0]), int(options.nproc_per_node)
    assert words[words.index("--trainer.devices") + 1] == str(processes)
    assert nodes == 1 or words[words.index("--trainer.num_nodes") + 1] == str(nodes)
    return words, nodes, processes, options.node_rank


def test_commands_on_several_ranks(folder: Path, pools: Pools) -> None:
    """The ranks are those of a pool, which see what torchrun would tell them."""
    on_one_node = [line for _, line in TORCHRUN if launched(line)[1] == 1]
    on_two_nodes = [line for _, line in TORCHRUN if launched(line)[1] == 2]
    assert len(on_one_node) + len(on_two_nodes) == len(TORCHRUN)
    assert [launched(line)[3] for line in on_two_nodes] == [0, 1]
    assert len({str(launched(line)[0]) for line in on_two_nodes}) == 1
    jobs: list[tuple[tuple[list[str], int, int, int], dict[str, list[str]]]]
    jobs = [(launched(line), {}) for line in on_one_node]
    jobs += [((shlex.split(line)[1:], 1, 2, 0), {}) for _, line in ON_TWO_RANKS]
    jobs.append((launched(on_two_nodes[0]), {"LOCAL_RANK": ["0", "0"], "GROUP_RANK": ["0", "1"]}))
    for (words, nodes, processes, _), environment in jobs:
        outcomes = pools(nodes * processes).run(
            run_commands, str(folder), [smaller(words, folder)], environment, timeout=120
        )
        for [(code, output)] in outcomes:
            assert code == 0, output


def test_commands_on_gpus_get_configs_that_add_up(folder: Path, pools: Pools) -> None:
    """They cannot run here: their config must parse, and their processes be K x D."""
    words = [shlex.split(line[line.index("repro fit") :])[1:] for _, line in ON_GPUS]
    outcomes = pools(1).run(run_commands, str(folder), [[*one, "--print_config"] for one in words], {})[0]
    for (_, line), (status, output) in zip(ON_GPUS, outcomes, strict=True):
        assert status == 0, output
        trainer = yaml.safe_load(output)["trainer"]
        strategy = trainer["strategy"]["init_args"]
        devices, nodes = int(trainer["devices"]), int(trainer["num_nodes"])
        assert devices * nodes == strategy["num_stages"] * strategy["data_parallel_size"]
        if line.startswith("srun"):
            launcher = shlex.split(line[: line.index("repro fit")])
            asked = {name: int(launcher[launcher.index(f"--{name}") + 1]) for name in ("nodes", "ntasks-per-node")}
            assert asked == {"nodes": nodes, "ntasks-per-node": devices}
    assert sum(line.startswith("srun") for _, line in ON_GPUS) == 1


def table(heading: str) -> list[list[str]]:
    """The cells of the table in a section of the README, its head left out."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    section = section.partition("\n### ")[0]
    rows = [[cell.strip() for cell in one.strip("|").split("|")] for one in section.splitlines() if one.startswith("|")]
    return rows[2:]


def assert_minutes(command: str, minutes: str) -> None:
    """They are those of a committed run, or say that they are not measured."""
    measured = re.fullmatch(r"\[(\d+)\]\((results/reference/[^)]+)\)", minutes)
    if measured:
        run = json.loads((ROOT / measured[2]).read_text(encoding="utf-8"))
        assert f"`make {run['target']}`" == command or run["scale"] in command
        assert max(1, round(run["minutes"])) == int(measured[1]), f"{command}: {run['minutes']} minutes"
    else:
        assert re.fullmatch(r"not measured|\d+ \(estimate\)", minutes), f"{command}: {minutes}"


def test_minutes_are_measured_or_called_estimates() -> None:
    rows = table("On my machine")
    assert len(rows) == 7
    for _, command, minutes, *_ in rows:
        assert_minutes(command, minutes)


def test_the_table_of_targets_is_complete_and_its_minutes_are_those_of_the_targets() -> None:
    rows = table("The paper's tables and figures")
    assert [command for command, *_ in rows] == [f"`make {name}`" for name in TARGETS]
    for (command, _, minutes), name in zip(rows, TARGETS, strict=True):
        assert_minutes(command, minutes)
        expected = max(1, round(find_target(name).minutes["laptop"]))
        assert re.match(rf"(\[{expected}\]\(|{expected} \(estimate\))", minutes), f"{name}: not {expected}, {minutes}"
        assert re.search(rf"(?m)^{name}: ## {expected} \|", MAKEFILE), f"{name} takes {expected} minutes"
    expected = round(SCALES["laptop"].minutes)
    assert re.search(rf"(?m)^reproduce: .*## {expected} \|", MAKEFILE)
    assert f"| `make reproduce` | [{expected}](" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(MODULES) == {"reproduce", *TARGETS}, "each has its report"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_inline_commands_exist(page: Path) -> None:
    for code in inline_code(page):
        words = code.split()
        if words[0] == "make" and len(words) > 1:
            assert re.search(rf"(?m)^{re.escape(words[1])}:", MAKEFILE), code
            assert all(f"{word.partition('=')[0]} ?=" in MAKEFILE for word in words[2:]), code
        if words[0] == "repro" and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in repro.cli.COMMANDS, code
        if len(words) > 2 and words[0] in ("repro", "torchrun", "srun", "python"):
            assert words[-1] == "...", f"{page.name}: put {code} into a block, where it is tested"
        if re.fullmatch(r"repro/[\w/]+(\.py)?/?", code):
            assert (ROOT / code).exists(), f"{page.name}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "http://")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings(target)]
            assert anchor in anchors, f"{page.name}: {link}"


def test_pages_that_code_names_exist() -> None:
    named = {
        name
        for path in (ROOT / "repro").rglob("*.py")
        for name in re.findall(r"docs/\w+\.md", path.read_text(encoding="utf-8"))
    }
    assert named
    assert all((ROOT / name).exists() for name in named)


def test_readme_has_a_place_for_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- results:begin -->") == text.count("<!-- results:end -->") == 1
    assert text.index("<!-- results:begin -->") < text.index("<!-- results:end -->")


def test_citation_is_whole() -> None:
    [block] = of_kind("bibtex")
    assert block.text.count("{") == block.text.count("}")
    assert all(f"{field} " in block.text for field in ("title", "author", "booktitle", "year"))


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_page_opens_with_what_the_reader_can_do(page: Path) -> None:
    first = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert first.startswith("After this page you "), first


def test_every_restriction_has_a_case() -> None:
    entries = re.findall(r"(?m)^### (.+)$", RESTRICTIONS.read_text(encoding="utf-8"))
    assert entries == list(CASES)
    assert all(block.page == RESTRICTIONS.name for block in of_kind("error"))


def test_messages_that_the_page_on_models_explains_exist() -> None:
    table = (ROOT / "docs" / "adding_a_model.md").read_text(encoding="utf-8").partition("## Errors that point here")[2]
    messages = re.findall(r"(?m)^\| `(.+?)` \|", table)
    assert len(messages) == 5
    assert all(any(message in block.text for block in of_kind("error")) for message in messages)


@pytest.mark.parametrize("heading", CASES)
def test_restriction(heading: str, pools: Pools) -> None:
    told = [block.text.strip() for block in of_kind("error") if block.heading == heading]
    cases = CASES[heading]
    if not told:
        for case in cases:
            case.run(pools)
        return
    for message, case in zip(told, cases, strict=True):
        pattern = ".*".join(re.escape(part.strip()) for part in message.split("..."))
        with pytest.raises(Exception) as raised:
            case.run(pools)
        assert re.search(pattern, f"{raised.type.__name__}: {raised.value}"), f"{message}\n\n{raised.value}"
