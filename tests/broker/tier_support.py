"""A broker with tiered storage and small log files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_support import Peer, config
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.protocol.headers.pull import PullMessageResponseHeader
from gantrymq.protocol.record import decode_records
from gantrymq.remoting.client import RemotingClient

FILE_BYTES = 64 * 1024
BODY_BYTES = 4000
UPLOAD, CLEAN = "copy the log into the tier", "delete what has expired"


@asynccontextmanager
async def started(directory: Path, tier: str | Path, **changed: Any) -> AsyncIterator[Broker]:
    """Starts a broker with small log files, whose disk never counts as full."""
    settings = config(directory, broker_cluster_name="c")
    store = settings.store
    store.mapped_file_size_commit_log = FILE_BYTES
    store.tiered_store_file_path = str(tier)
    store.file_reserved_time = 0
    store.disk_max_used_space_ratio = store.disk_space_clean_forcibly_ratio = store.disk_space_warning_level_ratio = 101
    for name, value in changed.items():
        setattr(store, name, value)
    broker = Broker(settings)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def peer_of(broker: Broker, remoting: RemotingClient) -> Peer:
    return Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))


async def fill(peer: Peer, count: int, topic: str = "orders", **properties: str) -> list[bytes]:
    """Sends messages to queue 0. Returns their bodies."""
    sent = [f"{topic}-{number}".encode().ljust(BODY_BYTES) for number in range(count)]
    for body in sent:
        assert (await peer.send(topic, body, properties=properties)).code == ResponseCode.SUCCESS
    return sent


async def uploaded(broker: Broker) -> None:
    """Waits until all full log files are in the tier."""
    tier = broker.context.tier
    assert tier is not None

    def is_done() -> bool:
        broker.jobs.find(UPLOAD).wake()
        if tier.catalog is None:
            return False
        end = max(tier.catalog.end, broker.store.min_physical_offset)
        return end + FILE_BYTES > broker.store.max_physical_offset

    await until(is_done)


async def deleted(broker: Broker, peer: Peer) -> None:
    """Deletes all log files but the last."""
    assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
    end = broker.store.max_physical_offset // FILE_BYTES * FILE_BYTES
    await until(lambda: broker.store.min_physical_offset == end)


async def min_offset(peer: Peer, topic: str = "orders") -> int:
    response = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic=topic, queue_id=0))
    assert response.code == ResponseCode.SUCCESS, response.remark
    return int(response.ext_fields["offset"])


async def read_all(peer: Peer, offset: int, topic: str = "orders", **changed: Any) -> list[bytes]:
    """Pulls messages up to the end of the queue."""
    found: list[bytes] = []
    while True:
        response = await peer.pull(topic, offset, **changed)
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), response.remark
        found += [record.body for record in decode_records(response.body)]
        following = response.read_header(PullMessageResponseHeader).next_begin_offset
        if following == offset:
            # At the end, a slave responds that its master may have more.
            return found
        offset = following
