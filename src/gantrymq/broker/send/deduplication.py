"""Deduplication: stores a message with a deduplication id only once within the window of its topic.

The id is the property GANTRY_DEDUPLICATE_ID, and the window the topic attribute `deduplication.window.ms`. It begins
when the first message with an id is stored. Within it, the broker answers further sends with the position of this
message, and does not store them.

- One table for all queues of a topic has the ids. It is derived from the log (`log_table`): an id is forgotten when the
  log loses its message, or when the window ends.
- The check and the append run without interruption, so concurrent sends of an id store one message.
- A delayed message counts from its send. Its delivery is another record with the same id, which does not count.
- Consumers that send a message back, and copies that the broker makes, do not pass this check.
- Half messages can't have an id: a message that is rolled back must not prevent a repeated send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gantrymq.broker.append import Appender
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.send.deduplication_ids import DeduplicationIds, FirstMessage, SavedIds
from gantrymq.broker.send.log_table import LogTable
from gantrymq.errors import RecordError, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.properties import DEDUPLICATE_ID, MAX_DEDUPLICATE_ID_LENGTH, find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_MASK
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.delay_level import delay_level
from gantrymq.system.clock import monotonic, now_ms, thread_time

FILE_NAME = "gantryDeduplication.json"
#: The file is rewritten each time the log has grown by this size, in bytes. It can have 40 MB.
_LOG_BYTES = 256 * 1024 * 1024
#: Maximum number of ids that one step forgets, in 1 ms. The next step follows after a pause, in seconds.
_FORGET_STEP = 2000
_FORGET_PAUSE_S = 0.005
#: A full table is searched for expired ids, which takes 2 us for each topic. The next search begins after this multiple
#: of its duration: otherwise refused sends would take all the time of the broker.
_SEARCH_PAUSE = 10
#: Maximum number of ids that are forgotten when one is added.
_FORGET_WITH_PUT = 2
_PROPERTY = DEDUPLICATE_ID.encode()
_WAITING_TOPICS = (SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode())


class Deduplication(LogTable):
    """The deduplication ids of one broker.

    Attributes:
        repeated: Topic -> number of messages that were not stored because the log had their ids.
    """

    def __init__(self, context: BrokerContext, *, appender: Appender) -> None:
        super().__init__(
            context,
            appender=appender,
            file_name=FILE_NAME,
            mark=_PROPERTY + b"\x01",
            entries="which deduplication ids were stored",
            forgetting="forget deduplication ids",
        )
        self._topics = context.topics
        self._ids = DeduplicationIds()
        self.repeated: dict[str, int] = {}
        #: Time from which a full table is searched for expired ids (monotonic, in seconds).
        self._next_search = 0.0
        context.events.topics_deleted.subscribe(self._topics_deleted)

    def __len__(self) -> int:
        return len(self._ids)

    def topics(self) -> list[tuple[str, int]]:
        """Returns the topics with their numbers of ids."""
        return self._ids.topics()

    def _topics_deleted(self, names: Collection[str], queues: Collection[ConsumeQueue]) -> None:
        for name in names:
            self._ids.drop(name)
            self.repeated.pop(name, None)

    # -- the table and the log ----------------------------------------------------------------------------------

    async def start(self) -> None:
        # A topic can get a window at any time.
        if self.is_read:
            self._looking.start()

    async def stop(self) -> None:
        await super().stop()
        if len(self._ids):
            self._file.changed()

    @property
    def _is_needed(self) -> bool:
        return self._keep_ms() > 0

    def _keep_ms(self) -> int:
        return max(map(self._topics.deduplication_window_ms, self._topics.table.topic_config_table), default=0)

    def _load_table(self) -> int | None:
        saved = self._file.load(SavedIds, can_be_rebuilt=True)
        if saved is None:
            return None
        self._ids = DeduplicationIds.of(saved)
        # The limit can be lower than before.
        self._ids.limit(self._config.deduplication_max_num)
        return saved.position

    def _clear(self, position: int) -> None:
        self._ids = DeduplicationIds(position)

    def _encode(self) -> Iterator[bytes]:
        if self._is_current:
            self._ids.read_to(self._store.max_physical_offset)
        return self._ids.encode()

    def _forget(self, most: int = _FORGET_STEP) -> int:
        now, forgotten = now_ms(), 0
        for topic, _ in self._ids.topics():
            forgotten += self._ids.forget(topic, now, self.window_ms(topic), most - forgotten)
            if forgotten >= most:
                break
        return forgotten

    def _look(self) -> float | None:
        has_more = self._forget() >= _FORGET_STEP
        if len(self._ids) and self._store.max_physical_offset - self._ids.position > _LOG_BYTES:
            self._file.changed()
        return _FORGET_PAUSE_S if has_more else None

    def _learn(self, record: Record) -> None:
        found = _topic_and_id(record)
        if found is None:
            return
        topic, message_id = found
        window_ms = self.window_ms(topic)
        if not window_ms or self._appender.is_of_deleted(topic, record.physical_offset):
            return
        first = self._ids.get(topic, message_id)
        if first is None or record.store_timestamp - first.at_ms >= window_ms:
            self._put(topic, message_id, FirstMessage(record.physical_offset, record.store_timestamp))

    def _put(self, topic: str, message_id: bytes, first: FirstMessage) -> None:
        self._ids.forget(topic, first.at_ms, self.window_ms(topic), _FORGET_WITH_PUT)
        self._ids.put(topic, message_id, first)
        # Only a log of another broker, or from before a change of the limit, can have more.
        self._ids.limit(self._config.deduplication_max_num)

    # -- sends --------------------------------------------------------------------------------------------------

    def window_ms(self, topic: str) -> int:
        """Returns the window of a topic, in ms; 0 if it has none."""
        return self._topics.deduplication_window_ms(topic)

    def find(self, topic: str, message_id: bytes) -> Record | None:
        """Returns the first message with an id, without its body; None if its window has ended. Raises StoreError."""
        first = self._ids.get(topic, message_id)
        if first is None or now_ms() - first.at_ms >= self.window_ms(topic):
            return None
        store = self._store
        if not store.min_physical_offset <= first.physical_offset < store.max_physical_offset:
            return None
        if self._appender.is_of_deleted(topic, first.physical_offset):
            # The file is older than the deletion of the topic.
            return None
        try:
            record = store.read_without_body(first.physical_offset)
        except RecordError:
            return None
        # The end of the log can have been cut off, so that another record is there.
        return record if _topic_and_id(record) == (topic, message_id) else None

    def check_capacity(self, new_ids: int) -> None:
        """Raises RequestRefused if the table has no space for `new_ids` more."""
        most = self._config.deduplication_max_num
        if len(self._ids) + new_ids > most:
            if monotonic() >= self._next_search:
                began = thread_time()
                self._forget(max(new_ids, _FORGET_STEP))
                self._next_search = monotonic() + _SEARCH_PAUSE * (thread_time() - began)
            if len(self._ids) + new_ids > most:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"[OVERLOAD]system busy: the broker has {most} deduplication ids (deduplicationMaxNum), try again "
                    "when the window of some has ended",
                )

    def stored_at(self, physical_offset: int) -> None:
        """Adds the id of the first record from `physical_offset` on, if there is one."""
        record = next(self._store.records_with(b"", physical_offset), None)
        found = _topic_and_id(record) if record is not None else None
        if record is not None and found is not None:
            self._put(*found, FirstMessage(record.physical_offset, record.store_timestamp))

    def stored(self, topic: str, message_id: bytes, physical_offset: int) -> None:
        """Adds the id of a message that was stored at this moment."""
        self._put(topic, message_id, FirstMessage(physical_offset, now_ms()))

    def count_repeated(self, topic: str, count: int = 1) -> None:
        """Counts messages that were not stored again."""
        self.repeated[topic] = self.repeated.get(topic, 0) + count


def deduplicate_id(properties: bytes) -> bytes:
    """Returns the deduplication id in a message's properties, b"" if there is none. Raises RequestRefused."""
    message_id = find_property(properties, _PROPERTY) or b""
    if len(message_id) > MAX_DEDUPLICATE_ID_LENGTH:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: its deduplication id has {len(message_id)} bytes of at most "
            f"{MAX_DEDUPLICATE_ID_LENGTH}",
        )
    return message_id


def _topic_and_id(record: Record) -> tuple[str, bytes] | None:
    """Returns topic and id of a record that a client sent with an id.

    Returns None for copies that the broker stored itself: delivered and committed messages.
    """
    properties = record.properties
    message_id = find_property(properties, _PROPERTY)
    if not message_id or len(message_id) > MAX_DEDUPLICATE_ID_LENGTH or record.sys_flag & TRANSACTION_MASK:
        return None
    topic, real_topic = record.topic, find_property(properties, b"REAL_TOPIC")
    is_from_timer = find_property(properties, b"TIMER_DEQUEUE_MS") is not None
    if topic in _WAITING_TOPICS:
        # The timer stores a message again if it waits for longer than the wheel has slots.
        if real_topic is None or is_from_timer:
            return None
        topic = real_topic
    elif real_topic is not None and (is_from_timer or delay_level(properties)):
        return None
    return topic.decode(errors="replace"), message_id
