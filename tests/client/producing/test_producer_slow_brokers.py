"""100,000 numbered messages while one of two brokers is slow or busy.

No message is lost, and the producer avoids this broker for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from numbered import Sends, restarted, send_numbered, stored, two_brokers
from wait_until import until

from gantrymq.client.producing.latency_fault import LatencyFaults, not_available_duration
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.testing.processes import ProcessCluster

COUNT = 100_000
#: A small send queue with SYNC_FLUSH: most sends get SYSTEM_BUSY.
BUSY = {"flushDiskType": "SYNC_FLUSH", "sendThreadPoolQueueCapacity": "4"}
#: Longer than the disk needs, so that no message is sent twice because of a late response. In milliseconds.
TIMEOUT_S = 30.0


class Answer(NamedTuple):
    """Result of an attempt. Times are those of `time.monotonic` in milliseconds."""

    began_ms: int
    ended_ms: int
    code: int


class Tries:
    """Records a producer's attempts. `brokers` are names by address. `faults` is the producer's fault table, if any."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.brokers = {broker.address: name for broker, name in zip(cluster.brokers, "ab", strict=True)}
        self.faults: LatencyFaults | None = None
        #: Names of the brokers to which a number was sent, in order.
        self.tried: dict[int, str] = {}
        #: Results of attempts with broker a.
        self.answers: list[Answer] = []
        #: Numbers of attempts with an excluded broker while the other one was usable.
        self.wrong: list[int] = []
        self._began: dict[int, int] = {}

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if request.code != RequestCode.SEND_MESSAGE_V2:
            return
        broker, number = self.brokers[address], int(request.body)
        self.tried[number] = self.tried.get(number, "") + broker
        self._began[number] = _now_ms()
        # The producer chose up to 50 ms ago, before the other broker's penalty may have ended.
        chosen_ms = _now_ms() - 50
        if not self.is_available(broker) and self.is_usable("b" if broker == "a" else "a", chosen_ms):
            self.wrong.append(number)

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.code == RequestCode.SEND_MESSAGE_V2 and self.brokers[address] == "a":
            self.answers.append(Answer(self._began[int(request.body)], _now_ms(), response.code))

    def is_available(self, broker: str, at_ms: int | None = None) -> bool:
        return self.faults is None or self.faults.is_available(f"broker-{broker}", at_ms or _now_ms())

    def is_usable(self, broker: str, at_ms: int) -> bool:
        """Returns true if the broker was available and does not stall at present."""
        is_stalled = self.faults is not None and self.faults.is_stalled(f"broker-{broker}", _now_ms())
        return self.is_available(broker, at_ms) and not is_stalled

    async def until_available(self, available: bool) -> None:
        await until(lambda: self.is_available("a") is available, 90)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("latency_faults", [False, True])
async def test_a_busy_brokers_messages_go_to_the_other(tmp_path: Path, latency_faults: bool) -> None:
    async with two_brokers(tmp_path) as cluster, asyncio.timeout(90):
        cluster.brokers[0] = await asyncio.to_thread(restarted, cluster, 0, **BUSY)
        sends, tries = Sends(), Tries(cluster)
        async with Producer(
            cluster.namesrv_addr, "numbers", send_latency_fault_enable=latency_faults, hooks=[tries]
        ) as producer:
            tries.faults = producer.sender.faults
            await send_numbered(producer, range(COUNT), sends, TIMEOUT_S)
        found = await stored(cluster.namesrv_addr, cluster.brokers)
    assert sends.acknowledged.keys() == found.keys() == set(range(COUNT))
    assert not sends.failed
    # Rejected messages were not stored, and the next attempt sent them to the other broker.
    assert set(found.values()) == {1}
    assert set(tries.tried.values()) == {"a", "b", "ab"}
    refused = [answer for answer in tries.answers if answer.code == ResponseCode.SYSTEM_BUSY]
    assert len(refused) == sum(tried == "ab" for tried in tries.tried.values())
    if tries.faults is None:
        assert len(refused) > COUNT // 100
        return
    # Excluded for 10 s after the last rejection, as after a send of this duration (MQFaultStrategy).
    item = tries.faults.items["broker-a"]
    assert 0 <= item.start_ms - (refused[-1].ended_ms + 10_000) < 5000
    assert not tries.wrong
    assert len(refused) < COUNT // 10


@pytest.mark.timeout(120)
async def test_a_slow_broker_is_left_alone_for_a_while(tmp_path: Path) -> None:
    """The broker stops twice for 0.7 s. A send of this duration excludes a broker for 2 s."""
    async with two_brokers(tmp_path) as cluster, asyncio.timeout(90):
        sends, tries = Sends(), Tries(cluster)

        async def stop_now_and_then() -> None:
            for after in (COUNT // 10, COUNT // 2):
                await sends.reach(after)
                await tries.until_available(True)
                os.kill(cluster.brokers[0].pid, signal.SIGSTOP)
                await asyncio.sleep(0.7)
                os.kill(cluster.brokers[0].pid, signal.SIGCONT)
                await tries.until_available(False)
            await tries.until_available(True)
            answered = len(tries.answers)
            await until(lambda: len(tries.answers) > answered, 90)

        async with Producer(cluster.namesrv_addr, "numbers", send_latency_fault_enable=True, hooks=[tries]) as producer:
            tries.faults = producer.sender.faults
            stopping = asyncio.create_task(stop_now_and_then())
            # Sends until the stops are over, and at least COUNT messages.
            numbers = itertools.takewhile(lambda number: number < COUNT or not stopping.done(), itertools.count())
            await send_numbered(producer, numbers, sends, TIMEOUT_S)
            await stopping
        found = await stored(cluster.namesrv_addr, cluster.brokers)
    assert len(sends.acknowledged) >= COUNT
    assert sends.acknowledged.keys() == found.keys() == set(range(len(found)))
    assert not sends.failed
    assert set(found.values()) == {1}
    assert not tries.wrong
    late = [answer for answer in tries.answers if answer.ended_ms - answer.began_ms >= 550]
    assert len(late) >= 2
    ends = [answer.ended_ms + not_available_duration(answer.ended_ms - answer.began_ms) for answer in late]
    assert tries.faults is not None
    assert 0 <= tries.faults.items["broker-a"].start_ms - max(ends) < 1000
