"""A broker with a tier in a directory and in S3, and reads of the tier without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tier_support import deleted, fill, min_offset, peer_of, read_all, started, uploaded

from gantrymq.arrow import scan_store
from gantrymq.errors import ConfigError, StoreError
from gantrymq.remoting.client import RemotingClient
from gantrymq.tier.objects import open_objects
from gantrymq.tier.segment import MANIFESTS


async def test_a_broker_and_a_scan(tmp_path: Path, address: str) -> None:
    remoting = RemotingClient()
    async with started(tmp_path / "store", address) as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 40)
        others = await fill(peer, 24, "others")
        await uploaded(broker)
        await deleted(broker, peer)
        assert await min_offset(peer) == 0
        assert await read_all(peer, 0) == sent
        begin = broker.store.queue("others", 0).min_offset
    await remoting.close()
    assert begin > 5
    path = f"{address}/c/broker-a".removeprefix("file://")
    rows = scan_store(path, ["orders", "others"], columns=["topic", "queueOffset", "body"]).read_all()
    found = list(zip(*(rows[name].to_pylist() for name in ("topic", "queueOffset", "body")), strict=True))
    assert found == [
        *(("orders", offset, body) for offset, body in enumerate(sent)),
        *(("others", offset, body) for offset, body in enumerate(others[:begin])),
    ]
    # A read of a time, which needs some of the segments.
    times = scan_store(path, "orders", columns=["storeTimestamp"]).read_all()["storeTimestamp"].to_pylist()
    assert scan_store(path, "orders", start=times[10], end=times[30]).read_all().num_rows == sum(
        times[10] <= time < times[30] for time in times
    )
    assert scan_store(path, "orders", start=times[-1]).read_all().num_rows >= 1
    # A segment is missing.
    objects = open_objects(path)
    second = sorted(objects.names(MANIFESTS))[1]
    objects.delete(f"{MANIFESTS}/{second}")
    with pytest.raises(StoreError, match="the log from 65536 to 131072 is missing"):
        scan_store(path, "orders")
    rest = scan_store(path, "orders", options={"failOnDataLoss": "false"}).read_all().num_rows
    assert 20 < rest < 40


def test_there_is_no_tier(address: str) -> None:
    with pytest.raises(StoreError, match=r"has no segment of a tier|has no commit log"):
        scan_store(f"{address.removeprefix('file://')}/c/broker-a")


def test_a_tier_has_no_other_directories(s3_url: str) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        scan_store(s3_url, options={"storePathCommitLog": "/somewhere"})
