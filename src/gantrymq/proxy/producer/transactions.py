"""Cache of the positions of half messages, from the send (or a broker's check) until commit or rollback.

A client ends a transaction with only the topic and the transaction id. The broker also needs the position of the half
message. Source: proxy/service/transaction/TransactionDataManager.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from gantrymq.limits import PROXY_TRANSACTIONS
from gantrymq.proxy.config import ProxyConfig

#: Size of the table at which expired entries are removed for the first time. They are removed again each time the table
#: has grown by half.
_LOOK_AT = 1000


class Half(NamedTuple):
    """A half message: `queue_offset` in the queue of half messages. `topic` is also the producer group."""

    transaction_id: str
    topic: str
    broker_name: str
    queue_offset: int
    commit_log_offset: int


class Transactions:
    """The half messages of open transactions. A message that was sent twice has two half messages. Both must end."""

    def __init__(self, config: ProxyConfig) -> None:
        self._expire_s = config.transaction_data_expire_millis / 1000
        self._most = config.transaction_data_max_num
        #: (topic, transaction id) -> list of (time of expiry in s, half message), oldest first.
        #: To find the first key of a plain dictionary takes longer with each key removed before it.
        self._halves: OrderedDict[tuple[str, str], list[tuple[float, Half]]] = OrderedDict()
        self._look_at = _LOOK_AT

    def __len__(self) -> int:
        return len(self._halves)

    def remember(self, half: Half, now: float) -> None:
        """Caches a half message for `transaction_data_expire_millis`.

        If the client ends the transaction later, EndTransaction fails. The broker then checks the transaction, which
        caches the half message again.
        """
        self._forget_old(now)
        key = half.topic, half.transaction_id
        if len(self._halves) >= PROXY_TRANSACTIONS and key not in self._halves:
            self._halves.popitem(last=False)
        halves = self._halves.setdefault(key, [])
        halves[:] = [(until, known) for until, known in halves if known != half]
        halves.append((now + self._expire_s, half))
        del halves[: -self._most]

    def take(self, topic: str, transaction_id: str, now: float, *, newest: bool = False) -> Half | None:
        """Removes and returns the oldest half message of a transaction; None if there is none or it has expired.

        For the response to a check, pass `newest`. A broker writes a new copy of the half message for each check. If
        the proxy committed an older copy, the broker would deliver the message and still check the new copy.
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
        self._halves = OrderedDict((key, halves) for key, halves in self._halves.items() if halves[-1][0] > now)
        self._look_at = max(_LOOK_AT, len(self._halves) * 3 // 2)
