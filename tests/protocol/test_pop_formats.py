"""Tests of receipt handles, pop response headers and revive-log bodies, as Apache's jars write them."""

from __future__ import annotations

import pytest

from gantrymq.errors import BodyError
from gantrymq.protocol.bodies.pop import Ack, BatchAckBody, Checkpoint
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.receipt_handle import (
    ReceiptHandle,
    message_offset_entry,
    normal_topic,
    order_count_entries,
    parse_offset_info,
    pop_retry_topic,
    real_topic,
    retry_flag,
    start_offset_entry,
)

#: Output of fastjson2 for PopCheckPoint, AckMsg, BatchAckMsg and BatchAckMessageRequestBody of 5.5.0.
JAVA_CHECKPOINT = (
    b'{"bm":0,"bn":"b","c":"g","d":[0,2],"it":60000,"n":2,"pt":1700000000000,"q":3,"reviveTime":1700000060000,"ro":0,'
    b'"so":5,"sp":false,"t":"t"}'
)
JAVA_ACK = b'{"ao":7,"bn":"b","c":"g","pt":17,"q":3,"so":5,"t":"t"}'
JAVA_BATCH_ACK = b'{"ao":-1,"aol":[7],"c":"g","pt":17,"q":3,"so":5,"t":"t"}'
JAVA_BATCH_BODY = b'{"acks":[{"b":"AQI=","c":"g","it":0,"pt":0,"q":0,"r":"0","rq":0,"so":0,"t":"t"}],"brokerName":"bn"}'


def test_javas_bodies() -> None:
    checkpoint = decode_json(JAVA_CHECKPOINT, Checkpoint)
    assert (checkpoint.offsets, checkpoint.revive_time) == ([5, 7], 1700000060000)
    assert decode_json(encode_json(checkpoint), Checkpoint) == checkpoint
    ack, batch = decode_json(JAVA_ACK, Ack), decode_json(JAVA_BATCH_ACK, Ack)
    assert (ack.offset, ack.offsets, batch.offsets) == (7, [], [7])
    assert ack.key == ("t", "g", 3, 5, 17, "b")
    (some,) = decode_json(JAVA_BATCH_BODY, BatchAckBody).acks
    assert list(some.offsets()) == [0, 9]


def test_a_checkpoint_of_an_old_broker_has_no_diffs() -> None:
    old = decode_json(b'{"so":5,"pt":1,"it":2,"bm":0,"n":3,"q":0,"t":"t","c":"g"}', Checkpoint)
    assert old.offsets == [5, 6, 7]


def test_handles() -> None:
    text = "5 1700000000000 60000 3 1 broker-a 2 7"
    handle = ReceiptHandle.parse(text)
    assert handle == (5, 1700000000000, 60000, 3, "1", "broker-a", 2, 7)
    assert str(handle) == text
    whole_queue = ReceiptHandle.parse("5 1 60000 999 0 broker-a 2")
    assert whole_queue.is_orderly
    assert str(whole_queue) == "5 1 60000 999 0 broker-a 2"


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d 0 broker 1 2", "1 2 3 4 0 broker x"])
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(BodyError, match="receipt handle"):
        ReceiptHandle.parse(text)


@pytest.mark.parametrize(("v2", "flag", "name"), [(False, "1", "%RETRY%g_t"), (True, "2", "%RETRY%g+t")])
def test_retry_topics(v2: bool, flag: str, name: str) -> None:
    assert pop_retry_topic("t", "g", v2=v2) == name
    assert (retry_flag(name), real_topic("t", "g", flag), normal_topic(name, "g")) == (flag, name, "t")


def test_other_topics() -> None:
    assert (retry_flag("t"), real_topic("t", "g", "0"), normal_topic("t", "g")) == ("0", "t", "t")
    with pytest.raises(BodyError, match="retry flag"):
        real_topic("t", "g", "3")


def test_lists_of_an_answer() -> None:
    assert start_offset_entry("t", 1, 5) == "0 1 5"
    assert message_offset_entry("%RETRY%g_t", 0, [5, 7]) == "1 0 5,7"
    assert order_count_entries("t", 1, {}, 3) == "0 1 0"
    # As Java does if two of the three messages were popped before.
    assert order_count_entries("t", 1, {3: 1, 4: 1}, 3) == "0 qo1%3 1;0 qo1%4 1;0 1 0"
    assert order_count_entries("t", 1, {3: 2, 4: 1}, 2) == "0 qo1%3 2;0 qo1%4 1;0 1 1"
    assert parse_offset_info("0 1 5;1 0 6") == {("0", "1"): "5", ("1", "0"): "6"}
    assert parse_offset_info(None) == {}
    with pytest.raises(BodyError):
        parse_offset_info("0 1")


@pytest.mark.parametrize("diffs", [[], [0], [0, 1, 2], [0, 2, 5], [1, 2], [3, 1, 2]])
def test_bits_of_a_checkpoint_are_those_of_its_offsets(diffs: list[int]) -> None:
    checkpoint = Checkpoint(5, 0, 0, len(diffs) or 3, 0, "t", "g", diffs=diffs)
    offsets = checkpoint.offsets
    for offset in range(15):
        assert checkpoint.bit_of(offset) == (offsets.index(offset) if offset in offsets else -1)
    assert checkpoint.all_bits == (1 << len(offsets)) - 1
