"""A store whose files are damaged, missing or foreign: the broker starts, or names the file in its error."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from hostile_support import Peer, send_header

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import GantryError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.remoting.connection import Connection
from gantrymq.store.config import StoreConfig

_DAMAGES = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "junk": lambda data: b"\xff\x00\x80{[" * (1 + len(data) // 5),
    "other JSON": lambda data: b'{"a":[1,2,3]}',
    "a list": lambda data: b"[]",
    "deep": lambda data: b"[" * 100_000,
    "digits": lambda data: b"9" * 5000,
    "larger": lambda data: data + bytes(4096),
}
#: Only for JSON files.
_OF_JSON = ("other JSON", "a list", "deep", "digits")


def config(directory: Path) -> BrokerConfig:
    store = StoreConfig(
        store_path_root_dir=directory,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 1000,
        mapped_file_size_timer_log=1 << 20,
        max_hash_slot_num=1000,
        max_index_num=4000,
        timer_roll_window_slot=600,
        message_delay_level="1s 1m",
    )
    return BrokerConfig(broker_name="broker-a", bind_address="127.0.0.1", listen_port=0, store=store)


async def used_store(directory: Path) -> Path:
    """Creates a store that has every kind of file."""
    broker = Broker(config(directory))
    await broker.start()
    peer = await peer_of(broker)
    for number in range(20):
        await peer.send("orders", b"x", {"KEYS": f"k{number}"})
        await peer.send("orders", b"x", {"DELAY": "2"})
        await peer.send("orders", b"x", {"TIMER_DELAY_SEC": "60"})
        await peer.send("orders", b"x", {"TRAN_MSG": "true", "PGROUP": "attackers"})
    peer.connection.close()
    await broker.stop()
    return directory


async def peer_of(broker: Broker) -> Peer:
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection({}), "127.0.0.1", broker.port)
    return Peer(connection)


@pytest.mark.parametrize("damage", _DAMAGES)
async def test_each_file(tmp_path: Path, damage: str) -> None:
    good = await used_store(tmp_path / "good")
    files = [path.relative_to(good) for path in sorted(good.rglob("*")) if path.is_file()]
    assert len(files) > 10
    if damage in _OF_JSON:
        files = [path for path in files if path.suffix == ".json" or ("." not in path.name and "config" in path.parts)]
    for number, path in enumerate(files):
        store = tmp_path / str(number)
        shutil.copytree(good, store)
        (store / path).write_bytes(_DAMAGES[damage]((store / path).read_bytes()))
        await starts_or_says_why(store, path)
        shutil.rmtree(store)


@pytest.mark.parametrize("way", ["missing", "a directory"])
async def test_each_file_is_something_else(tmp_path: Path, way: str) -> None:
    good = await used_store(tmp_path / "good")
    files = [path.relative_to(good) for path in sorted(good.rglob("*")) if path.is_file()]
    for number, path in enumerate(files):
        store = tmp_path / str(number)
        shutil.copytree(good, store)
        (store / path).unlink()
        if way == "a directory":
            (store / path).mkdir()
        await starts_or_says_why(store, path)
        shutil.rmtree(store)


async def starts_or_says_why(store: Path, path: Path) -> None:
    """Asserts that the broker works, or that its error names the file."""
    problem = await _problem(config(store))
    assert problem is None or path.name in problem or path.parent.name in problem, f"{path}: {problem}"


async def _problem(config: BrokerConfig) -> str | None:
    broker = Broker(config)
    try:
        await broker.start()
        peer = await peer_of(broker)
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")
        peer.connection.close()
        return answer.remark if answer.code != ResponseCode.SUCCESS else None
    except GantryError as e:
        return str(e)
    finally:
        await broker.stop()
