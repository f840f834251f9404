"""Escaping: what a broker that takes no messages itself is to store goes to brokers of other names (`EscapeBridge`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gantrymq.broker.acting.outgoing import Outgoing, outgoing
from gantrymq.broker.acting.queues_elsewhere import QueueElsewhere, QueuesElsewhere
from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import GantryError, StoreBusy, StoreError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import PutResult
from gantrymq.system.clock import now_ms

_TIMEOUT_MS = 3000
#: So many brokers are asked to take a message before it has to wait for its next turn.
_MOST_BROKERS = 3
#: With these answers it is stored.
_STORED = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
}


class Escaping:
    """Of one broker; `append_again` stands in for its Appender's.

    Those who bring messages to their queues do so in one step each, and come again while a file of the store is being
    made. So they do here while a message is under way: they needn't know where it goes. Who has many, as a delay level
    may, has those that come next `begin` meanwhile, else each would wait for its own round trip.
    """

    def __init__(self, config: BrokerConfig, remoting: RemotingClient) -> None:
        self._group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._remoting = remoting
        self._queues = QueuesElsewhere(config, remoting)
        #: Topics of this broker alone, and who deals with what is due there, in the same way.
        self.own: dict[str, Callable[[Record], None]] = {}
        #: (place in the log, topic) -> what became of it; until somebody asks.
        self._sends: dict[tuple[int, str], asyncio.Task[PutResult]] = {}
        #: Messages that others have taken, since the start.
        self.escaped = 0

    def append_again(self, record: Record, queue: ConsumeQueue, properties: bytes, reconsume_times: int) -> PutResult:
        """Has another broker store it. Raises StoreBusy until that is done, then StoreError when it isn't possible now.

        Raises IllegalMessage for one that no broker could take. The physical offset in the result says nothing.
        """
        own = self.own.get(queue.topic)
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
        """Has it on its way, if it isn't; `append_again` tells what became of it. Raises IllegalMessage."""
        key = record.physical_offset, queue.topic
        if key not in self._sends and queue.topic not in self.own:
            send = self._send(record, outgoing(record, queue.topic, properties), reconsume_times)
            self._sends[key] = asyncio.get_running_loop().create_task(send)

    async def end(self) -> None:
        """Nobody asks any more. What is under way may have been stored, and be stored once more by the master."""
        sends = list(self._sends.values())
        self._sends.clear()
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)

    async def _send(self, record: Record, message: Outgoing, reconsume_times: int) -> PutResult:
        """Has one broker after the other asked, each once."""
        asked: set[str] = set()
        problem: Exception | str | None = None
        while len(asked) < _MOST_BROKERS:
            try:
                queue = await self._queues.next(message.topic)
            except GantryError as e:
                problem = problem or e
                break
            if queue.address in asked:
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
            self._queues.failed(message.topic, queue)
        # Whatever the reason: the master may take it.
        raise StoreError(f"no broker of another name takes a message for {message.topic!r}: {problem}")

    async def _ask(
        self, queue: QueueElsewhere, record: Record, message: Outgoing, reconsume_times: int
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
