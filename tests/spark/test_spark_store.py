"""Tests of format("rocketmq-store"): reads the files of this project's and of Apache's brokers without a broker."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import send_numbers

from gantrymq.arrow.store.planning import plan
from gantrymq.arrow.store.rows import read_range
from gantrymq.errors import StoreError
from gantrymq.protocol.record import encode_record
from gantrymq.spark.read_schema import arrow_schema, default_schema
from gantrymq.spark.store.options import StoreOptions
from gantrymq.store.offline import OfflineLog
from gantrymq.testing.embedded import EmbeddedCluster

JAVA_STORE = Path(__file__).parent.parent / "store" / "java_store" / "store.tar.xz"
MESSAGES = 8_000
FILE_BYTES = 256 * 1024
#: Position of the body in a record with IPv4 hosts.
BODY_START = 88
COLUMNS = arrow_schema(default_schema(include_properties=True, include_body_error=False))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the store of a stopped broker, with several files and two topics."""
    directory = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(directory=directory, mapped_file_size_commit_log=FILE_BYTES) as cluster:
        send_numbers(cluster, "numbers", range(MESSAGES))
        send_numbers(cluster, "others", range(100))
    return directory / "broker-a"


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> Path:
    """Returns a copy of only its commit log, for a test that damages it."""
    for file in (stopped / "commitlog").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def java_store(tmp_path: Path) -> Path:
    with tarfile.open(JAVA_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def read(path: Path, **options: str) -> pa.Table:
    """Returns the rows that Spark would read, without Spark."""
    parsed = StoreOptions.parse({"path": str(path), **options})
    batches = [batch for part in plan(parsed) for batch in read_range(part, parsed, COLUMNS)]
    return pa.Table.from_batches(batches, COLUMNS)


def read_part(path: Path, file: Path) -> pa.Table:
    """Returns the rows from one file of the commit log."""
    options = StoreOptions.parse({"path": str(path), "subscribe": "numbers"})
    parts = [part for part in plan(options) if part.path == file]
    return pa.Table.from_batches([batch for part in parts for batch in read_range(part, options, COLUMNS)], COLUMNS)


def written(commit_log: Path) -> list[Path]:
    """Returns the files of the commit log that contain data, without the preallocated one."""
    return sorted(file for file in commit_log.iterdir() if any(file.read_bytes()))


def numbers(table: pa.Table) -> list[int]:
    return sorted(map(int, table["body"].to_pylist()))


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("rocketmq-store").options(**options).load(str(path))


@pytest.mark.spark
def test_spark_reads_a_stopped_brokers_store(spark: SparkSession, stopped: Path) -> None:
    df = load(spark, stopped, subscribe="numbers", brokerName="broker-a", includeProperties="true")
    assert df.rdd.getNumPartitions() > 3
    number = F.col("body").cast("string").cast("long")
    total = df.select(F.count("*"), F.count_distinct(number), F.min(number), F.max(number)).first()
    assert total == (MESSAGES, MESSAGES, 0, MESSAGES - 1)
    wrong = df.where(
        (F.col("keys") != F.concat(F.lit("k"), number))
        | (F.col("tags") != F.when(number % 2 == 1, "Odd").otherwise("Even"))
        | (F.col("properties")["KEYS"] != F.col("keys"))
        | (F.col("brokerName") != "broker-a")
        | (F.col("topic") != "numbers")
        | (F.col("storeTimestamp") < F.col("bornTimestamp"))
    )
    assert wrong.count() == 0
    offsets = df.groupBy("queueId").agg(F.count("*").alias("n"), F.max("queueOffset").alias("last")).collect()
    assert len(offsets) == 4
    assert all(row.last == row.n - 1 for row in offsets)


@pytest.mark.spark
def test_mistakes_are_explained(spark: SparkSession, stopped: Path, tmp_path: Path) -> None:
    for path, options, message in [
        (stopped, {"subscribee": "numbers"}, "did you mean 'subscribe'"),
        (stopped, {"subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        (tmp_path, {}, "has no commit log"),
        (tmp_path / "absent", {}, "has no commit log"),
    ]:
        with pytest.raises(Exception, match=message):
            load(spark, path, **options).count()


def test_all_topics_of_users_without_a_selection(stopped: Path) -> None:
    assert Counter(read(stopped)["topic"].to_pylist()) == {"numbers": MESSAGES, "others": 100}
    assert Counter(read(stopped, subscribePattern="oth.*")["topic"].to_pylist()) == {"others": 100}
    assert read(stopped, subscribe="others")["brokerName"].null_count == 100


@pytest.mark.parametrize("size", ["500", "5000", "40000", "100000000"])
def test_files_are_cut_between_records(stopped: Path, size: str) -> None:
    options = StoreOptions.parse({"path": str(stopped), "maxPartitionBytes": size, "subscribe": "numbers"})
    parts = plan(options)
    files = len(written(stopped / "commitlog"))
    assert len(parts) == files if int(size) > FILE_BYTES else len(parts) > 2 * files
    rows = [batch for part in parts for batch in read_range(part, options, COLUMNS)]
    assert numbers(pa.Table.from_batches(rows)) == list(range(MESSAGES))


def test_a_commit_log_alone_is_enough(copied: Path) -> None:
    options = StoreOptions.parse({"path": str(copied), "maxPartitionBytes": "5000"})
    assert [part.path for part in plan(options)] == written(copied)
    assert numbers(read(copied, subscribe="numbers")) == list(range(MESSAGES))


def test_a_commit_log_in_several_directories(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in written(whole / "commitlog")[1::2]:
        file.rename(other / file.name)
    directories = f"{whole / 'commitlog'},{other}"
    assert numbers(read(whole, subscribe="numbers", storePathCommitLog=directories)) == list(range(MESSAGES))
    with pytest.raises(StoreError, match="failOnDataLoss"):
        read(whole)
    with pytest.raises(StoreError, match="absent: no file of a commit log"):
        read(whole, storePathCommitLog=str(tmp_path / "absent"))


def test_a_time_range(stopped: Path) -> None:
    times = [int(time.timestamp() * 1000) for time in read(stopped, subscribe="numbers")["storeTimestamp"].to_pylist()]
    assert times == sorted(times)
    low, high = times[MESSAGES // 3], times[2 * MESSAGES // 3]
    wanted = sum(low <= time < high for time in times)
    assert 0 < wanted < MESSAGES
    range_ = {"startingTimestamp": str(low), "endingTimestamp": str(high)}
    assert read(stopped, subscribe="numbers", **range_).num_rows == wanted
    assert read(stopped, subscribe="numbers", maxPartitionBytes="4000", **range_).num_rows == wanted
    whole = plan(StoreOptions.parse({"path": str(stopped), "maxPartitionBytes": "4000"}))
    some = plan(StoreOptions.parse({"path": str(stopped), "maxPartitionBytes": "4000", **range_}))
    assert 0 < len(some) < len(whole)


@pytest.fixture
def whole(stopped: Path, tmp_path: Path) -> Path:
    """Returns a copy of the whole store, for a test that damages it."""
    shutil.copytree(stopped, tmp_path / "whole")
    return tmp_path / "whole"


def torn_at(log: OfflineLog, lost: int) -> tuple[Path, int]:
    """Returns the file of the `lost`th last record, and the record's position in it."""
    torn = [record.physical_offset for record in log.reader()][-lost]
    file = log.file_at(torn)
    assert file is not None
    return file.path, torn - file.base


@pytest.mark.parametrize("lost", [1, 25])
def test_a_torn_tail_is_no_message(copied: Path, lost: int, caplog: pytest.LogCaptureFixture) -> None:
    """The disk has no data from a position inside the body of one of the last records on."""
    everything = read(copied)
    path, at = torn_at(OfflineLog(copied), lost)
    with path.open("r+b") as opened:
        opened.seek(at + BODY_START)
        opened.write(bytes(path.stat().st_size - opened.tell()))
    assert read(copied).equals(everything.slice(0, everything.num_rows - lost))
    (left_out,) = re.findall(r"(\d+) bytes behind the end of the log at .* left out", caplog.text)
    # The remaining bytes are the record's header, without trailing zeros of its hosts.
    assert 0 < int(left_out) <= BODY_START


@pytest.mark.parametrize("lost", [1, 25])
def test_consume_queues_know_what_the_log_has_lost(whole: Path, lost: int, caplog: pytest.LogCaptureFixture) -> None:
    everything = read(whole)
    path, at = torn_at(OfflineLog(whole / "commitlog"), lost)
    with path.open("r+b") as opened:
        opened.seek(at)
        opened.write(bytes(path.stat().st_size - at))
    with pytest.raises(StoreError, match=rf"consume queues have {lost} messages behind the end of the log"):
        read(whole)
    left = read(whole, failOnDataLoss="false")
    assert left.equals(everything.slice(0, everything.num_rows - lost))
    assert f"consume queues have {lost} messages" in caplog.text


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize("how", ["gone", "empty", "zeros", "short"])
@pytest.mark.parametrize("which", [1, -2])
def test_a_file_that_is_missing_in_the_middle(whole: Path, how: str, which: int, with_queues: bool) -> None:
    if not with_queues:
        shutil.rmtree(whole / "consumequeue")
    everything = set(numbers(read(whole, subscribe="numbers")))
    file = written(whole / "commitlog")[which]
    size = file.stat().st_size
    if how == "gone":
        file.unlink()
    elif how == "short":
        os.truncate(file, size // 2)
    else:
        file.write_bytes(bytes(size if how == "zeros" else 0))
    with pytest.raises(StoreError, match=r"of the log are missing|begins with no record"):
        read(whole, subscribe="numbers")
    left = numbers(read(whole, subscribe="numbers", failOnDataLoss="false"))
    assert 0 < len(left) < len(everything)
    assert len(set(left)) == len(left)
    assert set(left) < everything


def test_the_last_file_is_missing(whole: Path) -> None:
    written(whole / "commitlog")[-1].unlink()
    with pytest.raises(StoreError, match=r"consume queues have .* messages behind the end of the log"):
        read(whole)


@pytest.mark.parametrize("lost", [3, 40])
def test_a_damaged_byte_is_told_from_a_crash(copied: Path, lost: int) -> None:
    """A record's size is wrong, in the last file of a log without consume queues."""
    everything = read(copied)
    path, at = torn_at(OfflineLog(copied), lost)
    content = bytearray(path.read_bytes())
    content[at + 3] ^= 0x15
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"the log ends at .* is damaged, but has whole records from"):
        read(copied)
    assert read(copied, failOnDataLoss="false").equals(everything.slice(0, everything.num_rows - lost))


def test_what_a_recovery_has_left_behind_is_no_damage(copied: Path) -> None:
    """Older records after the end are not damage: a broker has begun to overwrite them."""
    everything = read(copied)
    log = OfflineLog(copied)
    last = [*log.reader()][-1]
    path, at = torn_at(log, 1)
    old = encode_record(
        0, 0, 9, last.physical_offset + last.size + 50, 0, 1, bytes(8), 1, bytes(8), 0, 0, b"old", b"numbers", b""
    )
    content = bytearray(path.read_bytes())
    content[at + last.size : at + last.size + 50] = b"x" * 50
    content[at + last.size + 50 : at + last.size + 50 + len(old)] = old
    path.write_bytes(content)
    assert read(copied).equals(everything)


def test_damage_is_an_error_or_left_out(copied: Path) -> None:
    """A body is corrupt, in a file that is not the last one."""
    everything = numbers(read(copied, subscribe="numbers"))
    first = min(copied.iterdir())
    content = bytearray(first.read_bytes())
    at = content.index(b"KEYS\x01k1000\x02") - 40
    place = content.rindex(b"numbers", 0, at + 40) - 2
    content[place] ^= 0xFF
    first.write_bytes(content)
    with pytest.raises(StoreError, match=f"{first} is damaged at .*CRC32"):
        read(copied)
    left = numbers(read(copied, subscribe="numbers", failOnDataLoss="false"))
    assert 0 < len(left) < len(everything)
    assert set(left) < set(everything)
    # Without the CRC check, the row is returned with a wrong body.
    assert read(copied, subscribe="numbers", checkCrc="false").num_rows == MESSAGES


def rot(path: Path, at: int) -> None:
    """Changes the first byte of the body of the record at this position."""
    with path.open("r+b") as opened:
        opened.seek(at + BODY_START)
        (byte,) = opened.read(1)
        opened.seek(at + BODY_START)
        opened.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("option", ["checkCrc", "corruptBodies"])
@pytest.mark.parametrize("with_queues", [True, False])
def test_a_body_that_has_rotted_costs_no_other_row(whole: Path, with_queues: bool, option: str) -> None:
    """Corrupt bodies are at the start of a file, and where the reader searches for the end of the log."""
    if not with_queues:
        shutil.rmtree(whole / "consumequeue")
    everything = read(whole)
    log = OfflineLog(whole / "commitlog")
    places = [torn_at(log, lost) for lost in (40, 39, 3)]
    files = written(whole / "commitlog")
    for path, at in [(files[1], 0), (files[-1], 0), *places]:
        rot(path, at)
    given = {"checkCrc": "false", "corruptBodies": "null"}[option]
    found = read(whole, **{option: given}, maxPartitionBytes="20000")
    assert found.drop_columns("body").equals(everything.drop_columns("body"))
    same = pc.equal(found["body"], everything["body"]).to_pylist()
    assert same.count(True) == len(same) - 5
    assert same.count(None) == (5 if option == "corruptBodies" else 0)
    with pytest.raises(StoreError, match="CRC32" if with_queues else "the log ends at .* is damaged"):
        read(whole)


def test_a_rotten_body_costs_what_is_behind_it_in_its_partition(copied: Path) -> None:
    everything = numbers(read(copied, subscribe="numbers"))
    file = written(copied)[1]
    of_file = numbers(read_part(copied, file))
    rot(file, 0)
    with pytest.raises(StoreError, match=f"{file} is damaged at 0: .*CRC32"):
        read(copied)
    left = numbers(read(copied, subscribe="numbers", failOnDataLoss="false"))
    assert left == sorted(set(everything) - set(of_file))


@pytest.mark.parametrize("with_queues", [True, False])
def test_the_last_body_is_torn_where_no_queue_has_it(
    whole: Path, with_queues: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash, a record's body can be missing on disk."""
    if not with_queues:
        shutil.rmtree(whole / "consumequeue")
    everything = read(whole)
    rot(*torn_at(OfflineLog(whole / "commitlog"), 1))
    found = read(whole, corruptBodies="null")
    assert found.num_rows == everything.num_rows - (not with_queues)
    assert found["body"].null_count == with_queues
    assert ("bytes behind the end of the log" in caplog.text) is not with_queues


def test_a_file_that_is_no_log(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(b"something else" * 1000)
    with pytest.raises(StoreError, match="no file of a commit log"):
        read(tmp_path)


def test_a_running_broker_is_no_obstacle(tmp_path: Path) -> None:
    with EmbeddedCluster(directory=tmp_path) as cluster:
        send_numbers(cluster, "numbers", range(500))
        options = StoreOptions.parse({"path": str(tmp_path / "broker-a"), "subscribe": "numbers"})
        parts = plan(options)
        # The end of the read is fixed when it is planned.
        send_numbers(cluster, "numbers", range(500, 1000))
        rows = [batch for part in parts for batch in read_range(part, options, COLUMNS)]
        assert numbers(pa.Table.from_batches(rows)) == list(range(500))
        assert numbers(read(tmp_path / "broker-a", subscribe="numbers")) == list(range(1000))


def test_a_store_of_apaches_broker(java_store: Path) -> None:
    """tests/store/test_java_store.py lists the messages that were sent."""
    table = read(java_store)
    # Pending delayed messages and half messages are in system topics.
    assert Counter(table["topic"].to_pylist()) == {"Fruit": 162, "Big": 4, "Paid": 2}
    assert {"标签", "TagA", "TagB", None} <= set(table["tags"].to_pylist())
    assert all(table["msgId"].to_pylist())
    small = read(java_store, maxPartitionBytes="3000")
    assert small.equals(table)
    scheduled = read(java_store, subscribe="SCHEDULE_TOPIC_XXXX")
    assert scheduled.num_rows == 2


def test_empty_files_made_in_advance(java_store: Path) -> None:
    files = sorted((java_store / "commitlog").iterdir())
    size = files[0].stat().st_size
    before = read(java_store)
    (files[-1].parent / f"{int(files[-1].name) + size:020d}").write_bytes(bytes(size))
    assert read(java_store).equals(before)
    for directory in (java_store / "consumequeue").iterdir():
        directory.rename(java_store / f"gone-{directory.name}")
    assert read(java_store).equals(before)
