"""ConsumeConcurrently: a handler gets the messages of all queues as they come, many at a time.

Source: client/impl/consumer/ConsumeMessageConcurrentlyService, ProcessQueue (cleanExpiredMsg).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt
from gantrymq.system import clock

log = peer_log(__name__)

#: After a message couldn't be sent back, the handler gets it again after so long (submitConsumeRequestLater).
RETRY_LOCALLY_S = 5.0
#: How often handlers are looked at that take too long, at least.
_LONGEST_CHECK_INTERVAL_S = 60.0
#: How long a consumer that closes waits at least for messages on their way back.
GRACE_S = 0.5
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
        #: Messages on their way back. Whoever finds one here doesn't send it a second time.
        self._under_way: set[MessageExt] = set()
        self._sending_back = Tasks("the sending back of a message")
        self._later = Tasks("another try of a message that couldn't be sent back")
        self._checker = Repeating(
            "the look at slow handlers", self._give_up_slow, min(timeout_s, _LONGEST_CHECK_INTERVAL_S)
        )
        if send_back is not None:
            self._checker.start()

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        self.pool.submit(process_queue, messages)

    async def release(self, process_queue: ProcessQueue) -> None:
        """A queue that was given up has another reader already, who gets again what is in handlers."""

    async def close(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for handlers and for what is on its way back."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self._checker.cancel()
        await self._later.stop()
        await self.pool.close(timeout_s)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + GRACE_S)):
                await self._sending_back.wait()
        except TimeoutError:
            log.warning("%d messages were not sent back: they will be delivered again", len(self._sending_back))
        await self._sending_back.stop()

    def _handled(self, process_queue: ProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        if error is None:
            process_queue.remove(message)
        elif self._send_back_to is None or message.is_damaged:
            log.warning("handler failed on %s, which is not delivered again", message.msg_id, exc_info=error)
            process_queue.remove(message)
        else:
            log.warning("handler failed on %s, which will be delivered again", message.msg_id, exc_info=error)
            self._give_back(process_queue, message)

    def _give_back(self, process_queue: ProcessQueue, message: MessageExt, delay_level: int = 0) -> None:
        # A queue that was given up has another reader by now, who gets the message anyway.
        if not process_queue.dropped and message in process_queue and message not in self._under_way:
            self._under_way.add(message)
            self._sending_back.start(self._send_back(process_queue, message, delay_level))

    async def _send_back(self, process_queue: ProcessQueue, message: MessageExt, delay_level: int) -> None:
        assert self._send_back_to is not None
        try:
            await self._send_back_to.send_back(message, self._wire_topic(message), delay_level)
        except Exception as e:
            # Whatever it is (hooks are the user's), the message must not hold up its queue for ever.
            log.warning("can't send %s back, trying it again here: %s: %s", message.msg_id, type(e).__name__, e)
            self._later.start(self._again(process_queue, message))
        else:
            process_queue.remove(message)
        finally:
            self._under_way.discard(message)

    async def _again(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        """Gives the message to the handler once more, unless that has it still: then its end decides."""
        await asyncio.sleep(RETRY_LOCALLY_S)
        if message in process_queue and not any(running.message is message for running in self.pool.running()):
            message.reconsume_times += 1
            self.pool.submit(process_queue, [message])

    def _give_up_slow(self) -> None:
        """Sends back what has been in its handler too long: the handler goes on, its outcome counts no more."""
        deadline = clock.time() - self._timeout_s
        for source, message, started in self.pool.running():
            process_queue = cast(ProcessQueue, source)
            if started <= deadline and not process_queue.dropped and message in process_queue:
                log.warning("handler takes more than %g s over %s", self._timeout_s, message.msg_id)
                self._give_back(process_queue, message, _TIMEOUT_DELAY_LEVEL)
