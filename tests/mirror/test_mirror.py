"""Tests of Mirror between two embedded clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from constants import change_constant
from mirror_support import bodies, both, commit, committed, create, messages, mirror_once, send, send_to
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import ClientError, GantryError
from gantrymq.mirror import Mirror, MirrorOptions
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.lite_topic import light_queue_of
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.properties import (
    MIRROR_ORIGIN,
    MIRROR_PATH,
    PRIORITY,
    PRODUCER_GROUP,
    REAL_TOPIC,
    TRANSACTION_PREPARED,
)
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, broker_cluster_name="east") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="west") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def single() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="south") as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def queue(topic: str) -> MessageQueue:
    return MessageQueue(topic, "broker-a", 0)


async def test_copies_messages_and_topics(source: EmbeddedCluster, target: EmbeddedCluster, topic: str) -> None:
    await create(source, topic, 3)
    async with Producer(source.name_server, "test", compress_over=1000) as producer:
        sent = await producer.send(
            Message(topic, b"one", tags="new", keys="k-1", properties={"colour": "red"}, delay_level=1)
        )
        await producer.send(Message(topic, b"x" * 5000))
    async with AdminClient(source.name_server) as admin:

        async def both_are_stored() -> bool:
            table = (await admin.topic_stats(topic)).offset_table
            return sum(offset.max_offset for offset in table.values()) == 2

        # The delayed message is copied after its delivery.
        await until(both_are_stored)
    progress = await mirror_once(source, target, topic[:-1] + "*")
    assert (progress.copied, progress.lag, progress.failed) == (2, 0, [])
    copies = {message.body: message for message in await messages(target, topic)}
    assert copies.keys() == {b"one", b"x" * 5000}
    copy = copies[b"one"]
    assert (copy.tags, copy.keys, copy.properties["colour"], copy.msg_id) == ("new", ["k-1"], "red", sent.msg_id)
    assert copy.properties[MIRROR_ORIGIN].startswith("east/broker-")
    assert copy.properties[MIRROR_PATH] == "east"
    async with AdminClient(target.name_server) as admin:
        config = await admin.topic_config(target.brokers[0], topic)
        assert (config.read_queue_nums, config.write_queue_nums) == (3, 3)


async def test_keeps_queues_and_their_order(source: EmbeddedCluster, target: EmbeddedCluster, topic: str) -> None:
    await create(source, topic)
    for key in ("a", "b", "c", "d"):
        await send(source, topic, [f"{key}{i:03}".encode() for i in range(20)], key)
    await mirror_once(source, target, topic)
    found = await messages(target, topic)
    assert len(found) == 80
    for start in (b"a", b"b", b"c", b"d"):
        of_key = [message for message in found if message.body.startswith(start)]
        assert [message.body for message in of_key] == sorted(message.body for message in of_key)
        assert len({message.queue_id for message in of_key}) == 1
    sent = {message.body: message.queue_id for message in await messages(source, topic)}
    assert {message.body: message.queue_id for message in found} == sent


async def test_a_second_run_copies_only_new_messages(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str
) -> None:
    await create(source, topic)
    await send(source, topic, [b"%d" % i for i in range(20)])
    assert (await mirror_once(source, target, topic)).copied == 20
    await send(source, topic, [b"new"])
    assert (await mirror_once(source, target, topic)).copied == 1
    assert len(await messages(target, topic)) == 21


async def test_without_its_state_it_finds_its_copies(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str
) -> None:
    await create(source, topic)
    await send(source, topic, [b"%d" % i for i in range(20)])
    await mirror_once(source, target, topic)
    # Messages of other producers come after the copies.
    await send(target, topic, [b"other %d" % i for i in range(20)])
    assert (await mirror_once(source, target, topic, state_topic="another_state")).copied == 0
    assert len(await messages(target, topic)) == 40


async def test_continuous_mirror_stops_and_stores_positions(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str
) -> None:
    await create(source, topic)
    stop = asyncio.Event()
    async with both(source, target) as sides:
        mirror = Mirror(*sides, MirrorOptions(topics=[topic]))
        task = asyncio.create_task(mirror.run(stop))
        await send(source, topic, [b"one", b"two"])
        await until(lambda: mirror.progress.copied == 2)
        stop.set()
        assert (await task).copied == 2
    assert (await mirror_once(source, target, topic)).copied == 0


async def test_unchanged_positions_are_stored_again(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the state of a mirror whose topics are idle would expire."""
    change_constant(monkeypatch, "mirror.STATE_INTERVAL_S", 0.05)
    change_constant(monkeypatch, "mirror.STATE_REFRESH_S", 0.1)
    await create(single, topic, 1)
    stop = asyncio.Event()
    async with both(single, target) as sides:
        state_topic = f"{topic}_state"
        mirror = Mirror(*sides, MirrorOptions(topics=[topic], state_topic=state_topic))
        task = asyncio.create_task(mirror.run(stop))

        async def states() -> int:
            with suppress(GantryError):
                return len(await messages(target, state_topic))
            return 0

        async def several() -> bool:
            return await states() >= 5

        await until(several)
        stop.set()
        assert (await task).copied == 0


