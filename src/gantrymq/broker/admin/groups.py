"""Requests to create, change, delete and list consumer groups (`AdminBrokerProcessor`)."""

from __future__ import annotations

from gantrymq.broker.config import MAX_QUEUE_NUMS
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import GROUP_ATTRIBUTES, TableResponse, altered, answer_after
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.offset import GroupList
from gantrymq.protocol.bodies.route import TopicList
from gantrymq.protocol.bodies.subscription_group import (
    GroupForbidden,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.protocol.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.topic_name import group_problem, topic_problem
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps

log = peer_log(__name__)

#: Maximum number of groups that one step of a request checks. A step takes about 1 ms.
_CHECKED_AT_ONCE = 200


class GroupAdmin(Feature):
    """Handles requests about consumer groups. The event `group_deleted` has the name of a deleted group."""

    def __init__(self, context: BrokerContext) -> None:
        self._address = context.address
        self._long_requests = context.long_requests
        self._groups = context.groups
        self._creation = context.stats.group_creation
        self._all = TableResponse()
        self._members = context.members
        self._offsets = context.offsets
        self._group_deleted = context.events.group_deleted

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.create,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.create_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.get,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbidden,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    def create(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Creates or changes a group."""
        with self._creation.measured() as time:
            self._groups.put([self._checked(decode_request_json(request.body, SubscriptionGroupConfig))])
            connection.respond_with(request, time.answer_after(self._groups.written()))
        return None

    def create_list(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Creates or changes several groups, either all of them or none."""
        return self._long_requests.run(connection, request, self._create_in_steps(connection, request))

    def _create_in_steps(self, connection: Connection, request: RemotingCommand) -> Steps:
        configs = []
        with self._creation.measured() as time:
            for config in decode_request_json(request.body, SubscriptionGroupList).group_config_list:
                configs.append(self._checked(config))
                if not len(configs) % _CHECKED_AT_ONCE:
                    yield
            if configs:
                self._groups.put(configs)
            connection.respond_with(request, time.answer_after(self._groups.written()))
        return None

    def delete(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes a group, and its offsets if `cleanOffset` is set. Succeeds if the group doesn't exist."""
        header = request.read_header(DeleteSubscriptionGroupRequestHeader)
        if self._groups.remove(header.group_name):
            log.info("%s deleted the group %s", connection.address, header.group_name)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._group_deleted.publish(header.group_name)
        connection.respond_with(request, answer_after(self._groups.written()))
        return None

    def all(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the configurations of all groups."""
        table = self._groups.table
        fields = {"totalGroupNum": str(len(table.subscription_group_table))}
        return self._long_requests.run(connection, request, self._all.steps(table, fields))

    def get(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the configuration of a group. Unlike Java, it doesn't create a missing group."""
        name = request.read_header(GetSubscriptionGroupConfigRequestHeader).group
        config = self._groups.find(name)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker: {name}")
        return RemotingCommand.response(body=encode_json(config))

    def forbidden(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns whether a group may read a topic. If `readable` is given, changes it first."""
        header = request.read_header(UpdateGroupForbiddenRequestHeader)
        problem = group_problem(header.group) or topic_problem(header.topic)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        if header.readable is not None:
            self._groups.set_may_read(header.group, header.topic, header.readable)
        readable = self._groups.may_read(header.group, header.topic)
        answer = RemotingCommand.response(body=encode_json(GroupForbidden(header.group, header.topic, readable)))
        if header.readable is None:
            return answer
        connection.respond_with(request, answer_after(self._groups.written(), answer))
        return None

    def groups_of_topic(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the groups that subscribe to a topic or have offsets in it."""
        topic = request.read_header(TopicRequestHeader).topic
        groups = self._members.subscribers(topic) | self._offsets.groups_of(topic)
        return RemotingCommand.response(body=encode_json(GroupList(sorted(groups))))

    def topics_of_group(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the topics in which a group has offsets."""
        group = request.read_header(GetSubscriptionGroupConfigRequestHeader).group
        return RemotingCommand.response(
            body=encode_json(TopicList(sorted(self._offsets.topics_of(group)), self._address))
        )

    def subscription(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the subscription of an online group to a topic."""
        header = request.read_header(QuerySubscriptionByConsumerRequestHeader)
        subscription = self._members.subscription(header.group, header.topic)
        return RemotingCommand.response(
            body=encode_json(QuerySubscriptionResponseBody(header.group, header.topic, subscription))
        )

    def _checked(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Returns the group with its attribute changes merged into the existing attributes. Raises RequestRefused."""
        problem = group_problem(config.group_name)
        if problem is None and not 0 <= config.retry_queue_nums <= MAX_QUEUE_NUMS:
            problem = f"retryQueueNums {config.retry_queue_nums}: 0 to {MAX_QUEUE_NUMS}"
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        existing = self._groups.find(config.group_name)
        current = None if existing is None else existing.attributes
        config.attributes = altered(GROUP_ATTRIBUTES, current, config.attributes)
        return config
