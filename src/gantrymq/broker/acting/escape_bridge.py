"""Sends the messages that an acting master can't store to brokers of other names (`EscapeBridge`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gantrymq.broker.acting.escaped_message import EscapedMessage, escaped_message
from gantrymq.broker.acting.topic_route_info import RemoteQueue, TopicRouteInfo
from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import GantryError, RefusalReason, StoreBusy, StoreError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.record import Record
from gantrymq.protocol.refusals import refusal_reason
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import PutResult
from gantrymq.system.clock import now_ms

_TIMEOUT_MS = 3000
#: Maximum number of brokers that are tried for a message before the caller has to retry.
_MOST_BROKERS = 3
#: With one of these response codes, the other broker has stored the message.
_STORED = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
}


class EscapeBridge:
    """The escape bridge of one broker, used by its `Appender`.

    `own` has local handlers for the topics whose messages other brokers can't store.

    Callers append without awaiting: if the store raises StoreBusy, they retry later. The bridge raises StoreBusy while
    a send is in flight, so callers need no special case. A caller with many messages, such as a delay level, calls
    `begin` for the next messages, because otherwise each message costs one round trip.
    """

    def __init__(
        self,
        config: BrokerConfig,
        remoting: RemotingClient,
        own: Mapping[str, Callable[[Record], None]],
    ) -> None:
        self._group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._remoting = remoting
        self._queues = TopicRouteInfo(config, remoting)
        self._own = own
        #: Unclaimed sends by (physical offset, topic). `append_again` removes a finished one.
        self._sends: dict[tuple[int, str], asyncio.Task[PutResult]] = {}
        #: Number of messages that other brokers have stored since the start of this broker.
        self.escaped = 0

    def append_again(self, record: Record, queue: ConsumeQueue, properties: bytes, reconsume_times: int) -> PutResult:
        """Stores a message at another broker. Raises StoreBusy until the send has finished.

        Raises StoreError if no broker accepts the message at present, and IllegalMessage if the message itself is
        invalid. The physical offset in the result is meaningless.
        """
        own = self._own.get(queue.topic)
        if own is not None:
            own(record)
            return PutResult(0, 0, 0, now_ms())
        self.begin(record, queue, properties, reconsume_times)
        key = record.physical_offset, queue.topic
        send = self._sends[key]
        if not send.done():
            raise StoreBusy("a broker of another name is to store the message")
        del self._sends[key]
        return send.result()

    def begin(self, record: Record, queue: ConsumeQueue, properties: bytes, reconsume_times: int) -> None:
        """Starts sending a message unless the send is in flight already. `append_again` returns the outcome.

        Raises IllegalMessage if no broker could store the message.
        """
        key = record.physical_offset, queue.topic
        if key not in self._sends and queue.topic not in self._own:
            send = self._send(record, escaped_message(record, queue.topic, properties), reconsume_times)
            self._sends[key] = asyncio.get_running_loop().create_task(send)

    async def end(self) -> None:
        """Cancels all sends. A cancelled message may have been stored; the master then delivers it again."""
        sends = list(self._sends.values())
        self._sends.clear()
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)

    async def _send(self, record: Record, message: EscapedMessage, reconsume_times: int) -> PutResult:
        """Sends the message to up to `_MOST_BROKERS` different brokers, one after the other, until one accepts it."""
        asked: set[str] = set()
        problem: Exception | str | None = None
        while len(asked) < _MOST_BROKERS:
            try:
                queue = await self._queues.next(message.topic, asked)
            except GantryError as e:
                problem = problem or e
                break
            if queue is None:
                break
            asked.add(queue.address)
            try:
                answer = await self._ask(queue, record, message, reconsume_times)
            except GantryError as e:
                problem = e
            else:
                if answer.code in _STORED:
                    self.escaped += 1
                    told = answer.read_header(SendMessageResponseHeader)
                    return PutResult(told.queue_offset, 0, len(record.body), now_ms())
                problem = f"{queue.address} answers {answer.code}: {answer.remark}"
                if refusal_reason(answer) is RefusalReason.RATE_LIMITED:
                    # The broker accepts messages of other topics.
                    continue
            self._queues.failed(message.topic, queue)
        # The caller retries after a StoreError. By then, the master may be back.
        raise StoreError(f"no broker of another name takes a message for {message.topic!r}: {problem}")

    async def _ask(
        self, queue: RemoteQueue, record: Record, message: EscapedMessage, reconsume_times: int
    ) -> RemotingCommand:
        header = SendMessageRequestHeaderV2(
            producer_group=message.group or self._group,
            topic=message.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp=record.born_timestamp,
            flag=record.flag,
            properties=message.properties.decode(),
            reconsume_times=reconsume_times,
            batch=False,
            broker_name=queue.broker_name,
        )
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, record.body)
        return await self._remoting.invoke(queue.address, request, _TIMEOUT_MS)
