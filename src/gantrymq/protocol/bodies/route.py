"""Bodies with routes: a topic's queues and the brokers' addresses (remoting/protocol/route/*, body/ClusterInfo)."""

from __future__ import annotations

from typing import Any

import msgspec

#: The broker id of a master.
MASTER_ID = 0


class QueueData(msgspec.Struct, rename="camel"):
    """The queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(msgspec.Struct, rename="camel"):
    """The brokers of one name: addresses (HOST:PORT) of its master (id 0) and slaves."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    zone_name: str | None = None
    enable_acting_master: bool = False

    @property
    def master_address(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)


class TopicRouteData(msgspec.Struct, rename="camel"):
    """The response to GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, dict[str, Any]] | None = None


class ClusterInfo(msgspec.Struct, rename="camel"):
    """The response to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(msgspec.Struct, rename="camel"):
    """The response to requests for topic names."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KVTable(msgspec.Struct):
    """A table of strings, for example a KV configuration or runtime statistics."""

    table: dict[str, str] = {}
