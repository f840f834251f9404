"""The broker's topics: the table, the creation of topics, and topics.json (`TopicConfigManager`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables.attributes import deduplication_window_ms, is_compacted, retention_limits
from gantrymq.broker.tables.persistence import TablePersistence, in_pieces
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.topic_config import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    TopicConfigTable,
)
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.multi_dispatch import MAX_NAME_LENGTH, is_light_queue
from gantrymq.protocol.topic_name import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from gantrymq.store.topic_retention import RetentionLimits

log = peer_log(__name__)

#: At this number of topics, only administrators can create more. A topic is permanent, and has files after its first
#: use.
MAX_MADE_BY_CLIENTS = 50_000
SCHEDULE_QUEUE_NUMS = 18
REVIVE_QUEUE_NUMS = 8
REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"
#: Flags of `TopicSysFlag`: the topic belongs to a unit; the retry topic contains messages of a unit.
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


class BrokerTopics(Feature):
    """Stores the configuration of each topic. A TopicConfig is never modified: `put` replaces it.

    `on_change` is called after every change, with the names of new and changed topics. Without names, any topic may
    have changed.

    Changes are written to the file soon. A request that creates a topic waits for `written`. A send waits until
    `is_written` for its topic.
    """

    def __init__(
        self,
        config: BrokerConfig,
        path: Path,
        on_change: Callable[[Collection[str]], None],
        *,
        persistence: TablePersistence,
    ) -> None:
        self._config = config
        #: A changed setting takes effect at the next start, as in the store.
        self._has_light_queues = config.store.enable_lmq
        self._file = persistence.file(path, self._encode)
        self._on_change = on_change
        self._table = TopicConfigTable()
        self.system_topics: set[str] = set()
        #: The compaction topics.
        self.compacted: set[str] = set()
        #: Topic -> number of the topic's last change, for changes that may not be on disk yet.
        self.unwritten: dict[str, int] = {}

    def load(self) -> None:
        """Reads topics.json, then adds the system topics."""
        self._table = self._file.load(TopicConfigTable) or self._table
        for topic in system_topics(self._config):
            self._table.topic_config_table[topic.topic_name] = topic
            self.system_topics.add(topic.topic_name)
        self._find_compacted()

    def _find_compacted(self) -> None:
        topics = self._table.topic_config_table
        self.compacted = {name for name, topic in topics.items() if is_compacted(topic.attributes)}

    def written(self) -> Awaitable[None]:
        """Completes when all changes are on disk. Raises StoreError."""
        return self._file.written()

    def is_written(self, topic: str) -> bool:
        """Returns True if a topic's configuration is on disk. If not, a crash can make the messages inaccessible."""
        if topic not in self.unwritten:
            return True
        written = self._file.written_changes
        if self.unwritten[topic] > written:
            return False
        self.unwritten = {name: change for name, change in self.unwritten.items() if change > written}
        return True

    @property
    def table(self) -> TopicConfigTable:
        """All topics and their version, in the form that is sent to the NameServers."""
        return self._table

    def get(self, topic: str) -> TopicConfig | None:
        """Returns a topic, or None. With `enableLmq`, each light queue is a topic with one queue."""
        config = self._table.topic_config_table.get(topic)
        if config is None and self._has_light_queues and is_light_queue(topic):
            if len(topic.encode()) > MAX_NAME_LENGTH:
                return None
            return TopicConfig(topic, 1, 1, PERM_READ | PERM_WRITE)
        return config

    def retention_limits(self, topic: str) -> RetentionLimits | None:
        """Returns the retention of a topic; None if it has none."""
        config = self.get(topic)
        return retention_limits(topic, config.attributes) if config is not None and config.attributes else None

    def deduplication_window_ms(self, topic: str) -> int:
        """Returns the deduplication window of a topic, in ms; 0 if it has none."""
        config = self.get(topic)
        return deduplication_window_ms(topic, config.attributes) if config is not None and config.attributes else 0

    def put(self, *topics: TopicConfig) -> None:
        """Creates or replaces topics. With `enableLmq`, light queues are skipped (`LmqTopicConfigManager`)."""
        if self._has_light_queues:
            topics = tuple(topic for topic in topics if not is_light_queue(topic.topic_name))
        self._table.topic_config_table.update((topic.topic_name, topic) for topic in topics)
        self.compacted.update(topic.topic_name for topic in topics if is_compacted(topic.attributes))
        self._changed([topic.topic_name for topic in topics])

    def copy(self, master: TopicConfigTable) -> None:
        """Replaces all topics and their version by those of the master, unless the versions are equal."""
        table, version = self._table, self._table.data_version
        if version == master.data_version:
            return
        table.topic_config_table.clear()
        table.topic_config_table.update(master.topic_config_table)
        version.state_version = master.data_version.state_version
        version.timestamp, version.counter = master.data_version.timestamp, master.data_version.counter
        self._find_compacted()
        self._file.write_soon()
        self.unwritten = dict.fromkeys(table.topic_config_table, self._file.changes)
        self._on_change(())

    def mark_ordered(self, names: Iterable[str]) -> None:
        """Sets `order` of these topics, because the NameServer has an order for them (`updateOrderTopicConfig`)."""
        topics = [topic for name in names if (topic := self.get(name)) is not None and not topic.order]
        if topics:
            self.put(*(msgspec.structs.replace(topic, order=True) for topic in topics))

    def config_changed(self) -> None:
        """Adds the system topics of a changed configuration, and updates TBW102, the template of new topics.

        Always registers the topics again: the NameServers or `brokerPermission` may have changed.
        """
        topics = self._table.topic_config_table
        for topic in system_topics(self._config):
            if topic.topic_name == AUTO_CREATE_TOPIC:
                topics[AUTO_CREATE_TOPIC] = topic
            topics.setdefault(topic.topic_name, topic)
            self.system_topics.add(topic.topic_name)
        self._changed()

    def remove(self, topic: str) -> bool:
        """Removes a topic. Returns False if it does not exist."""
        if self._table.topic_config_table.pop(topic, None) is None:
            return False
        self.compacted.discard(topic)
        self._changed()
        return True

    def create_in_send(
        self, topic: str, default_topic: str, client_queue_nums: int, peer: str, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """Creates the topic of a send, with the settings of `default_topic`.

        Returns None if `default_topic` does not exist or cannot be inherited.

        The default topic is normally TBW102, which exists only with `autoCreateTopicEnable`. The number of queues is
        `client_queue_nums`, or the number of write queues of the default topic if that is lower.

        Raises RequestRefused if there are too many topics or the number of queues is 0. With 0 queues, Java creates a
        topic that accepts no message.
        """
        default = self.get(default_topic)
        forbidden = default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable
        if default is None or forbidden or not default.perm & PERM_INHERIT:
            log.warning("topic %s of producer %s is not created: no default topic %s", topic, peer, default_topic)
            return None
        queue_nums = min(client_queue_nums, default.write_queue_nums)
        if queue_nums < 1:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topic[{topic}] not exist, and can't be created with {queue_nums} queues (defaultTopicQueueNums "
                f"{client_queue_nums}, write queues of {default_topic} {default.write_queue_nums})",
            )
        created = TopicConfig(
            topic,
            queue_nums,
            queue_nums,
            default.perm & ~PERM_INHERIT,
            default.topic_filter_type,
            _topic_sys_flag(topic, unit_mode),
        )
        if len(self._table.topic_config_table) >= MAX_MADE_BY_CLIENTS:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, and is made by no send: there are {MAX_MADE_BY_CLIENTS}; updateTopic does",
            )
        log.info("created topic %s with %d queues for producer %s", topic, queue_nums, peer)
        self.put(created)
        return created

    def create_if_absent(
        self, topic: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE, *, unit_mode: bool = False
    ) -> TopicConfig:
        """Returns a topic, and creates it if it is missing. Used for retry and dead-letter topics, for example."""
        config = self.get(topic)
        if config is None:
            config = TopicConfig(topic, queue_nums, queue_nums, perm, topic_sys_flag=_topic_sys_flag(topic, unit_mode))
            log.info("created topic %s with %d queues", topic, queue_nums)
            self.put(config)
        return config

    def _changed(self, names: Collection[str] = ()) -> None:
        self._table.data_version.advance()
        self._file.write_soon()
        self.unwritten.update(dict.fromkeys(names, self._file.changes))
        self._on_change(names)

    def _encode(self) -> Iterator[bytes]:
        return in_pieces(self._table)


