"""Sending: what a master says to one slave, as bytes, without the socket: plain, or in controller mode."""

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

#: A frame to a slave of ours has so many times what `haTransferBatchSize` says: each one costs both sides 30 us.
_AT_ONCE = 8


class Sending(Protocol):
    """Of one connection."""

    #: The slave is never waited for.
    is_learner: bool
    #: The slave leaves, since another master leads in this epoch; 0 while it doesn't.
    newer_epoch: int

    def feed(self, data: bytes) -> tuple[bytes, Report | None]:
        """What is answered at once, and the slave's last report. Raises FrameError for rubbish."""

    def first(self, offset: int) -> int:
        """The physical offset from which a slave gets the log whose first report says this one."""

    def most(self, offset: int, size: int) -> int:
        """How many of so many bytes from there on may go in one frame."""

    def header(self, offset: int, piece: bytes | memoryview) -> bytes:
        """What goes before the piece of the log."""

    def news(self, offset: int) -> bytes:
        """What a slave is to be told that has all before this offset, which is the log's end; b"" for nothing."""


class PlainSending:
    """To a slave that the NameServers or a configuration told of this master (`DefaultHAConnection`)."""

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


class AutoSwitchSending:
    """To a slave in controller mode (`AutoSwitchHAConnection`). `epochs` are those of this master's log.

    `confirm_offset` says up to where all whom the master waits for have the log.
    """

    def __init__(self, store: MessageStore, epochs: Epochs, confirm_offset: Callable[[], int]) -> None:
        self.is_learner = False
        self.newer_epoch = 0
        self._store = store
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._reports = AutoSwitchReportReader()
        self._hello: Hello | None = None
        #: The slave has been told that all in sync have the log up to there.
        self._confirmed = -1

    def feed(self, data: bytes) -> tuple[bytes, Report | None]:
        answer, report = b"", None
        for each in self._reports.feed(data):
            if isinstance(each, Hello):
                # Java's slave says it again when no answer comes for a while.
                self._hello = each
                self.is_learner = each.is_async_learner
                answer += encode_epochs(self._store.max_physical_offset, self._epochs.all())
            elif self._hello is None:
                raise FrameError("it reports before it has said hello")
            elif isinstance(each, Leaving):
                self.newer_epoch = each.epoch
            else:
                report = Report(each.offset, self._hello.broker_id)
        return answer, report

    def first(self, offset: int) -> int:
        if offset:
            return offset
        assert self._hello is not None
        return _last_file(self._store) if self._hello.sync_from_last_file else self._store.min_physical_offset

    def most(self, offset: int, size: int) -> int:
        """No frame goes over the end of an epoch."""
        assert self._hello is not None
        size = min(size * _AT_ONCE if self._hello.is_ours else size, MAX_TRANSFER)
        found = self._epochs.at(offset)
        return size if found is None or found[1] is None else min(size, found[1] - offset)

    def header(self, offset: int, piece: bytes | memoryview) -> bytes:
        found = self._epochs.at(offset)
        # What is from before controller mode goes with the first epoch.
        epoch = found[0] if found is not None else next(iter(self._epochs.all()), Epoch(0, 0))
        self._confirmed = self._confirm_offset()
        return encode_transfer_header(offset, len(piece), epoch, self._confirmed)

    def news(self, offset: int) -> bytes:
        """What of its log it may show."""
        return self.header(offset, b"") if self._confirm_offset() != self._confirmed else b""


def _last_file(store: MessageStore) -> int:
    size = store.config.mapped_file_size_commit_log
    return max(store.max_physical_offset // size * size, store.min_physical_offset)
