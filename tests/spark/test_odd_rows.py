"""Tests that native code and Python encode the same messages from any layout of Arrow columns.

The tests run without Spark. They pass the rows through Arrow's stream format, as Spark does.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from spark_support import create_topic

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.idempotent_sender import IdempotentSender, find_write_queues
from gantrymq.arrow.row_messages import RowEncoder, TopicMessages
from gantrymq.arrow.row_sender import RowSender
from gantrymq.errors import BrokerError, ConfigError, IllegalMessage
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH
from gantrymq.spark.half_messages import HalfSender
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.write_schema import check_columns
from gantrymq.testing.embedded import EmbeddedCluster

MAP = pa.map_(pa.string(), pa.string())
UNIQUE_KEY = re.compile(rb"UNIQ_KEY\x01[0-9A-F]{32}\x02$")

#: Body and properties, without the message's unique key.
Found = list[tuple[bytes, bytes]]


def maps(*values: object) -> pa.Array:
    return pa.array(values, MAP)


def not_utf_8(*values: bytes) -> pa.Array:
    """Returns a string column with arbitrary bytes. Spark creates such columns with `CAST(body AS STRING)`."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers())


def many(count: int) -> pa.RecordBatch:
    numbers = range(count)
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"%d" % n for n in numbers]),
            "keys": pa.array([None if n % 3 == 0 else f"k{n}" for n in numbers]),
            "properties": maps(
                *(None if n % 5 == 0 else [("a", str(n)), ("b", None), ("c", "")][: n % 4] for n in numbers)
            ),
        }
    )


def of_slices() -> pa.RecordBatch:
    names = pa.array(["other", "a", "b", "c"]).slice(1)
    values = pa.array(["other", "other", "1", "2", "3"]).slice(2)
    properties = pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), names, values)
    return pa.RecordBatch.from_pydict({"body": pa.array([b"x", b"y"]), "properties": properties})


def encode(rows: pa.RecordBatch, *, natively: bool, options: WriteOptions | None = None) -> TopicMessages:
    encoder = RowEncoder(options or WriteOptions(["127.0.0.1:9876"], "t"), "w-0-0")
    made = (encoder.encode if natively else encoder._encode_one_by_one)(rows)
    return made.get("t", TopicMessages())


def outcome(rows: pa.RecordBatch, *, natively: bool) -> Found | tuple[str, list[str]]:
    try:
        made = encode(rows, natively=natively)
    except IllegalMessage as e:
        return str(e), e.__notes__
    assert not made.alone
    return [
        (body, UNIQUE_KEY.sub(b"", properties))
        for batch in made.free
        for _, body, properties in decode_batch(batch.body)
    ]


def streamed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Passes the rows through Arrow's stream format, as for a Python worker."""
    with io.BytesIO() as file:
        with pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_batch(rows)
        return next(iter(pa.ipc.open_stream(file.getvalue())))


def rows(**columns: object) -> pa.RecordBatch:
    made = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    return pa.RecordBatch.from_pydict(made)


SHAPES = {
    "none": rows(body=pa.array([], pa.binary()), properties=maps()),
    "keys of null": rows(body=[b"a", b"b"], keys=pa.nulls(2)),
    "all keys null": rows(body=[b"a", b"b"], keys=pa.nulls(2, pa.string())),
    "maps of null": rows(body=[b"a", b"b"], properties=maps(None, None)),
    "empty maps": rows(body=[b"a", b"b"], properties=maps([], [])),
    "dictionaries": rows(body=pa.array(["a", "a"]).dictionary_encode(), keys=pa.array(["k", "k"]).dictionary_encode()),
    "large": rows(body=pa.array(["a"], pa.large_string()), keys=pa.array(["k"], pa.large_string())),
    "large bytes": rows(body=pa.array([b"a", b"b"], pa.large_binary()), tags=["t", None]),
    "views": rows(body=pa.array([b"a", b"b" * 30], pa.binary_view()), keys=pa.array(["k", None], pa.string_view())),
    "large maps": rows(body=[b"a"], properties=pa.array([[("a", "b")]], pa.map_(pa.string(), pa.large_string()))),
    "text beyond the first plane": rows(body=["\U0001f600"], keys=["\U0001f600"], tags=["größe"]),
    "control characters": rows(body=["\0"], keys=["\0"], properties=maps([("a", "v\x01w")])),
    "names of columns": rows(body=[b"a", b"b"], keys=["k", None], properties=maps(*[[("KEYS", "v"), ("b", "c")]] * 2)),
    "a name twice": rows(body=[b"a"], properties=maps([("a", "v"), ("b", "c"), ("a", "w")])),
    "many names": rows(body=[b"a"], properties=maps([(f"n{n}", "v") for n in range(70)])),
    "a name with a separator": rows(body=[b"a"], properties=maps([("a\x01b", "v")])),
    "a name with the other": rows(body=[b"a"], properties=maps([("a\x02b", "v")])),
    "a value with a separator": rows(body=[b"a"], properties=maps([("a", "v\x02w")])),
    "no name": rows(body=[b"a"], properties=maps([("", "v")])),
    "neither": rows(body=[b"a"], properties=maps([("", "")])),
    "a null": rows(body=[b"a", None]),
    "nothing": rows(body=["a", ""]),
    "long keys": rows(body=[b"a"], keys=["k" * 40_000]),
    "a long name": rows(body=[b"a"], properties=maps([("n" * 40_000, "v")])),
    "a large body": rows(body=[b"a" * 5_000_000, b"b"]),
    "a body of any bytes": rows(body=not_utf_8(b"a\xff", b"ok"), keys=["k", None]),
    "keys of any bytes": rows(body=[b"a", b"b"], keys=not_utf_8(b"ok", b"\xc3")),
    "tags of any bytes": rows(body=[b"a", b"b"], tags=not_utf_8(b"ok", b"a\xff")),
    "names of any bytes": rows(
        body=[b"a"], properties=pa.MapArray.from_arrays([0, 1], not_utf_8(b"\xff"), pa.array(["v"]))
    ),
    "values of any bytes": rows(
        body=[b"a"], properties=pa.MapArray.from_arrays([0, 1], pa.array(["n"]), not_utf_8(b"\xff"))
    ),
    "maps of slices": of_slices(),
    "a slice of these": of_slices().slice(1),
} | {
    f"slice {start} {count}": many(2500).slice(start, count)
    for start, count in [(0, 2500), (1, 2000), (7, 9), (9, 1), (999, 2), (1000, 1000), (2499, 1), (2500, 0)]
}


