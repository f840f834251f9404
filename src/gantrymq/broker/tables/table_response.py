"""Responses with a whole table. Concurrent requests share one encoding."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from gantrymq.background.shared_task import own_copy
from gantrymq.broker.tables.persistence import in_pieces
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupWrapper
from gantrymq.protocol.bodies.topic_config import DataVersion, TopicConfigTable
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.long_requests import Steps


class TableResponse:
    """Encodes a table in steps. Concurrent requests share one encoding while the table is unchanged.

    With separate encodings of 3 MB, forty clients would use 200 MiB.
    """

    def __init__(self) -> None:
        #: The newest encoding. It exists as long as one of its requests does.
        self._newest: weakref.ref[TableEncoding] | None = None

    def steps(self, table: TopicConfigTable | SubscriptionGroupWrapper, fields: dict[str, str]) -> Steps:
        """Handles one request in steps.

        Args:
            table: Always the same table. Its `data_version` advances with each change.
            fields: Fields of the response's header.

        Raises:
            Exception: The error of the encoder, for every request that shares the encoding.
        """
        encoding, version = self._newest() if self._newest is not None else None, table.data_version
        if encoding is None or encoding.version != version or encoding.error is not None:
            copied = DataVersion(version.state_version, version.timestamp, version.counter)
            encoding = TableEncoding(copied, in_pieces(table))
            self._newest = weakref.ref(encoding)
        while not encoding.is_complete:
            yield
            encoding.go_on()
        return RemotingCommand.response(body=encoding.body, fields=fields)


class TableEncoding:
    """One encoding of a table, in pieces. Its requests share it."""

    def __init__(self, version: DataVersion, pieces: Iterator[bytes]) -> None:
        self.version = version
        self.is_complete = False
        self.error: Exception | None = None
        self.body = b""
        self._pieces = pieces
        self._encoded: list[bytes] = []

    def go_on(self) -> None:
        """Encodes one more piece, unless another request has encoded the last one. Raises the encoder's error."""
        if self.is_complete:
            return
        if self.error is not None:
            # The iterator has ended. Without this check, the pieces so far would count as the whole table.
            raise own_copy(self.error)
        try:
            piece = next(self._pieces, None)
        except Exception as e:
            self.error = e
            raise
        if piece is not None:
            self._encoded.append(piece)
            return
        self.body = b"".join(self._encoded)
        self._encoded.clear()
        self.is_complete = True
