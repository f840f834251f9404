"""A slave as acting master.

The tests cover what it delivers, where it sends messages, and the state that the master takes over from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from administration import create_group
from broker_support import Peer, config, job
from pop_support import PopPeer
from replicated_brokers import Replicas, copy_tables
from wait_until import until

from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.broker.broker import Broker
from gantrymq.errors import ConfigError
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.ha import ExchangeHaInfoRequestHeader
from gantrymq.protocol.headers.topic import GetRouteInfoRequestHeader
from gantrymq.protocol.message import MessageExt, decode_messages
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.store.timer_checkpoint import TimerCheckpoint
from gantrymq.system.clock import now_ms

ACTING = {
    "enable_slave_acting_master": True,
    "enable_remote_escape": True,
    "sync_broker_member_group_period": 50,
    "broker_heartbeat_interval": 100,
    "broker_not_active_timeout_millis": 5_000,
    "transaction_check_interval": 100,
    "transaction_time_out": 0,
}

#: The job of a broker that looks for its master.
ASKING = "ask who of the brokers of this name is there"


class WithAnother(Replicas):
    """A master and its slaves with acting master enabled, and a master of another broker name."""

    async def __aenter__(self) -> WithAnother:
        self.options |= ACTING
        self.namesrv_options |= {"support_acting_master": True, "notify_min_broker_id_changed": True}
        self.replication["in_sync_replicas"] = 1
        await super().__aenter__()
        settings = config(self.directory / "other", namesrv_addr=[self.name_server.address])
        self.other = Broker(replace(settings, broker_name="other"))
        await self.other.start()
        self._stack.push_async_callback(self.other.stop)
        self.add_topic("orders")
        return self

    def add_topic(self, name: str) -> None:
        for broker in (self.master, self.other):
            broker.topics.put(TopicConfig(name, 1, 1))

    async def deliver_nothing(self) -> None:
        """Stops the delivery of delayed and popped messages on the master."""
        await self.master.features.schedule.stop()
        self.master.jobs.find("deliver timer messages").cancel()
        await self.master.pops.become_slave()

    async def copied(self) -> None:
        """Waits until the slave has the log and the tables of the master."""
        await self.caught_up()
        await copy_tables(self.slave)

    def messages(self, broker: Broker, topic: str = "orders") -> list[MessageExt]:
        queue = broker.store.find_queue(topic, 0)
        if queue is None or not queue.max_offset:
            return []
        found = broker.store.get(queue, 0, 32, 1 << 20)
        return list(decode_messages(b"".join(bytes(buffer) for buffer in found.buffers)))

    async def route(self, topic: str) -> TopicRouteData:
        header = GetRouteInfoRequestHeader(topic=topic)
        peer = Peer(await self.remoting.connection(self.name_server.address))
        return decode_json((await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)).body, TopicRouteData)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[WithAnother]:
    async with WithAnother(tmp_path, 1) as brokers:
        yield brokers


def test_not_together_with_a_controller(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="enableSlaveActingMaster=true: not with enableControllerMode"):
        config(
            tmp_path,
            enable_slave_acting_master=True,
            enable_controller_mode=True,
            controller_addr=["127.0.0.1:1"],
        )


async def test_what_waits_is_delivered_elsewhere_while_there_is_no_master(brokers: WithAnother) -> None:
    peer = await brokers.peer()
    await brokers.deliver_nothing()
    delayed = await peer.send("orders", b"delayed", properties={"DELAY": "1", "TAGS": "a"})
    timed = await peer.send("orders", b"timed", properties={"TIMER_DELAY_MS": "1500", "KEYS": "k"})
    half = await peer.send("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "producers"})
    assert {delayed.code, timed.code, half.code} == {ResponseCode.SUCCESS}
    await brokers.copied()
    assert not brokers.slave.acting.is_acting
    await brokers.stop(0)
    await until(lambda: brokers.slave.acting.is_acting)
    await until(lambda: {message.body for message in brokers.messages(brokers.other)} == {b"delayed", b"timed"})
    by_body = {message.body: message for message in brokers.messages(brokers.other)}
    assert by_body[b"delayed"].properties["TAGS"] == "a"
    assert by_body[b"timed"].properties["KEYS"] == "k"
    await until(lambda: [m.body for m in brokers.messages(brokers.other, "RMQ_SYS_TRANS_HALF_TOPIC")][:1] == [b"half"])
    copy = brokers.messages(brokers.other, "RMQ_SYS_TRANS_HALF_TOPIC")[0]
    assert (copy.properties["REAL_TOPIC"], copy.properties["PGROUP"]) == ("orders", "producers")


async def test_nothing_comes_twice_when_the_master_is_back(brokers: WithAnother) -> None:
    peer = await brokers.peer()
    await brokers.deliver_nothing()
    await peer.send("orders", b"delayed", properties={"DELAY": "1"})
    await peer.send("orders", b"timed", properties={"TIMER_DELAY_MS": "1500"})
    await brokers.copied()
    await brokers.stop(0)
    await until(lambda: len(brokers.messages(brokers.other)) == 2)
    # Messages that are being delivered when the master returns can be delivered twice.
    slave = brokers.slave
    await until(
        lambda: not slave.features.timer.delivery.is_delivering and slave.features.schedule.offsets().get(1) == 1
    )
    slave_offsets = brokers.slave.features.schedule.offsets()
    brokers.slave.offsets.commit("readers", "orders", 0, 5)
    master = await brokers.start(0)
    # From here on, a delivery by the slave would be a duplicate.
    assert not brokers.slave.acting.is_acting
    assert master.features.schedule.offsets() == slave_offsets
    assert master.offsets.query("readers", "orders", 0) == 5
    await until(lambda: brokers.slave.replication.receives_from_master)
    assert not brokers.slave.acting.is_acting
    peer = await brokers.peer()
    assert (await peer.send("orders", b"later", properties={"TIMER_DELAY_MS": "1000"})).code == ResponseCode.SUCCESS
    await until(lambda: [message.body for message in brokers.messages(master)] == [b"later"])
    await brokers.caught_up()
    assert len(brokers.messages(brokers.other)) == 2


async def test_a_slave_whose_clock_is_ahead_has_delivered_what_it_says(brokers: WithAnother) -> None:
    """The master accepts a timer checkpoint of an acting master, even if the slave's clock is ahead.

    Otherwise the master delivers all timer messages of the past week again.
    """
    timer = brokers.master.features.timer
    done = TimerCheckpoint(now_ms() + 3_000, 0, 7, now_ms(), 1)
    brokers.master.jobs.find("deliver timer messages").cancel()
    await timer.take_over(done.encode())
    assert (timer.files.read_time_ms, timer.files.delivered_queue_offset) == (done.read_time_ms, 7)


async def test_a_master_that_comes_back_is_followed_before_its_tables_are_copied(brokers: WithAnother) -> None:
    """When the slave follows its returned master, it keeps its own newer offsets.

    A Java master requests these offsets after the slave follows it. They must not be the master's older ones.
    """
    master, slave = brokers.master, brokers.slave
    assert (await (await brokers.peer()).send("orders", b"x")).code == ResponseCode.SUCCESS
    await brokers.copied()
    await brokers.stop(0)
    await until(lambda: slave.acting.is_acting and not slave.replication.has_master)
    slave.offsets.commit("readers", "orders", 0, 5)
    # This master does not register with a NameServer.
    settings = replace(master.config, namesrv_addr=[], enable_slave_acting_master=False)
    back = Broker(settings)
    await back.start()
    try:
        back.offsets.commit("readers", "orders", 0, 1)
        header = ExchangeHaInfoRequestHeader(master_ha_address=back.replication.ha_address, master_address=back.address)
        peer = await brokers.peer(1)
        assert (await peer.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, header)).code == ResponseCode.SUCCESS
        await until(lambda: slave.replication.is_following and not slave.acting.is_acting)
        await copy_tables(slave)
        assert slave.offsets.query("readers", "orders", 0) == 5
    finally:
        await back.stop()


async def test_the_slave_is_shown_as_master_and_takes_no_messages(brokers: WithAnother) -> None:
    await brokers.copied()
    slave = brokers.slave
    await brokers.stop(0)
    await until(lambda: slave.acting.is_acting)
    await until(lambda: not slave.replication.has_master)
    route = await brokers.route("orders")
    name = slave.config.broker_name
    own = next(broker for broker in route.broker_datas if broker.broker_name == name)
    assert own.broker_addrs[0] == slave.address
    assert next(queues.perm for queues in route.queue_datas if queues.broker_name == name) == 4
    peer = await brokers.peer(1)
    assert (await peer.send("orders", b"x")).code == ResponseCode.SYSTEM_BUSY


async def test_who_hears_of_its_master_does_not_stand_in(brokers: WithAnother) -> None:
    """A slave does not become acting master while it is connected to its master.

    After a restart, a NameServer can have a route of the slave but not yet of the master.
    """
    acting = brokers.slave.acting
    address = brokers.name_server.address
    # The NameServer removes the master, although it is running.
    header = {
        "brokerName": brokers.master.config.broker_name,
        "brokerAddr": brokers.master.address,
        "clusterName": brokers.master.config.broker_cluster_name,
        "brokerId": "0",
    }
    peer = Peer(await brokers.remoting.connection(address))
    assert (await peer.ask(RequestCode.UNREGISTER_BROKER, fields=header)).code == ResponseCode.SUCCESS
    await until(lambda: acting.members.keys() == {1})
    assert brokers.slave.replication.receives_from_master
    assert not acting.is_acting


async def test_a_broker_that_takes_nothing_keeps_no_message_waiting(brokers: WithAnother) -> None:
    settings = config(brokers.directory / "third", namesrv_addr=[brokers.name_server.address])
    third = Broker(replace(settings, broker_name="third"))
    await third.start()
    refused: list[RemotingCommand] = []

    def refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        refused.append(request)
        return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "too large")

    try:
        third.topics.put(TopicConfig("orders", 4, 4))
        third.handlers[RequestCode.SEND_MESSAGE_V2] = refuse
        bodies = {b"%d" % number for number in range(5)}
        await brokers.deliver_nothing()
        for body in bodies:
            await (await brokers.peer()).send("orders", body, properties={"DELAY": "1"})
        await brokers.copied()
        await until(lambda: _has_queues(brokers, 6))
        await brokers.stop(0)
        await until(lambda: {message.body for message in brokers.messages(brokers.other)} == bodies)
        # The slave tried another broker at once, and the delay level was not paused.
        assert refused
        assert job(brokers.slave, "deliver delay level 1").failures == 0
    finally:
        await third.stop()


async def test_many_of_a_delay_level_are_on_their_way_at_once(brokers: WithAnother) -> None:
    """Deliveries to another broker overlap.

    The other broker answers none of them before ten have arrived.
    """
    came: list[RemotingCommand] = []
    enough = asyncio.Event()
    store = brokers.other.handlers[RequestCode.SEND_MESSAGE_V2]

    def keep(connection: Connection, request: RemotingCommand) -> None:
        async def answer() -> Reply:
            await enough.wait()
            return store(connection, request)

        came.append(request)
        connection.respond_with(request, answer())

    bodies = [b"%d" % number for number in range(50)]
    await brokers.deliver_nothing()
    for body in bodies:
        await (await brokers.peer()).send("orders", body, properties={"DELAY": "1"})
    await brokers.copied()
    brokers.other.handlers[RequestCode.SEND_MESSAGE_V2] = keep
    await brokers.stop(0)
    await until(lambda: len(came) >= 10)
    assert brokers.slave.features.schedule.offsets().get(1, 0) == 0
    enough.set()
    await until(lambda: brokers.slave.features.schedule.offsets().get(1) == 50)
    queue = brokers.other.store.queue("orders", 0)
    assert queue.max_offset == 50
    assert brokers.slave.features.escape_bridge.escaped == 50


async def _has_queues(brokers: WithAnother, count: int) -> bool:
    return sum(queues.write_queue_nums for queues in (await brokers.route("orders")).queue_datas) == count


async def test_a_master_that_hangs_is_stood_in_for(brokers: WithAnother) -> None:
    """A slave stays acting master although its master hangs.

    The master's machine accepts connections but sends no data.
    """
    slave = brokers.slave
    connected: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0) as server:
        await brokers.stop(0)
        await until(lambda: slave.acting.is_acting)
        host, port = server.sockets[0].getsockname()
        slave.replication.slave.set_master(f"{host}:{port}")  # type: ignore[union-attr]
        await until(lambda: connected and slave.replication.is_connected)
        asking = job(slave, ASKING)
        rounds = asking.runs
        await until(lambda: asking.runs > rounds + 1)
        assert slave.acting.is_acting
        for writer in connected:
            writer.close()


async def test_a_master_that_is_heard_ends_it_though_no_name_server_answers(brokers: WithAnother) -> None:
    master, slave = brokers.master, brokers.slave
    await brokers.copied()
    await brokers.stop(0)
    await until(lambda: slave.acting.is_acting)
    await brokers.name_server.stop()
    back = Broker(replace(master.config, namesrv_addr=[], enable_slave_acting_master=False))
    await back.start()
    try:
        slave.replication.slave.set_master(back.replication.ha_address)  # type: ignore[union-attr]
        await until(lambda: not slave.acting.is_acting)
    finally:
        await back.stop()


async def test_what_fails_half_way_is_ended_as_a_whole(brokers: WithAnother, monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover that fails halfway is undone completely.

    The disk is full when the slave takes over, and the master is back before space is free.
    """

    async def fail() -> None:
        raise OSError(28, "No space left on device")

    slave = brokers.slave
    monkeypatch.setattr(slave.features.schedule, "stand_in", fail)
    await brokers.copied()
    await brokers.stop(0)
    await until(lambda: job(slave, ASKING).failures > 1)
    assert slave.appender.escapes
    await brokers.start(0)
    await until(lambda: not slave.appender.escapes)
    assert not slave.acting.is_acting
    assert not slave.jobs.find("ask about open transactions").is_started


