"""Sections on 1F1B beside GPipe: the same bubble, another memory; and the picture that mixes them up."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from repro.schedules import Action, Kind, Remat, Schedule

from .replay import Case, Outcome, replay
from .writing import Entry, Picture, command, image, paragraph, share, table

_STAGES = 4
_COUNTS = (4, 8, 16, 32)


def entries() -> list[Entry]:
    """In the order of the page."""
    return [_smaller_bubble(), _same_picture()]


def all_forwards_first(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int = 1, remat: Remat = Remat.NEVER
) -> Schedule:
    """What the picture shows: on every rank f1 f2 .. fM, then b1 b2 .. bM."""
    return Schedule(
        name="all forwards first",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
        placement=tuple((stage,) for stage in range(num_stages)),
        actions=tuple(
            tuple(
                Action(kind, stage, index)
                for kind in (Kind.FORWARD, Kind.BACKWARD)
                for index in range(num_micro_batches)
            )
            for stage in range(num_stages)
        ),
    )


def _smaller_bubble() -> Entry:
    pairs = {count: tuple(replay(Case(name, _STAGES, count)) for name in ("gpipe", "1f1b")) for count in _COUNTS}
    same = all(gpipe.bubble == other.bubble for gpipe, other in pairs.values())
    gpipe, other = pairs[8]
    pictures = (_picture("gpipe-8", "gpipe", gpipe), _picture("1f1b-8", "1f1b", other))
    body = (
        paragraph(
            "**Assumes:** that a backward which starts earlier ends the step earlier. With a flush, equal stages and "
            "free messages it does not: the last rank has no idle time between its first and its last action in either "
            "schedule, and the way to it and back takes (P - 1)(t_F + t_B) in both. What 1F1B saves is **memory**: a "
            "backward frees activations before the next forward adds some."
        ),
        *(image(picture) for picture in pictures),
        command("repro bubble -P 4 -M 4 8 16 32 --schedules gpipe 1f1b"),
        paragraph(
            "How much memory depends on what is held fixed. **At a fixed micro-batch size**, more micro-batches make a "
            "larger mini-batch. `gpipe` keeps all M, `1f1b` at most P (on the first rank; counted in micro-batches of "
            "one stage, nothing recomputed):"
        ),
        table(
            ["M", "bubble of both", "`gpipe` keeps", "`1f1b` keeps"],
            [
                [str(count), share(a.bubble), str(max(a.peak_live)), str(max(b.peak_live))]
                for count, (a, b) in pairs.items()
            ],
        ),
        paragraph(
            "**At a fixed mini-batch**, more micro-batches are smaller ones. `gpipe` then keeps the whole mini-batch "
            "whatever M is, and `1f1b` P / M of it:"
        ),
        table(
            ["M", "bubble of both", "`gpipe` keeps, of the mini-batch", "`1f1b` keeps"],
            [[str(count), share(a.bubble), _part(a, count), _part(b, count)] for count, (a, b) in pairs.items()],
        ),
        paragraph(
            f"So the claim has a true core: **with the same memory** 1F1B can have the smaller bubble. Where "
            f"{_STAGES} micro-batches fit, `gpipe` idles {share(pairs[4][0].bubble)} and can go on only by "
            f"recomputing; `1f1b` takes M = 32 in the same memory and idles {share(pairs[32][1].bubble)}. With "
            "recomputation both keep one micro-batch's activations, and beside them the stage's inputs, M in `gpipe` "
            "and at most P in `1f1b`."
        ),
        paragraph("Where stages differ or messages take time, the two are no longer equal, and either can be ahead:"),
        table(["P = 4, M = 8", "`gpipe`", "`1f1b`"], _unequal()),
    )
    return Entry(
        "A smaller bubble than GPipe",
        "1F1B has a smaller bubble than GPipe",
        "smaller",
        "the same" if same else "another",
        "does not hold; it saves memory" if same else "holds",
        body,
        pictures,
    )


def _picture(name: str, schedule: str, outcome: Outcome) -> Picture:
    return Picture(
        name,
        f"{schedule}, P = 4, M = 8, t_F : t_B = 1 : 2: bubble {share(outcome.bubble)}, the first rank keeps "
        f"{outcome.peak_live[0]} micro-batches",
        outcome.timeline,
    )


def _part(outcome: Outcome, num_micro_batches: int) -> str:
    part = Fraction(max(outcome.peak_live), num_micro_batches)
    return "all" if part == 1 else str(part)


def _unequal() -> list[list[str]]:
    base = Case("gpipe", _STAGES, 8)
    cases = [
        ("equal stages, free messages", base),
        ("a message takes t_F / 2", replace(base, transfer=Fraction(1, 2))),
        ("the third stage costs twice as much", replace(base, forward=(1, 1, 2, 1), backward=(2, 2, 4, 2))),
    ]
    return [
        [text, *(share(replay(replace(case, schedule=name)).bubble) for name in ("gpipe", "1f1b"))]
        for text, case in cases
    ]


def _same_picture() -> Entry:
    told = replay(Case(all_forwards_first, _STAGES, _STAGES))
    true = replay(Case("1f1b", _STAGES, _STAGES))
    longer, longer_true = replay(Case(all_forwards_first, _STAGES, 8)), replay(Case("1f1b", _STAGES, 8))
    pictures = (
        Picture(
            "all-forwards-first",
            f"told as 1F1B: every rank runs all forwards first. P = M = 4: keeps {_list(told)} micro-batches by rank",
            told.timeline,
        ),
        Picture("1f1b-true", f"1f1b, P = M = 4: keeps {_list(true)} micro-batches by rank", true.timeline),
    )
    body = (
        paragraph(
            "The picture has f1 f2 f3 f4 b1 b2 b3 b4 on every device. Replayed as an order of actions, it is a valid "
            f"schedule, with a bubble of {share(told.bubble)}. But it is GPipe's, all forwards, then all backwards, "
            f"and every rank keeps all M micro-batches: {_list(told)} by rank. (GPipe itself takes the backwards in "
            "reverse; that changes neither figure.)"
        ),
        image(pictures[0]),
        paragraph(
            "One forward, one backward means that a rank takes turns. Only the first rank of P = M = 4 looks as in "
            f"that picture; the last one starts with f1 b1 f2 b2. By rank, {_list(true)} micro-batches are kept. With "
            f"M = 8 the two differ on the first rank as well: {longer.peak_live[0]} against {longer_true.peak_live[0]}."
        ),
        image(pictures[1]),
        command("repro schedule 1f1b -K 4 -M 4", "repro schedule 1f1b -K 4 -M 8"),
    )
    return Entry(
        "All forwards first told as 1F1B",
        "a picture of f1 f2 f3 f4 b1 b2 b3 b4 on every device shows 1F1B",
        "keeps at most P",
        "keeps M" if set(longer.peak_live) == {8} else "keeps fewer",
        "does not hold; it is GPipe" if set(longer.peak_live) == {8} else "holds",
        body,
        pictures,
    )


def _list(outcome: Outcome) -> str:
    return ", ".join(str(count) for count in outcome.peak_live)
