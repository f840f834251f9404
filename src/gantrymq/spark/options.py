"""The options of `format("rocketmq")`, checked: a wrong name is answered with the nearest right one.

Names follow Spark's Kafka connector where it has the same thing. Spark hands option names over in lower case and values
as strings. Offsets are written as in the connector, with broker and queue id where Kafka has a partition:
`{"orders": {"broker-a:0": 120, "broker-a:1": -2}}`; -1 stands for latest, -2 for earliest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gantrymq.errors import ConfigError
from gantrymq.protocol.topic_name import group_problem, topic_problem
from gantrymq.remoting.connection import parse_address
from gantrymq.spark.offsets import EARLIEST, LATEST, Boundary, parse_boundary

#: Pulls go under this group when no consumerGroup is given; RocketMQ's own tools use it, so brokers know it.
TOOLS_GROUP = "TOOLS_CONSUMER"
#: Sends go under this group; a broker keeps nothing about it.
PRODUCER_GROUP = "gantry-spark"
DEFAULT_RETRY_TIMEOUT_MS = 60_000

_BOTH = ("nameServer", "retryTimeoutMs")
#: Spark itself puts these in with the others.
_SPARKS_OWN = ("checkpointLocation", "queryName")
READ_OPTIONS = (
    *_BOTH,
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "tags",
    "consumerGroup",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeProperties",
    "checkCrc",
)
WRITE_OPTIONS = (*_BOTH, "topic")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger",)


@dataclass(slots=True, frozen=True)
class ReadOptions:
    """What a read was asked for.

    nameServer              host:port, several separated by `;` or `,`. Required
    subscribe               topics, separated by commas. Required
    startingOffsets         earliest, latest or JSON; default earliest in batch, latest in streaming
    startingTimestamp       instead of startingOffsets: ms since the epoch, the first message stored then or later
    endingOffsets           batch only: latest (default), earliest or JSON; the end is excluded
    endingTimestamp         batch only, instead of endingOffsets
    tags                    `TagA || TagB`: only messages with one of these tags; filtered by the broker
    consumerGroup           streaming: where the query has got to is committed for this group after each batch, so that
                            brokers show its lag. Where a query starts is never taken from it but from the checkpoint
    maxOffsetsPerTrigger    streaming: at most so many messages a batch, shared out by what each queue has
    minPartitions           split large queues until there are at least so many partitions; default one a queue
    failOnDataLoss          true (default): fail when messages to be read are no longer there; false: warn and go on
    includeProperties       true: the default schema has the column `properties`; default false
    checkCrc                true (default): compare each body with its CRC32, 0.25 us for 128 bytes
    retryTimeoutMs          how long to try again when brokers don't answer; default 60000
    """

    name_servers: list[str]
    topics: list[str]
    starting: Boundary | None = None
    ending: Boundary | None = None
    tags: str | None = None
    consumer_group: str | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    include_properties: bool = False
    check_crc: bool = True
    retry_timeout_ms: int = DEFAULT_RETRY_TIMEOUT_MS

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
        """Checked against what a batch (`streaming` False), a stream (True) or either (None) takes.

        Raises ConfigError.
        """
        values = _Values(options, READ_OPTIONS, "read")
        if streaming is not None:
            wrong_kind, kind = (_BATCH_ONLY, "streaming") if streaming else (_STREAM_ONLY, "batch")
            for name in wrong_kind:
                if name in values:
                    raise ConfigError(f"option {name} has no meaning in a {kind} read: leave it out")
        topics = _comma_list(values.required("subscribe"))
        for topic in topics:
            if problem := topic_problem(topic):
                raise ConfigError(f"option subscribe: {problem}")
        if not topics:
            raise ConfigError("option subscribe names no topic")
        group = values.get("consumerGroup")
        if group is not None and (problem := group_problem(group)):
            raise ConfigError(f"option consumerGroup: {problem}")
        return cls(
            values.name_servers(),
            topics,
            values.boundary("startingOffsets", "startingTimestamp"),
            values.boundary("endingOffsets", "endingTimestamp"),
            _tags(values.get("tags")),
            group,
            values.number("maxOffsetsPerTrigger", None, 1),
            values.number("minPartitions", 1, 1) or 1,
            values.flag("failOnDataLoss", True),
            values.flag("includeProperties", False),
            values.flag("checkCrc", True),
            values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0) or 0,
        )

    @property
    def pull_group(self) -> str:
        return self.consumer_group or TOOLS_GROUP

    def starting_or_default(self, *, streaming: bool) -> Boundary:
        return self.starting or (LATEST if streaming else EARLIEST)


@dataclass(slots=True, frozen=True)
class WriteOptions:
    """Where a write goes.

    nameServer              host:port, several separated by `;` or `,`. Required
    topic                   the topic of every row; without it each row has a column `topic`
    retryTimeoutMs          how long to try again when brokers don't take messages; default 60000
    """

    name_servers: list[str]
    topic: str | None = None
    retry_timeout_ms: int = DEFAULT_RETRY_TIMEOUT_MS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Raises ConfigError."""
        values = _Values(options, WRITE_OPTIONS, "write")
        topic = values.get("topic")
        if topic is not None and (problem := topic_problem(topic)):
            raise ConfigError(f"option topic: {problem}")
        return cls(
            values.name_servers(),
            topic,
            values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0) or 0,
        )


class _Values:
    """Options by their proper names; raises ConfigError for those that aren't in `known`."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], action: str) -> None:
        proper = {name.lower(): name for name in (*known, *_SPARKS_OWN)}
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = proper.get(given.lower())
            if name is None:
                raise ConfigError(_unknown(given, proper, action))
            self._values[name] = str(value).strip()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        return self._values.get(name) or None

    def required(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise ConfigError(f"option {name} is required")
        return value

    def name_servers(self) -> list[str]:
        addresses = _comma_list(self.required("nameServer").replace(";", ","))
        for address in addresses:
            try:
                parse_address(address)
            except ValueError as e:
                raise ConfigError(f"option nameServer: {e}") from None
        return addresses

    def boundary(self, offsets_name: str, timestamp_name: str) -> Boundary | None:
        if offsets_name in self and timestamp_name in self:
            raise ConfigError(f"options {offsets_name} and {timestamp_name} exclude each other")
        timestamp = self.number(timestamp_name, None, 0)
        if timestamp is not None:
            return Boundary(timestamp_ms=timestamp)
        text = self.get(offsets_name)
        return None if text is None else parse_boundary(offsets_name, text)

    def number(self, name: str, default: int | None, least: int) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"option {name}: {text!r} is no whole number") from None
        if number < least:
            raise ConfigError(f"option {name}: {number} is less than {least}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        text = (self.get(name) or str(default)).lower()
        if text not in ("true", "false"):
            raise ConfigError(f"option {name}: {text!r} is neither true nor false")
        return text == "true"


def _unknown(given: str, proper: Mapping[str, str], action: str) -> str:
    near = get_close_matches(given.lower(), proper, 1)
    if near:
        return f"no option {given!r}: did you mean {proper[near[0]]!r}?"
    of_the_other = {name.lower() for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    if given.lower() in of_the_other:
        return f"option {given!r} has no meaning in a {action}"
    known = ", ".join(sorted(name for name in proper.values() if name not in _SPARKS_OWN))
    return f"no option {given!r} in a {action}; there are {known}"


def _comma_list(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _tags(text: str | None) -> str | None:
    return None if text is None or text == "*" else text
