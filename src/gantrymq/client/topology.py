"""Topology: the brokers of a cluster as they are now: where, how much they have, how fast they are."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

import msgspec

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, GantryError
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.topic_name import is_system_topic

#: How often a broker is asked for its topics, which may be thousands, s.
TOPICS_INTERVAL_S = 10.0
#: Brokers that are asked at the same time.
MAX_CONCURRENT = 32


class BrokerState(msgspec.Struct, frozen=True, rename="camel"):
    """One broker. What it doesn't tell is None; with an `error` it could not be asked."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str | None = None
    #: Topics that aren't the system's own, and their queues.
    topics: int | None = None
    queues: int | None = None
    #: Messages a second in the last ten seconds.
    in_tps: float | None = None
    out_tps: float | None = None
    #: Where its log ends, and how many bytes of its master's a slave lacks.
    log_end: int | None = None
    lag_bytes: int | None = None
    error: str | None = None

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER_ID else f"slave {self.broker_id}"


class _Counted(NamedTuple):
    topics: int | None
    queues: int | None
    at_s: float


class Topology:
    """Asks the NameServers and brokers of `admin` anew with each `look`."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._counted: dict[str, _Counted] = {}
        self._limit = asyncio.Semaphore(MAX_CONCURRENT)

    async def look(self) -> list[BrokerState]:
        """Every registered broker, sorted by cluster, name and id. Raises a GantryError when no NameServer answers."""
        info = await self._admin.cluster_info()
        brokers = [
            BrokerState(broker.cluster, name, broker_id, address)
            for name, broker in info.broker_addr_table.items()
            for broker_id, address in broker.broker_addrs.items()
        ]
        brokers.sort(key=lambda broker: (broker.cluster, broker.broker_name, broker.broker_id))
        replicated = {broker.broker_name for broker in brokers if broker.broker_id != MASTER_ID}
        states = await asyncio.gather(*(self._ask(broker, broker.broker_name in replicated) for broker in brokers))
        ends = {state.broker_name: state.log_end for state in states if state.broker_id == MASTER_ID}
        return [_with_lag(state, ends.get(state.broker_name)) for state in states]

    async def _ask(self, broker: BrokerState, is_replicated: bool) -> BrokerState:
        async with self._limit:
            try:
                figures = await self._admin.runtime_info(broker.address)
                counted = await self._count(broker)
                log_end = await self._log_end(broker) if is_replicated else None
            except GantryError as e:
                return msgspec.structs.replace(broker, error=str(e))
        return msgspec.structs.replace(
            broker,
            version=figures.get("brokerVersionDesc"),
            topics=counted.topics,
            queues=counted.queues,
            in_tps=_latest(figures.get("putTps")),
            out_tps=_latest(figures.get("getTransferredTps")),
            log_end=log_end,
        )

    async def _log_end(self, broker: BrokerState) -> int | None:
        try:
            status = await self._admin.ha_status(broker.address)
        except BrokerError:
            # It doesn't tell, or not this user.
            return None
        return status.master_commit_log_max_offset if status.master else status.client.max_offset

    async def _count(self, broker: BrokerState) -> _Counted:
        now_s = asyncio.get_running_loop().time()
        counted = self._counted.get(broker.address)
        if counted is None or now_s - counted.at_s >= TOPICS_INTERVAL_S:
            topics = (await self._admin.topic_configs(broker.address)).values()
            users = [topic for topic in topics if not _is_system(topic, broker)]
            queues = sum(max(topic.read_queue_nums, topic.write_queue_nums) for topic in users)
            counted = self._counted[broker.address] = _Counted(len(users), queues, now_s)
        return counted


def _with_lag(state: BrokerState, masters_end: int | None) -> BrokerState:
    if state.broker_id == MASTER_ID or state.log_end is None or masters_end is None:
        return state
    # They were asked one after the other.
    return msgspec.structs.replace(state, lag_bytes=max(masters_end - state.log_end, 0))


def _is_system(topic: TopicConfig, broker: BrokerState) -> bool:
    # Every broker has a topic of its own name, of its cluster's and for the cluster's replies (TopicConfigManager).
    of_broker = (broker.broker_name, broker.cluster, f"{broker.cluster}_REPLY_TOPIC")
    return is_system_topic(topic.topic_name) or topic.topic_name in of_broker


def _latest(rates: str | None) -> float | None:
    """The first of "a b c": averages of 10 s, 1 min and 10 min (StoreStatsService)."""
    try:
        rate = float((rates or "").split()[0])
    except (ValueError, IndexError):
        return None
    return rate if math.isfinite(rate) else None
