"""Invalid registrations: the NameServer returns a clear error and does not change its tables."""

from __future__ import annotations

import asyncio
import struct
import zlib

import pytest
from namesrv_support import broker_header, registration, topics_body

from gantrymq.errors import BrokerError
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import MAX_REGISTER_BODY, DataVersion, TopicConfig, encode_register_body
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import MAX_FRAME_LENGTH, RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.remoting.client import RemotingClient

_NEW = {"name": "broker-b", "address": "10.0.0.2:10911"}


def _parts(*parts: bytes | int) -> bytes:
    """Returns a compressed body of integers and length-prefixed bytes."""
    plain = b"".join(struct.pack(">i", p) if isinstance(p, int) else struct.pack(">i", len(p)) + p for p in parts)
    return zlib.compress(plain)


_VERSION = encode_json(DataVersion(0, 1, 1))
_COMPRESSED_BODY = encode_register_body(topics_body("X", "Y"), compress=True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not zlib", "doesn't decompress"),
        (_COMPRESSED_BODY[:-5], "cut off"),
        (_COMPRESSED_BODY[:2] + b"\xff" * 8 + _COMPRESSED_BODY[10:], "doesn't decompress"),
        (zlib.compress(bytes(MAX_REGISTER_BODY + 1)), "larger than"),
        (_parts(_VERSION), "can't be read"),
        (_parts(_VERSION, 2_000_000_000), "length 2000000000"),
        (_parts(_VERSION, -1), "length -1"),
        (_parts(_VERSION, 1, b"X 4 4"), "is not 'name readQueues"),
        (_parts(_VERSION, 1, b"X 4 four 6 SINGLE_TAG"), "is not 'name readQueues"),
        (_parts(_VERSION, 2, b"X 4 4 6 SINGLE_TAG", b"Y 4 -4 6 SINGLE_TAG", b"[]", 0), "must be 0 to"),
        (_parts(_VERSION, 2, b"X 4 4 6 SINGLE_TAG", b" 4 4 6 SINGLE_TAG", b"[]", 0), "topic ''"),
        (_parts(_VERSION, 1, b"\xff\xff 4 4 6 SINGLE_TAG"), "can't be read"),
        (_parts(_VERSION, 0, b"{}", 0), "list"),
        (_parts(b"[]", 0, b"[]", 0), "DataVersion"),
    ],
)
async def test_a_broken_compressed_body(client: RemotingClient, server: NameServer, body: bytes, reason: str) -> None:
    request = RemotingCommand.request(RequestCode.REGISTER_BROKER, broker_header(**_NEW, compressed=True), body)
    await _is_refused(client, server, request, reason)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "RegisterBrokerBody"),
        (b"[]", "RegisterBrokerBody"),
        (b"{}", "topicConfigSerializeWrapper"),
        (b"\xff\xfe", "RegisterBrokerBody"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"X":{"topicName":5}}}}', "topicName"),
        (b"[" * 100_000, "RegisterBrokerBody"),
        (encode_register_body(topics_body("X", TopicConfig("Y", 2**31, 4))), "must be 0 to"),
        (encode_register_body(topics_body("X", TopicConfig("Y", perm=10**30))), "must be 0 to"),
        (encode_register_body(topics_body("X", TopicConfig("Y" * 1025))), "1 to 1024 characters"),
        (encode_register_body(topics_body("X", "Y", version=2**64)), "more than 64 bits"),
        (encode_register_body(topics_body("X")), "must register all topics before one alone"),
    ],
)
async def test_a_broken_json_body(client: RemotingClient, server: NameServer, body: bytes, reason: str) -> None:
    request = RemotingCommand.request(RequestCode.REGISTER_BROKER, broker_header(**_NEW), body)
    await _is_refused(client, server, request, reason)


