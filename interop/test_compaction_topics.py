"""The store of a compaction topic goes from Apache's broker to this project's and back."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path

import pytest
from programs import consume
from servers import gantry_broker, gantry_namesrv, java_broker

from gantrymq import AdminClient, KeyValue, LitePullConsumer

pytestmark = pytest.mark.interop(feature="compaction topics", clients="gantry java", servers="java gantry")

COUNT = 100
WAIT_S = 60.0


async def use(name_server: str, topic: str, turn: int, expected: dict[str, bytes]) -> None:
    """Checks the state, then changes it. A key of each turn has one message only."""
    if not turn:
        async with AdminClient(name_server) as admin:
            await admin.ensure_topic(topic, queues=1, attributes={"cleanup.policy": "COMPACTION"})
    async with KeyValue(name_server, topic) as table:
        assert {key: entry.value for key, entry in (await table.entries(timeout=20)).items()} == expected
        expected[f"only-{turn}"] = b"%d" % turn
        await table.put(f"only-{turn}", b"%d" % turn, timeout=20)
        for n in range(COUNT):
            key = f"key-{n % 7}"
            expected[key] = b"%d-%d" % (turn, n)
            await table.put(key, expected[key], timeout=20)
        assert {key: entry.value for key, entry in (await table.entries(timeout=20)).items()} == expected


async def messages(name_server: str, topic: str) -> list[tuple[int, bytes]]:
    """Returns the queue offsets and bodies of all messages of the topic."""
    async with LitePullConsumer(name_server, "interop_compaction", auto_commit=False) as consumer:
        (queue,) = await consumer.queues(topic)
        await consumer.assign([queue])
        await consumer.seek_to_begin(queue)
        end = await consumer.end_offset(queue)
        found: list[tuple[int, bytes]] = []
        while consumer.position(queue) < end:
            found += [(message.queue_offset, message.body) for message in await consumer.poll(timeout=1)]
        return found


def compacted_to(store: Path, topic: str) -> int:
    path = store / "compaction" / "position-checkpoint"
    return json.loads(path.read_text())["queueOffsetMap"].get(f"{topic}_0", -1) if path.exists() else -1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_from_java_and_back(tmp_path: Path, topic: str) -> None:
    store = tmp_path / "store"
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    expected: dict[str, bytes] = {}
    try:
        for turn, start_broker in enumerate((java_broker, gantry_broker, java_broker)):
            broker = start_broker(
                tmp_path / f"broker{turn}",
                namesrv.address,
                storePathRootDir=store,
                storePathCommitLog=store / "commitlog",
                compactionMappedFileSize=4600,
                compactionCqMappedFileSize=920,
                compactionScheduleInternal=2000,
            )
            try:
                asyncio.run(use(namesrv.address, topic, turn, expected))
                total = (turn + 1) * (COUNT + 1)
                deadline = time.monotonic() + WAIT_S
                # The last file is not compacted. It has less than 20 messages.
                while compacted_to(store, topic) < total - 21:
                    assert time.monotonic() < deadline, broker.log()
                    time.sleep(0.1)
                found = asyncio.run(messages(namesrv.address, topic))
                offsets = [offset for offset, _ in found]
                assert offsets == sorted(set(offsets))
                assert len(offsets) < 50
                by_java = consume(namesrv.address, topic, len(found), mode="orderly", group=f"java_{turn}")
                assert [base64.b64decode(line["body"]) for line in by_java] == [body for _, body in found]
            finally:
                broker.stop()
    finally:
        namesrv.kill()
