"""Request-reply between clients: SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2 (`ReplyMessageProcessor`).

A request is an ordinary message with the client id of its sender. The broker pushes the reply to this client. It also
stores the reply in the topic CLUSTER_REPLY_TOPIC, unless `storeReplyMessageEnable` is off. The response to the replier
contains the result of the push.
"""

from __future__ import annotations

import asyncio

from gantrymq.broker.append import PREALLOCATION_RETRY_S, WAIT_S, Appender, PendingResponses, born_host, message_type
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import RefusalReason, RemotingError, RequestRefused, StoreBusy
from gantrymq.limits import REPLIES
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
    is_waited_for,
)
from gantrymq.protocol.refusals import reason_fields
from gantrymq.protocol.topic_name import may_be_sent_to, topic_problem
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.quota import Quota
from gantrymq.system import clock, randomness
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Timeout of a push, in ms (`Broker2Client.callClient`).
PUSH_TIMEOUT_MS = 10_000


class Replies(Feature):
    """Pushes replies to the requesters, and stores them."""

    def __init__(self, context: BrokerContext, *, appender: Appender, pending_responses: PendingResponses) -> None:
        self._pending_responses = pending_responses
        self._config = context.config
        self._address = context.address
        self._appender = appender
        self._topics = context.topics
        self._members = context.members
        self._quota = Quota(REPLIES)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.SEND_REPLY_MESSAGE: self.reply, RequestCode.SEND_REPLY_MESSAGE_V2: self.reply}

    def reply(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Pushes a reply to the requester, stores it, and responds with the result of the push."""
        header: SendMessageRequestHeader
        if request.code == RequestCode.SEND_REPLY_MESSAGE:
            header = request.read_header(SendMessageRequestHeader)
        else:
            header = request.read_header(SendMessageRequestHeaderV2)
        size, properties_size = len(request.body), len((header.properties or "").encode())
        most = MAX_PROPERTIES_LENGTH - len(encode_properties(self._own_properties()))
        if size > self._appender.max_message_size or properties_size > most:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"reply of {size} bytes with {properties_size} bytes of properties: at most "
                f"{self._appender.max_message_size} and {most} are taken",
            )
        self._check(header)
        connection.respond_with(request, self._push_and_store(connection, request, header))
        return None

    def _check(self, header: SendMessageRequestHeader) -> TopicConfig:
        """Returns a reply's topic, or raises RequestRefused (AbstractSendMessageProcessor.msgCheck)."""
        problem = topic_problem(header.topic)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        if not may_be_sent_to(header.topic):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden.")
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist: replies go to {self._config.broker_cluster_name}_REPLY_TOPIC",
            )
        if not topic.is_writable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] sending message is forbidden")
        if header.queue_id >= topic.write_queue_nums or topic.write_queue_nums < 1:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, topic {header.topic} has {topic.write_queue_nums}",
            )
        return topic

    async def _push_and_store(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> RemotingCommand:
        """Pushes and stores a reply within the quota. Returns the response."""
        with self._quota.reserved(connection, len(request.body)):
            problem = await self._push(connection, request, header)
            if problem:
                log.warning("a reply of %s: %s", connection.address, problem)
            # Clients require these fields, even if nothing is stored.
            answer = SendMessageResponseHeader(
                msg_id="0",
                queue_id=0,
                queue_offset=0,
                msg_region=self._config.region_id,
                trace_on="true" if self._config.trace_on else "false",
            )
            if self._config.store_reply_message_enable:
                if not self._topics.is_written(header.topic):
                    await self._topics.written()
                await self._store(connection, request, header, answer)
        if problem is None:
            return RemotingCommand.response(header=answer)
        return RemotingCommand.response(problem.code, str(problem), answer, fields=reason_fields(problem.reason))

    async def _push(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> RequestRefused | None:
        """Pushes a reply to the requester. Returns None, or the error if the client has not received the reply."""
        fields = decode_properties((header.properties or "").encode())
        client_id = fields.get(names.MESSAGE_REPLY_TO_CLIENT)
        if client_id is None:
            remark = f"reply message properties[{names.MESSAGE_REPLY_TO_CLIENT}] is null"
            return RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
        member = self._members.producer_member(client_id)
        if member is None:
            return _requester_gone(f"push reply message fail, channel of <{client_id}> not found.")
        fields |= self._own_properties()
        now_ms = clock.now_ms()
        fields[names.PUSH_REPLY_TIME] = str(now_ms)
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties(fields).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=connection.address,
            store_host=self._address,
            store_timestamp=now_ms,
        )
        try:
            answer = await member.invoke(
                RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, request.body), PUSH_TIMEOUT_MS
            )
        except RemotingError as e:
            return _requester_gone(f"push reply message to {client_id} fail: {e}")
        if answer.code != ResponseCode.SUCCESS:
            return _requester_gone(
                f"push reply message to {client_id} fail: it answered {answer.code}, {answer.remark}"
            )
        return None

    def _own_properties(self) -> dict[str, str]:
        """Returns the properties that the broker adds to a reply (`AbstractSendMessageProcessor.buildMsgContext`)."""
        return {
            names.MSG_REGION: self._config.region_id,
            names.TRACE_SWITCH: "true" if self._config.trace_on else "false",
        }

    async def _store(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        answer: SendMessageResponseHeader,
    ) -> None:
        """Stores a reply, and waits for the flush and the replicas if they are configured."""
        late = monotonic() + WAIT_S
        while True:
            try:
                end = self._append(connection, request, header, answer)
                break
            except StoreBusy:
                if monotonic() >= late:
                    raise
            await asyncio.sleep(PREALLOCATION_RETRY_S)
        if self._pending_responses.is_used and is_waited_for((header.properties or "").encode()):
            await self._pending_responses.until_safe(end)

    def _append(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        answer: SendMessageResponseHeader,
    ) -> int:
        """Stores a reply and sets the fields of `answer`. Returns the physical offset at the end of the record."""
        # The topic may have changed during the push.
        topic = self._check(header)
        queue_id = header.queue_id if header.queue_id >= 0 else randomness.randrange(topic.write_queue_nums)
        queue = self._appender.store.queue(header.topic, queue_id)
        result = self._appender.append(
            queue,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            born_host(connection),
            header.reconsume_times or 0,
            request.body,
            encode_properties(decode_properties((header.properties or "").encode()) | self._own_properties()),
            0,
        )
        if self._appender.received is not None:
            kind = message_type((header.properties or "").encode())
            self._appender.received.add(queue.topic, kind, result.size)
        answer.msg_id = encode_offset_message_id(self._appender.store_host, result.physical_offset)
        answer.queue_id = queue_id
        answer.queue_offset = result.queue_offset
        return result.physical_offset + result.size


def _requester_gone(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, remark, RefusalReason.REQUESTER_GONE)
