"""The configuration of the store has Java's keys, defaults and bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.config import from_properties, to_properties
from gantrymq.errors import ConfigError
from gantrymq.protocol.record import decode_record, encode_host, encode_record
from gantrymq.store.config import StoreConfig, check_supported
from gantrymq.store.delay_level import parse_delay_levels, tags_code_of


def test_directories():
    config = StoreConfig(Path("/data"))
    assert config.commit_log_directories == config.writable_commit_log_directories == [Path("/data/commitlog")]
    assert StoreConfig(Path("/data"), [Path("/fast/log")]).commit_log_directories == [Path("/fast/log")]


def test_several_directories_of_the_log():
    properties = {
        "storePathRootDir": "/data",
        "storePathCommitLog": "/b/log, /a/log/,/b/log,/c",
        "readOnlyCommitLogStorePaths": "/c/,/old",
    }
    config = from_properties(StoreConfig, properties, source="test")
    b, a, c, old = map(Path, ("/b/log", "/a/log", "/c", "/old"))
    assert config.commit_log_directories == [b, a, c, old]
    assert config.writable_commit_log_directories == [b, a]
    written = to_properties(config)
    assert written["readOnlyCommitLogStorePaths"] == "/c,/old"
    assert from_properties(StoreConfig, written, source="test") == config


def test_no_directory_has_a_nul():
    properties = {"storePathRootDir": "/data", "readOnlyCommitLogStorePaths": "/a,/b\0"}
    with pytest.raises(ConfigError, match=r"readOnlyCommitLogStorePaths=.*must not contain a NUL"):
        from_properties(StoreConfig, properties, source="test")


def test_one_directory_must_be_writable():
    with pytest.raises(ConfigError, match="readOnlyCommitLogStorePaths has all directories of the log: leave one out"):
        StoreConfig(Path("/data"), read_only_commit_log_store_paths=[Path("/data/commitlog")])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storeType", "defaultRocksDB"),
        ("storeType", "DEFAULTROCKSDB"),
        ("enableDLegerCommitLog", " true "),
        ("configManagerVersion", "v2"),
        ("timerRocksDBEnable", "true"),
        ("transRocksDBEnable", "TRUE"),
    ],
)
def test_a_store_that_is_elsewhere_is_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=f"{key}={value.strip()}: .* are not supported: "):
        check_supported({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storePathCommitLog", "/a,/b"),
        ("readOnlyCommitLogStorePaths", "/old"),
        ("storeType", "default"),
        ("enableDLegerCommitLog", "false"),
        ("configManagerVersion", "v1"),
        ("timerRocksDBEnable", "false"),
    ],
)
def test_javas_defaults_of_these_are_taken(key, value):
    check_supported({key: value})


def test_javas_keys():
    config = from_properties(
        StoreConfig,
        {
            "storePathRootDir": "/data",
            "storePathCommitLog": "/log",
            "mappedFileSizeCommitLog": "1048576",
            "mappedFileSizeConsumeQueue": "1999",
            "flushDiskType": "SYNC_FLUSH",
            "flushIntervalCommitLog": "250",
            "flushConsumeQueueThoroughInterval": "1000",
        },
        source="test",
    )
    assert config.commit_log_directories == [Path("/log")]
    assert config.mapped_file_size_commit_log == 1 << 20
    assert config.mapped_file_size_consume_queue == 2000
    assert (config.flush_interval_commit_log_ms, config.flush_consume_queue_thorough_interval_ms) == (250, 1000)


@pytest.mark.parametrize(
    "options",
    [
        {"mapped_file_size_commit_log": 100},
        {"mapped_file_size_commit_log": 1 << 31},
        {"mapped_file_size_consume_queue": 0},
        {"flush_disk_type": "SOMETIMES"},
        {"flush_interval_commit_log_ms": 0},
        {"max_message_size": 0},
        {"access_message_in_memory_max_ratio": 101},
        {"message_delay_level": "1s 2x"},
        {"message_delay_level": "s"},
    ],
)
def test_bounds(options):
    with pytest.raises(ConfigError):
        StoreConfig(Path("/data"), **options)


def test_delay_levels():
    assert parse_delay_levels("1s 2m 3h 1d") == [1000, 120_000, 10_800_000, 86_400_000]


@pytest.mark.parametrize(
    ("topic", "properties", "expected"),
    [
        (b"T", b"", 0),
        (b"T", b"TAGS\x01TagA\x02DELAY\x011\x02", 2598919),
        (b"SCHEDULE_TOPIC_XXXX", b"TAGS\x01TagA\x02DELAY\x012\x02", 1000 + 60_000),
        (b"SCHEDULE_TOPIC_XXXX", b"DELAY\x0199\x02", 1000 + 60_000),
        (b"SCHEDULE_TOPIC_XXXX", b"TAGS\x01TagA\x02DELAY\x010\x02", 2598919),
        (b"SCHEDULE_TOPIC_XXXX", b"DELAY\x01\xb2\x02", 0),
    ],
)
def test_tags_code_of_a_record(topic, properties, expected):
    host = encode_host("127.0.0.1", 1)
    record = decode_record(encode_record(0, 0, 0, 0, 0, 0, host, 1000, host, 0, 0, b"", topic, properties))
    assert tags_code_of(record, [1000, 60_000]) == expected
