"""Headers of requests about replication (906 to 908). Offsets are physical."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int64


class ExchangeHaInfoRequestHeader(Header):
    """EXCHANGE_BROKER_HA_INFO (906): a master sends its data to a slave. Without fields, a slave requests it."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHaInfoResponseHeader(Header):
    """A master's response: its replication address, the end of its log when it became master, and its address."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Int64 | None = None
