"""A broker that is a slave.

The tests cover what it copies, its responses, and the tasks that it leaves to the master.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from administration import commit, create_group
from broker_support import Peer, config, run_again
from paused_slaves import pause_slave, resume_slave
from replicated_brokers import Replicas, copy_tables
from request_of_each_code import Places, every_request
from transaction_support import Producer
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.metrics.replication_metrics import replication_metrics
from gantrymq.broker.slave.metadata_sync import MetadataSync
from gantrymq.broker.tables.request_modes import MessageRequestModes
from gantrymq.client.admin.auth import acl_of
from gantrymq.errors import ConfigError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.ha import ExchangeHaInfoRequestHeader, ResetMasterFlushOffsetHeader
from gantrymq.protocol.headers.offset import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.system import clock

CODE = RequestCode


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path, 1) as replicas:
        await until(lambda: tables(replicas).copied_from is not None)
        yield replicas


def tables(replicas: Replicas) -> MetadataSync:
    return next(part for part in replicas.slave.features.all if isinstance(part, MetadataSync))


async def copy_now(replicas: Replicas) -> None:
    await copy_tables(replicas.slave)


@pytest.mark.parametrize(
    ("broker_id", "role"), [(1, BrokerRole.ASYNC_MASTER), (2, BrokerRole.SYNC_MASTER), (0, BrokerRole.SLAVE)]
)
def test_id_and_role_belong_together(tmp_path: Path, broker_id: int, role: BrokerRole) -> None:
    with pytest.raises(ConfigError, match=f"brokerId={broker_id}, brokerRole={role.value}"):
        config(tmp_path, broker_id=broker_id, broker_role=role)


async def test_what_a_slave_refuses(replicas: Replicas) -> None:
    peer = await replicas.peer()
    sent = await peer.send("orders", b"x")
    assert sent.code == ResponseCode.SUCCESS
    await replicas.caught_up()
    before = replicas.slave.store.max_physical_offset
    slave = await replicas.peer(1)
    place = 0, sent.ext_fields["msgId"]
    requests = every_request("orders", "consumers", Places(place, place, 0, place))
    answers = {}
    for code, asked in requests.items():
        if code in (CODE.UPDATE_BROKER_CONFIG, CODE.EXCHANGE_BROKER_HA_INFO):
            continue
        if code in REFUSED:
            answers[code] = await slave.ask(code, body=asked.body, fields=asked.fields)
    assert {code: (answer.code, answer.remark) for code, answer in answers.items()} == {
        code: (REFUSED[code], answer.remark) for code, answer in answers.items()
    }
    assert answers.keys() == REFUSED.keys()
    assert answers[CODE.SEND_MESSAGE_V2].remark.startswith("[REJECTREQUEST]system busy")
    assert answers[CODE.UPDATE_AND_CREATE_TOPIC].remark == (
        "Can't modify topic or subscription group from slave broker, please execute it from master broker."
    )
    assert replicas.slave.store.max_physical_offset == before


BUSY, SLAVE, ERROR = ResponseCode.SYSTEM_BUSY, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR
REFUSED = {
    CODE.SEND_MESSAGE: BUSY,
    CODE.SEND_MESSAGE_V2: BUSY,
    CODE.SEND_BATCH_MESSAGE: BUSY,
    CODE.SEND_REPLY_MESSAGE: BUSY,
    CODE.SEND_REPLY_MESSAGE_V2: BUSY,
    CODE.CONSUMER_SEND_MSG_BACK: BUSY,
    CODE.RESUME_CHECK_HALF_MESSAGE: BUSY,
    CODE.END_TRANSACTION: SLAVE,
    CODE.RECALL_MESSAGE: SLAVE,
    CODE.INVOKE_BROKER_TO_RESET_OFFSET: ERROR,
    CODE.UPDATE_AND_CREATE_TOPIC: ERROR,
    CODE.DELETE_TOPIC_IN_BROKER: ERROR,
    CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ERROR,
    CODE.DELETE_SUBSCRIPTIONGROUP: ERROR,
    CODE.POP_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    CODE.ACK_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
}


async def test_the_tables_are_the_master_s(replicas: Replicas) -> None:
    peer = await replicas.peer()
    await create_group(peer, "readers")
    replicas.master.topics.put(TopicConfig("orders", 3, 3), TopicConfig("gone", 1, 1))
    replicas.master.groups.set_may_read("readers", "secrets", False)
    replicas.master.offsets.commit("readers", "orders", 1, 7)
    assert (await peer.send("orders", b"later", properties={"DELAY": "1"})).code == ResponseCode.SUCCESS
    await until(lambda: replicas.master.features.schedule.offsets().get(1) == 1)
    assert (await peer.send("orders", b"timed", properties={"TIMER_DELAY_SEC": "60"})).code == ResponseCode.SUCCESS
    await until(lambda: replicas.master.features.timer.waiting().get("orders") == 1)
    mode = every_request("orders", "readers", Places((0, ""), (0, ""), 0, (0, "")))[CODE.SET_MESSAGE_REQUEST_MODE]
    assert (await peer.ask(CODE.SET_MESSAGE_REQUEST_MODE, body=mode.body)).code == ResponseCode.SUCCESS
    await copy_now(replicas)
    slave = replicas.slave
    assert slave.topics.table == replicas.master.topics.table
    assert slave.groups.table == replicas.master.groups.table
    assert not slave.groups.may_read("readers", "secrets")
    assert slave.offsets.query("readers", "orders", 1) == 7
    assert slave.offsets.topics_of("readers") == {"orders"}
    assert slave.features.schedule.offsets() == replicas.master.features.schedule.offsets()
    assert slave.features.timer.waiting() == {"orders": 1}
    modes = next(part for part in slave.features.all if isinstance(part, MessageRequestModes))
    assert modes.find("orders", "readers").mode == "POP"
    assert (await (await replicas.peer(1)).ask(CODE.GET_TIMER_CHECK_POINT)).code == ResponseCode.SUCCESS
    assert replicas.master.topics.remove("gone")
    await copy_now(replicas)
    assert slave.topics.get("gone") is None
    # The tables also survive a restart, before the slave connects to a master.
    await replicas.stop(1)
    stored = Broker(config(replicas.directory / "1", broker_id=1, broker_role=BrokerRole.SLAVE))
    await stored.start()
    try:
        assert stored.topics.get("orders") == TopicConfig("orders", 3, 3)
        assert stored.offsets.query("readers", "orders", 1) == 7
        assert stored.features.schedule.offsets() == {1: 1}
    finally:
        await stored.stop()


async def test_an_empty_machine_at_the_master_s_address_takes_no_tables_away(replicas: Replicas) -> None:
    """A slave does not copy the tables of another slave at its master's address.

    No master has been elected yet, and the broker at that address is new and has empty tables.
    """
    replicas.master.topics.put(TopicConfig("orders", 3, 3))
    await copy_now(replicas)
    new = Broker(config(replicas.directory / "new", broker_id=1, broker_role=BrokerRole.SLAVE))
    await new.start()
    try:
        following = replicas.slave.replication.following
        following.forget(replicas.name_server.address)
        following.reported("", f"127.0.0.1:{new.port}", None)
        await copy_now(replicas)
        assert following.address == f"127.0.0.1:{new.port}"
        assert new.topics.get("orders") is None
        assert replicas.slave.topics.get("orders") == TopicConfig("orders", 3, 3)
    finally:
        await new.stop()


async def test_a_new_slave_has_the_tables_at_once(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 0) as replicas:
        replicas.master.topics.put(TopicConfig("orders", 3, 3))
        slave = await replicas.start(1)
        await until(lambda: slave.topics.get("orders") is not None, 5)


async def test_a_topic_that_has_messages_is_copied_at_once(replicas: Replicas) -> None:
    await until(lambda: any(isinstance(p, MetadataSync) and p.copied_from for p in replicas.slave.features.all))
    assert (await (await replicas.peer()).send("new", b"x")).code == ResponseCode.SUCCESS
    await until(lambda: replicas.slave.topics.get("new") is not None, 5)


async def test_a_table_that_can_t_be_read_keeps_no_other(replicas: Replicas) -> None:
    replicas.master.offsets.commit("readers", "orders", 1, 7)
    replicas.master.features.schedule.encoded_offsets = lambda: b"rubbish"  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="BodyError"):
        await copy_now(replicas)
    assert replicas.slave.offsets.query("readers", "orders", 1) == 7


async def test_whatever_fails_with_one_table_keeps_no_other(replicas: Replicas) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("topics can't be copied")

    replicas.master.offsets.commit("readers", "orders", 2, 7)
    replicas.slave.topics.copy = fail  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="RuntimeError: topics can't be copied"):
        await copy_now(replicas)
    assert replicas.slave.offsets.query("readers", "orders", 2) == 7


async def test_reading_at_a_slave(replicas: Replicas) -> None:
    peer, slave = await replicas.peer(), await replicas.peer(1)
    for n in range(3):
        await peer.send("orders", b"%d" % n)
    await copy_now(replicas)
    pulled = await slave.pull("orders")
    assert [message.body for message in decode_messages(pulled.body)] == [b"0", b"1", b"2"]
    # A consumer that does not lag far behind is redirected to the master.
    assert pulled.ext_fields["suggestWhichBrokerId"] == "0"
    nothing = await slave.pull("orders", 3, suspend_ms=5000)
    assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    # The offset is beyond the slave's data. A slave never resets offsets.
    ahead = await slave.pull("orders", 100, suspend_ms=5000)
    assert (ahead.code, ahead.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "100")


async def test_a_consumer_far_behind_is_sent_to_a_slave(replicas: Replicas) -> None:
    replicas.master.store.in_memory_bytes = 0
    peer = await replicas.peer()
    for n in range(3):
        await peer.send("orders", b"%d" % n)
    assert (await peer.pull("orders")).ext_fields["suggestWhichBrokerId"] == "1"
    replicas.master.config.slave_read_enable = False
    assert (await peer.pull("orders")).ext_fields["suggestWhichBrokerId"] == "0"


async def test_a_slave_that_isn_t_to_be_read(replicas: Replicas) -> None:
    await (await replicas.peer()).send("orders", b"x")
    slave = await replicas.peer(1)
    replicas.slave.config.slave_read_enable = False
    refused = await slave.pull("orders")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "slaveReadEnable" in (refused.remark or "")


async def test_a_slave_serves_while_its_master_is_away(replicas: Replicas) -> None:
    peer = await replicas.peer()
    for n in range(3):
        await peer.send("orders", b"%d" % n, properties={"KEYS": "k"})
    await commit(peer, 2, group="consumers")
    await copy_now(replicas)
    slave = await replicas.peer(1)
    await replicas.stop(0)
    await until(lambda: not replicas.slave.replication.has_master)
    pulled = await slave.pull("orders", 1)
    assert [message.body for message in decode_messages(pulled.body)] == [b"1", b"2"]
    assert pulled.ext_fields["suggestWhichBrokerId"] == "1"
    # The pull stays pending: the master can return with more messages.
    waiting = asyncio.ensure_future(slave.pull("orders", 3, suspend_ms=20_000))
    await until(lambda: len(replicas.slave.polling) == 1)
    header = UpdateConsumerOffsetRequestHeader(consumer_group="consumers", topic="orders", queue_id=0, commit_offset=3)
    assert (await slave.ask(CODE.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS
    assert replicas.slave.offsets.query("consumers", "orders", 0) == 3
    await replicas.start(0)
    assert (await (await replicas.peer()).send("orders", b"3")).code == ResponseCode.SUCCESS
    assert [message.body for message in decode_messages((await waiting).body)] == [b"3"]


async def test_a_slave_without_tables_sends_no_group_to_the_beginning(replicas: Replicas) -> None:
    """A new slave without tables is busy, so that no group restarts at the beginning.

    Clients must not mistake it for a broker on which the group has no offset.
    """
    peer = await replicas.peer()
    await peer.send("orders", b"x")
    await commit(peer, 1, group="consumers")
    await replicas.stop(0)
    await replicas.start(2)
    slave = await replicas.peer(2)
    header = QueryConsumerOffsetRequestHeader(consumer_group="consumers", topic="orders", queue_id=0)
    assert (await slave.ask(CODE.QUERY_CONSUMER_OFFSET, header)).code == ResponseCode.SYSTEM_BUSY
    await replicas.start(0)
    part = next(part for part in replicas.brokers[2].features.all if isinstance(part, MetadataSync))
    await until(lambda: part.copied_from is not None)
    answer = await slave.ask(CODE.QUERY_CONSUMER_OFFSET, header)
    assert answer.ext_fields["offset"] == "1"


async def test_a_slave_delivers_nothing(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        assert (await peer.send("orders", b"x", properties={"DELAY": "1"})).code == ResponseCode.SUCCESS
        await replicas.caught_up()
        await replicas.stop(0)
        names = ["deliver delay level 1", "deliver timer messages", "ask about open transactions"]
        assert not any(replicas.slave.jobs.find(name).is_started for name in names)


async def test_a_slave_in_its_master_s_place_delivers_what_is_left(tmp_path: Path) -> None:
    """A slave that becomes master delivers the remaining messages.

    Each message is delivered once: no duplicate of the old master's deliveries, and no loss.
    """
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        now_ms = clock.now_ms()
        for body, after_ms in ((b"early", 1_000), (b"late", 8_000)):
            due = {"TIMER_DELIVER_MS": str(now_ms + after_ms)}
            assert (await peer.send("orders", body, properties=due)).code == ResponseCode.SUCCESS
        orders = replicas.master.store.queue("orders", 0)
        await until(lambda: orders.max_offset == 1)
        await until(lambda: replicas.master.features.timer.waiting() == {"orders": 1})
        await replicas.caught_up()
        await copy_now(replicas)
        await replicas.stop(0)
        await replicas.stop(1)
        promoted = Broker(config(tmp_path / "1"))
        await promoted.start()
        try:
            queue = promoted.store.queue("orders", 0)
            await until(lambda: queue.max_offset == 2)
            await until(lambda: promoted.features.timer.behind().not_taken_in == 0)
            pulled = await Peer(await replicas.remoting.connection(f"127.0.0.1:{promoted.port}")).pull("orders")
            assert [message.body for message in decode_messages(pulled.body)] == [b"early", b"late"]
        finally:
            await promoted.stop()


@pytest.mark.parametrize("delay", ["level", "time"])
async def test_what_was_delivered_at_the_master_alone_is_delivered_again(tmp_path: Path, delay: str) -> None:
    """The tables of a slave must not be ahead of its log.

    Otherwise it would skip the missing messages when it becomes master.
    """
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        peer = await replicas.peer()
        due = {"DELAY": "1"} if delay == "level" else {"TIMER_DELIVER_MS": str(clock.now_ms() + 1_000)}
        assert (await peer.send("orders", b"x", properties=due)).code == ResponseCode.SUCCESS
        await replicas.caught_up()
        await copy_now(replicas)
        pause_slave(replicas.slave)
        orders = replicas.master.store.queue("orders", 0)
        await until(lambda: orders.max_offset == 1)
        await commit(peer, 1, group="consumers")
        await copy_now(replicas)
        # A second copy, while an older table is pending.
        await copy_now(replicas)
        assert replicas.slave.offsets.query("consumers", "orders", 0) is None
        await replicas.stop(1)
        promoted = Broker(config(tmp_path / "1"))
        await promoted.start()
        try:
            await until(lambda: promoted.store.queue("orders", 0).max_offset == 1)
        finally:
            await promoted.stop()


async def test_tables_are_taken_when_the_log_has_come_as_far(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        peer = await replicas.peer()
        await peer.send("orders", b"x")
        await replicas.caught_up()
        pause_slave(replicas.slave)
        await peer.send("orders", b"y")
        await commit(peer, 2, group="consumers")
        await copy_now(replicas)
        assert replicas.slave.offsets.query("consumers", "orders", 0) is None
        resume_slave(replicas.slave)
        await until(lambda: replicas.slave.offsets.query("consumers", "orders", 0) == 2)


async def test_a_level_whose_queue_has_lost_its_end(tmp_path: Path) -> None:
    """New messages at the reused offsets are not skipped."""
    async with Replicas(tmp_path, 0) as replicas:
        master = replicas.master
        master.features.schedule.advance_offsets(b'{"offsetTable":{"1":5}}')
        await master.features.schedule.become_slave()
        await master.features.schedule.become_master()
        assert master.features.schedule.offsets()[1] == 0


async def test_what_both_say_of_replication(replicas: Replicas) -> None:
    master, slave = await replicas.peer(), await replicas.peer(1)
    await master.send("orders", b"x")
    end = replicas.master.store.max_physical_offset
    status = HaStatus.decode((await master.ask(CODE.GET_BROKER_HA_STATUS)).body)
    assert (status.master, status.master_commit_log_max_offset, status.in_sync_slave_nums) == (True, end, 1)
    assert (status.connections[0].slave_ack_offset, status.connections[0].diff) == (end, 0)
    told = await master.ask(CODE.EXCHANGE_BROKER_HA_INFO)
    assert told.ext_fields["masterHaAddress"] == replicas.master.replication.ha_address
    assert told.ext_fields["masterAddress"] == replicas.master.address
    assert (await slave.ask(CODE.EXCHANGE_BROKER_HA_INFO)).ext_fields.get("masterAddress") is None
    header = ResetMasterFlushOffsetHeader(master_flush_offset=77)
    assert (await slave.ask(CODE.RESET_MASTER_FLUSH_OFFSET, header)).code == ResponseCode.SUCCESS
    status = HaStatus.decode((await slave.ask(CODE.GET_BROKER_HA_STATUS)).body)
    assert not status.master
    assert status.client.is_activated
    assert (status.client.master_addr, status.client.max_offset) == (told.ext_fields["masterHaAddress"], end)
    assert status.client.master_flush_offset == 77


async def test_a_master_that_tells_of_itself(tmp_path: Path) -> None:
    """A slave follows the master that sends it this request.

    Java's master sends it when it starts while a slave is acting master.
    """
    async with Replicas(tmp_path, 0) as replicas:
        lonely = config(tmp_path / "lonely", broker_id=1, broker_role=BrokerRole.SLAVE, slave_read_enable=True)
        slave = Broker(lonely)
        await slave.start()
        try:
            replicas.master.topics.put(TopicConfig("orders", 3, 3))
            await (await replicas.peer()).send("orders", b"x")
            peer = Peer(await replicas.remoting.connection(f"127.0.0.1:{slave.port}"))
            header = ExchangeHaInfoRequestHeader(
                master_ha_address=replicas.master.replication.ha_address, master_address=replicas.master.address
            )
            assert (await peer.ask(CODE.EXCHANGE_BROKER_HA_INFO, header)).code == ResponseCode.SUCCESS
            end = replicas.master.store.max_physical_offset
            await until(lambda: slave.store.max_physical_offset == end)
            await until(lambda: slave.topics.get("orders") is not None)
        finally:
            await slave.stop()


async def test_a_slave_learns_where_its_master_s_log_begins(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        slave = replicas.slave.replication.slave
        assert slave is not None
        slave.first_offset = None
        await replicas.slave.features.metadata_sync.learn_log_begin(replicas.master.address)
        assert slave.first_offset == 0


async def test_users_are_copied_where_both_check_signatures(tmp_path: Path) -> None:
    auth = AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        inner_client_authentication_credentials='{"accessKey":"broker","secretKey":"secret12"}',
    )
    replicas = Replicas(tmp_path, 1)
    replicas.options["auth"] = auth
    async with replicas:
        users = replicas.master.access.users
        users.create_user(UserInfo("alice12", "secret34"))
        users.put_acl(None, acl_of("User:alice12", ["Topic:orders"], ["Pub"], [], "Allow"))
        await copy_now(replicas)
        copied = replicas.slave.access.users
        assert copied.users["alice12"].password == "secret34"
        assert copied.acls == users.acls
        users.delete_user("alice12")
        await copy_now(replicas)
        assert "alice12" not in copied.users


async def test_without_credentials_nothing_is_copied_from_a_guarded_master(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 1)
    replicas.options["auth"] = AuthConfig(authentication_enabled=True, authorization_enabled=True)
    replicas.replication["ha_allow_unsigned"] = True
    async with replicas:
        replicas.master.offsets.commit("readers", "orders", 1, 7)
        with pytest.raises(AssertionError, match="BrokerError"):
            await run_again(replicas.slave.jobs, "copy the master's tables")
        assert replicas.slave.offsets.query("readers", "orders", 1) is None


async def test_how_far_a_slave_is_behind(replicas: Replicas) -> None:
    replicas.master.config.replication.in_sync_replicas = 1
    replicas.master.context.events.config_changed.publish()
    peer = await replicas.peer()
    assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
    await replicas.caught_up()
    (status,) = replicas.master.replication.status().connections
    await until(lambda: replicas.master.replication.status().connections[0].diff == 0)
    (status,) = replicas.master.replication.status().connections
    assert (status.broker_id, status.diff, status.behind_millis) == (1, 0, 0)
    # The lag in time is the age of the record at the slave's position.
    (slave,) = replicas.master.replication.slaves()
    slave.acknowledged = 0
    (status,) = replicas.master.replication.status().connections
    age_ms = clock.now_ms() - replicas.master.store.read_record(0).store_timestamp
    assert status.diff == replicas.master.store.max_physical_offset
    assert 0 <= status.behind_millis <= age_ms
    # The position is inside a record, which is possible for Java slaves.
    slave.acknowledged = 1
    assert replicas.master.replication.status().connections[0].behind_millis == -1


async def test_what_prometheus_hears_of_replication(replicas: Replicas) -> None:
    peer = await replicas.peer()
    assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
    await until(lambda: replicas.master.replication.status().connections[0].diff == 0)

    def told(broker: Broker) -> dict[str, list[float]]:
        metrics = replication_metrics(broker.config, broker.replication, broker.acting.is_acting, {})
        return {metric.name: [value for _, value in metric.samples] for metric in metrics}

    master, slave = told(replicas.master), told(replicas.slave)
    assert master["gantry_replication_slaves"] == [1]
    assert master["gantry_replication_in_sync"] == [2]
    assert master["gantry_replication_lag_bytes"] == master["gantry_replication_lag_seconds"] == [0]
    assert slave["gantry_replication_slaves"] == slave["gantry_replication_in_sync"] == [0]
    assert len(slave["gantry_replication_transferred_bytes_per_second"]) == 1
    assert master["gantry_replication_role_changes_total"] == slave["gantry_replication_role_changes_total"] == [1]


async def test_a_master_that_stops_waits_for_its_slaves(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER)
    # At this rate, 200 KiB take two thirds of a second.
    replicas.replication |= {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 300 * 1024}
    async with replicas:
        peer = await replicas.peer()
        sends = [peer.send("orders", bytes(10 * 1024)) for _ in range(20)]
        assert {answer.code for answer in await asyncio.gather(*sends)} == {ResponseCode.SUCCESS}
        # The end of the transaction is written while the broker stops.
        producer = await Producer().connect(replicas.master.port)
        await producer.end(await producer.prepare("orders", b"half"))
        store = replicas.master.store
        end = store.max_physical_offset
        assert replicas.slave.store.max_physical_offset < end
        await replicas.stop(0)
        await producer.client.close()
        assert replicas.slave.store.max_physical_offset == store.max_physical_offset > end


async def test_a_master_that_stops_waits_for_nobody_who_does_not_go_on(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        peer = await replicas.peer()
        pause_slave(replicas.slave)
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        async with asyncio.timeout(10):
            await replicas.stop(0)


async def test_slaves_connect_to_broker_ip2(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    replicas.options = {"broker_ip2": "localhost"}
    async with replicas:
        assert replicas.master.address.startswith("127.0.0.1:")
        await (await replicas.peer()).send("orders", b"x")
        await replicas.caught_up()
        assert str(replicas.slave.replication.following.ha_address).startswith("localhost:")