def _topic_sys_flag(topic: str, unit_mode: bool) -> int:
    if not unit_mode:
        return 0
    return UNIT_SUB_FLAG if topic.startswith(RETRY_TOPIC_PREFIX) else UNIT_FLAG


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Returns the system topics that every broker has from its start."""
    read_write = PERM_READ | PERM_WRITE

    def topic(name: str, queue_nums: int, perm: int = read_write) -> TopicConfig:
        return TopicConfig(name, queue_nums, queue_nums, perm)

    cluster, name = config.broker_cluster_name, config.broker_name
    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, 1024),
        topic(cluster, 16, PERM_INHERIT | (read_write if config.cluster_topic_enable else 0)),
        topic(name, 1, PERM_INHERIT | (read_write if config.broker_topic_enable else 0)),
        topic(OFFSET_MOVED_EVENT, 1),
        topic(SCHEDULE_TOPIC, SCHEDULE_QUEUE_NUMS),
        topic(f"{cluster}_{REPLY_TOPIC_POSTFIX}", 1),
        topic(f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}", REVIVE_QUEUE_NUMS),
        topic(f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{name}", 1, PERM_INHERIT),
        topic(TRANSACTION_HALF_TOPIC, 1),
        topic(TRANSACTION_OP_TOPIC, 1),
        topic(TIMER_TOPIC, 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(topic(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, PERM_INHERIT | read_write))
    if config.trace_topic_enable:
        topics.append(topic(config.msg_trace_topic_name, 1))
    return topics
