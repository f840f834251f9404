"""The broker's figures and its configuration, from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from administration import send
from broker_support import Peer, config
from waiting import until

from gantrymq.broker.broker import Broker
from gantrymq.config import load_properties, parse_properties
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.stats import BrokerStatsData
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.stats import ViewBrokerStatsDataRequestHeader
from gantrymq.remoting.client import RemotingClient


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
        return now if now["msgPutTotalTodayNow"] == "6" else None

    now = await until(all_counted)
    assert float(now["putTps"].split(" ")[0]) > 0
    assert int(now["commitLogMaxOffset"]) == int(now["putMessageSizeTotal"]) == broker.store.max_physical_offset
    assert float(now["putMessageAverageSize"]) == broker.store.max_physical_offset / 6
    assert int(now["earliestMessageTimeStamp"]) > int(now["bootTimestamp"]) - 1
    assert now["msgPutTotalTodayMorning"] == "0"
    assert now["remainHowManyDataToFlush"].endswith("B")


async def test_counters(peer: Peer) -> None:
    await send(peer, 1)
    await peer.pull("orders", 0)

    async def counter(name: str, key: str) -> BrokerStatsData | None:
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        response = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
        if response.code == ResponseCode.SYSTEM_ERROR:
            assert f"<{name}> <{key}> not exist" in (response.remark or "")
            return None
        return decode_json(response.body, BrokerStatsData)

    async def got_at_least(count: int) -> BrokerStatsData | None:
        data = await counter("GROUP_GET_NUMS", "orders@consumers")
        return data if data is not None and data.stats_minute.sum >= count else None

    await until(lambda: got_at_least(0))
    await send(peer, 3)
    await peer.pull("orders", 1)
    got = await until(lambda: got_at_least(4))
    put = await counter("TOPIC_PUT_NUMS", "orders")
    assert put is not None
    assert (put.stats_minute.sum, put.stats_hour.sum, put.stats_day.sum) == (4, 4, 4)
    assert put.stats_minute.tps > 0
    assert got.stats_minute.sum == 4
    assert await counter("TOPIC_PUT_NUMS", "none") is None
    assert await counter("NO_SUCH_STATS", "orders") is None


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


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ("longPollingEnable=maybe", ResponseCode.INVALID_PARAMETER, "longPollingEnable"),
        ("defaultTopicQueueNums=0", ResponseCode.INVALID_PARAMETER, "defaultTopicQueueNums"),
        ("maxFilterMessageSize=-1", ResponseCode.INVALID_PARAMETER, "maxFilterMessageSize"),
        ("defaultTopicQueueNums=" + "9" * 5000, ResponseCode.INVALID_PARAMETER, "defaultTopicQueueNums"),
        ("brokerConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "brokerConfigPath"),
        ("rocketmqHome=/", ResponseCode.NO_PERMISSION, "rocketmqHome"),
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
        ("storePathRootDir=/", ResponseCode.NO_PERMISSION, "storePathRootDir"),
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
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nbrokerName=broker-a\nsomethingElse=1\n")
    broker = Broker(config(tmp_path / "store", broker_config_path=file))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    assert (await update(peer, "longPollingEnable=false\nnoSuchKey=1")).code == 0
    assert load_properties(file) == {"brokerName": "broker-a", "somethingElse": "1", "longPollingEnable": "false"}
    assert not broker.config.long_polling_enable
    file.unlink()
    response = await update(peer, "longPollingEnable=true")
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert str(file) in (response.remark or "")
    assert not broker.config.long_polling_enable
    await broker.stop()
