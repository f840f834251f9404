"""Options that several kinds of consumers share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gantrymq.client.consuming.assignment import ErrorCallback, QueuesCallback
from gantrymq.client.consuming.process_queue import FlowLimits
from gantrymq.client.consuming.rebalance import AllocateStrategy, allocate_averagely
from gantrymq.client.consuming.start_position import StartFrom, check_start
from gantrymq.client.options import ClientOptions, option
from gantrymq.errors import IllegalMessage
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_LAST_OFFSET
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.topic_name import group_problem

START_FROM_DOC = (
    'Where a group begins that has no offset of a queue: "earliest" (the first message), "latest" (the end of the '
    "queue), a datetime (the first message stored then or later), or CONSUME_FROM_LAST_OFFSET (the broker decides, as "
    "for Java's clients: the end, or the beginning if the first message is still in memory)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberOptions(ClientOptions):
    """Options of all consumers."""

    max_body_size: int = option(
        MAX_DECOMPRESSED_SIZE,
        "Largest decompressed body, bytes. Reading the `body` of a message that exceeds it raises CompressionError.",
    )
    on_error: ErrorCallback | None = option(None, "Called with each error in the background that is logged.")

    def _check(self) -> None:
        ClientOptions._check(self)
        if problem := group_problem(self.wire_group):
            raise IllegalMessage(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(GroupMemberOptions):
    """Options of the consumers that subscribe to topics."""

    start_from: StartFrom = option(CONSUME_FROM_LAST_OFFSET, START_FROM_DOC)

    def _check(self) -> None:
        GroupMemberOptions._check(self)
        check_start(self.start_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullingOptions(ConsumerOptions):
    """Options of the consumers that pull queues."""

    # Java's consumers request 32 or 10 messages, and Java's broker sends at most 32. Brokers of this project send a
    # bulk reader as many messages as it requests. With 256, consumers are nearly twice as fast as with 32. With 1024,
    # they are no faster.
    pull_batch_size: int = option(256, "Most messages of one pull.", minimum=1, maximum=1024)
    flow_limits: FlowLimits | None = option(
        None, "How many messages and bytes of a queue the consumer fetches ahead. None: `FlowLimits()`."
    )
    allocate: AllocateStrategy = option(allocate_averagely, "Shares out the queues of a topic in the group.")
    broadcasting: bool = option(
        False,
        "Every consumer of the group receives every message. Offsets are kept on this machine, and a message whose "
        "handler fails is not redelivered.",
    )
    offset_directory: Path = option(Path("~/.rocketmq_offsets"), "Directory of the offsets of `broadcasting`.")
    instance_name: str = option("DEFAULT", "Name under which a consumer with `broadcasting` finds its offsets again.")
    on_assigned: QueuesCallback | None = option(None, "Called with the queues that are assigned to this consumer.")
    on_revoked: QueuesCallback | None = option(None, "Called with the queues that are revoked from this consumer.")

    def limits(self) -> FlowLimits:
        """Returns the limits for prefetched messages."""
        return self.flow_limits or FlowLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerOptions(PullingOptions):
    """Options of `LitePullConsumer`."""

    auto_commit: bool = option(
        True, "Commits the offsets of consumed messages every 5 s and at the close. If false, only `commit` does."
    )
