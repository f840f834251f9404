"""HaSlave: follows a master: connects, again and again, and puts what comes into the store (`DefaultHAClient`)."""

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
#: The pause before the next attempt doubles from the first to the second, s (Java: 5).
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 5.0
#: Frames are put into the store for so long in one turn of the loop, s.
_TURN_S = 0.005
#: Nothing can be stored: the next attempt, s.
_TROUBLE_PAUSE_S = 1.0
#: How often the master is looked at at most, s.
_LOOK_S = 1.0


def _no_handshake(address: str) -> SlaveHandshake:
    return SlaveHandshake(None, address, is_required=False)


class HaSlave:
    """Of one store, which is a slave's (`MessageStore.set_slave`).

    `on_messages` is called with the queues that got messages. `ssl_context`: connections are TLS. `broker_id` tells one
    slave of a master from another. `new_link` makes what speaks to the master, in controller mode an `AutoSwitchLink`.
    `new_handshake` makes what proves to a master at an address that this is a slave, and checks the master's proof.
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
        self._first_offset: int | None = None
        self._connection: SlaveConnection | None = None
        self._is_running = False
        self._pause_s = _FIRST_PAUSE_S
        #: Nothing was found at the log's beginning: the next link asks for the last file.
        self._wants_last_file = config.sync_from_last_file
        #: How far the log was when the last attempt began.
        self._began_at = -1
        #: Why the slave doesn't follow its master; None while it does, or can't reach it.
        self.refusal: str | None = None
        #: The last link found something else than what is here.
        self._is_doubted = False
        # While either waits senders may wait for this slave.
        self._connecting = jobs.repeating("connect to the master", self._connect, after_error_s=_TROUBLE_PAUSE_S)
        self._putting = jobs.repeating("put the master's log into the store", self._put, after_error_s=_TROUBLE_PAUSE_S)
        heartbeat_s = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 1000
        self._looking = jobs.repeating("look at the master", self._look, min(_LOOK_S, heartbeat_s / 4))
        now = monotonic()
        self._last_read = self._last_write = now
        self._read_ms = self._written_ms = 0
        self._flow = FlowControl(now)
        #: The flusher has been asked to tell.
        self._is_flushing = False

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to follow the master, if there is one."""
        self._is_running = True
        for job in (self._connecting, self._putting, self._looking):
            job.start()
        if self._address is not None:
            self._connecting.wake()

    async def stop(self) -> None:
        """Leaves the master."""
        self._is_running = False
        self._putting.cancel()
        self._looking.cancel()
        await self._connecting.stop()
        for job in (self._connecting, self._putting, self._looking):
            self._jobs.forget(job)
        self._drop()

    def set_master(self, address: str | None, first_offset: int | None = None) -> None:
        """Whom to follow: host:port for slaves; None: nobody. The same once more does no harm.

        `first_offset` is where a Java master's log begins, once that is known: an empty slave takes the log from there.
        """
        if address == self._address:
            self._first_offset = self._first_offset if first_offset is None else first_offset
            return
        self._first_offset = first_offset
        log.info("the master for slaves is %s", address)
        self._address = address
        self._wants_last_file = self._config.sync_from_last_file
        self._pause_s = _FIRST_PAUSE_S
        self.refusal = None
        self._drop()
        if self._is_running and address is not None:
            self._connecting.wake()

    def leave(self, epoch: int) -> None:
        """Another master leads in this epoch: leaves the one that is followed, and says why. In controller mode."""
        self._address = None
        self._drop(encode_leaving(epoch))

    # -- figures ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LinkState | None:
        """None without a connection."""
        return None if self._connection is None else self._connection.link.state

    @property
    def hears_master(self) -> bool:
        """Whether something has come from the master over the connection that there is."""
        return self._connection is not None and self._connection.has_heard

    @property
    def confirm_offset(self) -> int | None:
        """Up to where all in sync have the log, as the master said last."""
        return None if self._connection is None else self._connection.link.confirm_offset

    def status(self) -> HaStatus:
        """What GET_BROKER_HA_STATUS says of a slave."""
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
            # Connected it might count as in sync, and senders would wait for it.
            self.refusal = trouble
            return _TROUBLE_PAUSE_S
        self._began_at = self._store.max_physical_offset
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._connect_to(address)
        except (OSError, ValueError) as e:
            # TimeoutError and tls.SSLError are OSErrors.
            log.warning("can't connect to the master %s: %s", address, str(e) or type(e).__name__)
            self.refusal = None
            return self._next_pause()
        if connection is not self._connection:
            # Another master is to be followed, or it was lost at once.
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
        """Until the next attempt: short again when the last one has brought something."""
        if self._store.max_physical_offset != self._began_at:
            self._pause_s = _FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def _drop(self, last_words: bytes = b"") -> None:
        """Leaves the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if last_words:
                connection.leave(last_words)
            else:
                connection.abort()
            self._store.replica.restart()

    def _again(self, why: str, last_words: bytes = b"") -> None:
        """The connection is of no use: another one."""
        log.warning("leaving the master %s: %s", self._address, why)
        self._drop(last_words)
        if self._is_running and self._address is not None:
            self._connecting.wake(self._next_pause())

    # -- for connections ----------------------------------------------------------------------------------------

    def opened(self, connection: SlaveConnection) -> None:
        """It stands: asks for the log."""
        if not self._is_running or self._connection is not None or connection.master != self._address:
            connection.abort()
            return
        connection.link = self._new_link()
        self._connection = connection
        self._last_read = monotonic()
        self._write(connection.link.opening())

    def _plain_link(self) -> AnyLink:
        whole_log = not self._wants_last_file
        return Link(self._store, self._broker_id, whole_log=whole_log, first_offset=self._first_offset)

    def closed(self, connection: SlaveConnection, error: Exception | None) -> None:
        """It is lost."""
        if connection is not self._connection:
            return
        if connection.handshake.awaits_proof:
            self._refused("the master refuses this broker's signature: its log says why")
        else:
            self._again(str(error) if error else "it closed the connection")

    def received(self, connection: SlaveConnection, data: bytes) -> None:
        """Bytes have come."""
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
        """What a master has sent besides the messages of the handshake; b"" before that is done, or when it failed."""
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
        """The two can't prove to each other what they are: somebody has to change that first."""
        self.refusal = why
        self._pause_s = _LONGEST_PAUSE_S
        self._again(why)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _put(self) -> float:
        """Puts what has come into the store, for a while; when to go on, inf: when more has come."""
        connection = self._connection
        if connection is None:
            return inf
        link, until = connection.link, monotonic() + _TURN_S
        try:
            # Perhaps there was no room for it.
            self._show(link)
            while (queues := link.step()) is not None:
                if queues:
                    self._on_messages(queues)
                # What it has it has, also when there is no room yet to show it.
                self._report(link)
                self._show(link)
                if monotonic() > until:
                    connection.pause()
                    return 0.0
        except StoreBusy:
            connection.pause()
            loop = asyncio.get_running_loop()
            self._store.when_room(partial(_in_loop, loop, self._putting.wake))
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
            # Nobody has said where it begins.
            self._wants_last_file = self._first_offset is None
            self._again("its log doesn't begin at 0, or is empty: asking otherwise")
        return inf

    def _show(self, link: AnyLink) -> None:
        """Messages that all in sync have. Raises as `Replica.confirm`."""
        if link.confirm_offset is not None:
            queues = self._store.replica.confirm(link.confirm_offset)
            if queues:
                self._on_messages(queues)

    def _differed(self, error: ReplicationError) -> None:
        """The master's log isn't this one. Once that may be damage on the way; twice in a row it is so."""
        if self._is_doubted and self._connection is not None and self._connection.link.is_too_far_behind:
            self._begin_anew()
        elif self._is_doubted:
            self.refusal = str(error)
            self._pause_s = _LONGEST_PAUSE_S
        self._is_doubted = True
        self._again(str(error), encode_leaving(error.epoch) if isinstance(error, NewerEpoch) else b"")

    def _begin_anew(self) -> None:
        """Gives up the log, of which the master has no more what comes next; it says where an empty one begins."""
        log.warning("the master's log begins behind %d: all is given up", self._store.max_physical_offset)
        try:
            self._store.replica.begin_anew(0)
        except StoreError as e:
            self.refusal = str(e)
            log.error("the log can't be given up: %s", e)

    def _look(self) -> None:
        """Gives a sign of life; leaves a master that gives none."""
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
        # A disk that fails is asked again with the next look at the master.
        if is_there and self._connection is not None:
            self._report(self._connection.link)

    def _flushed(self) -> int | None:
        """How much counts as there, with SYNC_FLUSH."""
        return self._store.flushed_offset if self._store.config.flush_disk_type == SYNC_FLUSH else None

    def _write(self, data: bytes) -> None:
        if self._connection is not None and data:
            self._last_write = monotonic()
            self._written_ms = now_ms()
            self._connection.write(data)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """For threads of the store."""
    loop.call_soon_threadsafe(callback)
