"""The broker's topics: the table, how topics come to be, and topics.json (`TopicConfigManager`; seed 004)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.broker.saving import Saving, in_pieces
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

log = peer_log(__name__)

#: With so many topics sends make no more; administrators may. Each stays for good, and has files once it is used.
MAX_MADE_BY_CLIENTS = 50_000
SCHEDULE_QUEUE_NUMS = 18
REVIVE_QUEUE_NUMS = 8
REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"
#: `TopicSysFlag`: the topic of a unit; a retry topic that gets messages of one.
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


class BrokerTopics(Part):
    """Topic name -> TopicConfig, none of which is ever changed: `put` another.

    `on_change` is called after every change with the names of the topics that are new or changed; none when any may be.
    The file is written soon; who makes a topic waits for `written`, who answers for a message in one asks `is_written`.
    """

    def __init__(
        self, config: BrokerConfig, path: Path, on_change: Callable[[Collection[str]], None], *, saving: Saving
    ) -> None:
        self._config = config
        self._file = saving.file(path, self._encode)
        self._on_change = on_change
        self._table = TopicConfigTable()
        self.system_topics: set[str] = set()
        #: Topic -> the number of its last change, as long as that may not be on the disk.
        self._unwritten: dict[str, int] = {}

    def load(self) -> None:
        """Reads topics.json, then adds the system's own topics."""
        self._table = self._file.load(TopicConfigTable) or self._table
        for topic in system_topics(self._config):
            self._table.topic_config_table[topic.topic_name] = topic
            self.system_topics.add(topic.topic_name)

    def written(self) -> Awaitable[None]:
        """Done when all changes are on the disk. Raises StoreError."""
        return self._file.written()

    def is_written(self, topic: str) -> bool:
        """Whether the topic is on the disk as it is now; else a message in it may be out of reach after a crash."""
        if topic not in self._unwritten:
            return True
        written = self._file.written_changes
        if self._unwritten[topic] > written:
            return False
        self._unwritten = {name: change for name, change in self._unwritten.items() if change > written}
        return True

    @property
    def table(self) -> TopicConfigTable:
        """All topics and their version, as a registration carries them."""
        return self._table

    def get(self, topic: str) -> TopicConfig | None:
        return self._table.topic_config_table.get(topic)

    def put(self, *topics: TopicConfig) -> None:
        """Creates or replaces topics."""
        self._table.topic_config_table.update((topic.topic_name, topic) for topic in topics)
        self._changed([topic.topic_name for topic in topics])

    def copy(self, master: TopicConfigTable) -> None:
        """Takes all topics and their version from the master's table; equal versions say that they are the same."""
        table, version = self._table, self._table.data_version
        if version == master.data_version:
            return
        table.topic_config_table.clear()
        table.topic_config_table.update(master.topic_config_table)
        version.state_version = master.data_version.state_version
        version.timestamp, version.counter = master.data_version.timestamp, master.data_version.counter
        self._file.write_soon()
        self._unwritten = dict.fromkeys(table.topic_config_table, self._file.changes)
        self._on_change(())

    def mark_ordered(self, names: Iterable[str]) -> None:
        """The NameServer has an order for these topics (`updateOrderTopicConfig`)."""
        topics = [topic for name in names if (topic := self.get(name)) is not None and not topic.order]
        if topics:
            self.put(*(msgspec.structs.replace(topic, order=True) for topic in topics))

    def config_changed(self) -> None:
        """Adds the system's own topics that the changed configuration wants, and changes the one that others come from.

        The NameServers are told: they may be others, and brokerPermission may have changed.
        """
        topics = self._table.topic_config_table
        for topic in system_topics(self._config):
            if topic.topic_name == AUTO_CREATE_TOPIC:
                topics[AUTO_CREATE_TOPIC] = topic
            topics.setdefault(topic.topic_name, topic)
            self.system_topics.add(topic.topic_name)
        self._changed()

    def remove(self, topic: str) -> bool:
        """False when there was no such topic."""
        if self._table.topic_config_table.pop(topic, None) is None:
            return False
        self._changed()
        return True

    def create_in_send(
        self, topic: str, default_topic: str, client_queue_nums: int, peer: str, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """What a send to an unknown topic makes: a topic after `default_topic`, if that one may be inherited.

        Normally TBW102, which is there only with autoCreateTopicEnable; min(client's queue count, its write queues).
        Raises RequestRefused where that is none: Java makes a topic that takes no message.
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
        """What retry and dead-letter topics come from."""
        config = self.get(topic)
        if config is None:
            config = TopicConfig(topic, queue_nums, queue_nums, perm, topic_sys_flag=_topic_sys_flag(topic, unit_mode))
            log.info("created topic %s with %d queues", topic, queue_nums)
            self.put(config)
        return config

    def _changed(self, names: Collection[str] = ()) -> None:
        self._table.data_version.advance()
        self._file.write_soon()
        self._unwritten.update(dict.fromkeys(names, self._file.changes))
        self._on_change(names)

    def _encode(self) -> Iterator[bytes]:
        return in_pieces(self._table)


def _topic_sys_flag(topic: str, unit_mode: bool) -> int:
    if not unit_mode:
        return 0
    return UNIT_SUB_FLAG if topic.startswith(RETRY_TOPIC_PREFIX) else UNIT_FLAG


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that every broker has from its start."""
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
