"""SIGKILL while a broker copies its log into the tier and deletes what is copied.

All acknowledged messages can be read, from the log or from the tier, and each copy is usable after the next start.
"""

from __future__ import annotations

import random
from pathlib import Path

from nursery import nursery
from tier_support import min_offset, peer_of, read_all, started, uploaded

from gantrymq.remoting.client import RemotingClient

ROUNDS = 12

#: Writes `offset body` of each acknowledged message.
WRITER = """
import asyncio, os, random
from pathlib import Path
from broker_support import Peer
from tier_support import peer_of, started
from gantrymq.protocol.codes import RequestCode
from gantrymq.remoting.client import RemotingClient

def write(fd, root, seed):
    asyncio.run(_write(fd, Path(root), random.Random(int(seed))))

async def _write(fd, root, draw):
    remoting = RemotingClient()
    # In some rounds the tier can't be reached: its directory would be below a file.
    tier = root / draw.choice(("tier", "file/tier"))
    async with started(root / "store", tier, flush_interval_commit_log_ms=1) as broker:
        peer = await peer_of(broker, remoting)
        while True:
            body = b"%d" % draw.randrange(1 << 60)
            response = await peer.send("orders", body.ljust(draw.randrange(20, 9000)))
            assert response.code == 0, response.remark
            os.write(fd, b"%s %s\\n" % (response.ext_fields["queueOffset"].encode(), body))
            if not draw.randrange(20):
                # Under load, the key index is behind, and files without their keys are not copied.
                broker.store.keys.build_index(0.01)
                broker.jobs.find("copy the log into the tier").wake()
                await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
"""


async def test_what_was_acknowledged_can_be_read(tmp_path: Path, remoting: RemotingClient) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    (tmp_path / "file").touch()
    acknowledged: dict[int, bytes] = {}
    here = Path(__file__).parent
    with nursery(WRITER, here, here.parent) as writers:
        for number in range(ROUNDS):
            count = draw.randrange(1, 1000)
            lines = writers.run_and_kill(tmp_path / f"fifo{number}", count, tmp_path, draw.randrange(1 << 32))
            acknowledged |= {int(offset): body.encode() for offset, body in map(str.split, lines)}
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await uploaded(broker)
        assert await min_offset(peer) == 0
        bodies = [body.rstrip() for body in await read_all(peer, 0)]
    assert len(acknowledged) > ROUNDS
    assert {offset: bodies[offset] for offset in acknowledged} == acknowledged
