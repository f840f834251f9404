"""ConsumeConcurrently: a handler gets the messages of all queues as they come, many at a time.

Source: client/impl/consumer/ConsumeMessageConcurrentlyService, ProcessQueue (cleanExpiredMsg).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import cast

from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.client.periodic import repeat
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt

log = logging.getLogger(__name__)

#: After a message couldn't be sent back, the handler gets it again after so long (submitConsumeRequestLater).
RETRY_LOCALLY_S = 5.0
#: How often handlers are looked at that take too long, at least.
_LONGEST_CHECK_INTERVAL_S = 60.0
#: The delay level of a message whose handler took too long (cleanExpiredMsg).
_TIMEOUT_DELAY_LEVEL = 3


class ConsumeConcurrently:
    """Runs the handler, and sends back what it failed on.

    Without `send_back`, for a consumer that reads everything, a failure is logged and that's all. A message whose
    handler takes longer than `timeout_s` is sent back, too, so that it doesn't hold up the offset for ever.
    `wire_topic` gives the topic that brokers know a message by.
    """

    def __init__(
        self,
        handler: MessageHandler,
        concurrency: int,
        send_back: SendBack | None,
        timeout_s: float,
        wire_topic: Callable[[MessageExt], str],
    ) -> None:
        self.pool: HandlerPool = handler_pool(handler, concurrency, self._handled)
        self._send_back_to = send_back
        self._timeout_s = timeout_s
        self._wire_topic = wire_topic
        self._sending_back: set[asyncio.Task[None]] = set()
        self._closed = False
        check_interval_s = min(timeout_s, _LONGEST_CHECK_INTERVAL_S)
        self._checker = asyncio.create_task(repeat(check_interval_s, self._give_up_slow)) if send_back else None

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        self.pool.submit(process_queue, messages)

    async def release(self, process_queue: ProcessQueue) -> None:
        """A queue that was given up has another reader already, who gets again what is in handlers."""

    async def close(self, timeout_s: float) -> None:
        """Waits for handlers at most `timeout_s`, and for what is on its way back."""
        if self._checker is not None:
            self._checker.cancel()
            await asyncio.gather(self._checker, return_exceptions=True)
        await self.pool.close(timeout_s)
        self._closed = True
        if self._sending_back:
            await asyncio.wait(self._sending_back)

    def _handled(self, process_queue: ProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        if error is None:
            process_queue.remove(message)
        elif self._send_back_to is None:
            log.warning("handler failed on %s, which is not delivered again", message.msg_id, exc_info=error)
            process_queue.remove(message)
        else:
            log.warning("handler failed on %s, which will be delivered again", message.msg_id, exc_info=error)
            # A queue that was given up has another reader by now, who gets the message anyway.
            if not process_queue.dropped and message in process_queue:
                self._begin_sending_back(process_queue, message, self._send_back_to)

    def _begin_sending_back(
        self, process_queue: ProcessQueue, message: MessageExt, send_back: SendBack, delay_level: int = 0
    ) -> None:
        task = asyncio.create_task(self._send_back(process_queue, message, send_back, delay_level))
        self._sending_back.add(task)
        task.add_done_callback(self._sending_back.discard)

    async def _send_back(
        self, process_queue: ProcessQueue, message: MessageExt, send_back: SendBack, delay_level: int
    ) -> None:
        try:
            await send_back.send_back(message, self._wire_topic(message), delay_level)
        except GantryError as e:
            log.warning("can't send %s back, trying it again here: %s", message.msg_id, e)
            message.reconsume_times += 1
            if not self._closed:
                asyncio.get_running_loop().call_later(RETRY_LOCALLY_S, self.pool.submit, process_queue, [message])
        else:
            process_queue.remove(message)

    async def _give_up_slow(self) -> None:
        """Sends back what has been in its handler too long: the handler goes on, its outcome counts no more."""
        assert self._send_back_to is not None
        deadline = time.time() - self._timeout_s
        for source, message, started in self.pool.running():
            process_queue = cast(ProcessQueue, source)
            if started > deadline or process_queue.dropped or message not in process_queue:
                continue
            log.warning("handler takes more than %g s over %s", self._timeout_s, message.msg_id)
            try:
                await self._send_back_to.send_back(message, self._wire_topic(message), _TIMEOUT_DELAY_LEVEL)
            except GantryError as e:
                log.warning("can't send %s back: %s", message.msg_id, e)
            else:
                process_queue.remove(message)
