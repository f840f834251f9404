"""ConsumeConcurrently: runs the handler on messages of all queues, several at a time.

Source: client/impl/consumer/ConsumeMessageConcurrentlyService, ProcessQueue (cleanExpiredMsg).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.log_texts import failed_attempt
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt
from gantrymq.system import clock

log = peer_log(__name__)

#: If a message cannot be sent back, the handler gets it again after this delay (submitConsumeRequestLater), s.
RETRY_LOCALLY_S = 5.0
#: Longest interval between two checks for slow handlers, s.
_LONGEST_CHECK_INTERVAL_S = 60.0
#: Shortest time that `close` waits for messages to be sent back, s.
GRACE_S = 0.5
#: Delay level of a message whose handler took too long (cleanExpiredMsg).
_TIMEOUT_DELAY_LEVEL = 3


class ConsumeConcurrently:
    """Runs the handler and sends failed messages back to the broker.

    If a handler takes longer than `timeout_s`, its message is also sent back, so that the committed offset can advance.
    Without `send_back`, for broadcasting consumers, failures are only logged. `wire_topic` returns the topic of a
    message with its namespace.
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
        #: Messages that are being sent back. They must not be sent back a second time.
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
        """Does nothing. The next owner of a revoked queue also receives the messages that are in handlers."""

    async def close(self, timeout_s: float) -> None:
        """Waits for handlers and for messages that are being sent back, for at most `timeout_s` seconds."""
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
            log.warning("handler failed: %s; not redelivered", failed_attempt(message), exc_info=error)
            process_queue.remove(message)
        elif process_queue.dropped:
            log.warning(
                "handler failed: %s; the next consumer of its queue receives it",
                failed_attempt(message),
                exc_info=error,
            )
        else:
            following = self._send_back_to.following(message)
            log.warning("handler failed: %s; %s", failed_attempt(message), following, exc_info=error)
            self._give_back(process_queue, message)

    def _give_back(self, process_queue: ProcessQueue, message: MessageExt, delay_level: int = 0) -> None:
        # The queue is revoked, so its next owner receives the message in any case.
        if not process_queue.dropped and message in process_queue and message not in self._under_way:
            self._under_way.add(message)
            self._sending_back.start(self._send_back(process_queue, message, delay_level))

    async def _send_back(self, process_queue: ProcessQueue, message: MessageExt, delay_level: int) -> None:
        assert self._send_back_to is not None
        try:
            await self._send_back_to.send_back(message, self._wire_topic(message), delay_level)
        except Exception as e:
            # Any error, because hooks are user code. The message must not block its queue for ever.
            log.warning("can't send %s back, trying it again here: %s: %s", message.msg_id, type(e).__name__, e)
            self._later.start(self._again(process_queue, message))
        else:
            process_queue.remove(message)
        finally:
            self._under_way.discard(message)

    async def _again(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        """Passes the message to the handler again. If the first run has not ended yet, only its result counts."""
        await asyncio.sleep(RETRY_LOCALLY_S)
        if message in process_queue and not any(running.message is message for running in self.pool.running()):
            message.reconsume_times += 1
            self.pool.submit(process_queue, [message])

    def _give_up_slow(self) -> None:
        """Sends back messages whose handlers are too slow. The handlers continue, but their results are ignored."""
        deadline = clock.time() - self._timeout_s
        for source, message, started in self.pool.running():
            process_queue = cast(ProcessQueue, source)
            if started <= deadline and not process_queue.dropped and message in process_queue:
                assert self._send_back_to is not None  # If there is no timeout, slow handlers are not checked.
                following = self._send_back_to.following(message, _TIMEOUT_DELAY_LEVEL)
                log.warning("handler takes more than %g s: %s; %s", self._timeout_s, failed_attempt(message), following)
                self._give_back(process_queue, message, _TIMEOUT_DELAY_LEVEL)
