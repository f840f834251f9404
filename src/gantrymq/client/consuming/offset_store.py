"""Where a group goes on reading: its offsets on the brokers, or in a file where each consumer reads everything.

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

#: rocketmq.client.localOffsetStoreDir.
LOCAL_OFFSET_DIRECTORY = Path("~/.rocketmq_offsets")
#: An offset that stays as it is is committed again after so long, s: a broker that was killed has lost the last ones.
REPEAT_S = 30.0


class OffsetStore(Protocol):
    """Both stores remember what was committed, to repeat it seldom or never."""

    async def read(self, queue: MessageQueue, *, only_committed: bool = False) -> int | None:
        """The committed queue offset; None when there is none. Raises a GantryError.

        Unless `only_committed` a broker may say where a new group is to begin.
        """

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stores the offsets. Raises the first GantryError after all were tried."""

    def forget(self, queue: MessageQueue) -> None:
        """The next commit is sent, whatever was committed: the broker may have lost it, another consumer changed it."""


class BrokerOffsetStore:
    """The offsets of a group that shares its queues, on the brokers."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        #: What the brokers know, and when they were told (monotonic).
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
        # Of a commit that isn't answered nobody knows: the next one is sent, whatever it says.
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
        address = self._client.routes.broker_address(queue.broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {queue.broker_name}", queue.broker_name)
        return address


class LocalOffsetStore:
    """The offsets of a consumer that reads everything, in directory/CLIENT_ID/GROUP/offsets.json as Java keeps them.

    The file before the last one stays beside it as offsets.json.bak.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        """Raises ClientError when both files are there and neither can be read."""
        self.path = directory.expanduser() / client_id / group / "offsets.json"
        self._backup = self.path.with_suffix(".json.bak")
        self._offsets = self._load()
        #: The file says the same.
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
        """Nobody else commits these."""

    def _load(self) -> dict[MessageQueue, int]:
        problems: list[str] = []
        for path in (self.path, self._backup):
            try:
                # Java leaves an empty file behind when it is stopped while it writes.
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
