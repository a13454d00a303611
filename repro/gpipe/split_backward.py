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
I, with the P nodes that depend on it. Hooks run once, with the gradients that a whole backward gives them; only those
on several tensors at once may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from .aliases import separate_gradients
from .autograd_engine import run_backward
from .autograd_graph import (
    Edge,
    Graph,
    as_received,
    free_saved,
    graph_of,
    has_hook_after,
    kind_of,
    leaf_of,
    saved_by,
    saves,
)

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
    edges: list[list[Edge]] = field(default_factory=list)
    kept: dict[int, tuple[Tensor | None, ...]] = field(default_factory=dict)
    gradients: dict[Edge, Tensor] = field(default_factory=dict)

    def add(self, edge: Edge, gradient: Tensor) -> None:
        known = self.gradients.get(edge)
        self.gradients[edge] = gradient if known is None else known + gradient

    @cached_property
    def leaves(self) -> tuple[Tensor, ...]:
        """The parameters that get their gradient from these nodes."""
        return tuple(leaf for leaf in map(leaf_of, self.nodes) if leaf is not None)

    @property
    def is_separable(self) -> bool:
        """Whether the group can wait for W."""
        return (
            all(kind_of(source) in _INDEPENDENT for source in self.sources)
            and not any(map(has_hook_after, self.sources))
            and not any(saved.unpack_hook for node in (*self.sources, *self.nodes) for saved in saved_by(node))
        )


class WeightGradients:
    """What W has to do for one micro-batch; made by ``backward_inputs``.

    Attributes:
        whole: what in the graph made I run the whole backward; None where nothing did.
    """

    def __init__(self, groups: Sequence[_Group] = (), whole: str | None = None) -> None:
        self._groups = list(groups)
        self.whole = whole

    def __bool__(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._groups)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The leaf tensors whose gradients are still due."""
        return tuple(leaf for group in self._groups for leaf in group.leaves)

    def accumulate(self) -> None:
        """W: adds the gradients to the ``.grad`` of the parameters, and frees the graph on the way."""
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
        inputs: leaf tensors that require a gradient; where there are none nothing is done, and W is the whole backward.

    Returns:
        The rest of the backward.
    """
    roots = [get_gradient_edge(output) for output in outputs]
    graph = graph_of(root.node for root in roots)
    if not inputs:
        everything = _Group(nodes=list(graph))
        for root, seed in zip(roots, seeds, strict=True):
            everything.add((root.node, root.output_nr), seed)
        return WeightGradients([everything])
    whole = next((_INDIVISIBLE[kind] for kind in map(kind_of, graph) if kind in _INDIVISIBLE), None)
    groups = [] if whole else [group for group in _groups(graph, _path_to(inputs, graph)) if group.is_separable]
    if not groups:
        run_backward(outputs, seeds)
        return WeightGradients(whole=whole)

    waiting = {node: group for group in groups for node in group.nodes}
    for root, seed in zip(roots, seeds, strict=True):
        if root.node in waiting:
            waiting[root.node].add((root.node, root.output_nr), seed)
    now = [leaf for node in graph if node not in waiting and (leaf := leaf_of(node)) is not None]
    if now:
        sources = {source for group in groups for source in group.sources}
        handles = [
            source.register_prehook(_keeper(group.kept, number))
            for group in groups
            for number, source in enumerate(group.sources)
        ]
        handles += [
            node.register_hook(_freer(node))
            for node in graph
            if node not in sources and node not in waiting and saves(node)
        ]
        try:
            run_backward(outputs, seeds, inputs=now, retain_graph=True)
        finally:
            for handle in handles:
                handle.remove()
        kept = [gradient for group in groups for received in group.kept.values() for gradient in received]
        separate_gradients(now, kept)
    return WeightGradients(groups)


def _keeper(kept: dict[int, tuple[Tensor | None, ...]], number: int) -> Callable[[tuple[Tensor | None, ...]], None]:
    """A hook before a node, which runs after all others. It must not know the node: the cycle would never be freed."""

    def keep(gradients: tuple[Tensor | None, ...]) -> None:
        kept[number] = gradients

    return keep


def _freer(node: Node) -> Callable[[Any, Any], None]:
    """A hook after a node that frees what it has saved: only its backward needs it, and that has run.

    It knows the node, so it must be taken off again.
    """

    def free(made: Any, received: Any) -> None:
        free_saved(node)

    return free


def _path_to(inputs: Sequence[Tensor], graph: Graph) -> set[Node]:
    """The A nodes: those from which a gradient of ``inputs`` is made."""
    identities = {id(tensor) for tensor in inputs}
    path: set[Node] = set()
    for node, edges in reversed(graph.items()):
        if id(leaf_of(node)) in identities or any(child in path for child, _ in edges):
            path.add(node)
    return path


def _groups(graph: Graph, path: set[Node]) -> list[_Group]:
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
                            group.add(edge, as_received(edge, gradient))
            group.sources.clear()

    asked = {edge for group in groups for edges in group.edges for edge in edges}
    if asked:
        with torch.enable_grad():
            leaf = torch.zeros((), requires_grad=True)
            task = _Asking.apply(leaf, run)
        wanted: list[Any] = [leaf, *(GradientEdge(*edge) for edge in asked)]
        torch.autograd.grad(task, wanted, allow_unused=True)
