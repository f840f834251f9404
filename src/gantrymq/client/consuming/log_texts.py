"""Texts for the log lines of consumers: failed attempts and sets of queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt, MessageQueue


def failed_attempt(message: MessageExt) -> str:
    """Returns the topic, the keys, the id and the attempt of a message whose handler failed. Attempts begin at 1."""
    # Not `message.keys`: the handler may have set a property to a value that is not a string.
    keys = message.properties.get(names.KEYS)
    key = f", key {keys!r}" if keys else ""
    return f"topic {message.topic!r}{key}, message {message.msg_id}, attempt {message.reconsume_times + 1}"


def queue_list(queues: Iterable[MessageQueue]) -> str:
    """Returns brokers and queue ids of one topic's queues: `broker-a 0-3, 6; broker-b 0-3`."""
    by_broker = groupby(sorted(queues), attrgetter("broker_name"))
    texts = [f"{broker} {_ranges([queue.queue_id for queue in of])}" for broker, of in by_broker]
    return "; ".join(texts) or "none"


def queues_by_topic(queues: Iterable[MessageQueue]) -> str:
    """Returns queues of several topics: `bills (broker-a 0), orders (broker-a 0-3, 6; broker-b 0-3)`."""
    by_topic = groupby(sorted(queues), attrgetter("topic"))
    return ", ".join(f"{topic} ({queue_list(of)})" for topic, of in by_topic)


def _ranges(ids: Sequence[int]) -> str:
    """Returns ascending numbers as ranges."""
    # The difference between a number and its index is constant within a range.
    runs = [[number for _, number in run] for _, run in groupby(enumerate(ids), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
