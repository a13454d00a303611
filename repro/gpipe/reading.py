"""Reading data: one rank of each replica does, the others go through the same loop with placeholders.

The reading rank says before each batch whether there is another, so loaders of unknown length work. Its loader can
be saved in mid-epoch: the state is the random state in which the epoch began, that before its first batch (which draws
the order), and the number of batches used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from repro.errors import UserError

from .mesh import PipelineMesh
from .sender import Sender


class Placeholder:
    """Stands for a batch on the ranks that read no data, and for no batch where a replica has no rows."""


def is_placeholder(batch: object) -> bool:
    """Whether ``batch`` is a placeholder, or a collection of them where there are several loaders.

    Raises:
        UserError: a replica has rows from one loader and none from another.
    """
    parts = [part for part in _parts(batch) if part is not None]  # None: a loader of several that is over
    absent = sum(isinstance(part, Placeholder) for part in parts)
    if 0 < absent < len(parts):
        raise UserError(
            "a replica has rows from one of several loaders and none from another; with data_parallel_size > 1 give "
            "such loaders drop_last=True, or data sets that divide by batch_size x data_parallel_size"
        )
    return absent > 0


def _parts(batch: object) -> Iterator[object]:
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for part in batch:
            yield from _parts(part)
    else:
        yield batch


RandomState = tuple[Tensor, tuple[Tensor, ...]]
"""State of the default generator, and of those that the loader and its samplers have of their own."""


@dataclass
class Progress:
    """How far the training loop is, asked when the loader's state is saved.

    Attributes:
        unprocessed: batches that it has been given and has not processed.
        epoch_is_over: whether it has processed the last one.
    """

    unprocessed: int
    epoch_is_over: bool


class Resumption:
    """The loaders of a checkpoint. They draw from one generator, so they go on together, in order.

    Args:
        states: of the loaders, in the order in which they are made; none where nothing is resumed.
    """

    def __init__(self, states: Sequence[dict[str, Any]] = ()) -> None:
        self._states = list(states)
        self._loaders: list[ReadingLoader] = []

    def add(self, loader: ReadingLoader) -> None:
        """``loader`` will go on from its state; Lightning may make all loaders anew before the first batch."""
        if not self._states:
            return
        if len(self._loaders) == len(self._states):
            self._loaders.clear()
        self._loaders.append(loader)
        loader.resumes = True

    def take_up(self) -> None:
        """Brings all loaders to where they were; nothing once they are there."""
        waiting = list(zip(self._loaders, self._states, strict=False))
        self._loaders, self._states = [], []
        for loader, state in waiting:
            if not state["epoch_is_over"]:
                loader.read_again(state)
        for loader, state in waiting:
            loader.set_random_state(state["now"])
        for loader, state in waiting:
            if state["epoch_is_over"]:
                loader.begin_again()


class ReadingLoader:
    """Wraps the loader of the rank that reads data.

    Args:
        loader: the user's.
        announce: called before each batch with whether there is one.
        progress: of the training loop, asked when the loader is saved.
        agree: gives every replica the random state of the first one, so that all deal out the same order.
        resumption: of the loaders of one checkpoint.
        rows: of a batch, over all replicas, if it is known.

    Attributes:
        resumes: whether the loader goes on where one of a checkpoint was.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        announce: Callable[[bool], None],
        progress: Callable[[], Progress],
        agree: Callable[[RandomState], RandomState] = lambda state: state,
        resumption: Resumption | None = None,
        rows: int | None = None,
    ) -> None:
        self.loader = loader
        self.resumes = False
        self._announce = announce
        self._progress = progress
        self._agree = agree
        self._epoch: RandomState | None = None
        self._first: RandomState | None = None
        # The loop's own count will not do: of several loaders the shorter ones begin again, or are over, in mid-epoch.
        self._given = 0
        self._is_over = False
        self._rows = rows
        self._resumption = resumption or Resumption()
        self._taken_up: tuple[RandomState | None, Iterator[Any]] | None = None

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """What the user's loader has: its data set, its samplers, whose ``set_epoch`` Lightning calls, ..."""
        if name == "loader":  # not there yet, in a copy
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        return self._announced(self._resumed() if self.resumes else self._begin())

    def _begin(self) -> Iterator[Any]:
        # At once, as in plain Lightning: the loader draws also where it is asked for an iterator in vain.
        self.set_random_state(self._agree(self._random_state()))
        self._epoch = self._random_state()
        self._given, self._is_over = 0, False
        return iter(self.loader)

    def _resumed(self) -> Iterator[Any]:
        # A generator: whatever draws between here and the first batch had its turn before the checkpoint was saved, and
        # an iterator that is asked for in vain leaves the state to the next one.
        self._resumption.take_up()
        assert self._taken_up is not None
        first, iterator = self._taken_up
        self._taken_up, self.resumes = None, False
        self._first = self._random_state() if first is None else first
        yield from iterator

    def begin_again(self) -> None:
        """Begins the epoch after the one in which the checkpoint was saved."""
        self._taken_up = None, self._begin()

    def read_again(self, state: dict[str, Any]) -> None:
        """Begins the epoch in which the checkpoint was saved, and drops the batches that it has used.

        Raises:
            UserError: they had another number of rows.
        """
        before = state.get("rows")
        if state["batches"] and None not in (before, self._rows) and before != self._rows:
            raise UserError(
                f"the checkpoint was saved in mid-epoch after {state['batches']} batches of {before} rows "
                f"(batch_size x data_parallel_size), and now a batch has {self._rows}: the rows used cannot be told "
                "from the others. Keep the product, or resume from a checkpoint of the end of an epoch"
            )
        self.set_random_state(state["epoch"])
        iterator = self._begin()
        first = state.get("first")
        if first is not None:
            self.set_random_state(first)
        for _ in range(state["batches"]):
            next(iterator)
        self._given = state["batches"]
        self._taken_up = first, iterator

    def _announced(self, batches: Iterator[Any]) -> Iterator[Any]:
        # Of several loaders the others have drawn since this one began.
        self._first = self._random_state()
        for batch in batches:
            self._announce(True)
            self._given += 1
            yield batch
        self._is_over = True
        self._announce(False)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, for a checkpoint within an epoch."""
        progress = self._progress()
        now = self._random_state()
        epoch, first = (now if known is None else known for known in (self._epoch, self._first))
        used = self._given if self._is_over else self._given - progress.unprocessed
        return {
            "epoch": epoch,
            "first": first,
            "now": now if used else first,  # the order of the epoch is drawn with its first batch
            "batches": used,
            "rows": self._rows,
            "epoch_is_over": progress.epoch_is_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: ``Resumption`` has the state, also where Lightning does not ask for it."""

    def _random_state(self) -> RandomState:
        return torch.get_rng_state(), tuple(own.get_state() for own in _generators(self.loader))

    def set_random_state(self, state: RandomState) -> None:
        """That of the default generator, and of the loader's own."""
        torch.set_rng_state(state[0])
        for own, saved in zip(_generators(self.loader), state[1], strict=False):
            own.set_state(saved)


