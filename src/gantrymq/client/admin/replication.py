"""Replication: how far slaves are."""

from __future__ import annotations

from gantrymq.client.admin.base import AdminBase
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.headers.ha import ResetMasterFlushOffsetHeader


class AdminReplication(AdminBase):
    """Requests to brokers, each named by its host:port."""

    async def ha_status(self, address: str) -> HaStatus:
        """A master's slaves, or how a slave follows its master."""
        return HaStatus.decode((await self._call(address, RequestCode.GET_BROKER_HA_STATUS)).body)

    async def reset_master_flush_offset(self, address: str, offset: int) -> None:
        """Tells a slave how far its master's log was on the disk."""
        header = ResetMasterFlushOffsetHeader(master_flush_offset=offset)
        await self._call(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
