"""The options of `format("rocketmq")`, checked: a wrong name is answered with the nearest right one.

Names follow Spark's Kafka connector where it has the same thing. Spark hands option names over in lower case and values
as strings. Offsets are written as in the connector, with broker and queue id where Kafka has a partition:
`{"orders": {"broker-a:0": 120, "broker-a:1": -2}}`; -1 stands for latest, -2 for earliest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gantrymq.errors import ConfigError
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import group_problem, topic_problem
from gantrymq.spark.bodies.body_format import BODY_OPTIONS, BodyOptions
from gantrymq.spark.bodies.encoding import AUTO_REGISTER, BodyEncoding
from gantrymq.spark.offsets import EARLIEST, LATEST, Boundary
from gantrymq.spark.option_values import (
    SECURITY,
    Values,
    checked_sql92,
    checked_tags,
    expected_brokers,
    kept_properties,
    transaction_of,
)
from gantrymq.spark.record_batches import CorruptBodies
from gantrymq.spark.security import Security

#: Pulls go under this group when no consumerGroup is given; RocketMQ's own tools use it, so brokers know it.
TOOLS_GROUP = "TOOLS_CONSUMER"
#: Sends go under this group; a broker keeps nothing about it.
PRODUCER_GROUP = "gantry-spark"
DEFAULT_RETRY_TIMEOUT_MS = 60_000
#: As Spark has it for files (spark.sql.files.maxPartitionBytes).
DEFAULT_PARTITION_BYTES = 128 * 1024 * 1024
DEFAULT_TRANSACTION_TIMEOUT_MS = 15 * 60_000

_BOTH = ("nameServer", "context", "retryTimeoutMs")
READ_OPTIONS = (
    *_BOTH,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "tags",
    "sql92",
    "consumerGroup",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxPartitions",
    "maxPartitionBytes",
    "maxBytesPerSecondPerBroker",
    "readFrom",
    "failOnDataLoss",
    "expectedBrokers",
    "deduplicate",
    "includeProperties",
    "propertyColumns",
    "checkCrc",
    "corruptBodies",
    *BODY_OPTIONS,
    *SECURITY,
)
WRITE_OPTIONS = (
    *_BOTH,
    "topic",
    "keepProperties",
    "exactlyOnce",
    "txnAppId",
    "txnVersion",
    "expectedBrokers",
    "transactional",
    "transactionTimeoutMs",
    *BODY_OPTIONS,
    AUTO_REGISTER,
    *SECURITY,
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")


@dataclass(slots=True, frozen=True)
class ReadOptions:
    """What a read was asked for.

    nameServer              host:port, several separated by `;` or `,`. This or `context` is required
    context                 a name of `gantry context list` on the driver's machine: its NameServers (unless nameServer
                            is given), access keys and TLS, instead of the options at the end. Tasks get the keys from
                            the driver; neither plans nor logs have them
    subscribe               topics, separated by commas. This or one of the next two is required
    subscribePattern        a regular expression that the whole name of a topic matches; a stream takes in topics that
                            are made while it runs. The system's topics, retry and dead letter topics are never meant
    assign                  JSON of single queues: `{"orders": ["broker-a:0", "broker-b:3"]}`
    startingOffsets         earliest, latest or JSON; default earliest in batch, latest in streaming
    startingTimestamp       instead: ms since the epoch, the first message stored then or later
    startingOffsetsByTimestamp  instead: JSON of such times, `{"orders": 1767268800000}` or one for each queue
    startingOffsetsByTimestampStrategy  error (default): a start in the future is refused, and in batch one that a topic
                            has no message since, or a queue that is named with its time; latest: the end is the start
    endingOffsets           batch only: latest (default), earliest or JSON; the end is excluded
    endingTimestamp, endingOffsetsByTimestamp   batch only, instead of endingOffsets
    tags                    `TagA || TagB`: only messages with one of these tags; filtered by the broker. Not in the
                            topic of delayed messages, where brokers know none
    sql92                   instead of tags: `a > 5 AND b = 'x'` over the properties; filtered by the broker, which must
                            allow it (enablePropertyFilter=true)
    consumerGroup           streaming: where the query has got to is committed for this group after each batch, so that
                            brokers show its lag. Where a query starts is never taken from it but from the checkpoint
    maxOffsetsPerTrigger    streaming: largest number of messages of a batch. Each queue with messages gets one, and a
                            share of the rest in proportion to its messages; more queues than that take turns
    maxBytesPerTrigger      streaming: at most about so many bytes a batch, of messages as they are stored, also of
                            those that a filter leaves out; estimated from samples (`sizes`). Where both are given both
                            hold
    minPartitions           at least so many partitions, by splitting queues by their messages, and no fewer than one a
                            queue; without it queues with few messages share partitions
    maxPartitions           at most so many partitions, with about as many bytes each
    maxPartitionBytes       larger queues are split into partitions of about so many bytes, estimated from samples;
                            default 134217728. Not with minPartitions, which counts messages
    maxBytesPerSecondPerBroker  so many bytes a second are pulled from a broker at most, of messages as they are stored;
                            one task reads all that the read has there. Not with the options for partitions
    readFrom                master (default), or slave: messages come from slaves as far as they have them, the rest and
                            all offsets from masters
    failOnDataLoss          true (default): fail when messages to be read are no longer there; false: warn and go on
    expectedBrokers         names of brokers that every topic is on, separated by commas, or JSON of those of each
                            topic, `{"orders": ["broker-a", "broker-b"]}`: while one of them is away a read waits, and
                            fails in the end; with failOnDataLoss=false it warns
    deduplicate             true: of the messages that a Spark write stored twice (a task or request that was repeated)
                            only the first is kept, within one batch read or one micro-batch, which a single task reads
                            then. Copies in different micro-batches remain: dropDuplicatesWithinWatermark on
                            properties['GANTRY_ID'] finds those
    includeProperties       true: the default schema has the column `properties`; default false
    propertyColumns         names of properties, separated by commas, that are columns of that name: strings, null where
                            a message hasn't got one. They cost less than the map `properties`
    checkCrc                true (default): compare each body with its CRC32, 0.25 us for 128 bytes
    corruptBodies           fail (default): a body that doesn't inflate or has another CRC32 is an error, which names
                            the message; null: its row has a null body, and what is wrong in the column `bodyError`
    bodyFormat, bodySchema, bodySchemaFile, bodyMessage, schema.registry.*     as `bodies.body_format.BodyOptions` has
                            them: bodies as the column `value`. corruptBodies holds for bodies that aren't of their
                            format, too
    retryTimeoutMs          how long to try again when brokers don't answer; default 60000
    accessKey, secretKey, securityToken     of the cluster's access control
    tls.enable              true: TLS to NameServers and brokers. tls.client.authServer, tls.client.checkServerName,
                            tls.client.trustCertPath, tls.client.certPath and tls.client.keyPath as for Apache's
                            clients, which don't check names; the files must be there on driver and executors
    """

    name_servers: list[str]
    #: Of subscribe or assign.
    topics: list[str]
    pattern: str | None = None
    assigned: list[MessageQueue] | None = None
    starting: Boundary | None = None
    ending: Boundary | None = None
    #: What startingOffsetsByTimestampStrategy says: a time later than every message means a queue's end.
    starts_at_end_if_later: bool = False
    tags: str | None = None
    sql92: str | None = None
    consumer_group: str | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_bytes_per_second: int | None = None
    from_slaves: bool = False
    fail_on_data_loss: bool = True
    #: By topic; those of "" for all topics.
    expected_brokers: dict[str, frozenset[str]] = field(default_factory=dict)
    deduplicate: bool = False
    include_properties: bool = False
    property_columns: tuple[str, ...] = ()
    check_crc: bool = True
    corrupt_bodies: CorruptBodies = CorruptBodies.FAIL
    body: BodyOptions | None = None
    retry_timeout_ms: int = DEFAULT_RETRY_TIMEOUT_MS
    security: Security = field(default_factory=Security)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
        """Checked against what a batch (`streaming` False), a stream (True) or either (None) takes.

        Raises ConfigError.
        """
        values = Values(options, READ_OPTIONS, "read", WRITE_OPTIONS)
        if streaming is not None:
            wrong_kind, kind = (_BATCH_ONLY, "streaming") if streaming else (_STREAM_ONLY, "batch")
            for name in wrong_kind:
                if name in values:
                    raise ConfigError(f"option {name} has no meaning in a {kind} read: leave it out")
        values.exclude("tags", "sql92")
        values.exclude("minPartitions", "deduplicate")
        values.exclude("minPartitions", "maxPartitions")
        values.exclude("minPartitions", "maxPartitionBytes")
        for name in ("minPartitions", "maxPartitions", "maxPartitionBytes"):
            values.exclude("maxBytesPerSecondPerBroker", name)
        topics, assigned = values.topics()
        group = values.get("consumerGroup")
        if group is not None and (problem := group_problem(group)):
            raise ConfigError(f"option consumerGroup: {problem}")
        return cls(
            values.name_servers(),
            topics,
            values.pattern("subscribePattern"),
            assigned,
            values.boundary("starting"),
            values.boundary("ending"),
            values.starts_at_end_if_later(),
            checked_tags(values.get("tags"), topics),
            checked_sql92(values.get("sql92")),
            group,
            values.number("maxOffsetsPerTrigger", None, 1),
            values.number("maxBytesPerTrigger", None, 1),
            values.number("minPartitions", None, 1),
            values.number("maxPartitions", None, 1),
            values.number("maxPartitionBytes", DEFAULT_PARTITION_BYTES, 1) or DEFAULT_PARTITION_BYTES,
            values.number("maxBytesPerSecondPerBroker", None, 1),
            values.from_slaves(),
            values.flag("failOnDataLoss", True),
            expected_brokers(values.get("expectedBrokers")),
            values.flag("deduplicate", False),
            values.flag("includeProperties", False),
            values.property_columns(),
            values.flag("checkCrc", True),
            values.corrupt_bodies(),
            BodyOptions.parse(values, topics),
            values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0) or 0,
            values.security(),
        )

    @property
    def is_filtered(self) -> bool:
        """Whether the broker leaves messages out."""
        return self.tags is not None or self.sql92 is not None

    @property
    def filter_expression(self) -> tuple[str, str]:
        """What brokers are told to filter by, and its type."""
        if self.sql92 is not None:
            return self.sql92, EXPRESSION_SQL92
        return self.tags or SUBSCRIBE_ALL, EXPRESSION_TAG

    def expected_brokers_of(self, topic: str) -> frozenset[str]:
        """Those that the option expectedBrokers says the topic is on."""
        return self.expected_brokers.get(topic, frozenset()) | self.expected_brokers.get("", frozenset())

    @property
    def pull_group(self) -> str:
        return self.consumer_group or TOOLS_GROUP

    def starting_or_default(self, *, streaming: bool) -> Boundary:
        return self.starting or (LATEST if streaming else EARLIEST)


@dataclass(slots=True, frozen=True)
class WriteOptions:
    """Where a write goes.

    nameServer, context     as for a read
    topic                   the topic of every row; without it each row has a column `topic`
    retryTimeoutMs          how long to try again when brokers don't take messages; default 60000
    keepProperties          names, separated by commas, of RocketMQ's own properties that rows keep (`UNIQ_KEY, DELAY`);
                            without it all of them are left out of the column `properties`
    exactlyOnce             true: rows that a repeated task or micro-batch sends again are dropped by the brokers, if
                            they are GantryMQ's; default false. It needs the option topic
    txnAppId, txnVersion    in a batch write, with exactlyOnce: the same name and number mean the same rows, also in
                            another write; numbers only go up. As for Delta Lake
    expectedBrokers         with exactlyOnce: as for a read; the write waits for those that are away
    transactional           true: the messages of a batch, or of a micro-batch, are visible only when all are stored;
                            default false. Java's brokers take and commit them one by one
    transactionTimeoutMs    so long the tasks of a transaction may take, in whole seconds; default 900000. A commit that
                            has begun by then is finished
    bodyFormat, bodySchema, bodySchemaFile, bodyMessage, schema.registry.*, auto.register.schemas     as
                            `bodies.encoding.BodyEncoding` has them: the column `value` in place of `body`
    accessKey, secretKey, securityToken, tls.*   as for a read
    """

    name_servers: list[str]
    topic: str | None = None
    retry_timeout_ms: int = DEFAULT_RETRY_TIMEOUT_MS
    transactional: bool = False
    transaction_timeout_s: int = DEFAULT_TRANSACTION_TIMEOUT_MS // 1000
    keep_properties: frozenset[str] = frozenset()
    exactly_once: bool = False
    #: txnAppId and txnVersion.
    transaction_of: tuple[str, int] | None = None
    expected_brokers: frozenset[str] = frozenset()
    body: BodyEncoding | None = None
    security: Security = field(default_factory=Security)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> WriteOptions:
        """Checked against what a batch (`streaming` False), a stream (True) or either (None) takes.

        Raises ConfigError.
        """
        values = Values(options, WRITE_OPTIONS, "write", READ_OPTIONS)
        topic = values.get("topic")
        if topic is not None and (problem := topic_problem(topic)):
            raise ConfigError(f"option topic: {problem}")
        exactly_once = values.flag("exactlyOnce", False)
        transactional = values.flag("transactional", False)
        if exactly_once and (transactional or topic is None):
            raise ConfigError("option exactlyOnce needs the option topic, and excludes transactional")
        for name in ("txnAppId", "txnVersion", "expectedBrokers"):
            if name in values and not exactly_once:
                raise ConfigError(f"option {name} has no meaning in a write without exactlyOnce")
            if name in values and name != "expectedBrokers" and streaming:
                raise ConfigError(f"option {name} has no meaning in a stream, which has a name and numbers of its own")
        brokers = expected_brokers(values.get("expectedBrokers"))
        return cls(
            values.name_servers(),
            topic,
            values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0) or 0,
            transactional,
            (values.number("transactionTimeoutMs", DEFAULT_TRANSACTION_TIMEOUT_MS, 1000) or 0) // 1000,
            kept_properties(values.get("keepProperties") or ""),
            exactly_once,
            transaction_of(values.get("txnAppId"), values.number("txnVersion", None, 0)),
            brokers.get("", frozenset()) | brokers.get(topic or "", frozenset()),
            BodyEncoding.parse(values, topic),
            values.security(),
        )
