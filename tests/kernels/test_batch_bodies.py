"""Tests that native code and Python encode rows into the same messages."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from constants import change_constant
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import use_python

from gantrymq.arrow import batch_bodies, row_messages
from gantrymq.arrow.batch_bodies import REQUEST_BYTES, REQUEST_MESSAGES, BatchBody
from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.idempotent_sender import IdempotentSender
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.errors import IllegalMessage
from gantrymq.kernels import native
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.row_ids import BEGINNING, Place
from gantrymq.spark.options import WriteOptions

needs_native = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
Message = tuple[int, bytes, bytes]

TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.sampled_from("\x01\x02"))
NAMES = st.one_of(
    st.sampled_from(["a", "größe", "KEYS", "DELAY", "UNIQ_KEY", "PGROUP", "GANTRY_ID"]), st.text(max_size=3)
)
MAPS = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(["a", "b", "größe", "PGROUP"]), st.text("xyz", max_size=3), max_size=3),
    st.dictionaries(NAMES.filter(str.isprintable), TEXTS, max_size=3),
)
ROWS = st.fixed_dictionaries(
    {"body": st.binary(min_size=1, max_size=9)}, optional={"keys": TEXTS, "tags": TEXTS, "properties": MAPS}
)
TYPES = {"body": pa.binary(), "keys": pa.string(), "tags": pa.string(), "properties": pa.map_(pa.string(), pa.string())}


def rows_of(rows: list[dict[str, object]]) -> pa.RecordBatch:
    wanted = [name for name in TYPES if any(name in row for row in rows)]
    columns = [pa.array([_value(row.get(name)) for row in rows], TYPES[name]) for name in wanted]
    return pa.RecordBatch.from_arrays(columns, wanted)


def _value(value: object) -> object:
    return list(value.items()) if isinstance(value, dict) else value


def encode(encoder: RowEncoder, rows: pa.RecordBatch, *, natively: bool) -> dict[str, row_messages.TopicMessages]:
    with pytest.MonkeyPatch.context() as patch:
        if not natively:
            use_python(patch, batch_bodies)
        return encoder.encode(rows)


def encoded(rows: pa.RecordBatch, *, natively: bool, keep: list[str] | None = None) -> object:
    """Encodes rows and returns the messages of each request, without unique keys, or the text of the error."""
    encoder = RowEncoder(WriteOptions(["a:1"], "t", keep_properties=frozenset(keep or ())), "w-0-0")
    try:
        of_topic = encode(encoder, rows, natively=natively)["t"]
    except IllegalMessage as e:
        return str(e), e.__notes__
    return [messages_of(body) for body in of_topic.free], of_topic.alone and len(of_topic.alone)


def messages_of(batch: BatchBody) -> list[Message]:
    messages = list(decode_batch(batch.body))
    assert len(messages) == batch.messages
    own = re.compile(rb"UNIQ_KEY\x01[0-9A-F]{32}\x02$")
    return [(flag, body, own.sub(b"UNIQ_KEY", properties)) for flag, body, properties in messages]


@needs_native
@given(st.lists(ROWS, min_size=1, max_size=12), st.integers(0, 3), st.booleans())
@settings(max_examples=100, deadline=None)
def test_both_make_the_same_of_any_rows(rows: list[dict[str, object]], skipped: int, keeps: bool) -> None:
    given = rows_of(rows).slice(min(skipped, len(rows) - 1))
    keep = ["PGROUP", "DELAY"] if keeps else []
    assert encoded(given, natively=True, keep=keep) == encoded(given, natively=False, keep=keep)


@needs_native
@pytest.mark.parametrize("size", [1, 100, 1100, 600_000])
def test_requests_are_cut_at_the_same_places(size: int) -> None:
    count = min(2 * REQUEST_MESSAGES + 7, 4 * REQUEST_BYTES // size)
    rows = pa.RecordBatch.from_pydict(
        {"body": pa.repeat(pa.scalar(b"x" * size), count), "keys": list(map(str, range(count)))}
    )
    found = encoded(rows, natively=True)
    assert found == encoded(rows, natively=False)


@needs_native
def test_plain_rows_are_none_of_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code encodes all of these rows. Only exceptional rows are left to Python."""
    monkeypatch.setattr(RowEncoder, "_encode_one_by_one", None)
    rows = [{"body": b"x", "keys": "k", "tags": None, "properties": {"a": "b", "PGROUP": "dropped"}}, {"body": b"y"}]
    encoder = RowEncoder(WriteOptions(["a:1"], "t"), "w-0-0")
    for first in (0, 2):
        (batch,) = encoder.encode(rows_of(rows))["t"].free
        assert messages_of(batch) == [
            (0, b"x", b"a\x01b\x02KEYS\x01k\x02GANTRY_ID\x01w-0-0-%d\x02UNIQ_KEY" % first),
            (0, b"y", b"GANTRY_ID\x01w-0-0-%d\x02UNIQ_KEY" % (first + 1)),
        ]


