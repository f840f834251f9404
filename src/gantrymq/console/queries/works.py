"""What is under way: changes that take longer than a page may wait."""

from __future__ import annotations

import msgspec

from gantrymq.console.eye import Eye
from gantrymq.console.queries.servers import Nothing
from gantrymq.console.works import Work


class WorksPage(msgspec.Struct):
    """This user's, the newest first."""

    works: list[Work]


async def works(eye: Eye, arguments: Nothing) -> WorksPage:
    return WorksPage(list(eye.works))
