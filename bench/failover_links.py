"""The links between the servers of a failover: a proxy that cuts each of them, in both directions or in one.

A server listens at 127.0.0.1. Other servers use a different address of it, 127.0.2.N with the same port, where the
proxy listens. The proxy finds the process of each connection by its socket (sock_diag and /proc). So it also cuts
connections that a server opened itself.

Across a cut, no bytes pass, and no connection is closed. Bytes in transit arrive when the link is restored, like
packets that are lost and sent again. A slow link delays all bytes, and a lossy one delays some of them by the timeouts
of retransmissions. Linux only: there, all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import uvloop

#: Number of buffered bytes for one side from which on the proxy stops reading from the other side.
MOST_WAITING = 1 << 20
#: Delay of a slow link in each direction, in seconds.
SLOW_S = 0.1
#: A lossy link loses this share of the packets. TCP sends a packet again after this time, in seconds, and doubles the
#: time after each loss.
LOSS, RETRANSMISSION_S = 0.05, 0.2
#: In a cut: every server and client.
ANYBODY = "*"
#: NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY; any state, any cookie.
_SOCK_DIAG, _BY_FAMILY, _ALL = 4, 20, 0xFFFFFFFF


def inode_of(caller: tuple[str, int], called: tuple[str, int]) -> int:
    """Returns the inode of the caller's socket, or 0 if it is not on this machine.

    Uses sock_diag(7), because reading /proc/net/tcp takes 40 ms.
    """
    request = struct.pack(
        "=BBBxI2s2s16s16sIII",
        *(socket.AF_INET, socket.IPPROTO_TCP, 0, _ALL),
        *(caller[1].to_bytes(2, "big"), called[1].to_bytes(2, "big")),
        *(socket.inet_aton(caller[0]), socket.inet_aton(called[0])),
        *(0, _ALL, _ALL),
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
        diag.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, 1, 1, 0) + request)
        answer = diag.recv(4096)
    (kind,) = struct.unpack_from("=H", answer, 4)
    return int(struct.unpack_from("=I", answer, 16 + 68)[0]) if kind == _BY_FAMILY else 0


def sockets_of(pid: int) -> set[str]:
    """Returns the names of a process's sockets in /proc."""
    found = set()
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return found


@dataclass(eq=False)
class Pair:
    """Names of both ends of a connection. Empty for a client, and for a server that is not identified yet."""

    called: str
    caller: str = ""


@dataclass(eq=False)
class Network:
    """The current cuts, as (source, target) of the blocked bytes, slow and lossy links, and the servers' processes."""

    pids: dict[str, int] = field(default_factory=dict)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    slow: set[tuple[str, str]] = field(default_factory=set)
    lossy: set[tuple[str, str]] = field(default_factory=set)
    connections: set[End] = field(default_factory=set)

    @property
    def links(self) -> set[tuple[str, str]]:
        """The links with a fault."""
        return self.cuts | self.slow | self.lossy

    def is_cut(self, source: str, target: str) -> bool:
        return _has(self.cuts, source, target)

    def delay_s(self, source: str, target: str) -> float:
        """Returns the delay of a packet that arrives now."""
        delay_s = SLOW_S if _has(self.slow, source, target) else 0.0
        if _has(self.lossy, source, target):
            timeout_s = RETRANSMISSION_S
            while random.random() < LOSS:
                delay_s += timeout_s
                timeout_s *= 2
        return delay_s

    def identify(self, ends: list[Incoming]) -> None:
        """Finds the connections that the servers of a link with a fault have opened. Without one, it does nothing."""
        for name in {name for link in self.links for name in link} & self.pids.keys():
            sockets = sockets_of(self.pids[name])
            for end in ends:
                if not end.pair.caller and f"socket:[{inode_of(end.caller, end.called)}]" in sockets:
                    end.pair.caller = name

    def changed(self) -> None:
        self.identify([end for end in self.connections if isinstance(end, Incoming)])
        for end in list(self.connections):
            end.look()


def _has(links: set[tuple[str, str]], source: str, target: str) -> bool:
    return any(s in (source, ANYBODY) and t in (target, ANYBODY) for s, t in links)


