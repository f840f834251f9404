"""Dead-letter messages: messages that a group failed to handle too often. This module sends them again.

The topic %DLQ%group contains these messages and has a queue on each broker. The offset of the group TOOLS_CONSUMER is
the position up to which messages have been sent again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable
from datetime import datetime
from typing import NamedTuple

from gantrymq.client.admin.read_positions import AdminReadPositions
from gantrymq.client.routes import read_queues
from gantrymq.errors import IllegalMessage, NoRouteInfo, ProtocolError
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, group_problem, retry_topic
from gantrymq.times import timestamp_ms

log = logging.getLogger(__name__)

#: Producer group of messages that are sent again.
PRODUCER_GROUP = "gantry_admin"
#: Properties that RocketMQ adds after the first send, or that apply only to the first send.
PUT_ON_THE_WAY = frozenset(
    {
        names.BORN_TIMESTAMP,
        names.CLUSTER,
        names.CONSUME_START_TIMESTAMP,
        names.CORRELATION_ID,
        names.CRC32,
        names.DEDUPLICATE_ID,
        names.DELAY_TIME_LEVEL,
        names.FIRST_POP_TIME,
        names.MAX_OFFSET,
        names.MAX_RECONSUME_TIMES,
        names.MESSAGE_REPLY_TO_CLIENT,
        names.MESSAGE_TTL,
        names.MESSAGE_TYPE,
        names.MIN_OFFSET,
        names.MIRROR_ORIGIN,
        names.MSG_REGION,
        names.ORIGIN_GROUP,
        names.POP_CK,
        names.PRODUCER_GROUP,
        names.PUSH_REPLY_TIME,
        names.REAL_QUEUE_ID,
        names.REAL_TOPIC,
        names.RECONSUME_TIME,
        names.REPLY_ARRIVE_TIME,
        names.TIMER_DELAY_MS,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELIVER_MS,
        names.TIMER_DEL_UNIQKEY,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_OUT_MS,
        names.TIMER_ROLL_TIMES,
        names.TRACE_SWITCH,
        names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_ID,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
    }
)


class ResentMessages(NamedTuple):
    """The numbers of dead-letter messages that were sent again, left out by a filter, or unreadable."""

    resent: int
    left_out: int
    unreadable: int


class AdminDeadLetterMessages(AdminReadPositions):
    """Requests for the topics %DLQ%group."""

    async def resend_dead_letter_messages(
        self,
        group: str,
        *,
        topic: str | None = None,
        begin: datetime | int = 0,
        end: datetime | int | None = None,
        max_messages: int | None = None,
        again: bool = False,
        to_topic: bool = False,
        matches: Callable[[MessageExt], bool] | None = None,
        progress: Callable[[ResentMessages], None] | None = None,
    ) -> ResentMessages:
        """Sends the dead-letter messages of a group again, except those that an earlier call has processed.

        The messages go only to this group, through its retry topic, and get all retries again. A message keeps its
        body, keys, tags, properties and unique key. If the call fails or is cancelled, the last messages may be sent
        twice.

        Args:
            group: Consumer group.
            topic: Sends only messages that come from this topic.
            begin: Sends only messages that became dead letters at or after this time: a datetime, or ms since the
                epoch.
            end: Sends only messages that became dead letters at or before this time: a datetime, or ms since the epoch.
            max_messages: Largest number of messages to send.
            again: Also sends messages that an earlier call has sent or left out.
            to_topic: Sends to the original topic, where all groups receive them. Needed for groups that pop
                (`SimpleConsumer`), which do not read the retry topic.
            matches: Sends only messages for which this returns true.
            progress: Called after each message. An error that it raises ends the call.

        Returns:
            The numbers of messages. A message that is left out counts as processed.

        Raises:
            IllegalMessage: The name of the group is invalid.
            GantryError: As for `Producer.send`.
        """
        if problem := group_problem(group):
            raise IllegalMessage(problem)
        begin_ms, end_ms = timestamp_ms("begin", begin), None if end is None else timestamp_ms("end", end)
        dead = DLQ_TOPIC_PREFIX + group
        try:
            route = await self.topic_route(dead)
        except NoRouteInfo:
            return ResentMessages(0, 0, 0)
        resent = left_out = unreadable = 0
        async with self._transport.producer(self.name_servers, PRODUCER_GROUP) as producer:
            for queue in read_queues(dead, route):
                async with self._read_position(queue, again=again) as position:
                    async for letter in self.messages_of_queue(queue, position.begin, position.end):
                        if resent == max_messages:
                            break
                        if (
                            topic not in (None, letter.properties.get(names.RETRY_TOPIC))
                            or letter.store_timestamp < begin_ms
                            or (end_ms is not None and letter.store_timestamp > end_ms)
                            or (matches is not None and not matches(letter))
                        ):
                            left_out += 1
                        elif (message := _sent_again(letter, None if to_topic else group)) is None:
                            unreadable += 1
                        else:
                            await producer.send(message, timeout=self._transport.timeout_ms / 1000)
                            resent += 1
                        position.done = letter.queue_offset + 1
                        if progress is not None:
                            progress(ResentMessages(resent, left_out, unreadable))
        return ResentMessages(resent, left_out, unreadable)

    async def resend_selected_messages(
        self,
        letters: AsyncIterable[MessageExt],
        *,
        to_topic: bool = False,
        progress: Callable[[ResentMessages], None] | None = None,
    ) -> ResentMessages:
        """Sends these dead-letter messages again, like `resend_dead_letter_messages`, even if they were sent before.

        The position of `resend_dead_letter_messages` does not change. If a message is not a dead-letter message, sends
        the messages before it and raises IllegalMessage.
        """
        resent = unreadable = 0
        async with self._transport.producer(self.name_servers, PRODUCER_GROUP) as producer:
            async for letter in letters:
                if not letter.topic.startswith(DLQ_TOPIC_PREFIX):
                    raise IllegalMessage(f"the message at {letter.queue_offset} of {letter.topic} is no dead letter")
                group = letter.topic.removeprefix(DLQ_TOPIC_PREFIX)
                if (message := _sent_again(letter, None if to_topic else group)) is None:
                    unreadable += 1
                else:
                    await producer.send(message, timeout=self._transport.timeout_ms / 1000)
                    resent += 1
                if progress is not None:
                    progress(ResentMessages(resent, 0, unreadable))
        return ResentMessages(resent, 0, unreadable)


def _sent_again(letter: MessageExt, group: str | None) -> Message | None:
    """Returns a new message for the group, or for the original topic; None if the dead letter is unreadable."""
    try:
        body = letter.body
    except ProtocolError as e:
        log.warning("the dead letter at %d of %s is left: %s", letter.queue_offset, letter.topic, e)
        return None
    properties = {name: value for name, value in letter.properties.items() if name not in PUT_ON_THE_WAY}
    if group is not None:
        return Message(retry_topic(group), body, flag=letter.flag, properties=properties)
    topic = properties.pop(names.RETRY_TOPIC, None)
    properties.pop(names.ORIGIN_MESSAGE_ID, None)
    if topic is None:
        log.warning("the dead letter at %d of %s is left: it doesn't say its topic", letter.queue_offset, letter.topic)
        return None
    return Message(topic, body, flag=letter.flag, properties=properties)
