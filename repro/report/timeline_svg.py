"""Draws the timeline of a schedule as SVG: one row per rank, time from left to right, the bubble hatched."""

from __future__ import annotations

from html import escape

from repro.report.timeline import action_label
from repro.schedules import Kind, Timeline

# Okabe and Ito: colour-blind readers can tell them apart.
COLOURS = {
    Kind.FORWARD: "#56B4E9",
    Kind.RECOMPUTE: "#E69F00",
    Kind.BACKWARD: "#009E73",
    Kind.INPUT_GRADIENT: "#009E73",
    Kind.WEIGHT_GRADIENT: "#CC79A7",
}
WORDS = {
    Kind.FORWARD: "forward",
    Kind.RECOMPUTE: "recompute",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
}
_ROW, _GAP, _LEFT, _RIGHT, _HEAD, _FOOT = 26, 6, 64, 16, 52, 30
_CHARACTER = 6.5


def svg(timeline: Timeline, title: str, width: int = 1200) -> str:
    """An SVG document; the same timeline and title give the same text.

    Later stages of a rank with several are drawn lighter. Hovering over an action tells its stage and times.

    Args:
        timeline: what to draw.
        title: one line above the drawing.
        width: pixels.
    """
    makespan = float(timeline.makespan)
    scale = (width - _LEFT - _RIGHT) / makespan if makespan else 0.0
    ranks = range(len(timeline.starts))
    foot = _HEAD + len(ranks) * (_ROW + _GAP)
    kinds = [kind for kind in Kind if any(action.kind is kind for row in timeline.schedule.actions for action in row)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{foot + _FOOT}" '
        f'viewBox="0 0 {width} {foot + _FOOT}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#F4F4F4"/><line x1="0" y1="0" x2="0" y2="6" stroke="#C4C4C4"/>'
        "</pattern></defs>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="18" font-size="13">{escape(title)}</text>',
        *_legend(kinds),
    ]
    for rank in ranks:
        parts += _row(timeline, rank, _HEAD + rank * (_ROW + _GAP), scale)
    parts += [
        f'<text x="{_LEFT}" y="{foot + 14}">0</text>',
        f'<text x="{_LEFT + scale * makespan:.2f}" y="{foot + 14}" text-anchor="end">{makespan:g}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _row(timeline: Timeline, rank: int, top: int, scale: float) -> list[str]:
    schedule = timeline.schedule
    parts = [
        f'<text x="8" y="{top + 17}">rank {rank}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{scale * float(timeline.makespan):.2f}" height="{_ROW}" '
        'fill="url(#idle)"/>',
    ]
    held = [stage for stage, holders in enumerate(schedule.placement) if rank in holders]
    for action, start, end in zip(schedule.actions[rank], timeline.starts[rank], timeline.ends[rank], strict=True):
        left, wide = _LEFT + scale * float(start), scale * float(end - start)
        label = action_label(schedule, rank, action)
        lighter = 1 - 0.5 * held.index(action.stage) / len(held)
        parts.append(
            f'<rect x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{_ROW}" fill="white"/>'
            f'<rect x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{_ROW}" fill="{COLOURS[action.kind]}" '
            f'fill-opacity="{lighter:g}" stroke="white" stroke-width="0.6"><title>{WORDS[action.kind]} of micro-batch '
            f"{action.micro_batch} on stage {action.stage}: {float(start):g} to {float(end):g}</title></rect>"
        )
        if wide > _CHARACTER * len(label) + 2:
            parts.append(f'<text x="{left + wide / 2:.2f}" y="{top + 17}" text-anchor="middle">{label}</text>')
    return parts


def _legend(kinds: list[Kind]) -> list[str]:
    parts, left = [], _LEFT
    for text, colour in [*((f"{kind.value} {WORDS[kind]}", COLOURS[kind]) for kind in kinds), ("idle", "url(#idle)")]:
        parts.append(f'<rect x="{left}" y="28" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 16}" y="38">{text}</text>')
        left += 16 + round(_CHARACTER * len(text)) + 18
    return parts
