"""Frames of controller mode: what a master and its slaves send each other there.

Both begin with the state that the sender takes the connection to be in. A slave says hello (16 bytes), the master
answers with its epochs (20 bytes and 12 for each); the slave cuts its log where the two parted, and asks. Then the
master sends pieces of its log, none over the end of an epoch (36 bytes before each), and the slave reports (12 bytes).

A slave of ours that leaves because another master leads in a newer epoch sends that epoch before it closes the
connection (12 bytes). Java's slaves only close it. Java's master logs an illegal state, and closes it, too.

A slave of ours tells that it is one by how it says no: Java's master takes 1 for yes, and all else for no.
Source: ha/autoswitch/AutoSwitchHAConnection, AutoSwitchHAClient.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from gantrymq.errors import FrameError
from gantrymq.protocol.record import Buffer
from gantrymq.replication.epochs import Epoch
from gantrymq.replication.frames import MAX_FRAME, not_negative
from gantrymq.replication.received import Received

#: Ordinals of Java's HAConnectionState.
HANDSHAKE = 1
TRANSFER = 2
SHUTDOWN = 4
#: Java's master has room for so many (`AbstractWriteSocketService.handShakeBuffer`).
MAX_EPOCHS = 1000

#: What a slave of ours says in place of 0. One that says yes twice, a learner of the last file, isn't known as ours.
_OUR_NO = 2

_STATE = Struct(">i")
_HELLO = Struct(">ihhq")
_REPORT = Struct(">iq")
_MASTER = Struct(">iiqi")
_TRANSFER = Struct(">iiqiqq")
_EPOCH = Struct(">iq")

TRANSFER_HEADER_SIZE = _TRANSFER.size
#: The most of the log that fits into a frame.
MAX_TRANSFER = MAX_FRAME - TRANSFER_HEADER_SIZE


class Hello(NamedTuple):
    """A slave's first word. An empty one wants the whole log, or the last file of it; a learner is never waited for."""

    broker_id: int
    sync_from_last_file: bool = False
    is_async_learner: bool = False
    is_ours: bool = False


class AutoSwitchReport(NamedTuple):
    """Up to where a slave has the log; the first one asks for what comes then."""

    offset: int


class Leaving(NamedTuple):
    """A slave leaves: another master leads in this epoch."""

    epoch: int


class MasterEpochs(NamedTuple):
    """The answer to Hello: where the master's log ends, its last epoch (-1: none), and where each began."""

    max_offset: int
    last_epoch: int
    epochs: tuple[Epoch, ...]


class Transfer(NamedTuple):
    """A piece of the log, all of one epoch; without bytes a sign of life. All before `confirm_offset` is everywhere."""

    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int
    body: Buffer


def encode_hello(hello: Hello) -> bytes:
    no = _OUR_NO if hello.is_ours else 0
    return _HELLO.pack(HANDSHAKE, hello.sync_from_last_file or no, hello.is_async_learner or no, hello.broker_id)


def is_hello_of_ours(opening: bytes) -> bool:
    """Whether these first bytes, as many as Hello has, are those of a slave of ours in controller mode."""
    state, last_file, learner, _ = _HELLO.unpack(opening)
    return state == HANDSHAKE and _OUR_NO in (last_file, learner)


def encode_autoswitch_report(offset: int) -> bytes:
    return _REPORT.pack(TRANSFER, offset)


def encode_leaving(epoch: int) -> bytes:
    return _REPORT.pack(SHUTDOWN, epoch)


def encode_epochs(max_offset: int, epochs: Sequence[Epoch]) -> bytes:
    body = b"".join(_EPOCH.pack(*epoch) for epoch in epochs)
    last_epoch = epochs[-1].number if epochs else -1
    return _MASTER.pack(HANDSHAKE, len(body), max_offset, last_epoch) + body


def encode_transfer_header(offset: int, size: int, epoch: Epoch, confirm_offset: int) -> bytes:
    return _TRANSFER.pack(TRANSFER, size, offset, epoch.number, epoch.start_offset, confirm_offset)


class AutoSwitchFrameReader:
    """A master's frames out of the bytes that come; keeps no more than one and what came with its end."""

    def __init__(self) -> None:
        self._received = Received()

    def feed(self, data: bytes) -> None:
        self._received.add(data)

    def next(self) -> MasterEpochs | Transfer | None:
        """The next whole frame, None until there is one. Raises FrameError for what can't be one."""
        received = self._received
        if len(received) < _MASTER.size:
            return None
        state, size, offset, epoch = _MASTER.unpack_from(*received.place)
        start = _header_size(state)
        most = MAX_EPOCHS * _EPOCH.size if state == HANDSHAKE else MAX_FRAME - start
        if not 0 <= size <= most or (state == HANDSHAKE and size % _EPOCH.size):
            raise FrameError(f"a frame of {size} bytes at {offset}")
        if len(received) < start + size:
            return None
        frame = received.take(start + size)
        body = frame[start:]
        if state == HANDSHAKE:
            return MasterEpochs(offset, epoch, tuple(Epoch._make(each) for each in _EPOCH.iter_unpack(body)))
        *_, epoch_start, confirm_offset = _TRANSFER.unpack_from(frame)
        return Transfer(offset, epoch, epoch_start, confirm_offset, body)


def _header_size(state: int) -> int:
    if state == HANDSHAKE:
        return _MASTER.size
    if state == TRANSFER:
        return _TRANSFER.size
    raise FrameError(f"a frame of the state {state}")


class AutoSwitchReportReader:
    """A slave's frames out of the bytes that come; keeps less than 16 bytes."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Hello | AutoSwitchReport | Leaving]:
        """The whole ones, of several reports in a row the last. Raises FrameError for rubbish."""
        data = self._buffer + data
        found: list[Hello | AutoSwitchReport | Leaving] = []
        at = 0
        while len(data) - at >= _REPORT.size:
            (state,) = _STATE.unpack_from(data, at)
            if state == TRANSFER:
                report = AutoSwitchReport(not_negative(_REPORT.unpack_from(data, at)[1]))
                at += _REPORT.size
                if found and isinstance(found[-1], AutoSwitchReport):
                    found.pop()
                found.append(report)
            elif state == SHUTDOWN:
                found.append(Leaving(not_negative(_REPORT.unpack_from(data, at)[1])))
                at += _REPORT.size
            elif state != HANDSHAKE:
                raise FrameError(f"a slave's frame of the state {state}")
            elif len(data) - at < _HELLO.size:
                break
            else:
                _, last_file, learner, broker_id = _HELLO.unpack_from(data, at)
                at += _HELLO.size
                is_ours = _OUR_NO in (last_file, learner)
                found.append(Hello(not_negative(broker_id), last_file == 1, learner == 1, is_ours))
        self._buffer = data[at:]
        return found
