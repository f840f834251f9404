"""Taking a delayed message back before it is delivered: RECALL_MESSAGE (`RecallMessageProcessor`).

The answer to the send had a handle. With it a second message is stored that is due in the same slot of time; when that
slot is delivered, it takes the first one away.
"""

from __future__ import annotations

from gantrymq.broker.appender import Appender, born_host
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.part import Part
from gantrymq.broker.room_waits import RoomWaits
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
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


class Recall(Part):
    """Recalls on one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        topics: BrokerTopics,
        timer: Timer,
        flush_waits: FlushWaits,
        room_waits: RoomWaits,
    ) -> None:
        self._config = config
        self._appender = appender
        self._topics = topics
        self._timer = timer
        self._flush_waits = flush_waits
        self._room_waits = room_waits

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.RECALL_MESSAGE: self._room_waits.holding(self.recall)}

    def recall(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores the message that takes the other one back; the answer comes before that happens."""
        if not self._config.recall_message_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        header = request.read_header(RecallMessageRequestHeader)
        topic = header.topic
        if self._topics.get(topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        if not may_be_sent_to(topic):
            # What is taken back there is the broker's own, such as the notes about pops.
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
        self._flush_waits.check()
        store = self._appender.store
        queue, properties, code = self._timer.redirect(store.queue(topic, 0), properties, tags_code(_TAG.encode()))
        result = self._appender.append(queue, 0, 0, now_ms, born_host(connection), 0, b"0", properties, code)
        response = RemotingCommand.response(
            header=RecallMessageResponseHeader(msg_id=handle.unique_key),
            fields={names.MSG_REGION: self._config.region_id},
        )
        if self._flush_waits.is_used:
            end, waits = result.physical_offset + result.size, self._flush_waits
            waits.reply(connection, request, end, response, told=waits.told_of_copies)
            return None
        return response

    def _check(self, handle: RecallHandle, topic: str, now_ms: int) -> None:
        problem = ""
        if handle.topic != topic:
            problem = "topic not match"
        elif handle.broker_name != self._config.broker_name:
            problem = "broker service not available"
        elif not 0 < handle.timestamp_ms - now_ms < self._config.store.timer_max_delay_sec * 1000:
            problem = "timestamp invalid"
        if problem:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {problem}")
