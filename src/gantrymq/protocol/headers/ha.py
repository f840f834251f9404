"""Headers of requests about replication (906 to 908); offsets are physical."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int64


class ExchangeHaInfoRequestHeader(Header):
    """EXCHANGE_BROKER_HA_INFO (906): a master tells a slave of itself, or, with nothing in it, is asked by one."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHaInfoResponseHeader(Header):
    """What a master answers: where slaves connect, where its log ended when it became master, and its address."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Int64 | None = None
