"""Topology: current state of a cluster's brokers: address, role, topics, rates and lag."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import NamedTuple

import msgspec

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.sync_state_sets import SyncStateSetSeen, sync_state_set
from gantrymq.errors import BrokerError, GantryError
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.topic_name import is_system_topic

#: Interval of requests for a broker's topics, which can be thousands, s.
TOPICS_INTERVAL_S = 10.0
MAX_CONCURRENT = 32


class BrokerState(msgspec.Struct, frozen=True, rename="camel"):
    """State of one broker. Unavailable values are None. With an `error`, the request failed."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str | None = None
    #: Topics other than system topics, and their queues.
    topics: int | None = None
    queues: int | None = None
    #: Messages per second in the last ten seconds.
    in_tps: float | None = None
    out_tps: float | None = None
    #: End of the commit log, and the bytes by which a slave lags behind its master.
    log_end: int | None = None
    lag_bytes: int | None = None
    #: Age of the oldest message that a slave lacks, s. None if the master does not report it.
    lag_seconds: float | None = None
    #: Reason why a slave does not replicate from its master.
    refusal: str | None = None
    #: In controller mode: epoch of the master, and whether the broker is in the in-sync set.
    epoch: int | None = None
    in_sync: bool | None = None
    controllers: list[str] | None = None
    error: str | None = None

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER_ID else f"slave {self.broker_id}"


class _Counted(NamedTuple):
    topics: int | None
    queues: int | None
    #: Configuration of a broker with replicas.
    config: dict[str, str]
    at_s: float


class Topology:
    """Requests the state of all brokers. Each `look` sends new requests to the NameServers and brokers of `admin`."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._counted: dict[str, _Counted] = {}
        self._limit = asyncio.Semaphore(MAX_CONCURRENT)

    async def look(self) -> list[BrokerState]:
        """Returns every registered broker by cluster, name and id. Raises a GantryError if no NameServer responds."""
        info = await self._admin.cluster_info()
        brokers = [
            BrokerState(broker.cluster, name, broker_id, address)
            for name, broker in info.broker_addr_table.items()
            for broker_id, address in broker.broker_addrs.items()
        ]
        brokers.sort(key=lambda broker: (broker.cluster, broker.broker_name, broker.broker_id))
        replicated = {broker.broker_name for broker in brokers if broker.broker_id != MASTER_ID}
        asked = await asyncio.gather(*(self._ask(broker, broker.broker_name in replicated) for broker in brokers))
        states = [state for state, _ in asked]
        masters = {state.broker_name: (state, status) for state, status in asked if status and status.master}
        sets = await self._sync_state_sets(states)
        return [
            _with_set(_with_lag(state, *masters.get(state.broker_name, (None, None))), sets.get(state.broker_name))
            for state in states
        ]

    async def _sync_state_sets(self, states: list[BrokerState]) -> dict[str, SyncStateSetSeen | None]:
        """Returns the in-sync sets by broker name. All brokers of a name have the same controllers."""
        configs = {
            state.broker_name: counted.config
            for state in states
            if (counted := self._counted.get(state.address)) is not None and counted.config
        }
        found = await asyncio.gather(*(sync_state_set(self._admin, name, config) for name, config in configs.items()))
        return dict(zip(configs, found, strict=True))

    async def _ask(self, broker: BrokerState, is_replicated: bool) -> tuple[BrokerState, HaStatus | None]:
        async with self._limit:
            try:
                figures = await self._admin.runtime_info(broker.address)
                counted = await self._count(broker, is_replicated)
                status = await self._status(broker) if is_replicated else None
            except GantryError as e:
                return msgspec.structs.replace(broker, error=str(e)), None
        log_end = None
        if status is not None:
            log_end = status.master_commit_log_max_offset if status.master else status.client.max_offset
        state = msgspec.structs.replace(
            broker,
            version=figures.get("brokerVersionDesc"),
            topics=counted.topics,
            queues=counted.queues,
            in_tps=_latest(figures.get("putTps")),
            out_tps=_latest(figures.get("getTransferredTps")),
            log_end=log_end,
            refusal=(status.client.refusal or None) if status is not None else None,
        )
        return state, status

    async def _status(self, broker: BrokerState) -> HaStatus | None:
        try:
            return await self._admin.ha_status(broker.address)
        except BrokerError:
            # The broker does not support the request, or rejects it for this user.
            return None

    async def _count(self, broker: BrokerState, is_replicated: bool) -> _Counted:
        now_s = asyncio.get_running_loop().time()
        counted = self._counted.get(broker.address)
        if counted is None or now_s - counted.at_s >= TOPICS_INTERVAL_S:
            topics = (await self._admin.topic_configs(broker.address)).values()
            users = [topic for topic in topics if not _is_system(topic, broker)]
            queues = sum(max(topic.read_queue_nums, topic.write_queue_nums) for topic in users)
            config: dict[str, str] = {}
            if is_replicated:
                with suppress(BrokerError):
                    config = await self._admin.broker_config(broker.address)
            counted = self._counted[broker.address] = _Counted(len(users), queues, config, now_s)
        return counted


def _with_lag(state: BrokerState, master: BrokerState | None, status: HaStatus | None) -> BrokerState:
    if master is None or status is None or master is state or state.log_end is None or master.log_end is None:
        return state
    behind = {slave.broker_id: slave.behind_millis for slave in status.connections}
    millis = behind.get(state.broker_id, -1)
    # At least 0, because the two offsets were requested one after the other.
    lag_bytes = max(master.log_end - state.log_end, 0)
    return msgspec.structs.replace(state, lag_bytes=lag_bytes, lag_seconds=millis / 1000 if millis >= 0 else None)


def _with_set(state: BrokerState, seen: SyncStateSetSeen | None) -> BrokerState:
    if seen is None:
        return state
    state = msgspec.structs.replace(state, controllers=seen.controllers)
    if seen.info is None:
        return state
    in_sync = any(replica.broker_address == state.address for replica in seen.info.in_sync_replicas)
    return msgspec.structs.replace(state, epoch=seen.info.master_epoch, in_sync=in_sync)


def _is_system(topic: TopicConfig, broker: BrokerState) -> bool:
    # Every broker has topics with its own name, with its cluster's name, and for replies (TopicConfigManager).
    of_broker = (broker.broker_name, broker.cluster, f"{broker.cluster}_REPLY_TOPIC")
    return is_system_topic(topic.topic_name) or topic.topic_name in of_broker


def _latest(rates: str | None) -> float | None:
    """Returns the first number of a text "a b c": averages over 10 s, 1 min and 10 min (StoreStatsService)."""
    try:
        rate = float((rates or "").split()[0])
    except (ValueError, IndexError):
        return None
    return rate if math.isfinite(rate) else None
