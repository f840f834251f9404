"""The page of a user's operations: changes that take longer than a page can wait."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.operations import Operation
from gantrymq.console.queries.servers import Nothing


class OperationsPage(msgspec.Struct):
    """The operations, newest first."""

    operations: list[Operation]


async def operations(view: ClusterView, arguments: Nothing) -> OperationsPage:
    return OperationsPage(list(view.operations))
