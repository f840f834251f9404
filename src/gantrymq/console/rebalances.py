"""Rebalances: which members groups have, from look to look; each change of them is a rebalance.

A plain table, told what was seen. Not all groups can be asked about each time: they take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gantrymq.console.history import Rebalance

#: Groups that are asked about in one look.
AT_ONCE = 64


class MembersSeen:
    """Members by group, as they were at the last look."""

    def __init__(self) -> None:
        self._members: dict[str, frozenset[str]] = {}
        self._last = ""

    def __contains__(self, group: str) -> bool:
        return group in self._members

    def next_groups(self, groups: Iterable[str]) -> Sequence[str]:
        """Whose turn it is; what is known of groups that are gone is forgotten."""
        known = sorted(groups)
        for gone in self._members.keys() - set(known):
            del self._members[gone]
        if len(known) <= AT_ONCE:
            return known
        first = next((number for number, group in enumerate(known) if group > self._last), 0)
        chosen = (known[first:] + known[:first])[:AT_ONCE]
        self._last = chosen[-1]
        return chosen

    def seen(self, group: str, members: Iterable[str], now_ms: int) -> Rebalance | None:
        """What has changed since the last look; None when nothing has, or at the first look."""
        now = frozenset(members)
        before = self._members.get(group)
        self._members[group] = now
        if before is None or before == now:
            return None
        return Rebalance(now_ms, sorted(now - before), sorted(before - now), len(now))
