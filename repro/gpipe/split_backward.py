"""The backward of a stage in two parts: I, the gradients of its inputs, and W, the gradients of its parameters.

Zero-bubble schedules (Qi et al. 2023, section 2) run I at once, because another stage waits for it, and W when there is
nothing better to do. What both parts compute together is what one backward computes, each operation once:

    inputs --- A ----- A ----- A --- outputs     A: nodes of the graph from which a gradient of the inputs is made
               |       |       |
               P       P       P                 P: all others; they make gradients of parameters alone
               |       |       |
          parameter parameter ...

1. I runs the nodes A only, each as far as it works towards the inputs. Where an A node has an edge to a P node the
   gradient that reaches it is kept.
2. What neither the kept gradients nor W need is freed.
3. W takes every such A node once more, now for its edges to P nodes alone, and then runs the P nodes.

Step 3 is only taken where the node's edges are independent of each other (matrix products, convolutions, sums and
products). A node that makes all its gradients in one piece (normalisations, functions of the user's, ...) runs once, in
I, with the P nodes that depend on it. Hooks run once, with the gradients that a whole backward gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

_INDEPENDENT = frozenset(
    f"{operation}Backward0"
    for operation in (
        *("Addmm", "Mm", "Addbmm", "Baddbmm", "Bmm", "Addmv", "Mv", "Linear", "Convolution"),
        *("Add", "Sub", "Mul", "Div", "Cat", "Stack"),
    )
)
"""Nodes that compute the gradient of each operand by itself, and only where it is asked for."""

_INDIVISIBLE = {
    "CheckpointFunctionBackward": "torch.utils.checkpoint with use_reentrant=True",
    "CompiledFunctionBackward": "torch.compile",
}
"""Nodes that refuse a backward for chosen inputs, or one that keeps the graph; and what makes them."""


_AT_ONCE = 2**24
"""Bytes of gradients that W makes before it adds them to those of the parameters."""

_Edge = tuple[Node, int]
_Graph = dict[Node, list[_Edge]]
"""All nodes with the edges that their gradients take, each node before those that its gradients go to."""


@dataclass
class _Group:
    """P nodes that depend on each other, with the A nodes that feed them.

    Attributes:
        nodes: the P nodes.
        sources: the A nodes, those nearer to the outputs first.
        edges: for each source, those to P nodes.
        kept: for each source, what has reached it in I.
        gradients: what has reached the P nodes, by edge.
    """

    nodes: list[Node] = field(default_factory=list)
    sources: list[Node] = field(default_factory=list)
    edges: list[list[_Edge]] = field(default_factory=list)
    kept: dict[int, tuple[Tensor | None, ...]] = field(default_factory=dict)
    gradients: dict[_Edge, Tensor] = field(default_factory=dict)

    def add(self, edge: _Edge, gradient: Tensor) -> None:
        known = self.gradients.get(edge)
        self.gradients[edge] = gradient if known is None else known + gradient

    @property
    def leaves(self) -> list[Tensor]:
        """The parameters that get their gradient from these nodes."""
        return [leaf for leaf in map(_leaf, self.nodes) if leaf is not None]

    @property
    def is_separable(self) -> bool:
        """Whether the group can wait for W."""
        return (
            all(_kind(source) in _INDEPENDENT for source in self.sources)
            and not any(map(_has_hook_after, self.sources))
            and not any(saved.unpack_hook for node in (*self.sources, *self.nodes) for saved in _saved(node))
        )


class WeightGradients:
    """What W has to do for one micro-batch; made by ``backward_inputs``.

    Attributes:
        parameters: the leaf tensors whose gradients are still due.
        whole: what in the graph made I run the whole backward; None where nothing did.
    """

    def __init__(self, groups: Sequence[_Group] = (), whole: str | None = None) -> None:
        self._groups = list(groups)
        self.parameters = tuple(leaf for group in groups for leaf in group.leaves)
        self.whole = whole

    def accumulate(self) -> None:
        """W: adds the gradients to the ``.grad`` of the parameters, and frees the graph on the way."""
        self.parameters = ()
        while self._groups:
            batch, size = [], 0
            while self._groups and size < _AT_ONCE:
                batch.append(self._groups.pop(0))
                size += sum(leaf.nbytes for leaf in batch[-1].leaves)
            _differentiate_sources(batch)
            gradients = {edge: gradient for group in batch for edge, gradient in group.gradients.items()}
            if gradients:
                torch.autograd.backward([GradientEdge(*edge) for edge in gradients], list(gradients.values()))


def backward_inputs(outputs: Sequence[Tensor], seeds: Sequence[Tensor], inputs: Sequence[Tensor]) -> WeightGradients:
    """I: adds to the ``.grad`` of ``inputs``, and to that of the parameters whose gradient cannot wait.

    Args:
        outputs: tensors with a graph.
        seeds: their gradients.
        inputs: leaf tensors that require a gradient; where there are none the whole backward runs.

    Returns:
        The rest of the backward.
    """
    if not inputs:
        torch.autograd.backward(outputs, seeds)
        return WeightGradients()
    roots = [get_gradient_edge(output) for output in outputs]
    graph = _graph(root.node for root in roots)
    whole = next((_INDIVISIBLE[kind] for kind in map(_kind, graph) if kind in _INDIVISIBLE), None)
    groups = [] if whole else [group for group in _groups(graph, _path_to(inputs, graph)) if group.is_separable]
    if not groups:
        torch.autograd.backward(outputs, seeds)
        return WeightGradients(whole=whole)

    waiting = {node: group for group in groups for node in group.nodes}
    for root, seed in zip(roots, seeds, strict=True):
        if root.node in waiting:
            waiting[root.node].add((root.node, root.output_nr), seed)
    now = [leaf for node in graph if node not in waiting and (leaf := _leaf(node)) is not None]
    if now:
        handles = [
            source.register_prehook(_keeper(group.kept, number))
            for group in groups
            for number, source in enumerate(group.sources)
        ]
        try:
            torch.autograd.backward(outputs, seeds, inputs=now, retain_graph=True)
        finally:
            for handle in handles:
                handle.remove()
        _separate(now, groups)
    needed = {source for group in groups for source in group.sources}
    for node in graph:
        if node not in needed and node not in waiting:
            _free(node)
    return WeightGradients(groups)


def _keeper(kept: dict[int, tuple[Tensor | None, ...]], number: int) -> Callable[[tuple[Tensor | None, ...]], None]:
    """A hook before a node, which runs after all others. It must not know the node: the cycle would never be freed."""

    def keep(gradients: tuple[Tensor | None, ...]) -> None:
        kept[number] = gradients

    return keep


def _separate(leaves: Sequence[Tensor], groups: Sequence[_Group]) -> None:
    """Gives leaves gradients of their own where they share memory with what is kept for W: others add to them."""
    kept = {
        gradient.untyped_storage().data_ptr()
        for group in groups
        for gradients in group.kept.values()
        for gradient in gradients
        if gradient is not None and gradient.layout is torch.strided
    }
    for leaf in leaves:
        gradient = leaf.grad
        if gradient is None or gradient.layout is not torch.strided:
            continue
        if gradient.untyped_storage().data_ptr() in kept:
            leaf.grad = gradient.clone()


def _graph(roots: Iterable[Node]) -> _Graph:
    edges: _Graph = {}
    finished: list[Node] = []
    stack = [(root, False) for root in roots]
    while stack:
        node, is_finished = stack.pop()
        if is_finished:
            finished.append(node)
        elif node not in edges:
            edges[node] = [(child, number) for child, number in node.next_functions if child is not None]
            stack.append((node, True))
            stack.extend((child, False) for child, _ in edges[node] if child not in edges)
    return {node: edges[node] for node in reversed(finished)}


def _path_to(inputs: Sequence[Tensor], graph: _Graph) -> set[Node]:
    """The A nodes: those from which a gradient of ``inputs`` is made."""
    identities = {id(tensor) for tensor in inputs}
    path: set[Node] = set()
    for node, edges in reversed(graph.items()):
        if id(_leaf(node)) in identities or any(child in path for child, _ in edges):
            path.add(node)
    return path


def _groups(graph: _Graph, path: set[Node]) -> list[_Group]:
    """P nodes and the A nodes before them, in groups that have nothing in common; those near the outputs first."""
    parent: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while (above := parent.setdefault(node, node)) is not node:
            parent[node] = parent[above]
            node = above
        return node

    for node, edges in graph.items():
        for child, _ in edges:
            if child not in path:
                parent[find(child)] = find(node)
    groups: dict[Node, _Group] = {}
    for node, edges in graph.items():
        if node not in path:
            groups.setdefault(find(node), _Group()).nodes.append(node)
        elif node in parent:
            group = groups.setdefault(find(node), _Group())
            group.sources.append(node)
            group.edges.append([edge for edge in edges if edge[0] not in path])
    return list(groups.values())


class _Asking(torch.autograd.Function):
    """A node that runs a function in its backward, where the engine knows which edges are asked for."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, function: Callable[[], None]) -> Tensor:
        ctx.function = function
        return leaf.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.function()
        return None, None


