"""Recall of a timer message before its delivery: RECALL_MESSAGE (`RecallMessageProcessor`).

The response to the send contains a recall handle. A recall with this handle stores a second message, the recall
message, in the same time slot. When the slot is delivered, the recall message cancels the first one.
"""

from __future__ import annotations

from gantrymq.broker.append import Appender, RequestWaits, born_host
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay.timer import Timer
from gantrymq.broker.feature import Feature
from gantrymq.errors import IllegalMessage, RequestRefused
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader, RecallMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.recall_handle import RecallHandle, decode_recall_handle
from gantrymq.protocol.topic_name import may_be_sent_to
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system import clock

_TAG = "_RECALL_TAG_"


class Recall(Feature):
    """Handles the recall requests of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        appender: Appender,
        timer: Timer,
        waits: RequestWaits,
    ) -> None:
        self._config = context.config
        self._appender = appender
        self._topics = context.topics
        self._timer = timer
        self._pending_responses = waits.flush
        self._preallocation_waits = waits.files

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.RECALL_MESSAGE: self._preallocation_waits.holding(self.recall)}

    def recall(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores a recall message. The response is sent before the recall takes effect. Raises RequestRefused."""
        if not self._config.recall_message_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        header = request.read_header(RecallMessageRequestHeader)
        topic = header.topic
        if self._topics.get(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        if not may_be_sent_to(topic):
            # Such a topic has messages of the broker itself, for example records of pops.
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"recall failed, topic[{topic}] is forbidden")
        now_ms = clock.now_ms()
        try:
            handle = decode_recall_handle(header.recall_handle)
            self._check(handle, topic, now_ms)
            properties = encode_properties(
                {
                    names.TAGS: _TAG,
                    names.TIMER_DEL_UNIQKEY: handle.unique_key,
                    names.UNIQUE_KEY: handle.unique_key,
                    names.TIMER_DELIVER_MS: str(handle.timestamp_ms),
                    names.BORN_TIMESTAMP: str(now_ms),
                    names.PRODUCER_GROUP: header.producer_group or "",
                }
            )
        except IllegalMessage as e:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(e)) from e
        self._pending_responses.check()
        store = self._appender.store
        queue, properties, code = self._timer.redirect(store.queue(topic, 0), properties, tags_code(_TAG.encode()))
        result = self._appender.append(queue, 0, 0, now_ms, born_host(connection), 0, b"0", properties, code)
        response = RemotingCommand.response(
            header=RecallMessageResponseHeader(msg_id=handle.unique_key),
            fields={names.MSG_REGION: self._config.region_id},
        )
        if self._pending_responses.is_used:
            end, waits = result.physical_offset + result.size, self._pending_responses
            waits.reply(connection, request, end, response, late_codes=waits.response_codes_of_copies)
            return None
        return response

    def _check(self, handle: RecallHandle, topic: str, now_ms: int) -> None:
        """Raises RequestRefused if the handle is for another topic or broker, or for an invalid time."""
        problem = ""
        if handle.topic != topic:
            problem = "topic not match"
        elif handle.broker_name != self._config.broker_name:
            problem = "broker service not available"
        elif not 0 < handle.timestamp_ms - now_ms < self._config.store.timer_max_delay_sec * 1000:
            problem = "timestamp invalid"
        if problem:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {problem}")
