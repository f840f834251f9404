"""Names of topics and groups: validation, and the system's own names (`common/topic/TopicValidator`)."""

from __future__ import annotations

import re

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANSACTION_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"

SYSTEM_TOPIC_PREFIX = "rmq_sys_"
TIMER_TOPIC = SYSTEM_TOPIC_PREFIX + "wheel_timer"
#: Entries of the delivery journal (`broker/delay/delivery_journal.py`). Java has no such topic.
DELIVERY_JOURNAL_TOPIC = SYSTEM_TOPIC_PREFIX + "gantry_delivery_journal"
#: Prefix of topics with checkpoints and acknowledgements of pops. The cluster's name follows.
REVIVE_TOPIC_PREFIX = SYSTEM_TOPIC_PREFIX + "REVIVE_LOG_"
#: Prefix of topics for communication within a broker set. The broker's name follows.
SYNC_BROKER_MEMBER_PREFIX = SYSTEM_TOPIC_PREFIX + "SYNC_BROKER_MEMBER_"
RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
#: Prefix of light queues (`MixAll.LMQ_PREFIX`).
LIGHT_QUEUE_PREFIX = "%LMQ%"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)
#: Topics to which Java's clients and brokers do not send (`NOT_ALLOWED_SEND_TOPIC_SET`). See `may_be_sent_to`.
SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)

#: Prefix of RocketMQ's own consumer groups (`MixAll.CID_RMQ_SYS_PREFIX`).
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
#: The group with which mqadmin reads queues (`MixAll.TOOLS_CONSUMER_GROUP`).
TOOLS_GROUP = "TOOLS_CONSUMER"
#: The group whose offsets store the progress in half messages and op messages (`MixAll.CID_SYS_RMQ_TRANS`).
TRANSACTION_GROUP = SYSTEM_GROUP_PREFIX + "TRANS"
#: The group whose offsets store the progress in the revive topic (`PopAckConstants.REVIVE_GROUP`).
REVIVE_GROUP = SYSTEM_GROUP_PREFIX + "REVIVE_GROUP"
#: Groups that Java's broker creates at its start (`SubscriptionGroupManager.init`).
PREDEFINED_GROUPS = frozenset(
    {
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        TRANSACTION_GROUP,
    }
)
#: Consumer groups of brokers and tools (`MixAll.isSysConsumerGroupPullMessage`). See `is_system_group`.
SYSTEM_GROUPS = PREDEFINED_GROUPS | {"DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"}

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255
MAX_GROUP_LENGTH = 120

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def topic_problem(topic: str) -> str | None:
    """Returns why a topic name is not allowed, or None if it is."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _ALLOWED.fullmatch(topic):
        return f"The specified topic: {topic}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    is_retry = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    longest = MAX_RETRY_TOPIC_LENGTH if is_retry else MAX_TOPIC_LENGTH
    if len(topic) > longest:
        return f"The specified topic is longer than topic max length {longest}."
    return None


def group_problem(group: str) -> str | None:
    """Returns why the name of a producer or consumer group is not allowed, or None if it is."""
    if not group.strip():
        return "the specified group is blank"
    if not _ALLOWED.fullmatch(group):
        return f"the specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_LENGTH:
        return f"the specified group is longer than group max length {MAX_GROUP_LENGTH}."
    return None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def may_be_sent_to(topic: str) -> bool:
    """Returns true if clients may send messages to this topic, immediate or delayed.

    Topics that only the broker writes are excluded, because the broker trusts their content. Java allows the topics of
    timers and pops. A message sent to one of them could be redelivered forever. Topics of traces, replies and retries
    are allowed.
    """
    if topic in SEND_FORBIDDEN_TOPICS or topic in (TIMER_TOPIC, DELIVERY_JOURNAL_TOPIC):
        return False
    return not topic.startswith((REVIVE_TOPIC_PREFIX, SYNC_BROKER_MEMBER_PREFIX))


def may_be_delivered_to(topic: str) -> bool:
    """Returns true if a delayed message may be delivered to this topic. This includes the broker's own pop records."""
    return may_be_sent_to(topic) or topic.startswith(REVIVE_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Returns the retry topic of a group, for messages that the group failed to consume."""
    return RETRY_TOPIC_PREFIX + group
