"""Encoding of messages: properties are those of `encode_properties`, and a joined batch has an id for each message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.producing.message_encoder import Encoder
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.errors import IllegalMessage
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.message import Message
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.properties import decode_properties, encode_properties

ENCODER = Encoder(UniqueKeys(), ProducerOptions("127.0.0.1:9876", "group"))
TEXTS = st.one_of(st.text(max_size=5), st.sampled_from(["a\x01", "\x02b", "\ud800", "ä"]))


@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.sampled_from(["topic", "%RETRY%group"]))
def test_properties_are_encoded_as_by_encode_properties(properties: dict[str, str], topic: str) -> None:
    properties["UNIQ_KEY"] = "key"
    try:
        expected = encode_properties(properties)
        fits = not any("\x01" in value for value in properties.values())
    except IllegalMessage:
        fits = False
    if fits:
        assert ENCODER.encode(topic, Message(topic, b"x"), properties).properties == expected
    else:
        with pytest.raises(IllegalMessage):
            ENCODER.encode(topic, Message(topic, b"x"), properties)


@pytest.mark.parametrize("topic", ["topic", "%RETRY%group"])
@pytest.mark.parametrize("properties", [{"a": 1}, {1: "a"}, {"RECONSUME_TIME": None}, {"UNIQ_KEY": 5}])
def test_properties_that_are_not_strings_are_refused(properties: dict[str, str], topic: str) -> None:
    with pytest.raises(IllegalMessage, match="are strings"):
        ENCODER.encode(topic, Message(topic, b"x"), properties)


@given(st.lists(st.sampled_from([{}, {"TAGS": "red"}, {"UNIQ_KEY": "own"}]), min_size=1, max_size=5))
def test_a_joined_batch_has_an_id_for_each_message(properties: list[dict[str, str]]) -> None:
    messages = [Message("t", b"%d" % n, flag=n, properties=own) for n, own in enumerate(properties)]
    batch = ENCODER.join("t", [ENCODER.encode_part("t", message) for message in messages])
    found = list(decode_batch(batch.body))
    ids = batch.msg_id.split(",")
    assert [(flag, body) for flag, body, _ in found] == [(message.flag, message.body) for message in messages]
    for own, msg_id, (_, _, encoded) in zip(properties, ids, found, strict=True):
        assert decode_properties(encoded) == {"UNIQ_KEY": msg_id} | own
    assert len({msg_id for msg_id in ids if msg_id != "own"}) == sum("UNIQ_KEY" not in own for own in properties)


@pytest.mark.parametrize("body", ["text", b"", b"x" * (4 * 1024 * 1024 + 1)])
def test_a_part_has_a_valid_body(body: bytes) -> None:
    with pytest.raises(IllegalMessage):
        ENCODER.encode_part("t", Message("t", body))


def test_a_single_part_gets_an_id() -> None:
    part = ENCODER.with_id(ENCODER.encode_part("t", Message("t", b"x")))
    assert decode_properties(part.properties) == {"UNIQ_KEY": part.msg_id}
    assert ENCODER.with_id(part) is part
