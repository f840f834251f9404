"""The handshake between a slave and its master: accepted peers, and the data that a stranger receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from struct import pack

import pytest
from replication_support import log_hash, opened, put_many
from wait_until import until

from gantrymq.errors import FrameError
from gantrymq.remoting.listener import ListenOptions
from gantrymq.replication.authentication import Credentials, MasterHandshake, SlaveHandshake, Unproved
from gantrymq.replication.autoswitch_frames import Hello, encode_hello
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.frames import encode_opening, encode_report
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave
from gantrymq.store.message_store import MessageStore

KEY = Credentials("broker", "secret12")
ADDRESS = "10.0.0.5:10912"
OPENINGS = {
    "plain": encode_opening(4096),
    "controller mode": encode_hello(Hello(1, is_ours=True)),
}


@dataclass
class Access:
    """The access control of a broker with `authenticationEnabled`."""

    users: dict[str, str] = field(default_factory=lambda: {KEY.access_key: KEY.secret_key})
    needs_handshake: bool = True
    allowed: str = "127.0.0.1"

    def is_allowed(self, host: str) -> bool:
        return host == self.allowed

    def master_handshake(self, port: int) -> MasterHandshake:
        return MasterHandshake(self.users.get, f"127.0.0.1:{port}")


def master_side(address: str = ADDRESS) -> MasterHandshake:
    return MasterHandshake({KEY.access_key: KEY.secret_key}.get, address)


def slave_side(key: Credentials | None = KEY, address: str = ADDRESS) -> SlaveHandshake:
    return SlaveHandshake(key, address, is_required=True)


def each_byte(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


# -- without sockets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
@pytest.mark.parametrize("address", [ADDRESS, ""], ids=["told", "configured"])
@pytest.mark.parametrize("is_torn", [False, True])
def test_both_prove_what_they_are(opening: bytes, address: str, is_torn: bool) -> None:
    master, slave = master_side(), slave_side(address=address)
    to_master, to_slave = opening, b""
    at_master, at_slave = b"", b""
    while to_master or to_slave:
        for piece in each_byte(to_master) if is_torn else [to_master]:
            answer, rest = master.feed(piece) if not master.is_done else (b"", piece)
            to_slave, at_master = to_slave + answer, at_master + rest
        if master.is_done:
            to_slave += b"the log"
        to_master = b""
        for piece in each_byte(to_slave) if is_torn else [to_slave]:
            answer, rest = slave.feed(piece) if not slave.is_done else (b"", piece)
            to_master, at_slave = to_master + answer, at_slave + rest
        if slave.awaits_proof and to_master:
            to_master += b"a report"
        to_slave = b""
    assert master.is_done
    assert slave.is_proved
    assert (at_master, at_slave) == (opening + b"a report", b"the log")


def feed_each_byte(slave: SlaveHandshake, data: bytes) -> None:
    for piece in each_byte(data):
        slave.feed(piece)


def begun(master: MasterHandshake, slave: SlaveHandshake) -> tuple[bytes, bytes]:
    """Returns the master's challenge and the slave's response."""
    challenge, rest = master.feed(OPENINGS["plain"])
    assert not rest
    response, rest = slave.feed(challenge)
    assert not rest
    return challenge, response


@pytest.mark.parametrize(
    "key", [Credentials("broker", "secret13"), Credentials("nobody", ""), Credentials("", "")], ids=str
)
def test_others_are_no_slaves(key: Credentials) -> None:
    master = master_side()
    _, response = begun(master, slave_side(key))
    with pytest.raises(FrameError, match="isn't that of a super user"):
        master.feed(response)
    assert not master.is_done


def test_a_response_is_good_for_one_connection() -> None:
    _, response = begun(master_side(), slave_side())
    another = master_side()
    another.feed(OPENINGS["plain"])
    with pytest.raises(FrameError, match="isn't that of a super user"):
        another.feed(response)


def test_what_a_slave_signs_for_a_false_master_is_worth_nothing_at_the_real_one() -> None:
    """An attacker who registered as master of this broker name forwards all messages."""
    master = master_side()
    _, response = begun(master, slave_side(address="10.0.0.66:10912"))
    with pytest.raises(FrameError, match=r"it means to follow 10\.0\.0\.66:10912"):
        master.feed(response)


def test_any_changed_byte_ends_it() -> None:
    _, response = begun(master_side(), slave_side())
    for place in range(len(response)):
        master = master_side()
        _, response = begun(master, slave_side())
        changed = bytearray(response)
        changed[place] ^= 1
        # If the changed byte belongs to the length, the message continues.
        with pytest.raises(FrameError):
            master.feed(bytes(changed) + bytes(2048))
        assert not master.is_done


def test_a_false_master_is_left() -> None:
    slave = slave_side()
    begun(master_side(), slave)
    with pytest.raises(Unproved, match="the master's signature is wrong"):
        slave.feed(pack(">qi", -2, 32) + bytes(32))
    assert not slave.is_proved


@pytest.mark.parametrize("first", [pack(">qi", 0, 4) + b"java", pack(">qi", -1, 24), pack(">iiqi", 1, 0, 0, -1)])
def test_a_master_that_signs_nothing(first: bytes) -> None:
    """Java's master, an earlier version, and a master without access control."""
    slave = slave_side()
    with pytest.raises(Unproved, match="haAllowUnsigned=true follows it"):
        feed_each_byte(slave, first)
    allowed = SlaveHandshake(KEY, ADDRESS, is_required=False)
    assert (allowed.feed(first), allowed.is_done, allowed.is_proved) == ((b"", first), True, False)


