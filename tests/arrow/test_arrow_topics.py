"""Tests `write_topic`, `read_topic` and `scan_store`, without Spark."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from wait_until import wait_until

from gantrymq import AdminClient
from gantrymq.arrow import read_topic, scan_store, write_topic
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.client.broker_api import BrokerApi
from gantrymq.errors import ConfigError, DataLost, IllegalMessage, NoRouteInfo, RecordError, StoreError
from gantrymq.testing.embedded import EmbeddedCluster

QUICK = {"retryTimeoutMs": "500"}


def numbers(count: int) -> pa.Table:
    """Returns numbers as bodies, with the tags Even and Odd."""
    return pa.table(
        {"body": [str(n) for n in range(count)], "tags": ["Odd" if n % 2 else "Even" for n in range(count)]}
    )


def bodies(cluster: EmbeddedCluster, topic: str, **more: Any) -> list[int]:
    rows = read_topic(cluster.name_server, topic, columns=["body"], **more).read_all()
    assert rows.schema.names == ["body"]
    return sorted(int(body) for body in rows.column("body").to_pylist())


def test_the_columns_of_a_read(cluster: EmbeddedCluster) -> None:
    assert write_topic(cluster.name_server, "columns", numbers(100)) == 100
    reader = read_topic(cluster.name_server, "columns")
    names = [name for name in ARROW_TYPES if name not in ("properties", "bodyError")]
    assert reader.schema == pa.schema([(name, ARROW_TYPES[name]) for name in names])
    rows = reader.read_all()
    assert rows.num_rows == 100
    assert set(rows.column("topic").to_pylist()) == {"columns"}
    more = {"includeProperties": "true", "propertyColumns": "GANTRY_ID"}
    rows = read_topic(cluster.name_server, "columns", options=more).read_all()
    assert rows.schema.names == [*names, "properties", "GANTRY_ID"]
    assert rows.column("GANTRY_ID").null_count == 0


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ([("tags", "=", "Odd")], range(1, 100, 2)),
        ([("tags", "!=", "Odd")], range(0, 100, 2)),
        ([("tags", "in", ["Odd", "None"])], range(1, 100, 2)),
        ([("tags", "not in", ("Odd",))], range(0, 100, 2)),
        ([("body", "<=", b"0"), ("tags", "=", "Even")], range(1)),
        ([("topic", "=", "another")], ()),
        ([("topic", "=", b"conditions"), ("queueOffset", ">=", np.int64(0))], range(100)),
        ([("queueOffset", ">=", 1_000)], ()),
        ("TAGS = 'Odd'", range(1, 100, 2)),
    ],
)
def test_conditions(cluster: EmbeddedCluster, conditions: Any, wanted: range) -> None:
    if not _exists(cluster, "conditions"):
        write_topic(cluster.name_server, "conditions", numbers(100))
    assert bodies(cluster, "conditions", filter=conditions) == list(wanted)


def _exists(cluster: EmbeddedCluster, topic: str) -> bool:
    try:
        read_topic(cluster.name_server, topic, options=QUICK)
    except NoRouteInfo:
        return False
    return True


def test_conditions_on_queues_and_times(cluster: EmbeddedCluster) -> None:
    write_topic(cluster.name_server, "queues", numbers(100))
    rows = read_topic(cluster.name_server, "queues", columns=["queueId", "storeTimestamp"]).read_all()
    first = rows.column("queueId").to_pylist()[0]
    found = read_topic(
        cluster.name_server, "queues", columns=["queueId"], filter=[("queueId", "in", [first]), ("queueId", "<", 99)]
    )
    assert set(found.read_all().column("queueId").to_pylist()) == {first}
    times = rows.column("storeTimestamp").to_pylist()
    assert len(bodies(cluster, "queues", filter=[("storeTimestamp", ">", max(times))])) == 0
    assert len(bodies(cluster, "queues", filter=[("storeTimestamp", "<=", max(times))])) == 100
    assert len(bodies(cluster, "queues", start=min(times))) == 100
    assert len(bodies(cluster, "queues", end=min(times) - timedelta(days=1))) == 0


def test_a_repeated_write_is_stored_once(cluster: EmbeddedCluster) -> None:
    write_topic(cluster.name_server, "once", numbers(1))
    # The sizes of the batches can differ.
    for rows in (numbers(3000), numbers(3000).to_reader(max_chunksize=700)):
        assert write_topic(cluster.name_server, "once", rows, exactly_once=("load", 1)) == 3000
    write_topic(cluster.name_server, "once", numbers(10), exactly_once=("load", 2))
    assert len(bodies(cluster, "once")) == 1 + 3000 + 10


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"columns": ["bodies"]}, "no column 'bodies'"),
        ({"columns": []}, "at least one column"),
        ({"columns": "body"}, "columns: a list of names was expected, not the text 'body'"),
        ({"columns": ["body", "body"]}, "named twice"),
        ({"filter": [("tags", "~", "a")]}, "no operator '~'"),
        ({"filter": [("tags", "=", None)]}, "is None"),
        ({"filter": [("queueId", "=", "one")]}, "is no value for column queueId"),
        ({"filter": [("tags", "in", "a")]}, "needs a list"),
        ({"filter": [("tags",)]}, "is not"),
        ({"filter": [("properties", "=", {"a": "b"})]}, "can't be compared"),
        ({"filter": [("storeTimestamp", ">", datetime(2026, 1, 1))]}, "no time zone"),
        ({"filter": "a >"}, "sql92"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),
        ({"start": "yesterday"}, "startingOffsets"),
        ({"start": date(2026, 1, 1)}, "start: datetime.date.* is none of 'earliest'"),
        ({"end": {("broker-a", 0): 1}}, "end: .* is none of 'earliest'"),
        ({"start": datetime.now(UTC) + timedelta(days=1)}, "future"),
        ({"start": {"broker-a:9999": 1}}, "broker-a:9999"),
        ({"options": {"minPartitions": "2"}}, "no meaning"),
        ({"options": {"subscribe": "other"}}, "no meaning"),
    ],
)
def test_invalid_arguments(cluster: EmbeddedCluster, arguments: dict[str, Any], problem: str) -> None:
    if not _exists(cluster, "arguments"):
        write_topic(cluster.name_server, "arguments", numbers(1))
    with pytest.raises(ConfigError, match=problem):
        read_topic(cluster.name_server, "arguments", **arguments)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (pa.table({"text": ["a"]}), "needs a column body"),
        (pa.table({"body": ["a"], "keys": [1]}), "column keys is int64"),
        (pa.table({"body": ["a"], "offset": [1]}), "no use for column 'offset'"),
        (pa.table({"body": ["a"], "topic": ["t"]}), "either a topic or a column topic"),
        (pa.table({"body": ["a"], "deliverAt": [datetime(2026, 1, 1)]}), "without a time zone"),
        ([1, 2], "list has no Arrow data"),
        (pl.Series("body", ["a"]), "Series is no table with columns"),
    ],
)
def test_invalid_rows(cluster: EmbeddedCluster, rows: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        write_topic(cluster.name_server, "rows", rows)


def test_frames_of_pandas(cluster: EmbeddedCluster) -> None:
    times = pd.to_datetime([1_700_000_000_000_000_001] * 4, utc=True)
    frame = pd.DataFrame({"body": list("0123"), "tags": [None, "A", "A", "B"], "deliverAt": times})
    filtered = frame[frame.tags == "A"]
    assert write_topic(cluster.name_server, "pandas", filtered) == 2
    assert bodies(cluster, "pandas") == [1, 2]
    with pytest.raises(ConfigError, match="no use for column 'number'"):
        write_topic(cluster.name_server, "pandas", filtered.rename_axis("number"))


@pytest.mark.parametrize("write", ["load", ("", 1), ("load",)])
def test_an_invalid_name_of_a_write(cluster: EmbeddedCluster, write: Any) -> None:
    with pytest.raises(ConfigError, match="is no name and number, such as"):
        write_topic(cluster.name_server, "rows", numbers(1), exactly_once=write)


@pytest.mark.parametrize("tags", [pl.Categorical, pl.Enum(["A", "B"])])
def test_frames_of_polars(cluster: EmbeddedCluster, tags: Any) -> None:
    topic = f"polars-{type(tags).__name__}"
    frame = pl.DataFrame({"body": ["a", "b", "c"], "tags": ["A", None, "B"]}, schema_overrides={"tags": tags})
    assert write_topic(cluster.name_server, topic, frame) == 3
    rows = pl.from_arrow(read_topic(cluster.name_server, topic, columns=["body", "tags"]))
    assert sorted(rows.rows()) == [(b"a", "A"), (b"b", None), (b"c", "B")]


def test_polars_reads_a_topic_without_selected_rows(cluster: EmbeddedCluster) -> None:
    write_topic(cluster.name_server, "polars-empty", numbers(1))
    reader = read_topic(cluster.name_server, "polars-empty", columns=["body"], filter=[("tags", "=", "None")])
    frame = pl.from_arrow(reader)
    assert frame.schema == {"body": pl.Binary}
    assert frame.is_empty()


def test_an_empty_body_names_its_row(cluster: EmbeddedCluster) -> None:
    with pytest.raises(IllegalMessage) as caught:
        write_topic(cluster.name_server, "empty-body", pa.table({"body": ["a", None]}))
    assert any("row 1 " in note for note in caught.value.__notes__)


def test_lost_messages(cluster: EmbeddedCluster) -> None:
    write_topic(cluster.name_server, "lost", numbers(4))
    with pytest.raises(DataLost, match=r"set the option failOnDataLoss=false$"):
        read_topic(cluster.name_server, "lost", start={"broker-a:0": 1000})
    with pytest.raises(NoRouteInfo):
        read_topic(cluster.name_server, "never-created", options=QUICK)
    with pytest.raises(ConfigError, match="no topic"):
        read_topic(cluster.name_server, [])


def test_damaged_records(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    write_topic(cluster.name_server, "damaged", numbers(100))
    pull = BrokerApi.pull_at_once

    async def damaged(self: BrokerApi, *args: Any, **more: Any) -> Any:
        result = await pull(self, *args, **more)
        return result._replace(body=result.body[:-5]) if result.body else result

    monkeypatch.setattr(BrokerApi, "pull_at_once", damaged)
    reader = read_topic(cluster.name_server, "damaged", columns=["body"])
    with pytest.raises(RecordError, match="damaged broker-a:"):
        reader.read_all()


def test_a_process_ends_with_an_abandoned_reader(cluster: EmbeddedCluster) -> None:
    write_topic(cluster.name_server, "abandoned", numbers(100))
    code = (
        "from gantrymq.arrow import read_topic\n"
        f"reader = read_topic({cluster.name_server!r}, 'abandoned')\n"
        "print(reader.read_next_batch().num_rows > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_store(tmp_path: Path) -> None:
    with EmbeddedCluster(directory=tmp_path) as running:
        write_topic(running.name_server, "stored", numbers(100))
        write_topic(running.name_server, "others", numbers(10))
    store = next(path.parent for path in tmp_path.rglob("commitlog"))
    assert scan_store(store).read_all().num_rows == 110
    rows = scan_store(store, "stored", columns=["body"], filter=[("tags", "=", "Odd")]).read_all()
    assert sorted(map(int, rows.column("body").to_pylist())) == list(range(1, 100, 2))
    assert scan_store(store, ["stored", "others"], end=datetime(2020, 1, 1, tzinfo=UTC)).read_all().num_rows == 0
    with pytest.raises(ConfigError, match="no topic"):
        scan_store(store, [])
    with pytest.raises(ConfigError, match="no time zone"):
        scan_store(store, start=datetime(2020, 1, 1))
    with pytest.raises(StoreError):
        scan_store(tmp_path / "nothing")
    log = next((store / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    at = content.index(b"stored") - 4
    content[at] ^= 0xFF
    log.write_bytes(content)
    with pytest.raises(StoreError):
        scan_store(store).read_all()


def test_the_functions_are_imported_on_first_use() -> None:
    """Otherwise each Python worker of Spark would import them."""
    code = (
        "import sys, gantrymq.arrow.rows, gantrymq.arrow.planning\n"
        "print(sorted(name for name in sys.modules if name.startswith('gantrymq.arrow.topic_')))\n"
        "from gantrymq.arrow import *\n"
        "print(TopicStream, read_topic, scan_store, stream_topic, write_topic)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[]"


def test_a_compaction_topic(tmp_path: Path) -> None:
    """A compaction leaves gaps between the offsets. With `compacted`, they are no data loss."""

    async def ensure(name_server: str) -> None:
        async with AdminClient(name_server) as admin:
            await admin.ensure_topic("state", queues=1, attributes={"cleanup.policy": "COMPACTION"})

    options = {
        "compaction_mapped_file_size": 4600,
        "compaction_cq_mapped_file_size": 20 * 46,
        "compaction_schedule_internal": 200,
    }
    with EmbeddedCluster(directory=tmp_path, **options) as cluster:
        asyncio.run(ensure(cluster.name_server))
        keys = ["lonely" if n == 3 else f"key-{n % 5}" for n in range(200)]
        rows = pa.table({"body": [str(n) for n in range(200)], "keys": keys})
        write_topic(cluster.name_server, "state", rows)
        more = {"options": {**QUICK, "compacted": "true"}}
        wait_until(lambda: len(bodies(cluster, "state", **more)) < 100)
        assert bodies(cluster, "state", **more)[-5:] == [195, 196, 197, 198, 199]
        with pytest.raises(DataLost):
            bodies(cluster, "state", options=QUICK)
