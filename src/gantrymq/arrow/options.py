"""Parses and checks the options of a read from brokers and of a write.

If Spark's Kafka connector has the same option, the name is the same. Values are strings. Offsets in JSON also follow
the connector, with broker and queue id in place of Kafka's partition: `{"orders": {"broker-a:0": 120, "broker-a:1":
-2}}`. -1 means latest, -2 means earliest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from gantrymq.arrow.body_values import BodyDecoding, BodyEncoding, CorruptBodies
from gantrymq.arrow.client_settings import MAX_BODY_SIZE, READ_SETTINGS, WRITE_SETTINGS, NewTopic
from gantrymq.arrow.offsets import EARLIEST, LATEST, Boundary
from gantrymq.arrow.option_values import (
    SECURITY,
    Values,
    checked_sql92,
    checked_tags,
    expected_brokers,
    kept_properties,
    transaction_of,
)
from gantrymq.arrow.security import Security
from gantrymq.errors import ConfigError
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import group_problem, topic_problem

#: The consumer group of pulls without the option consumerGroup. All brokers have this group of RocketMQ's tools.
TOOLS_GROUP = "TOOLS_CONSUMER"
#: The producer group of writes. Brokers store nothing for it.
PRODUCER_GROUP = "gantry-spark"
DEFAULT_RETRY_TIMEOUT_MS = 60_000
#: Spark's default for files (spark.sql.files.maxPartitionBytes).
DEFAULT_PARTITION_BYTES = 128 * 1024 * 1024
DEFAULT_TRANSACTION_TIMEOUT_MS = 15 * 60_000
#: The default of Spark's Kafka source.
DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000

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
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "maxPartitionBytes",
    "maxBytesPerSecondPerBroker",
    "readFrom",
    "failOnDataLoss",
    "expectedBrokers",
    "compacted",
    "deduplicate",
    "includeProperties",
    "propertyColumns",
    "checkCrc",
    "corruptBodies",
    *READ_SETTINGS,
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
    *WRITE_SETTINGS,
    *SECURITY,
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "compacted")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(slots=True, frozen=True)
class ReadOptions:
    """The options of a read.

    Cluster:
        nameServer: `HOST:PORT`, several of them separated by `;` or `,`. This or `context` is required.
        context: A name of `gantry context list` on the driver's machine. It supplies the access keys, the TLS settings
            and, unless `nameServer` is given, the NameServers. It excludes the options under "Security". Tasks receive
            the keys from the driver. Plans and logs do not contain them.
        retryTimeoutMs: Limits the retries of a request, in ms. Default: 60000.
        readFrom: `master` (default), or `slave`. With `slave`, messages come from slaves if they have them. The other
            messages and all offsets come from masters.

    Topics and queues (exactly one is required):
        subscribe: Topics, separated by commas.
        subscribePattern: A regular expression for the whole topic name. A stream includes topics that are created
            while it runs. System topics, retry topics and dead-letter queues never match.
        assign: Single queues, in JSON: `{"orders": ["broker-a:0", "broker-b:3"]}`.

    Start and end (at most one option for each):
        startingOffsets: `earliest`, `latest` or JSON. Default: `earliest` in a batch, `latest` in a stream.
        startingTimestamp: The read starts at the first message stored at this time or later, in ms since the epoch.
        startingOffsetsByTimestamp: Such times in JSON, for topics or for queues: `{"orders": 1767268800000}`.
        endingOffsets: Batch only: `latest` (default), `earliest` or JSON. The end is excluded.
        endingTimestamp, endingOffsetsByTimestamp: Batch only: like the options for the start.

    startingOffsetsByTimestampStrategy:
        error: The default. A start in the future is an error. In a batch, a topic without messages since its start is
            also an error. If a queue has a start of its own, the same applies to the queue.
        latest: There is no error, and such a queue is read from its end.

    Filters:
        tags: `TagA || TagB` selects the messages with one of these tags, on the broker. The option is not possible for
            the topic of delayed messages, because brokers have no tags there.
        sql92: `a > 5 AND b = 'x'` selects messages by their properties, on the broker. The broker must have
            `enablePropertyFilter=true`. It excludes `tags`.

    Streams:
        consumerGroup: The stream commits its offsets for this group after each micro-batch, so that brokers show its
            lag. A query always starts from its checkpoint, never from these offsets.
        maxOffsetsPerTrigger: The most messages of a micro-batch. Each queue with messages gets one, and a share of the
            rest in proportion to its messages. If there are more queues than this limit, later micro-batches read the
            other queues.
        maxBytesPerTrigger: The approximate limit of a micro-batch, in bytes of messages as stored, including those
            that a filter excludes. It is estimated from samples (`size_estimates`). If both limits are set, both apply.
        minOffsetsPerTrigger: A micro-batch begins when this many messages are available, or after `maxTriggerDelay`.
            The first micro-batch of a query and Trigger.AvailableNow ignore it. It is at most `maxOffsetsPerTrigger`.
        maxTriggerDelay: The longest delay by `minOffsetsPerTrigger`, as a number with a unit: `30s`, `15m`. Without a
            unit, in ms. Default: 15m.

    Partitions:
        minPartitions: The least number of partitions. Queues are split by their number of messages, and each queue has
            at least one partition. By default, queues with few messages share a partition.
        maxPartitions: The largest number of partitions. They have about the same number of bytes. It excludes
            `minPartitions`.
        maxPartitionBytes: A larger queue is split into partitions of about this size, estimated from samples.
            Default: 134217728 (128 MiB). It excludes `minPartitions`.
        maxRecordsPerPartition: The most messages of a partition. It excludes `maxPartitions` and `deduplicate`.
        maxBytesPerSecondPerBroker: The most bytes pulled from a broker per second, of messages as stored. One task
            reads all queues of a broker. It excludes the other options of this section.

    Data loss and duplicates:
        failOnDataLoss: If true (default), the read fails if messages that it should return no longer exist. If false,
            it logs a warning and continues.
        expectedBrokers: Brokers that have every topic, separated by commas, or in JSON for each topic:
            `{"orders": ["broker-a", "broker-b"]}`. If one of them is down, the read retries and then fails. With
            `failOnDataLoss=false`, it logs a warning.
        compacted: If true, the topics are compaction topics: the read does not fail because messages lack that a
            compaction has removed. Batch only. Default: false.
        deduplicate: If true, the read drops duplicates that a repeated task or request of a Spark write has stored.
            It does so within a batch read or a micro-batch, which a single task then reads. To drop duplicates across
            micro-batches, use dropDuplicatesWithinWatermark on properties['GANTRY_ID']. Default: false.

    Columns:
        includeProperties: If true, the default schema has the column `properties`. Default: false.
        propertyColumns: Names of properties, separated by commas. Each one becomes a string column of its name, null if
            a message lacks the property. Such columns cost less than the map `properties`.

    Bodies:
        checkCrc: If true (default), the read compares each body with its CRC32. This takes 0.25 us for 128 bytes.
        corruptBodies: `fail` (default) raises an error for a body that cannot be decompressed, has a wrong CRC32 or is
            not of its format. The error names the message. With `null`, the row has a null body, and the column
            `bodyError` has the reason.
        rocketmq.client.max_body_size: The largest decompressed body, in bytes. A larger one is corrupt. Default:
            33554432 (32 MiB).

    Security:
        accessKey, secretKey, securityToken: The keys for the cluster's access control.
        tls.enable: If true, connections to NameServers and brokers use TLS. Default: false.
        tls.client.authServer, tls.client.checkServerName, tls.client.trustCertPath, tls.client.certPath,
            tls.client.keyPath, tls.client.keyPassword: As for Apache's clients, which do not check host names. The
            files must exist on the driver and on the executors.
        tls.protocols, tls.ciphers: The allowed versions of TLS and cipher suites, as for servers.
    """

    name_servers: list[str]
    #: The topics of subscribe or assign.
    topics: list[str]
    pattern: str | None = None
    assigned: list[MessageQueue] | None = None
    starting: Boundary | None = None
    ending: Boundary | None = None
    #: Whether a start after the last message means the end of the queue (startingOffsetsByTimestampStrategy).
    starts_at_end_if_later: bool = False
    tags: str | None = None
    sql92: str | None = None
    consumer_group: str | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_bytes_per_second: int | None = None
    from_slaves: bool = False
    fail_on_data_loss: bool = True
    #: {topic: its brokers}. The brokers of the key "" apply to all topics.
    expected_brokers: dict[str, frozenset[str]] = field(default_factory=dict)
    compacted: bool = False
    deduplicate: bool = False
    include_properties: bool = False
    property_columns: tuple[str, ...] = ()
    check_crc: bool = True
    corrupt_bodies: CorruptBodies = CorruptBodies.FAIL
    max_body_size: int = MAX_DECOMPRESSED_SIZE
    #: The format of the column `value`. Only the Spark source has one (`spark.options`).
    body: BodyDecoding | None = None
    retry_timeout_ms: int = DEFAULT_RETRY_TIMEOUT_MS
    security: Security = field(default_factory=Security)

    @classmethod
    def of(cls, values: Values, *, streaming: bool | None = None) -> Self:
        """Parses the options of a stream (`streaming` True), of a batch (False) or of either (None).

        Raises ConfigError for an invalid option, and for one that this kind of read does not have.
        """
        if streaming is not None:
            wrong_kind, kind = (_BATCH_ONLY, "streaming") if streaming else (_STREAM_ONLY, "batch")
            for name in wrong_kind:
                if name in values:
                    raise ConfigError(f"option {name} has no meaning in a {kind} read: leave it out")
        values.exclude("tags", "sql92")
        values.exclude("minPartitions", "deduplicate")
        values.exclude("minPartitions", "maxPartitions")
        values.exclude("minPartitions", "maxPartitionBytes")
        values.exclude("maxRecordsPerPartition", "maxPartitions")
        values.exclude("maxRecordsPerPartition", "deduplicate")
        for name in ("minPartitions", "maxPartitions", "maxPartitionBytes", "maxRecordsPerPartition"):
            values.exclude("maxBytesPerSecondPerBroker", name)
        most, least = (values.number(name, None, 1) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"))
        if most is not None and least is not None and least > most:
            raise ConfigError(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
        if least is None and "maxTriggerDelay" in values:
            raise ConfigError("option maxTriggerDelay has no meaning without minOffsetsPerTrigger")
        topics, assigned = values.topics()
        group = values.get("consumerGroup")
        if group is not None and (problem := group_problem(group)):
            raise ConfigError(f"option consumerGroup: {problem}")
        return cls(
            name_servers=values.name_servers(),
            topics=topics,
            pattern=values.pattern("subscribePattern"),
            assigned=assigned,
            starting=values.boundary("starting"),
            ending=values.boundary("ending"),
            starts_at_end_if_later=values.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
            == "latest",
            tags=checked_tags(values.get("tags"), topics),
            sql92=checked_sql92(values.get("sql92")),
            consumer_group=group,
            max_offsets_per_trigger=most,
            max_bytes_per_trigger=values.number("maxBytesPerTrigger", None, 1),
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=values.duration_ms("maxTriggerDelay", DEFAULT_TRIGGER_DELAY_MS),
            min_partitions=values.number("minPartitions", None, 1),
            max_partitions=values.number("maxPartitions", None, 1),
            max_records_per_partition=values.number("maxRecordsPerPartition", None, 1),
            max_partition_bytes=values.number("maxPartitionBytes", DEFAULT_PARTITION_BYTES, 1),
            max_bytes_per_second=values.number("maxBytesPerSecondPerBroker", None, 1),
            from_slaves=values.choice("readFrom", ("master", "slave"), "master") == "slave",
            fail_on_data_loss=values.flag("failOnDataLoss", True),
            expected_brokers=expected_brokers(values.get("expectedBrokers")),
            compacted=values.flag("compacted", False),
            deduplicate=values.flag("deduplicate", False),
            include_properties=values.flag("includeProperties", False),
            property_columns=values.property_columns(),
            check_crc=values.flag("checkCrc", True),
            corrupt_bodies=CorruptBodies(values.choice("corruptBodies", CorruptBodies, CorruptBodies.FAIL)),
            max_body_size=values.number(MAX_BODY_SIZE, MAX_DECOMPRESSED_SIZE, 1),
            retry_timeout_ms=values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0),
            security=values.security(),
        )

    @property
    def is_filtered(self) -> bool:
        """Whether brokers filter messages."""
        return self.tags is not None or self.sql92 is not None

    @property
    def has_gaps(self) -> bool:
        """Whether messages can be missing between those that brokers return."""
        return self.is_filtered or self.compacted

    @property
    def filter_expression(self) -> tuple[str, str]:
        """The filter expression for brokers, and its type."""
        if self.sql92 is not None:
            return self.sql92, EXPRESSION_SQL92
        return self.tags or SUBSCRIBE_ALL, EXPRESSION_TAG

    @property
    def returns_corrupt_bodies(self) -> bool:
        """Whether the read returns a null for a corrupt body, and the reason in the column bodyError."""
        return self.corrupt_bodies is CorruptBodies.NULL

    def expected_brokers_of(self, topic: str) -> frozenset[str]:
        """The brokers that the option expectedBrokers names for the topic."""
        return self.expected_brokers.get(topic, frozenset()) | self.expected_brokers.get("", frozenset())

    @property
    def pull_group(self) -> str:
        return self.consumer_group or TOOLS_GROUP

    def starting_or_default(self, *, streaming: bool) -> Boundary:
        return self.starting or (LATEST if streaming else EARLIEST)


@dataclass(slots=True, frozen=True)
class WriteOptions:
    """The options of a write.

    Options:
        nameServer, context: As for a read.
        topic: The topic of every row. Without it, the rows need a column `topic`.
        retryTimeoutMs: Limits the retries of a send that a broker does not accept, in ms. Default: 60000.
        keepProperties: RocketMQ's own properties that rows keep, separated by commas (`UNIQ_KEY, DELAY`). By default,
            the write omits all of them from the column `properties`.
        exactlyOnce: If true, GantryMQ's brokers drop the rows that a repeated task or micro-batch sends again. It
            requires `topic`. Default: false.
        txnAppId, txnVersion: For a batch write with `exactlyOnce`, as in Delta Lake. A write with the same name and
            number as an earlier one counts as its repetition. Numbers of a name must increase.
        expectedBrokers: For `exactlyOnce`, as for a read. The write retries while one of them is down.
        transactional: If true, the messages of a batch or micro-batch become visible after all of them are stored.
            Brokers of Apache store and commit them one by one. Default: false.
        transactionTimeoutMs: The longest time for the tasks of a transaction, in ms, rounded down to seconds.
            Default: 900000. A commit that has begun in time is completed.
        rocketmq.client.create_topic_key, rocketmq.client.default_topic_queue_nums, rocketmq.client.unit_mode: For a
            topic that brokers create for its first row, as for producers. They exclude `exactlyOnce`, which requires
            an existing topic.
        accessKey, secretKey, securityToken, tls.*: As for a read.
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
    new_topic: NewTopic = field(default_factory=NewTopic)
    #: The format of the column `value`. Only the Spark source has one (`spark.options`).
    body: BodyEncoding | None = None
    security: Security = field(default_factory=Security)

    @classmethod
    def of(cls, values: Values, *, streaming: bool | None = None) -> Self:
        """Parses the options of a stream (`streaming` True), of a batch (False) or of either (None).

        Raises ConfigError for an invalid option, and for one that this kind of write does not have.
        """
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
        for name in WRITE_SETTINGS:
            if name in values and exactly_once:
                raise ConfigError(f"option {name} has no meaning with exactlyOnce: the topic must exist")
        brokers = expected_brokers(values.get("expectedBrokers"))
        return cls(
            name_servers=values.name_servers(),
            topic=topic,
            retry_timeout_ms=values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0),
            transactional=transactional,
            transaction_timeout_s=values.number("transactionTimeoutMs", DEFAULT_TRANSACTION_TIMEOUT_MS, 1000) // 1000,
            keep_properties=kept_properties(values.get("keepProperties") or ""),
            exactly_once=exactly_once,
            transaction_of=transaction_of(values.get("txnAppId"), values.number("txnVersion", None, 0)),
            expected_brokers=brokers.get("", frozenset()) | brokers.get(topic or "", frozenset()),
            new_topic=values.new_topic(),
            security=values.security(),
        )
