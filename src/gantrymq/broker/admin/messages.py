"""Messages by their place in the log or their keys: VIEW_MESSAGE_BY_ID, QUERY_MESSAGE (`QueryMessageProcessor`)."""

from __future__ import annotations

import asyncio

from gantrymq.broker.part import Part
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

#: MixAll.UNIQUE_MSG_QUERY_FLAG: the key is a message id that a producer made.
_UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"
#: Leaves room for the header in a frame of 16 MiB.
_MAX_ANSWER_BYTES = MAX_FRAME_LENGTH - 64 * 1024
#: No more at once: each takes up to half a second of work, in steps.
_MAX_SEARCHES = 100


class MessageAdmin(Part):
    """Looks messages up in the store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._searches = 0
        self._turn = asyncio.Lock()

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.VIEW_MESSAGE_BY_ID: self.view, RequestCode.QUERY_MESSAGE: self.query}

    def view(self, connection: Connection, request: RemotingCommand) -> Reply:
        """The record at a physical offset."""
        offset = request.read_header(ViewMessageRequestHeader).offset
        return RemotingCommand.response(body=record_at(self._store, offset))

    def query(self, connection: Connection, request: RemotingCommand) -> Reply:
        """The newest records with a key that were stored in a span of time; no answer has more than a frame's worth."""
        header = request.read_header(QueryMessageRequestHeader)
        if request.ext_fields.get(_UNIQUE_KEY_FIELD) == "true":
            search = self._store.keys.find_by_unique_key(header.topic, header.key)
        else:
            search = self._store.keys.find_by_key(
                header.topic, header.key, header.begin_timestamp, header.end_timestamp, header.max_num
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
                # Deleted since it was found, with those before it.
                break
            # The index knows where records begin, those of deleted topics among them.
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
        # All searches share one step of each turn of the loop, in order: who looks for little is soon done, however
        # many look for much.
        while True:
            async with self._turn:
                try:
                    next(search)
                except StopIteration as e:
                    offsets: list[int] = e.value
                    return offsets
                finally:
                    # With the lock: who tries meanwhile waits, and has its step in another turn of the loop.
                    await asyncio.sleep(0)


def record_at(store: MessageStore, physical_offset: int) -> bytes:
    """The bytes of the record that begins there and stands in its queue. Raises RequestRefused when none does."""
    try:
        queued_record(store, physical_offset)
        return store.record_bytes(physical_offset)
    except GantryError as e:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}: {e}"
        ) from e
