"""Simulated TCP network between hosts.

A connection consists of two `Stream`s, one for each direction. Bytes keep their order within a stream and arrive after
the delay of the link. The two streams of a connection have independent delays.

Each stream has a window. If the reader does not read, first the window fills, and then the write buffer of the sender.
While a link is cut, its bytes are queued. When the link is mended, the bytes continue or, at random, the connection is
reset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from sim.machine import PROCESS, Process, State

if TYPE_CHECKING:
    from sim.loop import SimLoop, SimTimer

#: Maximum of bytes in transit or unread per stream. Further bytes stay in the write buffer of the sender.
_WINDOW = 256 * 1024
#: asyncio's write buffer limits, in bytes.
_HIGH_WATER = 64 * 1024
#: Maximum number of consecutive tiny reads. They start at a random position in the received bytes; the rest is one
#: read.
_TINY_READS = 16
#: Timeouts in seconds: to connect, and to get an acknowledgement from a dead peer.
_CONNECT_TIMEOUT_S = 127.0
_DEAD_PEER_S = 60.0
_FIRST_PORT = 20_000
#: Port on which a master accepts slaves: the port after the broker's.
LOG_PORT = 10912


@dataclass
class Link:
    """Effects of one direction between two hosts on the bytes that it carries."""

    #: Smallest delay, and the largest random addition to it, in seconds.
    delay_s: float = 0.0002
    jitter_s: float = 0.0005
    #: True if no bytes get through.
    is_cut: bool = False
    #: Share of the writes on the replication port in which one bit flips.
    garbled: float = 0.0


class SimSocket:
    """The part of `socket.socket` that a server uses, for listening and accepted sockets."""

    def __init__(self, network: Network, name: tuple[str, int], peer: tuple[str, int] | None = None) -> None:
        self._network = network
        self._name = name
        self._peer = peer
        #: The process that accepts the connections.
        self.owner = PROCESS.get()
        self._number = network.next_descriptor()
        self._reader: asyncio.Handle | None = None
        self._waiting: deque[Connection] = deque()
        self._connection: Connection | None = None
        self._closed = False

    def listen(self, backlog: int) -> None:
        self._network.listen(self._name, self)

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        while self._waiting:
            connection = self._waiting.popleft()
            if connection.server.is_open:
                sock = SimSocket(self._network, self._name, connection.client.name)
                sock._connection = connection
                return sock, connection.client.name
        raise BlockingIOError

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def fileno(self) -> int:
        return -1 if self._closed else self._number

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int]:
        if self._peer is None:
            raise OSError("not connected")
        return self._peer

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self._name, self)
        for connection in self._waiting:
            connection.server.vanish(machine=False)
        if self._connection is not None and self._connection.server.protocol is None:
            self._connection.server.vanish(machine=False)

    # -- for the loop and the network ---------------------------------------------------------------------------

    def add_reader(self, handle: asyncio.Handle) -> None:
        self._reader = handle
        if self._waiting:
            self._network.loop.ready(handle)

    def remove_reader(self) -> bool:
        had, self._reader = self._reader, None
        return had is not None

    def arrived(self, connection: Connection) -> None:
        """Queues a connection to be accepted."""
        self._waiting.append(connection)
        if self._reader is not None:
            self._network.loop.ready(self._reader)

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert self._connection is not None
        end = self._connection.server
        end.begin(factory())
        assert end.protocol is not None
        return end, end.protocol


class Stream:
    """One direction of a connection. `_deliver` runs in the context of the receiving process."""

    def __init__(self, network: Network, source: End, target: End) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._link = network.link(source.name[0], target.name[0])
        self._is_log = LOG_PORT in (source.name[1], target.name[1])
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._arrives = 0.0
        #: The timer that runs `_deliver`. It is reused; `_is_set` is true while it is scheduled.
        self._timer: SimTimer | None = None
        self._is_set = False
        #: Number of bytes in transit or unread by the target.
        self.under_way = 0

    def send(self, data: bytes | None) -> None:
        """Sends bytes, or the end of the stream if `data` is None."""
        link, network = self._link, self._network
        arrives = network.loop.now + link.delay_s + network.chance.random() * link.jitter_s
        if arrives < self._arrives:
            # The bytes of a stream arrive in order, so none may overtake earlier ones.
            arrives = self._arrives
        self._arrives = arrives
        if link.garbled and data and self._is_log and network.chance.random() < link.garbled:
            data = _garbled(data, network.chance)
        self._pieces.append((arrives, data))
        if data is not None:
            self.under_way += len(data)
        if not self._is_set:
            self._schedule()

    def again(self) -> None:
        """Resumes delivery after the link was mended or the target reads again."""
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_set and self._pieces and not self._link.is_cut and self._target.takes:
            loop = self._network.loop
            when = self._pieces[0][0]
            if when < loop.now:
                when = loop.now
            self._is_set = True
            if self._timer is None:
                self._timer = loop.call_at(when, self._deliver, context=self._target.context)
            else:
                loop.set_again(self._timer, when)

    def _deliver(self) -> None:
        self._is_set = False
        if self._link.is_cut or not self._target.takes:
            return
        now = self._network.loop.now
        waiting = self._pieces
        data = waiting.popleft()[1]
        ended = data is None
        if waiting and waiting[0][0] <= now and not ended:
            assert data is not None
            pieces = [data]
            while waiting and waiting[0][0] <= now:
                data = waiting.popleft()[1]
                if data is None:
                    ended = True
                    break
                pieces.append(data)
            data = b"".join(pieces)
        if data:
            self._read(data)
        if ended:
            self._target.ended()
        if waiting:
            self._schedule()

    def _read(self, data: bytes) -> None:
        """Passes `data` to the target in one read, or in several if tiny reads are on."""
        target, begin = self._target, 0
        if not self._network.tiny_reads:
            self.under_way -= len(data)
            target.received(data)
            self._source.drained()
            return
        for end in self._network.cuts(len(data)):
            if not target.takes:
                # The target paused reading between two reads: the rest is delivered first when it resumes.
                self._pieces.appendleft((0.0, data[begin:]))
                return
            self.under_way -= end - begin
            target.received(data[begin:end] if end - begin < len(data) else data)
            begin = end
        self._source.drained()


def _garbled(data: bytes, chance: Random) -> bytes:
    """Returns `data` with one random bit flipped."""
    changed, place = bytearray(data), chance.randrange(len(data))
    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


class End(asyncio.Transport):
    """One end of a connection: an asyncio transport."""

    def __init__(self, network: Network, name: tuple[str, int], process: Process | None) -> None:
        super().__init__()
        self.name = name
        self.peer: End
        self.out: Stream
        self.process = process
        self.protocol: asyncio.Protocol | None = None
        self.context = process.context if process is not None else Context()
        self._network = network
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high = _HIGH_WATER
        self._is_paused = False
        self._reads = True
        #: True while the end accepts bytes: its protocol reads and the connection is not lost.
        self.takes = False
        self._closing = False
        self._lost = False
        self._ended = False
        if process is not None:
            process.at_death.append(self._died)

    # -- asyncio's side -----------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer.name, "sockname": self.name}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol
        self.takes = self._reads and not self._lost

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = self.takes = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self.takes = self.protocol is not None and not self._lost
            self.peer.out.again()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if not self._buffer and self.out.under_way < _WINDOW:
            self.out.send(bytes(data))
            return
        self._buffer.append(bytes(data))
        self._buffered += len(data)
        self._push()
        if self._buffered > self._high and not self._is_paused:
            self._is_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._finish()

    def abort(self) -> None:
        self._closing = True
        if not self._lost:
            self._buffer.clear()
            self._buffered = 0
            self._reset_peer()
            self._lose(None)

    # -- the network's side -------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._lost

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Attaches the protocol that reads from this end."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        if self._lost:  # The client closed the connection before the server accepted it.
            self._network.loop.call_soon(protocol.connection_lost, None, context=self.context)
        self.peer.out.again()

    def accepted_by(self, process: Process | None) -> None:
        """Assigns the server end to the process that accepts the connection."""
        self.process = process
        if process is not None:
            self.context = process.context
            process.at_death.append(self._died)

    def received(self, data: bytes) -> None:
        if not self._closing and self.protocol is not None:
            self.protocol.data_received(data)

    def ended(self) -> None:
        """Handles the end of the stream: the peer sends no more bytes."""
        if not self._ended and not self._lost:
            self._ended = True
            if self.protocol is not None and not self._closing:
                self.protocol.eof_received()
            self.close()

    def drained(self) -> None:
        """Sends more buffered bytes after the peer has read some."""
        if not self._lost and (self._buffer or self._is_paused or self._closing):
            self._push()

    def reset(self, error: OSError) -> None:
        """Closes the connection with `error`. Runs in the context of this end's process."""
        if not self._lost:
            self._closing = True
            self._lose(error)

    def vanish(self, *, machine: bool) -> None:
        """Closes this end because its process died. If the machine lost power (`machine`), the peer gets no reset."""
        if self._lost:
            return
        self._closing = self._lost = True
        self.takes = False
        self._network.closed(self)
        if machine:
            self.peer.unanswered()
        else:
            self._reset_peer()

    def unanswered(self) -> None:
        """Times the connection out after `_DEAD_PEER_S`, because the peer's machine does not answer."""
        self._network.loop.call_later(
            _DEAD_PEER_S, self.reset, TimeoutError(110, "Connection timed out"), context=self.context
        )

    def _died(self, machine: bool) -> None:
        self.vanish(machine=machine)

    def _push(self) -> None:
        """Moves buffered bytes to the stream, as far as its window allows."""
        while self._buffer and self.out.under_way < _WINDOW:
            piece = self._buffer.popleft()
            self._buffered -= len(piece)
            self.out.send(piece)
        if self._is_paused and self._buffered <= self._high // 4:
            self._is_paused = False
            self._network.loop.call_soon(self.get_protocol().resume_writing, context=self.context)
        if self._closing and not self._buffer and not self._lost:
            self._finish()

    def _finish(self) -> None:
        """Sends the end of the stream after all bytes, and closes this end."""
        self.out.send(None)
        self._lose(None)

    def _reset_peer(self) -> None:
        peer, link = self.peer, self._network.link(self.name[0], self.peer.name[0])
        if link.is_cut:
            peer.unanswered()
            return
        self._network.loop.call_later(
            link.delay_s, peer.reset, ConnectionResetError(104, "Connection reset by peer"), context=peer.context
        )

    def _lose(self, error: OSError | None) -> None:
        self._lost = True
        self.takes = False
        self._network.closed(self)
        if self.process is not None and self._died in self.process.at_death:
            self.process.at_death.remove(self._died)
        if self.protocol is not None:
            self._network.loop.call_soon(self.protocol.connection_lost, error, context=self.context)


