"""Offset stores: a group's offsets on the brokers, or in a local file for broadcasting consumers.

Source: client/consumer/store/RemoteBrokerOffsetStore, LocalFileOffsetStore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gantrymq.client.client_instance import ClientInstance
from gantrymq.errors import BodyError, ClientError, ConnectFailed, GantryError
from gantrymq.protocol.bodies.offset import ResetOffsetBody
from gantrymq.protocol.message import MessageQueue
from gantrymq.system import files
from gantrymq.system.clock import monotonic

#: An unchanged offset is committed again after this time, because a killed broker loses its last commits, s.
REPEAT_S = 30.0


class OffsetStore(Protocol):
    """Reads and commits offsets. Both stores cache the committed offsets and skip unchanged offsets.

    Attributes:
        outlives_topics: True if the offsets of a topic remain when the topic is deleted.
    """

    outlives_topics: bool

    async def read(self, queue: MessageQueue, *, only_committed: bool = False) -> int | None:
        """Returns the committed queue offset, or None. Raises a GantryError.

        Unless `only_committed`, a broker can return the start position of a new group.
        """

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stores the offsets. If some fail, raises the first GantryError at the end."""

    def forget(self, queue: MessageQueue) -> None:
        """Removes the cached offset, for example if another consumer changed it, so that the next commit is sent."""


class BrokerOffsetStore:
    """Offsets of a group on the brokers."""

    outlives_topics = False

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        #: Committed offsets, and the time of the commit (monotonic, s).
        self._committed: dict[MessageQueue, tuple[int, float]] = {}

    async def read(self, queue: MessageQueue, *, only_committed: bool = False) -> int | None:
        topic, broker_name, queue_id = queue
        return await self._client.api.query_offset(
            self._address(queue), self._group, topic, queue_id, broker_name=broker_name, only_committed=only_committed
        )

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        outcomes = await asyncio.gather(
            *(self._commit(queue, offset) for queue, offset in offsets.items()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        known, told_at = self._committed.get(queue, (-1, 0.0))
        if known == offset and monotonic() - told_at < REPEAT_S:
            return
        # Without a response, the result is unknown, so the next commit must be sent in any case.
        self._committed.pop(queue, None)
        topic, broker_name, queue_id = queue
        try:
            await self._client.api.update_offset(
                self._address(queue), self._group, topic, queue_id, offset, broker_name=broker_name
            )
        except GantryError as e:
            e.add_note(f"while offset {offset} of {queue} was committed for group {self._group}")
            raise
        self._committed[queue] = offset, monotonic()

    def forget(self, queue: MessageQueue) -> None:
        self._committed.pop(queue, None)

    def _address(self, queue: MessageQueue) -> str:
        client, name = self._client, queue.broker_name
        address = client.routes.broker_address(name) or client.connected_former_master(name)
        if address is None:
            raise ConnectFailed(f"no route names broker {queue.broker_name}", queue.broker_name)
        return address


class LocalOffsetStore:
    """Offsets of a broadcasting consumer in DIRECTORY/CLIENT_ID/GROUP/offsets.json and .bak, in Java's format."""

    outlives_topics = True

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        """Loads the file, or its backup. Raises ClientError if one is invalid and no valid one exists."""
        self.path = directory.expanduser() / client_id / group / "offsets.json"
        self._backup = self.path.with_suffix(".json.bak")
        self._offsets = self._load()
        #: True if the file contains the current offsets.
        self._is_saved = True

    async def read(self, queue: MessageQueue, *, only_committed: bool = False) -> int | None:
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self._is_saved and all(self._offsets.get(queue) == offset for queue, offset in offsets.items()):
            return
        self._offsets.update(offsets)
        self._is_saved = False
        try:
            self._save()
            self._is_saved = True
        except OSError as e:
            raise ClientError(f"can't write the offsets to {self.path}: {e}") from e

    def forget(self, queue: MessageQueue) -> None:
        """Does nothing: no other consumer commits to this file."""

    def _load(self) -> dict[MessageQueue, int]:
        problems: list[str] = []
        for path in (self.path, self._backup):
            try:
                # Java leaves an empty file if it is stopped during a write.
                if data := files.read_bytes(path):
                    offsets = ResetOffsetBody.decode(data).offset_table
                    # Java's clients write -1 for a queue that they have not read.
                    return {queue: offset for queue, offset in offsets.items() if offset >= 0}
            except FileNotFoundError:
                pass
            except (OSError, BodyError) as e:
                problems.append(f"{path}: {e}")
        if problems:
            raise ClientError(f"can't read the offsets, remove the file to begin anew: {'; '.join(problems)}")
        return {}

    def _save(self) -> None:
        files.make_directory(self.path.parent)
        if files.exists(self.path):
            files.copy(self.path, self._backup)
        new = self.path.with_suffix(".json.new")
        files.write(new, ResetOffsetBody(self._offsets).encode())
        files.rename(new, self.path)
