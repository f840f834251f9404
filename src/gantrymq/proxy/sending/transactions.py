"""Transactions: where halves lie, from their sending, or a broker's question, until their end is told.

A client tells the end by topic and transaction id alone, the broker wants the half's place. Source:
proxy/service/transaction/TransactionDataManager.
"""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.proxy.config import ProxyConfig

#: Transactions that are remembered at once, 700 bytes each; of older ones the broker asks.
MAX_TRANSACTIONS = 100_000
#: A table of so many is looked through for those that are over when half as many have come again.
_LOOK_AT = 1000


class Half(NamedTuple):
    """A half message; `queue_offset` is in the queue of halves. Its producers' group is its topic."""

    transaction_id: str
    topic: str
    broker_name: str
    queue_offset: int
    commit_log_offset: int


class Transactions:
    """The halves whose end isn't known. One that was sent twice has two: each is ended."""

    def __init__(self, config: ProxyConfig) -> None:
        self._expire_s = config.transaction_data_expire_millis / 1000
        self._most = config.transaction_data_max_num
        #: By topic and transaction id: (when it is forgotten, s; the half), the oldest first.
        self._halves: dict[tuple[str, str], list[tuple[float, Half]]] = {}
        self._look_at = _LOOK_AT

    def __len__(self) -> int:
        return len(self._halves)

    def remember(self, half: Half, now: float) -> None:
        """For some seconds: a client that tells the end later is asked for it by the broker, and told anew."""
        self._forget_old(now)
        key = half.topic, half.transaction_id
        if len(self._halves) >= MAX_TRANSACTIONS and key not in self._halves:
            del self._halves[next(iter(self._halves))]
        halves = self._halves.setdefault(key, [])
        halves[:] = [(until, known) for until, known in halves if known != half]
        halves.append((now + self._expire_s, half))
        del halves[: -self._most]

    def take(self, topic: str, transaction_id: str, now: float, *, newest: bool = False) -> Half | None:
        """The oldest half of a transaction, once; None when there is none, or it was forgotten.

        The `newest` is what a broker has asked for: it writes a half anew each time that it asks, and to end what stood
        in its place before would have the message delivered, and the broker ask again.
        """
        key = topic, transaction_id
        halves = self._halves.get(key, [])
        found = None
        while halves and found is None:
            until, half = halves.pop(-1 if newest else 0)
            found = half if until > now else None
        if not halves:
            self._halves.pop(key, None)
        return found

    def _forget_old(self, now: float) -> None:
        if len(self._halves) < self._look_at:
            return
        self._halves = {key: halves for key, halves in self._halves.items() if halves[-1][0] > now}
        self._look_at = max(_LOOK_AT, len(self._halves) * 3 // 2)
