"""The tables of a broker, such as topics, groups and offsets, and their files."""

from __future__ import annotations

from gantrymq.broker.tables.access_control import AccessControl
from gantrymq.broker.tables.attributes import (
    GROUP_ATTRIBUTES,
    LITE_EXCLUSIVE,
    LITE_RESET_EXCLUSIVE,
    LITE_RESET_UNSUBSCRIBE,
    LITE_SUB_MODEL,
    TOPIC_ATTRIBUTES,
    altered,
    check_combination,
    is_by_priority,
    is_compacted,
    is_lite,
    lite_expiration_minutes,
    parse_changes,
    priority_factor,
)
from gantrymq.broker.tables.broker_stats import BrokerStats
from gantrymq.broker.tables.consumer_filters import ConsumerFilters
from gantrymq.broker.tables.consumer_offsets import OFFSETS_FILE, ConsumerOffsets, OffsetTable, read_deleted_topics
from gantrymq.broker.tables.deliveries import Deliveries
from gantrymq.broker.tables.group_members import Client, GroupMembers
from gantrymq.broker.tables.message_filters import MessageFilter, MessageFilters, compiling, is_tag_type
from gantrymq.broker.tables.persistence import TablePersistence, answer_after, answer_in_pieces, gently, in_pieces
from gantrymq.broker.tables.rate_limits import DeliveryLimits, RateLimits
from gantrymq.broker.tables.request_modes import MessageRequestModes
from gantrymq.broker.tables.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupTable
from gantrymq.broker.tables.table_response import TableResponse
from gantrymq.broker.tables.topics import REVIVE_QUEUE_NUMS, BrokerTopics
from gantrymq.broker.tables.transaction_counts import TransactionCounts

__all__ = [
    "GROUP_ATTRIBUTES",
    "LITE_EXCLUSIVE",
    "LITE_RESET_EXCLUSIVE",
    "LITE_RESET_UNSUBSCRIBE",
    "LITE_SUB_MODEL",
    "OFFSETS_FILE",
    "REVIVE_QUEUE_NUMS",
    "TOPIC_ATTRIBUTES",
    "AccessControl",
    "BrokerStats",
    "BrokerTopics",
    "Client",
    "ConsumerFilters",
    "ConsumerOffsets",
    "Deliveries",
    "DeliveryLimits",
    "GroupMembers",
    "MessageFilter",
    "MessageFilters",
    "MessageRequestModes",
    "OffsetTable",
    "RateLimits",
    "SubscriptionGroupConfig",
    "SubscriptionGroupTable",
    "TablePersistence",
    "TableResponse",
    "TransactionCounts",
    "altered",
    "answer_after",
    "answer_in_pieces",
    "check_combination",
    "compiling",
    "gently",
    "in_pieces",
    "is_by_priority",
    "is_compacted",
    "is_lite",
    "is_tag_type",
    "lite_expiration_minutes",
    "parse_changes",
    "priority_factor",
    "read_deleted_topics",
]
