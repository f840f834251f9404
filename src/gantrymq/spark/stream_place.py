"""StreamPlace: how far a stream is, as its checkpoint keeps it.

    {"orders": {"broker-a:0": 120},
     "$start": {"orders": {"broker-a:0": 100}},
     "$first": {"orders": {"broker-a:0": [40, 1767225600000]}},
     "$last": {"orders": {"broker-a:0": 1767225700000}},
     "$began": {"brokers": ["broker-a"], "since": 1767225600000},
     "$turn": {"orders": "broker-a:0"},
     "$plan": {"orders": {"broker-a:0": [0, 110, 1]}}}

Up to 120 (excluded) the queue has been read, by a micro-batch that began at 100; that is there only where the place
before doesn't say so. The queue's oldest message was offset 40, stored at that time (ms), and the last one that was
read, offset 119, was stored at the time that `$last` has: by these a queue is known again. `$began` has the brokers
and the time of the stream's start. `$turn` exists if the micro-batch had fewer rows than there were queues with
messages. It is the last queue that got a row: the next micro-batch begins with the queue behind it. `$plan` has the
partitions of the micro-batch (`partitions.RecordedPlan`). A repeated micro-batch has the same ones, even with other
options. No topic has a name with `$`. Checkpoints of earlier versions lack some or all of these fields. Unknown fields
of later versions are refused, because they may change the meaning of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.offsets import FirstMessage, Offsets, from_json, queue_key, queue_of, to_json
from gantrymq.spark.partitions import RecordedPlan

_OWN = "$"
_STARTS = "$start"
_FIRSTS = "$first"
_LASTS = "$last"
_BEGAN = "$began"
_TURN = "$turn"
_PLAN = "$plan"
_PARTS = {_STARTS, _FIRSTS, _LASTS, _BEGAN, _TURN, _PLAN}


@dataclass(slots=True, frozen=True)
class Began:
    """How the stream began: the brokers that were there, and since when (ms) messages of the others are wanted.

    `since_ms` is None for a stream that wants all of them. A queue of a broker that was there is a new one.
    """

    brokers: frozenset[str]
    since_ms: int | None


@dataclass(slots=True, frozen=True)
class StreamPlace:
    """`starts`: of queues that the place before this one doesn't have, or has wrongly. `latest` is another offset when
    a first batch that failed is planned again after a restart, and what lies between would be lost.

    `lasts`: when the message before a queue's end was stored, ms. `turn`: the argument `after` of `offsets.limit_rows`.
    """

    ends: Offsets
    starts: Offsets = field(default_factory=dict)
    firsts: dict[MessageQueue, FirstMessage] = field(default_factory=dict)
    began: Began | None = None
    lasts: dict[MessageQueue, int] = field(default_factory=dict)
    turn: MessageQueue | None = None
    #: None in a checkpoint of an earlier version.
    plan: RecordedPlan | None = None

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps."""
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
    def from_json(cls, value: dict[str, Any]) -> StreamPlace:
        """Raises ConfigError for a checkpoint that this source hasn't written, or a later version of it."""
        if later := sorted(name for name in value if name.startswith(_OWN) and name not in _PARTS):
            raise ConfigError(
                f"the checkpoint has {', '.join(later)}, which this version doesn't know: it was written by a later "
                "version of gantrymq. Use that one, or another checkpoint"
            )
        try:
            ends = from_json({name: part for name, part in value.items() if not name.startswith(_OWN)}, least=0)
            starts = from_json(value.get(_STARTS, {}), least=0)
            firsts = {
                queue_of(topic, key): FirstMessage(*map(int, first))
                for topic, queues in value.get(_FIRSTS, {}).items()
                for key, first in queues.items()
            }
            lasts = from_json(value.get(_LASTS, {}), least=0)
            began = value.get(_BEGAN)
            if began is not None:
                since_ms = began["since"]
                began = Began(frozenset(began["brokers"]), None if since_ms is None else int(since_ms))
            turn = next((queue_of(topic, key) for topic, key in value.get(_TURN, {}).items()), None)
            plan = None
            if (by_topic := value.get(_PLAN)) is not None:
                plan = {
                    queue_of(topic, key): [int(number) for number in of_queue]
                    for topic, queues in by_topic.items()
                    for key, of_queue in queues.items()
                }
        except (AttributeError, KeyError, TypeError, ValueError, ConfigError) as e:
            raise ConfigError(f"the checkpoint's offset {value!r} isn't one of this source: {e}") from e
        return cls(ends, starts, firsts, began, lasts, turn, plan)
