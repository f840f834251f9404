"""The parts of a query's progress that come from the source: topics, latest offsets and lag.

    {"orders": {"broker-a:0": 120}, "$lag": {"orders": 20}}

is the source's `latestOffset` in Spark 4.2 and later. No topic has a name with `$`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gantrymq.arrow.offsets import Offsets, to_json
from gantrymq.arrow.stream_position import StreamPosition
from gantrymq.errors import ConfigError

_LAG = "$lag"


def progress_of(latest: Offsets, read_to: Offsets) -> dict[str, Any] | None:
    """Returns the progress of a stream; None before its first plan.

    Args:
        latest: The ends of the queues when the last micro-batch was planned.
        read_to: The offsets up to which the stream reads with this micro-batch.
    """
    if not latest:
        return None
    lag = Counter[str]()
    for queue, end in latest.items():
        lag[queue.topic] += max(0, end - read_to.get(queue, end))
    return to_json(latest) | {_LAG: dict(lag)}


def lag_of(source: Mapping[str, Any]) -> dict[str, int]:
    """Returns {topic: lag in messages} from a source of a progress; empty for another source."""
    try:
        latest = _decoded(source.get("latestOffset"))
        return {str(topic): int(lag) for topic, lag in latest[_LAG].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def topics_of(source: Mapping[str, Any]) -> list[str]:
    """Returns the topics that a source of a progress reads, sorted; none for another source."""
    try:
        position = StreamPosition.from_json(_decoded(source.get("endOffset")))
    except (ConfigError, TypeError, ValueError):
        return []
    return sorted({queue.topic for queue in position.ends})


def _decoded(offset: object) -> Any:
    """Decodes an offset of a progress, which is an object or its JSON text. Raises ValueError for invalid JSON."""
    return json.loads(offset) if isinstance(offset, str) else offset
