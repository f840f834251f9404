"""Orderly consumption in random interleavings: at most one message of a queue is in a handler, always in order.

Handlers succeed, fail or take long. Sends to the dead-letter queue fail or hang. The queue is released and read
again from its committed offset. Its lock gets lost, and the broker does not respond.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from records import message_at
from virtual_time import run_in_virtual_time

from gantrymq.client.consuming.consumer_locks import ConsumerLocks
from gantrymq.client.consuming.orderly import ConsumeOrderly
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.message import MessageExt, MessageQueue

QUEUE = MessageQueue("t", "a", 0)
#: Longer than any pause, but shorter than the timeout of a queue's release. In seconds.
A_WHILE_S = 5.0


@dataclass
class Outcome:
    """Result of an operation, and its duration in seconds."""

    succeeds: bool
    after_s: float


outcomes = st.builds(Outcome, st.booleans(), st.sampled_from([0.0, 0.0, 0.5, A_WHILE_S]))
#: External events: a message arrives, the queue moves, the lock gets lost, time passes. Each takes one loop iteration.
#: Most are short, because events in the same iteration as another one's end are the interesting cases.
happenings = st.sampled_from(["pull"] * 4 + ["nothing"] * 2 + ["rebalance", "lose lock", "half a second", "a while"])


class World:
    """A queue of `length` messages, its consumer, and their state."""

    def __init__(
        self,
        length: int,
        max_reconsume_times: int,
        handling: list[Outcome],
        burying: list[Outcome],
        locking: list[Outcome],
    ) -> None:
        self.length = length
        self._handling, self._burying, self._locking = handling, burying, locking
        self._locked = True
        self._in_handlers = 0
        self.wrong: list[str] = []
        #: Offsets that were consumed or moved to the dead-letter queue.
        self.done: set[int] = set()
        self.consumption = ConsumeOrderly(
            self._handle,
            3,
            cast(ConsumerLocks, self),
            cast(SendBack, self),
            max_reconsume_times,
            1.0,
            lambda message: message.topic,
            lambda process_queue: None,
        )
        self.process_queue = ProcessQueue(QUEUE, 0, FlowLimits())

    async def _end(self, outcomes: list[Outcome]) -> bool:
        outcome = outcomes.pop() if outcomes else Outcome(True, 0.0)
        await asyncio.sleep(outcome.after_s)
        return outcome.succeeds

    async def _handle(self, message: MessageExt) -> None:
        if self._in_handlers:
            self.wrong.append(f"{message.queue_offset} is handled beside another")
        if not self.done >= set(range(message.queue_offset)):
            self.wrong.append(f"{message.queue_offset} is handled before its turn")
        self._in_handlers += 1
        try:
            if not await self._end(self._handling):
                raise ValueError("as scripted")
            self.done.add(message.queue_offset)
        finally:
            self._in_handlers -= 1

    async def send_anew(self, message: MessageExt, topic: str) -> None:
        """Replaces `SendBack.send_anew`."""
        if not await self._end(self._burying):
            raise RequestTimeout("as scripted", "127.0.0.1:1")
        self.done.add(message.queue_offset)

    def holds(self, queue: MessageQueue) -> bool:
        """Replaces `ConsumerLocks.holds`."""
        return self._locked

    def was_lost(self, queue: MessageQueue) -> bool:
        """Replaces `ConsumerLocks.was_lost`. No other consumer exists."""
        return False

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Replaces `ConsumerLocks.lock`."""
        self._locked = await self._end(self._locking)
        return set(queues) if self._locked else set()

    # -- events ---------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        offset = self.process_queue.next_offset
        if offset < self.length:
            self.process_queue.next_offset += 1
            self.process_queue.put([message := message_at(offset)])
            self.consumption.submit(self.process_queue, [message])

    async def rebalance(self) -> None:
        """Releases the queue and assigns it again, as if another member of the group had it meanwhile."""
        self.process_queue.dropped = True
        await self.consumption.release(self.process_queue)
        self.process_queue = ProcessQueue(QUEUE, self.process_queue.commit_offset, FlowLimits())

    async def happens(self, what: str) -> None:
        match what:
            case "pull":
                self.pull()
            case "rebalance":
                await self.rebalance()
            case "lose lock":
                self._locked = False
        await asyncio.sleep({"half a second": 0.5, "a while": A_WHILE_S}.get(what, 0.0))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Turns off error logs, because handlers fail thousands of times here."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def play(
    length: int,
    max_reconsume_times: int,
    script: list[str],
    handling: list[Outcome],
    burying: list[Outcome],
    locking: list[Outcome],
) -> None:
    async def live() -> None:
        world = World(length, max_reconsume_times, handling, burying, locking)
        for what in script:
            await world.happens(what)
        # The consumption is not stuck: the remaining messages are consumed.
        for _ in range(length):
            world.pull()
        async with asyncio.timeout(3600):
            while len(world.done) < length:
                await asyncio.sleep(A_WHILE_S)
        await world.consumption.close(60)
        assert not world.wrong

    run_in_virtual_time(live())


any_world = given(
    st.integers(1, 6),
    st.integers(0, 2),
    st.lists(happenings, max_size=25),
    st.lists(outcomes, max_size=12),
    st.lists(outcomes, max_size=6),
    st.lists(outcomes, max_size=6),
)
SLOW, FAILS = Outcome(True, 0.5), Outcome(False, 0.0)


# A message arrives in the iteration in which the first one is given up.
@example(2, 0, ["pull", "nothing", "pull"], [SLOW, SLOW, FAILS], [], [])
@example(2, 0, ["pull", "pull"], [SLOW, SLOW, FAILS], [], [])
@any_world
@settings(max_examples=250)
def test_one_at_a_time_and_in_turn(
    length: int,
    max_reconsume_times: int,
    script: list[str],
    handling: list[Outcome],
    burying: list[Outcome],
    locking: list[Outcome],
) -> None:
    play(length, max_reconsume_times, script, handling, burying, locking)


@pytest.mark.slow
@any_world
@settings(max_examples=1000)
def test_the_same_at_length(
    length: int,
    max_reconsume_times: int,
    script: list[str],
    handling: list[Outcome],
    burying: list[Outcome],
    locking: list[Outcome],
) -> None:
    play(length, max_reconsume_times, script, handling, burying, locking)
