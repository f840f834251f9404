"""The master's side of the protocol for one slave, without a socket: the plain one, and the one for controller mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gantrymq.errors import FrameError
from gantrymq.replication.autoswitch_frames import (
    MAX_TRANSFER,
    AutoSwitchReportReader,
    Hello,
    Leaving,
    encode_epochs,
    encode_transfer_header,
)
from gantrymq.replication.epochs import Epoch, Epochs
from gantrymq.replication.frames import (
    MAX_BODY,
    VERSION,
    Greeting,
    Report,
    ReportReader,
    encode_greeting,
    encode_header,
)
from gantrymq.replication.link import LAST_FILE
from gantrymq.store.message_store import MessageStore

#: A frame to a GantryMQ slave may be this many times as long as `haTransferBatchSize`, because each frame takes 30 us.
_AT_ONCE = 8


class LogTransfer(Protocol):
    """The protocol for one slave."""

    #: True if no send waits for this slave.
    is_learner: bool
    #: Epoch of another master, which the slave reported before it disconnected. 0 without such a report.
    newer_epoch: int

    def feed(self, data: bytes) -> tuple[bytes, Report | None]:
        """Returns the bytes to send at once, and the slave's last report. Raises FrameError for invalid input."""

    def first(self, offset: int) -> int:
        """Returns the physical offset from which to send the log, for the offset in a slave's first report."""

    def most(self, offset: int, size: int) -> int:
        """Returns the maximum number of bytes in a frame that starts at `offset`, for a batch of `size` bytes."""

    def header(self, offset: int, piece: bytes | memoryview) -> bytes:
        """Returns the header of a frame with this part of the log."""

    def news(self, offset: int) -> bytes:
        """Returns a message for a slave that has the whole log, up to `offset`. b"" if there is no message."""


class PlainLogTransfer:
    """The protocol without a controller (`DefaultHAConnection`)."""

    is_learner = False
    newer_epoch = 0

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._reports = ReportReader()
        self._has_greeted = False

    def feed(self, data: bytes) -> tuple[bytes, Report | None]:
        report = self._reports.feed(data)
        if not self._reports.checked or self._has_greeted:
            return b"", report
        self._has_greeted = True
        store = self._store
        size = store.config.mapped_file_size_commit_log
        greeting = Greeting(store.min_physical_offset, store.max_physical_offset, size, VERSION)
        return encode_greeting(greeting), report

    def first(self, offset: int) -> int:
        return _last_file(self._store) if offset == LAST_FILE and not self._reports.checked else offset

    def most(self, offset: int, size: int) -> int:
        return min(size * _AT_ONCE, MAX_BODY) if self._reports.checked else size

    def header(self, offset: int, piece: bytes | memoryview) -> bytes:
        return encode_header(offset, piece, checked=self._reports.checked)

    def news(self, offset: int) -> bytes:
        return b""


class AutoSwitchLogTransfer:
    """The protocol of controller mode (`AutoSwitchHAConnection`). `epochs` are those of this master's log.

    `confirm_offset` returns the offset up to which all in-sync replicas have the log. `on_newer_epoch` is called with
    the epoch if a slave reports that another master leads. Without a handshake, the report can be forged.
    """

    def __init__(
        self,
        store: MessageStore,
        epochs: Epochs,
        confirm_offset: Callable[[], int],
        on_newer_epoch: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self.is_learner = False
        self.newer_epoch = 0
        self._store = store
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._on_newer_epoch = on_newer_epoch
        self._reports = AutoSwitchReportReader()
        self._hello: Hello | None = None
        #: Last confirm offset that was sent to the slave.
        self._confirmed = -1

    def feed(self, data: bytes) -> tuple[bytes, Report | None]:
        answer, report, newer_epoch = b"", None, 0
        for each in self._reports.feed(data):
            if isinstance(each, Hello):
                # A Java slave repeats its hello if it gets no response for a while.
                self._hello = each
                self.is_learner = each.is_async_learner
                answer += encode_epochs(self._store.max_physical_offset, self._epochs.all())
            elif self._hello is None:
                raise FrameError("it reports before it has said hello")
            elif isinstance(each, Leaving):
                newer_epoch = max(newer_epoch, each.epoch)
            else:
                report = Report(each.offset, self._hello.broker_id)
        if newer_epoch:
            self.newer_epoch = newer_epoch
            self._on_newer_epoch(newer_epoch)
        return answer, report

    def first(self, offset: int) -> int:
        if offset:
            return offset
        assert self._hello is not None
        return _last_file(self._store) if self._hello.sync_from_last_file else self._store.min_physical_offset

    def most(self, offset: int, size: int) -> int:
        """Returns the size of a frame that does not cross the end of an epoch."""
        assert self._hello is not None
        size = min(size * _AT_ONCE if self._hello.is_ours else size, MAX_TRANSFER)
        found = self._epochs.at(offset)
        return size if found is None or found[1] is None else min(size, found[1] - offset)

    def header(self, offset: int, piece: bytes | memoryview) -> bytes:
        found = self._epochs.at(offset)
        # Data from before controller mode is sent with the first epoch.
        epoch = found[0] if found is not None else next(iter(self._epochs.all()), Epoch(0, 0))
        self._confirmed = self._confirm_offset()
        return encode_transfer_header(offset, len(piece), epoch, self._confirmed)

    def news(self, offset: int) -> bytes:
        """Returns a heartbeat with the new confirm offset, if it has changed."""
        return self.header(offset, b"") if self._confirm_offset() != self._confirmed else b""


def _last_file(store: MessageStore) -> int:
    size = store.config.mapped_file_size_commit_log
    return max(store.max_physical_offset // size * size, store.min_physical_offset)
