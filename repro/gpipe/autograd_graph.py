"""Reading the graph that autograd records: its nodes, what they have saved, and the hooks on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

Edge = tuple[Node, int]
Graph = dict[Node, list[Edge]]
"""All nodes with the edges that their gradients take, each node before those that its gradients go to."""


def graph_of(roots: Iterable[Node]) -> Graph:
    """All that a backward from ``roots`` runs."""
    edges: Graph = {}
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


def as_received(edge: Edge, gradient: Tensor) -> Tensor:
    """The gradient as the engine hands it to the next node: summed over what was broadcast, in that node's dtype."""
    node, number = edge
    wanted = node._input_metadata[number]
    if gradient.is_complex() and not wanted.dtype.is_complex:
        gradient = gradient.real
    return gradient.sum_to_size(wanted.shape).to(device=wanted.device, dtype=wanted.dtype)


def free_saved(node: Node) -> None:
    """Frees what ``node`` has saved for its backward, which has run."""
    for saved in saved_by(node):
        with suppress(RuntimeError):  # Nothing saved, or by hooks of the user's, which are theirs.
            saved.register_hooks(_nothing, _freed)


def _nothing(saved: Tensor) -> None:
    """Packs a tensor away without keeping it."""


def _freed(packed: None) -> Tensor:
    raise RuntimeError("the activations of this stage are freed: I has run")


def saved_by(node: Node) -> Iterator[Any]:
    """What ``node`` has saved for its backward."""
    for name in _saved_names(type(node)):
        saved = getattr(node, name)
        yield from saved if isinstance(saved, tuple) else (saved,)


def saves(node: Node) -> bool:
    """Whether nodes of this kind save anything for their backward."""
    return bool(_saved_names(type(node)))


@cache
def _saved_names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def kind_of(node: Node) -> str:
    """The name of the operation, for example ``"AddmmBackward0"``."""
    return type(node).__name__


def has_hook_after(node: Node) -> bool:
    """Whether somebody has a say in the gradients that ``node`` makes; calling the node would pass the hook over."""
    handle = node.register_hook(_nothing_after)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


def _nothing_after(made: Any, received: Any) -> None:
    """A hook without effect."""


def leaf_of(node: Node) -> Tensor | None:
    """The leaf tensor to whose ``.grad`` the node adds; None for all other nodes."""
    leaf: Tensor | None = getattr(node, "variable", None) if kind_of(node) == "AccumulateGrad" else None
    return leaf
