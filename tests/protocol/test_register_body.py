"""Tests of all forms of a broker's registration: round trips, and a BodyError for invalid ones."""

from __future__ import annotations

import gc
import zlib
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_timer import StepTimer

from gantrymq.errors import BodyError
from gantrymq.protocol.bodies import topic_config
from gantrymq.protocol.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_register_body,
    encode_register_body,
    register_body_in_steps,
)
from gantrymq.protocol.codes import PROTOCOL_VERSION, VERSION_3_0_11, VERSION_5_0_0
from gantrymq.protocol.fastjson import encode_json

WORDS = st.text(st.characters(exclude_characters=" ", codec="utf-8"), min_size=1, max_size=10)
TOPICS = st.builds(
    TopicConfig,
    WORDS,
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 7),
    attributes=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
BODIES = st.builds(
    lambda version, topics, servers: RegisterBrokerBody(
        TopicConfigTable(
            {topic.topic_name: topic for topic in topics}, version, {"m": {"topic": "m", "totalQueues": 4}}
        ),
        servers,
    ),
    st.builds(DataVersion, *[st.integers(0, 2**60)] * 3),
    st.lists(TOPICS, max_size=4),
    st.lists(st.text(), max_size=3),
)


@given(BODIES, st.booleans())
def test_round_trip(body: RegisterBrokerBody, compress: bool) -> None:
    data = encode_register_body(body, compress=compress)
    assert decode_register_body(data, compressed=compress, version=PROTOCOL_VERSION) == body


@given(BODIES)
def test_brokers_before_5_have_no_mappings(body: RegisterBrokerBody) -> None:
    data = encode_register_body(body, compress=True)
    got = decode_register_body(data, compressed=True, version=VERSION_5_0_0 - 1)

    body.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {}
    assert got == body


def test_brokers_before_3_0_11_send_a_bare_table() -> None:
    table = TopicConfigTable({"t": TopicConfig("t")}, DataVersion(0, 1, 2))
    got = decode_register_body(encode_json(table), compressed=True, version=VERSION_3_0_11 - 1)

    assert got == RegisterBrokerBody(table, None)


@given(BODIES, st.data())
def test_cut_and_damaged_bodies(body: RegisterBrokerBody, data: st.DataObject) -> None:
    plain = bytearray(zlib.decompress(encode_register_body(body, compress=True)))
    for _ in range(data.draw(st.integers(1, 3))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BodyError):
        packed = zlib.compress(plain[: data.draw(st.integers(0, len(plain)))])
        decode_register_body(packed, compressed=True, version=PROTOCOL_VERSION)

    packed = encode_register_body(body, compress=True)
    with pytest.raises(BodyError):
        decode_register_body(packed[:-5], compressed=True, version=PROTOCOL_VERSION)


@given(st.binary(max_size=100), st.booleans(), st.sampled_from([0, PROTOCOL_VERSION]))
def test_any_bytes(data: bytes, compressed: bool, version: int) -> None:
    with suppress(BodyError):
        decode_register_body(data, compressed=compressed, version=version)


def part(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        part(b"{}"),
        part(b"{}") + pack(">i", -1),
        part(b"{}") + pack(">i", 2**31 - 1),
        part(b"{}") + pack(">i", 1) + part(b"topic 4 4"),
        part(b"{}") + pack(">i", 1) + part(b"topic four 4 6 SINGLE_TAG "),
        part(b"{}") + pack(">i", 1) + part(b"\xff 4 4 6 SINGLE_TAG "),
        part(b"{}") + pack(">i", 1) + part(b"topic 4 4 6 SINGLE_TAG {"),
        part(b"{}") + pack(">i", 0) + part(b"{}"),
        part(b"[]") + pack(">i", 0) + part(b"[]") + pack(">i", 0),
        part(b"{}") + pack(">i", 0) + part(b"[]") + pack(">i", 1) + part(b"[]"),
        part(b"[" * 100_000),
    ],
)
def test_what_is_no_registration(plain: bytes) -> None:
    with pytest.raises(BodyError):
        decode_register_body(zlib.compress(plain), compressed=True, version=PROTOCOL_VERSION)


def test_a_body_that_is_too_large_uncompressed_is_refused() -> None:
    bomb = zlib.compress(bytes(topic_config.MAX_REGISTER_BODY + 1))
    with pytest.raises(BodyError, match=f"larger than {topic_config.MAX_REGISTER_BODY}"):
        decode_register_body(bomb, compressed=True, version=PROTOCOL_VERSION)


def test_attributes_with_spaces() -> None:
    body = RegisterBrokerBody(TopicConfigTable({"t": TopicConfig("t", attributes={"a b": "c d"})}))
    data = encode_register_body(body, compress=True)
    got = decode_register_body(data, compressed=True, version=PROTOCOL_VERSION)
    assert got.topic_config_serialize_wrapper.topic_config_table["t"].attributes == {"a b": "c d"}


def test_nulls_are_what_is_not_there() -> None:
    data = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":null,"b":{"topicName":"b","order":null}},'
        b'"dataVersion":null,"topicQueueMappingInfoMap":null},"filterServerList":null}'
    )
    body = decode_register_body(data, compressed=False, version=PROTOCOL_VERSION)
    assert body.topic_config_serialize_wrapper.topic_config_table == {"b": TopicConfig("b")}
    assert body.filter_server_list == []


def topics(count: int) -> RegisterBrokerBody:
    configs = {f"topic-{n}": TopicConfig(f"topic-{n}", n % 50) for n in range(count)}
    return RegisterBrokerBody(TopicConfigTable(configs, DataVersion(0, 1, 2)), [])


def bare(body: RegisterBrokerBody) -> bytes:
    """Encodes a registration that has a map with unquoted numeric keys, as fastjson writes it."""
    data = encode_register_body(body)
    return data.replace(b'"topicQueueMappingInfoMap":{}', b'"topicQueueMappingInfoMap":{"t":{"currIdMap":{0:0,1:1}}}')


LARGE = topics(40_000)


@pytest.mark.parametrize(
    ("data", "compressed"),
    [
        (encode_register_body(LARGE), False),
        (encode_register_body(LARGE, compress=True), True),
        (bare(LARGE), False),
        (b'{"topicConfigSerializeWrapper":' + b"1," * 3_000_000, False),
        (b"[{1:" * 2_000_000, False),
        (zlib.compress(bytes(20_000_000)), True),
        (zlib.compress(part(b"{}") + pack(">i", 3_000_000) + part(b"a 4 4 6 S") * 500_000), True),
    ],
    ids=["json", "compressed", "bare-keys", "no-json", "brackets", "bomb", "same-topic"],
)
def test_no_step_takes_long(data: bytes, compressed: bool) -> None:
    """Short steps let a server handle other requests between them, however large the body is.

    The limit allows for a busy machine.
    """
    timer = StepTimer()
    steps = register_body_in_steps(data, compressed=compressed, version=PROTOCOL_VERSION)
    # A collection visits all objects of this test process, which is not part of a step.
    gc.disable()
    try:
        with suppress(StopIteration, BodyError):
            while True:
                with timer.step():
                    next(steps)
    finally:
        gc.enable()
    assert timer.longest < 0.05
