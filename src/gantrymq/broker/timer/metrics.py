"""How many timer messages wait for each topic: config/timermetrics, GET_TIMER_METRICS (`store/timer/TimerMetrics`)."""

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
    """Counts by topic. After a crash they may be off by what came and went in the last second."""

    def __init__(self, path: Path) -> None:
        self._file = JsonConfigFile(path)
        self._metrics = _TimerMetrics()

    def load(self) -> bool:
        """False when there is no good file: then all that waits has to be added."""
        data = self._file.load(lambda content: decode_json(content, _TimerMetrics), can_be_rebuilt=True)
        if data is None:
            return False
        self._metrics = decode_json(data, _TimerMetrics)
        return True

    def copy(self, content: bytes) -> None:
        """Takes another broker's counts, as `encode` gives them. Raises BodyError."""
        self._metrics = decode_json(content, _TimerMetrics)

    def clear(self) -> None:
        self._metrics = _TimerMetrics()

    def add(self, topic: str, count: int, now_ms: int) -> None:
        metric = self._metrics.timing_count.setdefault(topic, _Metric())
        metric.count += count
        metric.time_stamp = now_ms
        self._metrics.data_version.advance()

    def add_by_hash(self, topic_hash: int, count: int, now_ms: int) -> None:
        """As `add`, where only the topic's hash code is known; nothing where that fits none."""
        for topic in self._metrics.timing_count:
            if string_hash_code(topic) == topic_hash:
                self.add(topic, count, now_ms)
                return

    def counts(self) -> dict[str, int]:
        return {topic: metric.count for topic, metric in self._metrics.timing_count.items()}

    def encode(self) -> bytes:
        """The file's content."""
        return encode_json(self._metrics)

    def save(self, data: bytes) -> None:
        """Writes what `encode` gave; may be called by another thread. Raises StoreError."""
        self._file.save(data)
