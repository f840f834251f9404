"""Saves the brokers of a NameServer and their topics in a file, so that they survive a restart.

Brokers register every 30 s. In the first 30 s after a start, the routes can therefore lack brokers. `load` adds each
broker in the file to `LOST_BROKERS`, where it stays until it registers. Java's NameServer has no such file.

    {"brokers": {"broker-a": {"clusterName": "DefaultCluster"},
                 "broker-b": {"clusterName": "DefaultCluster", "lostTime": 1700000000000}},
     "topics": [{"brokerNames": ["broker-a", "broker-b"], "names": ["orders", "payments"]}]}

`lostTime` is the time, in ms since the epoch, at which a broker was lost. Topics on the same brokers share an entry. If
the file can't be read, the NameServer logs a warning and starts without it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from gantrymq.background.jobs import Jobs
from gantrymq.config import replace_file
from gantrymq.errors import BodyError, ConfigError
from gantrymq.logs import peer_log
from gantrymq.namesrv.lost_brokers import KEPT_MS, LostBroker
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.namesrv.topic_table import TopicQueues
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.system import files
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: Interval between two checks for changes, in s.
INTERVAL_S = 1.0
#: Minimum pause after a write, as a multiple of the duration of the write.
_PAUSE_FACTOR = 20
#: Size limit of the file. 500,000 topics with names of 50 characters need 27 MB.
MAX_FILE_BYTES = 32 * 1024 * 1024
#: Maximum number of topics in an entry. An entry is encoded in one step, which blocks the event loop.
_TOPICS_OF_ENTRY = 10_000


class _Broker(msgspec.Struct, rename="camel", omit_defaults=True):
    cluster_name: str
    lost_time: int | None = None


class _Topics(msgspec.Struct, rename="camel"):
    broker_names: list[str]
    names: list[str]


class _Content(msgspec.Struct):
    brokers: dict[str, _Broker] = {}
    topics: list[_Topics] = []


class _Snapshot(NamedTuple):
    """A copy of the file's content for the thread that writes it."""

    clusters: dict[str, str]
    topics: dict[str, TopicQueues]
    lost: list[LostBroker]
    #: Monotonic time of the snapshot (as in `LostBroker.since_ms`), and the number to add to it for ms since the epoch.
    now_ms: int
    epoch_ms: int


class KnownBrokersFile:
    """Writes changes of `table` to the file at `path`, after INTERVAL_S or, if writes are slow, later."""

    def __init__(self, path: Path, table: RouteTable, jobs: Jobs) -> None:
        self._path = path
        self._table = table
        self._written_revision = table.revision
        self._writing: asyncio.Future[None] | None = None
        self._job = jobs.repeating("write the known brokers", self._write_changes, INTERVAL_S)

    def load(self) -> None:
        """Adds the brokers in the file to the lost brokers."""
        try:
            data = files.read_bytes(self._path, MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return
        except OSError as e:
            self._warn(f"can't be read: {e.strerror or e}")
            return
        if len(data) > MAX_FILE_BYTES:
            self._warn(f"has more than {MAX_FILE_BYTES} bytes")
            return
        try:
            content = decode_json(data, _Content)
        except BodyError as e:
            self._warn(f"is damaged: {e}")
            return
        topics_of: defaultdict[str, set[str]] = defaultdict(set)
        for group in content.topics:
            for name in group.broker_names:
                topics_of[name].update(group.names)
        started_ms, epoch_ms = int(monotonic() * 1000), now_ms()
        # If its limits are exceeded, LostBrokers removes the brokers that were lost first.
        for name, broker in sorted(content.brokers.items(), key=lambda item: item[1].lost_time or epoch_ms):
            away_ms = 0 if broker.lost_time is None else max(0, epoch_ms - broker.lost_time)
            if away_ms < KEPT_MS:
                lost = LostBroker(name, broker.cluster_name, frozenset(topics_of[name]), started_ms - away_ms, True)
                self._table.lost.recall(lost, is_awaited=broker.lost_time is None)
        self._written_revision = self._table.revision

    def _warn(self, problem: str) -> None:
        log.warning(
            "the file of known brokers %s %s. The NameServer starts without it: until all brokers have registered, "
            "its routes can lack some of them",
            self._path,
            problem,
        )

    def start(self) -> None:
        """Starts the background job that writes changes."""
        self._job.start()

    async def stop(self) -> None:
        """Writes the last changes."""
        await self._job.stop()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        try:
            await self._write_changes()
        except ConfigError as e:
            log.warning("the last changes of the known brokers are not on the disk: %s", e)

    async def _write_changes(self) -> float | None:
        revision = self._table.revision
        if revision == self._written_revision:
            return None
        began = monotonic()
        snapshot = _Snapshot(
            self._table.clusters_of_brokers(),
            self._table.copy_of_topics(),
            list(self._table.lost),
            int(began * 1000),
            now_ms() - int(began * 1000),
        )
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, snapshot)
        # Cancelling this job does not end the thread: `stop` waits for it.
        await asyncio.shield(self._writing)
        self._written_revision = revision
        return max(INTERVAL_S, (monotonic() - began) * _PAUSE_FACTOR)

    def _write(self, snapshot: _Snapshot) -> None:
        replace_file(self._path, _encode(snapshot))


def _encode(snapshot: _Snapshot) -> bytes:
    lost_of: defaultdict[str, set[str]] = defaultdict(set)
    for lost in snapshot.lost:
        for topic in lost.topics:
            lost_of[topic].add(lost.broker_name)
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    # Topics with the same queues share one object.
    names_of: dict[TopicQueues, tuple[str, ...]] = {}
    for topic, queues in snapshot.topics.items():
        names = names_of.get(queues)
        if names is None:
            names = names_of[queues] = tuple(broker_queues.broker_name for broker_queues in queues.queues)
        if topic in lost_of:
            names = tuple(sorted({*names, *lost_of.pop(topic)}))
        groups[names].append(topic)
    for topic, lost_names in lost_of.items():
        groups[tuple(sorted(lost_names))].append(topic)
    brokers = {name: _Broker(cluster) for name, cluster in snapshot.clusters.items()}
    for lost in snapshot.lost:
        if lost.is_away:
            since_ms = snapshot.now_ms if lost.since_ms is None else lost.since_ms
            brokers[lost.broker_name] = _Broker(lost.cluster_name, since_ms + snapshot.epoch_ms)
        else:
            brokers.setdefault(lost.broker_name, _Broker(lost.cluster_name))
    pieces = [b'{"brokers":', encode_json(brokers), b',"topics":[']
    size, between = sum(map(len, pieces)), b""
    for entry in _entries(groups):
        piece = encode_json(entry)
        size += len(piece) + 1
        if size > MAX_FILE_BYTES - 100:
            log.warning("the file of known brokers reached its limit of %d bytes: it lacks topics", MAX_FILE_BYTES)
            break
        pieces += [between, piece]
        between = b","
    pieces.append(b"]}")
    return b"".join(pieces)


def _entries(groups: Mapping[tuple[str, ...], list[str]]) -> Iterator[_Topics]:
    for names, topics in groups.items():
        for start in range(0, len(topics), _TOPICS_OF_ENTRY):
            yield _Topics(list(names), topics[start : start + _TOPICS_OF_ENTRY])
