"""The links of a failover's servers: each goes through this proxy, which cuts a server off from all others.

A server listens at 127.0.0.1 and is known to others at an address of its own, 127.0.2.N with the same port, where this
process listens. Whose a connection is that comes in says /proc, so that a server is cut off from those whom it calls,
too. Cut means: nothing passes, nothing is closed, and what was under way arrives when the link heals, as with packets
that are lost and sent again. Linux alone: all of 127.0.0.0/8 is this machine there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import uvloop

#: What waits to be written to one side, bytes, before the other is read no more.
MOST_WAITING = 1 << 20
#: NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY; any state, any cookie.
_SOCK_DIAG, _BY_FAMILY, _ALL = 4, 20, 0xFFFFFFFF


def inode_of(caller: tuple[str, int], called: tuple[str, int]) -> int:
    """Of the caller's socket, 0 if it isn't of this machine (sock_diag(7); to read /proc/net/tcp takes 40 ms)."""
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
    """What a process's descriptors of sockets are called."""
    found = set()
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return found


@dataclass(eq=False)
class Network:
    """Who is cut off, and who the processes are."""

    pids: dict[str, int] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    connections: set[End] = field(default_factory=set)

    def is_cut(self, names: set[str]) -> bool:
        return not self.cut_off.isdisjoint(names)

    def name(self, ends: list[Incoming]) -> None:
        """Finds those whom a server has called that is cut off; looking costs too much to do it for each connection."""
        for name in self.cut_off & self.pids.keys():
            sockets = sockets_of(self.pids[name])
            for end in ends:
                if f"socket:[{inode_of(end.caller, end.called)}]" in sockets:
                    end.names.add(name)

    def changed(self) -> None:
        self.name([end for end in self.connections if isinstance(end, Incoming)])
        for end in list(self.connections):
            end.look()


class End(asyncio.Protocol):
    """One side of a connection; `names` are the servers at both sides, as far as they are known."""

    transport: asyncio.Transport
    other: End | None = None

    def __init__(self, network: Network, names: set[str]) -> None:
        self.network = network
        self.names = names
        self.is_full = False
        self._is_read = True
        #: What came before the other side was there: uvloop reads once, whatever `connection_made` says.
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(MOST_WAITING)
        self.network.connections.add(self)
        self.look()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.network.connections.discard(self)
        if self.other is not None and not self.other.transport.is_closing():
            # What it has been given still goes out; after a reset it has none of it.
            if error is None:
                self.other.transport.close()
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
        """Whether it is to be read now."""
        is_read = self.other is not None and not self.other.is_full and not self.network.is_cut(self.names)
        if is_read != self._is_read and not self.transport.is_closing():
            self._is_read = is_read
            if is_read:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


class Incoming(End):
    """The side that called; the other is called as soon as nobody is cut off."""

    def __init__(self, network: Network, server: str, host: str, port: int) -> None:
        super().__init__(network, {server})
        self._target = host, port
        self.caller = self.called = "", 0
        self._calling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.caller, self.called = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if self.network.cut_off:
            self.network.name([self])
        super().connection_made(transport)

    def look(self) -> None:
        if self.other is None and self._calling is None and not self.network.is_cut(self.names):
            self._calling = asyncio.get_running_loop().create_task(self._call())
        super().look()

    async def _call(self) -> None:
        host, port = self._target
        outgoing = End(self.network, self.names)
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
    """Listens for each server at its addresses, and does as standard input says, until that is closed."""
    network = Network()
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
        command, name, *rest = line.decode().split()
        if command == "process":
            network.pids[name] = int(rest[0])
        elif command == "cut":
            network.cut_off.add(name)
        else:
            network.cut_off.discard(name)
        network.changed()
        print("done", flush=True)


class Links:
    """The proxy as a process of its own; `servers` are the addresses at which each server is known."""

    def __init__(self, servers: dict[str, list[tuple[str, int]]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(servers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._heard("ready")

    def process(self, name: str, pid: int) -> None:
        """That server is this process now."""
        self._tell(f"process {name} {pid}")

    def cut(self, name: str) -> None:
        """Nothing passes from or to that server from here on."""
        self._tell(f"cut {name}")

    def heal(self, name: str) -> None:
        self._tell(f"heal {name}")

    def stop(self) -> None:
        self._process.communicate()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._heard("done")

    def _heard(self, expected: str) -> None:
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
