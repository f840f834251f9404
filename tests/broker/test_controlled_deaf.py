"""A controller that lives and never answers one kind of request: nothing hangs, nothing unsafe is acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_support import Peer
from controlled_support import Controlled
from waiting import until

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply

#: A broker waits for an answer of its controller so long, and asks again at once or with its next look, s.
_FOUND_S = 15.0


class Deaf:
    """The controller of `replicas` takes requests of one code, and no more is heard of them while it is `on`.

    `does_it`: it does what it is asked for, and the answer is lost.
    """

    def __init__(self, replicas: Controlled, code: int, *, does_it: bool = False) -> None:
        self.on = False
        #: How many it has taken.
        self.taken = 0
        handlers = replicas.controller._server._handlers
        answer = handlers[code]

        def handle(connection: Connection, request: RemotingCommand) -> Reply:
            if not self.on:
                return answer(connection, request)
            self.taken += 1
            if does_it:
                # Its answer goes to nobody.
                request.flag |= ONEWAY_FLAG
                answer(connection, request)
            return None

        handlers[code] = handle  # type: ignore[index]


async def sent_until_safe(peer: Peer, body: bytes) -> int:
    """How often it had to be sent until it was acknowledged."""
    times = 1
    while (await peer.send("orders", body)).code != ResponseCode.SUCCESS:
        times += 1
    return times


def bodies(replicas: Controlled, number: int) -> set[bytes]:
    store = replicas.brokers[number].store
    queue = store.queue("orders", 0)
    return {store.read_record(unit[0]).body for at in range(queue.max_offset) if (unit := queue.unit(at))}


QUESTIONS = [RequestCode.CONTROLLER_GET_REPLICA_INFO, RequestCode.CONTROLLER_GET_METADATA_INFO]
CHANGES = [
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CONTROLLER_APPLY_BROKER_ID,
]
CASES = [(code, False) for code in (*QUESTIONS, *CHANGES, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "does_it"),
    [*CASES, *((code, True) for code in CHANGES)],
    ids=lambda value: value.name.removeprefix("CONTROLLER_").lower() if isinstance(value, RequestCode) else None,
)
async def test_one_kind_of_request_is_never_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: RequestCode, does_it: bool
) -> None:
    """A slave goes and comes back meanwhile, and a new one comes."""
    async with Controlled(tmp_path, 2, min_in_sync=1) as replicas:
        replicas.replication["slave_timeout"] = 500
        for broker in replicas.brokers.values():
            broker.config.replication.slave_timeout = 500
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert await sent_until_safe(peer, b"before") == 1
        deaf = Deaf(replicas, code, does_it=does_it)
        deaf.on = True
        await replicas.stop(2)
        if code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET and not does_it:
            # The controller believes that the slave has all, so it is waited for.
            assert (await peer.send("orders", b"alone")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        else:
            await asyncio.wait_for(sent_until_safe(peer, b"alone"), _FOUND_S)
        await replicas.start(2)
        await replicas.start(3)
        # Whatever they wait for, the master serves.
        assert await asyncio.wait_for(sent_until_safe(peer, b"beside"), _FOUND_S)
        await until(lambda: replicas.controller.address in caplog.text)
        await until(lambda: deaf.taken > 1)
        assert replicas.masters() == [1]
        deaf.on = False
        async with asyncio.timeout(_FOUND_S):
            await replicas.all_in_sync()
        assert await sent_until_safe(peer, b"after") == 1
        # Slaves show a message when they hear that all have it.
        everything = {b"before", b"alone", b"beside", b"after"}
        await until(lambda: all(bodies(replicas, number) == everything for number in (1, 2, 3)))
        await until(lambda: not any(broker.jobs.failing() for broker in replicas.brokers.values()))


@pytest.mark.slow
@pytest.mark.parametrize("does_it", [False, True])
async def test_an_election_is_never_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture, does_it: bool) -> None:
    """A master comes back that ended without its controller's notice: another is to be master in its place.

    It isn't master itself as long as it doesn't know that no other can be: its log may lack what was acknowledged.
    """
    async with Controlled(tmp_path) as replicas:
        await replicas.all_in_sync()
        assert await sent_until_safe(await replicas.peer(1), b"before") == 1
        controlled = replicas.brokers[1].controlled
        assert controlled is not None
        kept, controlled._remoting = controlled._remoting, RemotingClient()
        deaf = Deaf(replicas, RequestCode.CONTROLLER_ELECT_MASTER, does_it=does_it)
        deaf.on = True
        await replicas.stop(1)
        await replicas.start(1)
        await until(lambda: deaf.taken > 0)
        if not does_it:
            await until(lambda: deaf.taken > 1)
            assert not replicas.masters()
            assert replicas.controller.address in caplog.text
            deaf.on = False
        await until(lambda: replicas.masters() == [2])
        await kept.close()
        await replicas.all_in_sync()
        assert await sent_until_safe(await replicas.peer(2), b"after") == 1
        await until(lambda: all(bodies(replicas, number) == {b"before", b"after"} for number in (1, 2, 3)))
        await until(lambda: not any(broker.jobs.failing() for broker in replicas.brokers.values()))
