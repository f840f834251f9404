"""Requests from administration tools: mqadmin, `gantry admin` and the console."""

from __future__ import annotations

from gantrymq.broker.admin.auth import AuthAdmin
from gantrymq.broker.admin.broker_config import BrokerConfigAdmin
from gantrymq.broker.admin.client_relay import ClientRelay
from gantrymq.broker.admin.connections import Connections
from gantrymq.broker.admin.consume_stats import ConsumeProgress
from gantrymq.broker.admin.groups import GroupAdmin
from gantrymq.broker.admin.messages import MessageAdmin
from gantrymq.broker.admin.offsets import OffsetAdmin
from gantrymq.broker.admin.runtime_info import RuntimeInfo
from gantrymq.broker.admin.store import StoreAdmin
from gantrymq.broker.admin.topic_stats import TopicStats
from gantrymq.broker.admin.topics import TopicAdmin

__all__ = [
    "AuthAdmin",
    "BrokerConfigAdmin",
    "ClientRelay",
    "Connections",
    "ConsumeProgress",
    "GroupAdmin",
    "MessageAdmin",
    "OffsetAdmin",
    "RuntimeInfo",
    "StoreAdmin",
    "TopicAdmin",
    "TopicStats",
]
