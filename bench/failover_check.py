"""Checks of a failover's histories: no message is lost, out of order or unknown, and there are never two masters.

The checks have no access to the cluster. They compare the acknowledgements of the clients with the final log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from failover_load import KEYS, Acknowledged

from gantrymq.replication.epochs import Epoch

#: Largest number of reported problems of one kind.
MOST_NAMED = 3


class Stored(NamedTuple):
    """A message in the final queues."""

    queue: int
    offset: int
    physical_offset: int
    key: int
    number: int


def judge(acknowledged: Collection[Acknowledged], stored: Iterable[Stored], epochs: list[Epoch]) -> list[str]:
    """Returns the problems. `stored` has the messages of each queue in order, `epochs` are those of the log."""
    stored = list(stored)
    return [
        *_lost(acknowledged, {(each.queue, each.offset): each for each in stored}),
        *_out_of_order(acknowledged, stored),
        *_two_masters(acknowledged, epochs),
    ]


def again(stored: Collection[Stored]) -> int:
    """Returns the number of repeated messages. Their sends got no acknowledgement and were repeated."""
    return len(stored) - len({(each.key, each.number) for each in stored})


def _lost(acknowledged: Iterable[Acknowledged], stored: Mapping[tuple[int, int], Stored]) -> list[str]:
    """Checks that each acknowledged message is at its acknowledged position."""
    problems = []
    for each in acknowledged:
        found = stored.get((each.queue, each.offset))
        if found is None:
            problems.append(f"lost: {each}")
        elif (found.key, found.number, found.physical_offset) != (each.key, each.number, each.physical_offset):
            problems.append(f"lost: {each}; in its place is {found}")
    return _some(problems)


def _out_of_order(acknowledged: Iterable[Acknowledged], stored: Iterable[Stored]) -> list[str]:
    """Checks for each key that its messages first appear in order, in one queue, and that none is unknown."""
    counts = dict.fromkeys(range(KEYS), 0)
    for sent in acknowledged:
        counts[sent.key] = max(counts[sent.key], sent.number + 1)
    problems = []
    following = dict.fromkeys(range(KEYS), 0)
    queues: dict[int, int] = {}
    for each in stored:
        # A message that was in flight at the end has no acknowledgement.
        if each.key not in counts or each.number > counts[each.key]:
            problems.append(f"invented: {each}")
            continue
        if queues.setdefault(each.key, each.queue) != each.queue:
            problems.append(f"out of order: key {each.key} is in the queues {queues[each.key]} and {each.queue}")
        if each.number > following[each.key]:
            problems.append(f"out of order: {each} before number {following[each.key]}")
        following[each.key] = max(following[each.key], each.number + 1)
    problems += [
        f"lost: number {following[key]} of key {key}" for key, count in counts.items() if following[key] < count
    ]
    return _some(problems)


def _two_masters(acknowledged: Iterable[Acknowledged], epochs: list[Epoch]) -> list[str]:
    """Checks that each epoch had one acknowledging master.

    A master must not acknowledge after a client noticed the master of a later epoch.
    """
    by_epoch: dict[int, list[Acknowledged]] = {number: [] for number, _ in epochs}
    numbers = sorted(by_epoch)
    starts = [start for _, start in sorted(epochs)]
    at = 0
    for each in sorted(acknowledged, key=lambda each: each.physical_offset):
        while at + 1 < len(starts) and each.physical_offset >= starts[at + 1]:
            at += 1
        by_epoch[numbers[at]].append(each)
    problems = []
    for number in numbers:
        brokers = {each.broker for each in by_epoch[number]}
        if len(brokers) > 1:
            problems.append(f"two masters: {len(brokers)} brokers acknowledged in epoch {number}")
    had = [number for number in numbers if by_epoch[number]]
    for earlier, later in pairwise(had):
        heard = min(by_epoch[later], key=lambda each: each.ended)
        last = max(by_epoch[earlier], key=lambda each: each.began)
        if last.began > heard.ended:
            problems.append(f"two masters: {last} began in epoch {earlier} after {heard} had ended in epoch {later}")
    return _some(problems)


def _some(problems: list[str]) -> list[str]:
    if len(problems) <= MOST_NAMED:
        return problems
    return [*problems[:MOST_NAMED], f"and {len(problems) - MOST_NAMED:,} like these"]
