"""HaMaster: listens for slaves and keeps sending them the log (`DefaultHAService`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.ha_status import HaConnectionStatus, HaStatus
from gantrymq.remoting.arrivals import Arrivals
from gantrymq.remoting.listener import Listener
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.tls import TlsConfig
from gantrymq.replication.authentication import MasterHandshake
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.connection import HaConnection
from gantrymq.replication.sending import PlainSending, Sending
from gantrymq.replication.slaves import Slave, Slaves
from gantrymq.store.message_store import MessageStore
from gantrymq.system import network
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: Who has said nothing for some time, s, makes room for others when there are so many. A slave that comes in the midst
#: of many strangers gets its chance to be read.
MAX_CONNECTIONS = 64
SILENT_S = 0.25
#: While there are slaves the log is looked at so often, s; `log_grew` is for those who can't wait.
_LOOK_AT_LOG_S = 0.01
#: How often silent slaves are looked for at most, s.
_LOOK_S = 1.0


class SlaveAccess(Protocol):
    """Which peers may be slaves."""

    @property
    def needs_handshake(self) -> bool:
        """Slaves have to prove what they are."""

    def is_allowed(self, host: str) -> bool:
        """Whether somebody at this IP address may connect."""

    def secret_of(self, access_key: str) -> str | None:
        """The secret key of a user that may be a slave."""


class HaMaster:
    """Of one store. The port is taken here and now; connections are taken from `start` on.

    `tls` makes connections TLS where slaves ask for it, with `tls.server.mode=enforcing` only those are taken.
    `on_acknowledged` is called when a slave has more than before, came, or has gone, `on_newer_epoch` when one says
    that another master leads in this epoch. `sending` makes what speaks to a slave, in controller mode an
    `AutoSwitchSending`. Without `access` everybody may be a slave; `address_of` makes of the port the address that
    slaves are told. Raises GantryError when the port is taken.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        *,
        host: str = "0.0.0.0",
        tls: TlsConfig | None = None,
        jobs: Jobs | None = None,
        on_acknowledged: Callable[[], None] = lambda: None,
        on_newer_epoch: Callable[[int], None] = lambda epoch: None,
        sending: Callable[[], Sending] | None = None,
        access: SlaveAccess | None = None,
        address_of: Callable[[int], str] = lambda port: "",
    ) -> None:
        self._jobs = jobs = jobs if jobs is not None else Jobs()
        self.store = store
        self.config = config
        self.slaves = Slaves(config)
        self.acknowledged = on_acknowledged
        self._on_newer_epoch = on_newer_epoch
        self._new_sending = sending if sending is not None else partial(PlainSending, store)
        self._access = access
        self._address_of = address_of
        self._tls = ServerTls(tls, jobs, peers="slaves") if tls is not None else None
        self._arrivals: Arrivals | None = None
        #: In the order in which they came.
        self._connections: dict[HaConnection, None] = {}
        self._is_woken = False
        self._sending = jobs.repeating("send the log to slaves", self._send, _LOOK_AT_LOG_S)
        heartbeat_s = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 1000
        self._looking = jobs.repeating("look at the slaves", self._look, min(_LOOK_S, heartbeat_s / 4))
        # At last: it takes the port, which nobody would free if anything else failed.
        self._listener = Listener(host, config.ha_listen_port, self._accepted, self._count, jobs=jobs, peers="slaves")

    @property
    def port(self) -> int:
        return self._listener.port

    def release(self) -> None:
        """Frees the port of a master that is never started."""
        self._listener.stop()

    async def start(self) -> None:
        """Takes connections. Raises ConfigError for TLS files that can't be used, GantryError for a taken port."""
        tls = self._tls
        if tls is not None:
            tls.load()
        self._arrivals = Arrivals(tls if tls is not None and tls.is_there else None, self._new_connection)
        self._listener.start()
        if tls is not None:
            tls.start()
        self._looking.start()

    async def stop(self) -> None:
        """Takes no more connections and closes those that there are. Its jobs are forgotten: a next one has its own."""
        for job in (self._looking, self._sending):
            job.cancel()
            self._jobs.forget(job)
        if self._tls is not None:
            self._tls.stop()
            self._jobs.forget(self._tls.job)
        self._listener.stop()
        self._jobs.forget(self._listener.job)
        arrivals, self._arrivals = self._arrivals, None
        if arrivals is not None:
            await arrivals.stop()
        for connection in list(self._connections):
            connection.close()

    def log_grew(self) -> None:
        """The log may have more: sent in the loop's next turn. May be called as often as one likes."""
        if not self._is_woken and self.slaves:
            self._is_woken = True
            self._sending.wake()

    def status(self) -> HaStatus:
        """What GET_BROKER_HA_STATUS says of a master."""
        end = self.store.max_physical_offset
        status = HaStatus(master=True, master_commit_log_max_offset=end)
        for connection in self._connections:
            slave = connection.slave
            if slave is None:
                continue
            in_sync = self.slaves.is_in_sync(slave, end)
            status.in_sync_slave_nums += in_sync
            status.connections.append(
                HaConnectionStatus(
                    connection.address,
                    slave.acknowledged,
                    end - slave.acknowledged,
                    in_sync,
                    connection.bytes_per_second(),
                    slave.next_offset,
                    slave.broker_id,
                    self._behind_millis(slave, end),
                )
            )
        return status

    def _behind_millis(self, slave: Slave, end: int) -> int:
        """The age of the oldest record that it lacks; -1 where it is in the midst of one, as Java's slaves may be."""
        if slave.acknowledged >= end:
            return 0
        try:
            stored_ms = self.store.read_record(slave.acknowledged).store_timestamp
        except GantryError:
            return -1
        return max(now_ms() - stored_ms, 0)

    # -- for connections ----------------------------------------------------------------------------------------

    def opened(self, connection: HaConnection) -> None:
        """There is one more."""
        if self._arrivals is None:
            # A TLS handshake ended after stop().
            connection.close()
        else:
            self._make_way(1)
        self._connections[connection] = None

    def closed(self, connection: HaConnection) -> None:
        """There is one less."""
        self._connections.pop(connection, None)
        if connection.slave is not None:
            log.info("the slave %s is gone", connection.address)
            self.slaves.gone(connection.slave)
            self.acknowledged()
            if not self.slaves:
                self._sending.cancel()

    def joined(self, connection: HaConnection) -> None:
        """It has asked for something: it is a slave."""
        assert connection.slave is not None
        former = self.slaves.joined(connection.slave)
        for each in list(self._connections):
            if former is not None and each.slave is former:
                each.refuse("the same slave has another connection")
        self._sending.start()
        self.acknowledged()

    @property
    def needs_handshake(self) -> bool:
        """Slaves have to prove what they are."""
        return self._access is not None and self._access.needs_handshake

    def newer_epoch(self, connection: HaConnection, epoch: int) -> None:
        """A slave says that another master leads in this epoch."""
        log.warning("the slave %s says that another master leads in epoch %d", connection.address, epoch)
        self._on_newer_epoch(epoch)

    def go_on(self, after_s: float = 0.0) -> None:
        """Sends the rest in another turn, or later."""
        self._sending.wake(after_s)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        self._is_woken = False
        self._each(lambda connection: connection.send())

    def _look(self) -> None:
        now = monotonic()
        if self._arrivals is not None:
            self._arrivals.close_silent(now - self.config.ha_housekeeping_interval / 1000, MAX_CONNECTIONS)
        self._each(lambda connection: connection.look(now))
        self._make_way(len(self._connections))

    def _each(self, act: Callable[[HaConnection], None]) -> None:
        """For each connection; one with which it fails is left, and keeps it from no other."""
        for connection in list(self._connections):
            try:
                act(connection)
            except Exception:
                log.exception("leaving the slave %s", connection.address)
                connection.close()

    def _make_way(self, most: int) -> None:
        """Leaves some of those who have said nothing, the oldest first, where there are too many connections."""
        count = min(len(self._connections) - MAX_CONNECTIONS + 1, most)
        if count > 0:
            before = monotonic() - SILENT_S
            silent = (each for each in self._connections if each.slave is None and each.last_read < before)
            for connection in list(islice((each for each in silent if not each.is_closing), count)):
                connection.refuse(f"there are more than {MAX_CONNECTIONS} connections, and it has said nothing")

    def _new_connection(self) -> HaConnection:
        handshake = None
        if self._access is not None and self._access.needs_handshake:
            handshake = MasterHandshake(self._access.secret_of, self._address_of(self.port))
        return HaConnection(self, self._new_sending(), handshake)

    def _accepted(self, sock: network.Socket) -> None:
        assert self._arrivals is not None
        if self._access is not None and not self._access.is_allowed(host := _host_of(sock)):
            log.warning("a slave at %s is refused: haAllowedAddresses doesn't have it", host)
            sock.close()
            return
        # Without TLS nobody stays an arrival for longer than a turn, and who came with many may well be a slave.
        if self._tls is not None and len(self._arrivals) >= MAX_CONNECTIONS:
            sock.close()
        else:
            self._arrivals.add(sock)

    def _count(self) -> int:
        return len(self._connections) + (len(self._arrivals) if self._arrivals is not None else 0)


def _host_of(sock: network.Socket) -> str:
    """The peer's IP address, an IPv4 one as such; "" where it has gone."""
    try:
        host: str = sock.getpeername()[0]
    except OSError:
        return ""
    return host.removeprefix("::ffff:")
