"""ReceivedMessages: counts messages and their bytes by topic and message type, for the metrics.

Sources: `BrokerMetricsManager.getMessageType`, `SendMessageProcessor.handlePutMessageResult`. A message counts for the
topic in which it is first stored. For a delayed message, this is the topic of the delay levels. For a half message, it
is the half topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gantrymq.metrics import Histogram
from gantrymq.protocol.properties import find_property, has_property

NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
#: Start of the property of ordered messages.
SHARDING_KEY = b"__SHARDINGKEY\x01"
#: Upper limits of the buckets of message sizes, in bytes.
SIZE_BOUNDS = (1024, 4096, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)
#: Properties of delayed messages.
_DELAYS = (b"DELAY", b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"__STARTDELIVERTIME")


def message_type(properties: bytes) -> str:
    """Returns the type of a message with these properties."""
    # `in` takes 45 ns in a str and 300 ns in bytes. Names of properties are ASCII.
    text = properties.decode("latin-1")
    if "TRAN_MSG\x01" in text and (find_property(properties, b"TRAN_MSG") or b"").lower() == b"true":
        return TRANSACTION
    if "__SHARDINGKEY\x01" in text and has_property(properties, SHARDING_KEY[:-1]):
        return FIFO
    # These two searches exclude most messages. Three of the properties have "DELAY" in their names.
    if "DELAY" in text or "TIMER_DELIVER_MS" in text or "__STARTDELIVERTIME" in text:
        return DELAY if any(has_property(properties, name) for name in _DELAYS) else NORMAL
    return NORMAL


class ReceivedMessages:
    """Sizes of the messages of one broker. The sizes of deleted topics stay, so that no counter decreases."""

    def __init__(self) -> None:
        #: (topic, message type) -> sizes of the messages as records, in bytes.
        self._sizes: dict[tuple[str, str], Histogram] = {}
        self._sources: list[Callable[[], None]] = []

    def add_source(self, add_counts: Callable[[], None]) -> None:
        """Registers `add_counts`, which is called before each read of the sizes. It calls `add_counted`."""
        self._sources.append(add_counts)

    def add(self, topic: str, kind: str, size: int, count: int = 1) -> None:
        """Counts `count` messages of one request. `size` is their total size in bytes."""
        # Native code also counts with the mean as an integer and with the exact sum.
        self._histogram(topic, kind).observe_together(size, count)

    def add_counted(self, counts: Iterable[tuple[bytes, bool, int, list[int]]]) -> None:
        """Adds messages that native code has counted; see `PlainSends.take_counts`."""
        for topic, is_ordered, size, numbers in counts:
            self._histogram(topic.decode(), FIFO if is_ordered else NORMAL).add(numbers, size)

    def sizes(self) -> Mapping[tuple[str, str], Histogram]:
        """Returns the sizes of messages as records, in bytes, by (topic, message type)."""
        for add_counts in self._sources:
            add_counts()
        return self._sizes

    def _histogram(self, topic: str, kind: str) -> Histogram:
        sizes = self._sizes.get((topic, kind))
        if sizes is None:
            sizes = self._sizes[topic, kind] = Histogram(SIZE_BOUNDS)
        return sizes
