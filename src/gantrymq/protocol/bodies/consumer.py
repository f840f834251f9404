"""Bodies with the state of consumers. A broker requests them for an administrator (remoting/protocol/body/*)."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.queue_map import by_queue, decode_with_queue_maps, encode_queue_map
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message import MessageQueue

#: Values of `ConsumeMessageDirectlyResult.consume_result` (`CMResult`).
CR_SUCCESS = "CR_SUCCESS"
CR_LATER = "CR_LATER"
CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"

#: Names in `ConsumerRunningInfo.properties`.
PROP_NAMESERVER_ADDR = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION = "PROP_CLIENT_VERSION"
#: Only a GantryMQ proxy sets this property, for its clients. PROP_CLIENT_VERSION then starts with the same language.
PROP_PROXY_CLIENT_LANGUAGE = "PROP_PROXY_CLIENT_LANGUAGE"
PROP_CONSUMER_START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"


class ProcessQueueInfo(msgspec.Struct, rename="camel"):
    """A consumer's state for one queue. Times are in ms since the epoch."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    locked: bool = False
    droped: bool = False
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopProcessQueueInfo(msgspec.Struct, rename="camel"):
    """A consumer's state for one queue in POP mode."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumeStatus(msgspec.Struct, rename="camel"):
    """A consumer's statistics for one topic: rates per second, times (RT) in ms, and failures in the last hour."""

    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class _ConsumerRunningInfo(msgspec.Struct, rename="camel"):
    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[str, ProcessQueueInfo] = {}
    mq_pop_table: dict[str, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None


class _ConsumerRunningInfoOut(msgspec.Struct, rename="camel", omit_defaults=True):
    properties: dict[str, str]
    subscription_set: list[SubscriptionData]
    mq_table: msgspec.Raw
    mq_pop_table: msgspec.Raw
    status_table: dict[str, ConsumeStatus]
    jstack: str | None = None


@dataclass(slots=True)
class ConsumerRunningInfo:
    """The response to GET_CONSUMER_RUNNING_INFO (307). `status_table` is by topic."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None

    def encode(self) -> bytes:
        return encode_json(
            _ConsumerRunningInfoOut(
                self.properties,
                self.subscription_set,
                encode_queue_map(self.mq_table),
                encode_queue_map(self.mq_pop_table),
                self.status_table,
                self.jstack,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> ConsumerRunningInfo:
        """Parses the body. Raises BodyError."""
        body = decode_with_queue_maps(data, _ConsumerRunningInfo)
        return cls(
            body.properties,
            body.subscription_set,
            by_queue(body.mq_table),
            by_queue(body.mq_pop_table),
            body.status_table,
            body.jstack,
        )


class ConsumeMessageDirectlyResult(msgspec.Struct, rename="camel"):
    """The response to CONSUME_MESSAGE_DIRECTLY (309). `consume_result` is, for example, CR_SUCCESS or CR_LATER."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
