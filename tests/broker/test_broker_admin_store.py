"""Admin requests that delete expired files."""

from __future__ import annotations

from pathlib import Path

from administration import send
from broker_support import Peer, config
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.remoting.client import RemotingClient


async def test_log_and_then_queues_that_expired_go(tmp_path: Path, remoting: RemotingClient) -> None:
    settings = config(tmp_path / "store")
    settings.store.file_reserved_time = 0
    # In this test, neither the hour nor the disk usage may start a deletion.
    settings.store.disk_max_used_space_ratio = settings.store.disk_space_clean_forcibly_ratio = 101
    settings.store.disk_space_warning_level_ratio = 101
    broker = Broker(settings)
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await send(peer, 1, topic="old")
    for _ in range(4):
        assert (await peer.send("new", bytes(2_000_000))).code == 0
    # Only flushed files are deleted.
    await until(lambda: broker.store.flushed_offset >= broker.store.max_physical_offset)
    assert broker.store.min_physical_offset == 0
    assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
    await until(lambda: broker.store.min_physical_offset != 0)
    assert (await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
    assert set(broker.store.topics()) == {"new"}
    assert (await peer.send("old", b"again")).ext_fields["queueOffset"] == "0"
    assert len((await peer.pull("old")).body) > 0
    await broker.stop()


async def test_nothing_has_expired(peer: Peer, broker: Broker) -> None:
    await send(peer, 3)
    for code in (RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE):
        assert (await peer.ask(code)).code == ResponseCode.SUCCESS
    assert len((await peer.pull("orders")).body) > 0
    assert (await peer.send("orders", b"more")).ext_fields["queueOffset"] == "3"