async def test_a_wrong_crc(client: RemotingClient, server: NameServer) -> None:
    request = registration(broker_header(**_NEW), topics_body("X", "Y"))
    request.body = request.body.replace(b'"X"', b'"Z"')
    await _is_refused(client, server, request, "crc32 not match")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("brokerId", "-1", "brokerId -1"),
        ("brokerId", str(2**63), "brokerId"),
        ("brokerId", "one", "brokerId"),
        ("brokerName", "", "brokerName"),
        ("brokerAddr", "  ", "brokerAddr"),
        ("clusterName", "c" * 1025, "clusterName"),
        ("heartbeatTimeoutMillis", "-1", "heartbeatTimeoutMillis"),
        ("heartbeatTimeoutMillis", "9" * 30, "heartbeatTimeoutMillis"),
        ("compressed", "perhaps", "compressed"),
        ("haServerAddr", None, "haServerAddr"),
    ],
)
async def test_a_bad_header_field(
    client: RemotingClient, server: NameServer, field: str, value: str | None, reason: str
) -> None:
    request = registration(broker_header(**_NEW), topics_body("X", "Y"))
    if value is None:
        del request.ext_fields[field]
    else:
        request.ext_fields[field] = value
    await _is_refused(client, server, request, reason)


async def test_an_unknown_version(client: RemotingClient, server: NameServer) -> None:
    request = registration(broker_header(**_NEW), topics_body("X", "Y"))
    request.version = -1
    await _is_refused(client, server, request, "version -1")
    # An unknown newer version is read as the newest known one.
    request.version = 30_000
    await client.call(server.address, request)


async def test_absurd_queues_registered_by_hand(client: RemotingClient, server: NameServer) -> None:
    queues = [{"brokerName": "broker-a", "readQueueNums": 2**40, "writeQueueNums": 2, "perm": 6}]
    request = RemotingCommand.request(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicRequestHeader(topic="N"), encode_json({"queueDatas": queues})
    )
    await _is_refused(client, server, request, "must be 0 to")


async def _is_refused(client: RemotingClient, server: NameServer, request: RemotingCommand, reason: str) -> None:
    await client.call(server.address, registration(broker_header(), topics_body("A", "B")))
    before = await _state(client, server)
    with pytest.raises(BrokerError) as error:
        await client.call(server.address, request)
    assert error.value.code == ResponseCode.SYSTEM_ERROR
    assert reason in error.value.remark
    assert await _state(client, server) == before


async def _state(client: RemotingClient, server: NameServer) -> list[bytes]:
    codes = (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return [(await client.call(server.address, RemotingCommand.request(code))).body for code in codes]


async def test_a_registration_of_more_than_a_frame_is_named_in_the_log(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The NameServer cannot answer a request that it does not read, so the log must name the cause."""
    reader, writer = await asyncio.open_connection(*server.address.rsplit(":", 1))
    host, port = writer.get_extra_info("sockname")
    writer.write((MAX_FRAME_LENGTH + 1).to_bytes(4, "big") + bytes(1000))
    assert await reader.read() == b""
    writer.close()
    (line,) = [text for text in caplog.messages if f"{host}:{port}" in text]
    assert f"frame of {MAX_FRAME_LENGTH + 1} bytes: a frame has 4 to {MAX_FRAME_LENGTH}" in line


async def test_parts_of_a_registration_are_merged(client: RemotingClient, server: NameServer) -> None:
    """A broker with more topics than fit into one frame registers in parts.

    A part can also change existing topics.
    """
    for version, parts in ((1, [{"a": 1, "b": 1}, {"c": 1}]), (3, [{"a": 2}, {"b": 2, "c": 2}])):
        for number, part in enumerate(parts):
            body = topics_body(*(TopicConfig(name, n, n) for name, n in part.items()), version=version + number)
            await client.call(server.address, registration(broker_header(), body))
    for name in ("a", "b", "c"):
        route = server.table.route(name)
        assert route is not None
        assert [queues.write_queue_nums for queues in route.queue_datas] == [2]
