"""Encodes response bodies as JSON without nulls, like fastjson, and filters routes by zone."""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.protocol.bodies.route import BrokerData, TopicRouteData
from gantrymq.protocol.fastjson import encode_json


def encode_body(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """Returns standard JSON without nulls. Map keys are quoted, so old and new clients can read it."""
    return encode_json(_without_null(msgspec.to_builtins(value, str_keys=True)))


def in_zone(route: TopicRouteData, zone_name: str) -> TopicRouteData:
    """Returns the route with brokers of one zone and brokers without a master (namesrv/route/ZoneRouteRPCHook)."""
    wanted = zone_name.lower()
    brokers: list[BrokerData] = []
    left_out: list[BrokerData] = []
    for broker in route.broker_datas:
        serves = broker.master_address is None or (broker.zone_name or "").lower() == wanted
        (brokers if serves else left_out).append(broker)
    names = {broker.broker_name for broker in left_out}
    addresses = {address for broker in left_out for address in broker.broker_addrs.values()}
    return TopicRouteData(
        [queues for queues in route.queue_datas if queues.broker_name not in names],
        brokers,
        {address: servers for address, servers in route.filter_server_table.items() if address not in addresses},
        route.order_topic_conf,
        route.topic_queue_mapping_by_broker,
    )


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(v) for key, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_null(v) for v in value]
    return value
