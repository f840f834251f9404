"""Handles NOTIFICATION and POLLING_INFO, which proxies send on behalf of their clients.

NOTIFICATION waits until a message can be popped. POLLING_INFO returns the number of waiting pops. Sources:
`NotificationProcessor`, `PollingInfoProcessor`.
"""

from __future__ import annotations

import asyncio

from gantrymq.broker.pop.long_polling import PopLongPolling, Waiter, wake_when_free
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pull import MAX_SUSPEND_MS
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system import clock


class PopNotifications:
    """Handles both requests. `waiting` holds the pending notifications, `pops` the pops that POLLING_INFO counts."""

    def __init__(self, queues: PopQueues, orderly: OrderlyPops, waiting: PopLongPolling, pops: PopLongPolling) -> None:
        self._queues = queues
        self._orderly = orderly
        self._waiting = waiting
        self._pops = pops
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.NOTIFICATION: self.notification, RequestCode.POLLING_INFO: self.polling_info}

    def notification(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles NOTIFICATION: responds when a message can be popped. The filter of the request is ignored."""
        header = request.read_header(NotificationRequestHeader)
        self._queues.check_attempt_id(header.attempt_id)
        # Limits the memory of a waiting request.
        header.exp = header.exp_type = None
        request = request.without_content()
        key = (header.topic, header.consumer_group, header.queue_id)
        topic = self._queues.readable(header.topic, header.consumer_group, header.queue_id)
        now_ms = clock.now_ms()
        if self._has_message(header, topic):
            return _answer(has_message=True)

        def attempt(expired: bool) -> bool:
            tried_ms = clock.now_ms()
            is_current = self._queues.is_current(topic)
            has_message = is_current and not connection.is_closed and self._has_message(header, topic)
            is_over = has_message or expired or not is_current
            if is_over:
                connection.reply(request, _answer(has_message=has_message))
            else:
                self._wake_when_free(header, topic, tried_ms)
            return is_over or connection.is_closed

        left_ms = min((header.born_time or now_ms) + header.poll_time - now_ms, header.poll_time, MAX_SUSPEND_MS)
        if left_ms <= 0 or self._waiting.is_stopped:
            return _answer(has_message=False)
        queues = self._queues.watched(topic, header.consumer_group, header.queue_id)
        if self._waiting.hold(key, queues, Waiter(connection, request, self._loop.time() + left_ms / 1000, attempt)):
            self._wake_when_free(header, topic, now_ms)
            return None
        return _answer(has_message=False, polling_full=True)

    def _wake_when_free(self, header: NotificationRequestHeader, topic: TopicConfig, tried_ms: int) -> None:
        if header.order:
            key = (header.topic, header.consumer_group, header.queue_id)
            wake_when_free(self._waiting, self._orderly, key, self._queues.ids(topic, header.queue_id), tried_ms)

    def _has_message(self, header: NotificationRequestHeader, topic: TopicConfig) -> bool:
        group = header.consumer_group
        queues = self._queues.of_topic(topic, header.queue_id)
        if header.order:
            now_ms = clock.now_ms()
            queues = [
                queue
                for queue in queues
                if not self._orderly.is_blocked(queue.topic, group, queue.queue_id, header.attempt_id, 0, now_ms)
            ]
        for retry_topic in self._queues.retry_topics(header.topic, group):
            queues += self._queues.of_retry_topic(retry_topic)
        for queue in queues:
            position = self._queues.position(queue, group)
            if queue.max_offset > max(queue.min_offset, position or 0):
                return True
        return False

    def polling_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles POLLING_INFO: returns the number of pops that wait for the same topic, group and queue."""
        header = request.read_header(PollingInfoRequestHeader)
        self._queues.readable(header.topic, header.consumer_group, header.queue_id)
        count = self._pops.count((header.topic, header.consumer_group, header.queue_id))
        return RemotingCommand.response(header=PollingInfoResponseHeader(polling_num=count))


def _answer(*, has_message: bool, polling_full: bool = False) -> RemotingCommand:
    return RemotingCommand.response(header=NotificationResponseHeader(has_msg=has_message, polling_full=polling_full))
