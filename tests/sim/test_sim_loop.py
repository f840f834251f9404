"""sim/: time, processes and connections."""

from __future__ import annotations

import asyncio
import gc
import time
from random import Random

import pytest
from sim.loop import SimLoop, Standstill
from sim.machine import Host, Process
from sim.network import End


class Peer(asyncio.Protocol):
    """Records what it receives. As the server, sends it back."""

    def __init__(self, loop: SimLoop, *, echoes: bool = False) -> None:
        self.heard: list[tuple[float, object]] = []
        self.transport: End
        self._loop = loop
        self._echoes = echoes

    @property
    def data(self) -> bytes:
        return b"".join(what for _, what in self.heard if isinstance(what, bytes))

    @property
    def end(self) -> object:
        return self.heard[-1][1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, End)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append((self._loop.time(), data))
        if self._echoes:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append((self._loop.time(), exc))


class Pair:
    """A server on one host and a client on another."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.near, self.far = Host(loop, "near", "10.0.0.1"), Host(loop, "far", "10.0.0.2")
        self.served: list[Peer] = []
        self.server = self.far.start(self._serve)

    async def _serve(self) -> None:
        loop = self.loop
        listening = loop.network.bind("10.0.0.2", 9876)
        listening.listen(100)

        def serve() -> Peer:
            self.served.append(Peer(loop, echoes=True))
            return self.served[-1]

        async def accept() -> None:
            sock, _ = listening.accept()
            await loop.connect_accepted_socket(serve, sock)

        def accepts() -> None:
            assert self.server is not None
            self.server.spawn(accept())

        loop.add_reader(listening, accepts)

    async def connect(self) -> Peer:
        _, peer = await self.loop.create_connection(lambda: Peer(self.loop), "10.0.0.2", 9876)
        assert isinstance(peer, Peer)
        return peer


@pytest.fixture
def pair(loop: SimLoop) -> Pair:
    pair = Pair(loop)
    loop.run_until_complete(asyncio.sleep(0.1))
    return pair


def test_hours_pass_at_once(loop: SimLoop) -> None:
    began = time.monotonic()
    loop.run_until_complete(asyncio.sleep(36_000))
    assert 36_000 <= loop.time() < 36_001
    assert time.monotonic() - began < 5


def test_who_waits_for_nothing_is_told(loop: SimLoop) -> None:
    with pytest.raises(Standstill):
        loop.run_until_complete(loop.create_future())


def test_a_loop_that_never_waits_gets_on(loop: SimLoop) -> None:
    async def spin() -> None:
        while loop.time() < 0.01:
            await asyncio.sleep(0)

    loop.run_until_complete(asyncio.wait_for(spin(), 1.0))


def test_threads_work_is_done_in_the_loops_order(loop: SimLoop) -> None:
    done: list[int] = []

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(done.append, number) for number in range(20)))

    loop.run_until_complete(main())
    assert sorted(done) == list(range(20))
    other = SimLoop(Random("a seed"))
    again, done = done, []
    other.run_until_complete(main())
    other.close()
    assert done == again


def test_bytes_arrive_in_order_and_late(loop: SimLoop, pair: Pair) -> None:
    sent = bytes(range(256)) * 4000

    async def main() -> Peer:
        peer = await pair.connect()
        for begin in range(0, len(sent), 10_000):
            peer.transport.write(sent[begin : begin + 10_000])
        await asyncio.sleep(1.0)
        return peer

    loop.network.tiny_reads = 0.5
    began = loop.time()
    peer = loop.run_until_complete(main())
    assert peer.data == sent
    assert peer.heard[0][0] - began > 0.0004


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 5000])
def test_reads_bring_all_bytes_once(loop: SimLoop, size: int) -> None:
    loop.network.tiny_reads = 1.0
    counts, firsts = set(), set()
    for _ in range(200):
        ends = loop.network.cuts(size)
        assert ends[-1] == size
        assert all(begin < end for begin, end in zip([0, *ends], ends, strict=False))
        counts.add(len(ends))
        firsts.add(ends[0])
    # Tiny reads start at any position, and the rest comes in one read.
    assert len(firsts) > min(size, 50) // 2
    assert max(counts) <= 18
    loop.network.tiny_reads = 0.0
    assert loop.network.cuts(size) == [size]


def test_a_writer_waits_for_who_doesnt_read(loop: SimLoop, pair: Pair) -> None:
    async def main() -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.served[0].transport.pause_reading()
        peer.transport.write(bytes(1_000_000))
        await asyncio.sleep(60)
        assert peer.transport.get_write_buffer_size() > 0 or peer.data == b""
        pair.served[0].transport.resume_reading()
        await asyncio.sleep(1.0)
        assert peer.data == bytes(1_000_000)

    loop.run_until_complete(main())


def test_the_end_comes_behind_what_was_written(loop: SimLoop, pair: Pair) -> None:
    async def main() -> None:
        peer = await pair.connect()
        peer.transport.write(b"x" * 500_000)
        peer.transport.close()
        await asyncio.sleep(1.0)
        assert pair.served[0].data == b"x" * 500_000
        assert pair.served[0].end is None
        assert peer.end is None

    loop.run_until_complete(main())


def test_a_killed_process_is_heard_of_and_does_nothing_more(loop: SimLoop, pair: Pair) -> None:
    async def main() -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        ran: list[float] = []

        async def work() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    ran.append(loop.time())
            finally:
                ran.append(-1.0)

        pair.server.spawn(work())
        await asyncio.sleep(2.5)
        pair.server.kill()
        await asyncio.sleep(10)
        gc.collect()
        assert len(ran) == 2
        assert isinstance(peer.end, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()

    loop.run_until_complete(main())
    assert not loop.unhandled


def test_a_machine_without_power_says_nothing(loop: SimLoop, pair: Pair) -> None:
    async def main() -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        pair.server.kill(machine=True)
        loop.network.without_power.add("10.0.0.2")
        await asyncio.sleep(10)
        assert peer.heard == []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pair.connect(), 5)
        await asyncio.sleep(60)
        assert isinstance(peer.end, TimeoutError)

    loop.run_until_complete(main())


def test_a_process_whose_power_fails_while_it_starts_leaves_its_port_free(loop: SimLoop) -> None:
    host = Host(loop, "far", "10.0.0.2")

    async def starts() -> None:
        # The rest of the iteration runs as if nothing had happened.
        assert host.process is not None
        host.process.kill(machine=True)
        loop.network.bind("10.0.0.2", 9876).listen(100)

    host.start(starts)
    loop.run_until_complete(asyncio.sleep(1))
    # Raises OSError if another socket listens there.
    loop.network.bind("10.0.0.2", 9876)


def test_a_stopped_process_goes_on_where_it_was(loop: SimLoop, pair: Pair) -> None:
    async def main() -> None:
        peer = await pair.connect()
        pair.server.stop()
        peer.transport.write(b"hello")
        await asyncio.sleep(30)
        assert peer.data == b""
        pair.server.go_on()
        await asyncio.sleep(1)
        assert peer.data == b"hello"

    loop.run_until_complete(main())


@pytest.mark.parametrize("reset_share", [0.0, 1.0])
def test_a_cut_link_holds_bytes_back(loop: SimLoop, pair: Pair, reset_share: float) -> None:
    async def main() -> None:
        peer = await pair.connect()
        await asyncio.sleep(0.1)
        loop.network.cut("10.0.0.2", "10.0.0.1")
        peer.transport.write(b"hello")
        await asyncio.sleep(5)
        assert pair.served[0].data == b"hello"
        assert peer.data == b""
        loop.network.mend("10.0.0.2", "10.0.0.1", reset_share=reset_share)
        await asyncio.sleep(1)
        assert peer.data == (b"" if reset_share else b"hello")
        assert pair.served[0].transport.is_open is (reset_share == 0.0)

    process = pair.near.start(main)
    assert isinstance(process, Process)
    assert process.main is not None
    loop.run_until_complete(process.main)
