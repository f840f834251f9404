"""Tests of GroupOffsets without clusters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gantrymq.errors import NoRouteInfo
from gantrymq.mirror.group_offsets import GroupOffsets
from gantrymq.protocol.message import MessageQueue

_SOURCE, _TARGET = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)


class _Cluster:
    """A cluster with one group. `committed` are the offsets that were committed."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        self.committed: list[int] = []
        self.admin = self

    async def groups_of_topic(self, topic: str) -> list[str]:
        return ["billing"]

    async def consumer_connection(self, group: str) -> None:
        raise NoRouteInfo("%RETRY%billing", ["127.0.0.1:2"])

    async def group_config(self, address: str, group: str) -> object:
        return object()

    async def address(self, queue: MessageQueue, *, master: bool = False) -> str:
        return "127.0.0.1:1"

    async def committed_offset(self, queue: MessageQueue, group: str) -> int | None:
        return self.offset

    async def commit_offset(self, queue: MessageQueue, group: str, offset: int) -> None:
        self.committed.append(offset)


class _Copier:
    """A copier whose copies have other offsets in each generation."""

    queue, target_queue, key, is_located = _SOURCE, _TARGET, "c/a/0/t", True

    def __init__(self) -> None:
        self.position = SimpleNamespace(generation=0, source_offset=10_001)

    def translate(self, offset: int) -> int:
        return offset if self.position.generation == 0 else offset - 8_000


async def test_a_target_topic_that_is_created_again_changes_translations() -> None:
    """An idle group has the same offset on the source, but another one on the target."""
    source, target, copier = _Cluster(10_000), _Cluster(None), _Copier()
    groups = GroupOffsets(cast(Any, source), cast(Any, target), cast(Any, None), ["*"])
    assert await groups.commit([cast(Any, copier)]) == []
    copier.position.generation = 1
    assert await groups.commit([cast(Any, copier)]) == []
    assert target.committed == [10_000, 2_000]
