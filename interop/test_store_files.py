"""A store directory that moves between this project's broker and Apache's, in both directions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import Sent, consume, mqadmin, produce, sample
from servers import call, gantry_broker, gantry_namesrv, java_broker, java_broker_5_4

from gantrymq.protocol.codes import RequestCode

pytestmark = pytest.mark.interop(feature="store files", clients="java", servers="{order}")

ORDERS = {
    "gantry-java-gantry": (gantry_broker, java_broker, gantry_broker),
    "java-gantry-java": (java_broker, gantry_broker, java_broker),
}
WITH_EARLIER = {
    **ORDERS,
    "gantry-java-gantry@5.4": (gantry_broker, java_broker_5_4, gantry_broker),
    "java-gantry-java@5.4": (java_broker_5_4, gantry_broker, java_broker_5_4),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
@pytest.mark.parametrize("order", WITH_EARLIER)
def test_store_changes_hands(order: str, ending: str, tmp_path: Path, topic: str) -> None:
    """Each broker finds all messages that were sent to the earlier ones, and appends at the end."""
    store = tmp_path / "store"
    everything: list[Sent] = []
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    try:
        for turn, start_broker in enumerate(WITH_EARLIER[order]):
            broker = start_broker(
                tmp_path / f"broker{turn}",
                namesrv.address,
                storePathRootDir=store,
                storePathCommitLog=store / "commitlog",
                autoCreateTopicEnable="false",
            )
            try:
                if turn == 0:
                    mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "3", "-w", "3")
                route = call(namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body
                assert b'"writeQueueNums":3' in route
                singles = [*sample(9, first=1000 * turn), Sent(b"compressible " * 2000, tags=f"turn{turn}")]
                batch = sample(10, first=1000 * turn + 100)
                results = produce(namesrv.address, topic, [message.line(queue_id=0) for message in singles])
                produce(namesrv.address, topic, [message.line() for message in batch], mode="batch")
                everything += singles + batch

                received = consume(namesrv.address, topic, len(everything), group=f"interop_turn{turn}")
                if ending == "stopped":
                    news = consume(namesrv.address, topic, 20, group="interop_every_turn")
                    assert sorted(map(Sent.of, news)) == sorted(singles + batch)
            finally:
                if ending == "stopped":
                    broker.stop()
                else:
                    broker.kill()

            assert sorted(map(Sent.of, received)) == sorted(everything)
            assert {result["status"] for result in results} == {"SEND_OK"}
            assert_dense(received)
    finally:
        namesrv.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ORDERS)
def test_a_log_in_several_directories_changes_hands(order: str, tmp_path: Path, topic: str) -> None:
    """Both brokers put new files into the same directories, and read a read-only one."""
    disks = [tmp_path / name for name in ("disk-a", "disk-b", "disk-c")]
    everything: list[Sent] = []
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    try:
        for turn, start_broker in enumerate(ORDERS[order]):
            before = set(log_files(disks))
            broker = start_broker(
                tmp_path / f"broker{turn}",
                namesrv.address,
                storePathRootDir=tmp_path / "store",
                storePathCommitLog=",".join(map(str, disks)),
                readOnlyCommitLogStorePaths=disks[1] if turn else "",
                mappedFileSizeCommitLog=64 * 1024,
                autoCreateTopicEnable="false",
            )
            try:
                if turn == 0:
                    mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "1", "-w", "1")
                sent = [Sent(b"%d-%d " % (turn, n) + bytes(1000)) for n in range(300)]
                results = produce(namesrv.address, topic, [message.line(queue_id=0) for message in sent])
                assert {result["status"] for result in results} == {"SEND_OK"}
                everything += sent
                received = consume(namesrv.address, topic, len(everything), group=f"interop_turn{turn}")
                info = json.loads(call(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
                assert {f"commitLogDiskRatio_{disk}" for disk in disks} <= info.keys()
            finally:
                broker.stop()
            assert sorted(map(Sent.of, received)) == sorted(everything)
            assert_dense(received)
            new = {path: index for path, index in log_files(disks).items() if path not in before}
            assert len(new) >= 4
            writable = disks if turn == 0 else [disks[0], disks[2]]
            assert all(path.parent == writable[index % len(writable)] for path, index in new.items())
    finally:
        namesrv.kill()


def log_files(directories: list[Path]) -> dict[Path, int]:
    """Returns {path: index in the log} of all files of a log."""
    return {path: int(path.name) // (64 * 1024) for directory in directories for path in directory.glob("0*")}


def assert_dense(received: list[dict[str, object]]) -> None:
    """Asserts that the offsets of each queue count from 0 without gaps."""
    for queue_id in {line["queue_id"] for line in received}:
        offsets = sorted(int(str(line["queue_offset"])) for line in received if line["queue_id"] == queue_id)
        assert offsets == list(range(len(offsets)))
