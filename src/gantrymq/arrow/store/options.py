"""Parses and checks the options of a read of a store's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gantrymq.arrow.body_values import BodyDecoding, CorruptBodies
from gantrymq.arrow.option_values import Values, comma_list
from gantrymq.arrow.options import DEFAULT_PARTITION_BYTES
from gantrymq.errors import ConfigError
from gantrymq.protocol.topic_name import topic_problem

STORE_OPTIONS = (
    "path",
    "storePathCommitLog",
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
)


@dataclass(slots=True, frozen=True)
class StoreOptions:
    """The options of a read of a store's files.

    Options:
        path: A broker's storePathRootDir, or a directory with the files of its commit log. It is the argument of
            `load`. It must exist on the driver and on the executors. Required. It can also be the tier of a broker: its
            directory, or a URL such as `s3://bucket/path/CLUSTER/BROKER`, which needs the extra `s3`.
        storePathCommitLog: The directories of the commit log, separated by commas. With several directories, also
            those of the broker's readOnlyCommitLogStorePaths. Default: `commitlog` in `path`, or `path` itself.
        brokerName: The value of the column brokerName, which no file contains. Default: null.
        subscribe: Topics, separated by commas. Default: all topics except system topics, retry topics and dead-letter
            queues.
        subscribePattern: A regular expression for the whole topic name, with the same exceptions.
        startingTimestamp: Only messages stored at this time or later, in ms since the epoch.
        endingTimestamp: Only messages stored before this time, in ms since the epoch.
        maxPartitionBytes: The approximate size of a partition, in bytes of the log. Default: 134217728 (128 MiB).
        failOnDataLoss: If true (default), the read fails if the log is damaged. If false, it logs a warning and
            continues with the next partition.
        includeProperties: If true, the default schema has the column `properties`. Default: false.
        checkCrc: If true (default), the read compares each body with its CRC32.
        propertyColumns, corruptBodies: As for a read from brokers.
    """

    path: Path
    #: The URL of a tier in an object store. "" for a directory.
    url: str = ""
    commit_log_paths: tuple[Path, ...] = ()
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
    #: The format of the column `value`. Only the Spark source has one (`spark.store.options`).
    body: BodyDecoding | None = None

    @property
    def refuses_wrong_crc(self) -> bool:
        """Whether a body with a wrong CRC32 counts as damage of the log. Otherwise the read returns its row."""
        return self.check_crc and self.corrupt_bodies is CorruptBodies.FAIL

    @property
    def returns_corrupt_bodies(self) -> bool:
        """Whether the read returns a null for a corrupt body, and the reason in the column bodyError."""
        return self.corrupt_bodies is CorruptBodies.NULL

    @classmethod
    def of(cls, values: Values) -> Self:
        """Parses the options. Raises ConfigError for an invalid option."""
        values.exclude("subscribe", "subscribePattern")
        topics = comma_list(values.get("subscribe") or "")
        for topic in topics:
            if problem := topic_problem(topic):
                raise ConfigError(f"option subscribe: {problem}")
        path = values.required("path")
        is_url = "://" in path and not path.startswith("file:")
        if is_url:
            values.exclude("path", "storePathCommitLog")
        return cls(
            path=Path(path.removeprefix("file:")),
            url=path if is_url else "",
            commit_log_paths=tuple(map(Path, comma_list(values.get("storePathCommitLog") or ""))),
            broker_name=values.get("brokerName"),
            topics=frozenset(topics),
            pattern=values.pattern("subscribePattern"),
            starting_ms=values.number("startingTimestamp", None, 0),
            ending_ms=values.number("endingTimestamp", None, 0),
            partition_bytes=values.number("maxPartitionBytes", DEFAULT_PARTITION_BYTES, 1),
            fail_on_data_loss=values.flag("failOnDataLoss", True),
            include_properties=values.flag("includeProperties", False),
            property_columns=values.property_columns(),
            check_crc=values.flag("checkCrc", True),
            corrupt_bodies=CorruptBodies(values.choice("corruptBodies", CorruptBodies, CorruptBodies.FAIL)),
        )
