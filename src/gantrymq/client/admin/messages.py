"""Messages: found by id, key or place; who has consumed one.

Source: client/impl/MQAdminImpl, tools/admin/DefaultMQAdminExtImpl (messageTrackDetail).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from gantrymq.client.admin.offsets import AdminOffsets
from gantrymq.client.admin.trace import TraceView, decode_trace
from gantrymq.client.broker_api import PullStatus
from gantrymq.errors import BodyError, BrokerError, BrokerUnavailable, ClientError, ProtocolError
from gantrymq.protocol.bodies.consumer import ConsumeMessageDirectlyResult
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY, CONSUME_PASSIVELY, EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.group import ConsumeMessageDirectlyResultRequestHeader
from gantrymq.protocol.headers.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import UNIQUE_KEY
from gantrymq.protocol.refusals import broker_error
from gantrymq.protocol.topic_name import TRACE_TOPIC

#: MixAll.TOOLS_CONSUMER_GROUP: with it mqadmin reads queues.
TOOLS_GROUP = "TOOLS_CONSUMER"
#: Messages of one pull.
PULL_BATCH = 32
#: MixAll.UNIQUE_MSG_QUERY_FLAG: whether the key is a producer's id.
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
FOREVER_MS = 2**63 - 1

_TRACK_STATUS: dict[int, str] = {
    ResponseCode.CONSUMER_NOT_ONLINE: "NOT_ONLINE",
    ResponseCode.BROADCAST_CONSUMPTION: "CONSUME_BROADCASTING",
}


class MessageTrack(NamedTuple):
    """What became of a message in one consumer group; `status` is a name of Java's `TrackType`."""

    consumer_group: str
    status: str
    reason: str = ""


