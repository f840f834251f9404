"""Rates of pulling and handling for each topic of a consumer (`ConsumerStatsManager`)."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass

from gantrymq.protocol.bodies.consumer import ConsumeStatus

#: Interval of samples, s. Rates cover the last minute, the number of failures covers an hour.
SAMPLE_INTERVAL_S = 10.0
_SAMPLES_PER_MINUTE = 6
_SAMPLES_PER_HOUR = 360


@dataclass(slots=True)
class TopicCounters:
    """Counters of a topic since the start; times in seconds."""

    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    handled: int = 0
    handle_s: float = 0.0
    failed: int = 0


class ConsumeStatistics:
    """Counters of each topic. Computes rates of the last minute and failures of the last hour."""

    def __init__(self) -> None:
        self._counters: dict[str, TopicCounters] = {}
        self._samples: dict[str, deque[TopicCounters]] = {}

    def of(self, topic: str) -> TopicCounters:
        """Returns the counters of a topic, the same object in each call."""
        if topic not in self._counters:
            self._counters[topic] = TopicCounters()
            self._samples[topic] = deque([TopicCounters()], _SAMPLES_PER_HOUR)
        return self._counters[topic]

    def sample(self) -> None:
        """Stores a sample of all counters. Call it every SAMPLE_INTERVAL_S."""
        for topic, counters in self._counters.items():
            self._samples[topic].append(TopicCounters(*astuple(counters)))

    def status(self, topic: str) -> ConsumeStatus:
        now = self.of(topic)
        samples = self._samples[topic]
        then = samples[-min(len(samples), _SAMPLES_PER_MINUTE)]
        seconds = min(len(samples), _SAMPLES_PER_MINUTE) * SAMPLE_INTERVAL_S
        handled, failed, pulls = now.handled - then.handled, now.failed - then.failed, now.pulls - then.pulls
        return ConsumeStatus(
            pull_rt=_ratio(1000 * (now.pull_s - then.pull_s), pulls),
            pull_tps=(now.pulled - then.pulled) / seconds,
            consume_rt=_ratio(1000 * (now.handle_s - then.handle_s), handled),
            consume_ok_tps=(handled - failed) / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=now.failed - samples[0].failed,
        )


def _ratio(total: float, count: int) -> float:
    return total / count if count else 0.0
