"""Statistics of the broker: GET_BROKER_RUNTIME_INFO and VIEW_BROKER_STATS_DATA.

The keys are those of `AdminBrokerProcessor.prepareRuntimeInfo`. The queue sizes of Java's thread pools are 0, because
this broker has no such pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

from gantrymq.background.failures import failure_fields
from gantrymq.broker.admin.stats_table import StatsTable
from gantrymq.broker.admin.stored_sizes import StoredSizes
from gantrymq.broker.admin.traffic import MINUTE, SAMPLE_S, Totals, Traffic
from gantrymq.broker.append import Appender
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import DelayLevels, Timer
from gantrymq.broker.feature import Feature
from gantrymq.config import MAX_INT
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.broker_keys import LOG_DIR_STATE
from gantrymq.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.protocol.version_name import version_name
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system import files
from gantrymq.system.clock import monotonic, now_ms, time

#: Requests within this time use the same sample, in seconds.
_FRESH_S = 1.0
#: Longest time slice of a sample, in seconds.
_SLICE_S = 0.0005
#: Java's thread pools, and the default capacities of their queues. Tools show the size of each queue and the waiting
#: time of its first request.
_POOLS = {"send": 10_000, "pull": 100_000, "litePull": 100_000, "query": 20_000, "ack": 100_000}
_END_TRANSACTION_CAPACITY = 100_000


class RuntimeInfo(Feature):
    """Collects statistics from the start of the broker."""

    def __init__(self, context: BrokerContext, *, appender: Appender, schedule: DelayLevels, timer: Timer) -> None:
        self._config = context.config
        self._store = context.store
        self._counts = context.stats
        self._put_times = appender.put_times
        self._delays = schedule
        self._timer = timer
        self._clock = asyncio.get_running_loop().time
        self._started = self._sampled = self._clock()
        self._boot_timestamp = now_ms()
        self._boot_position = 0
        self._stats = self._new_stats()
        #: The sample that is not complete yet.
        self._steps: Iterator[None] | None = None
        self._reads = Traffic(self._started)
        self._misses = Traffic(self._started)
        self._timed = Traffic(self._started, timer.totals())
        today = date.fromtimestamp(time()).toordinal()
        self._put_days, self._got_days = Totals(today), Totals(today)
        self._jobs = context.jobs
        self._sampling = context.jobs.repeating("take samples of the traffic", self.sample, SAMPLE_S)
        self._adding_sizes = context.jobs.repeating("add up the sizes of new messages", self._add_sizes)
        events = context.events
        events.topics_deleted.subscribe(lambda names, queues: self._topics_deleted(names))
        events.group_deleted.subscribe(lambda name: self._stats.forget_group(name))
        events.queues_expired.subscribe(lambda: self._sizes.queues_deleted())

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
        }

    def load(self) -> None:
        """Excludes the messages that the store had before the broker started."""
        self._boot_position = self._store.max_physical_offset
        self._stats = self._new_stats()
        self._stats.begin(self.put_totals())

    async def start(self) -> None:
        self._sampling.start()
        self._adding_sizes.start()

    async def stop(self) -> None:
        self._sampling.cancel()
        self._adding_sizes.cancel()

    def _topics_deleted(self, topics: Collection[str]) -> None:
        self._sizes.queues_deleted()
        self._stats.forget_topics(topics)

    def sample(self) -> float | None:
        """Takes a sample of the totals, for one time slice. Returns 0 if the sample is not complete."""
        if self._steps is None:
            self._sampled = self._clock()
            self._steps = self._sample_in_steps(self._sampled)
        ends = monotonic() + _SLICE_S
        for _ in self._steps:
            if monotonic() >= ends:
                return 0.0
        self._steps = None
        return None

    def _sample_in_steps(self, now: float) -> Iterator[None]:
        today = date.fromtimestamp(time()).toordinal()
        self._put_days.update(today, self._put_total)
        self._got_days.update(today, self._got_total)
        self._reads.sample([("", self._counts.reads)], now)
        self._misses.sample([("", self._counts.misses)], now)
        self._timed.sample(self._timer.totals(), now)
        self._put_times.sample(now)
        yield from self._stats.sample(self.put_totals(), now)
        if self._sizes.is_behind:
            self._adding_sizes.wake()

    def _add_sizes(self) -> float | None:
        """Adds a part of the sizes. Returns 0 while more parts follow."""
        return 0.0 if self._stats.add_sizes() else None

    def _new_stats(self) -> StatsTable:
        self._sizes = StoredSizes(self._store, self._boot_position)
        return StatsTable(self._counts, self._sizes, self._config.broker_cluster_name, self._started)

    @property
    def _put_total(self) -> int:
        """The number of messages stored since the start, without system topics, as in Java's `BrokerStats`."""
        return self._stats.of("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC").total

    @property
    def _got_total(self) -> int:
        return self._stats.of("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC").total

    def put_tps(self, topic: str) -> float:
        """Returns the rate of messages stored in a topic in the last minute, in messages per second."""
        now = self._now()
        return self._stats.of("TOPIC_PUT_NUMS").recent(topic, MINUTE, now).tps

    def get_tps(self, group: str, topic: str) -> float:
        """Returns the rate at which a group received messages of a topic in the last minute, in messages per second."""
        now = self._now()
        return self._stats.of("GROUP_GET_NUMS").recent(f"{topic}@{group}", MINUTE, now).tps

    def runtime_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns all statistics as text."""
        return RemotingCommand.response(body=encode_json(KVTable(self.table())))

    def table(self) -> dict[str, str]:
        """Returns all statistics by Java's keys."""
        now = self._now()
        put, got, store = self._stats.of("TOPIC_PUT_NUMS"), self._stats.of("GROUP_GET_NUMS"), self._store
        reads, misses, times = self._reads, self._misses, self._put_times
        size = store.max_physical_offset - self._boot_position
        table: dict[str, object] = {
            "brokerVersionDesc": version_name(PROTOCOL_VERSION),
            "brokerActive": "true",
            "bootTimestamp": self._boot_timestamp,
            "startAcceptSendRequestTimeStamp": 0,
            "runtime": _duration(now - self._started),
            "putTps": _rates([put], now),
            "putMessageEntireTimeMax": times.longest_ms,
            "putMessageFailedTimes": times.failed,
            "putMessageDistributeTime": times.distribution(),
            "putLatency99": f"{times.percentile(0.99):.2f}",
            "putLatency999": f"{times.percentile(0.999):.2f}",
            "getTransferredTps": _rates([got], now),
            "getFoundTps": _rates([reads], now),
            "getMissTps": _rates([misses], now),
            "getTotalTps": _rates([reads, misses], now),
            "getMessageEntireTimeMax": self._counts.longest_read_ms,
            "putMessageTimesTotal": put.total,
            "putMessageSizeTotal": size,
            "putMessageAverageSize": size / max(put.total, 1),
            "msgPutTotalYesterdayMorning": self._put_days.yesterday_morning,
            "msgPutTotalTodayMorning": self._put_days.today_morning,
            "msgPutTotalTodayNow": self._put_total,
            "msgGetTotalYesterdayMorning": self._got_days.yesterday_morning,
            "msgGetTotalTodayMorning": self._got_days.today_morning,
            "msgGetTotalTodayNow": self._got_total,
            "commitLogMinOffset": store.min_physical_offset,
            "commitLogMaxOffset": store.max_physical_offset,
            "earliestMessageTimeStamp": self.earliest_timestamp(),
            "remainHowManyDataToFlush": _bytes(store.max_physical_offset - store.flushed_offset),
            # `append` writes the queue units together with the record, so there is nothing to dispatch.
            "dispatchBehindBytes": 0,
            "dispatchMaxBuffer": 0,
            # There is no TransientStorePool, as in Java by default.
            "remainTransientStoreBufferNumbs": MAX_INT,
            "pageCacheLockTimeMills": 0,
            "timerEnqueueTps": self._timed.recent("enqueue", MINUTE, now).tps,
            "timerDequeueTps": self._timed.recent("dequeue", MINUTE, now).tps,
        }
        for pool, capacity in _POOLS.items():
            table[f"{pool}ThreadPoolQueueSize"] = table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
            table[f"{pool}ThreadPoolQueueCapacity"] = capacity
        table["sendThreadPoolQueueCapacity"] = self._config.send_thread_pool_queue_capacity
        table["EndTransactionQueueSize"] = 0
        table["EndTransactionThreadPoolQueueCapacity"] = _END_TRANSACTION_CAPACITY
        table |= self._timers() | self._disk() | self._schedule() | failure_fields(self._jobs)
        return {key: str(value) for key, value in sorted(table.items())}

    def stats_data(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the statistics of one kind and key for the last minute, hour and day."""
        header = request.read_header(ViewBrokerStatsDataRequestHeader)
        data = self._stats.data(header.stats_name, header.stats_key, self._now())
        if data is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return RemotingCommand.response(body=encode_json(data))

    def _now(self) -> float:
        """Returns the current time. Starts a new sample first if the last one is too old.

        If the sample needs more than one time slice, it is completed in the background.
        """
        if self._clock() - self._sampled >= _FRESH_S and self.sample() is not None:
            self._sampling.wake()
        return self._clock()

    def put_totals(self) -> Iterator[tuple[str, int]]:
        """Yields each topic with the number of messages ever stored in it."""
        return self._store.message_totals()

    def earliest_timestamp(self) -> int:
        """Returns the store time of the oldest message, in milliseconds; -1 if there is none."""
        try:
            return self._store.read_record(self._store.min_physical_offset).store_timestamp
        except GantryError:
            return -1

    def disk_used_ratios(self) -> dict[str, float]:
        """Returns the used share of the partitions that contain the commit log and the other files, from 0 to 1.

        With several directories of the log, `commitLog` is that of the partition with the most space, and each
        directory has an entry. A partition that can't be measured has -1.
        """
        paths = self._store.log_paths
        ratios = self._log_disk_ratios()
        least = min((ratios[path] for path in paths.writable if ratios[path] >= 0), default=-1.0)
        several = {f"commitLog_{path}": ratio for path, ratio in ratios.items()} if paths.has_several else {}
        return {"commitLog": least, **several, "consumeQueue": _used_ratio(self._config.store.store_path_root_dir)}

    def _log_disk_ratios(self) -> dict[Path, float]:
        return {path: _used_ratio(path) for path in self._store.log_paths.all}

    def disk_used_bytes(self) -> int:
        """Returns the used space of the partition with the store's root directory (`DefaultStoreMetricsManager`)."""
        return files.disk_use(self._config.store.store_path_root_dir).used

    def _disk(self) -> dict[str, object]:
        ratios = self.disk_used_ratios()
        disks = _disks(self._store.log_paths.all)
        total, free = sum(disk.total for disk in disks), sum(disk.free for disk in disks)
        return {
            "commitLogDiskRatio": ratios["commitLog"],
            **{f"commitLogDiskRatio_{path}": ratio for path, ratio in self._log_disk_ratios().items()},
            **self._log_dir_states(),
            "consumeQueueDiskRatio": ratios["consumeQueue"],
            "commitLogDirCapacity": f"Total : {_bytes(total)}, Free : {_bytes(free)}.",
        }

    def _log_dir_states(self) -> dict[str, str]:
        """Returns the state of each directory of the log if there are several. Java has no such keys."""
        if not self._store.log_paths.has_several:
            return {}
        states = self._store.log_paths.states().items()
        return {f"{LOG_DIR_STATE}{path}": f"{state}: {text}" if text else state for path, (state, text) in states}

    def _timers(self) -> dict[str, object]:
        behind = self._timer.behind()
        return {
            "timerReadBehind": behind.overdue_ms // 1000,
            "timerOffsetBehind": behind.not_taken_in,
            "timerCongestNum": behind.waiting,
        }

    def _schedule(self) -> dict[str, object]:
        """Returns the delivered offset and the end of the queue of each delay level."""
        queues = {level: self._store.find_queue(SCHEDULE_TOPIC, level - 1) for level in self._delays.offsets()}
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{queue.max_offset if (queue := queues[level]) else 0}"
            for level, offset in self._delays.offsets().items()
        }


