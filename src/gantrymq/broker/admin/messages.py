"""Messages by their place in the log or their keys: VIEW_MESSAGE_BY_ID, QUERY_MESSAGE (`QueryMessageProcessor`)."""

from __future__ import annotations

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
from gantrymq.store.message_store import MessageStore

#: MixAll.UNIQUE_MSG_QUERY_FLAG: the key is a message id that a producer made.
_UNIQUE_KEY_FIELD = "_UNIQUE_KEY_QUERY"
#: Leaves room for the header in a frame of 16 MiB.
_MAX_ANSWER_BYTES = MAX_FRAME_LENGTH - 64 * 1024


class MessageAdmin(Part):
    """Looks messages up in the store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

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
            offsets = self._store.keys.find_by_unique_key(header.topic, header.key)
        else:
            offsets = self._store.keys.find_by_key(
                header.topic, header.key, header.begin_timestamp, header.end_timestamp, header.max_num
            )
        records: list[bytes] = []
        size = 0
        for offset in reversed(offsets):
            record = record_at(self._store, offset)
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


def record_at(store: MessageStore, physical_offset: int) -> bytes:
    """The bytes of the record that begins there. Raises RequestRefused when none does."""
    try:
        return store.record_bytes(physical_offset)
    except GantryError as e:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}: {e}"
        ) from e
