"""Sends small objects and tensors without waiting."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from repro.errors import UserError

from .mailbox import MAIL, mail_frames, pickled
from .microbatch import CHANGED, Boundary, changes, elements
from .wire import ConnectionLost, Peer, as_frames, as_sent, plain, spec_of

_SWEEP = 0.05
"""Seconds before a look at what has arrived; each takes the interpreter from the main thread."""

_HELD = 2**24
"""Bytes of sent tensors that are kept without a look at whether they have arrived."""


class Sender:
    """Sends without waiting, and keeps what is under way alive until it has arrived, and not much longer.

    A gloo send says that it has ended only to the one who waits for it, so a thread waits where much is under way, and
    not after each send: that would cost the main thread more than the send itself. On CUDA a wait would bind a stream
    to the thread: there what was sent is kept until ``drain``.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[dist.Work, Tensor, int]] = deque()
        self._kept: list[tuple[dist.Work, Tensor, int]] = []
        self._has_changed = False
        self._waiting = threading.Lock()
        # Each is counted up by one thread at a time.
        self._bytes_sent = self._bytes_arrived = 0
        self._peers: dict[tuple[dist.ProcessGroup, int], Peer] = {}
        self._thread: threading.Thread | None = None

    def send(self, tensor: Tensor, destination: int, group: dist.ProcessGroup, tag: int = 0) -> None:
        """Starts to send ``tensor``, which is not empty, to global rank ``destination``."""
        self._start(plain(tensor), destination, group, tag)

    def _start(self, whole: Tensor, destination: int, group: dist.ProcessGroup, tag: int) -> None:
        peer = self._peers.get((group, destination))
        if peer is None:
            peer = self._peers[group, destination] = Peer.of(destination, group)
        changed = changes(whole)
        try:
            work = group.send([as_sent(whole)], peer.group_rank, tag)
        except RuntimeError as error:
            raise ConnectionLost(destination) from error
        if not whole.is_cpu:
            self._kept.append((work, whole, changed))
            return
        self._pending.append((work, whole, changed))
        self._bytes_sent += whole.nbytes
        if self._bytes_sent - self._bytes_arrived > _HELD and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self._reap, name="gpipe-sender", daemon=True)
            self._thread.start()

    def send_object(self, value: Any, destination: int, group: dist.ProcessGroup) -> None:
        """Starts to send a small picklable object (a control message, a header, a report)."""
        self._send_mail(pickle.dumps(value), b"", destination, group)

    def send_known(self, value: Hashable, tail: bytes, destination: int, group: dist.ProcessGroup) -> None:
        """Starts to send a ``value`` that is often equal to an earlier one, and bytes that are not."""
        self._send_mail(pickled(value), tail, destination, group)

    def _send_mail(self, data: bytes, tail: bytes, destination: int, group: dist.ProcessGroup) -> None:
        for frame in mail_frames(data, tail):
            self._start(frame, destination, group, MAIL)

    def send_boundary(
        self, boundary: Boundary, destination: int, control: dist.ProcessGroup, group: dist.ProcessGroup
    ) -> None:
        """Starts to send a whole boundary with its header, for ``receive_boundary``."""
        self.send_object(spec_of(boundary), destination, control)
        self.send_tensors(elements(boundary), destination, group)

    def send_tensors(self, tensors: Sequence[Tensor | None], destination: int, group: dist.ProcessGroup) -> None:
        """Starts to send the tensors of one message to a receiver that knows their specs."""
        for frame in as_frames([tensor for tensor in tensors if tensor is not None]):
            self.send(frame, destination, group)

    def drain(self) -> None:
        """Waits until everything has arrived (CPU) or is ordered before what follows (CUDA).

        Raises:
            UserError: something has been changed in place since it was sent.
        """
        for work, sent, changed in self._kept:
            work.wait()
            self._has_changed |= changes(sent) != changed
        self._kept.clear()
        self._wait_for_pending()
        if self._has_changed:
            self._has_changed = False
            raise UserError(CHANGED)

    def _wait_for_pending(self) -> None:
        with self._waiting:
            while self._pending:
                work, sent, changed = self._pending[0]
                with contextlib.suppress(RuntimeError):  # a broken connection; the next receive meets it as well
                    work.wait()
                self._has_changed |= changes(sent) != changed
                self._pending.popleft()
                self._bytes_arrived += sent.nbytes

    def _reap(self) -> None:
        time.sleep(_SWEEP)
        self._wait_for_pending()
