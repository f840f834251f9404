"""Light queues (`enableLmq`), as clients of a broker see them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import Peer, config
from half_range_support import end_all, prepare_many
from replicated_brokers import Replicas, copy_tables
from transaction_support import Producer
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.tables.consumer_offsets import OffsetTable
from gantrymq.errors import RequestRefused
from gantrymq.limits import LIGHT_QUEUES_OF_MESSAGE
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import MAX_FRAME_LENGTH, SerializeType
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.offset import (
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.remoting.client import RemotingClient

A, B, GROUP = "%LMQ%a", "%LMQ%b", "%LMQ%g"


async def start(directory: Path, **store_options: object) -> Broker:
    settings = config(directory)
    for name, value in {"enable_lmq": True, **store_options}.items():
        setattr(settings.store, name, value)
    broker = Broker(settings)
    await broker.start()
    return broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = await start(tmp_path / "store")
    yield broker
    await broker.stop()


async def dispatch(peer: Peer, body: bytes, *names: str, topic: str = "orders", **properties: str) -> None:
    properties = {"INNER_MULTI_DISPATCH": ",".join(names), "UNIQ_KEY": body.decode(), **properties}
    response = await peer.send(topic, body, properties=properties)
    assert response.code == ResponseCode.SUCCESS, response.remark


async def pulled(peer: Peer, topic: str, offset: int = 0, group: str = GROUP) -> list[bytes]:
    response = await peer.pull(topic, offset, group=group)
    if response.code == ResponseCode.PULL_NOT_FOUND:
        return []
    assert response.code == ResponseCode.SUCCESS, response.remark
    return [message.body for message in decode_messages(response.body)]


async def bound(peer: Peer, code: RequestCode, topic: str) -> int:
    return int((await peer.ask(code, QueueRequestHeader(topic=topic, queue_id=0))).ext_fields["offset"])


async def commit(peer: Peer, offset: int, topic: str = A, group: str = GROUP) -> int:
    header = UpdateConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=offset)
    return (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code


async def committed(peer: Peer, topic: str = A, group: str = GROUP) -> str | None:
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, set_zero_if_not_found=False
    )
    response = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return response.ext_fields["offset"] if response.code == ResponseCode.SUCCESS else None


async def test_dispatch_and_pull(peer: Peer) -> None:
    await dispatch(peer, b"one", A, B)
    await dispatch(peer, b"two", A)
    response = await peer.pull(A, 0, group=GROUP)
    [one, two] = decode_messages(response.body)
    # As in Java, a message has its own topic and queue offset.
    assert (one.topic, two.queue_offset) == ("orders", 1)
    assert two.properties["INNER_MULTI_QUEUE_OFFSET"] == "1"
    assert response.ext_fields["nextBeginOffset"] == response.ext_fields["maxOffset"] == "2"
    assert await pulled(peer, B) == [b"one"]
    assert await pulled(peer, A, 1) == [b"two"]
    assert await pulled(peer, "%LMQ%unknown") == []
    assert [await bound(peer, code, A) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)] == [0, 2]
    assert await bound(peer, RequestCode.GET_MAX_OFFSET, "%LMQ%unknown") == 0
    assert (await peer.pull(A, 0, queue_id=1, group=GROUP)).code == ResponseCode.INVALID_PARAMETER


async def test_filter_by_tags(peer: Peer) -> None:
    for number, tag in enumerate("abab"):
        await dispatch(peer, b"%d" % number, A, TAGS=tag)
    response = await peer.pull(A, 0, group=GROUP, subscription="b")
    assert [message.body for message in decode_messages(response.body)] == [b"1", b"3"]


@pytest.mark.parametrize("waits_for", [A, "orders"])
async def test_a_waiting_pull_is_answered(peer: Peer, broker: Broker, waits_for: str) -> None:
    await dispatch(peer, b"first", B)
    pull = asyncio.ensure_future(peer.pull(waits_for, 0 if waits_for == A else 1, group=GROUP, suspend_ms=15_000))
    await until(lambda: len(broker.polling) == 1)
    await dispatch(peer, b"x", A)
    [message] = decode_messages((await asyncio.wait_for(pull, 10)).body)
    assert message.body == b"x"


async def test_known_headers_are_dispatched_too(peer: Peer, broker: Broker) -> None:
    """The fast path for sends leaves messages with light queues to Python."""
    for n in range(20):
        properties = {"UNIQ_KEY": f"{n}"}
        if n % 2:
            properties["INNER_MULTI_DISPATCH"] = A
        assert (await peer.send("orders", b"%d" % n, properties=properties)).code == ResponseCode.SUCCESS
    assert await pulled(peer, A) == [b"%d" % n for n in range(1, 20, 2)]
    plain = broker.features.sending.plain
    assert plain is None or plain.known


async def test_messages_of_batches(peer: Peer, broker: Broker) -> None:
    """As in Java, the messages of a batch are not dispatched, and they can't set their offsets."""
    properties = encode_properties({"INNER_MULTI_DISPATCH": A, "INNER_MULTI_QUEUE_OFFSET": "7"})
    body = encode_batch([(0, b"%d" % n, properties) for n in range(3)])
    for _ in range(3):
        response = await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE)
        assert response.code == ResponseCode.SUCCESS, response.remark
    messages = list(decode_messages((await peer.pull("orders", 0)).body))
    assert len(messages) == 9
    assert not any("INNER_MULTI_QUEUE_OFFSET" in message.properties for message in messages)
    assert await pulled(peer, A) == []