async def test_the_lowest_of_several_stands_in(tmp_path: Path) -> None:
    async with WithAnother(tmp_path, 2) as brokers:
        await brokers.copied()
        await brokers.stop(0)
        await until(lambda: brokers.brokers[1].acting.is_acting)
        await until(lambda: brokers.brokers[2].acting.members.keys() == {1, 2})
        assert not brokers.brokers[2].acting.is_acting
        await brokers.stop(1)
        await until(lambda: brokers.brokers[2].acting.is_acting)


async def test_popped_messages_come_back_elsewhere(brokers: WithAnother) -> None:
    brokers.add_topic("%RETRY%poppers_orders")
    peer = PopPeer(await brokers.remoting.connection(brokers.master.address))
    await create_group(peer, "poppers")
    await peer.send("orders", b"popped")
    popped = await peer.pop("orders", invisible_ms=6_000)
    assert popped.code == ResponseCode.SUCCESS
    # The checkpoint of the pop must be in the log, and not in memory only.
    brokers.master.pops.buffer.expire(1 << 62)
    await brokers.copied()
    assert brokers.messages(brokers.slave, "rmq_sys_wheel_timer")
    await brokers.stop(0)
    await until(lambda: [m.body for m in brokers.messages(brokers.other, "%RETRY%poppers_orders")] == [b"popped"])


async def test_sends_are_refused_when_too_few_replicas_are_there(tmp_path: Path) -> None:
    async with WithAnother(tmp_path, 1) as brokers:
        brokers.master.config.replication.in_sync_replicas = 2
        brokers.master.context.events.config_changed.publish()
        pending_responses = next(part for part in brokers.master.features.all if isinstance(part, PendingResponses))
        await until(lambda: not pending_responses.lacks_replicas)
        peer = await brokers.peer()
        assert (await peer.send("orders", b"both")).code == ResponseCode.SUCCESS
        await brokers.stop(1)
        await until(lambda: pending_responses.lacks_replicas)
        refused = await peer.send("orders", b"one")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "in-sync replicas not enough" in (refused.remark or "")
