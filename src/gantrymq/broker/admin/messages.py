"""Finds messages by physical offset or key: VIEW_MESSAGE_BY_ID, QUERY_MESSAGE (`QueryMessageProcessor`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import MAX_FRAME_LENGTH, RemotingCommand
from gantrymq.protocol.headers.query import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.key_lookup import KeyQuery, Search, by_key, by_tags, by_unique_key
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queued_record import queued_record

if TYPE_CHECKING:
    from gantrymq.tier.tier import Tier

#: Name of the field that marks the key as a producer's message id (`MixAll.UNIQUE_MSG_QUERY_FLAG`).
_UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"
#: Maximum size of the records in a response, in bytes. The rest of the 16 MiB frame is for the header.
_MAX_ANSWER_BYTES = MAX_FRAME_LENGTH - 64 * 1024
#: Maximum number of searches in progress. Each takes up to 0.5 s of processor time, in steps.
_MAX_SEARCHES = 100
#: Largest expected difference between the clocks of a client and of the broker, in ms.
_CLOCK_DIFFERENCE_MS = 3_600_000


class MessageAdmin(Feature):
    """Looks up messages in the store."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store
        self._tier = context.tier
        self._searches = 0
        self._turn = asyncio.Lock()

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.VIEW_MESSAGE_BY_ID: self.view, RequestCode.QUERY_MESSAGE: self.query}

    def view(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the record at a physical offset."""
        offset = request.read_header(ViewMessageRequestHeader).offset
        return RemotingCommand.response(body=record_at(self._store, offset))

    def query(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the newest records with a key or tags that were stored in a time range.

        If the records don't fit into one frame, the result omits the oldest. Raises RequestRefused for an unknown index
        type.
        """
        header = request.read_header(QueryMessageRequestHeader)
        index_type = header.index_type or "K"
        if request.ext_fields.get(_UNIQUE_KEY_FIELD) == "true":
            index_type = "U"
        span = header.begin_timestamp, header.end_timestamp, header.max_num
        match index_type:
            case "K":
                query = by_key(header.topic, header.key, *span)
            case "T":
                query = by_tags(header.topic, header.key, *span)
            case "U":
                query = by_unique_key(header.topic, header.key)
            case _:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER, f"indexType {index_type[:100]!r}: must be K, T or U"
                )
        # The client's clock determines when a search by unique key begins. A search of the whole tier would take long.
        oldest_ms = header.begin_timestamp - (_CLOCK_DIFFERENCE_MS if index_type == "U" else 0)
        connection.respond_with(request, self._answer(query, oldest_ms))
        return None

    async def _answer(self, query: KeyQuery, oldest_ms: int) -> RemotingCommand:
        if self._searches >= _MAX_SEARCHES:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{self._searches} searches by key are under way already")
        self._searches += 1
        try:
            records = self._records(await self._finish(self._store.keys.find(query)))
            if self._tier is not None:
                records += await self._older(self._tier, query._replace(begin_ms=oldest_ms), records)
        finally:
            self._searches -= 1
        if not records:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        timestamp, physical_offset = self._store.keys.index_last_update
        return RemotingCommand.response(
            header=QueryMessageResponseHeader(
                index_last_update_timestamp=timestamp, index_last_update_phyoffset=physical_offset
            ),
            body=b"".join(reversed(records)),
        )

    def _records(self, offsets: list[int]) -> list[bytes]:
        """Returns the records at these physical offsets, newest first, as many as fit into a response."""
        records: list[bytes] = []
        size = 0
        for offset in reversed(offsets):
            if offset < self._store.min_physical_offset:
                # This record and all older records were deleted during the search.
                break
            # The index contains only offsets of valid records, so no queue lookup is needed. It also has records of
            # deleted topics.
            record = self._store.record_bytes(offset)
            size += len(record)
            if records and size > _MAX_ANSWER_BYTES:
                break
            records.append(record)
        return records

    async def _older(self, tier: Tier, query: KeyQuery, newer: list[bytes]) -> list[bytes]:
        """Returns the records of the tier that are older than those found in the log, newest first.

        Raises RequestRefused if the tier can't be searched and the log had no record.
        """
        rest = query._replace(max_num=min(query.max_num, self._store.config.max_msgs_num_batch) - len(newer))
        max_bytes = _MAX_ANSWER_BYTES - sum(map(len, newer))
        try:
            return await tier.find(rest, self._store.min_physical_offset, max_bytes)
        except RequestRefused:
            if newer:
                return []
            raise

    async def _finish(self, search: Search) -> list[int]:
        # All searches share one step per event-loop iteration, in order. A short search therefore ends soon, even if
        # many long ones are running.
        while True:
            async with self._turn:
                try:
                    next(search)
                except StopIteration as e:
                    offsets: list[int] = e.value
                    return offsets
                finally:
                    # Keep the lock during the sleep, so that the next search runs in another event-loop iteration.
                    await asyncio.sleep(0)


def record_at(store: MessageStore, physical_offset: int) -> bytes:
    """Returns the bytes of the record at this offset. Raises RequestRefused if no queue contains such a record."""
    try:
        queued_record(store, physical_offset)
        return store.record_bytes(physical_offset)
    except GantryError as e:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}: {e}"
        ) from e
