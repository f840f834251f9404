"""`StreamPosition`: the position of a stream, and its JSON, which Spark stores in the checkpoint.

    {"orders": {"broker-a:0": 120},
     "$start": {"orders": {"broker-a:0": 100}},
     "$first": {"orders": {"broker-a:0": [40, 1767225600000]}},
     "$last": {"orders": {"broker-a:0": 1767225700000}},
     "$began": {"brokers": ["broker-a"], "since": 1767225600000},
     "$turn": {"orders": "broker-a:0"},
     "$plan": {"orders": {"broker-a:0": [0, 110, 1]}}}

In this example, the stream has read the queue up to offset 120 (excluded). The other fields:

- `$start`: the starts of the last micro-batch, for queues whose start is not in the previous position.
- `$first`: the offset and the store time (ms) of the oldest message. They show whether the topic was created again.
- `$last`: the store time (ms) of the last message that was read, here the one before offset 120.
- `$began`: the brokers and the time (ms) of the start of the stream.
- `$turn`: the last queue that was served, if the micro-batch had fewer rows than queues with messages. The next
  micro-batch begins with the queue after it.
- `$plan`: the partitions of the micro-batch (`partitions.RecordedPlan`). A repeated micro-batch has the same
  partitions, even with other options.

No topic has a name with `$`. Checkpoints of earlier versions lack some or all of these fields. A field of a later
version is an error, because it may change the meaning of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gantrymq.arrow.offsets import FirstMessage, Offsets, from_json, parse_queue, queue_key, to_json
from gantrymq.arrow.partitions import RecordedPlan
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue

_OWN = "$"
_STARTS = "$start"
_FIRSTS = "$first"
_LASTS = "$last"
_BEGAN = "$began"
_TURN = "$turn"
_PLAN = "$plan"
_PARTS = {_STARTS, _FIRSTS, _LASTS, _BEGAN, _TURN, _PLAN}


@dataclass(slots=True, frozen=True)
class StreamStart:
    """The start of a stream.

    Attributes:
        brokers: The brokers at that time. A further queue of one of these brokers is a new queue.
        since_ms: The store time from which messages of other brokers are read; None to read all.
    """

    brokers: frozenset[str]
    since_ms: int | None


@dataclass(slots=True, frozen=True)
class StreamPosition:
    """The position of a stream.

    Attributes:
        ends: The offsets up to which each queue is read.
        starts: The starts of the last micro-batch, for queues whose start is not in the previous position. After a
            restart, `latest` resolves to a higher offset. Without the recorded starts, a failed first micro-batch
            would then skip the messages in between.
        firsts: The oldest message of each queue.
        began: The start of the stream.
        lasts: The store times of the messages before `ends`, in ms.
        turn: The argument `after` of `offsets.limit_rows`.
        plan: The partitions of the micro-batch; None in a checkpoint of an earlier version.
    """

    ends: Offsets
    starts: Offsets = field(default_factory=dict)
    firsts: dict[MessageQueue, FirstMessage] = field(default_factory=dict)
    began: StreamStart | None = None
    lasts: dict[MessageQueue, int] = field(default_factory=dict)
    turn: MessageQueue | None = None
    plan: RecordedPlan | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON for the checkpoint, or for the caller of `stream_topic`."""
        value: dict[str, Any] = to_json(self.ends)
        if self.starts:
            value[_STARTS] = to_json(self.starts)
        for queue in sorted(self.firsts):
            value.setdefault(_FIRSTS, {}).setdefault(queue.topic, {})[queue_key(queue)] = list(self.firsts[queue])
        if self.lasts:
            value[_LASTS] = to_json(self.lasts)
        if self.began is not None:
            value[_BEGAN] = {"brokers": sorted(self.began.brokers), "since": self.began.since_ms}
        if self.turn is not None:
            value[_TURN] = {self.turn.topic: queue_key(self.turn)}
        for queue, of_queue in sorted((self.plan or {}).items()):
            value.setdefault(_PLAN, {}).setdefault(queue.topic, {})[queue_key(queue)] = of_queue
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StreamPosition:
        """Parses the JSON. Raises ConfigError if another source or a later version has written it."""
        if later := sorted(name for name in value if name.startswith(_OWN) and name not in _PARTS):
            raise ConfigError(
                f"the position of the stream has {', '.join(later)}, which this version can't read: it is from a later "
                "version of gantrymq. Use that version, or start a new stream (in Spark with another checkpoint)"
            )
        try:
            ends = from_json({name: part for name, part in value.items() if not name.startswith(_OWN)}, least=0)
            starts = from_json(value.get(_STARTS, {}), least=0)
            firsts = {
                parse_queue(topic, key): FirstMessage(*map(int, first))
                for topic, queues in value.get(_FIRSTS, {}).items()
                for key, first in queues.items()
            }
            lasts = from_json(value.get(_LASTS, {}), least=0)
            began = value.get(_BEGAN)
            if began is not None:
                since_ms = began["since"]
                began = StreamStart(frozenset(began["brokers"]), None if since_ms is None else int(since_ms))
            turn = next((parse_queue(topic, key) for topic, key in value.get(_TURN, {}).items()), None)
            plan = None
            if (by_topic := value.get(_PLAN)) is not None:
                plan = {
                    parse_queue(topic, key): [int(number) for number in of_queue]
                    for topic, queues in by_topic.items()
                    for key, of_queue in queues.items()
                }
        except (AttributeError, KeyError, TypeError, ValueError, ConfigError) as e:
            raise ConfigError(f"{value!r} is not the position of a stream: {e}") from e
        return cls(ends, starts, firsts, began, lasts, turn, plan)
