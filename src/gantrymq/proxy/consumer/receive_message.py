"""ReceiveMessage: pops messages with long polling and streams them to the client.

Sources: proxy/grpc/v2/consumer/ReceiveMessageActivity, ReceiveMessageResponseStreamWriter, PopMessageResultFilterImpl.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

from gantrymq.background.shared_task import result_of
from gantrymq.background.tasks import Tasks
from gantrymq.errors import BrokerError, GantryError
from gantrymq.limits import PROXY_ABANDONED_POPS
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.pop import MAX_MESSAGES
from gantrymq.protocol.bodies.topic_config import PERM_READ
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader
from gantrymq.protocol.headers.pop import INIT_FROM_MAX, PopMessageRequestHeader
from gantrymq.protocol.lite_topic import LITE_BIND_TOPIC
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import POP_CK
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.call import CLIENT_VERSION, Call, Handlers, ServerStream
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.consumer.handle_signature import HandleSignatures
from gantrymq.proxy.consumer.in_flight_messages import InFlightMessage, MessageKey
from gantrymq.proxy.consumer.pop_requests import PopRequests
from gantrymq.proxy.consumer.receipt_handle_manager import ReceiptHandleManager
from gantrymq.proxy.messages import timestamp, to_protobuf
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.statuses import ProxyError, status
from gantrymq.proxy.subscriptions import subscription_of
from gantrymq.proxy.times import duration_ms
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.proxy.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from gantrymq.proxy.validation import check_invisible_time, check_topic_and_group
from gantrymq.system import clock

log = peer_log(__name__)

_ANY_QUEUE = -1
#: Estimated memory of a message without its body, bytes.
KEPT_BESIDE_BODY = 2048
#: Invisible duration of a message that did not reach its client, ms.
_NOT_DELIVERED_MS = 1000
#: Timeout of the broker's response after the end of the polling time, ms.
_GRACE_MS = 3000
#: First client version that supports the code ILLEGAL_POLLING_TIME.
_KNOWS_POLLING_TIME = (5, 0, 3)
#: Request timeout of a client whose settings have none, ms: the default of Java's requestTimeout.
_REQUEST_TIMEOUT_MS = 3000


class ReceiveMessageActivity:
    """Serves ReceiveMessage for all clients."""

    def __init__(
        self,
        config: ProxyConfig,
        brokers: Brokers,
        metadata: Metadata,
        clients: Clients,
        requests: PopRequests,
        receipt_handles: ReceiptHandleManager,
        signatures: HandleSignatures,
    ) -> None:
        self._config = config
        self._signatures = signatures
        self._brokers = brokers
        self._metadata = metadata
        self._clients = clients
        self._requests = requests
        self._receipt_handles = receipt_handles
        #: Round-robin counter over the brokers, for requests that name no broker.
        self._turn = itertools.count()
        #: Pending pops whose clients have disconnected, oldest first.
        self._abandoned: dict[asyncio.Future[list[MessageExt]], None] = {}
        self._after = Tasks("settling messages that no client got")

    @property
    def handlers(self) -> Handlers:
        return {"ReceiveMessage": self.receive_message}

    async def stop(self) -> None:
        await self._after.stop()

    async def receive_message(self, call: ServerStream, request: ReceiveMessageRequest) -> None:
        """Pops messages and streams them to the client. Raises ProxyError, BrokerError or a RemotingError.

        With auto-renewal, the proxy keeps the messages invisible until the client settles them.
        """
        poll_ms = self._poll_ms(call, request)
        topic, group = request.message_queue.topic.name, request.group.name
        check_topic_and_group(topic, group)
        renews = self._config.enable_proxy_auto_renew and request.auto_renew
        if renews:
            invisible_ms = self._config.default_invisible_time_mills
        else:
            invisible_ms = duration_ms(request.invisible_duration)
            check_invisible_time(invisible_ms, self._config, self._config.min_invisible_time_mills_for_recv)
        if request.batch_size < 1:
            raise ProxyError(Code.BAD_REQUEST, f"batch size {request.batch_size}: 1 to {MAX_MESSAGES} are possible")
        subscription = subscription_of(topic, request.filter_expression)
        config = await self._metadata.group(group)
        attempt_id = request.attempt_id if request.HasField("attempt_id") else None
        most = min(request.batch_size, MAX_MESSAGES)
        broker_name = await self._broker(topic, request.message_queue.broker.name)
        grace_ms = max(call.remaining_ms() - poll_ms, _GRACE_MS)
        client = self._clients.get(call.client_id)
        if client is not None and client.is_lite:
            lite_header = PopLiteMessageRequestHeader(
                client_id=call.client_id,
                consumer_group=group,
                topic=topic,
                max_msg_num=most,
                invisible_time=invisible_ms,
                poll_time=poll_ms,
                born_time=clock.now_ms(),
                attempt_id=attempt_id,
            )
            popped = await self._pop(self._requests.pop_lite(broker_name, lite_header, grace_ms), group, topic)
        else:
            if config is not None and LITE_BIND_TOPIC in config.attributes:
                # Its settings may not have arrived. A pop of the parent topic would return messages of all lite topics.
                raise ProxyError(
                    Code.UNRECOGNIZED_CLIENT_TYPE,
                    f"group {group} reads lite topics, and client {call.client_id} has no settings of such a consumer",
                )
            header = PopMessageRequestHeader(
                consumer_group=group,
                topic=topic,
                queue_id=_ANY_QUEUE,
                max_msg_nums=most,
                invisible_time=invisible_ms,
                poll_time=poll_ms,
                init_mode=INIT_FROM_MAX,
                born_time=clock.now_ms(),
                exp_type=subscription.expression_type,
                exp=subscription.sub_string,
                order=config is not None and config.consume_message_orderly,
                attempt_id=attempt_id,
            )
            popped = await self._pop(self._requests.pop(broker_name, header, grace_ms), group, topic)
        max_attempts = None if config is None else config.retry_max_times + 1
        call.keep(sum(len(message.body) + KEPT_BESIDE_BODY for message in popped))
        messages = [message for message in popped if self._is_wanted(message, subscription, group, max_attempts)]
        if not messages:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, "no match message" if popped else "no new message")
        if renews:
            self._start_renewals(call, messages, group, topic)
        await self._write(call, messages, group, topic)

    # -- parameters of the pop ----------------------------------------------------------------------------------

    def _poll_ms(self, call: Call, request: ReceiveMessageRequest) -> int:
        """Returns the long-polling time, ms: the client's value within the configured limits and the call's deadline.

        Raises ProxyError if the deadline leaves less than the configured minimum.
        """
        remaining_ms = call.remaining_ms()
        least = self._config.grpc_client_consumer_min_long_polling_timeout_millis
        if request.HasField("long_polling_timeout"):
            poll_ms = duration_ms(request.long_polling_timeout)
        else:
            client = self._clients.get(call.client_id)
            timeout_ms = duration_ms(client.settings.request_timeout) if client is not None else 0
            poll_ms = remaining_ms - (timeout_ms or _REQUEST_TIMEOUT_MS) // 2
        poll_ms = max(poll_ms, least)
        poll_ms = min(poll_ms, self._config.grpc_client_consumer_max_long_polling_timeout_millis)
        if poll_ms <= remaining_ms:
            return poll_ms
        if remaining_ms >= least:
            return remaining_ms
        raise ProxyError(
            Code.ILLEGAL_POLLING_TIME if _version(call) >= _KNOWS_POLLING_TIME else Code.BAD_REQUEST,
            "The deadline time remaining is not enough for polling, please check network condition",
        )

    async def _broker(self, topic: str, wanted: str) -> str:
        """Returns a broker with readable queues of the topic: the requested broker, otherwise the next in turn.

        Raises ProxyError if the topic has no readable queue.
        """
        route = await self._brokers.route(topic)
        names = [
            queues.broker_name for queues in route.queue_datas if queues.perm & PERM_READ and queues.read_queue_nums
        ]
        if not names:
            raise ProxyError(Code.FORBIDDEN, "no readable queue")
        return wanted if wanted in names else names[next(self._turn) % len(names)]

    # -- popping ------------------------------------------------------------------------------------------------

    async def _pop(self, request: Coroutine[Any, Any, list[MessageExt]], group: str, topic: str) -> list[MessageExt]:
        """Pops messages. If the client disconnects during the pop, a background task processes the result."""
        pop = asyncio.ensure_future(request)
        try:
            return await result_of(pop)
        except asyncio.CancelledError:
            # The client disconnected. If the broker still returns messages, they must be redelivered to other
            # consumers.
            self._after.start(self._nobody_waits(pop, group, topic))
            raise
        except BrokerError as e:
            if e.code == ResponseCode.POLLING_FULL:
                raise ProxyError(Code.TOO_MANY_REQUESTS, "polling full") from e
            raise

    async def _nobody_waits(self, pop: asyncio.Future[list[MessageExt]], group: str, topic: str) -> None:
        """Waits for a pop whose client disconnected, and makes its messages visible again."""
        self._abandoned[pop] = None
        if len(self._abandoned) > PROXY_ABANDONED_POPS:
            # Messages of the cancelled pop are redelivered only when their invisible duration ends.
            next(iter(self._abandoned)).cancel()
        try:
            # Keep only the handles, to free the memory of the bodies.
            handles = [_handle(message) for message in await pop]
        except GantryError:
            return
        finally:
            del self._abandoned[pop]
            del pop
        for handle in handles:
            await self._give_back(handle, group, topic)

    def _is_wanted(
        self, message: MessageExt, subscription: SubscriptionData, group: str, max_attempts: int | None
    ) -> bool:
        """Returns True if the message is for the client; otherwise settles the message.

        A message with another tag is acknowledged: the broker compares only hash codes of tags. A message that has used
        all attempts goes to the dead-letter queue.
        """
        topic = subscription.topic
        if subscription.tags_set and message.tags not in subscription.tags_set:
            self._later(message, self._requests.ack(_handle(message), group, topic))
            return False
        if max_attempts is not None and message.reconsume_times >= max_attempts:
            self._later(message, self._requests.to_dead_letter_queue(_handle(message), group, topic, message.msg_id))
            return False
        return True

    def _later(self, message: MessageExt, work: Coroutine[Any, Any, None]) -> None:
        # The task keeps only the message id, to free the memory of the body.
        self._after.start(_settled(message.msg_id, work))

    # -- delivery -----------------------------------------------------------------------------------------------

    def _start_renewals(self, call: Call, messages: list[MessageExt], group: str, topic: str) -> None:
        """Starts to renew the messages. Raises ProxyError if the client has disconnected."""
        if self._clients.get(call.client_id) is None:
            for message in messages:
                self._later(message, self._give_back(_handle(message), group, topic))
            raise ProxyError(Code.MESSAGE_NOT_FOUND, f"The client [{call.client_id}] is disconnected.")
        for message in messages:
            handle = _handle(message)
            key = MessageKey.of(message.msg_id, handle)
            self._receipt_handles.add(
                InFlightMessage(
                    call.client_id, group, topic, key, handle, message.reconsume_times, handle.receipt.pop_time
                )
            )

    async def _write(self, call: ServerStream, messages: list[MessageExt], group: str, topic: str) -> None:
        """Streams messages to the client. Messages that were not written become visible again."""
        written = 0
        try:
            await call.write(ReceiveMessageResponse(status=status(Code.OK)))
            for message in messages:
                message.properties[POP_CK] = self._signatures.signed(
                    message.properties[POP_CK], call.user, group, topic
                )
                await call.write(ReceiveMessageResponse(message=to_protobuf(message)))
                written += 1
            await call.write(ReceiveMessageResponse(delivery_timestamp=timestamp(clock.now_ms())))
        finally:
            for message in messages[written:]:
                handle = _handle(message)
                self._receipt_handles.in_flight.take(call.client_id, group, MessageKey.of(message.msg_id, handle))
                self._later(message, self._give_back(handle, group, topic))

    async def _give_back(self, handle: Handle, group: str, topic: str) -> None:
        await self._requests.change_invisible_time(handle, group, topic, _NOT_DELIVERED_MS)


async def _settled(msg_id: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except GantryError as e:
        log.warning("can't make undelivered message %s available at once, it is redelivered later: %s", msg_id, e)


def _handle(message: MessageExt) -> Handle:
    return Handle.parse(message.properties[POP_CK])


def _version(call: Call) -> tuple[int, ...]:
    """Returns the client's version as a tuple. An invalid version becomes (), which is older than any other."""
    words = call.metadata.get(CLIENT_VERSION, "").split("-")[0].split(".")
    return tuple(int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10)
