"""What a broker answers to sends, and what it stores."""

from __future__ import annotations

import asyncio

import pytest
from broker_support import Peer

from gantrymq.broker.broker import Broker
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message import MessageExt, decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.remoting.client import RemotingClient


async def pulled(peer: Peer, topic: str, queue_id: int = 0) -> list[MessageExt]:
    response = await peer.pull(topic, queue_id=queue_id)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return list(decode_messages(response.body))


async def test_message_is_stored_as_it_was_sent(peer: Peer, broker: Broker) -> None:
    sent = {"UNIQ_KEY": "7F000001", "TAGS": "red", "KEYS": "a b", "colour": "röt"}
    response = await peer.send("orders", b"hello", queue_id=3, properties=sent, flag=7, reconsume_times=2)
    assert response.code == ResponseCode.SUCCESS
    assert response.ext_fields["queueId"] == "3"
    assert response.ext_fields["queueOffset"] == "0"
    address, offset = decode_offset_message_id(response.ext_fields["msgId"])
    [message] = await pulled(peer, "orders", 3)
    assert (address, offset) == (broker.address, message.commit_log_offset)
    assert (message.topic, message.body, message.flag, message.reconsume_times) == ("orders", b"hello", 7, 2)
    assert message.properties == sent | {"CLUSTER": "DefaultCluster"}
    assert message.msg_id == "7F000001"
    assert message.born_host.startswith("127.0.0.1:")


async def test_message_without_properties_gets_a_unique_key(peer: Peer) -> None:
    await peer.send("orders", b"hello", properties=None)
    [message] = await pulled(peer, "orders")
    assert len(message.properties["UNIQ_KEY"]) == 32


async def test_cluster_property_of_another_cluster_is_replaced(peer: Peer) -> None:
    await peer.send("orders", b"hello", properties={"CLUSTER": "far", "a": "b"})
    [message] = await pulled(peer, "orders")
    assert message.properties["CLUSTER"] == "DefaultCluster"
    assert message.properties["a"] == "b"


async def test_queue_offsets_count_up_per_queue(peer: Peer) -> None:
    answers = [await peer.send("orders", b"x", queue_id=q) for q in (0, 1, 0, 1, 0)]
    assert [a.ext_fields["queueOffset"] for a in answers] == ["0", "0", "1", "1", "2"]


async def test_long_header_names(peer: Peer) -> None:
    fields = {
        "producerGroup": "g",
        "topic": "orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "TAGS\x01t\x02",
    }
    response = await peer.ask(RequestCode.SEND_MESSAGE, body=b"old", fields=fields)
    assert response.code == ResponseCode.SUCCESS
    [message] = await pulled(peer, "orders", 1)
    assert (message.body, message.tags, message.born_timestamp) == (b"old", "t", 1700000000000)


async def test_batch_is_stored_as_single_messages(peer: Peer) -> None:
    body = encode_batch([(i, b"body-%d" % i, encode_properties({"UNIQ_KEY": f"k{i}", "TAGS": "t"})) for i in range(3)])
    response = await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE, properties={"WAIT": "true"})
    assert response.code == ResponseCode.SUCCESS
    assert len(response.ext_fields["msgId"].split(",")) == 3
    messages = await pulled(peer, "orders")
    assert [(m.flag, m.body, m.queue_offset, m.msg_id) for m in messages] == [
        (i, b"body-%d" % i, i, f"k{i}") for i in range(3)
    ]
    # Nothing is added, and what the header says isn't theirs: `MessageExtEncoder.encode`.
    assert [m.properties for m in messages] == [{"UNIQ_KEY": f"k{i}", "TAGS": "t"} for i in range(3)]