def _differentiate_sources(groups: Sequence[_Group]) -> None:
    """Computes the gradients on the edges from the groups' sources to their nodes, nothing else, and lets go of them.

    A node that is called computes the edges to the nodes that the engine's current task asks for: here those of the
    groups. No hook runs; I has run those before the sources, and there are none after them.
    """

    def run() -> None:
        for group in groups:
            for number, edges in enumerate(group.edges):
                if number in group.kept:
                    source: Any = group.sources[number]
                    made = source(*group.kept.pop(number))
                    made = made if isinstance(made, tuple) else (made,)
                    for edge, gradient in zip(source.next_functions, made, strict=True):
                        if gradient is not None and edge in edges:
                            group.add(edge, _as_received(edge, gradient))
            group.sources.clear()

    asked = {edge for group in groups for edges in group.edges for edge in edges}
    if asked:
        with torch.enable_grad():
            leaf = torch.zeros((), requires_grad=True)
            task = _Asking.apply(leaf, run)
        wanted: list[Any] = [leaf, *(GradientEdge(*edge) for edge in asked)]
        torch.autograd.grad(task, wanted, allow_unused=True)


def _as_received(edge: _Edge, gradient: Tensor) -> Tensor:
    """The gradient as the engine hands it to the next node: summed over what was broadcast, in that node's dtype."""
    node, number = edge
    wanted = node._input_metadata[number]
    if gradient.is_complex() and not wanted.dtype.is_complex:
        gradient = gradient.real
    return gradient.sum_to_size(wanted.shape).to(device=wanted.device, dtype=wanted.dtype)