class Connection:
    """The client end and the server end of a connection."""

    def __init__(self, network: Network, client: End, server: End) -> None:
        self.client = client
        self.server = server
        client.peer, server.peer = server, client
        client.out = Stream(network, client, server)
        server.out = Stream(network, server, client)


class Network:
    """The links and listening sockets of all hosts."""

    def __init__(self, loop: SimLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        #: Share of the deliveries that are cut into tiny reads.
        self.tiny_reads = 0.0
        #: Addresses of machines that are off. A connect to them times out, because nothing refuses it.
        self.without_power: set[str] = set()
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[tuple[str, int], SimSocket] = {}
        self._ends: dict[End, None] = {}
        self._next_port = _FIRST_PORT
        self._descriptors = 10

    def link(self, source: str, target: str) -> Link:
        """Returns the link from one address to another. A new link has the default delays and no faults."""
        return self._links.setdefault((source, target), Link())

    def cut(self, source: str, target: str) -> None:
        """Cuts the link in one direction. The opposite direction is another link."""
        self.link(source, target).is_cut = True

    def mend(self, source: str, target: str, *, reset_share: float = 0.0) -> None:
        """Restores a cut link: bytes continue, except that `reset_share` of the connections are reset."""
        self.link(source, target).is_cut = False
        for end in list(self._ends):
            if (end.name[0], end.peer.name[0]) == (source, target):
                if self.chance.random() < reset_share:
                    end.reset(ConnectionResetError(104, "Connection reset by peer"))
                    end.peer.reset(ConnectionResetError(104, "Connection reset by peer"))
                else:
                    end.out.again()

    def reset_some(self, share: float) -> int:
        """Resets this share of all connections. Returns the number of reset ends."""
        chosen = [end for end in list(self._ends) if end.is_open and self.chance.random() < share]
        for end in chosen:
            end.reset(ConnectionResetError(104, "Connection reset by peer"))
            end.peer.reset(ConnectionResetError(104, "Connection reset by peer"))
        return len(chosen)

    def lose(self, one: str, other: str) -> None:
        """Resets all connections from `one` to `other` on both ends."""
        for end in list(self._ends):
            if end.is_open and (end.name[0], end.peer.name[0]) == (one, other):
                end.reset(ConnectionResetError(104, "Connection reset by peer"))
                end.peer.reset(ConnectionResetError(104, "Connection reset by peer"))

    def bind(self, host: str, port: int) -> SimSocket:
        """Returns a socket bound to this address. Port 0 selects a free port.

        Raises OSError if the address is in use.
        """
        if not port:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listening:
            raise OSError(98, "Address already in use")
        sock = SimSocket(self, (host, port))
        process = PROCESS.get()
        if process is not None:
            process.at_death.append(lambda _: sock.close())
        return sock

    def listen(self, name: tuple[str, int], sock: SimSocket) -> None:
        """Makes the socket listen. It has no effect in the iteration in which the power of its process failed."""
        if sock.owner is not None and sock.owner.state is State.DEAD:
            return
        if self._listening.setdefault(name, sock) is not sock:
            raise OSError(98, "Address already in use")

    def forget(self, name: tuple[str, int], sock: SimSocket) -> None:
        if self._listening.get(name) is sock:
            del self._listening[name]

    def next_descriptor(self) -> int:
        self._descriptors += 1
        return self._descriptors % 1000 + 10

    def closed(self, end: End) -> None:
        self._ends.pop(end, None)

    def cuts(self, available: int) -> list[int]:
        """Returns the end of each read for `available` bytes.

        The result is a single read, or a read with some tiny ones in it.
        """
        chance = self.chance
        if not self.tiny_reads or available < 2 or chance.random() >= self.tiny_reads:
            return [available]
        size = chance.randrange(1, min(available, 64) + 1)
        count = min(_TINY_READS, available // size)
        first = chance.randrange(0, available - count * size + 1)
        ends = [first + number * size for number in range(not first, count + 1)]
        return ends if ends[-1] == available else [*ends, available]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects to a server.

        Raises ConnectionRefusedError if nothing listens there, and TimeoutError if nothing answers.
        """
        process = PROCESS.get()
        own = process.host.address if process is not None else "10.0.0.0"
        there, back = self.link(own, host), self.link(host, own)
        began = self.loop.time()
        while there.is_cut or back.is_cut or host in self.without_power:
            # TCP repeats the SYN each second.
            await asyncio.sleep(1.0)
            if self.loop.time() - began >= _CONNECT_TIMEOUT_S:
                raise TimeoutError(110, "Connection timed out")
        await asyncio.sleep(there.delay_s + back.delay_s + self.chance.random() * there.jitter_s)
        listening = self._listening.get((host, port))
        if listening is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._next_port += 1
        client = End(self, (own, self._next_port), process)
        server = End(self, (host, port), None)
        connection = Connection(self, client, server)
        self._ends[client] = self._ends[server] = None
        server.accepted_by(listening.owner)
        client.begin(factory())
        listening.arrived(connection)
        assert client.protocol is not None
        return client, client.protocol
