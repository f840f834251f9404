"""Finds messages by physical offset or key: VIEW_MESSAGE_BY_ID, QUERY_MESSAGE (`QueryMessageProcessor`)."""

from __future__ import annotations

import asyncio

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
from gantrymq.store.key_lookup import Search
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queued_record import queued_record

#: Name of the field that marks the key as a producer's message id (`MixAll.UNIQUE_MSG_QUERY_FLAG`).
_UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"
#: Maximum size of the records in a response, in bytes. The rest of the 16 MiB frame is for the header.
_MAX_ANSWER_BYTES = MAX_FRAME_LENGTH - 64 * 1024
#: Maximum number of searches in progress. Each takes up to 0.5 s of processor time, in steps.
_MAX_SEARCHES = 100


class MessageAdmin(Feature):
    """Looks up messages in the store."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store
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
                search = self._store.keys.find_by_key(header.topic, header.key, *span)
            case "T":
                search = self._store.keys.find_by_tags(header.topic, header.key, *span)
            case "U":
                search = self._store.keys.find_by_unique_key(header.topic, header.key)
            case _:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER, f"indexType {index_type[:100]!r}: must be K, T or U"
                )
        connection.respond_with(request, self._answer(search))
        return None

    async def _answer(self, search: Search) -> RemotingCommand:
        if self._searches >= _MAX_SEARCHES:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{self._searches} searches by key are under way already")
        self._searches += 1
        try:
            offsets = await self._finish(search)
        finally:
            self._searches -= 1
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
        if not records:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        timestamp, physical_offset = self._store.keys.index_last_update
        return RemotingCommand.response(
            header=QueryMessageResponseHeader(
                index_last_update_timestamp=timestamp, index_last_update_phyoffset=physical_offset
            ),
            body=b"".join(reversed(records)),
        )

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
