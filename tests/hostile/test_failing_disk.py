"""Files that cannot be opened, created or written for a while.

Affected requests fail, others succeed, and the broker recovers.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hostile_support import Peer, Target, UnderAttack, pull_header
from small_disk import small_disk
from wait_until import until

from gantrymq import Message, Producer
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendStatus
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.namesrv import PutKVConfigRequestHeader
from gantrymq.protocol.headers.offset import UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.headers.query import QueryMessageRequestHeader
from gantrymq.store.config import StoreConfig
from gantrymq.store.verify import verify
from gantrymq.testing.processes import ProcessCluster

_MIB = 1 << 20
#: Patterns of the broker's messages about disk errors.
_ERRORS = [r"failed and will be tried again", r"has failed \d+ times", r"can't |cannot ", r"messages are rejected"]
#: Responses to a send while the log accepts no messages.
_REFUSED = [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT]
#: Small log files and frequently written tables.
_SMALL_FILES = {"mappedFileSizeCommitLog": str(1 * _MIB), "flushConsumerOffsetInterval": "100"}


class _Offsets(msgspec.Struct):
    """consumerOffset.json."""

    table: dict[str, dict[str, int]] = msgspec.field(name="offsetTable")


@contextmanager
def in_the_way(path: Path) -> Iterator[None]:
    """Replaces a directory by a file."""
    away = path.with_name(path.name + "-away")
    path.rename(away)
    path.write_bytes(b"")
    try:
        yield
    finally:
        path.unlink()
        away.rename(path)


@contextmanager
def lowered(pid: int, limit: int, value: int) -> Iterator[None]:
    """Lowers the soft limit of a process. It can be raised again."""
    soft, hard = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (value, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, limit, (soft, hard))


async def begun(broker: Target) -> Peer:
    """Creates all files that a topic, a group and a key need."""
    peer = await broker.peer()
    assert (await peer.send("orders", b"x", {"KEYS": "k"})).code == ResponseCode.SUCCESS
    await peer.ask(RequestCode.PULL_MESSAGE, pull_header("orders"))
    await commit(peer, 1)
    await is_committed(broker, 1)
    assert await is_found(peer, "k")
    return peer


async def is_found(peer: Peer, key: str) -> bool:
    header = QueryMessageRequestHeader(topic="orders", key=key, max_num=64, begin_timestamp=0, end_timestamp=1 << 62)
    return (await peer.ask(RequestCode.QUERY_MESSAGE, header)).code == ResponseCode.SUCCESS


async def failing_jobs(peer: Peer) -> dict[str, str]:
    """Returns the last errors of the jobs that fail at present."""
    table = json.loads((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    return {
        name: table[name.replace("_failingSinceMs", "_lastError")]
        for name, since in table.items()
        if name.endswith("_failingSinceMs") and since != "0"
    }


async def all_work(peer: Peer) -> bool:
    return not await failing_jobs(peer)


async def healed(peer: Peer) -> None:
    """Asserts that old and new topics are writable and that no job fails."""
    await until(lambda: all_work(peer), 60)
    for topic in ("orders", f"new-{id(peer)}"):
        assert (await peer.send(topic, b"x", {"KEYS": "healed"})).code == ResponseCode.SUCCESS
    assert await is_found(peer, "healed")


async def test_no_descriptors(under_attack: UnderAttack) -> None:
    """Without descriptors, no connection, no file of a new queue and no table can be opened."""
    async with under_attack(properties=_SMALL_FILES, inevitable=_REFUSED, log_may_have=_ERRORS) as broker:
        peer = await begun(broker)
        with lowered(broker.pid, resource.RLIMIT_NOFILE, broker.descriptors()):
            for number in range(100):
                await peer.send("orders", b"x" * 30_000)
                await peer.send(f"topic-{number}", b"x")
                await commit(peer, number)
            # The broker may accept and close them, or not accept them.
            sockets = [broker.socket() for _ in range(100)]
            for one in sockets:
                one.close()
        await healed(peer)


async def test_connections_leave_descriptors_for_files(under_attack: UnderAttack, tmp_path: Path) -> None:
    """With a limit of 300, a thousand connections must not prevent the opening of files."""
    python = tmp_path / "python-with-few-descriptors"
    python.write_text(f'#!/bin/sh\nulimit -n 300\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with mock.patch.object(sys, "executable", str(python)):
        attack = under_attack(properties=_SMALL_FILES, log_may_have=_ERRORS)
        broker = await attack.__aenter__()
    try:
        peer = await begun(broker)
        sockets = [broker.socket() for _ in range(1000)]
        for number in range(60):
            assert (await peer.send("orders", b"x" * 30_000)).code == ResponseCode.SUCCESS
            assert (await peer.send(f"topic-{number}", b"x")).code == ResponseCode.SUCCESS
            await commit(peer, number)
        for one in sockets:
            one.close()
        await healed(peer)
        await is_committed(broker, 59)
    finally:
        await attack.__aexit__(None, None, None)


async def test_a_file_in_the_place_of_a_directory(under_attack: UnderAttack) -> None:
    async with under_attack(properties=_SMALL_FILES, inevitable=_REFUSED, log_may_have=_ERRORS) as broker:
        peer = await begun(broker)
        for round_, directory in enumerate(("config", "consumequeue", "commitlog", "index", ".")):
            with in_the_way(broker.store / directory if directory != "." else broker.store):
                for number in range(100):
                    await peer.send("orders", b"x" * 30_000, {"KEYS": f"k{number}"})
                    await peer.send(f"topic-{round_}-{number}", b"x")
                    await commit(peer, 100 * round_ + number)
            await healed(peer)
            await is_committed(broker, 100 * round_ + 99)


async def test_a_file_in_the_place_of_a_name_server_s_directory(under_attack: UnderAttack) -> None:
    async with under_attack(log_may_have=_ERRORS) as broker:
        peer = await broker.peer_of(broker.name_server)

        async def put(value: str) -> int:
            header = PutKVConfigRequestHeader(namespace="a", key="b", value=value)
            return (await peer.ask(RequestCode.PUT_KV_CONFIG, header)).code

        assert await put("1") == ResponseCode.SUCCESS
        path = broker.directory / "namesrv"
        with in_the_way(path):
            for _ in range(20):
                assert await put("2") != ResponseCode.SUCCESS
        assert await put("3") == ResponseCode.SUCCESS
        assert b'"3"' in (path / "kvConfig.json").read_bytes()


async def test_no_file_may_grow(under_attack: UnderAttack) -> None:
    """As on another kind of file system: EFBIG. It affects the log file, too, so its current line is cut."""
    cut = r"^.+\d{4}-\d\d-\d\d \d\d:"
    async with under_attack(properties=_SMALL_FILES, inevitable=_REFUSED, log_may_have=[*_ERRORS, cut]) as broker:
        peer = await begun(broker)
        with lowered(broker.pid, resource.RLIMIT_FSIZE, 1000):
            for number in range(100):
                await peer.send("orders", b"x" * 30_000)
                await peer.send(f"topic-{number}", b"x")
                await commit(peer, number)
        await healed(peer)
        await is_committed(broker, 99)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_full_disk(under_attack: UnderAttack, tmp_path: Path, flush: str) -> None:
    """The disk has no free byte: neither a page of a mapped file nor a table can be written."""
    properties = _SMALL_FILES | {"flushDiskType": flush, "diskSpaceWarningLevelRatio": "100"}
    with small_disk(tmp_path / "small", 64 * _MIB) as disk:
        async with under_attack(disk=disk, properties=properties, inevitable=_REFUSED, log_may_have=_ERRORS) as broker:
            peer = await begun(broker)
            disk.fill()
            for number in range(100):
                await peer.send("orders", b"x" * 30_000)
                await peer.send(f"topic-{number}", b"x")
                await commit(peer, number)
            disk.empty()
            await healed(peer)
            await is_committed(broker, 99)


async def test_one_of_two_log_disks_is_full(tmp_path: Path) -> None:
    """No send fails. `diskSpaceCleanForciblyRatio` is off, so the broker notices it when it creates a file."""
    first, store = tmp_path / "first", tmp_path / "cluster" / "broker-a"
    with small_disk(tmp_path / "small", 8 * _MIB) as disk, disk.for_new_processes():
        log = f"{first},{disk.directory}/log"
        properties = _SMALL_FILES | {"storePathCommitLog": log, "diskSpaceCleanForciblyRatio": "100"}
        with ProcessCluster(tmp_path / "cluster", broker_properties=properties) as cluster:
            assert cluster.name_server is not None
            async with Producer(cluster.name_server.address, "test") as producer:
                for number in range(200):
                    if number == 100:
                        disk.fill()
                    result = await producer.send(Message("orders", os.urandom(30_000)))
                    assert result.status is SendStatus.SEND_OK
            async with AdminClient(cluster.name_server.address) as admin:
                info = await admin.runtime_info(cluster.brokers[0].address)
            state = info[f"commitLogDirState_{disk.directory}/log"]
            assert state.startswith("failed: can't reserve")
            assert "the disk is full" in state
            assert info[f"commitLogDirState_{first}"] == "writable"
        directories = [first, disk.outside / "log"]
        config = StoreConfig(store, directories, mapped_file_size_commit_log=_MIB)
        report = verify(config)
        assert not report.problems
        assert report.records >= 200
        assert all(any(directory.iterdir()) for directory in directories)


async def commit(peer: Peer, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="attackers", topic="orders", queue_id=0, commit_offset=offset
    )
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def is_committed(broker: Target, offset: int) -> None:
    """Waits until the table on the disk has this offset."""
    path = broker.store / "config" / "consumerOffset.json"

    def is_written() -> bool:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            # The broker replaces the file at this moment.
            return False
        return f'"0":{offset}'.encode() in content.replace(b" ", b"").replace(b"0:", b'"0":')

    await until(is_written, 30)
