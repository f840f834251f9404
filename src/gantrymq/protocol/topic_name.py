"""Names of topics and groups: what is allowed, and which are the system's own (`common/topic/TopicValidator`)."""

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
#: Entries of the delivery journal (`broker/delivery_journal.py`). Java has no such topic.
DELIVERY_JOURNAL_TOPIC = SYSTEM_TOPIC_PREFIX + "gantry_delivery_journal"
#: Checkpoints and acknowledgements of pops; the cluster's name follows.
REVIVE_TOPIC_PREFIX = SYSTEM_TOPIC_PREFIX + "REVIVE_LOG_"
#: What brokers of one set tell each other; the broker's name follows.
SYNC_BROKER_MEMBER_PREFIX = SYSTEM_TOPIC_PREFIX + "SYNC_BROKER_MEMBER_"
RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"

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
#: Java's clients and brokers send to none of these (`NOT_ALLOWED_SEND_TOPIC_SET`); see `may_be_sent_to`.
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

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255
MAX_GROUP_LENGTH = 120

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def topic_problem(topic: str) -> str | None:
    """Why a topic's name is not allowed, or None when it is."""
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
    """Why a producer's or consumer group's name is not allowed, or None when it is."""
    if not group.strip():
        return "the specified group is blank"
    if not _ALLOWED.fullmatch(group):
        return f"the specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_LENGTH:
        return f"the specified group is longer than group max length {MAX_GROUP_LENGTH}."
    return None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def may_be_sent_to(topic: str) -> bool:
    """Whether a client may have a message stored in this topic, at once or later.

    Not in those that only the broker writes, since it believes what it reads there. Java forgets the topics of timers
    and of pops, so that a message can be sent around for ever. Topics of traces, replies and retries are open.
    """
    if topic in SEND_FORBIDDEN_TOPICS or topic in (TIMER_TOPIC, DELIVERY_JOURNAL_TOPIC):
        return False
    return not topic.startswith((REVIVE_TOPIC_PREFIX, SYNC_BROKER_MEMBER_PREFIX))


def may_be_delivered_to(topic: str) -> bool:
    """Whether a message that has waited for its time may go there: what the broker notes about pops waits, too."""
    return may_be_sent_to(topic) or topic.startswith(REVIVE_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Where messages that a group failed on come back."""
    return RETRY_TOPIC_PREFIX + group
