"""How replication fares: the answer to GET_BROKER_HA_STATUS (907; remoting/protocol/body/HARuntimeInfo).

Offsets are physical, times ms since the epoch, rates bytes a second.
"""

from __future__ import annotations

import msgspec

from gantrymq.protocol.fastjson import decode_json, encode_json


class HaConnectionStatus(msgspec.Struct, rename="camel"):
    """One slave, as its master sees it; `broker_id` and `behind_millis` are told by our brokers only, else -1.

    `behind_millis` is the age of the oldest message that the slave lacks, 0 when it has all.
    """

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0
    broker_id: int = -1
    behind_millis: int = -1


class HaClientStatus(msgspec.Struct, rename="camel"):
    """A slave, as it sees itself; `master_addr` is the one for replication.

    `refusal` says why it doesn't follow, "" while it does or can't reach its master; told by our brokers only.
    """

    master_addr: str = ""
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    is_activated: bool = msgspec.field(default=False, name="activated")
    refusal: str = ""


class HaStatus(msgspec.Struct, rename="camel"):
    """Of one broker; a master has slaves, a slave has `client`."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    connections: list[HaConnectionStatus] = msgspec.field(default_factory=list, name="haConnectionInfo")
    client: HaClientStatus = msgspec.field(default_factory=HaClientStatus, name="haClientRuntimeInfo")

    def encode(self) -> bytes:
        return encode_json(self)

    @classmethod
    def decode(cls, data: bytes) -> HaStatus:
        """Raises BodyError."""
        return decode_json(data, cls)
