"""Three brokers of one name with a controller.

The tests cover elections, acknowledged messages, and former masters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from bare_store import commit_log
from broker_support import Peer
from controlled_support import ControlledBrokers, keep_controller_connections
from paused_slaves import pause_slave, resume_slave
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError, SyncFailed
from gantrymq.protocol.bodies.controller import EpochEntryCache
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.protocol.headers.topic import GetRouteInfoRequestHeader
from gantrymq.protocol.message import Message, decode_messages
from gantrymq.store.refusal import Refusal
from gantrymq.system.clock import monotonic, now_ms


def bodies(broker: Broker) -> list[bytes]:
    """Returns the bodies of all messages of the topic, in log order."""
    return [record.body for record in broker.store.records_with(b"", 0) if record.topic == b"orders"]


async def send_some(peer: Peer, name: str, count: int = 20) -> list[bytes]:
    sent = [f"{name} {number}".encode() for number in range(count)]
    answers = await asyncio.gather(*(peer.send("orders", body) for body in sent))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    return sent


async def elect(replicas: ControlledBrokers, number: int) -> None:
    """Elects a master as an administrator does."""
    header = ElectMasterRequestHeader(
        cluster_name="DefaultCluster", broker_name="broker-a", broker_id=number, designate_elect=True
    )
    request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
    await replicas.remoting.call(replicas.controller.address, request)


def hold_slaves(replicas: ControlledBrokers, master: int) -> None:
    """Pauses all slaves: they store nothing more from the current master."""
    for number, broker in replicas.brokers.items():
        if number != master:
            pause_slave(broker)


async def test_one_is_elected_and_the_others_follow(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        assert await replicas.master() == 1
        await send_some(await replicas.peer(1), "first")
        assert len({broker.store.max_physical_offset for broker in replicas.brokers.values()}) == 1
        assert {broker.config.broker_id for broker in replicas.brokers.values()} == {0, 2, 3}

        async def are_known() -> bool:
            request = RemotingCommand.request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="orders")
            )
            answer = await replicas.remoting.invoke(replicas.name_server.address, request)
            addresses = {broker.address for broker in replicas.brokers.values()}
            return all(address in answer.body.decode() for address in addresses)

        await until(are_known)


async def test_another_is_elected_when_the_master_stops(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        sent = await send_some(await replicas.peer(1), "before")
        await replicas.stop(1)
        master = await replicas.master()
        await replicas.all_in_sync()
        sent += await send_some(await replicas.peer(master), "after")
        await replicas.start(1)
        await replicas.all_in_sync()
        await replicas.caught_up()
        assert await replicas.master() == master
        assert [Counter(bodies(broker)) for broker in replicas.brokers.values()] == [Counter(sent)] * 3


async def test_what_nobody_acknowledged_is_cut_off_a_former_master(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        sent = await send_some(peer, "before")
        hold_slaves(replicas, 1)
        end = replicas.brokers[1].store.max_physical_offset
        lost = [asyncio.ensure_future(peer.send("orders", b"lost %d" % number)) for number in range(20)]
        await until(lambda: len(bodies(replicas.brokers[1])) == 40)
        await elect(replicas, 2)
        # These producers get a retryable error before `slaveTimeout` ends.
        answers = await asyncio.wait_for(asyncio.gather(*lost), 5)
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        await replicas.all_in_sync()
        assert await replicas.master() == 2
        sent += await send_some(await replicas.peer(2), "after")
        await replicas.caught_up()
        assert [bodies(broker) for broker in replicas.brokers.values()] == [sent] * 3
        # The former master reports its epochs, and the start offset of each one.
        answer = await (await replicas.peer(1)).ask(RequestCode.GET_BROKER_EPOCH_CACHE)
        cache = decode_json(answer.body, EpochEntryCache)
        assert cache.broker_id == 1
        assert [(entry.epoch, entry.start_offset) for entry in cache.epoch_list] == [(1, 0), (2, end)]


async def test_nobody_reads_what_not_all_have(tmp_path: Path) -> None:
    """Consumers get only messages that all in-sync replicas have.

    Otherwise the queue offset can be given to another message, and a consumer would skip that one.
    """
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        sent = await send_some(peer, "before", 3)
        hold_slaves(replicas, 1)
        lost = asyncio.ensure_future(peer.send("orders", b"lost"))
        await until(lambda: len(bodies(replicas.brokers[1])) == 4)
        answer = await peer.pull("orders")
        assert [message.body for message in decode_messages(answer.body)] == sent
        assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND
        waiting = asyncio.ensure_future(peer.pull("orders", 3, suspend_ms=20_000))
        await until(lambda: len(replicas.brokers[1].polling) == 1)
        for number in (2, 3):
            resume_slave(replicas.brokers[number])
        assert (await lost).code == ResponseCode.SUCCESS
        assert [message.body for message in decode_messages((await waiting).body)] == [b"lost"]


async def test_a_former_master_takes_nothing_and_becomes_master_again(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        sent = []
        for number in (2, 1, 3, 1):
            await elect(replicas, number)
            await until(lambda number=number: replicas.masters() == [number])
            await replicas.all_in_sync()
            others = [other for other in replicas.brokers if other != number]
            for other in others:
                answer = await (await replicas.peer(other)).send("orders", b"not taken")
                assert answer.code != ResponseCode.SUCCESS
            sent += await send_some(await replicas.peer(number), f"by {number}", 5)
        await replicas.caught_up()
        assert [bodies(broker) for broker in replicas.brokers.values()] == [sent] * 3
        for broker in replicas.brokers.values():
            names = [report.name for report in broker.jobs]
            assert len(names) == len(set(names)), "a role that is over has left its jobs"


async def test_slaves_show_what_all_have_and_know_its_topic(tmp_path: Path) -> None:
    """Slaves deliver confirmed messages without waiting for the next heartbeat.

    The master can fail at any moment.
    """
    replicas = ControlledBrokers(tmp_path)
    replicas.replication["ha_send_heartbeat_interval"] = 60_000
    replicas.replication["ha_housekeeping_interval"] = 120_000
    async with replicas:
        await replicas.all_in_sync()
        await send_some(await replicas.peer(1), "first", 1)
        for number in (2, 3):
            broker = replicas.brokers[number]
            await until(lambda broker=broker: broker.store.queue("orders", 0).max_offset == 1, 8)
            await until(lambda broker=broker: broker.topics.get("orders") is not None, 8)


async def test_too_few_in_sync(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        await send_some(peer, "first")
        await replicas.stop(2)
        await replicas.stop(3)
        await until(lambda: replicas.in_sync() == {1})
        replicas_manager = replicas.brokers[1].replicas_manager
        assert replicas_manager is not None
        in_sync = replicas_manager.sync_state_sets.in_sync
        assert in_sync is not None
        await until(lambda: in_sync.members == {1})
        answer = await peer.send("orders", b"refused")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        careless = await peer.send("orders", b"careless", properties={"WAIT": "false"})
        assert careless.code == ResponseCode.SUCCESS
        await replicas.start(2)
        await replicas.all_in_sync()
        await send_some(peer, "second")


async def test_a_master_without_a_controller_goes_on_while_its_slaves_confirm(tmp_path: Path) -> None:
    """A master continues without a controller while all in-sync replicas follow it.

    Only an in-sync replica can be elected, and it disconnects from its master then. So there is no other master.
    """
    async with ControlledBrokers(tmp_path, 2, controller_heart_beat_timeout_mills=1_500) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        await replicas.controller.stop()
        stopped = monotonic()
        # Twice the length of the lease.
        while monotonic() < stopped + 3.0:
            await send_some(peer, "without a controller")
        await replicas.stop(2)
        await until(lambda: replicas.brokers[1].appender.refusal is not None)
        answer = await peer.send("orders", b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await replicas.start_controller()
        await replicas.start(2)
        await replicas.all_in_sync()
        await send_some(peer, "with one")


async def test_a_master_that_waits_for_no_slave_stops_without_a_controller(tmp_path: Path) -> None:
    replicas = ControlledBrokers(tmp_path, 2, min_in_sync=1, controller_heart_beat_timeout_mills=1_500)
    replicas.replication["all_ack_in_sync_state_set"] = False
    async with replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        await send_some(peer, "first")
        await replicas.controller.stop()
        await until(lambda: replicas.brokers[1].appender.refusal is not None)
        answer = await peer.send("orders", b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await replicas.start_controller()
        await until(lambda: replicas.masters() == [1])
        await replicas.all_in_sync()
        await send_some(peer, "second")


async def test_a_master_that_ended_unnoticed_leaves_it_to_another(tmp_path: Path) -> None:
    """A master that restarts after a power failure does not become master again.

    The power failure can have truncated the end of its log.
    """
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        sent = await send_some(await replicas.peer(1), "before")
        # Simulates a power failure: the connection to the controller stays open.
        close = keep_controller_connections(replicas.brokers[1])
        await replicas.stop(1)
        await replicas.start(1)
        await replicas.all_in_sync()
        assert await replicas.master() == 2
        await close()
        await replicas.all_in_sync()
        sent += await send_some(await replicas.peer(2), "after")
        await replicas.caught_up()
        assert [Counter(bodies(broker)) for broker in replicas.brokers.values()] == [Counter(sent)] * 3


async def test_a_broker_that_is_alone_is_master_again(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 1, min_in_sync=1) as replicas:
        for number in range(3):
            assert await replicas.master() == 1
            await replicas.all_in_sync()
            await send_some(await replicas.peer(1), f"time {number}")
            await replicas.stop(1)
            await replicas.start(1)
        assert await replicas.master() == 1
        assert len(bodies(replicas.brokers[1])) == 60


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "handed_over"])
async def test_nothing_acknowledged_is_lost_while_masters_change(tmp_path: Path, is_stopped: bool) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        acknowledged: list[bytes] = []
        is_over = False

        async def produce(name: int) -> None:
            number = 0
            while not is_over:
                body = b"%d-%d" % (name, number)
                for candidate in replicas.masters():
                    try:
                        answer = await (await replicas.peer(candidate)).send("orders", body, queue_id=name % 4)
                    except (GantryError, KeyError):
                        continue
                    if answer.code == ResponseCode.SUCCESS:
                        acknowledged.append(body)
                        number += 1
                        break
                await asyncio.sleep(0.001)

        producing = [asyncio.ensure_future(produce(name)) for name in range(8)]
        for _ in range(3):
            so_far = len(acknowledged)
            await until(lambda so_far=so_far: len(acknowledged) > so_far + 50)
            master = await replicas.master()
            if is_stopped:
                await replicas.stop(master)
                await replicas.master(other_than=master)
                await replicas.start(master)
            else:
                await elect(replicas, master % 3 + 1)
                await replicas.master(other_than=master)
            await replicas.all_in_sync()
        is_over = True
        await asyncio.gather(*producing)
        await replicas.caught_up()
        for broker in replicas.brokers.values():
            stored = bodies(broker)
            assert not set(acknowledged) - set(stored)
            # Per queue, in the order of the acknowledgements.
            for name in range(8):
                prefix = b"%d-" % name
                numbers = [int(body.partition(b"-")[2]) for body in stored if body.startswith(prefix)]
                assert numbers == sorted(numbers)


async def test_a_hand_over_costs_a_producer_no_send(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas, Producer(replicas.name_server.address, "producers") as producer:
        await replicas.all_in_sync()
        await send_some(await replicas.peer(1), "topic", 1)
        is_over = False
        statuses: Counter[SendStatus] = Counter()

        async def produce(name: int) -> None:
            while not is_over:
                sent = await producer.send(Message("orders", b"%d" % name))
                statuses[sent.status] += 1

        producing = [asyncio.ensure_future(produce(name)) for name in range(4)]
        for number in (2, 3, 1):
            so_far = statuses.total()
            await until(lambda so_far=so_far: statuses.total() > so_far + 50)
            await elect(replicas, number)
            await until(lambda number=number: replicas.masters() == [number])
            await replicas.all_in_sync()
        is_over = True
        await asyncio.gather(*producing)
        assert set(statuses) == {SendStatus.SEND_OK}


async def test_nothing_counts_what_is_not_shown(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        number = await replicas.master()
        peer = await replicas.peer(number)
        for body in (b"shown", b"too"):
            assert (await peer.send("orders", body)).code == ResponseCode.SUCCESS
        # A member can be cut off next, so consumers do not get messages that it lacks.
        hold_slaves(replicas, number)
        sending = asyncio.ensure_future(peer.send("orders", b"unshown"))
        store = replicas.brokers[number].store
        await until(lambda: store.queue("orders", 0).max_offset == 3)
        other = await replicas.peer(number)
        fields = {"topic": "orders", "queueId": "0"}
        assert (await other.ask(RequestCode.GET_MAX_OFFSET, fields=fields)).ext_fields["offset"] == "2"
        late = fields | {"timestamp": str(1 << 50)}
        assert (await other.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields=late)).ext_fields["offset"] == "2"
        stats = await other.ask(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": "orders"})
        assert b'"maxOffset":2' in stats.body
        assert (await other.pull("orders")).ext_fields["maxOffset"] == "2"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_master_whose_disk_is_full_hands_over(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        number = await replicas.master()
        async with Producer(replicas.name_server.address, "producers") as producer:
            await producer.send(Message("orders", b"before"))
            full = replicas.brokers[number]
            full.store.config.disk_space_warning_level_ratio = 1
            full.store.clean(now_ms())
            other = await replicas.master(other_than=number)
            await until(lambda: replicas.masters() == [other])
            sent = await producer.send(Message("orders", b"after"))
            assert sent.status is SendStatus.SEND_OK
        # The other brokers have free disk space, so none of them hands over again.
        assert replicas.masters() == [other]


async def test_a_master_whose_fsync_fails_hands_over(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        number = await replicas.master()
        commit_log(replicas.brokers[number].store).fail(Refusal("fdatasync failed", SyncFailed))
        other = await replicas.master(other_than=number)
        await until(lambda: replicas.masters() == [other])
        async with Producer(replicas.name_server.address, "producers") as producer:
            assert (await producer.send(Message("orders", b"after"))).status is SendStatus.SEND_OK
        # The broker must not report that all data is on disk.
        with pytest.raises(SyncFailed):
            await replicas.stop(number)
