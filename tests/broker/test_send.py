"""Responses of a broker to sends, and the stored messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_support import Peer, config, set_preallocation_wait, set_request_slice

from gantrymq.broker.append import preallocation_waits as preallocation_waits
from gantrymq.broker.broker import Broker
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import SerializeType
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
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert message.properties == sent | added
    assert message.msg_id == "7F000001"
    assert message.born_host.startswith("127.0.0.1:")


async def test_message_without_properties_gets_a_unique_key(peer: Peer) -> None:
    await peer.send("orders", b"hello", properties=None)
    [message] = await pulled(peer, "orders")
    assert len(message.properties["UNIQ_KEY"]) == 32


@pytest.mark.parametrize(
    "more", [{"CLUSTER": "far"}, {"MSG_REGION": "far"}, {"TRACE_ON": "false"}, {"MY_TRACE_ON": "1"}]
)
async def test_properties_of_another_broker_are_replaced(peer: Peer, more: dict[str, str]) -> None:
    await peer.send("orders", b"hello", properties={"UNIQ_KEY": "1"} | more | {"a": "b"})
    [message] = await pulled(peer, "orders")
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert message.properties == more | {"UNIQ_KEY": "1", "a": "b"} | added


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("unique_id", ["7F0000010000000000000000000000A1", 'a"\\b', "日本"])
async def test_the_unique_id_is_the_transaction_id(peer: Peer, serialize_type: SerializeType, unique_id: str) -> None:
    """The response has the unique key as `transactionId`, as in Java's `SendMessageProcessor`.

    This holds for the first sends, which Python handles, and for later ones, which native code handles.
    """
    peer.serialize_type = serialize_type
    for number in range(20):
        key = f"{unique_id}{number}"
        response = await peer.send("orders", b"x", properties={"MY_UNIQ_KEY": "other", "UNIQ_KEY": key})
        assert (response.serialize_type, response.ext_fields["transactionId"]) == (serialize_type, key)
    delayed = await peer.send("orders", b"x", properties={"UNIQ_KEY": unique_id, "DELAY": "1"})
    assert delayed.ext_fields["transactionId"] == unique_id
    assert len((await peer.send("orders", b"x")).ext_fields["transactionId"]) == 32


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
    # Nothing is added to the properties, and those of the header do not apply: `MessageExtEncoder.encode`.
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
    peer: Peer, broker: Broker, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients are served while a large batch is stored.

    The messages of the batch are adjacent nevertheless, whatever other clients send to the queue.
    """
    # One step in each event-loop iteration: a fast machine could otherwise store the batch in one time slice.
    set_request_slice(monkeypatch, 0.0)
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


async def test_only_the_property_itself_says_whether_to_wait(tmp_path: Path, remoting: RemotingClient) -> None:
    """With `SYNC_FLUSH`, the response comes when the message is on disk, except with `WAIT=false`."""
    settings = config(tmp_path / "store")
    settings.store.flush_disk_type = "SYNC_FLUSH"
    broker = Broker(settings)
    await broker.start()
    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        await peer.send("orders", b"first")
        waited = []
        when_flushed = broker.store.when_flushed
        broker.store.when_flushed = lambda *args: (waited.append(args), when_flushed(*args))  # type: ignore[method-assign]
        for properties, waits in [
            ({}, True),
            ({"WAIT": "true"}, True),
            ({"AWAIT": "false"}, True),
            ({"WAIT": "falsetto"}, False),
            ({"WAIT": "false"}, False),
        ]:
            for code, body in [
                (RequestCode.SEND_MESSAGE_V2, b"x"),
                (RequestCode.SEND_BATCH_MESSAGE, encode_batch([(0, b"x", b"")])),
            ]:
                waited.clear()
                assert (await peer.send("orders", body, code=code, properties=properties)).code == ResponseCode.SUCCESS
                assert bool(waited) is waits, properties
    finally:
        await broker.stop()


async def test_a_property_that_ends_like_the_unique_key(peer: Peer) -> None:
    await peer.send("orders", b"x", properties={"MY_UNIQ_KEY": "mine"})
    [message] = await pulled(peer, "orders")
    assert len(message.properties["UNIQ_KEY"]) == 32
    assert message.properties["MY_UNIQ_KEY"] == "mine"


async def test_a_random_queue_is_one_that_is_written_to(peer: Peer) -> None:
    await create_topic(peer, "orders", read_queue_nums=64, write_queue_nums=2)
    answers = [await peer.send("orders", b"x", queue_id=-1) for _ in range(50)]
    assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1"}


@pytest.mark.parametrize("queue_id", [-1, 0])
async def test_a_topic_is_not_made_without_queues(peer: Peer, broker: Broker, queue_id: int) -> None:
    """A topic without queues is not created. Java creates one that cannot store messages."""
    for queue_nums in (0, -1):
        response = await peer.send("orders", b"x", queue_id=queue_id, default_topic_queue_nums=queue_nums)
        assert response.code == ResponseCode.INVALID_PARAMETER
        assert broker.topics.get("orders") is None


