"""Follows a master: connects, reconnects, and stores the received log (`DefaultHAClient`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.errors import FrameError, RecordError, ReplicationError, StoreBusy, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.ha_status import HaClientStatus, HaStatus
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.client import addresses_of
from gantrymq.replication.authentication import SlaveHandshake, Unproved
from gantrymq.replication.autoswitch_frames import encode_leaving
from gantrymq.replication.autoswitch_link import NewerEpoch
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.flow_control import FlowControl
from gantrymq.replication.link import Link, LinkState
from gantrymq.replication.slave_connection import AnyLink, SlaveConnection
from gantrymq.store.config import SYNC_FLUSH
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore
from gantrymq.system import tls
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

CONNECT_TIMEOUT_S = 3.0
#: First and longest delay before the next attempt, in seconds. The delay doubles each time. Java always waits 5 s.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 5.0
#: Longest time for storing frames in one loop iteration, in seconds.
_SLICE_S = 0.005
#: Delay before the next attempt if the store cannot accept data, in seconds.
_TROUBLE_PAUSE_S = 1.0
#: Longest interval of the check of the master, in seconds.
_LOOK_S = 1.0


def _no_handshake(address: str) -> SlaveHandshake:
    return SlaveHandshake(None, address, is_required=False)


class HaSlave:
    """The replication client of a slave's store (see `MessageStore.set_slave`).

    Args:
        store: The store that gets the log.
        config: Replication keys.
        broker_id: Identifies this slave to the master.
        jobs: Report for the background jobs.
        on_messages: Called with the queues that got messages.
        ssl_context: TLS settings. None connects without TLS.
        new_link: Creates the protocol for a connection. In controller mode an `AutoSwitchLink`.
        new_handshake: Creates the handshake with a master at an address.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        *,
        broker_id: int,
        jobs: Jobs | None = None,
        on_messages: Callable[[Collection[ConsumeQueue]], None] = lambda queues: None,
        ssl_context: tls.SSLContext | None = None,
        new_link: Callable[[], AnyLink] | None = None,
        new_handshake: Callable[[str], SlaveHandshake] = _no_handshake,
    ) -> None:
        self._jobs = jobs = jobs if jobs is not None else Jobs()
        self._store = store
        self._config = config
        self._broker_id = broker_id
        self._on_messages = on_messages
        self._ssl_context = ssl_context
        self._new_link = new_link if new_link is not None else self._plain_link
        self._new_handshake = new_handshake
        self._address: str | None = None
        self.first_offset: int | None = None
        self._connection: SlaveConnection | None = None
        self._is_running = False
        self._pause_s = _FIRST_PAUSE_S
        #: True if the next link should request only the last file.
        self._wants_last_file = config.sync_from_last_file
        #: End of the log at the start of the last attempt.
        self._began_at = -1
        #: Reason why the slave refuses to follow its master. None while it follows, or while the master is unreachable.
        self.refusal: str | None = None
        #: True if the last link found different data in this log.
        self._is_doubted = False
        # Both jobs retry soon after an error, because sends may wait for this slave.
        self._connecting = jobs.repeating("connect to the master", self._connect, after_error_s=_TROUBLE_PAUSE_S)
        self._putting = jobs.repeating("put the master's log into the store", self._put, after_error_s=_TROUBLE_PAUSE_S)
        heartbeat_s = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 1000
        self._looking = jobs.repeating("look at the master", self._look, min(_LOOK_S, heartbeat_s / 4))
        now = monotonic()
        self._last_read = self._last_write = now
        self._read_ms = self._written_ms = 0
        self._flow = FlowControl(now)
        #: True if a notification by the flusher is pending.
        self._is_flushing = False

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts to follow the master, if one is set."""
        self._is_running = True
        for job in (self._connecting, self._putting, self._looking):
            job.start()
        if self._address is not None:
            self._connecting.wake()

    async def stop(self) -> None:
        """Stops following the master."""
        self._is_running = False
        self._putting.cancel()
        self._looking.cancel()
        await self._connecting.stop()
        for job in (self._connecting, self._putting, self._looking):
            self._jobs.forget(job)
        self._drop()

    def set_master(self, address: str | None, first_offset: int | None = None) -> None:
        """Sets the master to follow, as HOST:PORT for slaves, or None. A repeated call has no effect.

        `first_offset` is the start of a Java master's log, if it is known. An empty slave copies the log from there.
        """
        if address == self._address:
            self.first_offset = self.first_offset if first_offset is None else first_offset
            return
        self.first_offset = first_offset
        log.info("the master for slaves is %s", address)
        self._address = address
        self._wants_last_file = self._config.sync_from_last_file
        self._pause_s = _FIRST_PAUSE_S
        self.refusal = None
        self._drop()
        if self._is_running and address is not None:
            self._connecting.wake()

    def leave(self, epoch: int) -> None:
        """Stops following the master, and sends it the `epoch` of another master. For controller mode only."""
        self._address = None
        self._drop(encode_leaving(epoch))

    # -- figures ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LinkState | None:
        """The state of the link, or None if there is no connection."""
        return None if self._connection is None else self._connection.link.state

    @property
    def receives_from_master(self) -> bool:
        """True if the master has sent something on the current connection."""
        return self._connection is not None and self._connection.has_heard

    @property
    def confirm_offset(self) -> int | None:
        """The offset up to which all in-sync replicas have the log, as the master last reported."""
        return None if self._connection is None else self._connection.link.confirm_offset

    def status(self) -> HaStatus:
        """Returns a slave's response to GET_BROKER_HA_STATUS."""
        return HaStatus(
            client=HaClientStatus(
                self._address or "",
                self._flow.bytes_per_second(monotonic()),
                self._store.max_physical_offset,
                self._read_ms,
                self._written_ms,
                0,
                self._connection is not None,
                self.refusal or "",
            )
        )

    # -- connecting ---------------------------------------------------------------------------------------------

    async def _connect(self) -> float:
        address = self._address
        if address is None or self._connection is not None:
            return inf
        if (trouble := self._store.trouble) is not None:
            # If this slave connected, it might count as in sync, and sends would wait for it.
            self.refusal = trouble
            return _TROUBLE_PAUSE_S
        self._began_at = self._store.max_physical_offset
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._connect_to(address)
        except (OSError, ValueError) as e:
            # TimeoutError and tls.SSLError are subclasses of OSError.
            log.warning("can't connect to the master %s: %s", address, str(e) or type(e).__name__)
            self.refusal = None
            return self._next_pause()
        if connection is not self._connection:
            # The master was changed meanwhile, or the connection was lost at once.
            return self._next_pause()
        return inf

    async def _connect_to(self, address: str) -> SlaveConnection:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        ips = await addresses_of(host, port)
        for n, ip in enumerate(ips, 1):
            try:
                _, connection = await loop.create_connection(
                    lambda: SlaveConnection(self, address, self._new_handshake(address)),
                    ip,
                    port,
                    ssl=self._ssl_context,
                    server_hostname=host if self._ssl_context is not None else None,
                )
            except OSError as e:
                if n == len(ips) or isinstance(e, tls.SSLError):
                    raise
            else:
                return connection
        raise OSError(f"{host} has no address")

    def _next_pause(self) -> float:
        """Returns the delay before the next attempt. The delay is short again if the last attempt received data."""
        if self._store.max_physical_offset != self._began_at:
            self._pause_s = _FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def _drop(self, last_words: bytes = b"") -> None:
        """Closes the connection, if there is one. Sends `last_words` first."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if last_words:
                connection.leave(last_words)
            else:
                connection.abort()
            self._store.replica.restart()

    def _again(self, why: str, last_words: bytes = b"") -> None:
        """Closes the connection and schedules a new one."""
        log.warning("leaving the master %s: %s", self._address, why)
        self._drop(last_words)
        if self._is_running and self._address is not None:
            self._connecting.wake(self._next_pause())

    # -- calls from connections ---------------------------------------------------------------------------------

    def opened(self, connection: SlaveConnection) -> None:
        """Requests the log on a new connection."""
        if not self._is_running or self._connection is not None or connection.master != self._address:
            connection.abort()
            return
        connection.link = self._new_link()
        self._connection = connection
        self._last_read = monotonic()
        self._write(connection.link.opening())

    def _plain_link(self) -> AnyLink:
        whole_log = not self._wants_last_file
        return Link(self._store, self._broker_id, whole_log=whole_log, first_offset=self.first_offset)

    def closed(self, connection: SlaveConnection, error: Exception | None) -> None:
        """Handles the loss of the connection."""
        if connection is not self._connection:
            return
        if connection.handshake.awaits_proof:
            self._refused(
                "the master refuses this broker's signature: innerClientAuthenticationCredentials must name a super "
                "user of the master"
            )
        else:
            self._again(str(error) if error else "it closed the connection")

    def received(self, connection: SlaveConnection, data: bytes) -> None:
        """Handles received bytes."""
        if connection is self._connection:
            self._last_read = monotonic()
            if not connection.handshake.is_done:
                data = self._proved(connection, data)
                if not data:
                    return
            connection.has_heard = True
            self._read_ms = now_ms()
            self._flow.sent(len(data), self._last_read)
            connection.link.feed(data)
            if not connection.is_paused:
                pause_s = self._put()
                if pause_s != inf:
                    self._putting.wake(pause_s)

    def _proved(self, connection: SlaveConnection, data: bytes) -> bytes:
        """Returns the input after the handshake. b"" if the handshake is not complete, or has failed."""
        try:
            answer, rest = connection.handshake.feed(data)
        except Unproved as e:
            self._refused(str(e))
        except FrameError as e:
            self._again(str(e))
        else:
            self._write(answer)
            return rest
        return b""

    def _refused(self, why: str) -> None:
        """Handles a failed handshake. Retries slowly, because an administrator must change the configuration."""
        self.refusal = why
        self._pause_s = _LONGEST_PAUSE_S
        self._again(why)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _put(self) -> float:
        """Stores received frames for a limited time. Returns the delay before the next call, inf to wait for input."""
        connection = self._connection
        if connection is None:
            return inf
        link, until = connection.link, monotonic() + _SLICE_S
        try:
            # First confirm the data that an earlier call could not confirm because the store was busy.
            self._show(link)
            while (queues := link.step()) is not None:
                # Report first: sends wait for it, and the data is stored even if the store is too busy to confirm it.
                self._report(link)
                if queues:
                    self._on_messages(queues)
                self._show(link)
                if monotonic() > until:
                    connection.pause()
                    return 0.0
        except StoreBusy:
            connection.pause()
            loop = asyncio.get_running_loop()
            self._store.when_preallocated(partial(_in_loop, loop, self._putting.wake))
            return inf
        except ReplicationError as e:
            self._differed(e)
            return inf
        except (FrameError, RecordError) as e:
            self._again(f"what came is damaged, it is fetched again: {e}")
            return inf
        except StoreError as e:
            self.refusal = str(e)
            self._again(self.refusal)
            return inf
        connection.resume()
        if link.state is LinkState.FOLLOWING:
            self.refusal, self._is_doubted = None, False
        elif link.asked_in_vain:
            # Without a known first offset, the last file is requested.
            self._wants_last_file = self.first_offset is None
            self._again("its log doesn't begin at 0, or is empty: asking otherwise")
        return inf

    def _show(self, link: AnyLink) -> None:
        """Makes messages visible that all in-sync replicas have. Raises the errors of `Replica.confirm`."""
        if link.confirm_offset is not None:
            queues = self._store.replica.confirm(link.confirm_offset)
            if queues:
                self._on_messages(queues)

    def _differed(self, error: ReplicationError) -> None:
        """Handles a difference between the logs. The first one may be damage in transit, a second one is real."""
        if self._is_doubted and self._connection is not None and self._connection.link.is_too_far_behind:
            self._begin_anew()
        elif self._is_doubted:
            self.refusal = str(error)
            self._pause_s = _LONGEST_PAUSE_S
        self._is_doubted = True
        self._again(str(error), encode_leaving(error.epoch) if isinstance(error, NewerEpoch) else b"")

    def _begin_anew(self) -> None:
        """Discards the log, because the master no longer has the data after its end. Its log then defines the start."""
        log.warning("the master's log begins after %d: this log is discarded", self._store.max_physical_offset)
        try:
            self._store.replica.begin_anew(0)
        except StoreError as e:
            self.refusal = str(e)
            log.error("can't discard the log: %s", e)

    def _look(self) -> None:
        """Sends a heartbeat if it is due. Closes the connection if the master is silent."""
        connection, now = self._connection, monotonic()
        if connection is None:
            return
        if now - self._last_read > self._config.ha_housekeeping_interval / 1000 and not connection.is_paused:
            self._again(f"it has sent nothing for {now - self._last_read:.0f} s")
        else:
            is_due = now - self._last_write >= self._config.ha_send_heartbeat_interval / 1000
            self._report(connection.link, is_due=is_due)

    def _report(self, link: AnyLink, *, is_due: bool = False) -> None:
        flushed = self._flushed()
        self._write(link.report(flushed, is_due=is_due))
        if flushed is not None and flushed < self._store.max_physical_offset and not self._is_flushing:
            self._is_flushing = True
            loop = asyncio.get_running_loop()
            end = self._store.max_physical_offset
            self._store.when_flushed(end, lambda error: _in_loop(loop, partial(self._was_flushed, error is None)))

    def _was_flushed(self, is_there: bool) -> None:
        self._is_flushing = False
        # If the disk fails, the next check of the master tries again.
        if is_there and self._connection is not None:
            self._report(self._connection.link)

    def _flushed(self) -> int | None:
        """Returns the flushed end of the log if SYNC_FLUSH is configured; otherwise None, and all data counts."""
        return self._store.flushed_offset if self._store.config.flush_disk_type == SYNC_FLUSH else None

    def _write(self, data: bytes) -> None:
        if self._connection is not None and data:
            self._last_write = monotonic()
            self._written_ms = now_ms()
            self._connection.write(data)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Schedules `callback` in the event loop. For threads of the store."""
    loop.call_soon_threadsafe(callback)
