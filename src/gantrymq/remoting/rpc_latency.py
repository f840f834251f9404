"""RpcLatency: the time from a request to its response, by request and response code (`RemotingMetricsManager`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gantrymq.metrics import Histogram, Kind, Metric
from gantrymq.protocol.codes import RequestCode
from gantrymq.remoting.request_counts import code_labels, known_code, known_response_code

#: Upper limits of Java's buckets, in ms.
_BOUNDS_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
#: Requests that wait for messages. If the response follows later, Java counts them as long polling.
_LONG_POLLING = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.NOTIFICATION,
    )
)

#: Java's results.
SUCCESS, ONEWAY, NOT_WRITTEN = "success", "oneway", "write_channel_failed"


class RpcLatency:
    """Histograms of latencies. Each combination of labels has its own histogram."""

    def __init__(self) -> None:
        #: (request code, response code, responded later, result) -> latencies in ms.
        self._latencies: dict[tuple[int, int, bool, str], Histogram] = {}

    def observe(
        self,
        request_code: int,
        response_code: int,
        seconds: float,
        *,
        is_late: bool = False,
        result: str = SUCCESS,
        count: int = 1,
    ) -> None:
        """Counts `count` requests of this latency. `is_late`: the response was not ready when the handler ended."""
        key = (request_code, response_code, is_late, result)
        histogram = self._latencies.get(key)
        if histogram is None:
            key = (known_code(request_code), known_response_code(response_code), is_late, result)
            histogram = self._latencies.setdefault(key, Histogram(_BOUNDS_MS))
        histogram.observe(seconds * 1000, count)

    def metric(self, labels: Mapping[str, str]) -> Metric:
        """Returns the metric. `labels` are those of the server."""
        return Metric(
            "rocketmq_rpc_latency_milliseconds",
            Kind.HISTOGRAM,
            "Time from a request to its response, in milliseconds, by request code and response code.",
            list(self._samples(labels)),
        )

    def _samples(self, labels: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Histogram]]:
        merged: dict[tuple[int, int, bool, str], Histogram] = {}
        for (request, response, is_late, result), histogram in self._latencies.items():
            key = (request, response, is_late and request in _LONG_POLLING, result)
            merged.setdefault(key, Histogram(_BOUNDS_MS)).include(histogram)
        for (request, response, is_long_polling, result), histogram in merged.items():
            yield (
                {
                    **labels,
                    "protocol_type": "remoting",
                    "is_long_polling": str(is_long_polling).lower(),
                    **code_labels(request, response),
                    "result": result,
                },
                histogram,
            )