@pytest.mark.parametrize("shape", SHAPES)
def test_both_make_the_same(shape: str) -> None:
    given = SHAPES[shape]
    found = outcome(given, natively=False)
    assert outcome(given, natively=True) == found
    for natively in (True, False):
        assert outcome(streamed(given), natively=natively) == found


def test_a_body_is_bytes_whatever_its_type() -> None:
    assert [body for body, _ in outcome(SHAPES["a body of any bytes"], natively=True)] == [b"a\xff", b"ok"]


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize(
    ("shape", "column", "row"),
    [("keys of any bytes", "keys", 1), ("tags of any bytes", "tags", 1), ("values of any bytes", "properties", 0)],
)
def test_text_that_is_none_is_named(shape: str, column: str, row: int, natively: bool) -> None:
    with pytest.raises(IllegalMessage, match=f"column {column} is no Unicode text") as caught:
        encode(SHAPES[shape], natively=natively)
    assert caught.value.__notes__ == [f"row {row} of the partition (w-0-0)"]


@pytest.mark.parametrize(("kind", "number"), [(pa.timestamp("us", "UTC"), 253402300800000000), (pa.date32(), 2932897)])
def test_a_time_beyond_what_bodies_have_is_named(kind: pa.DataType, number: int) -> None:
    column = pa.array([0, number], pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    value = pa.StructArray.from_arrays([column], ["at"])
    options = WriteOptions.parse({"nameserver": "h:1", "topic": "t", "bodyformat": "json"})
    with pytest.raises(IllegalMessage, match="column value has a value out of bounds") as refused:
        RowEncoder(options, "w-0").encode(pa.RecordBatch.from_pydict({"value": value}))
    assert refused.value.__notes__ == ["row 1 of the partition (w-0)"]


def test_keys_that_are_null_are_none() -> None:
    given = rows(body=[b"a", b"b", b"c"], keys=pa.array([["a", None, "", "b"], [None], None]))
    found = [properties.split(b"\x02")[0] for _, properties in outcome(given, natively=True)]
    assert found == [b"KEYS\x01a b", b"GANTRY_ID\x01w-0-0-1", b"GANTRY_ID\x01w-0-0-2"]


def test_a_column_twice_is_refused() -> None:
    twice = StructType([StructField("body", StringType()), StructField("body", BinaryType())])
    with pytest.raises(ConfigError, match="column body is there twice"):
        check_columns(twice, WriteOptions(["127.0.0.1:9876"], "t"))


@pytest.mark.parametrize("natively", [True, False])
def test_properties_of_a_transaction_leave_room_for_what_brokers_add(natively: bool) -> None:
    """Uses the longest topic name. The encoder itself must reject longer properties, with a clear error."""
    topic = "t" * 127
    with EmbeddedCluster() as cluster:
        options = WriteOptions([cluster.name_server], topic, transactional=True)

        def of_length(length: int) -> dict[str, TopicMessages]:
            encoder = RowEncoder(options, "w-0-0")
            others = len("KEYS..GANTRY_ID.w-0-0-0.UNIQ_KEY..") + 32
            given = rows(body=[b"x"], keys=["k" * (length - others)])
            return (encoder.encode if natively else encoder._encode_one_by_one)(given)

        most = MAX_PROPERTIES_LENGTH - 512
        with pytest.raises(IllegalMessage, match=f"properties of {most + 1} bytes: at most {most} are allowed"):
            of_length(most + 1)

        async def store() -> HalfSender:
            async with ClusterClient(options.name_servers, 5000) as brokers:
                sender = HalfSender(brokers, 0, options.transaction_timeout_s)
                await sender.send(of_length(most))
                return sender

        sender = run(store())
        assert (len(sender.halves), sender.alone) == (1, [])


def test_times_of_the_hour_that_comes_twice() -> None:
    """Spark passes times in the session's time zone."""
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    times = [first, first + timedelta(hours=1)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", "b"]), pa.array(times, pa.timestamp("us", "Europe/Berlin"))], ["body", "deliverAt"]
    )
    messages = RowEncoder(WriteOptions(["a:1"], "t"), "w-0-0").encode(batch)["t"].alone
    for (_, (_, _, properties)), time in zip(messages, times, strict=True):
        assert b"TIMER_DELIVER_MS\x01%d\x02" % (time.timestamp() * 1000) in properties


@pytest.mark.parametrize("mode", ["plain", "transactional", "exactly_once"])
def test_a_row_that_a_broker_refuses_is_named(mode: str) -> None:
    with EmbeddedCluster() as cluster:
        create_topic(cluster, "t", 1, brokers=[0])
        names = [cluster.name_server]
        options = WriteOptions(names, "t", transactional=mode == "transactional", exactly_once=mode == "exactly_once")

        async def write() -> None:
            async with ClusterClient(names, 5000) as brokers:
                sender: RowSender | IdempotentSender = RowSender(brokers, 0)
                if options.transactional:
                    sender = HalfSender(brokers, 0, options.transaction_timeout_s)
                elif options.exactly_once:
                    sender = IdempotentSender(brokers, await find_write_queues(brokers, options), 0)
                await sender.send(RowEncoder(options, "w-0-0").encode(SHAPES["a large body"]))

        with pytest.raises(BrokerError, match="at most 4194304") as caught:
            run(write())
        assert caught.value.__notes__ == ["row 0 of the partition (w-0-0)"]


def test_a_large_row_of_a_transaction_goes_alone_and_no_other() -> None:
    """In a batch of its own, the row would exceed the broker's message size limit.

    Brokers report this like brokers that reject all batches.
    """
    with EmbeddedCluster() as cluster:
        options = WriteOptions([cluster.name_server], "t", transactional=True)

        async def store() -> HalfSender:
            async with ClusterClient(options.name_servers, 5000) as brokers:
                sender, encoder = HalfSender(brokers, 0, options.transaction_timeout_s), RowEncoder(options, "w-0-0")
                for body in (b"x" * 4 * 1024 * 1024, b"y"):
                    await sender.send(encoder.encode(rows(body=[body])))
                return sender

        sender = run(store())
        assert (len(sender.halves), len(sender.alone)) == (1, 1)


@pytest.mark.parametrize("mode", ["plain", "delayed", "exactly_once"])
def test_an_empty_sharding_key_is_none(mode: str) -> None:
    given = rows(body=[b"a", b"b", b"c"], shardingKey=["", None, "k"])
    if mode == "delayed":
        given = given.append_column("delayMs", pa.array([60_000] * 3, pa.int64()))
    made = encode(given, natively=True, options=WriteOptions(["a:1"], "t", exactly_once=mode == "exactly_once"))
    if mode == "plain":
        assert [batch.messages for batch in made.free] == [2]
        assert {key: len(messages) for key, messages in made.by_key.items()} == {"k": 1}
    else:
        keys = [key for key, _ in made.alone] if mode == "delayed" else [row.queue_key for row in made.numbered]
        assert keys == [None, None, "k"]


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_what_a_row_of_exactly_once_was_is_left_out(exactly_once: bool, natively: bool) -> None:
    """Otherwise the row would have two GANTRY_SEQ properties, and brokers read the first one."""
    given = rows(body=[b"a"], properties=maps([("GANTRY_SEQ", "1-2"), ("colour", "blue")]))
    options = WriteOptions(["127.0.0.1:9876"], "t", exactly_once=exactly_once)
    made = encode(given, natively=natively, options=options)
    batches = made.free if made.plain is None else made.plain.batches() or []
    messages = [*(row.message for row in made.numbered), *(m for batch in batches for m in decode_batch(batch.body))]
    ((_, _, properties),) = messages
    assert b"GANTRY_SEQ" not in properties
    assert b"colour\x01blue\x02" in properties
