"""The controller's state in etcd.

The tests cover terms that end with a lease, writes of a deposed leader, and delayed requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from constants import change_constant
from etcd_support import Member, etcd, needs_etcd
from wait_until import until

from gantrymq.controller.etcd_store import EtcdStore
from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError
from gantrymq.system.clock import monotonic

pytestmark = needs_etcd

A, B = Leader("n0", "127.0.0.1:1"), Leader("n1", "127.0.0.1:2")


@asynccontextmanager
async def opened(members: list[Member]) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([member.url for member in members], "group")
    await store.open()
    try:
        yield store
    finally:
        await store.close()
        await store.close()


async def begin(store: EtcdStore, me: Leader = A) -> Term:
    """Waits until etcd has started, and returns the new term."""

    async def campaign() -> Term | None:
        try:
            return await store.campaign(me)
        except GantryError:
            return None

    term = await until(campaign)
    assert term is not None
    return term


@pytest.fixture
def lease_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sets the duration of a lease, in seconds. Without a parameter, it is too long to expire in a test."""
    seconds: int = getattr(request, "param", 120)
    change_constant(monkeypatch, "etcd_store.LEASE_S", seconds)
    return seconds


async def test_terms_and_changes(tmp_path: Path, lease_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "etcd_store.PAGE", 7)
    with etcd(tmp_path / "etcd") as members:
        async with opened(members) as a, opened(members) as b:
            first = await begin(a)
            assert monotonic() + 3 < first.until <= monotonic() + lease_s
            assert await b.campaign(B) is None
            assert await b.leader() == A
            assert await a.load() == {}
            kept = await asyncio.gather(*(a.commit(first, f"b/{i}", b"%d" % i) for i in range(30)))
            assert set(kept) == {True}
            assert await a.commit(first, "b/1", b"again")
            later = await a.keep(first)
            assert later is not None
            assert (later.number, later.until > first.until) == (first.number, True)

            await a.resign(first)
            assert await a.leader() is None
            assert await a.keep(first) is None
            assert not await a.commit(first, "b/1", b"late")
            second = await begin(b, B)
            assert second.number > first.number
            assert await b.load() == {f"b/{i}": b"%d" % i for i in range(30)} | {"b/1": b"again"}
            assert not await a.commit(first, "b/1", b"late")
            assert not await a.commit(first, "new", b"late")
            assert await b.commit(second, "b/1", b"of b")

            # An own term also ends when the next one begins.
            third = await begin(b, B)
            assert not await b.commit(second, "b/1", b"late")
            assert await b.load() | {} == {f"b/{i}": b"%d" % i for i in range(30)} | {"b/1": b"of b"}
            assert await b.commit(third, "b/1", b"of b again")


async def test_a_request_that_comes_late_or_twice(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as members:
        async with opened(members) as store:
            term = await begin(store)
            assert await store.commit(term, "b", b"1")
            before = dict(store.revisions)
            assert await store.commit(term, "b", b"2")
            # The response was lost, so the request is repeated.
            store.revisions.update(before)
            assert await store.commit(term, "b", b"2")
            # An older request is delayed on its way.
            store.revisions.update(before)
            with pytest.raises(GantryError, match="changed by somebody else"):
                await store.commit(term, "b", b"1")
            assert await store.load() == {"b": b"2"}


@pytest.mark.usefixtures("lease_s")
@pytest.mark.parametrize("lease_s", [1], indirect=True)
async def test_a_leader_that_is_silent_loses_its_key(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as members:
        async with opened(members) as a, opened(members) as b:
            first = await begin(a)
            second = await begin(b, B)
            assert monotonic() > first.until
            assert second.number > first.number
            assert not await a.commit(first, "b", b"late")


@pytest.mark.usefixtures("lease_s")
async def test_the_members_that_are_left_go_on(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd", members=3) as members:
        async with opened(members) as store:
            term = await begin(store)

            async def commits(value: bytes) -> bool:
                try:
                    return await store.commit(term, "b", value)
                except GantryError:
                    return False

            members[0].kill()
            await until(lambda: commits(b"1"))
            members[1].kill()
            with pytest.raises(GantryError, match="etcd doesn't answer"):
                await store.commit(term, "b", b"2")
