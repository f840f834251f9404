"""Dead letters: the messages that a group's consumers failed on too often, sent once more.

They lie in %DLQ%group, a queue on each broker. How far they were sent again is kept by the brokers: it is the offset of
the group TOOLS_CONSUMER there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable
from typing import NamedTuple

from gantrymq.client.admin.places import AdminPlaces
from gantrymq.client.producing.producer import Producer
from gantrymq.client.routes import read_queues
from gantrymq.errors import IllegalMessage, NoRouteInfo, ProtocolError
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, group_problem, retry_topic

log = logging.getLogger(__name__)

#: The producer group of what is sent again.
PRODUCER_GROUP = "gantry_admin"
#: What RocketMQ put to the message on its way here, and what was true of its first send alone.
PUT_ON_THE_WAY = frozenset(
    {
        names.BORN_TIMESTAMP,
        names.CLUSTER,
        names.CONSUME_START_TIMESTAMP,
        names.CORRELATION_ID,
        names.CRC32,
        names.DELAY_TIME_LEVEL,
        names.FIRST_POP_TIME,
        names.MAX_OFFSET,
        names.MAX_RECONSUME_TIMES,
        names.MESSAGE_REPLY_TO_CLIENT,
        names.MESSAGE_TTL,
        names.MESSAGE_TYPE,
        names.MIN_OFFSET,
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


class ResentDeadLetters(NamedTuple):
    """What became of a group's dead letters: how many were sent, were not asked for, and can't be read any more."""

    resent: int
    left_out: int
    unreadable: int


class AdminDeadLetters(AdminPlaces):
    """The topics %DLQ%group."""

    async def resend_dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        begin_ms: int = 0,
        end_ms: int | None = None,
        max_messages: int | None = None,
        again: bool = False,
        to_topic: bool = False,
        matches: Callable[[MessageExt], bool] | None = None,
        progress: Callable[[ResentDeadLetters], None] | None = None,
    ) -> ResentDeadLetters:
        """Sends the group's dead letters once more; those since the last time, or with `again` all that are there.

        They go to the group alone, by way of its retry topic, and are tried as often as new ones; with `to_topic` to
        the topic that they were sent to first, where all groups get them: for groups that pop (`SimpleConsumer`), which
        don't read the retry topic. `topic` takes those of one topic only, `begin_ms` and `end_ms` (ms since the epoch)
        those that died from then to then, `matches` those of which it is true. What is left out counts as looked at,
        and comes with `again` only. `progress` is told after each how far it is; an error that it raises ends it there.

        A message keeps its body, keys, tags, properties and unique key. When this fails or is cancelled, those that
        were sent last may be sent again the next time. Raises IllegalMessage for a group's name that can't be one; as
        `Producer.send` does. A group without dead letters has 0 of each.
        """
        if problem := group_problem(group):
            raise IllegalMessage(problem)
        dead = DLQ_TOPIC_PREFIX + group
        try:
            route = await self.topic_route(dead)
        except NoRouteInfo:
            return ResentDeadLetters(0, 0, 0)
        resent = left_out = unreadable = 0
        async with Producer(
            self.name_servers, PRODUCER_GROUP, ssl_context=self.ssl_context, hooks=self.hooks
        ) as producer:
            for queue in read_queues(dead, route):
                async with self._place_in(queue, again=again) as place:
                    async for letter in self.messages_of_queue(queue, place.begin, place.end):
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
                            await producer.send(message, self.timeout_ms)
                            resent += 1
                        place.done = letter.queue_offset + 1
                        if progress is not None:
                            progress(ResentDeadLetters(resent, left_out, unreadable))
        return ResentDeadLetters(resent, left_out, unreadable)

    async def resend_chosen_dead_letters(
        self,
        letters: AsyncIterable[MessageExt],
        *,
        to_topic: bool = False,
        progress: Callable[[ResentDeadLetters], None] | None = None,
    ) -> ResentDeadLetters:
        """Sends these dead letters once more, as `resend_dead_letters` does, whether they were sent before or not.

        How far the others were sent stays as it is. Raises IllegalMessage for a message that is no dead letter; those
        before it were sent.
        """
        resent = unreadable = 0
        async with Producer(
            self.name_servers, PRODUCER_GROUP, ssl_context=self.ssl_context, hooks=self.hooks
        ) as producer:
            async for letter in letters:
                if not letter.topic.startswith(DLQ_TOPIC_PREFIX):
                    raise IllegalMessage(f"the message at {letter.queue_offset} of {letter.topic} is no dead letter")
                group = letter.topic.removeprefix(DLQ_TOPIC_PREFIX)
                if (message := _sent_again(letter, None if to_topic else group)) is None:
                    unreadable += 1
                else:
                    await producer.send(message, self.timeout_ms)
                    resent += 1
                if progress is not None:
                    progress(ResentDeadLetters(resent, 0, unreadable))
        return ResentDeadLetters(resent, 0, unreadable)


def _sent_again(letter: MessageExt, group: str | None) -> Message | None:
    """The dead letter as a new message, for the group alone or for its topic; None when it can't be read."""
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
