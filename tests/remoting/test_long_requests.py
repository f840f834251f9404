"""Long requests that run in steps over several event-loop iterations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.errors import RequestRefused
from gantrymq.limits import LONG_REQUESTS
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting import long_requests
from gantrymq.remoting.connection import Buffers, Connection
from gantrymq.remoting.long_requests import LongRequests, Steps


class Asker(Connection):
    """A connection that stores the responses."""

    def __init__(self) -> None:
        super().__init__({})
        self.answers: list[RemotingCommand | Buffers] = []
        self.closed = False

    @property
    def is_closed(self) -> bool:
        return self.closed

    def reply(self, request: RemotingCommand, reply: RemotingCommand | Buffers) -> None:
        self.answers.append(reply)


@asynccontextmanager
async def running() -> AsyncIterator[LongRequests]:
    requests = LongRequests(Jobs())
    requests.start()
    yield requests
    await requests.stop()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the clocks so that each step takes 1 ms.

    The wall clock is read once after each step, and the CPU clock before and after it.
    """
    times: Iterator[float] = (n * 0.001 for n in range(1_000_000))
    monkeypatch.setattr(long_requests, "monotonic", lambda: next(times))
    cpu_times: Iterator[float] = (n * 0.001 for n in range(1_000_000))
    monkeypatch.setattr(long_requests, "thread_time", lambda: next(cpu_times))


def steps(count: int, done: list[str] | None = None, name: str = "") -> Steps:
    for _ in range(count):
        if done is not None:
            done.append(name)
        yield
    return RemotingCommand.response(remark=name)


def request(body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(1, body=body)


async def test_what_is_done_soon_is_answered_at_once() -> None:
    async with running() as requests:
        asker = Asker()
        reply = requests.run(asker, request(), steps(3, name="quick"))
        assert isinstance(reply, RemotingCommand)
        assert (reply.remark, asker.answers, len(requests)) == ("quick", [], 0)


async def test_a_turn_is_shared_by_the_requests_that_come_in_it() -> None:
    """Many short requests of one read count like one long request."""
    async with running() as requests:
        asker = Asker()
        replies = [requests.run(asker, request(), steps(3)) for _ in range(20)]
        assert 1 < sum(reply is not None for reply in replies) < 6
        assert replies[-1] is None
        await until(lambda: len(asker.answers) == sum(reply is None for reply in replies))


async def test_the_rest_goes_on_in_later_turns() -> None:
    async with running() as requests:
        asker = Asker()
        turns: list[int] = []
        assert requests.run(asker, request(), steps(100, name="long")) is None
        while not asker.answers:
            turns.append(0)
            await asyncio.sleep(0)
        assert len(turns) >= 8
        (answer,) = asker.answers
        assert isinstance(answer, RemotingCommand)
        assert answer.remark == "long"


async def test_connections_take_turns() -> None:
    """A connection with many requests delays only itself, and not the other connections."""
    async with running() as requests:
        greedy, modest = Asker(), Asker()
        done: list[str] = []
        for _ in range(50):
            requests.run(greedy, request(), steps(50, done, "greedy"))
        requests.run(modest, request(), steps(20, done, "modest"))
        while not modest.answers:
            await asyncio.sleep(0)
        assert done.count("greedy") < 60


async def test_an_error_is_the_answer() -> None:
    def failing() -> Steps:
        yield from steps(30)
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "no")

    async with running() as requests:
        asker = Asker()
        assert requests.run(asker, request(), failing()) is None
        await until(lambda: asker.answers)
        (answer,) = asker.answers
        assert isinstance(answer, RemotingCommand)
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "no")


async def test_the_size_of_long_requests_of_a_connection_is_limited() -> None:
    half = bytes(LONG_REQUESTS.size_of_one // 2)
    async with running() as requests:
        askers = [Asker(), Asker()]
        for asker in askers:
            requests.run(asker, request(half), steps(1000))
        for asker in askers:
            with pytest.raises(RequestRefused) as refused:
                requests.run(asker, request(half), steps(1000))
            assert refused.value.code == ResponseCode.SYSTEM_BUSY
        assert len(requests) == 2
        # A closed connection frees its part of the limit.
        requests.connection_closed(askers[0])
        assert requests.run(askers[0], request(half), steps(1)) is None
        for asker in askers:
            requests.connection_closed(asker)
        assert len(requests) == 0


async def test_who_asks_for_much_is_refused_and_not_the_others() -> None:
    async with running() as requests:
        greedy = [Asker() for _ in range(4)]
        refused = 0
        for asker in greedy:
            for _ in range(5):
                try:
                    requests.run(asker, request(bytes(4_000_000)), steps(1000))
                except RequestRefused:
                    refused += 1
        assert refused
        modest = Asker()
        assert requests.run(modest, request(bytes(1_000_000)), steps(10)) is None
        await until(lambda: modest.answers)
        for asker in greedy:
            requests.connection_closed(asker)


async def test_stop_ends_what_has_begun() -> None:
    asker = Asker()
    async with running() as requests:
        requests.run(asker, request(), steps(100))
    assert len(asker.answers) == 1
    with pytest.raises(RequestRefused):
        requests.run(asker, request(), steps(100))


async def test_the_steps_count_for_who_asked() -> None:
    """The CPU time of the steps counts for the connection that sent the request.

    While others are busy too, its next requests come after those of cheap connections.
    """
    async with running() as requests:
        asker, other = Asker(), Asker()
        requests.run(asker, request(), steps(60))
        requests.run(other, request(), steps(2))
        assert not asker.is_busy()
        await until(lambda: asker.answers)
        assert asker.is_busy()
        assert not other.is_busy()


async def test_who_takes_no_answers_waits_and_the_others_do_not() -> None:
    """A connection that does not read its responses is paused.

    Without a pause, the unread responses of sixty connections took 477 MiB.
    """
    async with running() as requests:
        full, other = Asker(), Asker()
        full.pause_writing()
        for asker in (full, other):
            requests.run(asker, request(), steps(30))
        await until(lambda: len(other.answers) == 1)
        await asyncio.sleep(0)
        assert (full.answers, len(requests)) == ([], 1)
        full.resume_writing()
        await until(lambda: len(full.answers) == 1)


async def test_stop_ends_also_what_waits_for_a_peer_that_takes_nothing() -> None:
    async with running() as requests:
        full = Asker()
        full.pause_writing()
        requests.run(full, request(), steps(30))
    assert (len(full.answers), len(requests)) == (1, 0)
