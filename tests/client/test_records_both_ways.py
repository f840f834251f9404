"""The native code decodes and encodes records exactly as Python does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.client import pulled_messages
from gantrymq.client.producing import message_encoder
from gantrymq.client.producing.message_encoder import EncodedMessage, Encoder
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.pulled_messages import Unreadable, decode_pulled
from gantrymq.kernels import native
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.protocol.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

HOSTS = {False: encode_host("10.1.2.3", 10911), True: encode_host("2001:db8::7", 10911)}
QUEUE = MessageQueue("orders", "broker-a", 1)
FIELDS = (
    "topic",
    "broker_name",
    "queue_id",
    "store_size",
    "queue_offset",
    "sys_flag",
    "stored_body",
    "compression_flags",
    "properties",
    "flag",
    "commit_log_offset",
    "born_timestamp",
    "born_host_bytes",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "is_damaged",
    "is_packed",
    "msg_id",
)
RECORDS = st.tuples(
    st.sampled_from([b"orders"] * 8 + [b"order", b"\xff", b"t" * 200]),
    st.sampled_from([1] * 8 + [2]),
    # Difference of the queue offset to the previous one.
    st.sampled_from([1, 1, 1, 1, 3, 0, -1]),
    st.sampled_from([0, 0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6, COMPRESSED]),
    st.binary(max_size=20),
    st.sampled_from([b"", b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02", b"\x01", b"\xff\x01x\x02"]),
)


def pull_of(records: list[Any]) -> bytearray:
    pull, offset = bytearray(), 10
    for topic, queue_id, further, flags, body, properties in records:
        offset += further
        born, store = HOSTS[bool(flags & BORN_HOST_V6)], HOSTS[bool(flags & STORE_HOST_V6)]
        pull += encode_record(
            queue_id, 7, offset, 4096 + len(pull), flags, 123, born, 456, store, 2, 99, body, topic, properties
        )
    return pull


def decoded(pull: bytes) -> tuple[list[list[object]], int | None, list[object]]:
    """Returns the fields of each message, the position of the rest, and the unreadable records."""
    unreadable: list[object] = []

    def stand_in(what: Unreadable) -> MessageExt | None:
        unreadable.append((what.queue_offset, what.record, str(what.error)))
        return what.stand_in(QUEUE) if len(unreadable) < 4 else None

    messages, rest = decode_pulled(pull, QUEUE, 10, 1 << 20, stand_in)
    return [[getattr(message, name) for name in FIELDS] for message in messages], rest, unreadable


@given(st.lists(RECORDS, max_size=8), st.data())
@settings(max_examples=300, deadline=None)
def test_both_decode_the_same(records: list[Any], data: st.DataObject) -> None:
    pull = pull_of(records)
    for _ in range(data.draw(st.integers(0, 2)) if pull else 0):
        pull[data.draw(st.integers(0, len(pull) - 1))] = data.draw(st.integers(0, 255))
    del pull[data.draw(st.integers(0, len(pull))) if data.draw(st.booleans()) else len(pull) :]
    found = decoded(bytes(pull))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulled_messages, "native", None)
        assert found == decoded(bytes(pull))


def message_of_a_pull() -> MessageExt:
    pull = pull_of([(b"orders", 1, 1, 0, b"x", b"KEYS\x01k\x02")])
    [message], _ = decode_pulled(bytes(pull), QUEUE, 10, 1 << 20, lambda unreadable: None)
    return message


def test_what_was_set_stays_when_other_fields_are_read() -> None:
    message = message_of_a_pull()
    message.reconsume_times, message.flag = 5, 6
    assert (message.store_timestamp, message.born_timestamp) == (456, 123)
    assert (message.reconsume_times, message.flag, message.commit_log_offset) == (5, 6, 4096)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_all_fields(copied: Callable[[MessageExt], MessageExt]) -> None:
    other = copied(message_of_a_pull())
    assert [getattr(other, name) for name in FIELDS] == [getattr(message_of_a_pull(), name) for name in FIELDS]


def test_another_attribute_is_none_of_its() -> None:
    message: Any = message_of_a_pull()
    with pytest.raises(AttributeError, match="'MessageExt' object has no attribute 'no_such_field'"):
        message.no_such_field  # noqa: B018
    assert not hasattr(message, "__getstate_of_mine__")


class Keys(UniqueKeys):
    """Unique keys that begin with the same number for each batch."""

    def __init__(self) -> None:
        self._number = 0xFFFD

    def next(self) -> str:
        self._number += 1
        return f"HEAD{self._number & 0xFFFF:04X}"

    def some(self, count: int) -> tuple[str, int]:
        return "HEAD", self._number + 1


TEXTS = st.text("ab\x01\x02\u00e4\U0001f600\ud800", max_size=4)
NAMES = st.one_of(
    TEXTS, st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "MSG_TYPE", "TRAN_MSG", "TIMER_DELIVER_MS"])
)
MESSAGES = st.tuples(
    st.sampled_from(["orders"] * 9 + ["others", "%RETRY%g"]),
    st.one_of(
        st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9), st.sampled_from([b"", "text", None])
    ),
    st.sampled_from([0, 1, -1, 1 << 31, True]),
    st.dictionaries(
        NAMES, st.one_of(TEXTS, TEXTS, TEXTS, st.sampled_from(["0", "reply", 5, "x" * 32_760])), max_size=3
    ),
)


def encoded(messages: list[Any], namespace: str, max_size: int) -> EncodedMessage | tuple[type[Exception], str]:
    all_messages = []
    for topic, body, flag, properties in messages:
        message = Message(topic, body, flag=flag)
        # Users may change the properties directly.
        message.properties.update(properties)
        all_messages.append(message)
    encoder = Encoder(
        Keys(), ProducerOptions("127.0.0.1:9876", "group", namespace=namespace, max_message_size=max_size)
    )
    try:
        return encoder.encode_batch(messages[0][0], all_messages, [one.properties for one in all_messages])
    except Exception as e:
        return type(e), str(e)


@given(
    st.lists(MESSAGES, min_size=1, max_size=5), st.sampled_from(["", "", "", "space"]), st.sampled_from([1 << 22, 150])
)
@settings(max_examples=300, deadline=None)
def test_both_encode_the_same_batches(messages: list[Any], namespace: str, max_size: int) -> None:
    found = encoded(messages, namespace, max_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_encoder, "native", None)
        assert found == encoded(messages, namespace, max_size)


def test_numbers_of_keys_are_nobody_elses() -> None:
    keys = UniqueKeys()
    one, (head, first), other = keys.next(), keys.some(1000), keys.next()
    taken = {int(key[-4:], 16) for key in (one, other)}
    assert taken.isdisjoint((first + number) & 0xFFFF for number in range(1000))
    assert len(head) == len(one) - 4
