"""The rights that each gRPC request needs.

The rules are the same as for requests to a broker (`auth/request_permissions.py`).

Source: auth/authorization/builder/DefaultAuthorizationContextBuilder. A + marks requests that need fewer rights in
Java's proxy. It does not serve some of these methods, and for others it does not check the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from gantrymq.auth.permission import ANYTHING, Need, group_need, send_need, topic_need
from gantrymq.auth.policy import Action
from gantrymq.proxy.v2 import service_pb2 as pb

_SUB, _GET = (Action.SUB,), (Action.GET,)
_SUB_GET, _SUB_UPDATE = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE)
_ROUTE = (Action.PUB, Action.SUB, Action.GET)


def _sending(request: pb.SendMessageRequest) -> Iterator[Need]:
    # A check of the first topic is enough: the handler rejects a request with messages of several topics.
    yield send_need(request.messages[0].topic.name if request.messages else "")


def _sent(request: Any) -> Iterator[Need]:
    yield send_need(request.topic.name)


def _of_group(request: Any) -> Iterator[Need]:
    if request.group.name.strip():
        yield group_need(request.group.name, _SUB)


def _consumed(request: Any) -> Iterator[Need]:
    yield topic_need(request.topic.name, _SUB)
    yield group_need(request.group.name, _SUB)


def _of_queue(actions: tuple[Action, ...]) -> Callable[[Any], Iterator[Need]]:
    def find(request: Any) -> Iterator[Need]:
        yield topic_need(request.message_queue.topic.name, actions)
        yield group_need(request.group.name, actions)

    return find


def _settings(command: pb.TelemetryCommand) -> Iterator[Need]:
    """Returns the rights for the topics and the group of settings. Responses to commands need no rights."""
    if command.WhichOneof("command") != "settings":
        return
    for topic in command.settings.publishing.topics:
        yield send_need(topic.name)
    if command.settings.HasField("subscription"):
        subscription = command.settings.subscription
        yield group_need(subscription.group.name, _SUB)
        for entry in subscription.subscriptions:
            yield topic_need(entry.topic.name, _SUB)


_RULES: dict[type[Message], Callable[[Any], Iterator[Need]]] = {
    pb.QueryRouteRequest: lambda request: iter((topic_need(request.topic.name, _ROUTE),)),
    pb.SendMessageRequest: _sending,
    pb.RecallMessageRequest: _sent,
    pb.EndTransactionRequest: _sent,
    pb.HeartbeatRequest: _of_group,
    pb.NotifyClientTerminationRequest: _of_group,
    pb.TelemetryCommand: _settings,
    pb.QueryAssignmentRequest: _consumed,
    pb.ReceiveMessageRequest: _of_queue(_SUB),
    pb.AckMessageRequest: _consumed,
    pb.ForwardMessageToDeadLetterQueueRequest: _consumed,
    pb.ChangeInvisibleDurationRequest: _consumed,  # +
    pb.SyncLiteSubscriptionRequest: _consumed,  # +
    pb.PullMessageRequest: _of_queue(_SUB),  # +
    pb.UpdateOffsetRequest: _of_queue(_SUB_UPDATE),  # +
    pb.GetOffsetRequest: _of_queue(_SUB_GET),  # +
    pb.QueryOffsetRequest: lambda request: iter((topic_need(request.message_queue.topic.name, _GET),)),  # +
}


def needs(request: Message) -> Iterator[Need]:
    """Returns the rights that a request needs: `ANYTHING` without a rule, and no right for some empty requests."""
    rule = _RULES.get(type(request))
    return rule(request) if rule is not None else iter((ANYTHING,))
