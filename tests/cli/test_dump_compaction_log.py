"""`gantry admin dumpCompactionLog`: the messages of a file of a compaction log."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from threading import Event

import pytest

from gantrymq.cli.main import run
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import MAGIC_V1, decode_record, encode_again, encode_host
from gantrymq.store.config import StoreConfig
from gantrymq.store.dump import dump_compaction_log
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


def test_a_list_without_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert dumped(tmp_path / "empty", capsys) == ([], "")
    assert run(["admin", "dumpCompactionLog", "-f", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out.startswith("Message ID")


def test_the_size_of_a_record_is_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has enough bytes for the claimed size, but uses no disk space."""
    path, claimed = tmp_path / "large", 17 * 1024 * 1024
    with path.open("wb") as large:
        large.write(claimed.to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big"))
        large.truncate(claimed)
    messages, warnings = dumped(path, capsys)
    assert messages == []
    assert f"{path} has no record at 0: the rest of the file is not read" in warnings


def test_a_record_that_ends_after_the_file_is_left_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a file is left by a crash, or by a broker that cuts it off meanwhile."""
    data = file.read_bytes()
    size = int.from_bytes(data[:4], "big")
    file.write_bytes(data[: size + 10])
    messages, warnings = dumped(file, capsys)
    assert [one["queueOffset"] for one in messages] == [0]
    assert f"{file} has a damaged record at {size}, which is left out" in warnings


def test_messages_are_printed_while_the_file_is_read(file: Path) -> None:
    """The output starts before the end of the file, so that memory does not depend on the number of messages."""
    record = file.read_bytes()[: int.from_bytes(file.read_bytes()[:4], "big")]
    dump = dump_compaction_log(file, pytest.fail)
    next(dump)
    file.write_bytes(record)
    assert list(dump) == []


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_a_large_file_takes_little_memory(json_option: list[str], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 messages of 1 MiB."""
    first = decode_record(file.read_bytes())
    record = encode_again(first._replace(body=b"x" * (1 << 20)))
    with file.open("wb") as large:
        for _ in range(40):
            large.write(record)
    with open(os.devnull, "w") as nothing:
        monkeypatch.setattr("sys.stdout", nothing)
        tracemalloc.start()
        try:
            assert run(["admin", "dumpCompactionLog", "-f", str(file), *json_option]) == 0
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 60 << 20


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    reasons = {".": "not a regular file", "pipe": "not a regular file", "none": "No such file or directory"}
    for name, reason in reasons.items():
        path = tmp_path / name
        assert run(["admin", "dumpCompactionLog", "-f", str(path)]) == 1
        assert f"can't read {path}: {reason}" in capsys.readouterr().err
