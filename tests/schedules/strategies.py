"""Schedules for property tests: every legal interleaving may come up, far beyond what the generators build."""

from __future__ import annotations

from hypothesis import strategies as st

from repro.schedules import Action, Kind, Remat, Schedule


def needs(action: Action, schedule_stages: int, kinds: set[Action]) -> list[Action]:
    """What ``action`` waits for, read off the definitions of F, R, B, I and W; ``kinds`` are all actions there are."""
    kind, stage, micro_batch = action

    def gradient(of_stage: int) -> Action:
        whole = Action(Kind.BACKWARD, of_stage, micro_batch)
        return whole if whole in kinds else Action(Kind.INPUT_GRADIENT, of_stage, micro_batch)

    own_forward = Action(Kind.FORWARD, stage, micro_batch)
    if kind is Kind.FORWARD:
        return [Action(Kind.FORWARD, stage - 1, micro_batch)] if stage else []
    if kind is Kind.RECOMPUTE:
        return [own_forward]
    if kind is Kind.WEIGHT_GRADIENT:
        return [Action(Kind.INPUT_GRADIENT, stage, micro_batch)]
    found = [own_forward]
    recompute = Action(Kind.RECOMPUTE, stage, micro_batch)
    if recompute in kinds:
        found.append(recompute)
    if stage < schedule_stages - 1:
        found.append(gradient(stage + 1))
    return found


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A valid schedule: random placement, remat and split backwards, in an order found by running actions at random."""
    num_stages = draw(st.integers(1, 3))
    num_virtual_stages = draw(st.integers(1, 2))
    num_micro_batches = draw(st.integers(1, 3))
    remat = draw(st.sampled_from(Remat))
    total = num_stages * num_virtual_stages
    ranks = st.lists(st.integers(0, num_stages - 1), min_size=1, max_size=2, unique=True)
    placement = tuple(tuple(draw(ranks)) for _ in range(total))

    owner: dict[Action, int] = {}
    for stage in range(total):
        for micro_batch in range(num_micro_batches):
            rank = draw(st.sampled_from(placement[stage]))
            kinds = [Kind.FORWARD]
            if remat.recomputes(micro_batch, num_micro_batches):
                kinds.append(Kind.RECOMPUTE)
            split = draw(st.booleans())
            kinds += [Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT] if split else [Kind.BACKWARD]
            owner |= {Action(kind, stage, micro_batch): rank for kind in kinds}

    waiting = {action: set(needs(action, total, set(owner))) for action in owner}
    orders: list[list[Action]] = [[] for _ in range(num_stages)]
    done: set[Action] = set()
    while waiting:
        ready = [action for action, missing in waiting.items() if missing <= done]
        action = draw(st.sampled_from(ready))
        del waiting[action]
        done.add(action)
        orders[owner[action]].append(action)
    return Schedule(
        name="random",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
        placement=placement,
        actions=tuple(map(tuple, orders)),
    )
