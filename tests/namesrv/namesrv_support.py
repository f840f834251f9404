"""Registrations as brokers send them, for the NameServer tests."""

from __future__ import annotations

import zlib

from gantrymq.protocol.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader


def broker_header(
    name: str = "broker-a",
    address: str = "10.0.0.1:10911",
    *,
    broker_id: int = 0,
    cluster: str = "DefaultCluster",
    acting: bool | None = None,
    timeout_ms: int | None = None,
    compressed: bool = False,
    crc: int = 0,
) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        broker_id=broker_id,
        ha_server_addr=address.replace("10911", "10912"),
        heartbeat_timeout_millis=timeout_ms,
        enable_acting_master=acting,
        compressed=compressed,
        body_crc32=crc,
    )


def topics_body(
    *topics: TopicConfig | str, version: int = 1, state: int = 0, filter_servers: list[str] | None = None
) -> RegisterBrokerBody:
    """Returns a registration of these topics. Equal values of `version` give equal data versions."""
    configs = [TopicConfig(t) if isinstance(t, str) else t for t in topics]
    table = TopicConfigTable({c.topic_name: c for c in configs}, DataVersion(state, 1_700_000_000_000, version))
    return RegisterBrokerBody(table, filter_servers or [])


def registration(
    header: RegisterBrokerRequestHeader,
    body: RegisterBrokerBody,
    *,
    fields: dict[str, str] | None = None,
) -> RemotingCommand:
    """Returns the request with the CRC-32 of its body. The body is compressed if the header says so."""
    data = encode_register_body(body, compress=header.compressed)
    header.body_crc32 = zlib.crc32(data) & 0x7FFFFFFF
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, data, fields=fields)
