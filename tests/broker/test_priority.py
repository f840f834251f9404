"""Priority messages: the broker selects the queue by priority, and a pop reads the highest priority first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import config
from pop_support import PopPeer
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.kernels import native
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.remoting.client import RemotingClient

TOPIC, GROUP = "urgent", "poppers"
PRIORITY = "_SYS_MSG_PRIORITY_"


async def started(directory: Path, *, factor: str | None = None, **changed: object) -> Broker:
    broker = Broker(config(directory, **changed))
    await broker.start()
    broker.topics.put(TopicConfig(TOPIC, 4, 4, attributes={"message.type": "PRIORITY"}))
    attributes = {} if factor is None else {"priority.factor": factor}
    broker.groups.put([SubscriptionGroupConfig(GROUP, attributes=attributes)])
    return broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = await started(tmp_path / "store")
    yield broker
    await broker.stop()


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    return await peer_of(broker, remoting)


async def peer_of(broker: Broker, remoting: RemotingClient) -> PopPeer:
    return PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))


async def send(peer: PopPeer, priority: str, **properties: str) -> int:
    """Sends a message to queue 1, and returns the queue id in the response."""
    response = await peer.send(TOPIC, priority.encode(), queue_id=1, properties={PRIORITY: priority} | properties)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return int(response.ext_fields["queueId"])


async def pop_one_by_one(peer: PopPeer, count: int) -> list[str]:
    bodies = []
    for _ in range(count):
        [message] = await peer.messages(TOPIC, group=GROUP, count=1)
        bodies.append(message.body.decode())
    return bodies


async def test_the_queue_is_the_priority(peer: PopPeer) -> None:
    assert [await send(peer, priority) for priority in ("0", "2", "3", "4", "2147483647", "+1")] == [0, 2, 3, 3, 3, 1]
    # What is no priority changes nothing.
    assert [await send(peer, priority) for priority in ("-1", "2147483648", "high", "")] == [1] * 4


@pytest.mark.parametrize("properties", [{"__SHARDINGKEY": "one"}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "1"}], ids=str)
async def test_other_types_lose_the_priority(peer: PopPeer, broker: Broker, properties: dict[str, str]) -> None:
    assert await send(peer, "3", **properties) == 1
    [message] = await peer.messages(TOPIC, group=GROUP, count=1, poll_ms=10_000)
    assert message.message.queue_id == 1
    assert PRIORITY not in message.message.properties


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
async def test_native_code_leaves_priorities_to_python(peer: PopPeer, broker: Broker) -> None:
    """The header of a message with a priority is the same as that of others."""
    for _ in range(3):
        assert (await peer.send(TOPIC, b"plain", queue_id=1)).ext_fields["queueId"] == "1"
    assert await send(peer, "3") == 3
    assert (await peer.send(TOPIC, b"plain", queue_id=1)).ext_fields["queueId"] == "1"


async def test_the_highest_priority_is_popped_first(peer: PopPeer) -> None:
    for priority in ("1", "3", "0", "2", "9"):
        await send(peer, priority)
    assert await pop_one_by_one(peer, 5) == ["3", "9", "2", "1", "0"]


async def test_the_lowest_number_first(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = await started(tmp_path / "store", priority_order_asc=False)
    try:
        peer = await peer_of(broker, remoting)
        for priority in ("1", "3", "0", "2"):
            await send(peer, priority)
        assert await pop_one_by_one(peer, 4) == ["0", "1", "2", "3"]
    finally:
        await broker.stop()


async def test_without_a_factor_pops_begin_anywhere(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = await started(tmp_path / "store", factor="0")
    try:
        peer = await peer_of(broker, remoting)
        firsts = set()
        # Each pop begins at a random queue: 100 times the highest one has a probability of 4^-100.
        for _ in range(100):
            for priority in ("0", "1", "2", "3"):
                await send(peer, priority)
            [first, *_] = await pop_one_by_one(peer, 4)
            firsts.add(first)
            if len(firsts) > 1:
                break
        assert len(firsts) > 1
    finally:
        await broker.stop()


@pytest.mark.parametrize(("probability", "expected"), [(0, [b"new", b"3"]), (100, [b"3", b"new"])])
async def test_redelivered_messages(
    tmp_path: Path, remoting: RemotingClient, probability: int, expected: list[bytes]
) -> None:
    """They come last by default, and first with `popFromRetryProbabilityForPriority=100`."""
    broker = await started(
        tmp_path / "store",
        pop_from_retry_probability=100 - probability,
        pop_from_retry_probability_for_priority=probability,
    )
    try:
        peer = await peer_of(broker, remoting)
        await send(peer, "3")
        assert await peer.messages(TOPIC, group=GROUP, count=1, invisible_ms=100)
        retry = broker.store.queue(pop_retry_topic(TOPIC, GROUP), 0)
        await until(lambda: retry.max_offset, timeout_s=30)
        await peer.send(TOPIC, b"new", properties={PRIORITY: "0"})
        popped = [(await peer.messages(TOPIC, group=GROUP, count=1))[0].body for _ in range(2)]
        assert popped == expected
    finally:
        await broker.stop()


async def test_redelivered_messages_keep_their_priority(tmp_path: Path, remoting: RemotingClient) -> None:
    """With `useSeparateRetryQueue`, the retry topic has a queue for each one of the topic."""
    broker = await started(tmp_path / "store", use_separate_retry_queue=True)
    try:
        peer = await peer_of(broker, remoting)
        for priority in ("1", "3", "0", "2"):
            await send(peer, priority)
        assert len(await peer.messages(TOPIC, group=GROUP, count=4, invisible_ms=100)) == 4
        retry = pop_retry_topic(TOPIC, GROUP)
        queues = [broker.store.queue(retry, queue_id) for queue_id in range(4)]
        await until(lambda: [queue.max_offset for queue in queues] == [1, 1, 1, 1], timeout_s=30)
        retry_config = broker.topics.get(retry)
        assert retry_config is not None
        assert (retry_config.read_queue_nums, retry_config.write_queue_nums) == (4, 4)
        assert await pop_one_by_one(peer, 4) == ["3", "2", "1", "0"]
    finally:
        await broker.stop()


@pytest.mark.parametrize("old_count", [1, 8])
async def test_a_retry_topic_gets_the_queues_of_its_topic(
    tmp_path: Path, remoting: RemotingClient, old_count: int
) -> None:
    broker = await started(tmp_path / "store", use_separate_retry_queue=True)
    try:
        peer = await peer_of(broker, remoting)
        retry = pop_retry_topic(TOPIC, GROUP)
        broker.topics.put(TopicConfig(retry, old_count, old_count))
        await send(peer, "3")
        assert await peer.messages(TOPIC, group=GROUP, count=1, invisible_ms=100)
        # The redelivered message wakes the pop.
        [again] = await peer.messages(TOPIC, group=GROUP, count=1, poll_ms=20_000)
        assert again.message.queue_id == 3
        assert broker.store.queue(retry, 3).max_offset == 1
        retry_config = broker.topics.get(retry)
        assert retry_config is not None
        # Queues are only added: others can have messages that nobody has read.
        assert retry_config.write_queue_nums == retry_config.read_queue_nums == max(4, old_count)
    finally:
        await broker.stop()
