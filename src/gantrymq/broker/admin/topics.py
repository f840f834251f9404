"""Requests to create, change, delete and list topics (`AdminBrokerProcessor`)."""

from __future__ import annotations

import asyncio

import msgspec

from gantrymq.broker.config import MAX_QUEUE_NUMS
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import TOPIC_ATTRIBUTES, TableResponse, altered, check_combination, parse_changes
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import TopicList
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.protocol.topic_name import SYSTEM_TOPICS, is_system_topic, topic_problem
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue

log = peer_log(__name__)

#: The bits of `PermName`: priority, read, write and inherit.
_ALL_PERMISSIONS = 15
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
#: Maximum number of topics that one step checks or cleans. A step takes about 1 ms, plus the time for deletions.
_CHECKED_AT_ONCE = 200
_CLEANED_AT_ONCE = 10
#: Maximum number of topics of one request that have log lines of their own.
_MOST_LOGGED = 20


class _CreateTopicList(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicConfig] = []


class TopicAdmin(Feature):
    """Handles requests about topics. The event `topics_deleted` has the deleted topics and their queues."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics_deleted = context.events.topics_deleted
        self._store = context.store
        self._topics = context.topics
        self._creation = context.stats.topic_creation
        self._all = TableResponse()
        self._offsets = context.offsets
        self._long_requests = context.long_requests

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.create_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
            RequestCode.GET_TOPIC_CONFIG: self.get,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
        }

    def create(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Creates or changes a topic. The broker registers it with all NameServers at once."""
        header = request.read_header(CreateTopicRequestHeader)
        with self._creation.measured(is_system=is_system_topic(header.topic)) as time:
            topic = self._checked(
                TopicConfig(
                    header.topic,
                    header.read_queue_nums,
                    header.write_queue_nums,
                    header.perm,
                    header.topic_filter_type,
                    header.topic_sys_flag,
                    header.order,
                    parse_changes(header.attributes),
                )
            )
            self._log_change(connection, topic)
            self._topics.put(topic)
            connection.respond_with(request, time.answer_after(self._topics.written()))
        return None

    def create_list(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Creates or changes several topics, either all of them or none."""
        return self._long_requests.run(connection, request, self._create_in_steps(connection, request))

    def _create_in_steps(self, connection: Connection, request: RemotingCommand) -> Steps:
        topics: list[TopicConfig] = []
        changed: list[TopicConfig] = []
        with self._creation.measured() as time:
            for topic in decode_request_json(request.body, _CreateTopicList).topic_config_list:
                topics.append(self._checked(topic))
                if topic != self._topics.get(topic.topic_name):
                    changed.append(topic)
                if not len(topics) % _CHECKED_AT_ONCE:
                    yield
            if topics:
                for topic in changed[:_MOST_LOGGED]:
                    self._log_change(connection, topic)
                if len(changed) > _MOST_LOGGED:
                    log.info("%s creates or changes %d more topics", connection.address, len(changed) - _MOST_LOGGED)
                self._topics.put(*topics)
            connection.respond_with(request, time.answer_after(self._topics.written()))
        return None

    def _log_change(self, connection: Connection, new: TopicConfig) -> None:
        old = self._topics.get(new.topic_name)
        if old is None:
            log.info("%s creates topic %s: %s", connection.address, new.topic_name, _text(new))
        elif old != new:
            log.info("%s changes topic %s from %s to %s", connection.address, new.topic_name, _text(old), _text(new))

    def delete(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes a topic with its queues, its consumer offsets and its pop retry topics."""
        topic = request.read_header(TopicRequestHeader).topic
        self._check_name(topic)
        retry_topics = {
            pop_retry_topic(topic, group, v2=v2) for group in self._offsets.groups_of(topic) for v2 in (False, True)
        }
        known = {name: config for name in (topic, *retry_topics) if (config := self._topics.get(name)) is not None}
        queues = [queue for config in known.values() for queue in self._queues_of(config)]
        self._offsets.remove_topics({topic})
        self._offsets.topics_deleted(known.keys(), self._store.min_physical_offset, self._store.max_physical_offset)
        for name in {topic, *known}:
            if self._topics.remove(name):
                log.info("%s deletes topic %s", connection.address, name)
            self._store.delete_topic(name)
        self._topics_deleted.publish(known, queues)
        connection.respond_with(request, self._answer_deletion())
        return None

    async def _answer_deletion(self) -> RemotingCommand:
        """Returns the response after both tables are on disk.

        If only the topic table were on disk, a killed broker would deliver delayed messages of deleted topics.
        """
        await asyncio.gather(self._offsets.written(), self._topics.written())
        return RemotingCommand.response()

    def _queues_of(self, topic: TopicConfig) -> list[ConsumeQueue]:
        found = [
            self._store.find_queue(topic.topic_name, queue_id)
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        ]
        return [queue for queue in found if queue is not None]

    def all(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the configurations of all topics."""
        table = self._topics.table
        # A Java slave repeats the request until it has this number of topics.
        fields = {"totalTopicNum": str(len(table.topic_config_table))}
        return self._long_requests.run(connection, request, self._all.steps(table, fields))

    def get(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the configuration of a topic."""
        name = request.read_header(TopicRequestHeader).topic
        topic = self._topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return RemotingCommand.response(body=encode_json(topic))

    def system(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the names of all system topics, even if a topic does not exist, as in Java."""
        return RemotingCommand.response(body=encode_json(TopicList(sorted(SYSTEM_TOPICS | self._topics.system_topics))))

    def clean_unused(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes the queues of topics that no longer exist (`DefaultMessageStore.cleanUnusedTopic`)."""
        return self._long_requests.run(connection, request, self._clean_in_steps(connection.address))

    def _clean_in_steps(self, address: str) -> Steps:
        for n, topic in enumerate(self._store.topics(), 1):
            if self._topics.get(topic) is None and not is_system_topic(topic):
                log.info("%s has the queues of topic %s deleted, which does not exist", address, topic)
                self._offsets.remove_topics({topic})
                self._store.delete_topic(topic)
            if not n % _CLEANED_AT_ONCE:
                yield
        return RemotingCommand.response()

    def _checked(self, topic: TopicConfig) -> TopicConfig:
        """Returns the topic with its attribute changes merged into the existing attributes. Raises RequestRefused."""
        self._check_name(topic.topic_name)
        if not 0 < topic.read_queue_nums <= MAX_QUEUE_NUMS or not 0 <= topic.write_queue_nums <= MAX_QUEUE_NUMS:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{topic.read_queue_nums} queues to read, {topic.write_queue_nums} to write: a topic has 1 to "
                f"{MAX_QUEUE_NUMS}, and none to write while it is drained",
            )
        if not 0 <= topic.perm <= _ALL_PERMISSIONS:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"perm {topic.perm}: 0 to {_ALL_PERMISSIONS}")
        if topic.topic_filter_type not in _FILTER_TYPES or not 0 <= topic.topic_sys_flag < 1 << 31:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topicFilterType {topic.topic_filter_type[:100]!r}, topicSysFlag {topic.topic_sys_flag}: "
                f"{' or '.join(_FILTER_TYPES)}, and a number of 31 bits",
            )
        existing = self._topics.get(topic.topic_name)
        current = None if existing is None else existing.attributes
        topic.attributes = altered(TOPIC_ATTRIBUTES, current, topic.attributes)
        check_combination(topic.topic_name, topic.attributes, has_light_queues=self._store.light is not None)
        return topic

    def _check_name(self, topic: str) -> None:
        problem = topic_problem(topic)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        if topic in self._topics.system_topics:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _text(topic: TopicConfig) -> str:
    attributes = "".join(f" {name}={value}" for name, value in sorted(topic.attributes.items()))
    return (
        f"readQueueNums={topic.read_queue_nums} writeQueueNums={topic.write_queue_nums} perm={topic.perm} "
        f"topicFilterType={topic.topic_filter_type} topicSysFlag={topic.topic_sys_flag} order={topic.order}{attributes}"
    )
