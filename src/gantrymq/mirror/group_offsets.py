"""GroupOffsets: commits the offsets of the source's consumer groups on the target, translated.

- A group with a connected consumer on the target is left out: it has its own offsets there.
- Offsets on the target only move forward.
- The offset of a source queue becomes the offset of the first copy that the group has not consumed, or a lower one. If
  several source queues have one target queue, the lowest offset counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from gantrymq.errors import BrokerError, GantryError, NoRouteInfo
from gantrymq.logs import peer_log
from gantrymq.mirror.cluster import Cluster, added
from gantrymq.mirror.queue_copier import QueueCopier
from gantrymq.mirror.state import StateTopic
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import is_system_group

log = peer_log(__name__)


class GroupOffsets:
    """Translates and commits the offsets of the groups that match one of `patterns`."""

    def __init__(self, source: Cluster, target: Cluster, state: StateTopic, patterns: Sequence[str]) -> None:
        #: Number of offsets that were committed.
        self.committed = 0
        self._source = source
        self._target = target
        self._state = state
        self._patterns = patterns
        #: (address, group) of the groups that exist on the target.
        self._created: set[tuple[str, str]] = set()
        #: (group, source queue) -> (generation of the copies, source offset, its translation), for source offsets that
        #: need no further translation.
        self._translated: dict[tuple[str, MessageQueue], tuple[int, int, int]] = {}

    async def commit(self, copiers: Iterable[QueueCopier]) -> list[str]:
        """Commits the offsets of all groups. Returns the errors: one text for each group and topic."""
        by_topic: dict[str, list[QueueCopier]] = {}
        for copier in copiers:
            by_topic.setdefault(copier.queue.topic, []).append(copier)
        errors: list[str] = []
        for topic, of_topic in by_topic.items():
            group = "*"
            try:
                for group in await self._groups(topic):
                    try:
                        if not await self._is_active(group):
                            await self._commit(group, of_topic)
                    except BrokerError as e:
                        # A missing permission, for example. Other groups do not have to wait for it.
                        errors.append(_failure(group, topic, e))
            except GantryError as e:
                errors.append(_failure(group, topic, e))
        return errors

    async def _groups(self, topic: str) -> list[str]:
        return [
            group
            for group in await self._source.admin.groups_of_topic(topic)
            if not is_system_group(group) and any(fnmatchcase(group, pattern) for pattern in self._patterns)
        ]

    async def _is_active(self, group: str) -> bool:
        """Returns whether a consumer of the group is connected to the target."""
        try:
            return bool((await self._target.admin.consumer_connection(group)).connection_set)
        except NoRouteInfo:
            return False
        except BrokerError as e:
            if e.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
                raise
            return False

    async def _commit(self, group: str, copiers: Sequence[QueueCopier]) -> None:
        by_queue: dict[MessageQueue, list[int | None]] = {}
        for copier in copiers:
            by_queue.setdefault(copier.target_queue, []).append(await self._translate(group, copier))
        for queue, offsets in by_queue.items():
            known = [offset for offset in offsets if offset is not None]
            if len(known) < len(offsets):
                # The group has not begun to consume one of the source queues, or its position is not located yet.
                continue
            before = await self._target.committed_offset(queue, group)
            if before is None or before < min(known):
                await self._create(queue, group, copiers[0].queue)
                await self._target.commit_offset(queue, group, min(known))
                self.committed += 1

    async def _translate(self, group: str, copier: QueueCopier) -> int | None:
        offset = await self._source.committed_offset(copier.queue, group)
        if offset is None or not copier.is_located:
            return None
        generation = copier.position.generation
        known = self._translated.get((group, copier.queue))
        if known is not None and known[:2] == (generation, offset):
            return known[2]
        is_final = offset < copier.position.source_offset
        translated = copier.translate(offset)
        if translated is None:
            start = await self._state.target_offset_before(copier.key, generation, offset)
            translated = await copier.search(offset, start)
        if is_final and generation == copier.position.generation:
            self._translated[group, copier.queue] = generation, offset, translated
        return translated

    async def _create(self, queue: MessageQueue, group: str, source_queue: MessageQueue) -> None:
        """Creates the group on the broker of `queue` if it is missing there, with the configuration of the source."""
        address = await self._target.address(queue, master=True)
        if (address, group) in self._created:
            return
        if await self._target.admin.group_config(address, group) is None:
            config = await self._source.admin.group_config(await self._source.address(source_queue), group)
            if config is not None:
                config = msgspec.structs.replace(config, attributes=added(config.attributes))
                await self._target.admin.create_group(config, broker=address)
        self._created.add((address, group))


def _failure(group: str, topic: str, error: GantryError) -> str:
    log.warning("offsets of group %s in topic %s are not committed on the target: %s", group, topic, error)
    return f"offsets of group {group} in topic {topic}: {error}"