async def test_both_directions_make_no_loop(source: EmbeddedCluster, target: EmbeddedCluster, topic: str) -> None:
    await create(source, topic)
    await send(source, topic, [b"east"])
    await mirror_once(source, target, topic)
    await send(target, topic, [b"west"])
    back = await mirror_once(target, source, topic)
    assert (back.copied, back.left_out) == (1, 1)
    forth = await mirror_once(source, target, topic)
    assert (forth.copied, forth.left_out) == (0, 1)
    assert bodies(await messages(source, topic)) == bodies(await messages(target, topic)) == [b"east", b"west"]


async def test_renames_topics(source: EmbeddedCluster, target: EmbeddedCluster, topic: str) -> None:
    await create(source, topic)
    await send(source, topic, [b"one"])
    await mirror_once(source, target, topic, rename="east-")
    assert bodies(await messages(target, f"east-{topic}")) == [b"one"]


async def test_another_name_starts_at_the_first_message(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str
) -> None:
    await create(source, topic, 1)
    await send(source, topic, [b"one", b"two"])
    await mirror_once(source, target, topic)
    # The positions of the first run are in the same state topic.
    await mirror_once(source, target, topic, rename="other-")
    assert bodies(await messages(target, f"other-{topic}")) == [b"one", b"two"]


async def test_two_sources_can_share_a_state_topic(
    source: EmbeddedCluster, single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1)
    await create(single, topic, 1)
    await send_to(source, queue, 3)
    await send_to(single, queue, 2)
    assert (await mirror_once(source, target, topic)).copied == 3
    assert (await mirror_once(single, target, topic)).copied == 2
    assert (await mirror_once(source, target, topic)).copied == 0


