"""Bodies of POP: records of the revive log, batches of acknowledgements, assignments and request modes.

The short field names are those of the JSON. Source: store/pop/PopCheckPoint, AckMsg, BatchAckMsg,
remoting/protocol/body/BatchAck*, QueryAssignment*, SetMessageRequestModeRequestBody.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gantrymq.errors import BodyError
from gantrymq.protocol.bodies.heartbeat import CLUSTERING
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.java import Int32, Int64

#: Tags of the records in the revive log.
CHECKPOINT_TAG = "ck"
ACK_TAG = "ack"
BATCH_ACK_TAG = "bAck"

MODE_PULL = "PULL"
MODE_POP = "POP"

#: Identifies the checkpoint of an acknowledgement: topic, group, queue id, start offset, pop time, broker name.
PopKey = tuple[str, str, int, int, int, str]

#: Largest number of messages in a pop. A checkpoint has one bit for each.
MAX_MESSAGES = 32
#: Largest number of bits in a client's BitSet. With a filter, the offsets of a pop's messages can be far apart.
_MAX_BITS = 1 << 20


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """The messages at `start_offset + diffs`, which one pop returned from one queue. Times are in ms.

    - Bit i of `bit_map` is set if the i-th message is acknowledged.
    - `reput_times` counts how often the checkpoint was rewritten because a redelivery failed.
    - If `suspend` is true, a redelivery does not count as an attempt.
    - `log_end` is the end of the commit log at the time of the pop, or -1 if unknown. Java's brokers ignore it.
    """

    start_offset: Int64 = msgspec.field(name="so")
    pop_time: Int64 = msgspec.field(name="pt")
    invisible_time: Int64 = msgspec.field(name="it")
    count: int = msgspec.field(name="n")
    queue_id: Int32 = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    bit_map: Int32 = msgspec.field(name="bm", default=0)
    diffs: list[Int32] = msgspec.field(name="d", default=[])
    broker_name: str = msgspec.field(name="bn", default="")
    reput_times: str | None = msgspec.field(name="rp", default=None)
    suspend: bool = msgspec.field(name="sp", default=False)
    log_end: Int64 = msgspec.field(name="gantryLogEnd", default=-1)

    @property
    def revive_time(self) -> int:
        """The time at which unacknowledged messages are redelivered, in ms."""
        return self.pop_time + self.invisible_time

    @property
    def offsets(self) -> list[int]:
        """The messages' queue offsets. Checkpoints of old brokers have no diffs."""
        return [self.start_offset + diff for diff in self.diffs or range(self.count)]

    def bit_of(self, offset: int) -> int:
        """Returns the number of the bit for the message with this queue offset; -1 if the pop does not have it."""
        diff, diffs = offset - self.start_offset, self.diffs
        if not diffs:
            return diff if 0 <= diff < self.count else -1
        # Most pops have no gaps.
        if 0 <= diff < len(diffs) and diffs[diff] == diff:
            return diff
        return diffs.index(diff) if diff in diffs else -1

    @property
    def all_bits(self) -> int:
        """The bit map if all messages are acknowledged, as an unsigned number."""
        return (1 << (len(self.diffs) or self.count)) - 1

    @property
    def key(self) -> PopKey:
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name


class Ack(msgspec.Struct, omit_defaults=True):
    """Acknowledges one message of a checkpoint, or several if `offsets` is set."""

    start_offset: Int64 = msgspec.field(name="so")
    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    queue_id: Int32 = msgspec.field(name="q")
    pop_time: Int64 = msgspec.field(name="pt")
    offset: Int64 = msgspec.field(name="ao", default=-1)
    broker_name: str = msgspec.field(name="bn", default="")
    offsets: list[Int64] = msgspec.field(name="aol", default=[])

    @property
    def key(self) -> PopKey:
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name


class BatchAck(msgspec.Struct):
    """Acknowledges messages of one checkpoint. Bit i of `bits`, lowest first, is the message at start_offset + i."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry_flag: str = msgspec.field(name="r")
    start_offset: Int64 = msgspec.field(name="so")
    queue_id: Int32 = msgspec.field(name="q")
    revive_queue_id: Int32 = msgspec.field(name="rq")
    pop_time: Int64 = msgspec.field(name="pt")
    invisible_time: Int64 = msgspec.field(name="it")
    bits: bytes = msgspec.field(name="b", default=b"")

    def offsets(self) -> Iterator[int]:
        """Yields the queue offsets of the acknowledged messages. Raises BodyError if a pop cannot have as many."""
        bits = int.from_bytes(self.bits[: _MAX_BITS // 8], "little")
        if bits.bit_count() > MAX_MESSAGES:
            raise BodyError(f"{bits.bit_count()} messages of one pop: it has at most {MAX_MESSAGES}")
        while bits:
            lowest = bits & -bits
            yield self.start_offset + lowest.bit_length() - 1
            bits ^= lowest


class BatchAckBody(msgspec.Struct, rename="camel"):
    """The body of BATCH_ACK_MESSAGE (200151)."""

    broker_name: str | None = None
    acks: list[BatchAck] = []


class RequestMode(msgspec.Struct, rename="camel"):
    """The body of SET_MESSAGE_REQUEST_MODE (401), and an entry of messageRequestMode.json.

    If `pop_share_queue_num` is positive, a client pops its own queues and the queues of this many other clients.
    Otherwise it pops all queues.
    """

    topic: str
    consumer_group: str
    mode: str = MODE_PULL
    pop_share_queue_num: Int32 = 0


class RequestModeTable(msgspec.Struct, rename="camel"):
    """All request modes by topic and group: the content of messageRequestMode.json."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


class QueryAssignmentRequestBody(msgspec.Struct, rename="camel"):
    """The body of QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = CLUSTERING


class QueueAssignment(msgspec.Struct, rename="camel"):
    """A queue, and the mode in which to consume it. Queue id -1 means all queues of the topic on that broker."""

    message_queue: QueueObject
    mode: str = MODE_PULL


class QueryAssignmentResponseBody(msgspec.Struct, rename="camel", omit_defaults=True):
    """The response to QUERY_ASSIGNMENT (400). Without assignments, the client keeps its current queues."""

    message_queue_assignments: list[QueueAssignment] | None = None
