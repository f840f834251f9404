"""The broker's figures: GET_BROKER_RUNTIME_INFO and VIEW_BROKER_STATS_DATA (`AdminBrokerProcessor.prepareRuntimeInfo`).

Keys are Java's. What Java has of its thread pools' queues is 0; what it measures for each message isn't there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from gantrymq.background.failures import failure_fields
from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.part import Part
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.traffic import DAY, HOUR, MINUTE, SAMPLE_S, Recent, Totals, Traffic
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from gantrymq.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.protocol.version_name import version_name
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.message_store import MessageStore
from gantrymq.system import files
from gantrymq.system.clock import now_ms, time

#: Questions within so many seconds get the figures of one sample.
_FRESH_S = 1.0
#: Java's thread pools: each has a queue, of which tools show the size and how long its first request waits.
_POOLS = ("send", "pull", "litePull", "query", "ack")


class RuntimeInfo(Part):
    """Figures of a broker that begins now."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        deliveries: Deliveries,
        schedule: Schedule,
        timer: Timer,
        jobs: Jobs,
    ) -> None:
        self._config = config
        self._store = store
        self._deliveries = deliveries
        self._delays = schedule
        self._timer = timer
        self._clock = asyncio.get_running_loop().time
        self._started = self._sampled = self._clock()
        self._boot_timestamp = now_ms()
        self._boot_position = 0
        self._put = Traffic((), self._started)
        self._got = Traffic(deliveries.totals(), self._started)
        self._timed = Traffic(timer.totals(), self._started)
        today = date.fromtimestamp(time()).toordinal()
        self._put_days, self._got_days = Totals(today), Totals(today)
        self._jobs = jobs
        self._sampling = jobs.repeating("take samples of the traffic", self.sample, SAMPLE_S)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
        }

    def load(self) -> None:
        """What the store has by now came before."""
        self._boot_position = self._store.max_physical_offset
        self._put = Traffic(self.put_totals(), self._started)

    async def start(self) -> None:
        self._sampling.start()

    async def stop(self) -> None:
        self._sampling.cancel()

    def sample(self) -> None:
        """Takes in what has come and gone so far."""
        now = self._sampled = self._clock()
        today = date.fromtimestamp(time()).toordinal()
        self._put_days.update(today, self._put.total)
        self._got_days.update(today, self._got.total)
        self._put.sample(self.put_totals(), now)
        self._got.sample(self._deliveries.totals(), now)
        self._timed.sample(self._timer.totals(), now)

    def put_tps(self, topic: str) -> float:
        """Messages a second that came to a topic in the last minute."""
        return self._put.recent(topic, MINUTE, self._now()).tps

    def get_tps(self, group: str, topic: str) -> float:
        """Messages a second that a group got of a topic in the last minute."""
        return self._got.recent(f"{topic}@{group}", MINUTE, self._now()).tps

    def runtime_info(self, connection: Connection, request: RemotingCommand) -> Reply:
        """All figures as text."""
        return RemotingCommand.response(body=encode_json(KVTable(self.table())))

    def table(self) -> dict[str, str]:
        now = self._now()
        put, got, store = self._put, self._got, self._store
        size = store.max_physical_offset - self._boot_position
        got_tps = _rates(got, now)
        table: dict[str, object] = {
            "brokerVersionDesc": version_name(PROTOCOL_VERSION),
            "brokerActive": "true",
            "bootTimestamp": self._boot_timestamp,
            "startAcceptSendRequestTimeStamp": 0,
            "runtime": _duration(now - self._started),
            "putTps": _rates(put, now),
            "getTransferredTps": got_tps,
            "getFoundTps": got_tps,
            "getTotalTps": got_tps,
            "putMessageTimesTotal": put.total,
            "putMessageSizeTotal": size,
            "putMessageAverageSize": size / max(put.total, 1),
            "msgPutTotalYesterdayMorning": self._put_days.yesterday_morning,
            "msgPutTotalTodayMorning": self._put_days.today_morning,
            "msgPutTotalTodayNow": put.total,
            "msgGetTotalYesterdayMorning": self._got_days.yesterday_morning,
            "msgGetTotalTodayMorning": self._got_days.today_morning,
            "msgGetTotalTodayNow": got.total,
            "commitLogMinOffset": store.min_physical_offset,
            "commitLogMaxOffset": store.max_physical_offset,
            "earliestMessageTimeStamp": self.earliest_timestamp(),
            "remainHowManyDataToFlush": _bytes(store.max_physical_offset - store.flushed_offset),
            # `append` writes the units with the record, so there is nothing to dispatch.
            "dispatchBehindBytes": 0,
            "pageCacheLockTimeMills": 0,
            "timerEnqueueTps": self._timed.recent("enqueue", MINUTE, now).tps,
            "timerDequeueTps": self._timed.recent("dequeue", MINUTE, now).tps,
        }
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
        table |= self._timers() | self._disk() | self._schedule() | failure_fields(self._jobs)
        return {key: str(value) for key, value in sorted(table.items())}

    def stats_data(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A topic's messages (TOPIC_PUT_NUMS) or a topic@group's (GROUP_GET_NUMS) in the last minute, hour and day."""
        header = request.read_header(ViewBrokerStatsDataRequestHeader)
        traffic = {"TOPIC_PUT_NUMS": self._put, "GROUP_GET_NUMS": self._got}.get(header.stats_name)
        now = self._now()
        if traffic is None or header.stats_key not in traffic:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        minute, hour, day = (_item(traffic.recent(header.stats_key, span, now)) for span in (MINUTE, HOUR, DAY))
        return RemotingCommand.response(body=encode_json(BrokerStatsData(minute, hour, day)))

    def _now(self) -> float:
        """The time, after a new sample where the last one is old."""
        if self._clock() - self._sampled >= _FRESH_S:
            self.sample()
        return self._clock()

    def put_totals(self) -> Iterator[tuple[str, int]]:
        """(topic, messages ever stored)."""
        find = self._store.find_queue
        for topic, queue_ids in self._store.topics().items():
            yield topic, sum(queue.max_offset for id_ in queue_ids if (queue := find(topic, id_)) is not None)

    def earliest_timestamp(self) -> int:
        """When the oldest message was stored, ms; -1 when there is none."""
        try:
            return self._store.read_record(self._store.min_physical_offset).store_timestamp
        except GantryError:
            return -1

    def disk_used_ratios(self) -> dict[str, float]:
        """How much of the partition is used, 0 to 1, that has the log, and of the one that has the other files."""
        store = self._config.store
        return {
            "commitLog": _used_ratio(store.commit_log_directory),
            "consumeQueue": _used_ratio(store.store_path_root_dir),
        }

    def _disk(self) -> dict[str, object]:
        log = self._config.store.commit_log_directory
        disk = files.disk_use(log)
        ratios = self.disk_used_ratios()
        return {
            "commitLogDiskRatio": ratios["commitLog"],
            f"commitLogDiskRatio_{log}": ratios["commitLog"],
            "consumeQueueDiskRatio": ratios["consumeQueue"],
            "commitLogDirCapacity": f"Total : {_bytes(disk.total)}, Free : {_bytes(disk.free)}.",
        }

    def _timers(self) -> dict[str, object]:
        behind = self._timer.behind()
        return {
            "timerReadBehind": behind.overdue_ms // 1000,
            "timerOffsetBehind": behind.not_taken_in,
            "timerCongestNum": behind.waiting,
        }

    def _schedule(self) -> dict[str, object]:
        """For each delay level how far its queue is delivered, and its end."""
        queues = {level: self._store.find_queue(SCHEDULE_TOPIC, level - 1) for level in self._delays.offsets()}
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{queue.max_offset if (queue := queues[level]) else 0}"
            for level, offset in self._delays.offsets().items()
        }


def _rates(traffic: Traffic, now: float) -> str:
    """Over 10 s, 1 and 10 minutes, as Java writes it."""
    return " ".join(str(traffic.tps(seconds, now)) for seconds in (10, 60, 600))


def _item(recent: Recent) -> BrokerStatsItem:
    return BrokerStatsItem(recent.sum, recent.tps, 1.0 if recent.sum else 0.0)


def _used_ratio(path: Path) -> float:
    """What only root may use counts as used (`UtilAll.getDiskPartitionSpaceUsedPercent`)."""
    disk = files.disk_use(path)
    return disk.used / max(disk.used + disk.free, 1)


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


def _bytes(count: int) -> str:
    """`MixAll.humanReadableByteCount`."""
    if count < 1024:
        return f"{count} B"
    size, unit = float(count), 0
    while size >= 1024 and unit < 6:
        size /= 1024
        unit += 1
    return f"{size:.1f} {' KMGTPE'[unit]}iB"
