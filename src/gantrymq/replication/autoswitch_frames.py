"""The frames of controller mode, in both directions.

Every frame begins with the connection state. The sequence:

1. The slave sends a hello (16 bytes).
2. The master responds with its epochs (20 bytes, and 12 for each epoch).
3. The slave truncates its log where the two logs differ, and reports its end.
4. The master sends parts of its log, with a header of 36 bytes. No part crosses the end of an epoch.
5. The slave reports its progress (12 bytes).

If there is another master with a newer epoch, a GantryMQ slave sends this epoch (12 bytes) before it closes the
connection. A Java slave only closes the connection. A Java master logs the frame as an illegal state and closes the
connection.

A GantryMQ slave identifies itself by its encoding of "no": Java's master reads 1 as yes and any other value as no.
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
from gantrymq.replication.receive_buffer import ReceiveBuffer

#: Ordinals of Java's `HAConnectionState`.
HANDSHAKE = 1
TRANSFER = 2
SHUTDOWN = 4
#: Capacity of Java's handshake buffer, in epochs (`AbstractWriteSocketService.handShakeBuffer`).
MAX_EPOCHS = 1000

#: A GantryMQ slave's encoding of "no". If both flags are yes, the master can't recognize the slave as GantryMQ's.
_OUR_NO = 2

_STATE = Struct(">i")
_HELLO = Struct(">ihhq")
_REPORT = Struct(">iq")
_MASTER = Struct(">iiqi")
_TRANSFER = Struct(">iiqiqq")
_EPOCH = Struct(">iq")

TRANSFER_HEADER_SIZE = _TRANSFER.size
#: Maximum size of the part of the log in one frame, in bytes.
MAX_TRANSFER = MAX_FRAME - TRANSFER_HEADER_SIZE


class Hello(NamedTuple):
    """A slave's first frame. Its flags: sync an empty log from the last file only; do not wait for this slave."""

    broker_id: int
    sync_from_last_file: bool = False
    is_async_learner: bool = False
    is_ours: bool = False


class AutoSwitchReport(NamedTuple):
    """The end of a slave's log. The first report requests the log from this offset on."""

    offset: int


class Leaving(NamedTuple):
    """A slave's last frame: it disconnects because another master leads in this epoch."""

    epoch: int


class MasterEpochs(NamedTuple):
    """The response to Hello: the end of the master's log, its last epoch (-1 if none), and all its epochs."""

    max_offset: int
    last_epoch: int
    epochs: tuple[Epoch, ...]


class Transfer(NamedTuple):
    """A part of the log within one epoch, or an empty heartbeat. In-sync replicas have the log to `confirm_offset`."""

    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int
    body: Buffer


def encode_hello(hello: Hello) -> bytes:
    no = _OUR_NO if hello.is_ours else 0
    return _HELLO.pack(HANDSHAKE, hello.sync_from_last_file or no, hello.is_async_learner or no, hello.broker_id)


def is_hello_of_ours(opening: bytes) -> bool:
    """Returns true if these bytes, as many as a hello has, are the hello of a GantryMQ slave in controller mode."""
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
    """Splits a master's input into frames. Buffers at most one frame and the input that arrived with its end."""

    def __init__(self) -> None:
        self._received = ReceiveBuffer()

    def feed(self, data: bytes) -> None:
        self._received.add(data)

    def next(self) -> MasterEpochs | Transfer | None:
        """Returns the next complete frame, or None. Raises FrameError for invalid input."""
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
    """Splits a slave's input into frames. Buffers less than 16 bytes."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Hello | AutoSwitchReport | Leaving]:
        """Returns the complete frames; of consecutive reports, only the last. Raises FrameError for invalid input."""
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
