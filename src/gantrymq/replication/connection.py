"""HaConnection: one slave, as its master has it: reads what it reports, sends it what the log has (`HAConnection`).

What is sent are slices of the mapped log. One batch is handed to the socket at a time, the next when it is taken; so
for a slave that doesn't read the master holds nothing but that slice.
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
from gantrymq.replication.sending import Sending
from gantrymq.replication.slaves import Slave, Slaves
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: So many bytes are sent to one slave before others have their turn.
_STEP_BYTES = 256 * 1024
#: Fewer bytes wait until the slave has acknowledged what it was sent, so long at most, s: a frame takes 30 us of either
#: side, whatever is in it, and meanwhile more come that senders wait for.
_FEW_BYTES = 16 * 1024
_GATHER_S = 0.001


#: A slave has so long for its handshake, s.
_HANDSHAKE_TIMEOUT_S = 5.0


class Master(Protocol):
    """What a connection needs of its master."""

    store: MessageStore
    config: ReplicationConfig
    slaves: Slaves

    @property
    def needs_handshake(self) -> bool:
        """Slaves have to prove what they are."""

    def opened(self, connection: HaConnection) -> None: ...

    def closed(self, connection: HaConnection) -> None: ...

    def acknowledged(self) -> None:
        """A slave has more than before."""

    def joined(self, connection: HaConnection) -> None:
        """A slave has said who and how far it is."""

    def newer_epoch(self, connection: HaConnection, epoch: int) -> None:
        """A slave says that another master leads in this epoch. Without a handshake that need not be true."""

    def go_on(self, after_s: float = 0.0) -> None:
        """There is more to send, in another turn, or later."""


class HaConnection(asyncio.Protocol):
    """Sends nothing until the slave has asked for something, and `handshake`, if there is one, is done."""

    def __init__(self, master: Master, sending: Sending, handshake: MasterHandshake | None = None) -> None:
        self._master = master
        self._sending = sending
        self._handshake = handshake
        self._takes = True
        #: There is something to send that waits for more.
        self._is_gathering = False
        self._transport: asyncio.Transport | None = None
        self.address = "?"
        now = monotonic()
        self.last_read = self.last_write = self._opened_at = now
        self._flow = FlowControl(now)
        #: None until it has reported.
        self.slave: Slave | None = None

    # -- asyncio's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no asyncio.Transport.
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
            answer, report = self._sending.feed(data)
            if answer:
                self._write(answer)
            if report is not None:
                self._reported(report)
            if self._sending.newer_epoch:
                self._master.newer_epoch(self, self._sending.newer_epoch)
                self.refuse(f"it follows the master of epoch {self._sending.newer_epoch}")
        except FrameError as e:
            self.refuse(str(e))

    def pause_writing(self) -> None:
        self._takes = False

    def resume_writing(self) -> None:
        self._takes = True
        self.send()

    # -- what the slave says ------------------------------------------------------------------------------------

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
        """The first report, which asks for what is at its offset."""
        begin = self._master.store.min_physical_offset
        offset = self._sending.first(report.offset)
        if not begin <= offset <= end:
            # A Java slave sees that it is at another place, logs it and tries again later.
            self._write(self._sending.header(begin if offset < begin else end, b""))
            raise FrameError(f"it wants what is at {offset}, the log has {begin} to {end}")
        self.slave = Slave(self.address, report.broker_id, report.offset, offset, self._sending.is_learner)
        self.slave.mark, self.slave.mark_at = end, self.last_read
        if report.offset >= end:
            self.slave.caught_up_at = self.last_read
        log.info("the slave %s follows from %d on", self.address, offset)
        self._master.joined(self)
        self.send()

    # -- what the master does -----------------------------------------------------------------------------------

    def send(self) -> None:
        """Sends what the log has, as much of it as the socket takes now."""
        slave, transport, flow = self.slave, self._transport, self._flow
        if slave is None or transport is None:
            return
        self._is_gathering = False
        store, config = self._master.store, self._master.config
        sending = self._sending
        budget = _STEP_BYTES
        # A socket that fails in the midst of it doesn't say so but in this way.
        while self._takes and not transport.is_closing():
            if budget <= 0:
                self._master.go_on()
                return
            now = monotonic()
            most = sending.most(slave.next_offset, config.ha_transfer_batch_size)
            if config.ha_flow_control_enable:
                most = min(most, flow.allowed(now, config.max_ha_transfer_byte_in_second))
                if not most:
                    return
            try:
                piece = store.log_slice(slave.next_offset, most)
            except StoreError as e:
                # The file that comes next was deleted, or the store is closed.
                self.refuse(str(e))
                return
            if piece is None:
                if slave.acknowledged >= slave.next_offset:
                    # It has nothing to report until there is more: it lags from then on, not since its last report.
                    slave.caught_up_at = now
                if news := sending.news(slave.next_offset):
                    self._write(news)
                return
            is_awaited = slave.acknowledged < slave.next_offset
            if is_awaited and len(piece) < min(_FEW_BYTES, most) and now - self.last_write < _GATHER_S:
                self._is_gathering = True
                self._master.go_on(_GATHER_S)
                return
            header = sending.header(slave.next_offset, piece)
            slave.next_offset += len(piece)
            budget -= len(piece)
            flow.sent(len(piece), now)
            self.last_write = now
            transport.writelines((header, piece))

    def look(self, now: float) -> None:
        """Gives a sign of life; leaves a slave that gives none."""
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
            self._write(self._sending.header(self.slave.next_offset, b""))

    def bytes_per_second(self) -> int:
        return self._flow.bytes_per_second(monotonic())

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def refuse(self, why: str) -> None:
        """Leaves the slave."""
        log.warning("closing the connection with the slave %s: %s", self.address, why)
        self.close()

    def close(self) -> None:
        """Leaves it without a word; what it doesn't take is not waited for."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self.last_write = monotonic()
        self._transport.write(data)
