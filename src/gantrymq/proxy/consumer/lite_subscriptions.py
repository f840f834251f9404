"""SyncLiteSubscription: passes the lite topics of a client to the brokers (`ClientActivity.syncLiteSubscription`).

Each broker of the parent topic gets each change, because it may have messages of any lite topic. Clients repeat all of
their lite topics from time to time. If a client leaves or falls silent, its subscriptions are removed.
"""

from __future__ import annotations

import asyncio

from gantrymq.background.tasks import Tasks
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.lite import (
    POLICY_LAST,
    POLICY_MAX,
    POLICY_MIN,
    LiteSubscription,
    LiteSubscriptionAction,
    LiteSubscriptionCtlBody,
    OffsetOption,
    OffsetOptionType,
)
from gantrymq.protocol.bodies.topic_config import PERM_READ
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import Call, Handlers, Slices
from gantrymq.proxy.clients import Client, Clients, Watcher
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.statuses import ProxyError, status
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
    TelemetryCommand,
)
from gantrymq.proxy.validation import check_lite_topic, check_topic_and_group
from gantrymq.remoting.connection import Connection

log = peer_log(__name__)

#: Timeout of a request to a broker, ms.
_TIMEOUT_MS = 2000
#: Largest number of lite topics in one request.
MAX_LITE_TOPICS = 10_000
_ACTIONS = {
    pb.PARTIAL_ADD: LiteSubscriptionAction.PARTIAL_ADD,
    pb.PARTIAL_REMOVE: LiteSubscriptionAction.PARTIAL_REMOVE,
    pb.COMPLETE_ADD: LiteSubscriptionAction.COMPLETE_ADD,
    pb.COMPLETE_REMOVE: LiteSubscriptionAction.COMPLETE_REMOVE,
}
_POLICIES = {
    pb.OffsetOption.LAST: POLICY_LAST,
    pb.OffsetOption.MIN: POLICY_MIN,
    pb.OffsetOption.MAX: POLICY_MAX,
}


class LiteSubscriptionActivity:
    """Serves SyncLiteSubscription for all clients."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, clients: Clients) -> None:
        self._config = config
        self._brokers = brokers
        self._clients = clients
        self._leaving = Tasks("removing the lite topics of clients that are gone")
        clients.watch(Watcher(gone=self._gone))
        brokers.handlers[RequestCode.NOTIFY_UNSUBSCRIBE_LITE] = self._unsubscribed

    @property
    def handlers(self) -> Handlers:
        return {"SyncLiteSubscription": self.sync_lite_subscription}

    async def stop(self) -> None:
        await self._leaving.stop()

    async def sync_lite_subscription(
        self, call: Call, request: SyncLiteSubscriptionRequest
    ) -> SyncLiteSubscriptionResponse:
        """Adds, removes or replaces lite topics of the calling client. Raises ProxyError or BrokerError."""
        topic, group = request.topic.name, request.group.name
        check_topic_and_group(topic, group)
        client = self._clients.get(call.client_id)
        if client is None or not client.is_lite or client.group != group:
            raise ProxyError(
                pb.Code.UNRECOGNIZED_CLIENT_TYPE, f"client {call.client_id} is no consumer of lite topics in this group"
            )
        if len(request.lite_topic_set) > MAX_LITE_TOPICS:
            raise ProxyError(
                pb.Code.BAD_REQUEST,
                f"{len(request.lite_topic_set)} lite topics in one request: at most {MAX_LITE_TOPICS} are taken",
            )
        async for lite_topic in Slices(call, request.lite_topic_set):
            check_lite_topic(lite_topic, self._config.max_lite_topic_size)
        action = _ACTIONS.get(request.action)
        if action is None:
            raise ProxyError(pb.Code.BAD_REQUEST, f"unknown action {request.action}")
        change = LiteSubscription(
            action, call.client_id, group, topic, list(request.lite_topic_set), version=request.version
        )
        if action is LiteSubscriptionAction.PARTIAL_ADD and request.HasField("offset_option"):
            change.offset_option = _offset_option(request.offset_option)
        await self._send(change)
        return SyncLiteSubscriptionResponse(status=status(pb.Code.OK))

    async def _send(self, change: LiteSubscription) -> None:
        """Sends a change to all brokers with readable queues of the topic. Raises the first error."""
        route = await self._brokers.route(change.topic)
        names = {queues.broker_name for queues in route.queue_datas if queues.perm & PERM_READ}
        body = encode_json(LiteSubscriptionCtlBody([change]))
        results = await asyncio.gather(*(self._call(name, body) for name in sorted(names)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _call(self, broker_name: str, body: bytes) -> None:
        request = RemotingCommand.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
        address = await self._brokers.master(broker_name)
        await self._brokers.remoting.call(address, request, _TIMEOUT_MS)

    def _gone(self, client: Client) -> None:
        topics = client.topics
        if client.is_lite and topics:
            change = LiteSubscription(LiteSubscriptionAction.COMPLETE_REMOVE, client.client_id, client.group, topics[0])
            self._leaving.start(self._leave(change))

    async def _leave(self, change: LiteSubscription) -> None:
        try:
            await self._send(change)
        except GantryError as e:
            log.warning("the lite topics of client %s expire later: %s", change.client_id, e)

    def _unsubscribed(self, connection: Connection, request: RemotingCommand) -> None:
        """Tells a client that another client has one of its lite topics now."""
        header = request.read_header(NotifyUnsubscribeLiteRequestHeader)
        client = self._clients.get(header.client_id)
        if client is None or client.group != header.consumer_group or client.telemetry is None:
            return
        command = NotifyUnsubscribeLiteCommand(lite_topic=header.lite_topic)
        client.telemetry.write_soon(TelemetryCommand(notify_unsubscribe_lite_command=command))


def _offset_option(option: pb.OffsetOption) -> OffsetOption:
    match option.WhichOneof("offset_type"):
        case "policy":
            return OffsetOption(OffsetOptionType.POLICY, _POLICIES.get(option.policy, POLICY_LAST))
        case "offset":
            return OffsetOption(OffsetOptionType.OFFSET, option.offset)
        case "tail_n":
            return OffsetOption(OffsetOptionType.TAIL_N, option.tail_n)
        case "timestamp":
            return OffsetOption(OffsetOptionType.TIMESTAMP, option.timestamp)
    raise ProxyError(pb.Code.BAD_REQUEST, "the offset option has no type")
