"""Compaction: keeps the last message of each key of compaction topics (`CompactionService`, `CompactionStore`).

- One job copies new messages into the compaction logs, in short slices, and flushes them in a thread.
- Another one compacts the logs, one after the other. It writes the new files in short slices, too.
- On a slave, the copying job first reads the messages from the master that its own commit log lacks (`MessageFetcher`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.log_flushed import log_flushed
from gantrymq.broker.replication import Replication
from gantrymq.errors import GantryError, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import Record, decode_records
from gantrymq.protocol.refusals import broker_error
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION
from gantrymq.protocol.topic_name import SYSTEM_GROUP_PREFIX
from gantrymq.store.compaction.compaction_store import MissingMessages
from gantrymq.store.compaction.compactor import Compactor
from gantrymq.store.compaction.segment import CopiedRecord
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: Interval of the copying, in seconds.
_COPY_S = 1.0
#: Interval of the flushes while messages are copied without a pause, in seconds.
_FLUSH_S = 1.0
#: Length of one slice of work, and of the pause after it, in seconds. A slice blocks the event loop.
_SLICE_S = 0.005
#: Longest copying when the broker stops, in seconds. It blocks the event loop, and the whole stop may take 30 s.
_STOP_S = 10.0
_GROUP = f"{SYSTEM_GROUP_PREFIX}COMPACTION"
_PULL_MESSAGES, _PULL_BYTES, _PULL_TIMEOUT_MS = 32, 1 << 20, 10_000


class Compaction(Feature):
    """Copies and compacts the messages of the compaction topics of one broker."""

    def __init__(self, context: BrokerContext, *, replication: Replication) -> None:
        self._config = context.config
        self._context = context
        self._store = context.store
        self._compaction = context.store.compaction
        self._topics = context.topics
        self._remoting = context.remoting
        self._following = replication.following
        #: Time of the next flush while messages are copied without a pause.
        self._flush_at = 0.0
        jobs = context.jobs
        self._copying = jobs.repeating("copy messages of compaction topics", self._copy, _COPY_S)
        self._compacting = jobs.repeating("compact compaction topics", self._compact)
        context.events.topics_changed.subscribe(lambda names: self._copying.wake(_COPY_S))

    async def start(self) -> None:
        self._copying.start()
        self._compacting.start(self._interval_s)

    async def stop(self) -> None:
        await self._compacting.stop()
        await self._copying.stop()
        # Java's broker only reads the messages again that are newer than the checkpoint.
        try:
            # Only messages that are flushed are copied.
            await log_flushed(self._store)
            try:
                if not self._compaction.copy(_STOP_S, is_slave=self._context.is_slave):
                    log.warning("not all messages of compaction topics are copied: the next start continues")
            finally:
                await self._flush()
        except (OSError, StoreError) as e:
            log.error("messages of compaction topics are copied at the next start: %s", e)

    @property
    def _interval_s(self) -> float:
        return self._config.store.compaction_schedule_internal / 1000

    # -- copying ------------------------------------------------------------------------------------------------

    async def _copy(self) -> float:
        """Copies for one slice. Returns the seconds to the next one."""
        if not self._topics.compacted:
            return _COPY_S
        is_slave = self._context.is_slave
        try:
            is_complete = self._compaction.copy(_SLICE_S, is_slave=is_slave)
        except StoreError:
            await self._flush()
            raise
        if not is_complete and monotonic() < self._flush_at:
            return _SLICE_S
        # The commit log can only be deleted up to the flushed copies.
        await self._flush()
        if is_slave and (master := self._following.address) is not None:
            self._compaction.cut_unsure()
            problem: GantryError | None = None
            for missing in self._compaction.missing():
                try:
                    await self._copy_from(master, missing)
                except GantryError as e:
                    problem = problem or e
            # The pause after an error would slow down the copying of other queues.
            if problem is not None and is_complete:
                raise problem
        return _COPY_S if is_complete else _SLICE_S

    async def _flush(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._compaction.flush)
        self._flush_at = monotonic() + _FLUSH_S

    async def _copy_from(self, master: str, missing: MissingMessages) -> None:
        """Copies messages from the master. Raises a GantryError."""
        queue, offset, end = missing
        log.info("messages %d to %d of %r come from the master %s", offset, end - 1, queue, master)
        while offset < end:
            header = PullMessageRequestHeader(
                consumer_group=_GROUP,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=_PULL_MESSAGES,
                sys_flag=PULL_SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
                max_msg_bytes=_PULL_BYTES,
            )
            request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
            response = await self._remoting.invoke(master, request, _PULL_TIMEOUT_MS)
            if response.code not in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
                ResponseCode.PULL_NOT_FOUND,
            ):
                raise broker_error(response, master)
            following = response.read_header(PullMessageResponseHeader).next_begin_offset
            records = [
                CopiedRecord(
                    data=bytes(response.body[at : at + record.size]),
                    tags_code=tags_code(find_property(record.properties, b"TAGS") or b""),
                    store_time=record.store_timestamp,
                    queue_offset=record.queue_offset,
                )
                for at, record in _positions(response.body)
            ]
            if following <= offset:
                # The master had these messages, so it can lack them for a short time only, for example after a change.
                raise StoreError(f"the master {master} returned no message of {queue!r} from {offset} on")
            if not queue.exists or not self._context.is_slave:
                return
            self._compaction.add(queue, records, min(following, end))
            offset = following

    # -- compacting ---------------------------------------------------------------------------------------------

    async def _compact(self) -> float:
        """Compacts all logs that have new messages. Returns the seconds to the next compaction."""
        problem: Exception | None = None
        is_complete = True
        for compactor in self._compaction.compactors(now_ms()):
            try:
                await self._run(compactor)
                is_complete = is_complete and compactor.is_complete
            except (OSError, StoreError) as e:
                compactor.give_up()
                problem = problem or e
        if problem is not None:
            raise problem
        return self._interval_s if is_complete else 0.0

    async def _run(self, compactor: Compactor) -> None:
        loop = asyncio.get_running_loop()
        deadline = monotonic() + _SLICE_S
        for _ in compactor.steps():
            if monotonic() >= deadline:
                # Pauses for as long as the slice took, so that requests run in between.
                await asyncio.sleep(_SLICE_S)
                if not compactor.is_valid:
                    break
                deadline = monotonic() + _SLICE_S
        if compactor.is_valid:
            await loop.run_in_executor(None, compactor.sync)
        if not compactor.is_valid:
            compactor.give_up()
            return
        self._compaction.finish(compactor)
        await loop.run_in_executor(None, self._compaction.save)
        log.info("%s: %d messages were removed", compactor, compactor.removed)


def _positions(body: bytes) -> Iterator[tuple[int, Record]]:
    """Yields each record of a pull response with its position. Raises RecordError."""
    at = 0
    for record in decode_records(body):
        yield at, record
        at += record.size
