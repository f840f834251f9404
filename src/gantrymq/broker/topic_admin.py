"""Topics made, changed, deleted and listed from outside (`AdminBrokerProcessor`)."""

from __future__ import annotations

from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.topics import TopicTable
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.topic_config import TopicConfig
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.remoting.connection import Connection, Handler, Reply
from gantrymq.store.message_store import MessageStore

#: A topic with more queues on one broker than this is a mistake: BenchmarkTest, the largest of Java's own, has 1,024.
MAX_QUEUE_NUMS = 65_536


class TopicAdmin:
    """Requests about the topic table."""

    def __init__(self, store: MessageStore, topics: TopicTable, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
        }

    def create(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Creates or changes a topic; all NameServers hear of it at once."""
        header = request.read_header(CreateTopicRequestHeader)
        self._check(header.topic)
        for queue_nums in (header.read_queue_nums, header.write_queue_nums):
            if not 0 < queue_nums <= MAX_QUEUE_NUMS:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER, f"{queue_nums} queues: a topic has 1 to {MAX_QUEUE_NUMS}"
                )
        self._topics.put(
            TopicConfig(
                header.topic,
                header.read_queue_nums,
                header.write_queue_nums,
                header.perm,
                header.topic_filter_type,
                header.topic_sys_flag,
                header.order,
                _attributes(header.attributes),
            )
        )
        return RemotingCommand.response()

    def delete(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes a topic with its queues and the groups' offsets in it."""
        topic = request.read_header(TopicRequestHeader).topic
        self._check(topic)
        self._topics.remove(topic)
        self._offsets.remove_topic(topic)
        self._store.delete_topic(topic)
        return RemotingCommand.response()

    def all(self, connection: Connection, request: RemotingCommand) -> Reply:
        return RemotingCommand.response(body=encode_json(self._topics.table))

    def _check(self, topic: str) -> None:
        problem = topic_problem(topic)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        if topic in self._topics.system_topics:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _attributes(text: str | None) -> dict[str, str]:
    """`+name=value,+name=value` (`AttributeParser`); a leading - removes, and there is nothing to remove from."""
    attributes: dict[str, str] = {}
    for item in (text or "").split(","):
        name, separator, value = item.strip().partition("=")
        if separator and name.startswith("+"):
            attributes[name[1:]] = value
    return attributes
