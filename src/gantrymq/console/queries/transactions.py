"""Transactions that brokers have given up."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.queries.messages import MessageRow, row_of
from gantrymq.console.queries.servers import Nothing
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import PRODUCER_GROUP, REAL_TOPIC, TRANSACTION_CHECK_TIMES

#: Largest number of half messages on the page.
MAX_GIVEN_UP = 200


class GivenUp(msgspec.Struct):
    """A half message that its broker has given up."""

    row: MessageRow
    topic: str
    producer_group: str
    checks: str


class TransactionsPage(msgspec.Struct):
    """The half messages, ordered by broker and arrival. A change ends them in this order."""

    given_up: list[GivenUp]
    is_all: bool


async def transactions(view: ClusterView, arguments: Nothing) -> TransactionsPage:
    halves = await view.admin.given_up_transactions(MAX_GIVEN_UP + 1)
    return TransactionsPage([_given_up(half) for half in halves[:MAX_GIVEN_UP]], len(halves) <= MAX_GIVEN_UP)


def _given_up(half: MessageExt) -> GivenUp:
    properties = half.properties
    return GivenUp(
        row_of(half),
        properties.get(REAL_TOPIC, ""),
        properties.get(PRODUCER_GROUP, ""),
        properties.get(TRANSACTION_CHECK_TIMES, ""),
    )
