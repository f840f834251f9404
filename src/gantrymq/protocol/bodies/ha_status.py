"""The state of replication: the response to GET_BROKER_HA_STATUS (907; remoting/protocol/body/HARuntimeInfo).

Offsets are physical, times are in ms since the epoch, rates in bytes per second.
"""

from __future__ import annotations

import msgspec

from gantrymq.protocol.fastjson import decode_json, encode_json


class HaConnectionStatus(msgspec.Struct, rename="camel"):
    """A master's data about one slave. `broker_id` and `behind_millis` are -1 from Java's brokers.

    `behind_millis` is the age of the oldest message that the slave lacks, in ms; 0 if the slave has all messages.
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
    """A slave's data about itself. `master_addr` is the master's replication address.

    `refusal` is the reason why the slave does not follow its master. The reason is "" if the slave follows, if the
    master is unreachable, or if the broker is Java's.
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
    """The replication state of one broker. A master has `connections`, a slave has `client`."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    connections: list[HaConnectionStatus] = msgspec.field(default_factory=list, name="haConnectionInfo")
    client: HaClientStatus = msgspec.field(default_factory=HaClientStatus, name="haClientRuntimeInfo")

    def encode(self) -> bytes:
        return encode_json(self)

    @classmethod
    def decode(cls, data: bytes) -> HaStatus:
        """Parses the body. Raises BodyError."""
        return decode_json(data, cls)
