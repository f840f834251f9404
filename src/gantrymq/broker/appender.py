"""The one way in which the broker puts a message into its store and tells those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.broker.long_polling import LongPolling
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

#: A record is longer than its body by its fixed part, two names and the properties, and a file of the log by a blank.
_BESIDE_BODY = 34 * 1024

#: While a file of the store is made, what goes on in the background tries again after this time, s.
ROOM_S = 0.002


def born_host(connection: Connection) -> bytes:
    """The peer's address as in a record; kept in the connection's attributes."""
    host: bytes | None = connection.attributes.get("born_host")
    if host is None:
        host = connection.attributes["born_host"] = encode_host(*parse_address(connection.address))
    return host


def is_passing(error: BaseException) -> bool:
    """Whether the store takes nothing for now, so that the same may succeed later; else the fault is the message's."""
    if isinstance(error, RequestRefused):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, StoreError | OSError)


class Appender:
    """Appends to the store of one broker; `store_host` as in a record."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        polling: LongPolling,
        *,
        is_of_deleted: Callable[[str, int], bool] = lambda topic, log_offset: False,
    ) -> None:
        """`is_of_deleted(topic, physical offset)` returns whether a record's topic was deleted after it."""
        self.is_of_deleted = is_of_deleted
        self.store = store
        self.store_host = store_host
        self._polling = polling
        #: Why nothing is taken at the moment (`RunningFlags.makeFenced`); None while it is.
        self.refusal: str | None = None
        #: Where `append_again` puts messages while this broker takes none and stands in for a master
        #: (`Escaping.append_again`).
        self.elsewhere: Callable[[Record, ConsumeQueue, bytes, int], PutResult] | None = None
        #: Has what comes next there on its way already (`Escaping.begin`).
        self.begin_elsewhere: Callable[[Record, ConsumeQueue, bytes, int], None] | None = None
        #: The queues of what was stored and isn't shown yet; None while all is shown at once.
        self.unshown: dict[ConsumeQueue, None] | None = None
        self.max_message_size = 0
        self.config_changed()
        self.max_properties_length = MAX_PROPERTIES_LENGTH
        if store.config.enabled_append_prop_crc:
            self.max_properties_length -= record_crc.CRC_LENGTH

    def config_changed(self) -> None:
        """Takes maxMessageSize from the configuration."""
        config = self.store.config
        # What is taken once must fit into a file under a longer topic's name, too.
        file_size = config.mapped_file_size_commit_log
        self.max_message_size = min(config.max_message_size, max(file_size - _BESIDE_BODY, file_size // 2))

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
        """Stores a message. Raises RequestRefused: too large (a body that `is_again` stored never is), or no room.

        Raises StoreBusy while a file is made for it (requests then wait in `RoomWaits`, others for ROOM_S), StoreError
        while the store can't be written; see `is_passing`.
        """
        if self.refusal is not None:
            raise self._refused()
        if (len(body) > self.max_message_size and not is_again) or len(properties) > self.max_properties_length:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its body has {len(body)} bytes of at most {self.max_message_size}, "
                f"its properties {len(properties)} bytes of at most {self.max_properties_length}",
            )
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
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {e}") from e
        self._arrived(queue)
        return result

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Native code has put messages into them."""
        for queue in queues:
            self._arrived(queue)

    def _arrived(self, queue: ConsumeQueue) -> None:
        if self.unshown is None:
            self._polling.message_arrived(queue)
        else:
            self.unshown[queue] = None

    def show(self, queues: Iterable[ConsumeQueue]) -> None:
        """What was stored in them is shown now."""
        for queue in queues:
            self._polling.message_arrived(queue)

    def append_batch(self, batch: RecordBatch) -> list[int]:
        """Stores all of a batch; the messages' physical offsets.

        Raises RequestRefused: too large, or no room; StoreBusy and StoreError as `append` does.
        """
        if self.refusal is not None:
            raise self._refused()
        size, file_size = sum(batch.sizes), self.store.config.mapped_file_size_commit_log
        if size + BLANK_SIZE > file_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch goes into one file of the log, of {file_size} bytes; this one takes {size}: send several",
            )
        try:
            offsets = self.store.append_batch(batch)
        except StoreFull as e:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {e}") from e
        self._arrived(batch.queue)
        return offsets

    def _refused(self) -> RequestRefused:
        return RequestRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {self.refusal}", RefusalReason.NOT_MASTER
        )

    def append_again(
        self, record: Record, queue: ConsumeQueue, properties: bytes, tags_code: int, reconsume_times: int
    ) -> PutResult:
        """Stores what a record holds once more, in another queue, even if its body wouldn't be taken any more."""
        if self.elsewhere is not None:
            return self.elsewhere(record, queue, properties, reconsume_times)
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