class Commits:
    """Commits each transaction."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def test_properties_of_brokers_are_removed(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1, **{"message.type": "PRIORITY"})
    async with TransactionProducer(source.name_server, "shop", Commits()) as producer:
        await producer.send_in_transaction(Message(topic, b"transaction"))
        await producer.send(Message(topic, b"priority", priority=0))

    async def both_are_stored() -> bool:
        return len(await messages(source, topic)) == 2

    await until(both_are_stored)
    await mirror_once(source, target, topic)
    copies = {message.body: message.properties for message in await messages(target, topic)}
    assert copies.keys() == {b"transaction", b"priority"}
    assert copies[b"transaction"].keys().isdisjoint({TRANSACTION_PREPARED, PRODUCER_GROUP, REAL_TOPIC})
    assert copies[b"priority"][PRIORITY] == "0"
    async with AdminClient(target.name_server) as admin:
        config = await admin.topic_config(target.brokers[0], topic)
        assert config.attributes["message.type"] == "PRIORITY"


async def test_copies_are_in_their_lite_topics(topic: str) -> None:
    with (
        EmbeddedCluster(broker_cluster_name="east", enable_lmq=True) as source,
        EmbeddedCluster(broker_cluster_name="west", enable_lmq=True) as target,
    ):
        await create(source, topic, 1, **{"message.type": "LITE"})
        async with Producer(source.name_server, "test") as producer:
            for body in (b"1", b"2", b"3"):
                await producer.send(Message(topic, body, lite_topic="a"))
        await mirror_once(source, target, topic, rename="old-")
        async with both(source, target) as (_, side):
            address = next(iter((await side.masters()).values()))
            end = await transport_of(side.admin).api.max_offset(address, light_queue_of(f"old-{topic}", "a"), 0, 5000)
        assert end == 3


async def test_copies_have_no_deduplication_id(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    """The source can have an id twice, a window apart. The copies arrive together, and both are stored."""
    await create(source, topic, 1)
    async with Producer(source.name_server, "test") as producer:
        for body in (b"1", b"2"):
            await producer.send(Message(topic, body, deduplicate_id="a"))
    await create(target, topic, 1, **{"deduplication.window.ms": "60000"})
    await mirror_once(source, target, topic)
    copies = await messages(target, topic)
    assert (bodies(copies), [copy.deduplicate_id for copy in copies]) == ([b"1", b"2"], [None, None])


async def test_a_refused_message_is_named_and_other_queues_continue(source: EmbeddedCluster, topic: str) -> None:
    with EmbeddedCluster(broker_cluster_name="west", max_message_size=10_000) as target:
        await create(source, topic, 1)
        await create(source, "small", 1)
        async with Producer(source.name_server, "test", compress_over=1 << 20) as producer:
            for body in (b"first", b"x" * 20_000, b"last"):
                await producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 0))
            await producer.send(Message(topic, b"other"), queue=MessageQueue(topic, "broker-b", 0))
            await producer.send(Message("small", b"small"))
        progress = await mirror_once(source, target, topic, "small")
        assert bodies(await messages(target, topic)) == [b"first", b"other"]
        assert bodies(await messages(target, "small")) == [b"small"]
        [failed] = progress.failed
        assert failed[:3] == (topic, "broker-a", 0)
        assert f"offset 1 of queue 0 of {topic} on broker-a" in failed.error


async def test_system_topics_match_no_pattern(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    with pytest.raises(ClientError, match="no topic of the source"):
        await mirror_once(source, target, "*_SYS_*", "%*")


async def test_one_cluster_is_refused(source: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(ClientError, match="the same cluster"):
        await mirror_once(source, source, topic)


async def test_group_offsets_are_translated(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(single, topic, 1)
    await create(target, topic, 1)
    # Other messages on the target make offsets of source and target differ.
    await send_to(target, queue, 5)
    await send_to(single, queue, 50)
    await commit(single, "billing", {queue: 20})
    await commit(single, "other", {queue: 20})
    progress = await mirror_once(single, target, topic, groups=["bill*"])
    assert (progress.groups, progress.failed_groups) == (1, [])
    assert await committed(target, "billing", queue) == 25
    assert await committed(target, "other", queue) is None


async def test_offsets_of_an_earlier_run_are_found_in_the_target(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(single, topic, 1)
    await create(target, topic, 1)
    await send_to(single, queue, 30)
    await mirror_once(single, target, topic)
    # The next copies come after messages of another producer.
    await send_to(target, queue, 100)
    await send_to(single, queue, 30)
    await commit(single, "billing", {queue: 12})
    # The second run has no map of the first run's copies.
    await mirror_once(single, target, topic, groups=["*"])
    assert await committed(target, "billing", queue) == 12
    await commit(single, "billing", {queue: 60})
    await mirror_once(single, target, topic, groups=["*"])
    assert await committed(target, "billing", queue) == 160


async def test_copies_that_are_sent_again_do_not_mislead_a_search(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(single, topic, 1)
    await send_to(single, queue, 20)
    await mirror_once(single, target, topic)
    # As by a tool of Java that sends dead-letter messages again: with the property of the first copy.
    again = (await messages(target, topic))[0].properties[MIRROR_ORIGIN]
    async with Producer(target.name_server, "test") as producer:
        for _ in range(40):
            await producer.send(Message(topic, b"0", properties={MIRROR_ORIGIN: again}), queue=queue)
    await send_to(single, queue, 20)
    assert (await mirror_once(single, target, topic)).copied == 20
    await commit(single, "billing", {queue: 15})
    # A run without new messages has no map of copies.
    await mirror_once(single, target, topic, groups=["*"])
    assert await committed(target, "billing", queue) == 15
    # For a later offset, the search starts at the position that the first run has stored.
    await commit(single, "billing", {queue: 30})
    await mirror_once(single, target, topic, groups=["*"])
    assert await committed(target, "billing", queue) == 70


async def test_offsets_on_the_target_never_move_back(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(single, topic, 1)
    await create(target, topic, 1)
    await send_to(single, queue, 10)
    await commit(single, "billing", {queue: 3})
    await mirror_once(single, target, topic)
    await commit(target, "billing", {queue: 8})
    assert (await mirror_once(single, target, topic, groups=["*"])).groups == 0
    assert await committed(target, "billing", queue) == 8


async def test_a_group_with_a_consumer_on_the_target_is_left_out(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(single, topic, 1)
    await create(target, topic, 1)
    await send_to(single, queue, 10)
    await commit(single, "billing", {queue: 3})
    consumer = LitePullConsumer(target.name_server, "billing", auto_commit=False)
    consumer.subscribe(topic)
    async with consumer, AdminClient(target.name_server) as admin:

        async def is_connected() -> bool:
            with suppress(GantryError):
                return bool((await admin.consumer_connection("billing")).connection_set)
            return False

        await until(is_connected)
        assert (await mirror_once(single, target, topic, groups=["*"])).groups == 0
    assert await committed(target, "billing", queue) is None


async def test_a_rate_limit_of_the_target_is_no_failure(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await create(single, topic, 1)
    await create(target, topic, 1, **{"rate.limit.messages": "40"})
    await send_to(single, queue, 40)
    await mirror_once(single, target, topic)
    await send_to(single, queue, 1)
    # The batch of the first run has overdrawn the limit for about a second.
    progress = await mirror_once(single, target, topic)
    assert (progress.copied, progress.failed) == (1, [])
    assert "next attempt" not in caplog.text


async def test_a_group_is_created_with_its_attributes(
    single: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    group = f"{topic}-limited"
    await create(single, topic, 1)
    await send_to(single, queue, 3)
    async with AdminClient(single.name_server) as admin:
        config = SubscriptionGroupConfig(group, attributes={"+rate.limit.messages": "1000"})
        await admin.create_group(config, broker=single.brokers[0])
    await commit(single, group, {queue: 2})
    progress = await mirror_once(single, target, topic, groups=[group])
    assert (progress.groups, progress.failed_groups) == (1, [])
    async with AdminClient(target.name_server) as admin:
        found = [await admin.group_config(broker, group) for broker in target.brokers]
    assert {"rate.limit.messages": "1000"} in [one.attributes for one in found if one is not None]
