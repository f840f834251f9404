"""The requests that clients make of NameServers and brokers: one function each, typed in and out.

Every function raises a RemotingError when the network fails and BrokerError for an answer that it doesn't list as a
result. Source: client/impl/MQClientAPIImpl.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from gantrymq.client.route_answers import RouteAnswer
from gantrymq.errors import (
    ConnectionLost,
    NoRouteInfo,
    ProtocolError,
    RefusalReason,
    RequestTimeout,
    RouteNotReady,
    SendOutcomeUnknown,
)
from gantrymq.protocol.awaited_brokers import awaited_brokers
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SUBSCRIBE_ALL, ConsumerList, HeartbeatData
from gantrymq.protocol.bodies.offset import QueueLockAnswer, QueueLockRequest
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.bodies.route import ClusterInfo, TopicRouteData
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader, UnregisterClientRequestHeader
from gantrymq.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    StoreTimeResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from gantrymq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader, SendMessageResponseHeader
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader, RecallMessageResponseHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, GetRouteInfoRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.private_fields import UNCONFIRMED_FIELD
from gantrymq.protocol.properties import MSG_REGION, TRACE_SWITCH
from gantrymq.protocol.refusals import broker_error, refusal_reason
from gantrymq.protocol.send_response import decode_send_response
from gantrymq.protocol.sys_flag import PULL_LITE, PULL_SUBSCRIPTION
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC
from gantrymq.remoting.client import RemotingClient

TIMEOUT_MS = 3000


class SendStatus(Enum):
    """How far a stored message got (`SendStatus`). Each status means that the master has the message.

    In a broker set with a controller, a send returns another status than SEND_OK only if the in-sync set has confirmed
    the message; else it raises SendOutcomeUnknown.
    """

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


class SendResult(NamedTuple):
    """`msg_id` is the producer's unique key, `offset_msg_id` says where the message is; a batch has several, joined by
    commas, and `queue_offset` is its first message's. `recall_handle` takes a timer message back. `region_id` and
    `trace_on` are the broker's word about message traces."""

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None
    region_id: str = ""
    trace_on: bool = True


class PullStatus(Enum):
    """How a pull ended (`PullStatus`)."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


class PullResult(NamedTuple):
    """`body` holds the records (`protocol.message.decode_messages`); go on at `next_begin_offset` in any case.

    `is_removed` is true if the commit log lacks messages that the queue has; the status is NO_MATCHED_MESSAGE.
    `topic_begin` is `private_fields.TOPIC_BEGIN_FIELD`, 0 without it.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int
    body: bytes
    is_removed: bool
    topic_begin: int = 0


_SEND_STATUS: dict[int, SendStatus] = {status.value: status for status in SendStatus}
_PULL_STATUS: dict[int, PullStatus] = {status.value: status for status in PullStatus}


#: A NamedTuple's own constructor costs twice as much.
_new = tuple.__new__


def is_unconfirmed(response: RemotingCommand) -> bool:
    """Whether the broker has stored the message of a send, and its in-sync set has not confirmed it."""
    return response.code != ResponseCode.SUCCESS and response.ext_fields.get(UNCONFIRMED_FIELD) == "true"


def unconfirmed(msg_id: str, broker_name: str, status: SendStatus) -> str:
    """The message of an error about an unconfirmed send."""
    what = f"message {msg_id}" if msg_id else "a message"
    return (
        f"{what} is stored on the master of {broker_name}, but its in-sync replicas have not confirmed it "
        f"({status.name}): a new master may not have it. Send it again with the same keys, or use "
        "retry_when_not_stored_safely=True; 'gantry doctor' names the replica that lags behind"
    )


