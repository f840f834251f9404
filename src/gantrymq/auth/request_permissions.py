"""The permissions that each request needs: one line for each request code of a broker.

Source: auth/authorization/builder/DefaultAuthorizationContextBuilder and the annotations of request headers
(remoting/protocol/header/*). Lines with + differ: Java checks nothing, less, or the resource that the request names
instead of the one that it affects. `plain_access` applies the same rules to accounts of plain_acl.yml.
"""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.auth import rules
from gantrymq.auth.permission import ANYTHING, Guarded, Need
from gantrymq.auth.policy import Action, ResourceType
from gantrymq.auth.rules import named, of_broker
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand

_SUB, _GET, _UPDATE, _DELETE = (Action.SUB,), (Action.GET,), (Action.UPDATE,), (Action.DELETE,)
_SUB_GET, _SUB_UPDATE, _GET_LIST = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE), (Action.GET, Action.LIST)

RULES: dict[int, rules.Rule] = {
    # Producers.
    RequestCode.SEND_MESSAGE: rules.sending("topic"),
    RequestCode.SEND_MESSAGE_V2: rules.sending("b"),
    RequestCode.SEND_BATCH_MESSAGE: rules.sending("b"),
    RequestCode.SEND_REPLY_MESSAGE: rules.replying("topic"),  # +
    RequestCode.SEND_REPLY_MESSAGE_V2: rules.replying("b"),  # +
    RequestCode.RECALL_MESSAGE: rules.sending("topic"),
    RequestCode.END_TRANSACTION: rules.ending_transaction,  # +
    RequestCode.END_HALF_MESSAGES: rules.ending_half_messages,  # +
    RequestCode.GET_WRITER_QUEUES: rules.sending("topic"),  # +
    # Consumers.
    RequestCode.HEART_BEAT: rules.heartbeat,
    RequestCode.UNREGISTER_CLIENT: rules.leaving,
    RequestCode.CHECK_CLIENT_CONFIG: rules.checking_client,  # +
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: named(_SUB_GET, group="consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: rules.locking,
    RequestCode.UNLOCK_BATCH_MQ: rules.locking,
    RequestCode.PULL_MESSAGE: named(_SUB, topic="topic", group="consumerGroup"),
    RequestCode.LITE_PULL_MESSAGE: named(_SUB, topic="topic", group="consumerGroup"),  # +
    RequestCode.QUERY_CONSUMER_OFFSET: named(_SUB_GET, topic="topic", group="consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: named(_SUB_UPDATE, topic="topic", group="consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: rules.giving_back,  # +
    # POP consumers.
    RequestCode.QUERY_ASSIGNMENT: rules.assigning,  # +
    RequestCode.POP_MESSAGE: named(_SUB, topic="topic", group="consumerGroup"),
    RequestCode.PEEK_MESSAGE: named(_SUB, topic="topic", group="consumerGroup"),
    RequestCode.NOTIFICATION: named(_SUB, topic="topic", group="consumerGroup"),
    RequestCode.POLLING_INFO: named(_GET, topic="topic", group="consumerGroup"),
    RequestCode.ACK_MESSAGE: rules.acknowledging,
    RequestCode.BATCH_ACK_MESSAGE: rules.acknowledging_batch,  # +
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: rules.acknowledging,
    # Lite topics.
    RequestCode.POP_LITE_MESSAGE: named(_SUB, topic="topic", group="consumerGroup"),
    RequestCode.LITE_SUBSCRIPTION_CTL: rules.subscribing_to_lite_topics,  # +
    RequestCode.GET_BROKER_LITE_INFO: of_broker(_GET),  # +
    RequestCode.GET_PARENT_TOPIC_INFO: named(_GET, topic="topic"),
    RequestCode.GET_LITE_TOPIC_INFO: named(_GET, topic="parentTopic"),  # +
    RequestCode.GET_LITE_CLIENT_INFO: named(_GET, topic="parentTopic", group="group"),  # +
    RequestCode.GET_LITE_GROUP_INFO: named(_GET, group="group"),
    RequestCode.TRIGGER_LITE_DISPATCH: named(_UPDATE, group="group"),  # +
    # Messages and queues.
    RequestCode.QUERY_MESSAGE: named(_SUB_GET, topic="topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: rules.viewing,  # +
    RequestCode.CONSUME_MESSAGE_DIRECTLY: rules.consuming_directly,  # +
    RequestCode.RESUME_CHECK_HALF_MESSAGE: rules.resuming_check,  # +
    RequestCode.QUERY_CONSUME_QUEUE: rules.looking_at_units,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: named(_GET, topic="topic"),
    RequestCode.GET_MAX_OFFSET: named(_GET, topic="topic"),
    RequestCode.GET_MIN_OFFSET: named(_GET, topic="topic"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: named(_GET, topic="topic"),
    # Topics.
    RequestCode.UPDATE_AND_CREATE_TOPIC: named((Action.CREATE,), topic="topic"),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: rules.creating_topics,  # +
    RequestCode.DELETE_TOPIC_IN_BROKER: named(_DELETE, topic="topic"),
    RequestCode.GET_TOPIC_CONFIG: named(_GET, topic="topic"),
    RequestCode.GET_TOPIC_STATS_INFO: named(_GET, topic="topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: named(_GET, topic="topic"),
    RequestCode.GET_ALL_TOPIC_CONFIG: rules.everything(_GET_LIST, ResourceType.TOPIC),  # +
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: of_broker(_GET),  # +
    # Groups.
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: rules.creating_group,  # +
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: rules.creating_groups,  # +
    RequestCode.DELETE_SUBSCRIPTIONGROUP: named(_DELETE, group="groupName"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: named(_GET, group="group"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: rules.everything(_GET_LIST, ResourceType.GROUP),  # +
    RequestCode.GET_CONSUMER_CONNECTION_LIST: named(_GET, group="consumerGroup"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: named(_GET, group="consumerGroup"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: named(_GET, group="group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: named(_GET, topic="topic", group="group"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: named(_GET, topic="topic", group="group"),
    RequestCode.GET_CONSUME_STATS: rules.looking_at_progress,
    RequestCode.QUERY_CORRECTION_OFFSET: rules.correcting,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: named(_GET, topic="topic", group="group"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: named(_UPDATE, topic="topic", group="group"),
    RequestCode.CLONE_GROUP_OFFSET: rules.cloning,  # +
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: named(_UPDATE, topic="topic", group="group"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: rules.setting_mode,  # +
    # The broker as a whole.
    RequestCode.GET_BROKER_CONFIG: of_broker(_GET),  # +
    RequestCode.GET_BROKER_RUNTIME_INFO: of_broker(_GET),  # +
    RequestCode.VIEW_BROKER_STATS_DATA: of_broker(_GET),
    RequestCode.GET_BROKER_CONSUME_STATS: of_broker(_GET),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: of_broker(_GET),
    RequestCode.GET_ALL_PRODUCER_INFO: of_broker(_GET),
    RequestCode.GET_ALL_CONSUMER_OFFSET: of_broker(_GET),  # +
    RequestCode.GET_ALL_DELAY_OFFSET: of_broker(_GET),  # +
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: of_broker(_GET),  # +
    RequestCode.GET_TIMER_CHECK_POINT: of_broker(_GET),  # +
    RequestCode.GET_TIMER_METRICS: of_broker(_GET),  # +
    RequestCode.GET_BROKER_HA_STATUS: of_broker(_GET),  # +
    RequestCode.EXCHANGE_BROKER_HA_INFO: of_broker(_UPDATE),
    RequestCode.GET_BROKER_EPOCH_CACHE: of_broker(_GET),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: of_broker(_UPDATE),
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: of_broker(_UPDATE),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: of_broker(_UPDATE),
    RequestCode.UPDATE_BROKER_CONFIG: of_broker(_UPDATE),  # +
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: of_broker(_UPDATE),  # +
    RequestCode.CLEAN_UNUSED_TOPIC: of_broker(_UPDATE),  # +
    RequestCode.DELETE_EXPIRED_COMMITLOG: of_broker(_UPDATE),  # +
    # Users and policies.
    RequestCode.AUTH_GET_USER: of_broker(_GET),
    RequestCode.AUTH_LIST_USER: of_broker(_GET),
    RequestCode.AUTH_GET_ACL: of_broker(_GET),
    RequestCode.AUTH_LIST_ACL: of_broker(_GET),
    RequestCode.AUTH_CREATE_USER: of_broker(_UPDATE),
    RequestCode.AUTH_UPDATE_USER: of_broker(_UPDATE),
    RequestCode.AUTH_DELETE_USER: of_broker(_UPDATE),
    RequestCode.AUTH_CREATE_ACL: of_broker(_UPDATE),
    RequestCode.AUTH_UPDATE_ACL: of_broker(_UPDATE),
    RequestCode.AUTH_DELETE_ACL: of_broker(_UPDATE),
}


def needs(request: RemotingCommand, broker: Guarded) -> Iterator[Need]:
    """Yields the needs of a request, at least one.

    Raises RequestRefused for a code without a rule, HeaderError or BodyError for an invalid request.
    """
    rule = RULES.get(request.code)
    if rule is None:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"request code {request.code} has no rule: only super users and admin accounts can send it",
        )
    need = None
    for need in rule(request, broker):
        yield need
    if need is None:
        yield ANYTHING