@pytest.mark.parametrize(
    ("properties", "count", "changed"),
    [
        ({"p": "x" * 40_000}, 3, {}),
        ({"DELAY": "3"}, 3, {}),
        ({}, 3, {"sys_flag": TRANSACTION_PREPARED}),
        ({}, 32_768, {}),
        ({}, 0, {}),
    ],
)
async def test_batch_that_is_illegal(
    peer: Peer, properties: dict[str, str], count: int, changed: dict[str, int]
) -> None:
    await peer.send("orders", b"first")
    body = encode_batch([(0, b"", b"")] * count)
    response = await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE, properties=properties, **changed)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert [message.body for message in await pulled(peer, "orders")] == [b"first"]


async def test_others_are_served_while_a_large_batch_is_taken_in(
    peer: Peer, broker: Broker, remoting: RemotingClient
) -> None:
    """Its messages are neighbours nevertheless, whoever else sends to the queue."""
    await peer.send("orders", b"first")
    other = Peer(await remoting.connection(f"localhost:{broker.port}"))
    body = encode_batch([(0, b"%d" % i, b"TAGS\x01t\x02") for i in range(32_767)])
    batch = asyncio.create_task(peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE))
    await asyncio.sleep(0)
    while not batch.done():
        assert (await other.send("orders", b"other")).code == ResponseCode.SUCCESS
    answer = await batch
    assert answer.code == ResponseCode.SUCCESS
    ids, first = answer.ext_fields["msgId"].split(","), int(answer.ext_fields["queueOffset"])
    assert len(ids) == 32_767
    assert first > 1, "nobody was served meanwhile"
    queue = broker.store.find_queue("orders", 0)
    assert queue is not None
    for n in (0, 1, 12_345, 32_766):
        record = broker.store.read_record(decode_offset_message_id(ids[n])[1])
        assert (record.body, record.queue_offset, record.topic) == (b"%d" % n, first + n, b"orders")
        assert queue.unit(first + n) == (record.physical_offset, record.size, tags_code(b"t"))


async def test_broken_batch_leaves_nothing(peer: Peer) -> None:
    body = encode_batch([(0, b"good", b""), (0, b"bad", b"")])[:-3]
    response = await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "batch" in (response.remark or "")
    assert (await peer.pull("orders")).code == ResponseCode.PULL_NOT_FOUND


async def test_unknown_topic_is_created_after_the_default_topic(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"x", default_topic_queue_nums=100)
    topic = broker.topics.get("orders")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (8, 8, 6)


@pytest.mark.parametrize(
    ("topic", "changed", "code"),
    [
        ("bad topic!", {}, ResponseCode.INVALID_PARAMETER),
        ("", {}, ResponseCode.SYSTEM_ERROR),
        ("t" * 128, {}, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION),
        ("orders", {"default_topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ("orders", {"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_refused(peer: Peer, topic: str, changed: dict[str, object], code: int) -> None:
    response = await peer.send(topic, b"x", **changed)  # type: ignore[arg-type]
    assert response.code in (code, ResponseCode.INVALID_PARAMETER)
    assert response.remark
    assert (await peer.send("others", b"x")).code == ResponseCode.SUCCESS


async def test_message_over_4_mib_is_illegal(peer: Peer) -> None:
    response = await peer.send("orders", bytes(4 * 1024 * 1024 + 1))
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await peer.send("orders", b"x")).ext_fields["queueOffset"] == "0"


async def test_properties_over_32767_bytes_are_illegal(peer: Peer) -> None:
    response = await peer.send("orders", b"x", properties={"a": "b" * 32760})
    assert response.code == ResponseCode.MESSAGE_ILLEGAL


async def test_topic_without_write_permission(peer: Peer) -> None:
    header = CreateTopicRequestHeader(
        topic="readonly", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=4
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
    assert (await peer.send("readonly", b"x")).code == ResponseCode.NO_PERMISSION


async def test_missing_header_field_is_named(peer: Peer) -> None:
    response = await peer.ask(RequestCode.SEND_MESSAGE, body=b"x", fields={"topic": "orders"})
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "producerGroup" in (response.remark or "")
