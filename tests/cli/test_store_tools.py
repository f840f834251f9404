"""Tests of the options, output and exit codes of `gantry store`.

tests/store/test_offline_tools.py covers the findings of the tools.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gantrymq.cli.main import run
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.record import encode_host
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore

HOST = encode_host("127.0.0.1", 1)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=any\nmappedFileSizeCommitLog=65536\nmaxHashSlotNum=64\nmaxIndexNum=256\n")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns the directory of a closed store with six messages."""
    root = tmp_path / "store"
    store = opened(root)
    for n in range(6):
        queue = store.queue("Fruit", n % 2)
        body = b"\xff\xfe" if n == 5 else f"{n} 果".encode()
        properties = b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d\x02TAGS\x01a\x02" % (n, n % 3)
        store.append(queue, 0, 0, 1_700_000_000_000, HOST, 0, body, properties, string_hash_code("a"))
    assert store.keys.build_index(10)
    store.close()
    return root


def opened(root: Path) -> MessageStore:
    config = StoreConfig(root, mapped_file_size_commit_log=65536, max_hash_slot_num=64, max_index_num=256)
    store = MessageStore(config, HOST)
    store.open()
    return store


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "rebuild"])
def test_each_has_help_and_names_a_missing_store(command, tmp_path, capsys):
    assert run(["store", command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out
    assert run(["store", command, str(tmp_path / "none")]) == 2
    assert run(["store", command, str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_inspect(root, config_file, capsys):
    assert run(["store", "inspect", str(root), "-c", str(config_file)]) == 0
    out = capsys.readouterr().out
    for words in ("closed", "Fruit", "18 entries", "1 files of 64 KiB"):
        assert words in out
    assert run(["store", "inspect", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["queues"][1] == {"topic": "Fruit", "queueId": 1, "firstOffset": 0, "maxOffset": 3}
    assert (found["inUse"], found["wasClosed"]) == (False, True)
    assert found["indexFiles"][0]["indexCount"] == 19
    assert found["checkpoint"]["confirmPhyOffset"] > 0


def test_inspect_several_directories(root, config_file, tmp_path, capsys):
    """The configuration names them, as for a broker."""
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{64 * 1024:020d}").write_bytes(bytes(64 * 1024))
    config_file.write_text(f"{config_file.read_text()}\nstorePathCommitLog={root}/commitlog,{other}\n")
    assert run(["store", "inspect", str(root), "-c", str(config_file)]) == 0
    out = capsys.readouterr().out
    assert "2 files of 64 KiB" in out
    assert f"log: 1 of the files are in {other}\n" in out
    assert run(["store", "verify", str(root), "-c", str(config_file)]) == 0
    assert "6 records" in capsys.readouterr().out


def test_verify(root, config_file, capsys):
    arguments = ["store", "verify", str(root), "-c", str(config_file)]
    assert run(arguments) == 0
    assert "6 records" in capsys.readouterr().out
    log = root / "commitlog" / ("0" * 20)
    content = log.read_bytes()
    log.write_bytes(content.replace("3 果".encode(), b"wrong", 1)[: len(content)])
    assert run(arguments) == 1
    out = lines(capsys)
    assert "CRC32" in out[0]
    assert "problems" in out[-1]
    assert run([*arguments, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problemCount"] == len(report["problems"]) > 0


def test_verify_reads_the_deleted_topics(root, config_file, capsys):
    shutil.rmtree(root / "consumequeue" / "Fruit" / "1")
    arguments = ["store", "verify", str(root), "-c", str(config_file)]
    assert run(arguments) == 1
    assert "Fruit-1 has no units" in lines(capsys)[0]
    deleted = {"gantryDiscards": {"deletedTopics": {"Fruit": 1 << 40}}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps(deleted))
    assert run(arguments) == 0


def test_verify_and_dump_warn_while_a_broker_runs(root, config_file, capsys):
    store = opened(root)
    for command in ("verify", "dump"):
        assert run(["store", command, str(root), "-c", str(config_file)]) == 0
        assert "a broker uses this store" in capsys.readouterr().err
    assert run(["store", "inspect", str(root)]) == 0
    assert "in use by a broker" in capsys.readouterr().out
    assert run(["store", "rebuild", str(root), "-c", str(config_file)]) == 1
    assert "is in use by another broker" in capsys.readouterr().err
    store.close()


def test_dump(root, capsys):
    def dumped(*options: str) -> list[dict]:
        assert run(["store", "dump", str(root), "--json", *options]) == 0
        return [json.loads(line) for line in lines(capsys)]

    every = dumped()
    assert [message["properties"]["UNIQ_KEY"] for message in every] == [f"u{n}" for n in range(6)]
    assert every[2]["body"] == "2 果"
    assert every[5]["bodyBase64"] == "//4="
    assert every[0]["bornHost"] == "127.0.0.1:1"
    assert dumped("--topic", "Fruit", "--queue", "1", "--from-offset", "1", "--to-offset", "2") == [every[3]]
    assert dumped("--key", "k2") == [every[2], every[5]]
    assert dumped("--limit", "2") == every[:2]
    assert dumped("--since", "2000-01-01", "--until", "2001-01-01T12:00:00") == []
    assert dumped("--since", str(every[0]["storeTimestamp"])) == every
    assert run(["store", "dump", str(root), "--since", "yesterday"]) == 2
    assert "'yesterday' is no time" in capsys.readouterr().err
    assert run(["store", "dump", str(root), "--limit", "1"]) == 0
    (line,) = lines(capsys)
    assert "Fruit-0 0" in line
    assert "UNIQ_KEY=u0" in line


def test_rebuild(root, config_file, capsys):
    (root / "consumequeue" / "Fruit" / "0" / ("0" * 20)).unlink()
    arguments = [str(root), "-c", str(config_file)]
    assert run(["store", "verify", *arguments]) == 1
    assert run(["store", "rebuild", *arguments]) == 0
    assert "2 queues and 1 index files" in capsys.readouterr().out
    assert run(["store", "verify", *arguments]) == 0


def test_rebuild_of_a_damaged_log(root, config_file, capsys):
    log = root / "commitlog" / ("0" * 20)
    content = log.read_bytes()
    log.write_bytes(content.replace("3 果".encode(), b"wrong", 1)[: len(content)])
    arguments = ["store", "rebuild", str(root), "-c", str(config_file)]
    assert run(arguments) == 1
    assert "--cut" in capsys.readouterr().err
    assert run([*arguments, "--cut", "--json"]) == 0
    queues = json.loads(capsys.readouterr().out)["queues"]
    assert sum(queue["maxOffset"] for queue in queues) == 3


def test_the_index_of_a_store_in_use_is_not_said_to_be_checked(root, config_file, capsys):
    assert run(["store", "verify", str(root), "-c", str(config_file)]) == 0
    assert "18 entries in 1 index files: no problems" in capsys.readouterr().out
    store = opened(root)
    try:
        assert run(["store", "verify", str(root), "-c", str(config_file)]) == 0
        assert "the index not checked, since a broker writes it: no problems" in capsys.readouterr().out
    finally:
        store.close()
