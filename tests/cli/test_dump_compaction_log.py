"""`gantry admin dumpCompactionLog`: the messages of a file of a compaction log."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

from gantrymq.cli.main import run
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import encode_host
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore

HOST = encode_host("127.0.0.1", 1)
STORED_MS = 1_700_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns a file with three messages: a value, a tombstone, and a value of another key."""
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=65536, max_hash_slot_num=64, max_index_num=256)
    config.compaction_mapped_file_size, config.compaction_cq_mapped_file_size = 4600, 20 * 46
    store = MessageStore(config, HOST, compaction_topics=lambda: ["states"])
    store.open()
    queue = store.queue("states", 0)
    for key, body in (("lamp", "an 果".encode()), ("lamp", b""), ("door", b"\xff\xfe")):
        store.append(queue, 0, 0, STORED_MS, HOST, 0, body, encode_properties({"KEYS": key}), 0)
    flushed = Event()
    store.when_flushed(store.max_physical_offset, lambda error: flushed.set())
    assert flushed.wait(10)
    assert store.compaction.copy(60.0)
    store.compaction.flush()
    store.close()
    return tmp_path / "compaction" / "compactionLog" / "states" / "0" / ("0" * 20)


def dumped(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, object]], str]:
    """Returns the messages of the JSON document, and standard error."""
    assert run(["admin", "dumpCompactionLog", "-f", str(file), "--json"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def test_all_messages_are_printed_without_a_cluster(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages, warnings = dumped(file, capsys)
    assert [(one["topic"], one["queueId"], one["queueOffset"], one["keys"], one["body"]) for one in messages] == [
        ("states", 0, 0, ["lamp"], "an 果"),
        ("states", 0, 1, ["lamp"], ""),
        ("states", 0, 2, ["door"], "\ufffd\ufffd"),
    ]
    assert messages[2]["bodyBase64"] == "//4="
    assert warnings == ""
    assert run(["admin", "dumpCompactionLog", "-f", str(file)]) == 0
    table = capsys.readouterr().out
    assert [line.split()[-1] for line in table.splitlines() if "door" in line] == ["\ufffd\ufffd"]


def test_a_damaged_record_is_left_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[data.index("果".encode())] ^= 1
    file.write_bytes(data)
    messages, warnings = dumped(file, capsys)
    assert [one["queueOffset"] for one in messages] == [1, 2]
    assert f"{file} has a damaged record at 0, which is left out" in warnings
    data[size : size + 4] = b"\x7f\xff\xff\xff"
    file.write_bytes(data)
    messages, warnings = dumped(file, capsys)
    assert messages == []
    assert f"{file} has no record at {size}: the rest of the file is not read" in warnings


def test_the_end_of_a_full_file_is_no_damage(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = file.read_bytes()
    size = int.from_bytes(data[:4], "big")
    file.write_bytes(data[:size] + (len(data) - size).to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    messages, warnings = dumped(file, capsys)
    assert [one["queueOffset"] for one in messages] == [0]
    assert warnings == ""


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file or directory")):
        assert run(["admin", "dumpCompactionLog", "-f", str(path)]) == 1
        assert f"can't read {path}: {reason}" in capsys.readouterr().err
