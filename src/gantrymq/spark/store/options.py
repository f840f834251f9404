"""The options of `format("rocketmq-store")`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gantrymq.errors import ConfigError
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.spark.bodies.body_format import BODY_OPTIONS, BodyOptions
from gantrymq.spark.option_values import Values, comma_list
from gantrymq.spark.options import DEFAULT_PARTITION_BYTES, READ_OPTIONS, WRITE_OPTIONS
from gantrymq.spark.record_batches import CorruptBodies

STORE_OPTIONS = (
    "path",
    "brokerName",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "endingTimestamp",
    "maxPartitionBytes",
    "failOnDataLoss",
    "includeProperties",
    "propertyColumns",
    "checkCrc",
    "corruptBodies",
    *BODY_OPTIONS,
)


@dataclass(slots=True, frozen=True)
class StoreOptions:
    """What a read of a store's files was asked for.

    path                    a broker's storePathRootDir, or a directory that has the files of its commit log; what
                            `load` is given. It must be there on driver and executors. Required
    brokerName              what the column brokerName says, which no file knows; without it the column is null
    subscribe               topics, separated by commas; without it and the next one all but the system's, retry and
                            dead letter topics
    subscribePattern        a regular expression that the whole name of a topic matches; the same exceptions
    startingTimestamp       ms since the epoch: the messages stored then or later
    endingTimestamp         ms since the epoch: the messages stored before
    maxPartitionBytes       a partition has about so much of the log; default 134217728
    failOnDataLoss          true (default): fail where the log is damaged; false: warn, go on with the next partition
    includeProperties       true: the default schema has the column `properties`; default false
    checkCrc                true (default): compare each body with its CRC32
    corruptBodies, bodyFormat, bodySchema, bodySchemaFile, bodyMessage, schema.registry.*       as for topics
    """

    path: Path
    broker_name: str | None = None
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    fail_on_data_loss: bool = True
    include_properties: bool = False
    property_columns: tuple[str, ...] = ()
    check_crc: bool = True
    corrupt_bodies: CorruptBodies = CorruptBodies.FAIL
    body: BodyOptions | None = None

    @property
    def refuses_wrong_crc(self) -> bool:
        """Whether a body with another CRC32 than its record says is damage; else there is a row of it."""
        return self.check_crc and self.corrupt_bodies is CorruptBodies.FAIL

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StoreOptions:
        """Raises ConfigError."""
        values = Values(options, STORE_OPTIONS, "read of a store", (*READ_OPTIONS, *WRITE_OPTIONS))
        values.exclude("subscribe", "subscribePattern")
        topics = comma_list(values.get("subscribe") or "")
        for topic in topics:
            if problem := topic_problem(topic):
                raise ConfigError(f"option subscribe: {problem}")
        return cls(
            Path(values.required("path").removeprefix("file:")),
            values.get("brokerName"),
            frozenset(topics),
            values.pattern("subscribePattern"),
            values.number("startingTimestamp", None, 0),
            values.number("endingTimestamp", None, 0),
            values.number("maxPartitionBytes", DEFAULT_PARTITION_BYTES, 1) or DEFAULT_PARTITION_BYTES,
            values.flag("failOnDataLoss", True),
            values.flag("includeProperties", False),
            values.property_columns(),
            values.flag("checkCrc", True),
            values.corrupt_bodies(),
            BodyOptions.parse(values, topics),
        )
