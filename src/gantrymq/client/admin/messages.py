"""Search for messages, and their consumption (client/impl/MQAdminImpl, DefaultMQAdminExtImpl.messageTrackDetail)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal, NamedTuple

from gantrymq.client.admin.base import any_address
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
from gantrymq.protocol.topic_name import TOOLS_GROUP, TRACE_TOPIC
from gantrymq.times import timestamp_ms

#: Largest number of messages of one pull.
PULL_BATCH = 32
#: Field that marks the key as a producer's unique key (MixAll.UNIQUE_MSG_QUERY_FLAG).
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
FOREVER_MS = 2**63 - 1
_HOUR_MS = 3_600_000

_TRACK_STATUS: dict[int, str] = {
    ResponseCode.CONSUMER_NOT_ONLINE: "NOT_ONLINE",
    ResponseCode.BROADCAST_CONSUMPTION: "CONSUME_BROADCASTING",
}


class MessageTrack(NamedTuple):
    """State of a message in one consumer group. `status` is a name of Java's `TrackType`."""

    consumer_group: str
    status: str
    reason: str = ""


def index_key(message: MessageExt, key_type: str, key: str) -> str:
    """Returns a message's position in the RocksDB index of Java brokers, for `last_key` of `messages_by_key`.

    Source: `QueryMsgByKeySubCommand.queryByKey`.
    """
    hour_ms = message.store_timestamp // _HOUR_MS * _HOUR_MS
    return f"{hour_ms}@{message.topic}@{key_type}@{key}@{message.msg_id}@{message.commit_log_offset}"


