"""Encoding of a message's properties: either the bytes of `encode_properties`, or an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.producing.message_encoder import Encoder
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.errors import IllegalMessage
from gantrymq.protocol.message import Message
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.properties import encode_properties

ENCODER = Encoder(UniqueKeys(), ProducerOptions("127.0.0.1:9876", "group"))
TEXTS = st.one_of(st.text(max_size=5), st.sampled_from(["a\x01", "\x02b", "\ud800", "ä"]))


@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.sampled_from(["topic", "%RETRY%group"]))
def test_are_those_of_the_plain_function(properties: dict[str, str], topic: str) -> None:
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
def test_are_strings(properties: dict[str, str], topic: str) -> None:
    with pytest.raises(IllegalMessage, match="are strings"):
        ENCODER.encode(topic, Message(topic, b"x"), properties)
