"""KeyValue: a compaction topic as a table of keys and values.

The client reads all queues of the topic from their first message, and keeps the last value of each key in memory. A
value is a message with its key as KEYS, and a deletion is a message without a body. Each key has one queue, which
depends on its hash as in Java's `SelectMessageQueueByHash`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from math import inf
from typing import NamedTuple

from gantrymq.background.tasks import Tasks
from gantrymq.client.broker_api import SendResult
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.lifecycle import Lifecycle
from gantrymq.client.options import NAME_SERVERS_DOC, TransportOptions, option, takes
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import queue_by_hash
from gantrymq.errors import ClientClosed, ClientError, GantryError, IllegalMessage, RequestTimeout
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import Message, MessageExt, MessageQueue, Tombstone
from gantrymq.times import duration_s

log = peer_log(__name__)

#: Default timeout of a call, in seconds.
TIMEOUT_S = 3.0
#: Longest wait of one poll, in seconds.
_POLL_S = 1.0
#: Memory of an entry without its key and value, in bytes. Measured with tracemalloc.
_ENTRY_BYTES = 280


class KeyValueEntry(NamedTuple):
    """The value of a key, and the message that set it.

    `value` is None if the message deleted the key, or if the broker has lost the message.
    """

    key: str
    value: bytes | None
    queue: MessageQueue
    queue_offset: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class KeyValueOptions(TransportOptions):
    """Options of `KeyValue`."""

    name_servers: Sequence[str] | str = field(metadata={"doc": NAME_SERVERS_DOC})
    topic: str = field(metadata={"doc": "A topic with `cleanup.policy=COMPACTION`."})
    _: KW_ONLY
    group: str = option("gantry-key-value", "Name of the producer and consumer group. It has no committed offsets.")
    namespace: str = option("", "Prefix of the topic and of the group.")
    max_bytes: int = option(
        256 * 1024 * 1024,
        "Most memory for entries, bytes: keys, values and 280 bytes for each. The client fails above it. A `watch` "
        "fails if the changes that it has not yielded need more.",
        minimum=1,
    )


class KeyValue(Lifecycle):
    """The last value of each key of a compaction topic.

    `start` returns after the client has read all messages that were stored before the call. `start` has no timeout: use
    `asyncio.timeout`.

    `get` returns the values that this client has put. It returns values of other clients some milliseconds after they
    were put.

    Example:
        async with KeyValue("127.0.0.1:9876", "settings") as settings:
            await settings.put("region", b"eu")
            assert await settings.get("region") == b"eu"
            async for entry in settings.watch():
                print(entry.key, entry.value)

    The queues of the topic must stay the same: with another number of queues, a key can get another queue. If two
    queues have a key, the value or deletion that was stored last counts. When the broker removes the deletion, after
    `compactionTombstoneRetentionMs`, a value of the other queue returns at the next start.
    """

    @takes(KeyValueOptions)
    def __init__(self, options: KeyValueOptions) -> None:
        super().__init__()
        self._options = options
        self._producer: Producer | None = None
        self._queues: list[MessageQueue] = []
        #: The queues by broker name and queue id, so that all entries of a queue share one object.
        self._queue_by_id: dict[tuple[str, int], MessageQueue] = {}
        self._entries: dict[str, KeyValueEntry] = {}
        #: Deletions. They are kept until all queues are read up to `_ends`: older values in other queues may follow.
        self._deleted: dict[str, KeyValueEntry] = {}
        self._size = 0
        #: The queue offset up to which each queue was read, and up to which this client has written.
        self._read_to: dict[MessageQueue, int] = {}
        self._written_to: dict[MessageQueue, int] = {}
        #: The end of each queue when its reading began. Infinite while that is unknown.
        self._ends: dict[MessageQueue, float] = {}
        #: Queues that are to be read again from their first message.
        self._restarting: set[MessageQueue] = set()
        self._watchers: list[_Watcher] = []
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    async def _open(self, stack: AsyncExitStack) -> None:
        options = self._options
        self._changed = asyncio.Event()
        self._failure = None
        self._entries, self._deleted, self._size = {}, {}, 0
        self._producer = await stack.enter_async_context(
            Producer(
                options.name_servers,
                options.group,
                namespace=options.namespace,
                ssl_context=options.ssl_context,
                credentials=options.credentials,
                hooks=options.hooks,
            )
        )
        consumer = await stack.enter_async_context(
            LitePullConsumer(
                options.name_servers,
                options.group,
                auto_commit=False,
                namespace=options.namespace,
                ssl_context=options.ssl_context,
                credentials=options.credentials,
                hooks=options.hooks,
            )
        )
        self._queues = list(await self._producer.queues(options.topic))
        if not self._queues:
            raise ClientError(f"topic {options.topic!r} has no queue to write to")
        queues = await consumer.queues(options.topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        self._ends = {queue: await consumer.end_offset(queue) for queue in queues}
        self._read_to = dict.fromkeys(queues, 0)
        self._queue_by_id = {(queue.broker_name, queue.queue_id): queue for queue in queues}
        self._written_to = {}
        self._restarting = set()
        tasks = Tasks(f"reading topic {options.topic}")
        stack.push_async_callback(self._stop, tasks)
        tasks.start(self._read(consumer))
        await self._until(dict.fromkeys(queues, 0))

    async def _stop(self, tasks: Tasks) -> None:
        await tasks.stop()
        self._failure = self._failure or ClientClosed("this KeyValue is closed")
        self._notify()

    # -- values -------------------------------------------------------------------------------------------------

    async def get(self, key: str, *, timeout: float | timedelta = TIMEOUT_S) -> bytes | None:
        """Returns the value of a key, or None.

        Args:
            key: The key.
            timeout: Longest wait until the client has read its own writes, in seconds or as a timedelta. Default: 3.0.

        Raises:
            RequestTimeout: The client has not read its own writes in time, or a queue whose topic was created again or
                whose broker has lost messages.
            ClientError: The client could not read the topic.
        """
        self._check_open()
        queue = self._queue_of(key)
        await self._within(duration_s("timeout", timeout), {queue: self._written_to.get(queue, 0)})
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    async def entries(self, *, timeout: float | timedelta = TIMEOUT_S) -> Mapping[str, KeyValueEntry]:
        """Returns the entries of all keys. Raises as `get` does.

        Args:
            timeout: Longest wait until the client has read its own writes, in seconds or as a timedelta. Default: 3.0.
        """
        self._check_open()
        await self._within(duration_s("timeout", timeout), dict.fromkeys(self._read_to, 0) | self._written_to)
        return dict(self._entries)

    async def put(self, key: str, value: bytes, *, timeout: float | timedelta = TIMEOUT_S) -> SendResult:
        """Sets the value of a key.

        Args:
            key: The key. It must not be blank.
            value: The value, which must not be empty.
            timeout: Timeout of the send, in seconds or as a timedelta. Default: 3.0.

        Raises:
            IllegalMessage: The key or the value is invalid.
            SendOutcomeUnknown: The value may have been stored.
            GantryError: As `Producer.send`.
        """
        if not value:
            raise IllegalMessage(f"the value of key {key!r} is empty: use `delete` to remove the key")
        self._check_key(key)
        return await self._send(key, Message(self._options.topic, value, keys=key), timeout)

    async def delete(self, key: str, *, timeout: float | timedelta = TIMEOUT_S) -> SendResult:
        """Removes a key. Has no effect if the key does not exist. The arguments and errors are those of `put`."""
        self._check_key(key)
        return await self._send(key, Tombstone(self._options.topic, key), timeout)

    async def watch(self, key: str | None = None) -> AsyncIterator[KeyValueEntry]:
        """Yields the current entries, then each change, until the client is closed.

        A caller that is slower than the changes gets only the last change of each key.

        Args:
            key: Yields only changes of this key. Default: all keys.

        Raises:
            ClientError: The client could not read the topic, or the caller is so slow that the changes for it need more
                than `max_bytes`.
        """
        self._check_open()
        watcher = _Watcher(key, self._options.max_bytes)
        for entry in self._entries.values():
            watcher.add(entry)
        self._watchers.append(watcher)
        try:
            while True:
                while watcher.pending:
                    yield watcher.next()
                if watcher.is_too_slow:
                    raise ClientError(
                        f"a watch of topic {self._options.topic!r} is too slow: its pending changes need more than "
                        f"max_bytes={self._options.max_bytes}"
                    )
                if isinstance(self._failure, ClientClosed):
                    return
                await self._next_change()
        finally:
            self._watchers.remove(watcher)

    def _check_key(self, key: str) -> None:
        self._check_open()
        if not isinstance(key, str) or not key.strip():
            raise IllegalMessage(f"invalid key {key!r}: must be a string that is not blank")

    def _queue_of(self, key: str) -> MessageQueue:
        return queue_by_hash(key, self._queues)

    async def _send(self, key: str, message: Message, timeout: float | timedelta) -> SendResult:
        assert self._producer is not None
        queue = self._queue_of(key)
        result = await self._producer.send(message, queue=queue, timeout=timeout)
        self._written_to[queue] = max(self._written_to.get(queue, 0), result.queue_offset + 1)
        return result

    # -- reading ------------------------------------------------------------------------------------------------

    async def _read(self, consumer: LitePullConsumer) -> None:
        """Applies all messages until it is cancelled. An error makes all later calls fail."""
        try:
            while True:
                # A queue is not assigned while the consumer moves it to another offset.
                for queue in consumer.assignment - self._restarting:
                    position = consumer.position(queue)
                    if position < self._read_to[queue]:
                        self._forget(queue)
                    else:
                        self._read_to[queue] = position
                for queue in sorted(self._restarting):
                    await self._restart(consumer, queue)
                is_behind = any(self._is_behind(queue) for queue in self._read_to)
                if not is_behind:
                    self._drop(self._deleted, list(self._deleted))
                self._notify()
                for message in await consumer.poll(timeout=_POLL_S):
                    self._apply(message, keeps_deletion=is_behind)
        except Exception as e:
            self._failure = e
            self._notify()
            raise

    def _forget(self, queue: MessageQueue) -> None:
        """Drops the entries of a queue whose offsets went back. Until `_restart`, calls wait for its new end."""
        log.warning("%s was created again, or its broker has lost messages: reading it from its first message", queue)
        self._restarting.add(queue)
        self._read_to[queue] = 0
        self._ends[queue] = inf
        self._written_to.pop(queue, None)
        self._drop(self._deleted, [entry.key for entry in self._deleted.values() if entry.queue == queue])
        for entry in self._drop(self._entries, [entry.key for entry in self._entries.values() if entry.queue == queue]):
            for watcher in self._watchers:
                watcher.add(entry._replace(value=None))

    def _drop(self, entries: dict[str, KeyValueEntry], keys: Iterable[str]) -> list[KeyValueEntry]:
        dropped = [entries.pop(key) for key in keys]
        self._size -= sum(map(_size, dropped))
        return dropped

    async def _restart(self, consumer: LitePullConsumer, queue: MessageQueue) -> None:
        try:
            await consumer.seek_to_begin(queue)
            self._ends[queue] = await consumer.end_offset(queue)
        except GantryError as e:
            log.warning("%s can't be read from its first message, trying again: %s", queue, e)
        else:
            self._restarting.remove(queue)

    def _apply(self, message: MessageExt, *, keeps_deletion: bool) -> None:
        queue = self._queue_by_id[message.broker_name, message.queue_id]
        if queue in self._restarting:
            return
        if message.queue_offset < self._read_to[queue]:
            self._forget(queue)
            return
        key = message.properties.get(names.KEYS, "")
        if not key.strip():
            return
        value = message.body or None
        entry = KeyValueEntry(key, value, queue, message.queue_offset, message.store_timestamp)
        before = self._entries.get(key)
        last = before or self._deleted.get(key)
        if last is not None and last.queue != queue and last.store_timestamp > entry.store_timestamp:
            return
        if last is not None:
            self._drop(self._entries if before is not None else self._deleted, [key])
        if value is not None or keeps_deletion:
            (self._entries if value is not None else self._deleted)[key] = entry
            self._size += _size(entry)
        if self._size > self._options.max_bytes:
            raise ClientError(
                f"keys and values of topic {self._options.topic!r} need more than max_bytes="
                f"{self._options.max_bytes}: increase max_bytes"
            )
        if before is not None or value is not None:
            for watcher in self._watchers:
                watcher.add(entry)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _next_change(self) -> None:
        """Waits until messages were read. Raises the error that ended the reading."""
        self._raise_failure()
        await self._changed.wait()

    def _raise_failure(self) -> None:
        if isinstance(self._failure, ClientClosed):
            raise self._failure
        if self._failure is not None:
            raise ClientError(f"topic {self._options.topic!r} can't be read: {self._failure}") from self._failure

    async def _until(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Waits until the queues were read up to their `_ends`, and up to these offsets of own writes.

        Raises the error that ended the reading.
        """
        self._raise_failure()
        while any(self._is_behind(queue, offset) for queue, offset in offsets.items()):
            await self._next_change()

    def _is_behind(self, queue: MessageQueue, offset: int = 0) -> bool:
        # `_forget` invalidates the offsets of earlier writes.
        written_to = min(offset, self._written_to.get(queue, 0))
        return self._read_to.get(queue, inf) < max(written_to, self._ends.get(queue, 0))

    async def _within(self, timeout_s: float, offsets: Mapping[MessageQueue, int]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(offsets)
        except TimeoutError:
            topic = self._options.topic
            raise RequestTimeout(f"topic {topic!r} was not read up to its last put in {timeout_s} s", topic) from None


class _Watcher:
    """The changes that one `watch` has not yielded yet: the last one of each key.

    If they need more than `max_bytes`, `is_too_slow` is set, and there are no further changes.
    """

    def __init__(self, key: str | None, max_bytes: int) -> None:
        self.pending: OrderedDict[str, KeyValueEntry] = OrderedDict()
        self.is_too_slow = False
        self._key = key
        self._max_bytes = max_bytes
        self._size = 0

    def add(self, entry: KeyValueEntry) -> None:
        if self.is_too_slow or (self._key is not None and entry.key != self._key):
            return
        # The newest change comes last.
        if (before := self.pending.pop(entry.key, None)) is not None:
            self._size -= _size(before)
        self.pending[entry.key] = entry
        self._size += _size(entry)
        if self._size > self._max_bytes:
            self.is_too_slow = True
            self.pending.clear()

    def next(self) -> KeyValueEntry:
        """Removes and returns the oldest pending change."""
        _, entry = self.pending.popitem(last=False)
        self._size -= _size(entry)
        return entry


def _size(entry: KeyValueEntry) -> int:
    return len(entry.key.encode()) + len(entry.value or b"") + _ENTRY_BYTES