@needs_native
def test_keys_differ_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "batch_bodies._ROWS_AT_ONCE", 7)
    encoder = RowEncoder(WriteOptions(["a:1"], "t"), "w-0-0")
    rows = pa.RecordBatch.from_pydict({"body": [b"x"] * 100})
    batches = encoder.encode(rows)["t"].free + encoder.encode(rows)["t"].free
    found = [properties.rpartition(b"\x01")[2] for batch in batches for _, _, properties in decode_batch(batch.body)]
    assert len(set(found)) == 200
    ids = [properties.split(b"\x02")[0] for batch in batches for _, _, properties in decode_batch(batch.body)]
    assert ids == [b"GANTRY_ID\x01w-0-0-%d" % n for n in range(200)]


def test_without_native_code_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_python(monkeypatch, batch_bodies)
    assert row_messages.plain_rows is batch_bodies.plain_rows
    encoder = RowEncoder(WriteOptions(["a:1"], "t"), "w-0-0")
    (batch,) = encoder.encode(rows_of([{"body": b"x"}]))["t"].free
    assert [message[1] for message in messages_of(batch)] == [b"x"]


class Recorder(IdempotentSender):
    """Records the messages instead of sending them."""

    def __init__(self) -> None:
        queues = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2)]
        super().__init__(ClusterClient(["127.0.0.1:9876"], 0), queues, partition=5)
        self.sent: dict[MessageQueue, list[tuple[Message, Place]]] = {}

    async def _send(self, queue: MessageQueue, body: bytes, after: Place) -> int:
        messages = list(decode_batch(body))
        own = re.compile(rb"UNIQ_KEY\x01[0-9A-F]{32}\x02")
        of_queue = self.sent.setdefault(queue, [])
        of_queue += [
            ((flag, text, own.sub(b"UNIQ_KEY\x01-\x02", properties)), after) for flag, text, properties in messages
        ]
        return after.row


@needs_native
@pytest.mark.parametrize("cut", [300, 1000, 2700])
async def test_rows_of_exactly_once_are_the_same(cut: int) -> None:
    count, options = 7000, WriteOptions(["a:1"], "t", exactly_once=True)
    recorders = []
    for natively in (True, False):
        encoder, recorder = RowEncoder(options, "w-0-5"), Recorder()
        for start in range(0, count, cut):
            numbers = [str(n) for n in range(start, min(count, start + cut))]
            rows = pa.RecordBatch.from_pydict({"body": numbers, "tags": numbers})
            encoded = encode(encoder, rows, natively=natively)
            assert (encoded["t"].plain is not None) == natively
            await recorder.send(encoded)
        recorders.append(recorder)
    one, other = recorders
    # The sizes of requests can differ, and so can the positions that the messages follow.
    assert {queue: [message for message, _ in sent] for queue, sent in one.sent.items()} == {
        queue: [message for message, _ in sent] for queue, sent in other.sent.items()
    }
    assert sum(map(len, one.sent.values())) == count
    assert [one.last_place(queue) for queue in one.sent] == [other.last_place(queue) for queue in one.sent]
    for sent in one.sent.values():
        # Each message follows an earlier one or the beginning.
        ends = {BEGINNING} | {place_of(message) for message, _ in sent}
        assert {after for _, after in sent} <= ends


@needs_native
@pytest.mark.parametrize("over", [0, 1, 28])
async def test_properties_leave_room_for_the_checksums(over: int) -> None:
    given = WriteOptions(["a:1"], "t", exactly_once=True)
    others = len("KEYS..GANTRY_ID.w-0-5-0.UNIQ_KEY..") + 32
    rows = pa.RecordBatch.from_pydict({"body": ["x"], "keys": ["k" * (32767 - 28 - others + over)]})
    encoder, recorder = RowEncoder(given, "w-0-5"), Recorder()
    if over:
        with pytest.raises(IllegalMessage, match=f"properties of {32767 - 28 + over} bytes"):
            encoder.encode(rows)
    else:
        await recorder.send(encoder.encode(rows))
        (((message, _),),) = recorder.sent.values()
        assert b"GANTRY_SEQ" in message[2]


def place_of(message: Message) -> Place:
    properties = decode_properties(message[2])
    return Place(int(properties["GANTRY_ID"].rpartition("-")[2]), int(properties["GANTRY_SEQ"][8:], 16))
