"""Tests that bytes written by Java's classes are read correctly, and are written identically if the format is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.protocol import codes
from gantrymq.protocol.batch import decode_batch, encode_batch
from gantrymq.protocol.bodies.heartbeat import ConsumerList, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.bodies.route import ClusterInfo, KVTable, TopicList, TopicRouteData
from gantrymq.protocol.bodies.topic_config import DataVersion, decode_register_body
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.compression import CompressionType, compression_flag, decompress
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.pull import PullMessageResponseHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import UniqueKeys, decode_offset_message_id, encode_offset_message_id
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import MAX_TOPIC_LENGTH_V1, decode_record, encode_again, encode_host
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6

JAVA = Path(__file__).parent / "java"
ENCODINGS = {"json": SerializeType.JSON, "rocketmq": SerializeType.ROCKETMQ}
PLAIN = "RocketMQ 中文 ".encode() * 200
PROPERTIES = "KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010001000000000000000A0001\x02TAGS\x01中文\x02"
JSON_DIALECTS = pytest.mark.parametrize("dialect", ["json", "fastjson1.json"])


def java(name: str) -> bytes:
    return (JAVA / name).read_bytes()


def facts(kind: str) -> Iterator[list[str]]:
    for line in java("facts.tsv").decode().splitlines():
        name, *values = line.split("\t")
        if name == kind:
            yield values


def read_frame(name: str) -> RemotingCommand:
    (command,) = FrameReader().feed(java(name))
    return command


# -- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("name", "opaque"), [("send-request", 7), ("send-request-reflected", -(2**31))])
def test_send_request(name: str, opaque: int, encoding: str) -> None:
    command = read_frame(f"{name}.{encoding}")

    assert (command.code, command.language, command.version) == (310, codes.LanguageCode.JAVA, 479)
    assert (command.opaque, command.flag, command.remark) == (opaque, 0, None)
    assert (command.body, command.serialize_type) == (b"hello", ENCODINGS[encoding])
    assert command.read_header(SendMessageRequestHeaderV2) == SendMessageRequestHeaderV2(
        producer_group="group-1",
        topic="TopicTest",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1700000000123,
        flag=0,
        properties=PROPERTIES,
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=16,
        batch=False,
    )
    for _ in range(2):  # The second iteration uses the header cached by the first one.
        request = decode_send_request(command)
        assert request.target == ("group-1", "TopicTest", "TBW102", 4, 3, 0)
        assert (request.born_timestamp, request.flag) == (1700000000123, 0)
        assert request.properties == PROPERTIES.encode()
        assert request.options == (0, False, 16, False, None)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pull_response(encoding: str) -> None:
    command = read_frame(f"pull-response.{encoding}")

    assert (command.code, command.language, command.version) == (19, codes.LanguageCode.GO, 0)
    assert (command.opaque, command.is_response, command.is_oneway) == (-5, True, False)
    assert command.remark == 'no "new" message\n\t\x01ä中😀 yet'
    assert command.read_header(PullMessageResponseHeader) == PullMessageResponseHeader(
        suggest_which_broker_id=1, next_begin_offset=9_000_000_000, min_offset=0, max_offset=2**63 - 1
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_oneway_request(encoding: str) -> None:
    command = read_frame(f"oneway.{encoding}")

    assert (command.code, command.opaque, command.is_oneway, command.is_response) == (34, 1, True, False)
    assert (command.ext_fields, command.body) == ({}, b"")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["send-request", "send-request-reflected", "pull-response", "oneway"])
def test_frames_are_written_like_java_writes_them(name: str, encoding: str) -> None:
    original = read_frame(f"{name}.{encoding}")
    ours = RemotingCommand.request(original.code, body=original.body, fields=dict(original.ext_fields))
    for attribute in ("language", "version", "opaque", "flag", "remark", "serialize_type"):
        setattr(ours, attribute, getattr(original, attribute))

    assert ours.encode() == java(f"{name}.{encoding}")
    assert original.encode() == java(f"{name}.{encoding}")


def test_versions() -> None:
    ordinals = {name: int(ordinal) for name, ordinal in facts("version")}

    assert ordinals["V3_0_11"] == codes.VERSION_3_0_11
    assert ordinals["V4_9_4"] == codes.VERSION_4_9_4
    assert ordinals["V5_0_0"] == codes.VERSION_5_0_0
    assert ordinals["V5_5_0"] == codes.PROTOCOL_VERSION


# -- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "topic", "born_ip", "store_ip"),
    [
        ("v1-ipv4", "TopicTest", "10.1.2.3", "10.1.2.4"),
        ("v1-ipv6", "TopicTest", "2001:db8::1", "fe80::2"),
        ("v1-mixed", "TopicTest", "10.1.2.3", "fe80::2"),
        ("v2-ipv4", "%RETRY%" + 150 * "g", "10.1.2.3", "10.1.2.4"),
    ],
)
def test_record(name: str, topic: str, born_ip: str, store_ip: str) -> None:
    written = java(f"record-{name}.bin")
    sys_flag = (BORN_HOST_V6 if ":" in born_ip else 0) | (STORE_HOST_V6 if ":" in store_ip else 0)

    record = decode_record(written)
    assert (record.size, record.queue_id, record.flag) == (len(written), 3, -2)
    assert (record.physical_offset, record.sys_flag) == (0, sys_flag)
    assert (record.born_timestamp, record.store_timestamp) == (1700000000123, 1700000000456)
    assert record.born_host == encode_host(born_ip, 40001)
    assert record.store_host == encode_host(store_ip, 10911)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (2, 77)
    assert (record.topic.decode(), record.body.decode()) == (topic, "the body 中")
    assert record.properties == b"KEYS\x01k1 k2\x02TAGS\x01a\x02"
    assert (len(topic) > MAX_TOPIC_LENGTH_V1) == (name == "v2-ipv4")

    assert encode_again(record) == written


def test_compressed_record() -> None:
    # MessageDecoder.encode does not set the CRC; its caller has to.
    record = decode_record(java("record-lz4.bin"), check_crc=False)

    assert decompress(record.body, record.sys_flag) == PLAIN
    assert decode_properties(record.properties) == {"colour": "red"}


def test_messages_of_a_pull() -> None:
    body = java("record-v1-ipv4.bin") + java("record-v1-ipv6.bin") + java("record-v2-ipv4.bin")

    messages = list(decode_messages(body, "broker-a"))
    assert [message.store_host for message in messages] == ["10.1.2.4:10911", "[fe80::2]:10911", "10.1.2.4:10911"]
    assert [message.born_host for message in messages] == ["10.1.2.3:40001", "[2001:db8::1]:40001", "10.1.2.3:40001"]
    assert {(message.tags, tuple(message.keys)) for message in messages} == {("a", ("k1", "k2"))}


def test_batch() -> None:
    messages = [(i - 1, f"body {i}".encode() * i, f"n\x01{i}\x02".encode()) for i in range(3)]

    assert list(decode_batch(java("batch.bin"))) == messages
    assert encode_batch(messages) == java("batch.bin")


@pytest.mark.parametrize("compression", CompressionType)
def test_compressed_body(compression: CompressionType) -> None:
    assert decompress(java(f"body.{compression.name.lower()}"), compression_flag(compression)) == PLAIN


def test_offset_message_ids() -> None:
    rows = list(facts("id"))
    assert len(rows) == 6
    for ip, offset, message_id in rows:
        host = f"[{ip}]" if ":" in ip else ip
        assert encode_offset_message_id(encode_host(ip, 10911), int(offset)) == message_id
        assert decode_offset_message_id(message_id) == (f"{host}:10911", int(offset))


def test_unique_key_has_javas_shape() -> None:
    ((pid, after_address),) = facts("unique")
    ours = UniqueKeys(b"\x0a\x01\x02\x03").next()

    assert int(after_address[:4], 16) == int(pid) & 0xFFFF
    assert after_address.endswith("0000")
    assert ours[:8] == "0A010203"
    assert len(ours) == 8 + len(after_address)
    assert ours.endswith("0000")


def test_string_hash_codes() -> None:
    rows = list(facts("hash"))
    assert len(rows) == 6
    for text, hash_code in rows:
        assert string_hash_code(text) == int(hash_code)


def test_properties() -> None:
    rows = list(facts("properties"))
    assert len(rows) == 11
    for raw, expected in rows:
        pairs = [pair.split("=") for pair in expected.split()]
        properties = {bytes.fromhex(name).decode(): bytes.fromhex(value).decode() for name, value in pairs}
        assert decode_properties(bytes.fromhex(raw)) == properties


# -- bodies ---------------------------------------------------------------------------------------------------------


@JSON_DIALECTS
@pytest.mark.parametrize(("name", "order_conf"), [("route", None), ("route-standard", "broker-a:4")])
def test_route(name: str, order_conf: str | None, dialect: str) -> None:
    route = decode_json(java(f"{name}.{dialect}"), TopicRouteData)

    (queues,) = route.queue_datas
    (broker,) = route.broker_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == ("broker-a", 8, 4, 6)
    assert broker.broker_addrs == {0: "10.1.2.4:10911", 1: "10.1.2.5:10911"}
    assert broker.master_address == "10.1.2.4:10911"
    assert (broker.cluster, route.order_topic_conf) == ("DefaultCluster", order_conf)
    assert decode_json(encode_json(route), TopicRouteData) == route


@JSON_DIALECTS
def test_cluster(dialect: str) -> None:
    cluster = decode_json(java(f"cluster.{dialect}"), ClusterInfo)

    assert cluster.broker_addr_table["broker-a"].broker_addrs == {0: "10.1.2.4:10911", 1: "10.1.2.5:10911"}
    assert cluster.cluster_addr_table == {"DefaultCluster": ["broker-a"]}


@JSON_DIALECTS
def test_small_bodies(dialect: str) -> None:
    assert decode_json(java(f"topic-list.{dialect}"), TopicList).topic_list == ["TopicTest"]
    assert decode_json(java(f"kv-table.{dialect}"), KVTable).table == {'a,1:"x"': "{2:3}"}
    assert decode_json(java(f"consumer-list.{dialect}"), ConsumerList).consumer_id_list == ["10.1.2.3@77#1"]


@JSON_DIALECTS
def test_heartbeat(dialect: str) -> None:
    heartbeat = decode_json(java(f"heartbeat.{dialect}"), HeartbeatData)

    assert heartbeat.client_id == "10.1.2.3@77#1"
    assert heartbeat.producer_data_set == [ProducerData("producers")]
    (consumer,) = heartbeat.consumer_data_set
    (subscription,) = consumer.subscription_data_set
    ours = SubscriptionData.parse("TopicTest", "TagA || 中文")
    ours.sub_version = 1700000000123
    assert subscription == ours
    # The fields and names are Java's; only their order differs.
    assert decode_json(encode_json(heartbeat), dict) == decode_json(java(f"heartbeat.{dialect}"), dict)


@pytest.mark.parametrize(
    ("name", "compressed", "version"),
    [
        ("register.json", False, codes.PROTOCOL_VERSION),
        ("register.fastjson1.json", False, codes.VERSION_5_0_0 - 1),
        ("register.zlib", True, codes.PROTOCOL_VERSION),
        ("register.zlib", True, codes.VERSION_5_0_0 - 1),
        ("register-3.0.json", False, codes.VERSION_3_0_11 - 1),
    ],
)
def test_registration(name: str, compressed: bool, version: int) -> None:
    body = decode_register_body(java(name), compressed=compressed, version=version)
    table = body.topic_config_serialize_wrapper

    assert table.data_version == DataVersion(1, 1700000000123, 42)
    assert table.topic_config_table.keys() == {"TopicA", "TopicB"}
    a, b = table.topic_config_table["TopicA"], table.topic_config_table["TopicB"]
    assert (a.topic_name, a.read_queue_nums, a.write_queue_nums, a.perm, a.attributes) == ("TopicA", 8, 4, 6, {})
    assert (b.read_queue_nums, b.perm, b.attributes) == (1, 2, {"message.type": "NORMAL"})
    # The compressed form has no fields for these two.
    assert (b.topic_sys_flag, b.order) == ((0, False) if compressed else (3, True))
    if version >= codes.VERSION_3_0_11:
        assert body.filter_server_list == ["10.1.2.3:30000"]
    if not compressed or version >= codes.VERSION_5_0_0:
        mapping = table.topic_queue_mapping_info_map["TopicA"]
        assert (mapping["totalQueues"], mapping["currIdMap"]) == (8, {"0": 1})
    else:
        assert table.topic_queue_mapping_info_map == {}