@pytest.mark.parametrize("enabled_append_prop_crc", [False, True])
async def test_half_messages_of_batches(tmp_path: Path, enabled_append_prop_crc: bool) -> None:
    """Like the messages of other batches, they are not dispatched, whether their commit copies records or not."""
    broker = await start(tmp_path / "store", enabled_append_prop_crc=enabled_append_prop_crc)
    producer = await Producer().connect(broker.port)
    halves = await prepare_many(producer, "orders", [b"1", b"2"], {"INNER_MULTI_DISPATCH": A + ",x" * 5000})
    more = await prepare_many(producer, "orders", [b"3"], {"INNER_MULTI_DISPATCH": A})
    await end_all(producer, [halves, more])
    messages = list(decode_messages((await producer.pull("orders", 0, group=GROUP)).body))
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert not any("INNER_MULTI_DISPATCH" in message.properties for message in messages)
    assert await pulled(producer, A) == []
    await producer.client.close()
    await broker.stop()


async def test_delayed_and_transactional_messages(peer: Peer, broker: Broker) -> None:
    await dispatch(peer, b"delayed", A, DELAY="1")
    producer = await Producer().connect(broker.port)
    half = await producer.prepare("orders", b"committed", {"INNER_MULTI_DISPATCH": B})
    assert await pulled(peer, A) == await pulled(peer, B) == []
    await producer.end(half)
    response = await peer.pull(B, 0, group=GROUP, suspend_ms=15_000)
    assert [message.body for message in decode_messages(response.body)] == [b"committed"]
    response = await peer.pull(A, 0, group=GROUP, suspend_ms=15_000)
    assert [message.body for message in decode_messages(response.body)] == [b"delayed"]
    await producer.client.close()


@pytest.mark.parametrize(
    ("names", "text"),
    [("x," * LIGHT_QUEUES_OF_MESSAGE, "names 201 queues"), ("%LMQ%" + "x" * 251, "256 bytes"), ("x" * 32_000, "bytes")],
)
async def test_illegal_names(peer: Peer, broker: Broker, names: str, text: str) -> None:
    response = await peer.send("orders", b"x", properties={"INNER_MULTI_DISPATCH": names})
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert text in (response.remark or "")
    assert broker.store.max_physical_offset == 0


async def test_quota(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = await start(tmp_path / "store", enable_lmq_quota=True, max_lmq_consume_queue_num=2)
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await dispatch(peer, b"one", A, "ordinary", "other")
    for names in (f"{B},%LMQ%c", f"{A},{B},%LMQ%c"):
        response = await peer.send("orders", b"x", properties={"INNER_MULTI_DISPATCH": names, "UNIQ_KEY": "x"})
        assert response.code == ResponseCode.LMQ_QUOTA_EXCEEDED
        assert "maxLmqConsumeQueueNum=2" in (response.remark or "")
    await dispatch(peer, b"two", A, B, A)
    await broker.stop()
    broker = await start(tmp_path / "store", enable_lmq_quota=True, max_lmq_consume_queue_num=1)
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    # Queues that exist are usable with a lower limit, too.
    await dispatch(peer, b"three", A, B)
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%c", "UNIQ_KEY": "x", "DELAY": "1"}
    assert (await peer.send("orders", b"x", properties=properties)).code == ResponseCode.LMQ_QUOTA_EXCEEDED
    assert await pulled(peer, B, 1) == [b"three"]
    await broker.stop()


async def test_light_queues_are_no_topics(peer: Peer, broker: Broker) -> None:
    response = await peer.send(A, b"x")
    assert response.code == ResponseCode.NO_PERMISSION
    header = CreateTopicRequestHeader(topic=A, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6)
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_json(SubscriptionGroupConfig(GROUP)))
    assert A not in broker.topics.table.topic_config_table
    assert GROUP not in broker.groups.table.subscription_group_table
    await pulled(peer, A)
    assert A not in broker.store.topics()


