"""The master's side of a connection with one slave: receives reports and sends the log (`HAConnection`).

The connection sends slices of the mapped log without a copy. The socket gets a batch after the previous one was sent. A
slave that does not read therefore uses only one slice of the master's memory.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from gantrymq.errors import FrameError, StoreError
from gantrymq.logs import peer_log
from gantrymq.remoting.address import format_address
from gantrymq.replication.authentication import MasterHandshake
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.flow_control import FlowControl
from gantrymq.replication.frames import Report
from gantrymq.replication.log_transfer import LogTransfer
from gantrymq.replication.slaves import Slave, Slaves
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Maximum size of the data that is sent to one slave before the other slaves are served, in bytes.
_STEP_BYTES = 256 * 1024
#: If an acknowledgement is pending and fewer bytes than this are unsent, the master waits up to _GATHER_S seconds for
#: more. A frame takes 30 us on each side, regardless of its size.
_FEW_BYTES = 16 * 1024
_GATHER_S = 0.001


#: Timeout of a slave's handshake, in seconds.
_HANDSHAKE_TIMEOUT_S = 5.0


class Master(Protocol):
    """The master, as its connections see it."""

    store: MessageStore
    config: ReplicationConfig
    slaves: Slaves

    @property
    def needs_handshake(self) -> bool:
        """True if slaves must prove themselves."""

    def opened(self, connection: HaConnection) -> None: ...

    def closed(self, connection: HaConnection) -> None: ...

    def acknowledged(self) -> None:
        """Called when a slave has more of the log than before."""

    def joined(self, connection: HaConnection) -> None:
        """Called when a slave has sent its first report."""

    def go_on(self, after_s: float = 0.0) -> None:
        """Called when there is more to send, in a later loop iteration or after `after_s` seconds."""


class HaConnection(asyncio.Protocol):
    """Sends the log to one slave. Sends nothing before the slave's first report and the end of `handshake`, if any."""

    def __init__(self, master: Master, log_transfer: LogTransfer, handshake: MasterHandshake | None = None) -> None:
        self._master = master
        self._log_transfer = log_transfer
        self._handshake = handshake
        self._takes = True
        #: True if a small amount of data waits for more.
        self._is_gathering = False
        self._transport: asyncio.Transport | None = None
        self.address = "?"
        now = monotonic()
        self.last_read = self.last_write = self._opened_at = now
        self._flow = FlowControl(now)
        #: None until the first report.
        self.slave: Slave | None = None

    # -- asyncio's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is not a subclass of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = format_address(*peer[:2])
        self._transport.set_write_buffer_limits(high=0)
        self._master.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._master.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.last_read = monotonic()
        try:
            handshake = self._handshake
            if handshake is not None and not handshake.is_done:
                message, data = handshake.feed(data)
                if message:
                    self._write(message)
                if not handshake.is_done:
                    return
            answer, report = self._log_transfer.feed(data)
            if answer:
                self._write(answer)
            if report is not None:
                self._reported(report)
            if self._log_transfer.newer_epoch:
                self.refuse(f"it follows the master of epoch {self._log_transfer.newer_epoch}")
        except FrameError as e:
            self.refuse(str(e))

    def pause_writing(self) -> None:
        self._takes = False

    def resume_writing(self) -> None:
        self._takes = True
        self.send()

    # -- input from the slave -----------------------------------------------------------------------------------

    def _reported(self, report: Report) -> None:
        master, slave = self._master, self.slave
        end = master.store.max_physical_offset
        if slave is None:
            self._begin(report, end)
        elif report.offset > slave.next_offset:
            raise FrameError(f"it acknowledges {report.offset}, but was sent what is before {slave.next_offset} only")
        elif master.slaves.acknowledged(slave, report.offset, end, self.last_read):
            if self._is_gathering:
                self.send()
            master.acknowledged()

    def _begin(self, report: Report, end: int) -> None:
        """Handles the first report, which requests the log from its offset on."""
        begin = self._master.store.min_physical_offset
        offset = self._log_transfer.first(report.offset)
        if not begin <= offset <= end:
            # This header shows a Java slave that its offset is wrong. The slave logs this and tries again later.
            self._write(self._log_transfer.header(begin if offset < begin else end, b""))
            raise FrameError(f"it wants what is at {offset}, the log has {begin} to {end}")
        self.slave = Slave(self.address, report.broker_id, report.offset, offset, self._log_transfer.is_learner)
        self.slave.mark, self.slave.mark_at = end, self.last_read
        if report.offset >= end:
            self.slave.caught_up_at = self.last_read
        log.info("the slave %s follows from %d on", self.address, offset)
        self._master.joined(self)
        self.send()

    # -- calls from the master ----------------------------------------------------------------------------------

    def send(self) -> None:
        """Sends as much of the log as the socket accepts at this time."""
        slave, transport, flow = self.slave, self._transport, self._flow
        if slave is None or transport is None:
            return
        self._is_gathering = False
        store, config = self._master.store, self._master.config
        log_transfer = self._log_transfer
        budget = _STEP_BYTES
        # A write to a failed socket raises no error, but closes the transport.
        while self._takes and not transport.is_closing():
            if budget <= 0:
                self._master.go_on()
                return
            now = monotonic()
            most = log_transfer.most(slave.next_offset, config.ha_transfer_batch_size)
            if config.ha_flow_control_enable:
                most = min(most, flow.allowed(now, config.max_ha_transfer_byte_in_second))
                if not most:
                    return
            try:
                piece = store.log_slice(slave.next_offset, most)
            except StoreError as e:
                # The next file was deleted, or the store is closed.
                self.refuse(str(e))
                return
            if piece is None:
                if slave.acknowledged >= slave.next_offset:
                    # The slave has the whole log. A lag starts when more is written, not at the last report.
                    slave.caught_up_at = now
                if news := log_transfer.news(slave.next_offset):
                    self._write(news)
                return
            is_awaited = slave.acknowledged < slave.next_offset
            if is_awaited and len(piece) < min(_FEW_BYTES, most) and now - self.last_write < _GATHER_S:
                self._is_gathering = True
                self._master.go_on(_GATHER_S)
                return
            header = log_transfer.header(slave.next_offset, piece)
            slave.next_offset += len(piece)
            budget -= len(piece)
            flow.sent(len(piece), now)
            self.last_write = now
            transport.writelines((header, piece))

    def look(self, now: float) -> None:
        """Sends a heartbeat if it is due. Closes the connection of a silent slave."""
        config = self._master.config
        handshake = self._handshake
        if handshake is None and self._master.needs_handshake:
            self.refuse("it hasn't signed, and slaves have to (haAllowUnsigned)")
        elif handshake is not None and not handshake.is_done and now - self._opened_at > _HANDSHAKE_TIMEOUT_S:
            self.refuse(f"its handshake wasn't done in {_HANDSHAKE_TIMEOUT_S:.0f} s")
        elif now - self.last_read > config.ha_housekeeping_interval / 1000:
            self.refuse(f"it has said nothing for {now - self.last_read:.0f} s")
        elif (
            self.slave is not None and self._takes and now - self.last_write >= config.ha_send_heartbeat_interval / 1000
        ):
            self._write(self._log_transfer.header(self.slave.next_offset, b""))

    def bytes_per_second(self) -> int:
        return self._flow.bytes_per_second(monotonic())

    @property
    def unwritten_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def refuse(self, why: str) -> None:
        """Closes the connection and logs the reason."""
        log.warning("closing the connection with the slave %s: %s", self.address, why)
        self.close()

    def close(self) -> None:
        """Closes the connection. Unsent data is discarded."""
        if self._transport is not None and not self._transport.is_closing():
            if self.unwritten_bytes:
                self._transport.abort()
            else:
                self._transport.close()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self.last_write = monotonic()
        self._transport.write(data)