class AdminMessages(AdminOffsets):
    """Requests for messages in the store."""

    # -- finding ------------------------------------------------------------------------------------------------

    async def message_by_id(
        self, topic: str, message_id: str, *, cluster: str | None = None, broker: str | None = None
    ) -> MessageExt | None:
        """Returns a message by its offset message id or its unique key; None if there is no such message.

        `broker` (HOST:PORT) searches only this broker. Raises NoRouteInfo.
        """
        brokers = (await self.topic_route(topic)).broker_datas
        if broker is not None:
            brokers = [data for data in brokers if broker in data.broker_addrs.values()]
        try:
            address, _ = decode_offset_message_id(message_id)
            # A unique key can be as long as an offset message id, but its address bytes match no broker.
            if any(address in data.broker_addrs.values() for data in brokers):
                return await self.message_by_offset_id(message_id, topic)
        except (ProtocolError, BrokerError):
            pass
        found = await self.messages_by_unique_key(topic, message_id, cluster=cluster, broker=broker)
        return next(iter(found), None)

    async def message_by_offset_id(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Returns the message at the position in the id. Raises BrokerError if there is none, or ProtocolError."""
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
        begin: datetime | int = 0,
        end: datetime | int = FOREVER_MS,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[MessageExt]:
        """Returns messages with this unique key, sorted by store time. A retried send can store several.

        Args:
            topic: Topic to search.
            unique_key: Id from the producer.
            max_num: Most messages of each broker. Default: 32.
            begin: Earliest store time: a datetime, or ms since the epoch.
            end: Latest store time: a datetime, or ms since the epoch.
            cluster: Searches only brokers of this cluster.
            broker: Searches only this broker, HOST:PORT.

        Raises:
            NoRouteInfo: The topic has no route.
        """
        begin_ms, end_ms = timestamp_ms("begin", begin), timestamp_ms("end", end)
        header = QueryMessageRequestHeader(
            topic=topic, key=unique_key, max_num=max_num, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        found = await self._query(header, cluster, broker, unique=True)
        # Brokers ignore the store time when they search by unique key.
        return [
            message
            for message in found
            if message.properties.get(UNIQUE_KEY) == unique_key and begin_ms <= message.store_timestamp <= end_ms
        ]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 64,
        begin: datetime | int = 0,
        end: datetime | int = FOREVER_MS,
        cluster: str | None = None,
        broker: str | None = None,
        key_type: Literal["K", "T"] = "K",
        last_key: str | None = None,
    ) -> list[MessageExt]:
        """Returns messages with this key or, for `key_type` T, with these tags, sorted by store time.

        Args:
            topic: Topic to search.
            key: Key from the application, or tags.
            max_num: Most messages of each broker. Default: 64.
            begin: Earliest store time: a datetime, or ms since the epoch.
            end: Latest store time: a datetime, or ms since the epoch.
            cluster: Searches only brokers of this cluster.
            broker: Searches only this broker, HOST:PORT.
            key_type: `K` if `key` is a key, `T` if it is tags. Default: `K`.
            last_key: Position after which the search continues, as `index_key` returns it. Only Java brokers with
                RocksDB's index use it.

        Raises:
            NoRouteInfo: The topic has no route.
        """
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=max_num,
            begin_timestamp=timestamp_ms("begin", begin),
            end_timestamp=timestamp_ms("end", end),
            # The request of older clients has no key type.
            index_type=None if key_type == "K" else key_type,
            last_key=last_key,
        )
        found = await self._query(header, cluster, broker, unique=False)
        # The index contains hash codes of keys, so other keys can match.
        return [
            message
            for message in found
            if message.topic == topic and (key in message.keys if key_type == "K" else key == message.tags)
        ]

    async def message_at(
        self, queue: MessageQueue, offset: int, *, route_topic: str | None = None
    ) -> MessageExt | None:
        """Returns the message at a queue offset, or None.

        With `route_topic`, the address of the broker comes from the route of this topic. Raises ClientError if the
        broker is unknown.
        """
        if route_topic is None:
            address = await self.broker_address(queue.broker_name)
        else:
            address = await self._address_in_route(route_topic, queue.broker_name)
        status, _, messages = await self._pull(address, queue, offset, SUBSCRIBE_ALL, 1)
        return messages[0] if status is PullStatus.FOUND else None

    async def messages_of_queue(
        self, queue: MessageQueue, begin: int, end: int, expression: str = SUBSCRIBE_ALL
    ) -> AsyncIterator[MessageExt]:
        """Yields the queue's messages from offset `begin` to before `end`. `expression` filters by tags."""
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
        begin: datetime | int = 0,
        end: datetime | int = FOREVER_MS,
        ends: bool = False,
    ) -> list[TraceView]:
        """Returns a message's traces, sorted by time: sends, consumptions and, with `ends`, ends of transactions.

        A client only writes traces if its option for traces is on. Raises NoRouteInfo if there is no trace topic.
        """
        found = await self.messages_by_key(trace_topic, message_id, max_num=max_num, begin=begin, end=end)
        views = [view for message in found for view in decode_trace(message.body, message.born_host, ends=ends)]
        return sorted((view for view in views if view.msg_id == message_id), key=lambda view: view.timestamp)

    # -- consuming ----------------------------------------------------------------------------------------------

    async def message_track(self, message: MessageExt) -> list[MessageTrack]:
        """Returns whether each group has consumed the message, judged by the group's offsets."""
        return [await self._track(message, group) for group in await self.groups_of_topic(message.topic)]

    async def consume_directly(self, group: str, client_id: str, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Makes one consumer of a group consume the message at once, and returns the result."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=message.offset_msg_id, topic=message.topic
        )
        response = await self._call(
            message.store_host, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=3 * self._transport.timeout_ms
        )
        return decode_json(response.body, ConsumeMessageDirectlyResult)

    # -- requests -----------------------------------------------------------------------------------------------

    async def _query(
        self, header: QueryMessageRequestHeader, cluster: str | None, broker: str | None, *, unique: bool
    ) -> list[MessageExt]:
        async def query(address: str) -> list[MessageExt]:
            request = RemotingCommand.request(
                RequestCode.QUERY_MESSAGE, header, fields={_UNIQUE_KEY_QUERY: "true" if unique else "false"}
            )
            response = await self._transport.remoting.invoke(address, request, 3 * self._transport.timeout_ms)
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            if response.code != ResponseCode.SUCCESS:
                raise broker_error(response, address)
            return list(decode_messages(response.body))

        holders = [broker] if broker else await self.holders(header.topic, cluster)
        answers = await self._each(f"looking for {header.key}", holders, query)
        found = [message for answer in answers.values() for message in answer]
        return sorted(found, key=lambda message: message.store_timestamp)

    async def _address_in_route(self, topic: str, broker_name: str) -> str:
        for broker in (await self.topic_route(topic)).broker_datas:
            if broker.broker_name == broker_name and (address := any_address(broker)):
                return address
        raise ClientError(f"topic {topic!r} has no broker {broker_name!r}")

    async def _pull(
        self, address: str, queue: MessageQueue, offset: int, expression: str, max_num: int
    ) -> tuple[PullStatus, int, list[MessageExt]]:
        result = await self._transport.api.pull_at_once(
            address,
            queue,
            offset,
            max_num,
            TOOLS_GROUP,
            filter_expression=(expression, EXPRESSION_TAG),
            timeout_ms=self._transport.timeout_ms,
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
