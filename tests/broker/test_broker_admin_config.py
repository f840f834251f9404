"""Admin requests for the broker's statistics and configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import get_type_hints

import pytest
from administration import send
from bare_store import threads_of
from broker_support import Peer, config
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import from_properties, load_properties, parse_properties, property_key
from gantrymq.errors import ConfigError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.route import ClusterInfo, KVTable
from gantrymq.protocol.bodies.stats import BrokerStatsData
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.steps import finish
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.config import StoreConfig
from gantrymq.store.key_lookup import by_key

#: Values of Java's thread pools and of its TransientStorePool, as of an idle Java broker.
CONSTANT_FIGURES = {
    "dispatchMaxBuffer": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueCapacity": "100000",
    "pullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
    "sendThreadPoolQueueCapacity": "10000",
    "putMessageFailedTimes": "0",
}
CLUSTER_INFO = partial(RemotingCommand.request, RequestCode.GET_BROKER_CLUSTER_INFO)


async def figures(peer: Peer) -> dict[str, str]:
    response = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert response.code == ResponseCode.SUCCESS
    return decode_json(response.body, KVTable).table


async def update(peer: Peer, text: str) -> RemotingCommand:
    return await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def settings(peer: Peer) -> dict[str, str]:
    response = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    return parse_properties(response.body.decode(), source="test")


async def test_figures(peer: Peer, broker: Broker) -> None:
    empty = await figures(peer)
    assert empty["earliestMessageTimeStamp"] == "-1"
    assert empty["brokerVersionDesc"].startswith("V5_")
    assert [float(rate) for rate in empty["putTps"].split(" ")] == [0.0, 0.0, 0.0]
    assert 0 < float(empty["commitLogDiskRatio"]) < 1
    await send(peer, 5)
    await peer.send("orders", b"late", properties={"DELAY": "2"})

    async def all_counted() -> dict[str, str] | None:
        now = await figures(peer)
        return now if now["putMessageTimesTotal"] == "6" else None

    now = await until(all_counted)
    assert float(now["putTps"].split(" ")[0]) > 0
    assert int(now["commitLogMaxOffset"]) == int(now["putMessageSizeTotal"]) == broker.store.max_physical_offset
    assert float(now["putMessageAverageSize"]) == broker.store.max_physical_offset / 6
    assert int(now["earliestMessageTimeStamp"]) > int(now["bootTimestamp"]) - 1
    # The delayed message is in a system topic.
    assert (now["msgPutTotalTodayMorning"], now["msgPutTotalTodayNow"]) == ("0", "5")
    assert {name: now[name] for name in CONSTANT_FIGURES} == CONSTANT_FIGURES
    for name in ("putLatency99", "putLatency999"):
        assert re.fullmatch(r"[0-9]+\.[0-9]{2}", now[name])
    assert now["putMessageDistributeTime"].startswith("[<=0ms]:")
    for name in ("getMissTps", "getFoundTps", "getTotalTps", "getTransferredTps"):
        assert len([float(rate) for rate in now[name].split()]) == 3
    assert now["remainHowManyDataToFlush"].endswith("B")


async def counter(peer: Peer, name: str, key: str) -> BrokerStatsData | None:
    header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
    response = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
    if response.code == ResponseCode.SYSTEM_ERROR:
        assert f"<{name}> <{key}> not exist" in (response.remark or "")
        return None
    return decode_json(response.body, BrokerStatsData)


async def test_counters(peer: Peer) -> None:
    await send(peer, 1)
    await peer.pull("orders", 0)

    async def got_at_least(count: int) -> BrokerStatsData | None:
        data = await counter(peer, "GROUP_GET_NUMS", "orders@consumers")
        return data if data is not None and data.stats_minute.sum >= count else None

    await until(lambda: got_at_least(0))
    await send(peer, 3)
    await peer.pull("orders", 1)
    got = await until(lambda: got_at_least(4))
    put = await counter(peer, "TOPIC_PUT_NUMS", "orders")
    assert put is not None
    assert (put.stats_minute.sum, put.stats_hour.sum, put.stats_day.sum) == (4, 4, 4)
    assert put.stats_minute.tps > 0
    assert got.stats_minute.sum == 4
    assert await counter(peer, "TOPIC_PUT_NUMS", "none") is None
    assert await counter(peer, "NO_SUCH_STATS", "orders") is None


async def test_configuration_is_shown_and_changed(peer: Peer, broker: Broker) -> None:
    shown = await settings(peer)
    assert shown["brokerName"] == "broker-a"
    assert shown["mappedFileSizeCommitLog"] == str(4 * 1024 * 1024)
    assert "store" not in shown
    version = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).ext_fields["version"]
    assert decode_json(version.encode(), DataVersion).counter == 0
    response = await update(peer, "maxFilterMessageSize=2000\nbrokerPermission=4\nnoSuchKey=1\nbrokerName=broker-a\n")
    assert response.code == ResponseCode.SUCCESS
    assert (broker.config.store.max_filter_message_size, broker.config.broker_permission) == (2000, 4)
    assert broker.store.config is broker.config.store
    shown = await settings(peer)
    assert (shown["maxFilterMessageSize"], shown["brokerPermission"]) == ("2000", "4")
    assert "noSuchKey" not in shown
    version = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).ext_fields["version"]
    assert decode_json(version.encode(), DataVersion).counter == 1


async def test_what_may_be_created_changes_at_once(peer: Peer, broker: Broker) -> None:
    assert (await update(peer, "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false")).code == 0
    assert (await peer.send("orders", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.groups.get("consumers") is None
    assert (await update(peer, "autoCreateTopicEnable=true\nautoCreateSubscriptionGroup=true")).code == 0
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    assert (await peer.pull("orders")).body


async def test_topics_may_be_created_where_they_could_not_at_the_start(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    broker = Broker(config(tmp_path / "store", auto_create_topic_enable=False))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    assert (await peer.send("orders", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await update(peer, "autoCreateTopicEnable=true")).code == 0
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    await broker.stop()


async def test_changes_take_effect_at_once(peer: Peer, broker: Broker) -> None:
    """Properties that Java applies at run time, and some more."""
    store = broker.store
    threads = threads_of(store)
    log_flusher, queue_flusher = threads.log_flusher, threads.queue_flusher
    index_before = store.keys.index_last_update
    text = """
        regionId=moon
        traceOn=false
        maxMessageSize=1000
        defaultTopicQueueNums=3
        flushConsumerOffsetInterval=60000
        registerNameServerPeriod=60000
        popPollingSize=0
        maxPopPollingSize=7
        popCkStayBufferTime=1234
        popCkStayBufferTimeOut=2345
        popCkMaxBufferSize=3456
        flushIntervalCommitLog=111
        flushIntervalConsumeQueue=222
        flushConsumeQueueLeastPages=3
        flushConsumeQueueThoroughInterval=444
        accessMessageInMemoryMaxRatio=0
        deleteWhen=05;06
        messageIndexEnable=false
        timerFlushIntervalMs=555
    """
    assert (await update(peer, text)).code == ResponseCode.SUCCESS
    sent = await peer.send("orders", bytes(1000), default_topic_queue_nums=100, properties={"KEYS": "k"})
    assert (sent.ext_fields["MSG_REGION"], sent.ext_fields["TRACE_ON"]) == ("moon", "false")
    stored = broker.store.read_record(decode_offset_message_id(sent.ext_fields["msgId"])[1])
    assert b"MSG_REGION\x01moon\x02TRACE_ON\x01false\x02" in stored.properties
    topic = broker.topics.get("orders")
    assert topic is not None
    assert topic.write_queue_nums == 3
    assert (await peer.send("orders", bytes(1001))).code == ResponseCode.MESSAGE_ILLEGAL
    batch = encode_batch([(0, bytes(1001), b"")])
    assert (await peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE)).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.appender.max_message_size == 1000
    assert broker.persistence.period_s == 60.0
    assert (log_flusher.interval_s, queue_flusher.interval_s) == (0.111, 0.222)
    assert store.in_memory_bytes == 0
    assert (broker.pops.buffer.stay_ms, broker.pops.buffer.leave_before_ms) == (1234, 2345)
    assert broker.pops.buffer.max_size == 3456
    for waiting in (broker.pops.waiting, broker.pops.waiting_notifications):
        assert (waiting.queue_limit, waiting.limit) == (0, 7)
    assert store.keys.build_index(1.0)
    assert store.keys.index_last_update == index_before
    # After the index is on again, it adds the messages that it missed.
    assert (await update(peer, "messageIndexEnable=true")).code == ResponseCode.SUCCESS
    await until(lambda: store.keys.build_index(1.0))
    assert store.keys.index_last_update > index_before


async def test_an_index_that_was_off_at_the_start(tmp_path: Path, remoting: RemotingClient) -> None:
    settings = config(tmp_path / "store")
    settings.store.message_index_enable = False
    broker = Broker(settings)
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.send("orders", b"x", properties={"KEYS": "k"})
    assert (await update(peer, "messageIndexEnable=true")).code == ResponseCode.SUCCESS
    # A background thread creates the first index file.
    await until(lambda: broker.store.keys.build_index(1.0))
    assert finish(broker.store.keys.find(by_key("orders", "k", 0, 1 << 62, 10))) == [0]
    await broker.stop()


async def test_other_name_servers(tmp_path: Path, remoting: RemotingClient) -> None:
    """The broker unregisters from the old NameServers and registers with the new ones."""
    servers = [
        NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=tmp_path / f"{number}.json"))
        for number in range(3)
    ]
    for server in servers:
        await server.start()
    first, second, third = (server.address for server in servers)
    broker = Broker(config(tmp_path / "store", namesrv_addr=[first, second]))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))

    async def knows(address: str) -> bool:
        cluster = decode_json((await remoting.call(address, CLUSTER_INFO())).body, ClusterInfo)
        return "broker-a" in cluster.broker_addr_table

    assert [await knows(address) for address in (first, second, third)] == [True, True, False]
    assert (await update(peer, f"namesrvAddr={second};{third}")).code == ResponseCode.SUCCESS
    await until(lambda: knows(third))

    async def left() -> bool:
        return not await knows(first)

    await until(left)
    assert await knows(second)
    await broker.stop()
    assert [await knows(address) for address in (first, second, third)] == [False, False, False]
    for server in servers:
        await server.stop()


async def test_a_change_that_is_no_configuration(peer: Peer) -> None:
    response = await update(peer, "a=1\n" * 20_000)
    assert (response.code, "at most" in (response.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)


def numbers() -> Iterator[tuple[type, Field[int]]]:
    for cls in (BrokerConfig, StoreConfig, AuthConfig, NamesrvConfig):
        hints = get_type_hints(cls)
        yield from ((cls, each) for each in fields(cls) if hints[each.name] in (int, float))  # type: ignore[misc]


@pytest.mark.parametrize(("cls", "each"), [pytest.param(*pair, id=property_key(pair[1])) for pair in numbers()])
def test_every_number_has_bounds(cls: type, each: Field[int], tmp_path: Path) -> None:
    """Bounds are checked at startup and for updates. The error names the key, the value and the bounds."""
    key = property_key(each)
    minimum, maximum = each.metadata["minimum"], each.metadata["maximum"]
    assert minimum <= each.default <= maximum  # type: ignore[operator]
    for value in (minimum - 1, maximum + 1, min(-(2**40), minimum - 1), max(2**40, maximum + 1)):
        with pytest.raises(ConfigError, match=f"x: {key}={value}: must be at least {minimum} and at most {maximum}"):
            from_properties(cls, {key: str(value), "storePathRootDir": "/"}, source="x")
        if cls in (BrokerConfig, StoreConfig):
            kwargs = {"store_path_root_dir": tmp_path} if cls is StoreConfig else {}
            with pytest.raises(ConfigError, match=f"^{key}={value}: must be at least"):
                cls(**{each.name: value}, **kwargs)


@pytest.mark.parametrize("address", ["", "1", "10.0.0", "9" * 5000, "10.0.0.1\0", "a b", "-a.b", "a..b", "x" * 64])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match=f"^brokerIP1={address[:200]}: must be an IP address or a host name$"):
        BrokerConfig(broker_ip1=address)
    with pytest.raises(ConfigError, match=f"^brokerIP2={address[:200]}: must be an IP address or a host name$"):
        BrokerConfig(broker_ip2=address)


@pytest.mark.parametrize("address", ["10.0.0.11", "::1", "fe80::1%eth0"])
def test_addresses(address: str) -> None:
    assert BrokerConfig(broker_ip1=address).broker_ip1 == BrokerConfig(broker_ip1=address).resolved_ip() == address


async def test_an_address_may_be_a_name(tmp_path: Path, remoting: RemotingClient) -> None:
    """Clients receive the host name; records contain its IP address."""
    broker = Broker(config(tmp_path / "store", broker_ip1="localhost"))
    await broker.start()
    assert broker.address == f"localhost:{broker.port}"
    peer = Peer(await remoting.connection(broker.address))
    sent = await peer.send("orders", b"x")
    assert decode_offset_message_id(sent.ext_fields["msgId"])[0] == f"127.0.0.1:{broker.port}"
    await broker.stop()
    nowhere = BrokerConfig(broker_ip1="nowhere.invalid")
    with pytest.raises(ConfigError, match=r"^brokerIP1=nowhere.invalid: can't be resolved"):
        nowhere.resolved_ip()


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ("diskMaxUsedSpaceRatio=97", "at most 95"),
        ("diskMaxUsedSpaceRatio=1", "at least 10"),
        ("diskSpaceWarningLevelRatio=1", "at least 35"),
        ("registerNameServerPeriod=5", "at least 10000"),
        ("registerNameServerPeriod=60001", "at most 60000"),
    ],
)
async def test_a_value_that_would_become_another_is_refused(
    peer: Peer, broker: Broker, change: str, bound: str
) -> None:
    before = await settings(peer)
    answer = await update(peer, f"regionId=moon\n{change}")
    assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, f"{change}: must be {bound}")
    assert await settings(peer) == before
    assert (await update(peer, "diskMaxUsedSpaceRatio= +80 \nregisterNameServerPeriod=10000")).code == 0


async def test_a_key_that_is_none_is_said(peer: Peer) -> None:
    answer = await update(peer, "noSuchKey=1\nregionId=moon\nanother=x")
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "not used here: another, noSuchKey")
    assert (await update(peer, "regionId=sun")).remark is None


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        (
            "flushConsumerOffsetInterval=0",
            ResponseCode.INVALID_PARAMETER,
            "flushConsumerOffsetInterval=0: must be at least",
        ),
        ("channelExpiredTimeout=-1", ResponseCode.INVALID_PARAMETER, "channelExpiredTimeout=-1: must be at least"),
        ("syncFlushTimeout=0", ResponseCode.INVALID_PARAMETER, "syncFlushTimeout=0: must be at least"),
        ("brokerPermission=8", ResponseCode.INVALID_PARAMETER, "brokerPermission=8: must be at least 0 and at most 7"),
        ("defaultTopicQueueNums=2147483647", ResponseCode.INVALID_PARAMETER, "at most 65536"),
        ("brokerPermission=1_0", ResponseCode.INVALID_PARAMETER, "whole number"),
        ("longPollingEnable=maybe", ResponseCode.INVALID_PARAMETER, "longPollingEnable"),
        ("defaultTopicQueueNums=0", ResponseCode.INVALID_PARAMETER, "defaultTopicQueueNums"),
        ("maxFilterMessageSize=-1", ResponseCode.INVALID_PARAMETER, "maxFilterMessageSize"),
        ("defaultTopicQueueNums=" + "9" * 5000, ResponseCode.INVALID_PARAMETER, "defaultTopicQueueNums"),
        ("brokerConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "brokerConfigPath"),
        ("rocketmqHome=/", ResponseCode.NO_PERMISSION, "rocketmqHome"),
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
        ("storePathRootDir=/", ResponseCode.NO_PERMISSION, "storePathRootDir"),
        ("deleteWhen=" + "9" * 5000, ResponseCode.INVALID_PARAMETER, "deleteWhen=999"),
        ("deleteWhen=24", ResponseCode.INVALID_PARAMETER, "hours from 0 to 23"),
        ("a=\\u12", ResponseCode.INVALID_PARAMETER, "\\u"),
        ("x" * (2 << 20), ResponseCode.INVALID_PARAMETER, "configuration"),
    ],
)
async def test_bad_change_is_refused_as_a_whole(
    peer: Peer, broker: Broker, text: str, code: ResponseCode, key: str
) -> None:
    response = await update(peer, f"brokerPermission=2\n{text}")
    assert response.code == code
    assert key in (response.remark or "")
    assert broker.config.broker_permission == 6


async def test_changes_go_to_the_file_that_the_configuration_came_from(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    file, target = tmp_path / "broker.conf", tmp_path / "mine.conf"
    target.write_text("# mine\nbrokerName=broker-a\nsomethingElse=1\n")
    file.symlink_to(target)
    broker = Broker(config(tmp_path / "store", broker_config_path=file))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    assert (await update(peer, "longPollingEnable=false\nnoSuchKey=1")).code == 0
    assert load_properties(file) == {"brokerName": "broker-a", "somethingElse": "1", "longPollingEnable": "false"}
    assert not broker.config.long_polling_enable
    assert file.is_symlink()
    assert target.read_text() == "# mine\nbrokerName=broker-a\nsomethingElse=1\nlongPollingEnable=false\n"
    file.unlink()
    response = await update(peer, "longPollingEnable=true")
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert str(file) in (response.remark or "")
    assert not broker.config.long_polling_enable
    await broker.stop()
