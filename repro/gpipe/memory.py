"""Activations in bytes: counted layer by layer without computing anything, and measured while the engine runs.

Both see what autograd sees: every tensor that is saved for backward passes ``saved_tensors_hooks``. Views of one
storage are one tensor, parameters and buffers are none, and a tensor counts until autograd lets go of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from typing_extensions import override

from repro.planning.memory import LayerMemory, ModelMemory, OutputMemory
from repro.schedules import Action, Kind

from .engine import Engine
from .microbatch import Boundary, elements, map_tensors
from .stage import Loss
from .tracing import Recorder

Factory = Callable[[], nn.Module]


class SavedTensors:
    """The storages that autograd graphs keep, with their bytes.

    Args:
        modules: their parameters and buffers do not count.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._ignored: set[int] = set()
        self._live: dict[int, tuple[int, int]] = {}
        self.ignore(modules)

    def ignore(self, modules: Iterable[nn.Module]) -> None:
        """Parameters and buffers of these modules do not count either."""
        for module in modules:
            self._ignored |= {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What autograd saves inside counts, until it is freed."""
        with saved_tensors_hooks(self._pack, _unpack):
            yield

    def bytes_by_storage(self) -> dict[int, int]:
        """The live storages: a key (that of ``storage_bytes``) and the bytes of each."""
        return {key: size for key, (size, _) in self._live.items()}

    def release(self, key: int) -> None:
        """A saved tensor of this storage is gone."""
        size, count = self._live.pop(key)
        if count > 1:
            self._live[key] = (size, count - 1)

    def _pack(self, tensor: Tensor) -> Any:
        key = _storage(tensor)
        if key in self._ignored:
            return tensor
        size, count = self._live.get(key, (tensor.untyped_storage().nbytes(), 0))
        self._live[key] = (size, count + 1)
        # Detached: an output that holds its own node would keep a graph that is dropped without backward for ever.
        return _Saved(tensor.detach(), key, self)


class _Saved:
    """A saved tensor; it dies with the node of the graph that saved it."""

    __slots__ = ("_key", "_owner", "tensor")

    def __init__(self, tensor: Tensor, key: int, owner: SavedTensors) -> None:
        self.tensor = tensor
        self._key = key
        self._owner = owner

    def __del__(self) -> None:
        self._owner.release(self._key)


def storage_bytes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """The storages of some tensors: a key and the bytes of each."""
    return {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}


def count_parameters(factories: Sequence[Factory]) -> int:
    """Parameters of a model, built on the meta device; layers made by equal factories are built once."""
    known: dict[Hashable, int] = {}
    total = 0
    with torch.device("meta"):
        for factory in factories:
            key = _identity(factory)
            if key not in known:
                known[key] = sum(parameter.numel() for parameter in factory().parameters())
            total += known[key]
    return total


def count_memory(
    factories: Sequence[Factory],
    inputs: Boundary,
    *,
    loss: Loss | None = None,
    targets: Boundary | None = None,
    dtype: torch.dtype = torch.float32,
    known: dict[Hashable, tuple[LayerMemory, Boundary]] | None = None,
) -> ModelMemory:
    """What each layer keeps for backward of one micro-batch, counted under fake tensors: nothing is computed.

    Layers made by equal factories from inputs of equal shape are counted once, so a thousand equal layers cost as much
    as one.

    Args:
        factories: of the layers.
        inputs: of one micro-batch, on any device; only shapes and dtypes matter.
        loss: as for the engine; counted where ``targets`` are given.
        targets: of one micro-batch.
        dtype: of parameters and inputs.
        known: what has been counted; filled, so that other models that share layers and dtype need not count again.
    """
    known = {} if known is None else known
    layers: list[LayerMemory] = []
    with _default_dtype(dtype), FakeTensorMode(allow_non_fake_inputs=True):
        value = map_tensors(partial(_fake, dtype=dtype, grad=False), inputs)
        sizes = tuple(_size(element) for element in elements(value))
        for factory in factories:
            key = (_identity(factory), _shapes(value))
            if key not in known:
                known[key] = _count_layer(factory(), value)
            memory, outputs = known[key]
            layers.append(memory)
            # Fresh tensors: nothing may be taken for a tensor of an earlier layer.
            value = map_tensors(partial(_fake, grad=True), outputs)
        kept = None
        held = 0
        if loss is not None and targets is not None:
            aims = map_tensors(partial(_fake, dtype=dtype, grad=False), targets)
            held = sum(_size(element) for element in elements(aims))
            kept = _count_loss(loss, value, aims)
    return ModelMemory(tuple(layers), sizes, held, kept)


class MemoryRecorder(Recorder):
    """In place of an engine's recorder: how many bytes each rank holds of its micro-batches, at most.

    What a rank holds are the tensors that are saved for backward and the inputs and outputs of its stages that the
    engine keeps; messages under way are not counted. It is looked at after every F and R, when it is largest.

    Args:
        engine: its layers, and the stages that are looked at. It must have been made with ``trace=True``.

    Attributes:
        peaks: bytes by rank since the last ``clear``, with which every step begins.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._stages = engine.stages
        self._by_rank: dict[int, list[int]] = {}
        self._saved: dict[int, SavedTensors] = {}
        self.peaks: dict[int, int] = {}

    @override
    def clear(self) -> None:
        super().clear()
        self.peaks = {}

    @contextmanager
    @override
    def running(self, rank: int, action: Action) -> Iterator[None]:
        stages = self._by_rank.setdefault(rank, [])
        if action.stage not in stages:
            stages.append(action.stage)
            layers = [layer for stage in stages for layer in self._stages[stage].layers.values()]
            if rank not in self._saved:
                self._saved[rank] = SavedTensors(layers)
            else:
                self._saved[rank].ignore(layers)
        saved = self._saved[rank]
        with ExitStack() as stack:
            stack.enter_context(super().running(rank, action))
            if action.kind in (Kind.FORWARD, Kind.RECOMPUTE):
                stack.enter_context(saved.recording())
            yield
        held = saved.bytes_by_storage()
        for stage in stages:
            held |= storage_bytes(self._stages[stage].held())
        self.peaks[rank] = max(self.peaks.get(rank, 0), sum(held.values()))


def _count_layer(layer: nn.Module, inputs: Boundary) -> tuple[LayerMemory, Boundary]:
    saved = SavedTensors([layer])
    with saved.recording():
        outputs = layer(map_tensors(lambda e: e.view_as(e), inputs))
    live = saved.bytes_by_storage()
    entering = [None if e is None else _storage(e) for e in elements(inputs)]
    leaving = [None if e is None else _storage(e) for e in elements(outputs)]
    outside = {key for key in (*entering, *leaving) if key is not None}
    made = tuple(
        OutputMemory(
            _size(element),
            entering.index(key) if key is not None and key in entering else None,
            key in live,
        )
        for element, key in zip(elements(outputs), leaving, strict=True)
    )
    memory = LayerMemory(
        parameters=sum(parameter.numel() for parameter in layer.parameters()),
        internal=sum(size for key, size in live.items() if key not in outside),
        saved_inputs=tuple(key in live for key in entering),
        outputs=made,
    )
    return memory, map_tensors(lambda e: e.detach(), outputs)


def _count_loss(loss: Loss, outputs: Boundary, targets: Boundary) -> LayerMemory:
    saved = SavedTensors([])
    with saved.recording():
        kept = loss(outputs, targets)  # keeps the graph alive while it is looked at
    live = saved.bytes_by_storage()
    entering = [None if e is None else _storage(e) for e in elements(outputs)]
    outside = {*entering, *(_storage(e) for e in elements(targets) if e is not None)}
    del kept
    return LayerMemory(
        parameters=0,
        internal=sum(size for key, size in live.items() if key not in outside),
        saved_inputs=tuple(key in live for key in entering),
        outputs=(),
    )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New parameters have this dtype: fake ones cannot be converted in place."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _fake(tensor: Tensor, *, dtype: torch.dtype | None = None, grad: bool) -> Tensor:
    floating = tensor.is_floating_point()
    made = torch.empty(tensor.shape, dtype=dtype if floating and dtype is not None else tensor.dtype)
    return made.requires_grad_(grad and floating)


def _identity(factory: Factory) -> Hashable:
    """Equal for factories that make equal layers: the same function with the same arguments."""
    if not isinstance(factory, partial):
        return factory
    key = (factory.func, factory.args, tuple(sorted(factory.keywords.items())))
    try:
        hash(key)
    except TypeError:
        return factory
    return key


def _shapes(value: Boundary) -> Hashable:
    return isinstance(value, tuple), tuple(
        None if e is None else (tuple(e.shape), e.dtype, e.requires_grad) for e in elements(value)
    )


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def _storage(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _unpack(packed: Any) -> Tensor:
    tensor: Tensor = packed.tensor if isinstance(packed, _Saved) else packed
    return tensor
