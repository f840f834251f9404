"""The tables of connected group members.

The tests use plain objects instead of connections.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.tables.group_members import MAX_GROUPS_OF_ONE, GroupMembers
from gantrymq.broker.tables.heartbeat_quota import MEMBER_BYTES, HeartbeatQuota, size_of
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData


class Member:
    """A connection that counts how often it is hashed."""

    looked_at = 0

    def __hash__(self) -> int:
        Member.looked_at += 1
        return id(self)


def beat(
    members: GroupMembers[Member],
    member: Member,
    consumers: list[str],
    producers: list[str] = [],  # noqa: B006
    *,
    now: float = 0.0,
    client_id: str = "client",
) -> set[str]:
    data = HeartbeatData(
        client_id,
        [ProducerData(name) for name in producers],
        [ConsumerData(name, subscription_data_set=[SubscriptionData("orders", sub_version=1)]) for name in consumers],
    )
    return members.heartbeat(data, member, 0, 0, now)


def test_who_leaves_is_not_looked_for_in_the_groups_of_others() -> None:
    members: GroupMembers[Member] = GroupMembers()
    for n in range(500):
        beat(members, Member(), [f"group-{n}"], [f"producers-{n}"], client_id=f"client-{n}")
    leaving = Member()
    assert beat(members, leaving, ["group-1", "mine"], ["mine"]) == {"group-1", "mine"}
    Member.looked_at = 0
    assert members.drop(leaving) == {"group-1", "mine"}
    assert Member.looked_at < 20
    assert members.producer_member("client") is None
    assert members.drop(leaving) == set()


def test_missing_subscriptions_are_reported_until_they_arrive() -> None:
    members: GroupMembers[Member] = GroupMembers()
    member, other = Member(), Member()
    beat(members, other, ["a"])
    client = members.beat("client", member, 0, 0, 0.0)
    assert members.rejoin(ConsumerData("a"), client) == (True, True)
    assert members.rejoin(ConsumerData("a"), client) == (False, True)
    beat(members, member, ["a"])
    assert members.rejoin(ConsumerData("a"), client) == (False, False)

    members.drop(member)
    assert members.rejoin(ConsumerData("a"), client)[1]
    members.drop(member)
    assert not members.consumers["a"].without_subscriptions


def test_silent_members_are_dropped_and_others_are_not_looked_at() -> None:
    members: GroupMembers[Member] = GroupMembers()
    silent = [Member() for _ in range(5)]
    for n, member in enumerate(silent):
        beat(members, member, ["a"], now=float(n))
    for _ in range(500):
        beat(members, Member(), ["a", "b"], now=100.0)
    Member.looked_at = 0
    assert members.expire(50.0, 3) == ({"a"}, silent[:3])
    assert members.expire(50.0, 3) == ({"a"}, silent[3:])
    assert members.expire(50.0, 3) == (set(), [])
    assert Member.looked_at < 50


def test_a_group_that_heartbeats_say_no_more_of_is_left() -> None:
    members: GroupMembers[Member] = GroupMembers()
    member = Member()
    beat(members, member, ["old", "kept"], ["old", "kept"], now=0.0)
    beat(members, member, ["kept"], ["kept"], now=100.0)
    client = members.beat("client", member, 0, 0, 100.0)
    assert members.leave_stale(client, 0.0) == set()
    assert members.leave_stale(client, 50.0) == {"old"}
    assert (set(members.consumers), set(members.producers)) == ({"kept"}, {"kept"})


def test_who_has_left_all_groups_need_not_beat() -> None:
    """A member that has left all groups does not expire, because its connection can have other uses."""
    members: GroupMembers[Member] = GroupMembers()
    member = Member()
    beat(members, member, ["a"], ["p"])
    assert members.leave(member, "a", "p") == {"a"}
    assert members.expire(100.0) == (set(), [])


NAMES = st.lists(st.sampled_from("abc"), unique=True)
STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["beat", "leave", "drop", "expire"]), NAMES, NAMES))


@given(STEPS)
def test_the_index_says_what_the_groups_do(steps: list[tuple[int, str, list[str], list[str]]]) -> None:
    members: GroupMembers[Member] = GroupMembers()
    connections = [Member() for _ in range(4)]
    for now, (number, what, consumers, producers) in enumerate(steps):
        member = connections[number]
        if what == "beat":
            beat(members, member, consumers, producers, now=float(now), client_id=str(number))
        elif what == "leave":
            members.leave(member, *(names[0] if names else None for names in (consumers, producers)))
        elif what == "drop":
            members.drop(member)
        else:
            members.expire(now - 3.0)
    for member in connections:
        members.drop(member)
    assert (members.consumers, members.producers) == ({}, {})
    assert [members.producer_member(str(number)) for number in range(4)] == [None] * 4


def test_a_connection_has_its_newest_id() -> None:
    """A connection has only its newest client id, like a channel in Java.

    Otherwise a client with a new id in each heartbeat would leave entries that never expire.
    """
    members: GroupMembers[Member] = GroupMembers()
    member, other = Member(), Member()
    for n in range(5):
        beat(members, member, [], ["producers"], client_id=f"client-{n}")
    assert [members.producer_member(f"client-{n}") for n in range(5)] == [None] * 4 + [member]
    beat(members, other, [], ["producers"], client_id="client-4")
    beat(members, member, [], ["producers"], client_id="client-5")
    assert members.producer_member("client-4") is other
    members.drop(member)
    assert (members.producer_member("client-4"), members.producer_member("client-5")) == (other, None)


def test_a_connection_is_in_some_groups_only() -> None:
    members: GroupMembers[Member] = GroupMembers()
    member = Member()
    names = [f"group-{n}" for n in range(MAX_GROUPS_OF_ONE)]
    beat(members, member, names[::2], names[1::2])
    beat(members, member, names[::2], names[1::2])
    for more in ((["another"], []), ([], ["another"])):
        with pytest.raises(RequestRefused, match="groups of one broker"):
            beat(members, member, *more)
    assert "another" not in members.consumers
    assert members.leave(member, "group-0", "group-1") == {"group-0"}
    beat(members, member, ["another"], ["one-more"])


def test_what_is_kept_has_a_bound_and_what_keeps_much_leaves_room() -> None:
    members: GroupMembers[Member] = GroupMembers(kept=HeartbeatQuota(1_000_000))
    large = [SubscriptionData(f"topic-{n}", "x" * 5000) for n in range(20)]

    def beat_large(n: int) -> None:
        group = ConsumerData(f"large-{n}", subscription_data_set=large)
        members.heartbeat(HeartbeatData(f"client-{n}", [], [group]), Member(), 0, 0, 0.0)

    for n in range(6):
        beat_large(n)
    with pytest.raises(RequestRefused, match="system busy"):
        beat_large(6)
    assert "large-6" not in members.consumers
    for n in range(50):
        beat(members, Member(), [f"small-{n}"], client_id=f"small-{n}")
    assert members.kept.size < 1_000_000


BEATS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 40)), max_size=3),
        st.lists(st.sampled_from("abc"), max_size=3),
        st.sampled_from(["beat", "leave", "drop", "expire"]),
    ),
    max_size=30,
)


@given(BEATS)
def test_what_is_kept_is_counted_until_it_is_gone(
    steps: list[tuple[int, list[tuple[str, int, int]], list[str], str]],
) -> None:
    members: GroupMembers[Member] = GroupMembers()
    connections = [Member() for _ in range(4)]
    for now, (who, consumers, producers, what) in enumerate(steps):
        member = connections[who]
        if what == "beat":
            data = HeartbeatData(
                f"client-{who}",
                [ProducerData(name) for name in producers],
                [
                    ConsumerData(name, subscription_data_set=[SubscriptionData("t", "x" * size, sub_version=version)])
                    for name, version, size in consumers
                ],
            )
            members.heartbeat(data, member, 0, 0, float(now))
        elif what == "leave":
            members.leave(member, "a", "b")
        elif what == "drop":
            members.drop(member)
        else:
            members.expire(now - 5.0)
        expected = sum(
            len(group.clients) * MEMBER_BYTES
            + size_of(ConsumerData(group.name, group.consume_type, group.message_model, group.consume_from_where))
            + group.member_subscriptions.size
            for group in members.consumers.values()
        )
        expected += sum(len(clients) * (MEMBER_BYTES + len(name)) for name, clients in members.producers.items())
        assert members.kept.size == expected
    for member in connections:
        members.drop(member)
    assert members.kept.size == 0


def subscribe(members: GroupMembers[Member], member: Member, expression: str, version: int) -> None:
    subscription = SubscriptionData("orders", expression, sub_version=version)
    members.heartbeat(
        HeartbeatData("client", [], [ConsumerData("g", subscription_data_set=[subscription])]), member, 0, 0, 0.0
    )


def in_force(members: GroupMembers[Member]) -> str:
    found = members.subscription("g", "orders")
    assert found is not None
    return found.sub_string


def test_the_subscription_of_a_new_connection_counts_whatever_its_version() -> None:
    """The subscription of a new connection applies even if its version is lower.

    The version is a timestamp, and the clock of the new host can be slow.
    """
    members: GroupMembers[Member] = GroupMembers()
    old, new = Member(), Member()
    subscribe(members, old, "a", 100)
    subscribe(members, new, "b", 50)
    assert in_force(members) == "b"
    # Both members repeat their subscriptions. The last change wins, and pulls with either version are accepted.
    for _ in range(2):
        subscribe(members, old, "a", 100)
        subscribe(members, new, "b", 50)
        found = members.subscription("g", "orders")
        assert found is not None
        assert (found.sub_string, found.sub_version) == ("b", 100)
    subscribe(members, new, "c", 60)
    assert in_force(members) == "c"
    # A delayed heartbeat of the same connection.
    subscribe(members, new, "b", 50)
    assert in_force(members) == "c"


@pytest.mark.parametrize("repeats", [True, False])
def test_the_subscription_of_who_stays_counts_as_soon_as_the_other_is_gone(repeats: bool) -> None:
    members: GroupMembers[Member] = GroupMembers()
    first, second, third = Member(), Member(), Member()
    subscribe(members, first, "a", 100)
    subscribe(members, second, "b", 50)
    subscribe(members, third, "c", 70)
    if repeats:
        for member, expression, version in ((first, "a", 100), (second, "b", 50)):
            subscribe(members, member, expression, version)
    members.drop(third)
    assert in_force(members) == "b"
    members.drop(second)
    assert in_force(members) == "a"


def test_who_says_the_same_as_who_leaves_keeps_it_in_force() -> None:
    members: GroupMembers[Member] = GroupMembers()
    first, second, third = Member(), Member(), Member()
    subscribe(members, first, "a", 1)
    subscribe(members, second, "b", 1)
    subscribe(members, third, "a", 1)
    assert in_force(members) == "a"
    members.drop(third)
    assert in_force(members) == "a"
    members.drop(first)
    assert in_force(members) == "b"


def test_a_restarted_group_begins_with_its_own_versions() -> None:
    members: GroupMembers[Member] = GroupMembers()
    old, new = Member(), Member()
    subscribe(members, old, "a", 100)
    members.drop(old)
    subscribe(members, new, "b", 50)
    found = members.subscription("g", "orders")
    assert found is not None
    assert (found.sub_string, found.sub_version) == ("b", 50)