async def test_a_topic_that_is_drained_takes_no_message(peer: Peer) -> None:
    await create_topic(peer, "orders", read_queue_nums=4, write_queue_nums=0)
    response = await peer.send("orders", b"x", queue_id=-1)
    assert (response.code, "no queues to write to" in (response.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)


async def test_a_level_of_thousands_of_digits_is_the_last_one(peer: Peer, broker: Broker) -> None:
    response = await peer.send("orders", b"x", properties={"DELAY": "9" * 5000})
    assert response.code == ResponseCode.SUCCESS
    assert broker.store.find_queue("SCHEDULE_TOPIC_XXXX", 1) is not None


async def test_a_forwarded_message_loses_the_receipt_of_its_pop(peer: Peer) -> None:
    properties = {"POP_CK": "1 2 3", "a": "b", "MY_POP_CK": "mine", "CLUSTER": "far"}
    await peer.send("orders", b"x", properties=properties)
    batch = encode_batch([(0, b"y", encode_properties(properties))])
    await peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE)
    for message in await pulled(peer, "orders"):
        assert "POP_CK" not in message.properties
        assert (message.properties["a"], message.properties["MY_POP_CK"]) == ("b", "mine")


async def test_answers_name_the_region_and_say_whether_to_trace(peer: Peer) -> None:
    sent: list[tuple[int, bytes, dict[str, str]]] = [
        (RequestCode.SEND_MESSAGE_V2, b"x", {}),
        (RequestCode.SEND_BATCH_MESSAGE, encode_batch([(0, b"x", b"")]), {}),
        (RequestCode.SEND_MESSAGE_V2, b"half", {"TRAN_MSG": "true", "UNIQ_KEY": "1"}),
        (RequestCode.SEND_MESSAGE_V2, b"timed", {"TIMER_DELAY_SEC": "100"}),
    ]
    for code, body, properties in sent:
        fields = (await peer.send("orders", body, code=code, properties=properties)).ext_fields
        assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")


@pytest.mark.parametrize(("topic", "flag"), [("orders", 1), ("%RETRY%group", 2)])
async def test_unit_mode_becomes_the_flag_of_a_new_topic(peer: Peer, broker: Broker, topic: str, flag: int) -> None:
    await peer.send(topic, b"x", unit_mode=True)
    config = broker.topics.get(topic)
    assert config is not None
    assert config.topic_sys_flag == flag


@pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"])
async def test_clients_do_not_write_what_the_broker_believes(peer: Peer, topic: str) -> None:
    response = await peer.send(topic, b"x", properties={"REAL_TOPIC": topic})
    assert response.code == ResponseCode.NO_PERMISSION


async def create_topic(peer: Peer, topic: str, *, read_queue_nums: int, write_queue_nums: int) -> None:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=6,
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS


async def test_a_topic_is_on_the_disk_before_its_first_message_is_acknowledged(
    broker: Broker, peer: Peer, tmp_path: Path
) -> None:
    """The topic is on disk before the acknowledgement. Otherwise the message would be lost if the broker is killed."""
    table = tmp_path / "store" / "config" / "topics.json"
    sends = [peer.send("orders", b"%d" % n, queue_id=0) for n in range(20)]
    sends += [peer.send(f"topic-{n}", b"x", properties={"TRAN_MSG": "true", "PGROUP": "g"}) for n in range(3)]
    for answer in asyncio.as_completed(sends):
        assert (await answer).code == ResponseCode.SUCCESS
        assert '"orders"' in table.read_text() or '"topic-' in table.read_text()
    assert all(f'"topic-{n}"' in table.read_text() for n in range(3))
    assert (queue := broker.store.find_queue("orders", 0)) is not None
    assert queue.max_offset == 20


async def test_no_message_for_a_new_topic_while_the_table_can_not_be_written(
    broker: Broker, peer: Peer, tmp_path: Path
) -> None:
    await peer.send("orders", b"x")
    directory = tmp_path / "store" / "config"
    directory.rename(tmp_path / "away")
    directory.write_bytes(b"no directory")
    answer = await peer.send("payments", b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topics.json" in answer.remark
    assert (await peer.send("orders", b"y")).code == ResponseCode.SUCCESS
    directory.unlink()
    (tmp_path / "away").rename(directory)
    assert (await peer.send("payments", b"x")).code == ResponseCode.SUCCESS


async def test_a_burst_for_a_new_topic_waits_in_order(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sends to a new topic wait in order.

    A Java client has one connection to a broker, with any number of sends in flight.
    """
    # A busy disk can be slow to create the first files. That is not the subject of this test.
    set_preallocation_wait(monkeypatch, 60.0)
    sends = [peer.send("orders", b"%d" % n) for n in range(3000)]
    batch = peer.send("payments", encode_batch([(0, b"a", b""), (0, b"b", b"")]), code=RequestCode.SEND_BATCH_MESSAGE)
    answers = await asyncio.gather(*sends, batch)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    found = await peer.pull("orders")
    assert [message.body for message in decode_messages(found.body)] == [b"%d" % n for n in range(32)]
    assert (queue := broker.store.find_queue("payments", 0)) is not None
    assert queue.max_offset == 2
