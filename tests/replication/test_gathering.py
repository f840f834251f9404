"""A master gathers small amounts of log data.

It waits a short time for the slave's acknowledgement, so that the next frame has more data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from replication_support import opened, put_many
from transports import Keeping

from gantrymq.replication import connection as connection_module
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.connection import HaConnection
from gantrymq.replication.frames import encode_report
from gantrymq.replication.log_transfer import PlainLogTransfer
from gantrymq.replication.slaves import Slaves
from gantrymq.store.message_store import MessageStore

BROKER_ID = 7


class Master:
    """The interface of a master that a connection needs."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.config = ReplicationConfig()
        self.slaves = Slaves(self.config)
        self.pauses: list[float] = []

    def opened(self, connection: HaConnection) -> None: ...

    def closed(self, connection: HaConnection) -> None: ...

    def acknowledged(self) -> None: ...

    def joined(self, connection: HaConnection) -> None:
        assert connection.slave is not None
        self.slaves.joined(connection.slave)

    def go_on(self, after_s: float = 0.0) -> None:
        self.pauses.append(after_s)


class Following:
    """A master's connection to a Java slave that is up to date, with a simulated clock."""

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(connection_module, "monotonic", lambda: self.now)
        self.store = store
        self.master = Master(store)
        self.connection = HaConnection(self.master, PlainLogTransfer(store))
        self.transport = Keeping()
        self.connection.connection_made(self.transport)
        self.reports()

    def reports(self) -> None:
        """Acknowledges the whole log, as the slave does."""
        self.connection.data_received(encode_report(self.store.max_physical_offset, BROKER_ID, checked=False))

    def grows(self, count: int = 1, size: int = 300) -> int:
        """Stores messages in the log, and returns the number of frames that are sent at once."""
        put_many(self.store, count, Random(1), size=size)
        before = self.transport.calls
        self.connection.send()
        return self.transport.calls - before


@pytest.fixture
async def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Following]:
    async with opened(tmp_path) as store:
        put_many(store, 1, Random(0))
        yield Following(store, monkeypatch)


async def test_what_comes_alone_is_sent_at_once(following: Following) -> None:
    for _ in range(3):
        assert following.grows() == 1
        following.reports()
    assert not following.master.pauses


async def test_what_follows_waits_for_the_acknowledgement(following: Following) -> None:
    assert following.grows() == 1
    first = len(following.transport.data)
    asked = following.store.max_physical_offset
    assert following.grows() == 0
    assert following.grows() == 0
    # The connection requests another attempt, in case no acknowledgement arrives.
    assert set(following.master.pauses) == {0.001}
    following.connection.data_received(encode_report(asked, BROKER_ID, checked=False))
    assert following.transport.calls == 2
    assert len(following.transport.data) - first == 12 + following.store.max_physical_offset - asked


async def test_nothing_waits_for_longer_than_a_moment(following: Following) -> None:
    assert following.grows() == 1
    following.now += 0.0009
    assert following.grows() == 0
    following.now += 0.0002
    assert following.grows() == 1


async def test_much_does_not_wait(following: Following) -> None:
    assert following.grows() == 1
    assert following.grows(20, size=3000) >= 1


async def test_a_full_frame_does_not_wait(following: Following) -> None:
    """A full frame is sent at once, however small the frame size is."""
    following.master.config.ha_transfer_batch_size = 4096
    assert following.grows() == 1
    following.grows(20, size=3000)
    assert following.connection.slave is not None
    assert following.store.max_physical_offset - following.connection.slave.next_offset < 4096