def _generators(loader: object) -> list[torch.Generator]:
    """The generators that a loader and its samplers have of their own, each once."""
    found: list[torch.Generator] = []
    waiting = [loader]
    while waiting:
        holder = waiting.pop()
        own = getattr(holder, "generator", None)
        if isinstance(own, torch.Generator) and own not in found:
            found.append(own)
        waiting += [
            sampler
            for name in ("sampler", "batch_sampler", "batches")
            if isinstance(sampler := getattr(holder, name, None), Sampler)
        ]
    return found


class FollowingLoader:
    """In place of the loader on the ranks that read no data: placeholders, one for each batch that is announced."""

    def __init__(self, mesh: PipelineMesh, length: int | None) -> None:
        self._mesh = mesh
        self._length = length

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the loader has no length")
        return self._length

    def __iter__(self) -> Iterator[Placeholder]:
        while True:
            with self._mesh.explaining():
                another = self._mesh.mail.receive(self._mesh.rank_of(0))
            if not another:
                return
            yield Placeholder()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the reading rank's loader is the one that is saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to go on with: the reading rank announces the batches."""


def announcer(mesh: PipelineMesh | None, sender: Sender) -> Callable[[bool], None]:
    """Tells the other ranks of the replica whether there is another batch."""
    if mesh is None:
        return lambda another: None

    def announce(another: bool) -> None:
        with mesh.explaining():
            for peer in range(1, mesh.num_stages):
                sender.send_object(another, mesh.rank_of(peer), mesh.control)

    return announce


class _ReplicaBatches(Sampler[Any]):
    """Deals the batches of the one-process order out to D replicas, for one of them.

    D consecutive batches make one global batch. Where fewer than D are left, their rows are dealt out as evenly as can
    be (a replica may have none), or dropped where the loader drops its last batch.
    """

    def __init__(self, batches: Iterable[list[Any]], replica: int, replicas: int) -> None:
        self.batches = batches
        self._replica = replica
        self._replicas = replicas
        self._drop_last = bool(getattr(batches, "drop_last", False))

    @property
    def sampler(self) -> Any:
        """The user's, whose ``set_epoch`` Lightning calls."""
        return getattr(self.batches, "sampler", None)

    def __len__(self) -> int:
        batches = len(self.batches)  # type: ignore[arg-type]
        return batches // self._replicas if self._drop_last else -(-batches // self._replicas)

    def __iter__(self) -> Iterator[list[Any]]:
        window: list[list[Any]] = []
        for batch in self.batches:
            window.append(batch)
            if len(window) == self._replicas:
                yield window[self._replica]
                window = []
        if window and not self._drop_last:
            rows = [row for batch in window for row in batch]
            short, longer = divmod(len(rows), self._replicas)
            begin = self._replica * short + min(self._replica, longer)
            yield rows[begin : begin + short + (self._replica < longer)]


@dataclass(frozen=True)
class _CollateAny:
    """Collates rows, or says that there are none."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, rows: list[Any]) -> Any:
        return self.collate(rows) if rows else Placeholder()


def deal_out(loader: Iterable[Any], replica: int, replicas: int) -> Iterable[Any]:
    """A loader that gives one replica its share, in the one-process order, with ``batch_size`` rows per replica.

    Raises:
        UserError: a loader that has nothing to deal out (an iterable data set, no batches, or no DataLoader at all),
            or gives its batches in a way of its own.
    """
    if replicas == 1:
        return loader
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or loader.batch_sampler is None
    ):
        raise UserError(
            f"data_parallel_size={replicas} needs a DataLoader that batches a data set with a length, to deal its "
            "rows out; "
            f"got {type(loader).__name__}. Use data_parallel_size=1, or a map-style data set"
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(
            f"data_parallel_size={replicas}: {type(loader).__name__} has an __iter__ of its own, which the loaders "
            "that deal its rows out would not have. Do that in the data set, in collate_fn or in split_batch"
        )
    return DataLoader(
        loader.dataset,
        batch_sampler=_ReplicaBatches(loader.batch_sampler, replica, replicas),
        num_workers=loader.num_workers,
        collate_fn=_CollateAny(loader.collate_fn),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
