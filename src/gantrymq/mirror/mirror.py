"""Mirror: finds topics, runs one task for each source queue, and stores the positions on the target."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from math import inf

import msgspec

from gantrymq.errors import ClientError, GantryError
from gantrymq.logs import peer_log
from gantrymq.mirror.cluster import Cluster, added
from gantrymq.mirror.group_offsets import GroupOffsets
from gantrymq.mirror.message_rate import MessageRate
from gantrymq.mirror.origin import SourceQueue
from gantrymq.mirror.progress import FailedQueue, Progress
from gantrymq.mirror.queue_copier import QueueCopier, Refused
from gantrymq.mirror.state import Position, StateTopic
from gantrymq.protocol.bodies.topic_config import PERM_WRITE, TopicConfig
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import is_system_topic, topic_problem
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Interval at which the state is stored, in seconds.
STATE_INTERVAL_S = 5.0
#: Interval at which unchanged positions are stored again, in seconds, because messages of the state topic expire.
STATE_REFRESH_S = 3600.0
#: Interval at which the offsets of groups are translated, in seconds.
GROUPS_INTERVAL_S = 10.0
#: Interval at which new topics and queues are found, in seconds.
TOPICS_INTERVAL_S = 30.0
#: Pause before the first and before later attempts of a queue, in seconds. It doubles after each failure.
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
#: With `once`, a queue has failed after this number of attempts in succession.
ATTEMPTS = 6
#: Pause after a pull without messages, in seconds.
EMPTY_PULL_S = 0.1
#: Longest wait for the route of a new topic, and its interval, in seconds.
ROUTE_TIMEOUT_S, ROUTE_POLL_S = 5.0, 0.05
STATE_TOPIC = "gantry_mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """Options of a mirror.

    Args:
        topics: Names or patterns of topics (`orders-*`). Patterns match no system, retry or dead-letter topics.
        groups: Names or patterns of consumer groups whose offsets are translated. Default: none.
        state_topic: Topic of the target with the positions. Each mirror needs its own. Default: gantry_mirror.
        rename: Prefix of the names of topics on the target. Default: none.
        rate: Largest number of messages per second. Default: no limit.
        once: Whether the mirror ends at the ends that the queues have at its start. Default: False.

    Raises:
        ClientError: An option is invalid.
    """

    topics: Sequence[str]
    groups: Sequence[str] = ()
    state_topic: str = STATE_TOPIC
    rename: str = ""
    rate: int | None = None
    once: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise ClientError("topics: at least one name or pattern is needed")
        for name, topic in (("rename", self.rename + "x"), ("state_topic", self.state_topic)):
            if problem := topic_problem(topic):
                raise ClientError(f"{name}: {problem}")
        if self.rate is not None and self.rate < 1:
            raise ClientError(f"rate={self.rate}: at least 1 message per second")


class Mirror:
    """Copies topics from `source` to `target`. `run` does the work."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        options: MirrorOptions,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._on_progress = on_progress
        self._rate = MessageRate(options.rate)
        self._state = StateTopic(target, options.state_topic)
        self._groups = GroupOffsets(source, target, self._state, options.groups)
        self._failed_groups: list[str] = []
        #: Positions of the stored state, including those of queues that this mirror does not copy.
        self._positions: dict[str, Position] = {}
        #: Time of the next write of unchanged positions (monotonic, in seconds).
        self._state_due = inf
        self._copiers: dict[MessageQueue, QueueCopier] = {}
        self._failed: dict[MessageQueue, str] = {}
        self._failed_topics: dict[str, str] = {}

    @property
    def progress(self) -> Progress:
        """The present figures."""
        copiers = self._copiers.values()
        return Progress(
            len(copiers),
            sum(copier.copied for copier in copiers),
            sum(copier.left_out for copier in copiers),
            sum(copier.lag for copier in copiers),
            self._groups.committed,
            [
                *(FailedQueue(topic, None, None, error) for topic, error in sorted(self._failed_topics.items())),
                *(FailedQueue(*queue, error) for queue, error in sorted(self._failed.items())),
            ],
            self._failed_groups,
        )

    async def run(self, stop: asyncio.Event) -> Progress:
        """Copies until `stop` is set, or with `once` to the ends of the queues. Returns the final figures.

        Stores the positions before it returns or raises.

        Raises:
            ClientError: Both sides are the same cluster, or no topic matches.
            GantryError: The NameServers or the state of the target are not reachable at the start.
        """
        await self._check_sides()
        await self._state.create()
        await self._until_routed(self._state.topic)
        self._positions = (await self._state.read()).positions
        self._state_due = monotonic() + STATE_REFRESH_S
        topics = await self._topics()
        if not topics:
            raise ClientError(f"no topic of the source is like {', '.join(map(repr, self._options.topics))}")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._store_state())
                if self._options.groups and not self._options.once:
                    tasks.create_task(self._translate_groups())
                ends = [tasks.create_task(_wait(stop)), tasks.create_task(self._copy_all(tasks, topics))]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                # Cancels all other tasks. The next start finds the copies whose responses are lost by this.
                raise _StoppedError
        except* _StoppedError:
            pass
        finally:
            await self._write_state()
        return self.progress

    async def _check_sides(self) -> None:
        """Raises ClientError if a broker belongs to both sides."""
        source = set((await self._source.masters()).values())
        both = source.intersection((await self._target.masters()).values())
        if both:
            raise ClientError(f"source and target are the same cluster: both have the broker {min(both)}")

    # -- tasks --------------------------------------------------------------------------------------------------

    async def _copy_all(self, tasks: asyncio.TaskGroup, topics: Sequence[str]) -> None:
        """Starts a task for each queue, and looks for new ones. With `once`, returns when all queues are copied."""
        while True:
            new = await self._new_queues(topics)
            running = [tasks.create_task(self._copy(self._copiers[queue])) for queue in new]
            if self._options.once:
                if running:
                    await asyncio.wait(running)
                if self._options.groups:
                    self._failed_groups = await self._groups.commit(self._copiers.values())
                return
            await asyncio.sleep(TOPICS_INTERVAL_S)
            try:
                topics = await self._topics()
            except GantryError as e:
                log.warning("the topics of the source cannot be listed: %s", e)

    async def _copy(self, copier: QueueCopier) -> None:
        """Copies one queue, with retries."""
        end: int | None = None
        failures = 0
        while True:
            before = copier.position
            try:
                if self._options.once and end is None:
                    _, end = await self._source.bounds(copier.queue)
                await copier.step(waits=not self._options.once)
            except GantryError as e:
                copier.failed()
                self._failed[copier.queue] = str(e)
                failures += 1
                pause = min(FIRST_RETRY_S * 2 ** (failures - 1), LONGEST_RETRY_S)
                if isinstance(e, Refused) and self._options.once:
                    failures = ATTEMPTS
                if self._options.once and failures >= ATTEMPTS:
                    log.error("%s is not copied completely: %s", copier.name, e)
                    return
                due = datetime.now().astimezone() + timedelta(seconds=pause)
                log.warning("%s: %s; next attempt at %s", copier.name, e, due.strftime("%H:%M:%S"))
                await asyncio.sleep(pause)
                continue
            failures = 0
            self._failed.pop(copier.queue, None)
            if copier.position == before:
                # Some brokers respond at once although there is no message.
                await asyncio.sleep(EMPTY_PULL_S)
            if end is not None and copier.is_located and copier.position.source_offset >= end:
                return

    async def _translate_groups(self) -> None:
        while True:
            await asyncio.sleep(GROUPS_INTERVAL_S)
            self._failed_groups = await self._groups.commit(list(self._copiers.values()))

    async def _store_state(self) -> None:
        while True:
            await asyncio.sleep(STATE_INTERVAL_S)
            await self._write_state()

    async def _write_state(self) -> None:
        """Stores the positions if they have changed or may expire, and reports the progress. Logs a failure."""
        positions = self._positions | {copier.key: copier.position for copier in self._copiers.values()}
        if positions != self._positions or monotonic() >= self._state_due:
            try:
                await self._state.write(positions)
                self._positions = positions
                self._state_due = monotonic() + STATE_REFRESH_S
            except GantryError as e:
                log.warning("the positions are not stored in topic %s of the target: %s", self._state.topic, e)
        if self._on_progress is not None:
            self._on_progress(self.progress)

    # -- topics and queues --------------------------------------------------------------------------------------

    async def _topics(self) -> list[str]:
        """Returns the topics of the source to copy, sorted."""
        patterns = self._options.topics
        return [
            topic
            for topic in await self._source.admin.topic_list()
            if topic != self._state.topic
            and (topic in patterns or (not _is_special(topic) and any(fnmatchcase(topic, p) for p in patterns)))
        ]

    async def _new_queues(self, topics: Sequence[str]) -> list[MessageQueue]:
        """Creates copiers for queues that have none, and returns the queues. Logs failures."""
        new: list[MessageQueue] = []
        for topic in topics:
            try:
                self._source.forget_route(topic)
                queues = [queue for queue in await self._source.queues(topic) if queue not in self._copiers]
                if queues:
                    await self._add(topic, queues)
                    new += queues
            except GantryError as e:
                log.warning("topic %s cannot be copied at present: %s", topic, e)
                self._failed_topics[topic] = str(e)
            else:
                self._failed_topics.pop(topic, None)
        return new

    async def _add(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        target_topic = self._options.rename + topic
        await self._create(topic, target_topic)
        self._target.forget_route(target_topic)
        counts = await self._target.write_queue_nums(target_topic)
        if not counts:
            raise ClientError(f"topic {target_topic!r} of the target has no writable queue")
        sources = sorted({queue.broker_name for queue in await self._source.queues(topic)})
        copiers: dict[MessageQueue, QueueCopier] = {}
        for queue in queues:
            origin = SourceQueue(await self._source.cluster_of(queue), queue.broker_name, queue.queue_id)
            position = self._positions.get(origin.key(topic))
            if position is None or position.target_topic != target_topic:
                generation = 0 if position is None else position.generation + 1
                broker = target_broker(queue.broker_name, sources, list(counts))
                position = Position(target_topic, broker, queue.queue_id % counts[broker], generation=generation)
            copiers[queue] = QueueCopier(self._source, self._target, queue, origin, position, self._rate)
        # After an error, no queue has a copier, and the next round adds all queues.
        self._copiers |= copiers

    async def _create(self, topic: str, target_topic: str) -> None:
        """Creates the topic on all masters of the target if none has it, with the configuration of the source."""
        masters = await self._target.masters()
        for address in masters.values():
            if await self._target.has_topic(address, target_topic):
                return
        configs: list[TopicConfig] = []
        for address in await self._source.admin.holders(topic):
            configs.append(await self._source.admin.topic_config(address, topic))
        config = msgspec.structs.replace(
            configs[0],
            topic_name=target_topic,
            read_queue_nums=max(config.read_queue_nums for config in configs),
            write_queue_nums=max(max(config.read_queue_nums, config.write_queue_nums) for config in configs),
            # Without it, the target would refuse the copies.
            perm=configs[0].perm | PERM_WRITE,
            attributes=added(configs[0].attributes),
        )
        for address in masters.values():
            await self._target.admin.create_topic(config, broker=address)
        await self._until_routed(target_topic)

    async def _until_routed(self, topic: str) -> None:
        """Waits until the target's NameServer has the topic of all masters, at most ROUTE_TIMEOUT_S."""
        masters = set(await self._target.masters())
        end = monotonic() + ROUTE_TIMEOUT_S
        while monotonic() < end:
            self._target.forget_route(topic)
            try:
                if masters <= set(await self._target.write_queue_nums(topic)):
                    return
            except ClientError:
                # Brokers register a new topic within milliseconds.
                pass
            await asyncio.sleep(ROUTE_POLL_S)


class _StoppedError(Exception):
    """Ends the task group of a mirror."""


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


def target_broker(broker: str, sources: Sequence[str], targets: Sequence[str]) -> str:
    """Returns the target broker for the queues of a source broker: the one of the same name, else by position."""
    if broker in targets:
        return broker
    return targets[sources.index(broker) % len(targets)]


def _is_special(topic: str) -> bool:
    return is_system_topic(topic) or topic.startswith("%")