async def test_offsets_of_light_groups(peer: Peer, broker: Broker, tmp_path: Path, remoting: RemotingClient) -> None:
    await dispatch(peer, b"one", A)
    assert await committed(peer) is None
    assert await commit(peer, 1) == ResponseCode.SUCCESS
    await pulled(peer, A, 1, "ordinary")
    assert await commit(peer, 1, group="ordinary") == ResponseCode.SUCCESS
    assert await committed(peer) == await committed(peer, group="ordinary") == "1"
    assert broker.offsets.queues(GROUP, A) == {0: 1}
    assert (broker.offsets.topics_of(GROUP), broker.offsets.groups_of(A)) == ({A}, {GROUP, "ordinary"})
    await broker.stop()
    table = json.loads((tmp_path / "store" / "config" / "consumerOffset.json").read_text())
    assert table["lmqOffsetTable"] == {f"{A}@{GROUP}": 1}
    assert f"{A}@{GROUP}" not in table["offsetTable"]
    assert table["offsetTable"][f"{A}@ordinary"] == {"0": 1}
    again = await start(tmp_path / "store")
    other = Peer(await remoting.connection(f"127.0.0.1:{again.port}"))
    assert await committed(other) == "1"
    assert await pulled(other, A) == [b"one"]
    again.offsets.remove_group(GROUP)
    assert await committed(other) is None
    await again.stop()


