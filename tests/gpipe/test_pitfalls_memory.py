"""What is alive when: activations, messages, and nothing after a step."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe import process_transport
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.wire import Peer, start_receive
from repro.schedules import Kind
from tests.helpers.models import MODELS
from tests.helpers.pipelines import Cell, make_engine, own_layers
from tests.helpers.ranks import Pools

WAYS = ("local", "processes")
REMATS = ("always", "except_last", "never")


def peaks(rank: int, world_size: int, num_micro_batches: int, remat: str, local: bool = False) -> list[int]:
    """Per stage here: most micro-batches whose activations are alive at once, seen from the layers' forwards."""
    mesh = None if local else PipelineMesh(world_size)
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, num_micro_batches, remat), spec.layers(), mesh)
    most = dict.fromkeys(engine.stages, 0)

    def look(number: int) -> None:
        most[number] = max(most[number], engine.stages[number].live_activations)

    for number, stage in engine.stages.items():
        for layer in stage.layers.values():
            layer.register_forward_pre_hook(lambda module, args, number=number: look(number))
            for parameter in layer.parameters():
                parameter.register_post_accumulate_grad_hook(lambda parameter, number=number: look(number))
    engine.train_step(*(spec.batch(8, 0) if rank == 0 else (None, None)), batch_counter=0)
    engine.close()
    if mesh is not None:
        mesh.close()
    return list(most.values())


@pytest.mark.parametrize("way", WAYS)
def test_with_remat_one_micro_batch_has_activations_whatever_m_is(way: str, pools: Pools) -> None:
    """Recomputed activations that stay until the end of the step undo what re-materialization is for."""
    for remat in REMATS:
        for parts in (1, 2, 8):
            by_rank = [peaks(0, 2, parts, remat, True)] if way == "local" else pools(2).run(peaks, parts, remat)
            # The graph of the micro-batch in B has left ``live_activations`` when gradients accumulate.
            allowed = parts if remat == "never" else 1
            assert all(most <= allowed for seen in by_rank for most in seen), (remat, parts, by_rank)
            if remat == "never" and parts > 1:
                assert all(most >= parts - 1 for seen in by_rank for most in seen)


def alive_after_step(rank: int, world_size: int, name: str, remat: str, local: bool = False) -> tuple[int, int]:
    """(outputs of layers made in three steps, how many are alive after them with the garbage collector off)."""
    mesh = None if local else PipelineMesh(world_size)
    spec = MODELS[name]
    engine = make_engine(Cell(name, world_size, 4, remat), spec.layers(), mesh)
    made: list[weakref.ref[Tensor]] = []

    def note(output: Any) -> None:
        made.extend(weakref.ref(e) for e in (output if isinstance(output, tuple) else (output,)) if e is not None)

    for layer in own_layers(engine).values():
        layer.register_forward_hook(lambda module, args, output: note(output))
    gc.collect()
    gc.disable()
    try:
        for counter in range(3):
            batch = spec.batch(8, counter) if rank == 0 else (None, None)
            engine.train_step(*batch, batch_counter=counter).accumulate()
            engine.evaluate(*batch)
        del batch
        return len(made), sum(reference() is not None for reference in made)
    finally:
        gc.enable()
        engine.close()
        if mesh is not None:
            mesh.close()


@pytest.mark.parametrize("name", ["mlp", "batch_norm_2d", "translation"])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_a_step_is_alive_after_it(way: str, name: str, pools: Pools) -> None:
    """Reference cycles keep a step's activations until the collector happens to run: two steps' worth of memory."""
    for remat in REMATS:
        by_rank = (
            [alive_after_step(0, 3, name, remat, True)]
            if way == "local"
            else pools(3).run(alive_after_step, name, remat)
        )
        for made, alive in by_rank:
            assert made > 0
            assert alive == 0, (remat, by_rank)