def test_a_slave_without_credentials_says_what_it_lacks() -> None:
    challenge, _ = master_side().feed(OPENINGS["plain"])
    with pytest.raises(Unproved, match="set innerClientAuthenticationCredentials"):
        slave_side(None).feed(challenge)


@pytest.mark.parametrize("opening", [bytes(16), pack(">qq", 1, 1), encode_hello(Hello(1)), b"GET / HTTP/1.1\r\n"])
def test_slaves_that_cannot_sign_get_no_byte(opening: bytes) -> None:
    with pytest.raises(FrameError, match="haAllowUnsigned"):
        master_side().feed(opening)


def test_no_more_than_a_message_is_kept() -> None:
    for size in (-1, 1 << 20, 1 << 30):
        master = master_side()
        master.feed(OPENINGS["plain"])
        with pytest.raises(FrameError, match="something else than a message"):
            master.feed(pack(">qi", -2, size) + bytes(100))


# -- over sockets -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(store: MessageStore, access: Access) -> AsyncIterator[HaMaster]:
    config = ReplicationConfig(ha_send_heartbeat_interval=50)
    master = HaMaster(store, config, ListenOptions("127.0.0.1"), access=access)
    await master.start()
    try:
        yield master
    finally:
        await master.stop()


@asynccontextmanager
async def following(
    store: MessageStore, address: str, key: Credentials | None, *, is_required: bool = True
) -> AsyncIterator[HaSlave]:
    def handshake(at: str) -> SlaveHandshake:
        return SlaveHandshake(key, at, is_required=is_required)

    slave = HaSlave(store, ReplicationConfig(), broker_id=1, new_handshake=handshake)
    slave.set_master(address)
    await slave.start()
    try:
        yield slave
    finally:
        await slave.stop()


@asynccontextmanager
async def two_stores(directory: Path) -> AsyncIterator[tuple[MessageStore, MessageStore]]:
    async with opened(directory / "a") as first, opened(directory / "b", is_slave=True) as second:
        put_many(first, 1000, Random(1))
        yield first, second


async def test_a_slave_that_signs_follows(tmp_path: Path) -> None:
    async with (
        two_stores(tmp_path) as (first, second),
        listening(first, Access()) as master,
        following(second, f"127.0.0.1:{master.port}", KEY) as slave,
    ):
        await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
        assert slave.refusal is None
        assert log_hash(first) == log_hash(second)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "set innerClientAuthenticationCredentials"),
        (Credentials("broker", "wrong"), "refuses this broker's signature"),
        (Credentials("alice", "secret12"), "refuses this broker's signature"),
    ],
)
async def test_a_slave_that_cannot_sign_says_why(tmp_path: Path, key: Credentials | None, why: str) -> None:
    access = Access()
    async with (
        two_stores(tmp_path) as (first, second),
        listening(first, access) as master,
        following(second, f"127.0.0.1:{master.port}", key, is_required=False) as slave,
    ):
        await until(lambda: why in (slave.refusal or ""))
        assert why in slave.status().client.refusal
        assert (len(master.slaves), second.max_physical_offset) == (0, 0)
        # A changed setting takes effect without a restart.
        access.needs_handshake = False
        await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
        assert slave.refusal is None


async def test_a_master_that_needs_no_signature_is_not_followed_by_a_slave_that_does(tmp_path: Path) -> None:
    access = Access(needs_handshake=False)
    async with (
        two_stores(tmp_path) as (first, second),
        listening(first, access) as master,
        following(second, f"127.0.0.1:{master.port}", KEY) as slave,
    ):
        await until(lambda: "haAllowUnsigned=true follows it" in (slave.refusal or ""))
        assert second.max_physical_offset == 0


async def test_slaves_that_have_not_signed_are_left_when_they_have_to(tmp_path: Path) -> None:
    access = Access(needs_handshake=False)
    async with (
        two_stores(tmp_path) as (first, second),
        listening(first, access) as master,
        following(second, f"127.0.0.1:{master.port}", None, is_required=False) as slave,
    ):
        await until(lambda: len(master.slaves) == 1)
        access.needs_handshake = True
        await until(lambda: "set innerClientAuthenticationCredentials" in (slave.refusal or ""))
        assert not master.slaves


async def test_a_stranger_reads_nothing_and_counts_for_nothing(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as (first, _), listening(first, Access()) as master:
        end = first.max_physical_offset
        for opening in (encode_opening(1), pack(">q", 1) * 2, OPENINGS["controller mode"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
            writer.write(opening + encode_report(end, 1, checked=True) + pack(">q", end))
            # At most a nonce.
            async with asyncio.timeout(20):
                assert len(await reader.read()) <= 28
            writer.close()
        assert not master.slaves
        assert master.slaves.replicated(2) == 0


async def test_a_handshake_that_is_not_done_has_its_time(tmp_path: Path) -> None:
    async with two_stores(tmp_path) as (first, _), listening(first, Access()) as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
        writer.write(encode_opening(1))
        assert len(await reader.readexactly(28)) == 28
        async with asyncio.timeout(20):
            while not reader.at_eof():
                # The client continues to send bytes.
                writer.write(b"\xff")
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.2)
        writer.close()


async def test_only_allowed_addresses_may_connect(tmp_path: Path) -> None:
    access = Access(allowed="10.0.0.6")
    async with (
        two_stores(tmp_path) as (first, second),
        listening(first, access) as master,
        following(second, f"127.0.0.1:{master.port}", KEY) as slave,
    ):
        reader, _ = await asyncio.open_connection("127.0.0.1", master.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        assert (slave.state, second.max_physical_offset) == (None, 0)
        access.allowed = "127.0.0.1"
        await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