def _send_result(response: RemotingCommand, status: SendStatus, msg_id: str, queue: MessageQueue) -> SendResult:
    """The result in a response of any shape. Raises HeaderError."""
    answer = response.read_header(SendMessageResponseHeader)
    if answer.queue_id != queue.queue_id:
        queue = queue._replace(queue_id=answer.queue_id)
    return SendResult(
        status,
        msg_id,
        queue,
        answer.queue_offset,
        answer.msg_id,
        answer.transaction_id,
        answer.recall_handle,
        response.ext_fields.get(MSG_REGION, ""),
        response.ext_fields.get(TRACE_SWITCH) != "false",
    )


class BrokerApi:
    """Typed requests over a RemotingClient; an `address` is host:port. One per client process.

    `broker_name` is whose the queue is that is asked about: where a proxy is at the address it has to be told.
    """

    def __init__(self, remoting: RemotingClient) -> None:
        self.remoting = remoting

    # -- NameServer ---------------------------------------------------------------------------------------------

    async def route(self, name_server: str, topic: str, timeout_ms: int = TIMEOUT_MS) -> TopicRouteData:
        """Where `topic` is. Raises NoRouteInfo when the NameServer doesn't know it."""
        route = (await self.route_answer(name_server, topic, timeout_ms)).route
        if route is None:
            raise NoRouteInfo(topic, [name_server])
        return route

    async def route_answer(self, name_server: str, topic: str, timeout_ms: int = TIMEOUT_MS) -> RouteAnswer:
        """Requests the route of `topic` from one NameServer.

        Raises RouteNotReady if the NameServer waits for brokers after its start.
        """
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        response = await self.remoting.invoke(name_server, request, timeout_ms)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return RouteAnswer(None, awaited_brokers(response))
        if response.code != ResponseCode.SUCCESS:
            error = broker_error(response, name_server)
            if error.reason is RefusalReason.NAME_SERVER_NOT_READY:
                raise RouteNotReady(topic, [name_server])
            raise error
        route = decode_json(response.body, TopicRouteData)
        return RouteAnswer(route, awaited_brokers(response))

    async def cluster_info(self, name_server: str, timeout_ms: int = TIMEOUT_MS) -> ClusterInfo:
        """All brokers that have registered, and the clusters that they make."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_json((await self.remoting.call(name_server, request, timeout_ms)).body, ClusterInfo)

    # -- messages -----------------------------------------------------------------------------------------------

    async def send(
        self,
        address: str,
        command: RemotingCommand,
        queue: MessageQueue,
        *,
        msg_id: str = "",
        timeout_ms: int = TIMEOUT_MS,
    ) -> SendResult:
        """Stores what `send_command` made for `queue`. `msg_id` is what the result repeats.

        Raises SendOutcomeUnknown when it may be stored or is unconfirmed, a RemotingError or BrokerError when it is not
        stored.
        """
        try:
            response = await self.remoting.invoke(address, command, timeout_ms)
            status = _SEND_STATUS.get(response.code)
            if status is None:
                raise broker_error(response, address)
            plain = decode_send_response(response, queue.queue_id)
            if plain is not None:
                offset_msg_id, queue_offset, transaction_id, region_id, trace_on = plain
                return _new(
                    SendResult,
                    (status, msg_id, queue, queue_offset, offset_msg_id, transaction_id, None, region_id, trace_on),
                )
            result = _send_result(response, status, msg_id, queue)
        except (ConnectionLost, RequestTimeout, ProtocolError) as e:
            # A request gets its number when it is written.
            if not command.opaque:
                raise
            what = f"message {msg_id}" if msg_id else "a message"
            raise SendOutcomeUnknown(f"{what} may be stored on {queue.broker_name}: {e}", address) from e
        if is_unconfirmed(response):
            raise SendOutcomeUnknown(unconfirmed(msg_id, queue.broker_name, status), address, result)
        return result

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        """Sends what `send_command` made and doesn't learn what becomes of it."""
        await self.remoting.invoke_oneway(address, command)

    async def end_transaction(
        self, address: str, header: EndTransactionRequestHeader, remark: str | None = None
    ) -> None:
        """Tells a broker what becomes of a half message; one-way, the broker asks when it doesn't learn."""
        request = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
        request.remark = remark
        await self.remoting.invoke_oneway(address, request)

    async def recall(self, address: str, header: RecallMessageRequestHeader, timeout_ms: int = TIMEOUT_MS) -> str:
        """Takes back a timer message that is not delivered yet; its unique key."""
        request = RemotingCommand.request(RequestCode.RECALL_MESSAGE, header)
        response = await self.remoting.call(address, request, timeout_ms)
        return response.read_header(RecallMessageResponseHeader).msg_id

    async def pull(self, address: str, header: PullMessageRequestHeader, timeout_ms: int) -> PullResult:
        """Records from `header.queue_offset` on; with PULL_SUSPEND the broker waits for some to come."""
        code = RequestCode.LITE_PULL_MESSAGE if header.sys_flag & PULL_LITE else RequestCode.PULL_MESSAGE
        response = await self.remoting.invoke(address, RemotingCommand.request(code, header), timeout_ms)
        status = _PULL_STATUS.get(response.code)
        if status is None:
            raise broker_error(response, address)
        answer = response.read_header(PullMessageResponseHeader)
        return PullResult(
            status,
            answer.next_begin_offset,
            answer.min_offset,
            answer.max_offset,
            answer.suggest_which_broker_id,
            response.body,
            status is PullStatus.NO_MATCHED_MESSAGE and refusal_reason(response) is RefusalReason.MESSAGES_REMOVED,
            answer.gantry_topic_begin or 0,
        )

    async def pull_at_once(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        group: str,
        *,
        max_bytes: int | None = None,
        filter_expression: tuple[str, str] = (SUBSCRIBE_ALL, EXPRESSION_TAG),
        timeout_ms: int = TIMEOUT_MS,
    ) -> PullResult:
        """What `queue` has from `offset` on, for a `group` that isn't subscribed: the filter comes with the request."""
        subscription, expression_type = filter_expression
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            max_msg_bytes=max_bytes,
            bulk_msg_nums=max_messages,
            bulk_msg_bytes=max_bytes,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=subscription,
            expression_type=expression_type,
            bname=queue.broker_name,
        )
        return await self.pull(address, header, timeout_ms)

    async def send_back(
        self, address: str, header: ConsumerSendMsgBackRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """Has a message that a group failed on delivered again later, or put into its dead letter queue."""
        await self.remoting.call(
            address, RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header), timeout_ms
        )

    # -- a group's offsets --------------------------------------------------------------------------------------

    async def query_offset(
        self,
        address: str,
        group: str,
        topic: str,
        queue_id: int,
        timeout_ms: int = TIMEOUT_MS,
        *,
        broker_name: str | None = None,
        only_committed: bool = False,
    ) -> int | None:
        """The queue offset where `group` goes on; None if it has never committed one, or a negative one.

        Unless `only_committed` a broker answers 0 while the queue's first message is still there and in memory.
        """
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            set_zero_if_not_found=False if only_committed else None,
            bname=broker_name,
        )
        request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        response = await self.remoting.invoke(address, request, timeout_ms)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = _checked(response, address).read_header(OffsetResponseHeader).offset
        return offset if offset >= 0 else None

    async def update_offset(
        self,
        address: str,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        broker_name: str | None = None,
        oneway: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Commits where `group` goes on: the first offset that it has not consumed."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset, bname=broker_name
        )
        request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        if oneway:
            await self.remoting.invoke_oneway(address, request)
        else:
            await self.remoting.call(address, request, timeout_ms)

    # -- a queue's bounds ---------------------------------------------------------------------------------------

    async def max_offset(
        self, address: str, topic: str, queue_id: int, timeout_ms: int = TIMEOUT_MS, *, broker_name: str | None = None
    ) -> int:
        """The queue offset that the next message will get."""
        header = QueueRequestHeader(topic=topic, queue_id=queue_id, bname=broker_name)
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, header, timeout_ms)

    async def min_offset(
        self, address: str, topic: str, queue_id: int, timeout_ms: int = TIMEOUT_MS, *, broker_name: str | None = None
    ) -> int:
        """The oldest queue offset that can still be read."""
        header = QueueRequestHeader(topic=topic, queue_id=queue_id, bname=broker_name)
        return await self._offset(address, RequestCode.GET_MIN_OFFSET, header, timeout_ms)

    async def search_offset(
        self,
        address: str,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        timeout_ms: int = TIMEOUT_MS,
        *,
        broker_name: str | None = None,
    ) -> int:
        """The first queue offset stored at or after `timestamp_ms`, as far as the store knows."""
        header = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=timestamp_ms, bname=broker_name)
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_ms)

    async def earliest_store_time(self, address: str, topic: str, queue_id: int, timeout_ms: int = TIMEOUT_MS) -> int:
        """When the queue's oldest message was stored, in ms; -1 when the queue is empty."""
        header = QueueRequestHeader(topic=topic, queue_id=queue_id)
        request = RemotingCommand.request(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        response = await self.remoting.call(address, request, timeout_ms)
        return response.read_header(StoreTimeResponseHeader).timestamp

    async def _offset(
        self, address: str, code: RequestCode, header: QueueRequestHeader | SearchOffsetRequestHeader, timeout_ms: int
    ) -> int:
        response = await self.remoting.call(address, RemotingCommand.request(code, header), timeout_ms)
        return response.read_header(OffsetResponseHeader).offset

    # -- locks of queues that are consumed in order ---------------------------------------------------------------

    async def lock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue], timeout_ms: int = 1000
    ) -> set[MessageQueue]:
        """Takes or renews a client's locks on a broker's queues; those that it has now."""
        body = encode_json(QueueLockRequest(group, client_id, [QueueObject.of(queue) for queue in queues]))
        response = await self.remoting.call(
            address, RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body), timeout_ms
        )
        return {locked.queue for locked in decode_json(response.body, QueueLockAnswer).lock_ok_mq_set}

    async def unlock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue], timeout_ms: int = 1000
    ) -> None:
        """Gives a client's locks on a broker's queues back."""
        body = encode_json(QueueLockRequest(group, client_id, [QueueObject.of(queue) for queue in queues]))
        await self.remoting.call(address, RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=body), timeout_ms)

    # -- clients and groups -------------------------------------------------------------------------------------

    async def heartbeat(self, address: str, data: HeartbeatData, timeout_ms: int = TIMEOUT_MS) -> None:
        """Tells a broker which groups this client has; it forgets a client that is silent for 120 s."""
        await self.remoting.call(
            address, RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data)), timeout_ms
        )

    async def unregister(
        self,
        address: str,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Takes a group of this client off a broker, which tells the group's other consumers."""
        header = UnregisterClientRequestHeader(
            client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self.remoting.call(address, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header), timeout_ms)

    async def consumer_ids(self, address: str, group: str, timeout_ms: int = TIMEOUT_MS) -> list[str]:
        """The client ids of a group's consumers. A broker that knows none answers SYSTEM_ERROR."""
        request = RemotingCommand.request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRequestHeader(consumer_group=group)
        )
        response = await self.remoting.call(address, request, timeout_ms)
        return decode_json(response.body, ConsumerList).consumer_id_list

    # -- topics -------------------------------------------------------------------------------------------------

    async def create_topic(self, address: str, config: TopicConfig, timeout_ms: int = TIMEOUT_MS) -> None:
        """Makes or changes a topic on one broker. An attribute's name has a leading + (set) or - (remove)."""
        header = CreateTopicRequestHeader(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"{k}={v}" if v else k for k, v in config.attributes.items()) or None,
        )
        await self.remoting.call(
            address, RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header), timeout_ms
        )


def _checked(response: RemotingCommand, address: str) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, address)
    return response
