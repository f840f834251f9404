"""TimerMetrics: number of waiting timer messages by topic (`store/timer/TimerMetrics`).

The file config/timermetrics stores the numbers, and GET_TIMER_METRICS returns them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.java import string_hash_code
from gantrymq.store.json_config import JsonConfigFile


class _Metric(msgspec.Struct, rename="camel"):
    count: int = 0
    time_stamp: int = 0


class _TimerMetrics(msgspec.Struct, rename="camel"):
    timing_count: dict[str, _Metric] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class TimerMetrics:
    """Counts waiting messages by topic. After a crash, the changes of the last second may be missing."""

    def __init__(self, path: Path) -> None:
        self._file = JsonConfigFile(path)
        self._metrics = _TimerMetrics()

    def load(self) -> bool:
        """Reads the file. Returns False if there is no valid file. The caller must then `add` all waiting messages."""
        data = self._file.load(lambda content: decode_json(content, _TimerMetrics), can_be_rebuilt=True)
        if data is None:
            return False
        self._metrics = decode_json(data, _TimerMetrics)
        return True

    def copy(self, content: bytes) -> None:
        """Replaces the counts by those of another broker, from its `encode`. Raises BodyError."""
        self._metrics = decode_json(content, _TimerMetrics)

    def clear(self) -> None:
        """Removes all counts."""
        self._metrics = _TimerMetrics()

    def add(self, topic: str, count: int, now_ms: int) -> None:
        """Adds `count`, which can be negative, to the number of a topic."""
        metric = self._metrics.timing_count.setdefault(topic, _Metric())
        metric.count += count
        metric.time_stamp = now_ms
        self._metrics.data_version.advance()

    def add_by_hash(self, topic_hash: int, count: int, now_ms: int) -> None:
        """As `add`, for the topic with this hash code. Does nothing if there is no such topic."""
        for topic in self._metrics.timing_count:
            if string_hash_code(topic) == topic_hash:
                self.add(topic, count, now_ms)
                return

    def counts(self) -> dict[str, int]:
        """Returns the number of waiting messages by topic."""
        return {topic: metric.count for topic, metric in self._metrics.timing_count.items()}

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return encode_json(self._metrics)

    def save(self, data: bytes) -> None:
        """Writes `data`, a result of `encode`, to the file. Can run in another thread. Raises StoreError."""
        self._file.save(data)