class AdminMessages(AdminOffsets):
    """Messages in the store."""

    # -- finding ------------------------------------------------------------------------------------------------

    async def message_by_id(self, topic: str, message_id: str, *, cluster: str | None = None) -> MessageExt | None:
        """By either id: the offset message id says where it is, the producer's unique key is looked up.

        Raises NoRouteInfo.
        """
        brokers = (await self.topic_route(topic)).broker_datas
        try:
            address, _ = decode_offset_message_id(message_id)
            # A unique key of a producer with IPv4 is as long: what it has in an address's place is no broker's.
            if any(address in broker.broker_addrs.values() for broker in brokers):
                return await self.message_by_offset_id(message_id, topic)
        except (ProtocolError, BrokerError):
            pass
        return next(iter(await self.messages_by_unique_key(topic, message_id, cluster=cluster)), None)

    async def message_by_offset_id(self, message_id: str, topic: str | None = None) -> MessageExt:
        """The message at the place that its id names. Raises BrokerError when none is there, ProtocolError."""
        address, offset = decode_offset_message_id(message_id)
        header = ViewMessageRequestHeader(offset=offset, topic=topic)
        response = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        message = next(decode_messages(response.body), None)
        if message is None:
            raise BodyError(f"{address} answered with no message at {offset}")
        return message

    async def messages_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        max_num: int = 32,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        cluster: str | None = None,
    ) -> list[MessageExt]:
        """Messages with a producer's id, by store time; several when a send was retried. Raises NoRouteInfo.

        `max_num` is for each broker; with `cluster` only its brokers are asked.
        """
        found = await self._query(topic, unique_key, max_num, begin_ms, end_ms, cluster, unique=True)
        return [message for message in found if message.properties.get(UNIQUE_KEY) == unique_key]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 64,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        cluster: str | None = None,
    ) -> list[MessageExt]:
        """Messages that have `key` among their keys, by store time; bounds as above. Raises NoRouteInfo."""
        found = await self._query(topic, key, max_num, begin_ms, end_ms, cluster, unique=False)
        # The index knows hash codes of keys only.
        return [message for message in found if key in message.keys and message.topic == topic]

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """The message at a queue offset, None where there is none."""
        address = await self.broker_address(queue.broker_name)
        status, _, messages = await self._pull(address, queue, offset, SUBSCRIBE_ALL, 1)
        return messages[0] if status is PullStatus.FOUND else None

    async def messages_of_queue(
        self, queue: MessageQueue, begin: int, end: int, expression: str = SUBSCRIBE_ALL
    ) -> AsyncIterator[MessageExt]:
        """The queue's messages from offset `begin` up to `end`, those whose tags `expression` takes."""
        address = await self.broker_address(queue.broker_name)
        while begin < end:
            status, next_begin, messages = await self._pull(address, queue, begin, expression, PULL_BATCH)
            if status is PullStatus.NO_NEW_MESSAGE or next_begin <= begin:
                return
            begin = next_begin
            for message in messages:
                if message.queue_offset < end:
                    yield message

    async def message_trace(
        self,
        message_id: str,
        trace_topic: str = TRACE_TOPIC,
        *,
        max_num: int = 64,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        ends: bool = False,
    ) -> list[TraceView]:
        """Sends and consumptions of a message by clients that trace, by time; with `ends` those of transactions, too.

        Raises NoRouteInfo without a trace.
        """
        found = await self.messages_by_key(trace_topic, message_id, max_num=max_num, begin_ms=begin_ms, end_ms=end_ms)
        views = [view for message in found for view in decode_trace(message.body, message.born_host, ends=ends)]
        return sorted((view for view in views if view.msg_id == message_id), key=lambda view: view.timestamp)

    # -- consuming ----------------------------------------------------------------------------------------------

    async def message_track(self, message: MessageExt) -> list[MessageTrack]:
        """Which groups have consumed the message, as far as their offsets tell."""
        return [await self._track(message, group) for group in await self.groups_of_topic(message.topic)]

    async def consume_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Has one consumer of a group consume the message now, and tells how that went."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=message.offset_msg_id, topic=message.topic
        )
        response = await self._call(
            message.store_host, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=3 * self.timeout_ms
        )
        return decode_json(response.body, ConsumeMessageDirectlyResult)

    # -- requests -----------------------------------------------------------------------------------------------

    async def _query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, cluster: str | None, *, unique: bool
    ) -> list[MessageExt]:
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_num, begin_timestamp=begin_ms, end_timestamp=end_ms
        )

        async def query(address: str) -> list[MessageExt]:
            request = RemotingCommand.request(
                RequestCode.QUERY_MESSAGE, header, fields={_UNIQUE_KEY_QUERY: "true" if unique else "false"}
            )
            response = await self.remoting.invoke(address, request, 3 * self.timeout_ms)
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            if response.code != ResponseCode.SUCCESS:
                raise broker_error(response, address)
            return list(decode_messages(response.body))

        answers = await self._each(f"looking for {key}", await self._holders(topic, cluster), query)
        found = [message for answer in answers.values() for message in answer]
        return sorted(found, key=lambda message: message.store_timestamp)

    async def _pull(
        self, address: str, queue: MessageQueue, offset: int, expression: str, max_num: int
    ) -> tuple[PullStatus, int, list[MessageExt]]:
        result = await self.api.pull_at_once(
            address,
            queue,
            offset,
            max_num,
            TOOLS_GROUP,
            filter_expression=(expression, EXPRESSION_TAG),
            timeout_ms=self.timeout_ms,
        )
        messages = list(decode_messages(result.body, queue.broker_name))
        return result.status, result.next_begin_offset, messages

    async def _track(self, message: MessageExt, group: str) -> MessageTrack:
        try:
            connection = await self.consumer_connection(group)
            if connection.consume_type == CONSUME_ACTIVELY:
                return MessageTrack(group, "PULL")
            if connection.consume_type != CONSUME_PASSIVELY:
                return MessageTrack(group, "UNKNOWN")
            if not await self._consumed(message, group):
                return MessageTrack(group, "NOT_CONSUME_YET")
        except BrokerError as e:
            return MessageTrack(group, _TRACK_STATUS.get(e.code, "UNKNOWN"), e.remark)
        except (ClientError, BrokerUnavailable) as e:
            return MessageTrack(group, "UNKNOWN", str(e))
        subscription = connection.subscription_table.get(message.topic)
        filtered = subscription is not None and subscription.tags_set and message.tags not in subscription.tags_set
        return MessageTrack(group, "CONSUMED_BUT_FILTERED" if filtered else "CONSUMED")

    async def _consumed(self, message: MessageExt, group: str) -> bool:
        stats = await self.consume_stats(group, message.topic)
        brokers = (await self.cluster_info()).broker_addr_table
        for queue, progress in stats.offset_table.items():
            if queue.topic == message.topic and queue.queue_id == message.queue_id:
                broker = brokers.get(queue.broker_name)
                if broker is not None and message.store_host in broker.broker_addrs.values():
                    return progress.consumer_offset > message.queue_offset
        return False
