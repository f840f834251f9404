"""One link of a slave, frame by frame, with a real store."""

from __future__ import annotations

from pathlib import Path
from random import Random
from struct import unpack

import pytest
from replication_support import LOG_FILE, log_hash, opened, put_many

from gantrymq.errors import FrameError, RecordError, ReplicationError
from gantrymq.replication.frames import VERSION, Greeting, encode_greeting, encode_header
from gantrymq.replication.link import OVERLAP, Link, LinkState
from gantrymq.store.message_store import MessageStore


def asked(link: Link) -> int:
    """Returns the offset that the slave requests from a Java master."""
    word, offset = unpack(">qq", link.opening())
    assert word == -1
    return offset


def give(link: Link, offset: int, body: bytes, *, checked: bool = False) -> bytes:
    """Passes one frame to the link and returns the slave's report."""
    link.feed(encode_header(offset, body, checked=checked) + body)
    while link.step() is not None:
        pass
    return link.report()


def greet(link: Link, master: MessageStore, **changes: int) -> None:
    greeting = Greeting(master.min_physical_offset, master.max_physical_offset, LOG_FILE, VERSION)
    link.feed(encode_greeting(greeting._replace(**changes)))
    while link.step() is not None:
        pass


def log_of(store: MessageStore, begin: int = 0) -> bytes:
    pieces = []
    while (piece := store.log_slice(begin, LOG_FILE)) is not None:
        pieces.append(bytes(piece))
        begin += len(piece)
    return b"".join(pieces)


async def test_whole_log_of_java(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 20, Random(1))
        data = log_of(first)
        link = Link(second, 1)
        assert asked(link) == 1
        # The first frame ends inside a record.
        assert unpack(">q", give(link, 1, data[1:1000]))[0] == second.max_physical_offset < 1000
        assert link.state is LinkState.FOLLOWING
        assert unpack(">q", give(link, 1000, data[1000:]))[0] == len(data)
        assert log_hash(first) == log_hash(second)
        assert give(link, len(data), b"") == b""
        assert unpack(">q", link.report(is_due=True))[0] == len(data)


async def test_last_file_of_java_in_place_of_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "b", is_slave=True) as second:
        link = Link(second, 1)
        give(link, 1, b"")
        assert link.asked_in_vain
        link = Link(second, 1, whole_log=False)
        assert asked(link) == 0
        give(link, 0, b"")
        assert not link.asked_in_vain
        with pytest.raises(FrameError, match="not at 0"):
            give(link, 5, b"abc")


async def test_end_is_compared(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 100, Random(1))
        half = first.max_physical_offset
        data = log_of(first)
        give(Link(second, 1), 1, data[1:])
        put_many(first, 100, Random(2))
        data = log_of(first)

        link = Link(second, 1)
        assert asked(link) == half - OVERLAP
        # There is no new data yet. The slave reports nothing before it has compared the overlap.
        assert give(link, half - OVERLAP, data[half - OVERLAP : half - 10]) == b""
        assert link.state is LinkState.COMPARING
        assert unpack(">q", give(link, half - 10, data[half - 10 :]))[0] == len(data)
        assert log_hash(first) == log_hash(second)

        # The other log has the same length but different bytes.
        other = bytearray(data)
        other[-7] ^= 1
        with pytest.raises(ReplicationError, match="aren't the same"):
            give(Link(second, 1), len(data) - OVERLAP, bytes(other[-OVERLAP:]))
        # The other log ends earlier.
        with pytest.raises(ReplicationError, match=f"has nothing at {len(data) - OVERLAP}"):
            give(Link(second, 1), len(data) - OVERLAP, b"")
        link = Link(second, 1)
        give(link, len(data) - OVERLAP, data[-OVERLAP:-100])
        with pytest.raises(ReplicationError, match=f"ends at {len(data) - 100}"):
            give(link, len(data) - 100, b"")
        assert second.max_physical_offset == len(data)


async def test_small_log_is_not_asked_for_its_last_file(tmp_path: Path) -> None:
    """For offset 0, the master would send its last file, whatever data the slave has."""
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 1, Random(1))
        give(Link(second, 1), 1, log_of(first)[1:])
        assert asked(Link(second, 1)) == 1


async def test_our_master_says_what_it_has(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 50, Random(1))
        data = log_of(first)
        link = Link(second, 3)
        greet(link, first)
        assert unpack(">qiI", link.report())[:2] == (0, 3)
        assert unpack(">qi", give(link, 0, data[:5000], checked=True)[:12]) == (second.max_physical_offset, 3)
        half = second.max_physical_offset

        link = Link(second, 3)
        greet(link, first)
        begin = max(half - OVERLAP, 0)
        assert unpack(">qiI", link.report())[:2] == (begin, 3)
        give(link, begin, data[begin:], checked=True)
        assert log_hash(first) == log_hash(second)

        with pytest.raises(ReplicationError, match="ends at 100"):
            greet(Link(second, 3), first, max_offset=100)
        with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog"):
            greet(Link(second, 3), first, file_size=4096)


async def test_what_is_out_of_place(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 20, Random(1))
        data = log_of(first)
        link = Link(second, 1)
        give(link, 1, data[1:1000])
        for offset in (0, 999, 1001, -3, 1 << 62):
            with pytest.raises(FrameError, match=f"not at {1000}"):
                give(link, offset, data[1000:1010])
            link = Link(second, 1)
            own = second.max_physical_offset
            give(link, max(own - OVERLAP, 1), data[max(own - OVERLAP, 1) : 1000])


async def test_damaged_body_is_not_taken(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 20, Random(1))
        data = bytearray(log_of(first))
        place = data.index(first.read_record(0).body) + 100
        data[place] ^= 0xFF
        link = Link(second, 1)
        with pytest.raises(RecordError):
            give(link, 1, bytes(data[1:]))
        assert second.max_physical_offset <= place
        again = max(second.max_physical_offset - OVERLAP, 1)
        give(Link(second, 1), again, log_of(first)[again:])
        assert log_hash(first) == log_hash(second)


async def test_java_master_that_has_deleted_its_first_files(tmp_path: Path) -> None:
    begin = 3 * LOG_FILE
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        first.set_slave(True)
        first.replica.begin_at(begin)
        first.set_slave(False)
        put_many(first, 20, Random(1))
        data = log_of(first, begin)
        link = Link(second, 1, first_offset=begin)
        assert asked(link) == begin
        give(link, begin, data)
        assert second.min_physical_offset == begin
        assert log_hash(first, begin) == log_hash(second, begin)
        # Only the last file is requested.
    async with opened(tmp_path / "c", is_slave=True) as third:
        assert asked(Link(third, 1, whole_log=False, first_offset=begin)) == 0


async def test_slave_that_ends_before_a_java_masters_log_begins(tmp_path: Path) -> None:
    """The slave drops its messages only when it receives newer ones."""
    begin = 3 * LOG_FILE
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        put_many(second, 20, Random(2))
        before = second.max_physical_offset
        second.set_slave(True)
        first.set_slave(True)
        first.replica.begin_at(begin)
        first.set_slave(False)
        put_many(first, 20, Random(1))
        link = Link(second, 1, first_offset=begin)
        assert asked(link) == begin
        give(link, begin, b"")
        assert second.max_physical_offset == before
        give(link, begin, log_of(first, begin))
        assert log_hash(first, begin) == log_hash(second, begin)
        assert second.min_physical_offset == begin
