"""Tables are written in a background thread, with many changes per write.

Requests that need a table on disk wait for it.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest
from broker_support import Disk, Peer, config, longest_step
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables.persistence import TableFile, TablePersistence, in_pieces
from gantrymq.broker.tables.topics import BrokerTopics
from gantrymq.errors import StoreError
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig, TopicConfigTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader

CREATE_TOPIC = CreateTopicRequestHeader(
    topic="orders", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
)
USER = b'{"password":"secret12"}'


async def test_a_heartbeat_with_new_groups_costs_one_write_of_each_table(
    disk: Disk, broker: Broker, peer: Peer
) -> None:
    groups = [ConsumerData(f"group-{n}", subscription_data_set=[SubscriptionData("orders")]) for n in range(500)]
    body = encode_json(HeartbeatData("client", consumer_data_set=groups))
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
    names = ["subscriptionGroup.json", "topics.json"]
    await until(lambda: {name for name, _ in disk.written} >= set(names))
    assert sorted(name for name, _ in disk.written if name in names) == names
    assert all(thread is not threading.main_thread() for _, thread in disk.written)
    table = broker.config.store.config_directory / "subscriptionGroup.json"
    await until(lambda: table.exists() and b"group-499" in table.read_bytes())


@pytest.mark.parametrize("request_of", ["a topic", "a group", "offsets", "a user"])
async def test_who_creates_something_is_answered_when_it_is_on_the_disk(
    disk: Disk, broker: Broker, peer: Peer, request_of: str
) -> None:
    await peer.send("others", b"x")
    broker.offsets.commit("a", "others", 0, 0)
    ask = {
        "a topic": lambda: peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CREATE_TOPIC),
        "a group": lambda: peer.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_json(SubscriptionGroupConfig("g"))
        ),
        "a user": lambda: peer.ask(RequestCode.AUTH_CREATE_USER, fields={"username": "alice"}, body=USER),
        "offsets": lambda: peer.ask(
            RequestCode.CLONE_GROUP_OFFSET, fields={"srcGroup": "a", "destGroup": "b", "topic": "others"}
        ),
    }[request_of]
    disk.may_go_on.clear()
    answer = asyncio.create_task(ask())
    # Other requests are served meanwhile.
    for _ in range(3):
        assert (await peer.send("others", b"x")).code == ResponseCode.SUCCESS
    assert not answer.done()
    disk.may_go_on.set()
    assert (await answer).code == ResponseCode.SUCCESS


async def test_what_can_not_be_written_is_refused_and_tried_again(disk: Disk, broker: Broker, peer: Peer) -> None:
    disk.error = StoreError("no room")
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CREATE_TOPIC)
    assert (answer.code, "no room" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    [report] = [report for report in broker.jobs if report.name == "save tables"]
    assert report.failing_since is not None
    disk.error = None
    await until(lambda: report.failing_since is None)
    assert b"orders" in (broker.config.store.config_directory / "topics.json").read_bytes()


async def test_no_file_is_brought_to_the_disk_on_the_loop(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, peer: Peer
) -> None:
    on_the_loop: list[int] = []
    for name in ("fsync", "fdatasync"):
        function = getattr(os, name)

        def sync(descriptor: int, function: object = function) -> None:
            if threading.current_thread() is threading.main_thread():
                on_the_loop.append(descriptor)
            function(descriptor)  # type: ignore[operator]

        monkeypatch.setattr(os, name, sync)
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CREATE_TOPIC)
    await peer.ask(RequestCode.AUTH_CREATE_USER, fields={"username": "alice"}, body=USER)
    await peer.pull("orders", group="new-group")
    broker.offsets.commit("new-group", "orders", 0, 0)
    await broker.offsets.written()
    assert not on_the_loop


async def test_a_user_that_can_not_be_written_is_tried_again(disk: Disk, broker: Broker, peer: Peer) -> None:
    disk.error = StoreError("no room")
    answer = await peer.ask(RequestCode.AUTH_CREATE_USER, fields={"username": "alice"}, body=USER)
    assert (answer.code, "no room" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    disk.error = None
    users = broker.config.store.config_directory / "auth" / "users.json"
    await until(lambda: users.exists() and b"alice" in users.read_bytes())
    assert [stat.S_IMODE(path.stat().st_mode) for path in (users, users.parent)] == [0o600, 0o700]


async def test_many_users_cost_few_writes(disk: Disk, broker: Broker, peer: Peer) -> None:
    asked = [
        peer.ask(RequestCode.AUTH_CREATE_USER, fields={"username": f"user-{n}"}, body=USER, timeout_ms=20_000)
        for n in range(300)
    ]
    assert {answer.code for answer in await asyncio.gather(*asked)} == {ResponseCode.SUCCESS}
    assert [name for name, _ in disk.written].count("users.json") < 20


class Table:
    """A table that counts how often it is encoded."""

    def __init__(self, persistence: TablePersistence, path: Path) -> None:
        self.encoded = 0
        self.file = persistence.file(path, self._encode)

    def _encode(self) -> list[bytes]:
        self.encoded += 1
        return [b"{%d}" % self.encoded]


async def test_rounds_and_urgent_changes(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings.flush_consumer_offset_interval = 300
    persistence = TablePersistence(settings, Jobs())
    lazy, urgent = (Table(persistence, tmp_path / name) for name in ("lazy", "urgent"))
    await persistence.start()
    lazy.file.changed()
    for _ in range(1000):
        urgent.file.write_soon()
    await until(lambda: urgent.encoded)
    assert (urgent.encoded, lazy.encoded) == (1, 0)
    await until(lambda: lazy.encoded)
    assert (urgent.encoded, lazy.encoded) == (1, 1)
    await persistence.stop()


async def test_what_changes_while_it_is_written_is_written_again(disk: Disk, tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    table = Table(persistence, tmp_path / "table")
    await persistence.start()
    disk.may_go_on.clear()
    table.file.changed()
    first = table.file.written()
    await until(lambda: table.encoded)
    table.file.changed()
    second = table.file.written()
    await asyncio.sleep(0)
    disk.may_go_on.set()
    await asyncio.gather(first, second)
    assert (table.encoded, (tmp_path / "table").read_bytes()) == (2, b"{2}")
    await persistence.stop()


async def test_who_begins_to_wait_for_what_is_being_written_costs_no_further_write(disk: Disk, tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    table = Table(persistence, tmp_path / "table")
    await persistence.start()
    await table.file.written()
    assert table.encoded == 0
    disk.may_go_on.clear()
    table.file.write_soon()
    await until(lambda: table.encoded)
    waiting = [table.file.written() for _ in range(3)]
    disk.may_go_on.set()
    await asyncio.gather(*waiting)
    await persistence.stop()
    assert (table.encoded, table.file.is_changed) == (1, False)


async def test_who_waits_for_what_is_being_written_hears_that_it_fails(disk: Disk, tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    table = Table(persistence, tmp_path / "table")
    await persistence.start()
    disk.error = StoreError("no room")
    disk.may_go_on.clear()
    table.file.write_soon()
    await until(lambda: table.encoded)
    waiting = table.file.written()
    disk.may_go_on.set()
    with pytest.raises(StoreError, match="no room"):
        await waiting
    disk.error = None
    await until(lambda: not table.file.is_changed)
    await persistence.stop()


class Entries(msgspec.Struct, rename="camel"):
    some_entries: dict[str, list[int]] = {}
    one: int = 1
    no_entries: dict[str, int] = {}
    other_entries: dict[int, str] = {}


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_a_table_in_pieces_is_the_table(count: int) -> None:
    table = Entries({f"n{n}": [n] for n in range(count)}, 2, {}, dict.fromkeys(range(count), "x"))
    pieces = in_pieces(table)
    expected = encode_json(table)
    table.some_entries["later"] = [1]
    assert b"".join(pieces) == expected
    assert decode_json(expected, Entries).one == 2


async def test_a_large_table_is_encoded_beside_the_loop(tmp_path: Path) -> None:
    settings = config(tmp_path)
    persistence = TablePersistence(settings, Jobs())
    topics = BrokerTopics(settings, tmp_path / "topics.json", lambda names: None, persistence=persistence)
    topics.put(*(TopicConfig(f"topic-{n}", 4, 4) for n in range(50_000)))
    await persistence.start()
    written = topics.written()
    assert await longest_step(written.done) < 0.005
    await persistence.stop()
    table = decode_json((tmp_path / "topics.json").read_bytes(), TopicConfigTable)
    assert table == topics.table
    # No single piece blocks the interpreter for longer, either.
    assert max(map(len, in_pieces(topics.table))) < 512 * 1024


async def test_what_is_changed_at_the_end_is_written(disk: Disk, tmp_path: Path) -> None:
    """The newest content wins, even if a thread is still writing an older one."""
    persistence = TablePersistence(config(tmp_path), Jobs())
    table = Table(persistence, tmp_path / "table")
    await persistence.start()
    disk.may_go_on.clear()
    table.file.write_soon()
    await until(lambda: table.encoded)
    await persistence.stop()
    table.file.changed()
    threading.Timer(0.05, disk.may_go_on.set).start()
    await asyncio.to_thread(persistence.save)
    assert (tmp_path / "table").read_bytes() == b"{2}"
    assert isinstance(table.file, TableFile)


def test_all_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    for name in ("one.json", "two.json", "three.json"):
        file = persistence.file(tmp_path / name, lambda: [b"{}"])
        file.changed()
        if name != "two.json":
            # The new file is written to this path before it replaces the old one, so a directory blocks it.
            (tmp_path / f"{name}.tmp").mkdir()
    with pytest.raises(StoreError, match=r"one\.json.*; .*three\.json") as failed:
        persistence.save()
    assert "two.json" not in str(failed.value)
    assert (tmp_path / "two.json").read_bytes() == b"{}"
