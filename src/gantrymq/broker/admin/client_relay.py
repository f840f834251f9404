"""Requests that the broker forwards to the clients of a group (`Broker2Client`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gantrymq.background.tasks import Tasks
from gantrymq.broker.admin.messages import record_at
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import Client
from gantrymq.errors import GantryError, ProtocolError, RemotingError, RequestRefused, RequestTimeout
from gantrymq.limits import CLIENT_REQUESTS
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.offset import ConsumerStatusBody, ResetOffsetBody
from gantrymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from gantrymq.protocol.headers.offset import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.quota import Quota

log = peer_log(__name__)

#: Timeouts for a client's response (`Broker2Client.callClient` and `getConsumeStatus`).
CLIENT_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000
#: Maximum number of clients of a group that get a request at the same time.
_AT_ONCE = 64
#: When this many seconds have passed or this many bytes have arrived, no further clients of the group are queried.
STATUS_LIMIT_S = 15.0
STATUS_LIMIT_BYTES = 4 * 1024 * 1024


class ClientRelay(Feature):
    """Forwards an administrator's requests to clients."""

    def __init__(self, context: BrokerContext) -> None:
        self._broker_name = context.config.broker_name
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._members = context.members
        self._quota = Quota(CLIENT_REQUESTS)
        self._tasks = Tasks("telling clients of their new offsets")

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    async def stop(self) -> None:
        await self._tasks.stop()

    def push_reset(self, group: str, topic: str, timestamp: int, body: ResetOffsetBody) -> None:
        """Notifies all clients of a group of their new offsets after a reset."""
        members = self._members.consumers.get(group)
        if members is not None:
            header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=timestamp)
            self._tasks.start(self._notify(list(members.clients.values()), header, body))

    async def _notify(
        self, clients: list[Client[Connection]], header: ResetOffsetRequestHeader, body: ResetOffsetBody
    ) -> None:
        plain, for_c = body.encode(), body.encode_for_c()
        for n, client in enumerate(clients, 1):
            is_c = client.language == LanguageCode.CPP
            order = RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, for_c if is_c else plain)
            try:
                client.member.send_oneway(order)
            except RemotingError as e:
                log.info("can't notify client %s of group %s of its new offsets: %s", client.client_id, header.group, e)
            if not n % _AT_ONCE:
                await asyncio.sleep(0)

    def running_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the running info of a client: its queues, rates and threads."""
        header = request.read_header(GetConsumerRunningInfoRequestHeader)
        client = self._client(header.consumer_group, header.client_id)
        ask = partial(self._ask, client, header.consumer_group, request, request.ext_fields)
        connection.respond_with(request, self._limited(connection, len(request.body), ask))
        return None

    def consume_directly(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Has a client consume a stored message at once, and returns the result."""
        header = request.read_header(ConsumeMessageDirectlyResultRequestHeader)
        client = self._client(header.consumer_group, header.client_id or "")
        try:
            _, offset = decode_offset_message_id(header.msg_id or "")
        except ProtocolError as e:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(e)) from e
        order = RemotingCommand.request(request.code, body=record_at(self._store, offset))
        fields = request.ext_fields | {"brokerName": self._broker_name}
        topic = self._topics.get(header.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.find(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        ask = partial(self._ask, client, header.consumer_group, order, fields)
        connection.respond_with(request, self._limited(connection, len(order.body), ask))
        return None

    def consumer_status(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the offsets in a topic that the clients of a group, or one of them, have in memory."""
        header = request.read_header(GetConsumerStatusRequestHeader)
        group = self._members.consumers.get(header.group)
        clients = [] if group is None else list(group.clients.values())
        if not clients:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        wanted = [client for client in clients if header.client_addr in (None, "", client.client_id)]
        connection.respond_with(request, self._limited(connection, 0, partial(self._statuses, wanted, header)))
        return None

    async def _statuses(
        self, clients: list[Client[Connection]], header: GetConsumerStatusRequestHeader
    ) -> RemotingCommand:
        """Collects the clients' offsets concurrently (Java: one by one). Omits clients that don't respond in time."""
        body = ConsumerStatusBody()
        size = 0
        deadline = asyncio.get_running_loop().time() + STATUS_LIMIT_S
        for first in range(0, len(clients), _AT_ONCE):
            some = clients[first : first + _AT_ONCE]
            for answer_size in await asyncio.gather(*(self._status(client, header, body) for client in some)):
                size += answer_size
            if size > STATUS_LIMIT_BYTES or asyncio.get_running_loop().time() > deadline:
                log.warning("of the %d clients of group %s not all are asked", len(clients), header.group)
                break
        return RemotingCommand.response(body=body.encode())

    async def _status(
        self, client: Client[Connection], header: GetConsumerStatusRequestHeader, body: ConsumerStatusBody
    ) -> int:
        """Adds a client's offsets to `body`. Returns the size of its response in bytes."""
        question = RemotingCommand.request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusRequestHeader(topic=header.topic, group=header.group),
        )
        try:
            answer = await client.member.invoke(question, STATUS_TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                body.consumer_table[client.client_id] = ConsumerStatusBody.decode(answer.body).message_queue_table
                return len(answer.body)
        except GantryError as e:
            log.warning("can't request the offsets of client %s of group %s: %s", client.client_id, header.group, e)
        return 0

    async def _ask(
        self, client: Client[Connection], group: str, request: RemotingCommand, fields: dict[str, str]
    ) -> RemotingCommand:
        """Returns the client's response unchanged."""
        question = RemotingCommand.request(request.code, body=request.body, fields=fields)
        try:
            return await client.member.invoke(question, CLIENT_TIMEOUT_MS)
        except RequestTimeout as e:
            raise RequestRefused(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client.client_id}> Timeout: {e}"
            ) from e
        except RemotingError as e:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client.client_id}> Exception: {e}"
            ) from e

    def _client(self, group: str, client_id: str) -> Client[Connection]:
        client = self._members.find(group, client_id)
        if client is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        return client

    async def _limited(
        self, connection: Connection, size: int, ask: Callable[[], Awaitable[RemotingCommand]]
    ) -> RemotingCommand:
        """Runs `ask` within the quota of `connection`. The forwarded body has `size` bytes."""
        with self._quota.reserved(connection, size):
            return await ask()
