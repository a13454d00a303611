"""Activation bytes: counted under fake tensors, measured in the engine, and what really is in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from repro.experiments.costs.scaled_down import SmallAmoebaNet, SmallTransformer, build_engine, cross_entropy
from repro.gpipe.memory import MemoryRecorder, SavedTensors, count_memory, count_parameters, storage_bytes
from repro.models.transformer import transformer_lm
from repro.planning import partition
from repro.planning.memory import LayerMemory, OutputMemory, live_sets, peak_bytes
from repro.schedules import make_schedule

MODELS = [
    SmallTransformer(num_layers=2, d_model=32, d_ff=64, length=16, batch_size=4),
    SmallAmoebaNet(num_layers=3, num_filters=8, side=16, batch_size=4),
]


def hook_bytes(model: nn.Module, inputs: Tensor) -> tuple[SavedTensors, Any]:
    saved = SavedTensors([model])
    with saved.recording():
        outputs = model(inputs)
    return saved, outputs


def test_views_count_once_parameters_never_and_backward_frees() -> None:
    model = nn.Linear(4, 4, bias=False)
    inputs = torch.randn(3, 4, requires_grad=True)

    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            made = value * 2
            # Saved three times, as itself, as a view and as the Linear's input: one storage of 48 bytes.
            return (made * made).sum() + made.view(4, 3).exp().sum() * 0 + model(made).sum()

    saved = SavedTensors([model])
    with saved.recording():
        total = Twice()(inputs)
    sizes = sorted(saved.bytes_by_storage().values())
    # made, and the result of exp; the factors 2 and 0 are numbers, not tensors.
    assert sizes == [48, 48]
    total.backward()
    assert saved.bytes_by_storage() == {}
    assert inputs.grad is not None


def test_gradients_are_the_same_under_the_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    inputs = torch.randn(5, 4)
    model(inputs).sum().backward()
    plain = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    _, outputs = hook_bytes(model, inputs)
    outputs.sum().backward()
    for ours, theirs in zip(model.parameters(), plain, strict=True):
        assert ours.grad is not None and theirs is not None and torch.equal(ours.grad, theirs)


def test_a_dead_branch_is_not_kept() -> None:
    class Dead(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            value.exp().exp()  # nothing reads this
            return value.sin()

    (memory,) = count_memory([Dead], torch.empty(3, 5)).layers
    # The model's input needs no gradient: nothing is kept. Behind another layer, sin keeps its input.
    assert memory == LayerMemory(0, 0, (False,), (OutputMemory(60),))
    _, second = count_memory([partial(nn.Linear, 5, 5), Dead], torch.empty(3, 5)).layers
    assert second == LayerMemory(0, 0, (True,), (OutputMemory(60),))


def test_a_layer_by_hand() -> None:
    #   input 2x3 float32 = 24 bytes; Linear 3 -> 4 keeps it; ReLU keeps its result, 32 bytes, which leaves the layer
    layer, passing = count_memory(
        [lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Identity], torch.empty(2, 3)
    ).layers
    assert layer == LayerMemory(16, 0, (True,), (OutputMemory(32, saved=True),))
    assert passing == LayerMemory(0, 0, (False,), (OutputMemory(32, passes=0),))


def test_equal_layers_are_built_once() -> None:
    built = []

    class Counted(nn.Linear):
        def __init__(self, width: int) -> None:
            built.append(width)
            super().__init__(width, width)

    factories = [partial(Counted, 4)] * 50 + [partial(Counted, 4) for _ in range(50)]
    assert count_parameters(factories) == 100 * 20
    memory = count_memory(factories, torch.empty(1, 4))
    assert memory.parameters == 100 * 20
    # Once on the meta device; twice under fake tensors: the first layer's input needs no gradient.
    assert len(built) == 3


def test_bfloat16_takes_half_and_whole_attention_matrices_are_counted() -> None:
    tokens = torch.empty(2, 64, dtype=torch.int64)
    factories = transformer_lm(num_layers=1, d_model=32, d_ff=64, num_heads=4, vocab_size=8, dropout=0.0)
    before = torch.get_default_dtype()
    fused = count_memory(factories, tokens).layers[1]
    half = count_memory(factories, tokens, dtype=torch.bfloat16).layers[1]
    with sdpa_kernel(SDPBackend.MATH):
        whole = count_memory(factories, tokens).layers[1]
    assert torch.get_default_dtype() is before
    assert 0.45 * fused.internal < half.internal < 0.6 * fused.internal
    # Rows x heads x length x length numbers, in place of one for each row, head and token.
    assert whole.internal - fused.internal == 4 * 2 * 4 * 64 * (64 - 1)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("num_stages", "num_micro_batches", "remat"),
    [
        (1, 1, "always"),
        (1, 4, "always"),
        (1, 4, "never"),
        (2, 1, "never"),
        (2, 4, "except_last"),
        (3, 4, "always"),
        (3, 4, "never"),
    ],
)
def test_the_engine_holds_what_is_predicted(
    model: SmallTransformer | SmallAmoebaNet, num_stages: int, num_micro_batches: int, remat: str
) -> None:
    counts = partition(model.costs(), num_stages)
    few, aims = model.batch(model.batch_size // num_micro_batches)
    memory = count_memory(model.factories(), few, loss=cross_entropy, targets=aims)
    made = make_schedule("gpipe", num_stages=num_stages, num_micro_batches=num_micro_batches, remat=remat)
    engine = build_engine(
        model, counts, num_micro_batches=num_micro_batches, remat=remat, mesh=None, device=torch.device("cpu")
    )
    recorder = engine.recorder = MemoryRecorder(engine)
    inputs, targets = model.batch(model.batch_size)
    for counter in range(2):
        engine.train_step(inputs, targets, batch_counter=counter)
    measured = [recorder.peaks[rank] for rank in range(num_stages)]
    assert measured == pytest.approx(peak_bytes(live_sets(made), memory.stages(counts)), rel=0.02)
    engine.close()


class Allocated(TorchDispatchMode):
    """Every storage that an operation makes, for as long as it lives; views of what was there before are none."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()
        self._before = set(storage_bytes(before))
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_flatten(made)[0]:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                if storage._cdata not in self._before:
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return made

    def alive(self) -> int:
        return sum(size for reference, size in self._made.values() if not reference.expired())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_hooks_miss_nothing_that_is_in_memory(model: SmallTransformer | SmallAmoebaNet) -> None:
    layers = nn.Sequential(*(make() for make in model.factories()))
    inputs, targets = model.batch(model.batch_size)
    saved = SavedTensors([layers])
    before = [inputs, targets, *layers.parameters(), *layers.buffers()]
    with Allocated(before) as allocated, saved.recording():
        outputs = layers(inputs)
        kept = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum")
        del outputs
    given = storage_bytes([inputs, targets])
    held = sum(size for key, size in saved.bytes_by_storage().items() if key not in given)
    # The loss itself is alive too.
    assert held == pytest.approx(allocated.alive(), abs=64)
    assert held > 10 * sum(given.values())
    del kept
    assert saved.bytes_by_storage() == {}