def _free(node: Node) -> None:
    """Frees what ``node`` has saved for its backward, which has run."""
    for saved in _saved(node):
        with suppress(RuntimeError):  # Nothing saved, or by hooks of the user's, which are theirs.
            saved.register_hooks(_nothing, _freed)


def _nothing(saved: Tensor) -> None:
    """Packs a tensor away without keeping it."""


def _freed(packed: None) -> Tensor:
    raise RuntimeError("the activations of this stage are freed: I has run")


def _saved(node: Node) -> Iterator[Any]:
    """What ``node`` has saved for its backward."""
    for name in _saved_names(type(node)):
        saved = getattr(node, name)
        yield from saved if isinstance(saved, tuple) else (saved,)


@cache
def _saved_names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _kind(node: Node) -> str:
    return type(node).__name__


def _has_hook_after(node: Node) -> bool:
    """Whether somebody has a say in the gradients that ``node`` makes; calling the node would pass the hook over."""
    handle = node.register_hook(_nothing_after)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


def _nothing_after(made: Any, received: Any) -> None:
    """A hook without effect."""


def _leaf(node: Node) -> Tensor | None:
    """The leaf tensor to whose ``.grad`` the node adds; None for all other nodes."""
    leaf: Tensor | None = getattr(node, "variable", None) if _kind(node) == "AccumulateGrad" else None
    return leaf