class End(asyncio.Protocol):
    """One side of a connection. It reads from the called server; the subclass `Incoming` reads from the caller."""

    transport: asyncio.Transport
    other: End | None = None

    def __init__(self, network: Network, pair: Pair) -> None:
        self.network = network
        self.pair = pair
        self.is_full = False
        self._is_read = True
        #: Bytes that arrived before the other side was connected. uvloop reads at least once.
        self.early = b""
        #: Delayed bytes, each with the time of its arrival. None: the end of the connection.
        self._late: deque[tuple[float, bytes | None]] = deque()

    @property
    def is_cut(self) -> bool:
        return self.network.is_cut(*self.direction)

    @property
    def direction(self) -> tuple[str, str]:
        """Source and target of the bytes that this side reads."""
        return self.pair.called, self.pair.caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(MOST_WAITING)
        self.network.connections.add(self)
        self.look()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self._pass_on(data)

    def _pass_on(self, data: bytes | None) -> None:
        """Delivers bytes, or the end of the connection, to the other side: now, or after the delay of the link."""
        loop = asyncio.get_running_loop()
        delay_s = self.network.delay_s(*self.direction) if self.network.links else 0.0
        if not self._late and not delay_s:
            self._deliver(data)
            return
        # Bytes do not overtake earlier ones.
        arrives = max(loop.time() + delay_s, self._late[-1][0] if self._late else 0.0)
        self._late.append((arrives, data))
        if len(self._late) == 1:
            loop.call_at(arrives, self._deliver_late)

    def _deliver(self, data: bytes | None) -> None:
        if self.other is None or self.other.transport.is_closing():
            return
        if data is None:
            self.other.transport.close()
        else:
            self.other.transport.write(data)

    def _deliver_late(self) -> None:
        loop = asyncio.get_running_loop()
        while self._late and self._late[0][0] <= loop.time():
            self._deliver(self._late.popleft()[1])
        if self._late:
            loop.call_at(self._late[0][0], self._deliver_late)

    def connection_lost(self, error: Exception | None) -> None:
        self.network.connections.discard(self)
        if self.other is not None and not self.other.transport.is_closing():
            # A close delivers earlier bytes; a reset does not.
            if error is None:
                self._pass_on(None)
            else:
                self.other.transport.abort()

    def pause_writing(self) -> None:
        self.is_full = True
        if self.other is not None:
            self.other.look()

    def resume_writing(self) -> None:
        self.is_full = False
        if self.other is not None:
            self.other.look()

    def look(self) -> None:
        """Starts or stops reading, as cuts and the other side's buffer require."""
        is_read = self.other is not None and not self.other.is_full and not self.is_cut
        if is_read != self._is_read and not self.transport.is_closing():
            self._is_read = is_read
            if is_read:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


class Incoming(End):
    """The caller's side. It connects to the server as soon as neither direction is cut."""

    def __init__(self, network: Network, server: str, host: str, port: int) -> None:
        super().__init__(network, Pair(server))
        self._target = host, port
        self.caller = self.called = "", 0
        self._calling: asyncio.Task[None] | None = None

    @property
    def direction(self) -> tuple[str, str]:
        return self.pair.caller, self.pair.called

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.caller, self.called = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if self.network.links:
            self.network.identify([self])
        super().connection_made(transport)

    def look(self) -> None:
        # A handshake needs both directions.
        is_open = not self.is_cut and not self.network.is_cut(*reversed(self.direction))
        if self.other is None and self._calling is None and is_open:
            self._calling = asyncio.get_running_loop().create_task(self._call())
        super().look()

    async def _call(self) -> None:
        host, port = self._target
        outgoing = End(self.network, self.pair)
        outgoing.other = self
        try:
            await asyncio.get_running_loop().create_connection(lambda: outgoing, host, port)
        except OSError:
            self.transport.abort()
            return
        self.other = outgoing
        outgoing.transport.write(self.early)
        if self.transport.is_closing():
            outgoing.transport.close()
        outgoing.look()
        self.look()


async def serve(servers: dict[str, list[tuple[str, int]]]) -> None:
    """Listens at each server's addresses, and executes the commands from standard input until it closes."""
    network = Network()
    kinds = {"cut": network.cuts, "slow": network.slow, "lossy": network.lossy}
    loop = asyncio.get_running_loop()
    for name, addresses in servers.items():
        for host, port in addresses:

            def incoming(name: str = name, port: int = port) -> Incoming:
                return Incoming(network, name, "127.0.0.1", port)

            await loop.create_server(incoming, host, port)
    print("ready", flush=True)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command, first, second = line.decode().split()
        if command == "process":
            network.pids[first] = int(second)
        elif command == "heal":
            for links in kinds.values():
                links.discard((first, second))
        else:
            kinds[command].add((first, second))
        network.changed()
        print("done", flush=True)


class Links:
    """The proxy in a process of its own. `servers` has the public addresses of each server."""

    def __init__(self, servers: dict[str, list[tuple[str, int]]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(servers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._expect("ready")

    def process(self, name: str, pid: int) -> None:
        """Registers the process of a server."""
        self._command(f"process {name} {pid}")

    def cut(self, name: str) -> None:
        """Cuts all links from and to this server."""
        self.cut_link(name, ANYBODY)

    def heal(self, name: str) -> None:
        self.heal_link(name, ANYBODY)

    def cut_link(self, source: str, target: str, *, half_open: bool = False) -> None:
        """Cuts the link from `source` to `target`, and also back unless it is `half_open`."""
        self._command(f"cut {source} {target}")
        if not half_open:
            self._command(f"cut {target} {source}")

    def slow_link(self, source: str, target: str) -> None:
        self._command(f"slow {source} {target}")
        self._command(f"slow {target} {source}")

    def lossy_link(self, source: str, target: str) -> None:
        self._command(f"lossy {source} {target}")
        self._command(f"lossy {target} {source}")

    def heal_link(self, source: str, target: str) -> None:
        self._command(f"heal {source} {target}")
        self._command(f"heal {target} {source}")

    def stop(self) -> None:
        self._process.communicate()

    def _command(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._expect("done")

    def _expect(self, expected: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != expected:
            raise RuntimeError("the proxy has ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("servers", type=json.loads, help="{name: [[host, port] ...]}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser.parse_args().servers))


if __name__ == "__main__":
    main()
