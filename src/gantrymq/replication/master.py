"""Accepts slaves and sends them the log (`DefaultHAService`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.ha_status import HaConnectionStatus, HaStatus
from gantrymq.remoting.listener import Listener, ListenOptions
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.tls import TlsConfig
from gantrymq.remoting.tls_detection import TlsDetection
from gantrymq.replication.authentication import MasterHandshake
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.connection import HaConnection
from gantrymq.replication.log_transfer import LogTransfer, PlainLogTransfer
from gantrymq.replication.slaves import Slave, Slaves
from gantrymq.store.message_store import MessageStore
from gantrymq.system import network
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: With this many connections, new ones replace those that have sent nothing for SILENT_S seconds. Slaves can thus
#: connect even if strangers open many connections.
MAX_CONNECTIONS = 64
SILENT_S = 0.25
#: Interval of the check for new data while there are slaves, in seconds. `log_grew` sends at once.
_LOOK_AT_LOG_S = 0.01
#: Longest interval of the check for silent slaves, in seconds.
_LOOK_S = 1.0


class SlaveAccess(Protocol):
    """Decides which peers may be slaves."""

    @property
    def needs_handshake(self) -> bool:
        """True if slaves must prove themselves."""

    def is_allowed(self, host: str) -> bool:
        """Returns true if a peer at this IP address may connect."""

    def master_handshake(self, port: int) -> MasterHandshake:
        """Returns the handshake for a slave that has connected to this port."""


class HaMaster:
    """The replication server of one store.

    The constructor binds the port, and `start` begins to accept connections. Raises GantryError if the port is in use.

    Args:
        store: The store whose log is sent.
        config: Replication keys.
        listen: Address and port to listen on.
        tls: TLS configuration. Slaves may then use TLS; with `tls.server.mode=enforcing` they must.
        jobs: Report for the background jobs.
        on_acknowledged: Called when a slave has received more of the log, has connected or has disconnected.
        log_transfer: Creates the protocol for a slave. In controller mode an `AutoSwitchLogTransfer`.
        access: Decides which peers may be slaves. None allows all.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        listen: ListenOptions,
        *,
        tls: TlsConfig | None = None,
        jobs: Jobs | None = None,
        on_acknowledged: Callable[[], None] = lambda: None,
        log_transfer: Callable[[], LogTransfer] | None = None,
        access: SlaveAccess | None = None,
    ) -> None:
        self._jobs = jobs = jobs if jobs is not None else Jobs()
        self.store = store
        self.config = config
        self.slaves = Slaves(config)
        self.acknowledged = on_acknowledged
        self._new_log_transfer = log_transfer if log_transfer is not None else partial(PlainLogTransfer, store)
        self._access = access
        self._tls = ServerTls(tls, jobs, peers="slaves") if tls is not None else None
        self._tls_detection: TlsDetection | None = None
        #: In the order of their arrival.
        self._connections: dict[HaConnection, None] = {}
        self._is_woken = False
        self._transfer_job = jobs.repeating("send the log to slaves", self._send, _LOOK_AT_LOG_S)
        heartbeat_s = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 1000
        self._looking = jobs.repeating("look at the slaves", self._look, min(_LOOK_S, heartbeat_s / 4))
        # Last, because it binds the port: if a later step failed, nothing would free the port.
        self._listener = Listener(listen, self._accepted, self._count, jobs=jobs, peers="slaves")

    @property
    def port(self) -> int:
        return self._listener.port

    def release(self) -> None:
        """Frees the port of a master that is never started."""
        self._listener.stop()

    async def start(self) -> None:
        """Accepts connections. Raises ConfigError if a TLS file is not usable, or GantryError if the port is in use."""
        tls = self._tls
        if tls is not None:
            tls.load()
        self._tls_detection = TlsDetection(tls if tls is not None and tls.is_there else None, self._new_connection)
        self._listener.start()
        if tls is not None:
            tls.start()
        self._looking.start()

    async def stop(self) -> None:
        """Stops accepting connections and closes all. Removes its jobs, because the next master adds its own."""
        for job in (self._looking, self._transfer_job):
            job.cancel()
            self._jobs.forget(job)
        if self._tls is not None:
            self._tls.stop()
            self._jobs.forget(self._tls.job)
        self._listener.stop()
        self._jobs.forget(self._listener.job)
        tls_detection, self._tls_detection = self._tls_detection, None
        if tls_detection is not None:
            await tls_detection.stop()
        for connection in list(self._connections):
            connection.close()

    def log_grew(self) -> None:
        """Sends new data of the log in the next loop iteration. May be called any number of times."""
        if not self._is_woken and self.slaves:
            self._is_woken = True
            self._transfer_job.wake()

    def status(self) -> HaStatus:
        """Returns a master's response to GET_BROKER_HA_STATUS."""
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
        """Returns the age of the oldest record that the slave lacks, in ms; -1 if it has a part of that record."""
        if slave.acknowledged >= end:
            return 0
        try:
            stored_ms = self.store.read_record(slave.acknowledged).store_timestamp
        except GantryError:
            return -1
        return max(now_ms() - stored_ms, 0)

    # -- calls from connections ---------------------------------------------------------------------------------

    def opened(self, connection: HaConnection) -> None:
        """Adds a connection."""
        if self._tls_detection is None:
            # The TLS handshake of this connection ended after `stop`.
            connection.close()
        else:
            self._make_way(1)
        self._connections[connection] = None

    def closed(self, connection: HaConnection) -> None:
        """Removes a connection."""
        self._connections.pop(connection, None)
        if connection.slave is not None:
            log.info("the slave %s is gone", connection.address)
            self.slaves.gone(connection.slave)
            self.acknowledged()
            if not self.slaves:
                self._transfer_job.cancel()

    def joined(self, connection: HaConnection) -> None:
        """Adds the slave of a connection after its first report. Closes an earlier connection of the same slave."""
        assert connection.slave is not None
        former = self.slaves.joined(connection.slave)
        for each in list(self._connections):
            if former is not None and each.slave is former:
                each.refuse("the same slave has another connection")
        self._transfer_job.start()
        self.acknowledged()

    @property
    def needs_handshake(self) -> bool:
        """True if slaves must prove themselves."""
        return self._access is not None and self._access.needs_handshake

    def go_on(self, after_s: float = 0.0) -> None:
        """Sends the rest in a later loop iteration, or after `after_s` seconds."""
        self._transfer_job.wake(after_s)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        self._is_woken = False
        self._each(lambda connection: connection.send())

    def _look(self) -> None:
        now = monotonic()
        if self._tls_detection is not None:
            self._tls_detection.close_silent(now - self.config.ha_housekeeping_interval / 1000, MAX_CONNECTIONS)
        self._each(lambda connection: connection.look(now))
        self._make_way(len(self._connections))

    def _each(self, act: Callable[[HaConnection], None]) -> None:
        """Calls `act` for each connection. If it fails, only that connection is closed."""
        for connection in list(self._connections):
            try:
                act(connection)
            except Exception:
                log.exception("leaving the slave %s", connection.address)
                connection.close()

    def _make_way(self, most: int) -> None:
        """Closes up to `most` connections that have sent nothing, oldest first, if there are too many."""
        count = min(len(self._connections) - MAX_CONNECTIONS + 1, most)
        if count > 0:
            before = monotonic() - SILENT_S
            silent = (each for each in self._connections if each.slave is None and each.last_read < before)
            for connection in list(islice((each for each in silent if not each.is_closing), count)):
                connection.refuse(f"there are more than {MAX_CONNECTIONS} connections, and it has said nothing")

    def _new_connection(self) -> HaConnection:
        handshake = None
        if self._access is not None and self._access.needs_handshake:
            handshake = self._access.master_handshake(self.port)
        return HaConnection(self, self._new_log_transfer(), handshake)

    def _accepted(self, sock: network.Socket) -> None:
        assert self._tls_detection is not None
        if self._access is not None and not self._access.is_allowed(host := _host_of(sock)):
            log.warning("a slave at %s is refused: haAllowedAddresses doesn't have it", host)
            sock.close()
            return
        # Without TLS, a socket leaves `_tls_detection` within one iteration. Many new sockets may then be slaves.
        if self._tls is not None and len(self._tls_detection) >= MAX_CONNECTIONS:
            sock.close()
        else:
            self._tls_detection.add(sock)

    def _count(self) -> int:
        return len(self._connections) + (len(self._tls_detection) if self._tls_detection is not None else 0)


def _host_of(sock: network.Socket) -> str:
    """Returns the peer's IP address, without the IPv6 prefix of an IPv4 address. "" if it has disconnected."""
    try:
        host: str = sock.getpeername()[0]
    except OSError:
        return ""
    return host.removeprefix("::ffff:")
