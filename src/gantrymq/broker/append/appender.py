"""Appender: appends messages to the broker's store and notifies the pulls that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gantrymq.broker.append.put_times import PutTimes
from gantrymq.broker.append.received_messages import ReceivedMessages
from gantrymq.broker.pull import LongPolling
from gantrymq.errors import RefusalReason, RequestRefused, StoreError, StoreFull
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH
from gantrymq.protocol.record import BLANK_SIZE, Record, encode_host
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import Connection
from gantrymq.store import record_crc
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore, PutResult
from gantrymq.store.record_batch import RecordBatch
from gantrymq.system.clock import monotonic

#: Bytes of a commit log file that a body can't use: the fixed part of a record, two names, the properties, and the
#: blank at the end of the file.
_BESIDE_BODY = 34 * 1024

#: Pause before background work retries an append while a file is being preallocated, in seconds.
PREALLOCATION_RETRY_S = 0.002


def born_host(connection: Connection) -> bytes:
    """Returns the peer's address, encoded as in a record. The connection's attributes cache it."""
    host: bytes | None = connection.attributes.get("born_host")
    if host is None:
        host = connection.attributes["born_host"] = encode_host(*parse_address(connection.address))
    return host


def is_passing(error: BaseException) -> bool:
    """Returns whether a retry of the append may succeed. If not, the message itself is invalid."""
    if isinstance(error, RequestRefused):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, StoreError | OSError)


class EscapeRoute(Protocol):
    """Stores the messages of an acting master on other brokers; see `EscapeBridge`."""

    def append_again(self, record: Record, queue: ConsumeQueue, properties: bytes, reconsume_times: int) -> PutResult:
        """Stores a message on another broker. Raises StoreBusy until that broker has stored it."""

    def begin(self, record: Record, queue: ConsumeQueue, properties: bytes, reconsume_times: int) -> None:
        """Starts to send a message before `append_again` is called for it."""

    async def end(self) -> None:
        """Cancels the pending messages."""


class Appender:
    """Appends messages to the store of one broker. `store_host` is the broker's address, encoded as in a record."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        polling: LongPolling,
        *,
        is_of_deleted: Callable[[str, int], bool] = lambda topic, log_offset: False,
        received: ReceivedMessages | None = None,
    ) -> None:
        """Creates the appender.

        `is_of_deleted(topic, physical offset)` returns whether a topic was deleted after the record at this offset.
        `received` counts messages for the metrics. The callers of `append` add to it.
        """
        self.received = received
        self.is_of_deleted = is_of_deleted
        self.store = store
        self.store_host = store_host
        self._light = store.light
        self._polling = polling
        self.put_times = PutTimes(monotonic())
        #: The reason why the broker rejects all messages (`RunningFlags.makeFenced`). None while it accepts messages.
        self.refusal: str | None = None
        #: Stores messages on other brokers. Set while this broker is an acting master.
        self._escape_bridge: EscapeRoute | None = None
        #: Queues with messages that are not confirmed yet. None while messages need no confirmation.
        self._unconfirmed: dict[ConsumeQueue, None] | None = None
        self.max_message_size = 0
        self.config_changed()
        self.max_properties_length = MAX_PROPERTIES_LENGTH
        if store.config.enabled_append_prop_crc:
            self.max_properties_length -= record_crc.CRC_LENGTH

    def config_changed(self) -> None:
        """Applies `maxMessageSize` from the configuration."""
        config = self.store.config
        # A message can later be stored again in a topic with a longer name. It must then still fit into a file.
        file_size = config.mapped_file_size_commit_log
        self.max_message_size = min(config.max_message_size, max(file_size - _BESIDE_BODY, file_size // 2))

    def refuse(self, reason: str | None) -> None:
        """Rejects all later messages, with `reason` in the error. None accepts messages again."""
        self.refusal = reason

    @property
    def escapes(self) -> bool:
        """Whether `append_again` stores messages on other brokers."""
        return self._escape_bridge is not None

    def escape_by(self, bridge: EscapeRoute | None) -> None:
        """Makes `append_again` store messages on other brokers, through `bridge`. None ends this."""
        self._escape_bridge = bridge

    def begin_escape(self, record: Record, queue: ConsumeQueue, properties: bytes, reconsume_times: int) -> None:
        """Starts to send a message to another broker before `append_again` is called. Does nothing if not `escapes`."""
        if self._escape_bridge is not None:
            self._escape_bridge.begin(record, queue, properties, reconsume_times)

    def append(
        self,
        queue: ConsumeQueue,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
        tags_code: int,
        prepared_transaction_offset: int = 0,
        *,
        is_again: bool = False,
    ) -> PutResult:
        """Stores a message and notifies the pulls that wait for messages of the queue.

        If `is_again` is true, the message was accepted before, and the limit for its body does not apply.

        Raises:
            RequestRefused: The message is too large, the store is full, or the broker rejects all messages.
            StoreBusy: No file is preallocated yet. Requests then wait in `PreallocationWaits`. Background work retries
                after PREALLOCATION_RETRY_S.
            StoreError: The store can't be written; see `is_passing`.
        """
        if self.refusal is not None:
            raise self._refused()
        if (len(body) > self.max_message_size and not is_again) or len(properties) > self.max_properties_length:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its body has {len(body)} bytes of at most {self.max_message_size}, "
                f"its properties {len(properties)} bytes of at most {self.max_properties_length}",
            )
        begin = monotonic()
        try:
            result = self.store.append(
                queue,
                flag,
                sys_flag,
                born_timestamp,
                born_host,
                reconsume_times,
                body,
                properties,
                tags_code,
                prepared_transaction_offset,
            )
        except StoreFull as e:
            self.put_times.add_failure()
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {e}") from e
        self.put_times.add(monotonic() - begin)
        self._arrived(queue)
        if self._light is not None:
            self.arrived(self._light.take_arrived())
        return result

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Notifies the pulls that wait for messages of these queues. Native code has stored the messages."""
        for queue in queues:
            self._arrived(queue)

    def _arrived(self, queue: ConsumeQueue) -> None:
        if self._unconfirmed is None:
            self._polling.message_arrived(queue)
        else:
            self._unconfirmed[queue] = None

    def needs_confirmation(self, needed: bool) -> None:
        """Sets whether consumers get messages only after confirmation. Empties `unconfirmed`."""
        self._unconfirmed = {} if needed else None

    @property
    def unconfirmed(self) -> Mapping[ConsumeQueue, None] | None:
        """Queues that received messages after the last `take_unconfirmed`. None while messages need no confirmation."""
        return self._unconfirmed

    def take_unconfirmed(self) -> dict[ConsumeQueue, None]:
        """Returns the queues in `unconfirmed` and empties it."""
        taken = self._unconfirmed or {}
        if self._unconfirmed is not None:
            self._unconfirmed = {}
        return taken

    def confirmed(self, queues: Iterable[ConsumeQueue]) -> None:
        """Notifies the pulls that wait for messages of these queues. The messages are confirmed."""
        for queue in queues:
            self._polling.message_arrived(queue)

    def append_batch(self, batch: RecordBatch) -> list[int]:
        """Stores all messages of a batch and returns their physical offsets. Raises the errors of `append`."""
        if self.refusal is not None:
            raise self._refused()
        size, file_size = sum(batch.sizes), self.store.config.mapped_file_size_commit_log
        if size + BLANK_SIZE > file_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch goes into one file of the log, of {file_size} bytes; this one takes {size}: send several",
            )
        begin = monotonic()
        try:
            offsets = self.store.append_batch(batch)
        except StoreFull as e:
            self.put_times.add_failure()
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {e}") from e
        self.put_times.add(monotonic() - begin)
        self._arrived(batch.queue)
        return offsets

    def check(self) -> None:
        """Raises RequestRefused while the broker or its store rejects all messages."""
        if self.refusal is not None:
            raise self._refused()
        if (trouble := self.store.trouble) is not None:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {trouble}")

    def _refused(self) -> RequestRefused:
        return RequestRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {self.refusal}", RefusalReason.NOT_MASTER
        )

    def append_again(
        self, record: Record, queue: ConsumeQueue, properties: bytes, tags_code: int, reconsume_times: int
    ) -> PutResult:
        """Stores the message of a record again, in another queue. The limit for its body does not apply.

        On an acting master, another broker stores the message.
        """
        if self._escape_bridge is not None:
            return self._escape_bridge.append_again(record, queue, properties, reconsume_times)
        return self.append(
            queue,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            reconsume_times,
            record.body,
            record_crc.without_crc(properties),
            tags_code,
            is_again=True,
        )
