"""Classifies topics and groups by their names."""

from __future__ import annotations

from gantrymq.console.cluster_view import Servers
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic

#: Prefixes of the internal groups of tools and brokers.
_TOOLS = (
    "CID_RMQ_SYS_",
    "TOOLS_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONSAPI",
    "CID_SYS_RMQ_TRANS",
    "FILTERSRV_CONSUMER",
)


def topic_kind(name: str, servers: Servers | None) -> str:
    """Returns topic, retry, dlq or system."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if name.startswith(DLQ_TOPIC_PREFIX):
        return "dlq"
    if is_system_topic(name):
        return "system"
    # Each broker has system topics: with its own name, with its cluster's name, and for replies (TopicConfigManager).
    if servers is not None:
        clusters = servers.info.cluster_addr_table
        if name in servers.info.broker_addr_table or name in clusters or name.removesuffix("_REPLY_TOPIC") in clusters:
            return "system"
    return "topic"


def is_tools_group(name: str) -> bool:
    return name.startswith(_TOOLS)
