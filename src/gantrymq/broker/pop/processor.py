"""Handles POP_MESSAGE and PEEK_MESSAGE, for consumers without assigned queues.

Each request is checked. The response contains the messages that `dispatcher` finds. If there are none, a pop waits
(`long_polling`). Sources: `PopMessageProcessor`, `PeekMessageProcessor`.
"""

from __future__ import annotations

import asyncio

from gantrymq.broker.append import PreallocationWaits
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.pop.dispatcher import Batch, PopDispatcher
from gantrymq.broker.pop.long_polling import PopLongPolling, Waiter, wake_when_free
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pop.revive_log import ReviveLog
from gantrymq.broker.pull import MAX_SUSPEND_MS
from gantrymq.broker.tables import MessageFilter, compiling, is_tag_type
from gantrymq.errors import RequestRefused
from gantrymq.filter.sql import MAX_LENGTH
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.bodies.pop import MAX_MESSAGES
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import PeekMessageRequestHeader, PopMessageRequestHeader, PopMessageResponseHeader
from gantrymq.protocol.receipt_handle import ORDERLY_REVIVE_QUEUE
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.remoting.responses import error_response
from gantrymq.store.get_result import GetStatus
from gantrymq.system import clock


class PopProcessor:
    """Handles the pop and peek requests of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        queues: PopQueues,
        dispatcher: PopDispatcher,
        orderly: OrderlyPops,
        waiting: PopLongPolling,
        revive_log: ReviveLog,
        preallocation_waits: PreallocationWaits,
    ) -> None:
        self._long_requests = context.long_requests
        self._preallocation_waits = preallocation_waits
        self._revive_log = revive_log
        self._config = context.config
        self._queues = queues
        self._filters = context.filters
        self._groups = context.groups
        self._rate_limits = context.rate_limits
        self._dispatcher = dispatcher
        self._orderly = orderly
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.POP_MESSAGE: self._preallocation_waits.holding(self.pop),
            RequestCode.PEEK_MESSAGE: self.peek,
        }

    def pop(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers POP_MESSAGE, or holds it until messages arrive. Raises StoreBusy: see `ReviveLog.check_capacity`."""
        header = request.read_header(PopMessageRequestHeader)
        header.born_time = header.born_time or clock.now_ms()
        self._queues.check_poll_time(header.born_time, header.poll_time)
        self._queues.check_count(header.max_msg_nums)
        self._queues.check_invisible_time(header.invisible_time)
        self._queues.check_attempt_id(header.attempt_id)
        topic = self._queues.readable(header.topic, header.consumer_group, header.queue_id)
        self._revive_log.check_capacity()
        if is_tag_type(header.exp_type):
            return self._pop_or_hold(connection, request, header, topic)
        return self._long_requests.run(connection, request, self._pop_filtered(connection, request, header, topic))

    def _pop_filtered(
        self, connection: Connection, request: RemotingCommand, header: PopMessageRequestHeader, topic: TopicConfig
    ) -> Steps:
        """Handles a pop with a SQL92 filter. The filter is compiled in steps, because the compilation takes long."""
        yield from compiling(header.exp or "")
        return self._pop_or_hold(connection, request, header, topic)

    def _pop_or_hold(
        self, connection: Connection, request: RemotingCommand, header: PopMessageRequestHeader, topic: TopicConfig
    ) -> Reply:
        wanted = self._filter(header)
        tried_ms = clock.now_ms()
        reply = None if self._waiting.is_stopped else self._attempt(connection, request, header, topic, wanted)
        if reply is not None:
            return reply
        return self._hold(connection, request, header, topic, wanted, tried_ms)

    def peek(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles PEEK_MESSAGE: responds with the messages that the group would pop next, without popping them."""
        header = request.read_header(PeekMessageRequestHeader)
        limit = min(header.max_msg_nums, MAX_MESSAGES)
        self._queues.check_count(limit, "peek")
        topic = self._queues.readable(header.topic, header.consumer_group, header.queue_id)
        batch = self._dispatcher.peek(header, topic, limit)
        code = ResponseCode.SUCCESS if batch.count else ResponseCode.PULL_NOT_FOUND
        return _answer(request, code, batch, 0, is_orderly=False)

    def _filter(self, header: PopMessageRequestHeader) -> MessageFilter:
        expression = header.exp or SUBSCRIBE_ALL
        # Limits the memory of a waiting request.
        if len(expression) > MAX_LENGTH:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"a subscription of {len(expression)} characters: at most {MAX_LENGTH} are taken",
            )
        wanted = self._filters.of_expression(header.consumer_group, header.topic, expression, header.exp_type)
        header.exp = header.exp_type = None
        return wanted

    # -- responses and long polling -----------------------------------------------------------------------------

    def _attempt(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        topic: TopicConfig,
        wanted: MessageFilter,
    ) -> Reply:
        """Returns the response, or None if there are no messages. Raises RequestRefused above a rate limit."""
        limits = self._rate_limits.admit_delivery(self._groups.find(header.consumer_group), connection)
        if limits is None:
            batch = self._dispatcher.pop(header, topic, wanted, header.max_msg_nums)
        else:
            batch = self._dispatcher.pop(header, topic, wanted, limits.most(header.max_msg_nums, 1)[0])
            limits.take(batch.count, batch.size)
        if batch.rest > 0:
            # Other waiting requests can pop the rest.
            self._waiting.wake((header.topic, header.consumer_group, header.queue_id))
        if not batch.count:
            return None
        return _answer(request, ResponseCode.SUCCESS, batch, header.invisible_time, is_orderly=bool(header.order))

    def _hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        topic: TopicConfig,
        wanted: MessageFilter,
        tried_ms: int,
    ) -> Reply:
        # Removes the body and the fields, which can take megabytes. The response needs neither.
        request = request.without_content()
        key = (header.topic, header.consumer_group, header.queue_id)

        def attempt(expired: bool) -> bool:
            if connection.is_closed:
                return True
            tried_ms = clock.now_ms()
            # A peer that does not read its responses gets no more messages, because it can have many waiting pops.
            is_full = connection.is_full
            ends = is_full or not self._queues.is_current(topic)
            try:
                has_to_end = ends or self._waiting.is_stopped
                reply = None if has_to_end else self._attempt(connection, request, header, topic, wanted)
            except Exception as e:
                reply = error_response(e, request, connection.address)
            if reply is None and (expired or ends):
                reply = _nothing(request, header, ResponseCode.POLLING_TIMEOUT)
            if reply is None:
                self._wake_when_free(header, topic, tried_ms)
                return False
            connection.reply(request, reply)
            return True

        left_ms = min(header.born_time + header.poll_time - clock.now_ms(), header.poll_time, MAX_SUSPEND_MS)
        if header.poll_time <= 0 or left_ms <= 0 or self._waiting.is_stopped:
            return _nothing(request, header, ResponseCode.POLLING_TIMEOUT)
        queues = self._queues.watched(topic, header.consumer_group, header.queue_id)
        waiter = Waiter(connection, request, self._loop.time() + left_ms / 1000, attempt)
        if not self._waiting.hold(key, queues, waiter):
            return _nothing(request, header, ResponseCode.POLLING_FULL)
        self._wake_when_free(header, topic, tried_ms)
        return None

    def _wake_when_free(self, header: PopMessageRequestHeader, topic: TopicConfig, tried_ms: int) -> None:
        if header.order:
            key = (header.topic, header.consumer_group, header.queue_id)
            wake_when_free(self._waiting, self._orderly, key, self._queues.ids(topic, header.queue_id), tried_ms)


def _nothing(request: RemotingCommand, header: PopMessageRequestHeader, code: int) -> Reply:
    batch = Batch(0, clock.now_ms(), ORDERLY_REVIVE_QUEUE if header.order else 0)
    return _answer(request, code, batch, header.invisible_time, is_orderly=bool(header.order))


def _answer(
    request: RemotingCommand, code: int, batch: Batch, invisible_time: int, *, is_orderly: bool
) -> list[bytes | memoryview]:
    response = RemotingCommand.response(
        code,
        GetStatus.FOUND.name if batch.count else GetStatus.NO_MESSAGE_IN_QUEUE.name,
        PopMessageResponseHeader(
            pop_time=batch.pop_time,
            invisible_time=invisible_time,
            revive_qid=batch.revive_queue_id,
            rest_num=batch.rest,
            start_offset_info=";".join(batch.start_offsets),
            msg_offset_info=";".join(batch.message_offsets),
            order_count_info=";".join(batch.order_counts) if is_orderly else None,
        ),
    )
    response.opaque = request.opaque
    response.serialize_type = request.serialize_type
    return [response.encode_head(batch.size), *batch.buffers]
