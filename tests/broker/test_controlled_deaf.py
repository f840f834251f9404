"""A controller that never answers one kind of request.

Nothing may hang, and nothing unsafe may be acknowledged.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_support import Peer
from controlled_support import ControlledBrokers, keep_controller_connections
from server_handlers import handlers_of
from wait_until import until

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gantrymq.remoting.connection import Connection, Reply

#: Longest time until a broker repeats an unanswered request to its controller, in seconds.
_FOUND_S = 15.0


class Deaf:
    """Makes the controller of `replicas` ignore requests of one code while `on` is true.

    If `does_it` is true, the controller executes the request but its response is lost.
    """

    def __init__(self, replicas: ControlledBrokers, code: int, *, does_it: bool = False) -> None:
        self.on = False
        #: Number of ignored requests.
        self.taken = 0
        handlers = handlers_of(replicas.controller)
        answer = handlers[code]

        def handle(connection: Connection, request: RemotingCommand) -> Reply:
            if not self.on:
                return answer(connection, request)
            self.taken += 1
            if does_it:
                # The response is not sent.
                request.flag |= ONEWAY_FLAG
                answer(connection, request)
            return None

        handlers[code] = handle  # type: ignore[index]


async def sent_until_safe(peer: Peer, body: bytes) -> int:
    """Sends a message until it is acknowledged, and returns the number of attempts."""
    times = 1
    while (await peer.send("orders", body)).code != ResponseCode.SUCCESS:
        times += 1
    return times


def bodies(replicas: ControlledBrokers, number: int) -> set[bytes]:
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
    """Meanwhile a slave stops and restarts, and a new slave joins."""
    async with ControlledBrokers(tmp_path, 2, min_in_sync=1) as replicas:
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
            # For the controller, the slave is still in sync, so the master waits for it.
            assert (await peer.send("orders", b"alone")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        else:
            await asyncio.wait_for(sent_until_safe(peer, b"alone"), _FOUND_S)
        await replicas.start(2)
        await replicas.start(3)
        # The master serves, whatever the slaves are waiting for.
        assert await asyncio.wait_for(sent_until_safe(peer, b"beside"), _FOUND_S)
        await until(lambda: replicas.controller.address in caplog.text)
        await until(lambda: deaf.taken > 1)
        assert replicas.masters() == [1]
        deaf.on = False
        async with asyncio.timeout(_FOUND_S):
            await replicas.all_in_sync()
        assert await sent_until_safe(peer, b"after") == 1
        # Slaves deliver a message after the master confirms that all replicas have it.
        everything = {b"before", b"alone", b"beside", b"after"}
        await until(lambda: all(bodies(replicas, number) == everything for number in (1, 2, 3)))
        await until(lambda: not any(broker.jobs.failing() for broker in replicas.brokers.values()))


@pytest.mark.slow
@pytest.mark.parametrize("does_it", [False, True])
async def test_an_election_is_never_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture, does_it: bool) -> None:
    """A master restarts, and the controller did not detect that it was gone: another broker becomes master.

    The restarted broker does not become master while another one can be elected. Its log can lack acknowledged
    messages.
    """
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        assert await sent_until_safe(await replicas.peer(1), b"before") == 1
        close = keep_controller_connections(replicas.brokers[1])
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
        await close()
        await replicas.all_in_sync()
        assert await sent_until_safe(await replicas.peer(2), b"after") == 1
        await until(lambda: all(bodies(replicas, number) == {b"before", b"after"} for number in (1, 2, 3)))
        await until(lambda: not any(broker.jobs.failing() for broker in replicas.brokers.values()))