def receives_ahead(rank: int, world_size: int, schedule: str, parts: int, training: bool) -> dict[str, int]:
    """Most receives of each direction that are posted beyond what has come, and beyond what the stage comes to hold."""
    mesh = PipelineMesh(world_size)
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, parts, "never", parts, schedule=schedule), spec.layers(), mesh)
    changes = [{Kind.FORWARD: 1, Kind.BACKWARD: -1}[kind] for kind, _, _ in engine.schedule().actions[rank]]
    held = max(accumulate(changes)) if training else 0
    posted, begun, most = Counter[str](), Counter[str](), Counter[str]()
    receive = start_receive

    def counted(buffer: Tensor, source: Peer) -> dist.Work:
        posted["activation" if source.group is mesh.channel("activation", 0, 1) else "gradient"] += 1
        return receive(buffer, source)

    def look(direction: str) -> None:
        begun[direction] += 1
        kept = held + begun["gradient"] if direction == "activation" else 0
        most[direction] = max(most[direction], posted[direction] - max(begun[direction], kept))

    (stage,) = engine.stages.values()
    first = next(iter(stage.layers.values()))
    first.register_forward_pre_hook(lambda module, args: look("activation"))
    first.register_full_backward_hook(lambda module, inputs, outputs: look("gradient"))
    batch = spec.batch(parts, 0) if rank == 0 else (None, None)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_transport, "start_receive", counted)
            engine.train_step(*batch, batch_counter=0) if training else engine.evaluate(*batch)
    finally:
        engine.close()
        mesh.close()
    assert begun == {"activation": parts} | ({"gradient": parts} if training else {})
    assert posted == ({"activation": parts} if rank else {"gradient": parts} if training else {})
    return dict(most)


@pytest.mark.parametrize(("schedule", "training"), [("gpipe", True), ("1f1b", True), ("gpipe", False)])
def test_receive_buffers_do_not_grow_with_the_number_of_micro_batches(
    schedule: str, training: bool, pools: Pools
) -> None:
    """Posting every receive of a step at once holds M buffers beside the inputs that a stage keeps."""
    for parts in (4, 32):
        for most in pools(2).run(receives_ahead, schedule, parts, training):
            assert max(most.values()) <= 2, (parts, most)


def forwards(rank: int, world_size: int, steps: int) -> list[int]:
    """Forwards of all layers here in each step."""
    mesh = PipelineMesh(world_size)
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, 4), spec.layers(), mesh)
    count = [0]

    def more() -> None:
        count[0] += 1

    for layer in own_layers(engine).values():
        layer.register_forward_hook(lambda module, args, output: more())
    seen = []
    for counter in range(steps):
        count[0] = 0
        engine.train_step(*(spec.batch(8, counter) if rank == 0 else (None, None)), batch_counter=counter)
        seen.append(count[0])
    engine.close()
    mesh.close()
    return seen


def test_a_step_does_the_same_number_of_forwards_at_step_1_and_100(pools: Pools) -> None:
    """A dummy forward to find out shapes is a forward through user code that nobody asked for."""
    for rank, seen in enumerate(pools(2).run(forwards, 100)):
        # Four micro-batches, each once forward and once again, through four and three layers.
        assert set(seen) == {8 * (4, 3)[rank]}


def test_the_gradients_set_aside_are_taken_once() -> None:
    """Adding them twice, or at once, would double the gradient or lose what was accumulated before."""
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 4), spec.layers())
    own = own_layers(engine)
    result = engine.train_step(*spec.batch(8, 0), batch_counter=0)
    assert all(parameter.grad is None for parameter in own.parameters())
    result.accumulate()
    first = {name: parameter.grad.clone() for name, parameter in own.named_parameters()}
    with pytest.raises(RuntimeError, match="already"):
        result.accumulate()
    engine.train_step(*spec.batch(8, 0), batch_counter=0).accumulate(2.0)
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, 3 * first[name], rtol=0, atol=1e-12)
