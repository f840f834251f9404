"""Transactions that a broker has stopped checking. Their half messages are in TRANS_CHECK_MAX_TIME_TOPIC.

A broker moves a half message to this topic after `transactionCheckMax` checks, or after `transactionTimeoutMax`. The
topic has a queue on each broker. An operator commits these transactions or rolls them back, oldest first. If the record
refers to its half message, the broker ends the transaction, unless the producer has already ended it.
"""

from __future__ import annotations

import logging

from gantrymq.client.admin.dead_letter_messages import PRODUCER_GROUP, PUT_ON_THE_WAY
from gantrymq.client.admin.read_positions import AdminReadPositions
from gantrymq.client.routes import read_queues
from gantrymq.errors import BrokerError, NoRouteInfo, ProtocolError
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import TRANSACTION_CHECK_MAX_TIME_TOPIC, TRANSACTION_HALF_TOPIC

log = logging.getLogger(__name__)


class AdminGivenUp(AdminReadPositions):
    """Requests for the topic TRANS_CHECK_MAX_TIME_TOPIC."""

    async def given_up_transactions(self, max_messages: int = 1000) -> list[MessageExt]:
        """Returns at most `max_messages` half messages of open transactions, oldest of each broker first."""
        found: list[MessageExt] = []
        for queue in await self._given_up_queues():
            async with self._read_position(queue, again=False) as position:
                async for half in self.messages_of_queue(queue, position.begin, position.end):
                    if len(found) == max_messages:
                        return found
                    found.append(half)
        return found

    async def end_given_up(self, *, commit: bool, max_messages: int | None = None) -> int:
        """Commits half messages to their topics, or drops them, oldest first. Returns their number.

        A committed message keeps its body, keys, tags, properties and unique key. Unreadable messages are logged and
        skipped. The result includes transactions that a producer has already ended; these do not change. If the call
        fails or is cancelled, the last messages may be sent twice, unless their half messages still exist.

        Args:
            commit: True commits, false drops.
            max_messages: Largest number of messages. Default: all.

        Raises:
            BrokerError: The broker rejects a request.
            GantryError: As for `Producer.send`.
        """
        ended = 0
        async with self._transport.producer(self.name_servers, PRODUCER_GROUP) as producer:
            for queue in await self._given_up_queues():
                async with self._read_position(queue, again=False) as position:
                    async for half in self.messages_of_queue(queue, position.begin, position.end):
                        if ended == max_messages:
                            break
                        message = _committed(half)
                        if message is not None and not await self._end(half, commit=commit) and commit:
                            await producer.send(message, timeout=self._transport.timeout_ms / 1000)
                        ended += 1
                        position.done = half.queue_offset + 1
        return ended

    async def _end(self, given_up: MessageExt, *, commit: bool) -> bool:
        """Ends the transaction on the broker. Returns false if the half message is deleted. Raises BrokerError."""
        offset = given_up.prepared_transaction_offset
        if not offset:
            # A Java broker does not store the position of the original half message.
            return False
        unique_key = given_up.properties.get(names.UNIQUE_KEY, "")
        try:
            half = await self.message_by_offset_id(f"{given_up.offset_msg_id[:-16]}{offset:016X}")
        except BrokerError as e:
            if e.code != ResponseCode.SYSTEM_ERROR:
                raise
            # The half message is deleted, so its producer cannot end the transaction either.
            return False
        if half.topic != TRANSACTION_HALF_TOPIC or half.properties.get(names.UNIQUE_KEY, "") != unique_key:
            return False
        header = EndTransactionRequestHeader(
            producer_group=half.properties.get(names.PRODUCER_GROUP, ""),
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=TRANSACTION_COMMIT if commit else TRANSACTION_ROLLBACK,
            from_transaction_check=True,
            msg_id=unique_key,
            transaction_id=unique_key,
            topic=half.properties.get(names.REAL_TOPIC),
        )
        address, _ = decode_offset_message_id(given_up.offset_msg_id)
        await self._call(address, RequestCode.END_TRANSACTION, header)
        return True

    async def _given_up_queues(self) -> list[MessageQueue]:
        try:
            route = await self.topic_route(TRANSACTION_CHECK_MAX_TIME_TOPIC)
        except NoRouteInfo:
            return []
        return read_queues(TRANSACTION_CHECK_MAX_TIME_TOPIC, route)


def _committed(half: MessageExt) -> Message | None:
    """Returns the message to deliver; None if it is unreadable."""
    topic = half.properties.get(names.REAL_TOPIC)
    try:
        body = half.body
    except ProtocolError as e:
        log.warning("the half message at %d of %s is left: %s", half.queue_offset, half.topic, e)
        return None
    if topic is None:
        log.warning("the half message at %d of %s is left: it doesn't say its topic", half.queue_offset, half.topic)
        return None
    properties = {name: value for name, value in half.properties.items() if name not in PUT_ON_THE_WAY}
    return Message(topic, body, flag=half.flag, properties=properties)
