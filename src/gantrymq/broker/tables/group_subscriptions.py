"""The subscriptions of the members of a consumer group, and the active one for each topic.

All members of a group should have the same subscriptions. The subscriptions can differ during a rolling update, for
example. In this case the last change is active: a new connection's subscription, or a newer version from the same
connection. When the last member with the active subscription leaves, another member's subscription becomes active at
once.

Versions of different connections are not compared, because versions are times of the clients' clocks. Java compares the
versions of all members (`ConsumerGroupInfo.updateSubscription`).

In the code, an active subscription is *in force*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec.structs import replace

from gantrymq.broker.tables.heartbeat_quota import subscription_size
from gantrymq.protocol.bodies.heartbeat import SubscriptionData

M = TypeVar("M")

#: Memory for the entry of an inactive subscription, in bytes, without the subscription itself.
_ENTRY_BYTES = 100


@dataclass(slots=True)
class Update(Generic[M]):
    """The result of a heartbeat: the new active subscriptions, and the members' changed inactive subscriptions."""

    in_force: dict[str, SubscriptionData]
    version: int
    #: (topic, member, its subscription; None if it has the active one).
    others: list[tuple[str, M, SubscriptionData | None]]
    #: Change of the memory of all subscriptions, in bytes.
    growth: int = 0


class GroupSubscriptions(Generic[M]):
    """Stores the subscriptions of one group. `size` is the memory of all of them, active or not, in bytes."""

    def __init__(self) -> None:
        self.in_force: dict[str, SubscriptionData] = {}
        self.size = 0
        #: Member -> its newest version.
        self._versions: dict[M, int] = {}
        #: Topic -> member -> its subscription, if that differs from the active one. The last change comes last.
        self._others: dict[str, dict[M, SubscriptionData]] = {}

    def update(self, member: M, subscriptions: Iterable[SubscriptionData]) -> Update[M]:
        """Computes the change by a member's heartbeat, for `apply`. It removes topics that the heartbeat lacks."""
        newest: dict[str, SubscriptionData] = {}
        for each in subscriptions:
            if each.topic not in newest or each.sub_version > newest[each.topic].sub_version:
                newest[each.topic] = each
        known = self._versions.get(member)
        version = max([each.sub_version for each in newest.values()], default=0)
        update: Update[M] = Update({}, version if known is None else max(version, known), [])
        for topic, each in newest.items():
            before = self.in_force.get(topic)
            if before is None:
                update.in_force[topic] = each
            elif _is_same(each, before):
                update.in_force[topic] = _with_version(each, before)
                self._change(update, topic, member, None)
            elif known is None or each.sub_version > known:
                update.in_force[topic] = _with_version(each, before)
                self._change(update, topic, member, None)
                others = self._others.get(topic, {})
                for other in self._versions:
                    if other is not member:
                        stated = others.get(other, before)
                        self._change(update, topic, other, None if _is_same(stated, each) else stated)
            else:
                # A repeated subscription, or an old heartbeat of this connection.
                update.in_force[topic] = before
                self._change(update, topic, member, each)
        for topic in self._others.keys() - newest.keys():
            for other in self._others[topic]:
                self._change(update, topic, other, None)
        update.growth += _bytes_in_force(update.in_force) - _bytes_in_force(self.in_force)
        return update

    def apply(self, member: M, update: Update[M]) -> None:
        """Applies a result of `update`."""
        self.in_force = update.in_force
        self._versions[member] = update.version
        self.size += update.growth
        for topic, other, subscription in update.others:
            self._put(topic, other, subscription)

    def leave(self, member: M) -> None:
        """Removes a member and its subscriptions."""
        self._versions.pop(member, None)
        for topic in list(self._others):
            self._drop(topic, member)
            others = self._others.get(topic)
            if others and len(others) >= len(self._versions):
                last, before = next(reversed(others.values())), self.in_force[topic]
                self.in_force[topic] = _with_version(last, before)
                self.size += subscription_size(last) - subscription_size(before)
                for other in [other for other, each in others.items() if _is_same(each, last)]:
                    self._drop(topic, other)

    def _change(self, update: Update[M], topic: str, member: M, subscription: SubscriptionData | None) -> None:
        before = self._others.get(topic, {}).get(member)
        if before is not None or subscription is not None:
            update.others.append((topic, member, subscription))
            update.growth += _bytes_of(subscription) - _bytes_of(before)

    def _drop(self, topic: str, member: M) -> None:
        self.size -= _bytes_of(self._others[topic].get(member))
        self._put(topic, member, None)

    def _put(self, topic: str, member: M, subscription: SubscriptionData | None) -> None:
        others = self._others.setdefault(topic, {})
        before = others.get(member)
        if subscription is None or before is None or not _is_same(before, subscription):
            # A changed subscription moves to the end.
            others.pop(member, None)
        if subscription is not None:
            others[member] = subscription
        if not others:
            del self._others[topic]


def _is_same(one: SubscriptionData, other: SubscriptionData) -> bool:
    return (one.sub_string, one.expression_type) == (other.sub_string, other.expression_type)


def _with_version(subscription: SubscriptionData, before: SubscriptionData) -> SubscriptionData:
    """Returns the subscription, with the version of `before` if that is higher.

    With a lower version, the broker would reject pulls of members that already use the version of `before`.
    """
    if subscription.sub_version >= before.sub_version:
        return subscription
    return replace(subscription, sub_version=before.sub_version)


def _bytes_in_force(subscriptions: dict[str, SubscriptionData]) -> int:
    return sum(map(subscription_size, subscriptions.values()))


def _bytes_of(subscription: SubscriptionData | None) -> int:
    return 0 if subscription is None else _ENTRY_BYTES + subscription_size(subscription)
