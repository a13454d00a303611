"""Sections on the formulas of the bubble for P = M = 4."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from .circulating import Claim, claims, target
from .formulas import FORMULAS
from .replay import Case, replay, smallest
from .writing import Entry, Picture, command, image, paragraph, percent, share, table


def entries() -> list[Entry]:
    """One for each formula, in the order of the page."""
    known = claims()
    return [
        _closed_form(known["closed form"]),
        _forward_ramp(known["forward ramp"]),
        _two_forward_ramps(known["two forward ramps"]),
        _about_30(known["about 30%"]),
        _scaled(known["scaled 1F1B"], known["interleaved"]),
        _ratio(known["closed form"]),
    ]


def verdict(claim: Claim) -> str:
    """Whether the stated figure is what replaying gives, to the digits that are stated."""
    return "holds" if f"{claim.stated:.1f}%" == percent(replay(claim.case).bubble) else "does not hold"


def stated(claim: Claim) -> str:
    """The figure as it is stated."""
    return f"{claim.stated:g}%"


def _opening(claim: Claim) -> str:
    return paragraph(f"**Assumes:** {claim.assumes}. **From:** {claim.source}.")


def _gpipe_picture(claim: Claim, name: str, why: str) -> Picture:
    outcome = replay(claim.case)
    return Picture(
        name,
        f"{claim.case.schedule}, P = M = 4, t_F : t_B = 1 : 2: bubble {share(outcome.bubble)}{why}",
        outcome.timeline,
    )


def _closed_form(claim: Claim) -> Entry:
    case = claim.case
    outcome = replay(case)
    picture = _gpipe_picture(claim, "gpipe", "")
    others = [
        ("as assumed", case),
        ("every micro-batch recomputed, t_R = t_F", replace(case, remat="always")),
        ("a message takes t_F / 2", replace(case, transfer=Fraction(1, 2))),
        ("the third stage costs twice as much", replace(case, forward=(1, 1, 2, 1), backward=(2, 2, 4, 2))),
    ]
    rows = [
        [text, *(share(replay(replace(one, schedule=name)).bubble) for name in ("gpipe", "1f1b"))]
        for text, one in others
    ]
    idle = outcome.makespan * outcome.bubble
    body = (
        _opening(claim),
        paragraph(
            f"Replayed with P = M = 4, every rank idles {idle} of {outcome.makespan} units of time: "
            f"{share(outcome.bubble)}, for `gpipe` and for `1f1b`. The same idle time is {share(outcome.of_ideal)} of "
            "the step without any, which some papers call the bubble, (P - 1) / M: say which one you mean."
        ),
        image(picture),
        command("repro bubble -P 4 -M 4 --schedules gpipe 1f1b"),
        paragraph(
            "Where an assumption does not hold, neither does the formula. A recomputation counts as work, and the "
            "first one hides in the ramp:"
        ),
        table(["P = M = 4, t_F : t_B = 1 : 2", "`gpipe`", "`1f1b`"], rows),
    )
    return Entry(
        "The closed form",
        f"`{claim.formula}`",
        stated(claim),
        share(outcome.bubble),
        verdict(claim),
        body,
        (picture,),
    )


def _forward_ramp(claim: Claim) -> Entry:
    outcome = replay(claim.case)
    zero = replace(claim.case, schedule="zb-h1")
    zero_outcome = replay(zero)
    pictures = (
        _gpipe_picture(claim, "gpipe", ""),
        Picture(
            "zb-h1",
            f"zb-h1, P = M = 4, t_F = t_I = t_W = 1: idle time / work {share(zero_outcome.of_ideal)}",
            zero_outcome.timeline,
        ),
    )
    value = FORMULAS[claim.name](claim.case)
    body = (
        _opening(claim),
        paragraph(
            f"The formula gives {share(value)}; replaying gives {share(outcome.bubble)}, and "
            f"{share(outcome.of_ideal)} as a share of the work. In the [picture above](#the-closed-form) the ramp at "
            "the end is twice as long as the one at the start, because a backward costs twice as much. The formula "
            "leaves it out."
        ),
        paragraph(
            "It does describe a schedule: `zb-h1`, which fills the ramp at the end with weight gradients. With t_I = "
            f"t_W and M of at least P, its idle time is (P - 1) t_F: {share(zero_outcome.of_ideal)} of the work, "
            f"{share(zero_outcome.bubble)} of the makespan."
        ),
        image(pictures[1]),
        command("repro schedule zb-h1 -K 4 -M 4"),
    )
    return Entry(
        "The ramp of the forwards alone",
        f"`{claim.formula}`",
        stated(claim),
        share(outcome.bubble),
        verdict(claim),
        body,
        pictures,
    )


def _two_forward_ramps(claim: Claim) -> Entry:
    outcome = replay(claim.case)
    ratios = (1, 2, 3)
    rows = [
        [f"1 : {ratio}", share(FORMULAS[claim.name](case)), share(replay(case).bubble)]
        for ratio in ratios
        for case in [replace(claim.case, backward=ratio)]
    ]
    equal = replay(replace(claim.case, backward=1))
    picture = Picture(
        "gpipe-equal-costs",
        f"gpipe, P = M = 4, t_F : t_B = 1 : 1: bubble {share(equal.bubble)}",
        equal.timeline,
    )
    body = (
        _opening(claim),
        paragraph(
            "Numerator and denominator are of two different pipelines: two ramps of (P - 1) t_F, as if a backward "
            "cost no more than a forward, over a makespan in which it costs t_B. Only with t_B = t_F are they of the "
            "same one, and then this is the closed form:"
        ),
        table(["t_F : t_B", "formula", "replayed"], rows),
        image(picture),
        command("repro schedule gpipe -K 4 -M 4 --backward 1", "repro schedule gpipe -K 4 -M 4 --backward 2"),
    )
    return Entry(
        "Two ramps of forwards",
        f"`{claim.formula}`",
        stated(claim),
        share(outcome.bubble),
        verdict(claim),
        body,
        (picture,),
    )


def _about_30(claim: Claim) -> Entry:
    outcome = replay(claim.case)
    stages = claim.case.num_stages
    needed = smallest(stages, target(claim.stated)).num_micro_batches
    reached = replay(replace(claim.case, num_micro_batches=needed))
    two = replay(replace(claim.case, schedule="interleaved", num_virtual_stages=2))
    picture = _gpipe_picture(claim, "1f1b", "")
    body = (
        _opening(claim),
        paragraph(
            f"`1f1b` with P = M = 4 idles {share(outcome.bubble)}, as `gpipe` does. It takes M = {needed} to come to "
            f"{share(reached.bubble)}. What is near 30% at P = M = 4 is `interleaved` with two stages per rank, "
            f"{share(two.bubble)}."
        ),
        image(picture),
        command("repro bubble -P 4 -M 4 7 --schedules 1f1b interleaved"),
    )
    return Entry(
        "About 30 percent for 1F1B",
        f"1F1B idles about {claim.stated:g}%",
        stated(claim),
        share(outcome.bubble),
        verdict(claim),
        body,
        (picture,),
    )


def _scaled(claim: Claim, form: Claim) -> Entry:
    outcome = replay(claim.case)
    cases = [
        replace(claim.case, num_micro_batches=count, num_virtual_stages=held) for count in (4, 16) for held in (1, 2, 4)
    ]
    rows = [
        [
            str(case.num_micro_batches),
            str(case.num_virtual_stages),
            share(FORMULAS[claim.name](case)),
            share(FORMULAS[form.name](case)),
            share(replay(case).bubble),
        ]
        for case in cases
    ]
    picture = Picture(
        "interleaved",
        f"interleaved, P = M = 4, V = 2, t_F : t_B = 1 : 2 per rank: bubble {share(outcome.bubble)}",
        outcome.timeline,
    )
    body = (
        _opening(claim),
        paragraph(
            f"Replayed with V = 2 stages per rank: {share(outcome.bubble)}, which is what `{form.formula}` gives "
            f"({form.source}; it assumes: {form.assumes}). V stages per rank make the ramps V times shorter, no more. "
            "The estimate takes more off, since V (P - 1) is less than P V - 1: it is too small for every V above 1."
        ),
        table(["M", "V", "estimate", f"`{form.formula}`", "replayed"], rows),
        image(picture),
        command("repro schedule interleaved -K 4 -M 4 -V 2"),
    )
    return Entry(
        "Interleaved as a scaled 1F1B",
        f"interleaved: {claim.formula}",
        stated(claim),
        share(outcome.bubble),
        verdict(claim),
        body,
        (picture,),
    )


def _ratio(claim: Claim) -> Entry:
    ratios = (Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3))
    found = {ratio: replay(replace(claim.case, backward=ratio)) for ratio in ratios}
    same = len({outcome.bubble for outcome in found.values()}) == 1
    others = [
        Case("gpipe", claim.case.num_stages, claim.case.num_micro_batches, remat="always"),
        Case("zb-h1", claim.case.num_stages, claim.case.num_micro_batches),
    ]
    rows = [
        [
            f"1 : {float(ratio):g}",
            share(found[ratio].bubble),
            *(share(replay(replace(other, backward=ratio)).bubble) for other in others),
        ]
        for ratio in ratios
    ]
    picture = Picture(
        "gpipe-long-backward",
        f"gpipe, P = M = 4, t_F : t_B = 1 : 3: bubble {share(found[Fraction(3)].bubble)}",
        found[Fraction(3)].timeline,
    )
    body = (
        paragraph(
            "Idle are (P - 1)(t_F + t_B) of (M + P - 1)(t_F + t_B) units of time, so the costs cancel. They do not "
            "cancel where a step has other parts: recomputations, which cost a forward, or weight gradients that fill "
            "a ramp."
        ),
        paragraph(
            "Look at the hatched area in the pictures with t_F : t_B of [1 : 1](#two-ramps-of-forwards), "
            "[1 : 2](#the-closed-form) and 1 : 3, here: it is the same part of each."
        ),
        image(picture),
        table(["t_F : t_B", "`gpipe`", "`gpipe`, remat `always`", "`zb-h1`"], rows),
        command("repro bubble -P 4 -M 4 --backward 3 --schedules gpipe zb-h1"),
    )
    return Entry(
        "What a backward costs",
        "t_F : t_B changes GPipe's bubble",
        "it changes",
        "it cancels" if same else "it changes",
        "does not hold" if same else "holds",
        body,
        (picture,),
    )