def _rates(traffics: Sequence[Traffic], now: float) -> str:
    """Returns the total rates over 10 s, 1 min and 10 min in Java's format."""
    return " ".join(str(sum(traffic.tps(seconds, now) for traffic in traffics)) for seconds in (10, 60, 600))


def _used_ratio(path: Path) -> float:
    """Returns a partition's used share, including root's reserve (`UtilAll.getDiskPartitionSpaceUsedPercent`).

    Returns -1 if it can't be measured.
    """
    try:
        disk = files.disk_use(path)
    except OSError:
        return -1.0
    return disk.used / max(disk.used + disk.free, 1)


def _disks(paths: Iterable[Path]) -> list[files.DiskUse]:
    """Returns the space of the partitions that contain these paths, each once."""
    found: dict[int, files.DiskUse] = {}
    for path in paths:
        with suppress(OSError):
            found.setdefault(files.stat(path).st_dev, files.disk_use(path))
    return list(found.values())


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


def _bytes(count: int) -> str:
    """Formats a number of bytes (`MixAll.humanReadableByteCount`)."""
    if count < 1024:
        return f"{count} B"
    size, unit = float(count), 0
    while size >= 1024 and unit < 6:
        size /= 1024
        unit += 1
    return f"{size:.1f} {' KMGTPE'[unit]}iB"
