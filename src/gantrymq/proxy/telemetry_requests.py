"""Requests of brokers to clients, which the proxy sends on the clients' telemetry streams.

A broker checks a transaction at its producer. If an operator requests it, a broker also requests the thread stacks of a
consumer, or lets a consumer consume one message. Sources: proxy/service/client/ProxyClientRemotingProcessor,
proxy/grpc/v2/channel/GrpcClientChannel, GrpcChannelManager, ClientActivity (report*).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import NamedTuple

from gantrymq.errors import RequestRefused
from gantrymq.limits import PROXY_TELEMETRY_REQUESTS
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.consumer import (
    CR_LATER,
    CR_SUCCESS,
    PROP_CLIENT_VERSION,
    PROP_CONSUME_TYPE,
    PROP_PROXY_CLIENT_LANGUAGE,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from gantrymq.protocol.headers.transaction import CheckTransactionStateRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import PRODUCER_GROUP, RETRY_TOPIC
from gantrymq.protocol.record import decode_record
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import ServerStream
from gantrymq.proxy.clients import Client, Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.messages import to_protobuf
from gantrymq.proxy.producer.transactions import Half, Transactions
from gantrymq.proxy.subscriptions import consume_type, subscriptions_of
from gantrymq.proxy.v2.definition_pb2 import Code, Status
from gantrymq.proxy.v2.service_pb2 import (
    PrintThreadStackTraceCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.system import clock

log = peer_log(__name__)

_CR_RETURN_NULL = "CR_RETURN_NULL"
_CONSUME_RESULTS = {
    Code.OK: CR_SUCCESS,
    Code.FAILED_TO_CONSUME_MESSAGE: CR_LATER,
    Code.MESSAGE_CORRUPTED: _CR_RETURN_NULL,
}


class _Request(NamedTuple):
    """A pending request to a client as a member of a group."""

    client: Client
    group: str
    answer: asyncio.Future[TelemetryCommand]


class TelemetryRequests:
    """Forwards brokers' requests to clients, and the clients' responses to the brokers."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, clients: Clients, transactions: Transactions) -> None:
        self._timeout_s = config.grpc_proxy_relay_request_timeout_in_seconds
        self._brokers = brokers
        self._clients = clients
        self._transactions = transactions
        self._nonces = itertools.count()
        #: Pending requests by nonce.
        self._open: dict[str, _Request] = {}
        self._turn = itertools.count()
        brokers.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self.check_transaction_state
        brokers.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = self.running_info
        brokers.handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self.consume_directly
        brokers.handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = _ignored

    def answer(self, stream: ServerStream, nonce: str, command: TelemetryCommand) -> None:
        """Completes the pending request with this nonce.

        The response is ignored if it arrives on another client's stream, or if the client has changed its group.
        """
        pending = self._open.get(nonce)
        if pending is None or pending.answer.done():
            return
        client = pending.client
        if client.telemetry is stream and client.group == pending.group:
            pending.answer.set_result(command)

    # -- transactions -------------------------------------------------------------------------------------------

    def check_transaction_state(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Sends a transaction check to one of the topic's producers. The producer responds with EndTransaction."""
        header = request.read_header(CheckTransactionStateRequestHeader)
        message = MessageExt(decode_record(request.body))
        group = message.properties.get(PRODUCER_GROUP, "")
        listening = [client for client in self._clients.producers(group) if client.telemetry is not None]
        if not listening:
            log.warning("producer group %s has no connected client: a transaction is not checked", group)
            return None
        half = Half(
            transaction_id=header.transaction_id or message.msg_id,
            topic=group,
            broker_name=header.bname or self._broker_at(connection.address),
            queue_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
        )
        self._transactions.remember(half, clock.monotonic())
        _write(
            listening[next(self._turn) % len(listening)],
            TelemetryCommand(
                recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                    message=to_protobuf(message), transaction_id=half.transaction_id
                )
            ),
        )
        return None

    def _broker_at(self, address: str) -> str:
        """Returns the name of the broker at an address. Old brokers do not send their name."""
        brokers = self._brokers.routes.all_brokers()
        return next((name for name, replicas in brokers.items() if address in replicas.values()), "")

    # -- consumers ----------------------------------------------------------------------------------------------

    def running_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Responds with the properties and subscriptions of a consumer, and its thread stacks if requested."""
        header = request.read_header(GetConsumerRunningInfoRequestHeader)
        client = self._consumer(header.consumer_group, header.client_id)
        connection.respond_with(request, self._running_info(client, header.jstack_enable))
        return None

    async def _running_info(self, client: Client, with_stacks: bool) -> RemotingCommand:
        """Returns the response with the running info. Requests the stacks from the client if needed."""
        info = ConsumerRunningInfo(
            properties={
                "consumerGroup": client.group,
                PROP_CONSUME_TYPE: consume_type(client),
                PROP_CLIENT_VERSION: f"{client.language} {client.version}",
                PROP_PROXY_CLIENT_LANGUAGE: client.language,
            },
            subscription_set=subscriptions_of(client),
        )
        if with_stacks:
            nonce = self._nonce()
            ask = TelemetryCommand(print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce))
            answer = await self._ask(client, nonce, ask)
            if answer.status.code != Code.OK:
                return _refused(answer.status, "print the stacks of its threads")
            info.jstack = answer.thread_stack_trace.thread_stack_trace
        return RemotingCommand.response(body=info.encode())

    def consume_directly(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Lets a consumer consume a message as a trial. The result changes no offset and no retry."""
        header = request.read_header(ConsumeMessageDirectlyResultRequestHeader)
        client = self._consumer(header.consumer_group, header.client_id or "")
        message = MessageExt(decode_record(request.body), header.broker_name or "")
        if message.topic.startswith(RETRY_TOPIC_PREFIX):
            message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        connection.respond_with(request, self._verify(client, message))
        return None

    async def _verify(self, client: Client, message: MessageExt) -> RemotingCommand:
        """Sends the message to the client, and returns the response with the result of its consumption."""
        nonce = self._nonce()
        began = clock.monotonic()
        ask = TelemetryCommand(verify_message_command=VerifyMessageCommand(nonce=nonce, message=to_protobuf(message)))
        answer = await self._ask(client, nonce, ask)
        result = _CONSUME_RESULTS.get(answer.status.code)
        if result is None:
            return _refused(answer.status, "verify the message")
        body = ConsumeMessageDirectlyResult(
            consume_result=result,
            remark="from gRPC client",
            spent_time_mills=round(1000 * (clock.monotonic() - began)),
        )
        return RemotingCommand.response(body=encode_json(body))

    def _consumer(self, group: str, client_id: str) -> Client:
        client = self._clients.get(client_id)
        if client is None or client.group != group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
        return client

    # -- requests to clients ------------------------------------------------------------------------------------

    def _nonce(self) -> str:
        return str(next(self._nonces))

    async def _ask(self, client: Client, nonce: str, command: TelemetryCommand) -> TelemetryCommand:
        """Sends a command to a client and returns its response.

        Raises RequestRefused if the client has no telemetry stream, if it does not respond within the timeout, or if
        too many requests are pending (PROXY_TELEMETRY_REQUESTS).
        """
        if client.telemetry is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"client {client.client_id} doesn't listen just now")
        if len(self._open) >= PROXY_TELEMETRY_REQUESTS:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "too many requests to clients are pending: try again later")
        pending: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._open[nonce] = _Request(client, client.group, pending)
        try:
            _write(client, command)
            async with asyncio.timeout(self._timeout_s):
                return await pending
        except TimeoutError:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "call remote timeout") from None
        finally:
            del self._open[nonce]


def _write(client: Client, command: TelemetryCommand) -> None:
    assert client.telemetry is not None
    client.telemetry.write_soon(command)


def _refused(status: Status, what: str) -> RemotingCommand:
    if status.code == Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
        return RemotingCommand.response(ResponseCode.NO_PERMISSION, remark="forbidden to verify message")
    return RemotingCommand.response(
        ResponseCode.SYSTEM_ERROR, remark=f"the client could not {what}: code {status.code} {status.message}"
    )


def _ignored(connection: Connection, request: RemotingCommand) -> None:
    """Ignores changes of a group's members: brokers distribute messages, not queues, so nothing is rebalanced."""