async def test_too_many_offsets(peer: Peer, broker: Broker) -> None:
    """Slaves must be able to copy all offsets in one frame."""
    await dispatch(peer, b"one", A)

    def fill() -> None:
        for n in range(MAX_FRAME_LENGTH // 200):
            broker.offsets.commit(f"%LMQ%{n:x>200}", A, 0, 1 << 62)

    with pytest.raises(RequestRefused, match="of light groups") as refused:
        fill()
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert sum(map(len, broker.offsets.in_pieces())) < MAX_FRAME_LENGTH
    first = f"%LMQ%{0:x>200}"
    assert await commit(peer, 2, group=first) == ResponseCode.SUCCESS
    another = f"%LMQ%{'y' * 200}"
    assert await commit(peer, 2, group=another) == ResponseCode.SYSTEM_BUSY
    broker.offsets.remove_group(first)
    assert await commit(peer, 2, group=another) == ResponseCode.SUCCESS


async def test_offsets_of_queues_without_messages(peer: Peer, broker: Broker) -> None:
    assert await commit(peer, 1) == ResponseCode.TOPIC_NOT_EXIST
    broker.offsets.commit(GROUP, A, 0, 1)
    assert broker.offsets.queues(GROUP, A) == {}


async def test_offsets_after_a_change_of_the_setting(tmp_path: Path) -> None:
    """Without `enableLmq`, names of light queues are ordinary ones. A change loses no offsets."""
    settings = config(tmp_path / "store")
    broker = Broker(settings)
    await broker.start()
    for queue_id, offset in ((0, 100), (1, 50), (0, 120)):
        broker.offsets.commit(GROUP, A, queue_id, offset)
    assert broker.offsets.query(GROUP, A, 0) == 120
    assert broker.offsets.queues(GROUP, A) == {0: 120, 1: 50}
    broker.offsets.clone(GROUP, GROUP, A)
    broker.offsets.clone(GROUP, "%LMQ%h", A)
    assert broker.offsets.queues("%LMQ%h", A) == broker.offsets.queues(GROUP, A) == {0: 120, 1: 50}
    await broker.stop()
    assert "lmqOffsetTable" not in offsets_file(tmp_path) or not offsets_file(tmp_path)["lmqOffsetTable"]
    for is_on in (True, False):
        settings = config(tmp_path / "store")
        settings.store.enable_lmq = is_on
        broker = Broker(settings)
        await broker.start()
        assert broker.offsets.queues(GROUP, A) == {0: 120, 1: 50}
        assert broker.offsets.query(GROUP, A, 0) == 120
        broker.offsets.commit(GROUP, B, 1, 1)
        await broker.stop()
        assert bool(offsets_file(tmp_path).get("lmqOffsetTable")) == is_on


def offsets_file(directory: Path) -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = json.loads((directory / "store/config/consumerOffset.json").read_text())
    return table


async def test_clone_offsets_of_light_groups(peer: Peer, broker: Broker) -> None:
    await dispatch(peer, b"one", A)
    broker.offsets.commit(GROUP, A, 0, 1)
    for group in ("%LMQ%h", "ordinary"):
        broker.offsets.clone(GROUP, group, A)
        assert broker.offsets.queues(group, A) == {0: 1}


@pytest.mark.parametrize("has_light_queues", [False, True])
async def test_copy_offsets_of_a_master_with_another_setting(tmp_path: Path, has_light_queues: bool) -> None:
    settings = config(tmp_path / "store")
    settings.store.enable_lmq = has_light_queues
    broker = Broker(settings)
    await broker.start()
    key, other = f"{A}@{GROUP}", f"{B}@x@{GROUP}"
    if has_light_queues:
        table = OffsetTable(offset_table={key: {0: 5, 1: 6}, other: {0: 7}})
    else:
        table = OffsetTable(offset_table={key: {1: 6}}, lmq_offset_table={key: 5, other: 7})
    broker.offsets.copy(table)
    assert broker.offsets.queues(GROUP, A) == {0: 5, 1: 6}
    assert broker.offsets.query(GROUP, f"{B}@x", 0) == 7
    await broker.stop()


async def test_long_names_are_unknown(peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that requests can keep in memory has a limit, as in messages."""
    name = "%LMQ%" + "x" * 251
    assert (await peer.pull(name, 0, group=GROUP)).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await peer.pull(A, 0, group=name)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert await commit(peer, 0, name) == ResponseCode.TOPIC_NOT_EXIST
    assert await commit(peer, 0, group=name) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert await pulled(peer, name[:-1], group=name[:-1]) == []
    # The store caches the light queues that it finds.
    monkeypatch.setattr(broker.context.store, "find_queue", lambda topic, queue_id: pytest.fail(topic))
    header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=name, queue_id=0)
    assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)).code == ResponseCode.QUERY_NOT_FOUND


async def test_light_queues_are_counted_together(peer: Peer, broker: Broker) -> None:
    """The memory of statistics does not grow with the number of light queues and groups."""
    broker.deliveries.record_lags(lambda queue, offset: queue.max_offset - offset)
    await dispatch(peer, b"one", *(f"%LMQ%{n}" for n in range(50)))
    for n in range(50):
        assert await pulled(peer, f"%LMQ%{n}", group=f"%LMQ%g{n}") == [b"one"]
    await pulled(peer, A)
    await pulled(peer, "%LMQ%1", group="ordinary")
    counts = {key: delivery.messages for key, delivery in broker.deliveries.table.items()}
    assert counts == {("%LMQ%", "%LMQ%"): 50, ("%LMQ%", "ordinary"): 1}
    assert not broker.deliveries.lags
    broker.context.stats.begin_sample()
    assert broker.context.stats.take(100)["GROUP_GET_NUMS"] == {"%LMQ%@%LMQ%": 50, "%LMQ%@ordinary": 1}


async def test_slaves(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    replicas.store_options["enable_lmq"] = True
    async with replicas:
        peer = await replicas.peer()
        await dispatch(peer, b"one", A, B)
        assert await commit(peer, 1) == ResponseCode.SUCCESS
        await replicas.caught_up()
        await copy_tables(replicas.slave)
        slave = await replicas.peer(1)
        assert await pulled(slave, A) == await pulled(slave, B) == [b"one"]
        assert await committed(slave) == "1"
        await dispatch(peer, b"two", A)
        await replicas.caught_up()
        assert await pulled(slave, A, 1) == [b"two"]


async def test_a_database_that_becomes_unwritable(peer: Peer, broker: Broker, tmp_path: Path) -> None:
    """Messages are accepted while the units can't be committed, and the units are committed later."""
    await dispatch(peer, b"one", A)
    connection = sqlite3.connect(tmp_path / "store" / "lightqueue" / "units.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    await dispatch(peer, b"two", A)
    assert await pulled(peer, A, 1) == [b"two"]
    connection.execute("COMMIT")
    await dispatch(peer, b"three", A)
    await until(lambda: connection.execute("SELECT count(*) FROM unit").fetchone()[0] == 3)
    connection.close()
    assert await pulled(peer, A) == [b"one", b"two", b"three"]


async def test_off_by_default(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"), SerializeType.JSON)
    await dispatch(peer, b"one", A)
    assert (await peer.pull(A, 0)).code == ResponseCode.TOPIC_NOT_EXIST
    await broker.stop()
