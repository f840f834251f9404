"""The configuration of a running NameServer.

The tests cover unused keys of its file, log lines, and refused changes.
"""

from __future__ import annotations

import logging
from time import monotonic

import pytest
from wait_until import until

from gantrymq.config import from_properties, load_properties, parse_properties
from gantrymq.errors import BrokerError, ConfigError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.namesrv.topic_table import BrokerQueues, TopicTable
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient

#: Java's NameServer supports the first key. The second one is unknown.
FILE_KEYS = {"clusterTest": "true", "ownNote": "rack 7", "enableTopicList": "false"}
#: The keys that Java's NameServer shows.
JAVA_KEYS = """
    kvConfigPath configStorePath productEnvName clusterTest orderMessageEnable returnOrderTopicConfigToBroker
    clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity
    defaultThreadPoolQueueCapacity scanNotActiveBrokerInterval unRegisterBrokerQueueCapacity supportActingMaster
    enableAllTopicList enableTopicList notifyMinBrokerIdChanged enableControllerInNamesrv needWaitForService
    waitSecondsForService deleteTopicWithBrokerRegistration configBlackList bindAddress listenPort serverWorkerThreads
    serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue serverAsyncSemaphoreValue
    serverChannelMaxIdleTimeSeconds serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark
    writeBufferLowWaterMark serverSocketBacklog serverNettyWorkerGroupEnable serverPooledByteBufAllocatorEnable
    enableShutdownGracefully shutdownWaitTimeSeconds useEpollNativeSelector
"""


async def update(server: NameServer, client: RemotingClient, text: str) -> None:
    request = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=text.encode())
    await client.call(server.address, request)


async def shown(server: NameServer, client: RemotingClient) -> dict[str, str]:
    answer = await client.call(server.address, RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG))
    return parse_properties(answer.body.decode(), source="the answer")


async def test_keys_that_it_does_not_use_stay_and_are_shown(config: NamesrvConfig, client: RemotingClient) -> None:
    server = NameServer(config, FILE_KEYS)
    await server.start()
    assert (await shown(server, client)).items() >= {"clusterTest": "true", "ownNote": "rack 7"}.items()
    await update(server, client, "enableTopicList=true\nownNote=rack 8\nunheardOf=1\n")
    written = load_properties(config.config_store_path)
    assert written.items() <= (await shown(server, client)).items()
    assert written.items() >= {"clusterTest": "true", "ownNote": "rack 8", "enableTopicList": "true"}.items()
    # As in Java: a key that is neither known nor in the file is ignored.
    assert "unheardOf" not in written
    await server.stop()


async def test_keys_of_java_that_it_does_not_use_are_kept(
    config: NamesrvConfig, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    server = NameServer(config)
    await server.start()
    before = await shown(server, client)
    # All keys of NamesrvConfig and NettyServerConfig, except rocketmqHome.
    assert (before["serverWorkerThreads"], before["productEnvName"]) == ("8", "center")
    assert before.keys() >= set(JAVA_KEYS.split())
    caplog.set_level(logging.INFO, "gantrymq.remoting.configuration")
    await update(server, client, "serverWorkerThreads=16\nunheardOf=1\n")
    assert (await shown(server, client)) == before | {"serverWorkerThreads": "16"}
    assert load_properties(config.config_store_path)["serverWorkerThreads"] == "16"
    # Defaults are not written, so that the next start does not report them as unused.
    assert "productEnvName" not in load_properties(config.config_store_path)
    await server.stop()
    again = NameServer(config, load_properties(config.config_store_path))
    await again.start()
    assert (await shown(again, client))["serverWorkerThreads"] == "16"
    await again.stop()
    lines = [message.partition(": ")[2] or message for message in caplog.messages]
    assert "the key serverWorkerThreads is kept and has no effect" in lines
    assert "the key unheardOf is unknown and ignored" in lines
    assert [line for line in caplog.messages if " set " in line and "unheardOf" in line] == []


async def test_what_can_t_be_written_changes_nothing(config: NamesrvConfig, client: RemotingClient) -> None:
    config.config_store_path.mkdir(parents=True)
    server = NameServer(config, FILE_KEYS)
    await server.start()
    before = await shown(server, client)
    with pytest.raises(BrokerError, match=r"namesrv\.properties"):
        await update(server, client, "enableTopicList=true\nownNote=rack 8\n")
    assert await shown(server, client) == before
    await server.stop()


async def test_the_configuration_is_logged_at_the_start(
    config: NamesrvConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gantrymq.namesrv.server")
    server = NameServer(config, FILE_KEYS | {"forged": "a\n2026-01-01 all is well"})
    await server.start()
    await server.stop()
    assert "configuration: scanNotActiveBrokerInterval=20" in caplog.messages
    assert "configuration: ownNote=rack 7" in caplog.messages
    assert r"configuration: forged=a\n2026-01-01 all is well" in caplog.messages


@pytest.mark.alone
async def test_an_idle_connection_is_closed(config: NamesrvConfig, client: RemotingClient) -> None:
    config.server_channel_max_idle_time_seconds = 1
    server = NameServer(config)
    await server.start()
    await shown(server, client)
    connection = await client.connection(server.address)
    answered = connection.last_read
    await until(lambda: connection.is_closed)
    assert 1.0 <= monotonic() - answered < 2.5
    await server.stop()


@pytest.mark.parametrize(
    "setting",
    [
        *(f"{key}={value}" for key in ("listenPort", "metricsPort") for value in (-1, 65536, 2**31 - 1)),
        *(
            f"{key}={value}"
            for key in ("serverChannelMaxIdleTimeSeconds", "scanNotActiveBrokerInterval", "waitSecondsForService")
            for value in (-1, 2**31, "9" * 5000)
        ),
        "serverChannelMaxIdleTimeSeconds=0",
        "scanNotActiveBrokerInterval=0",
    ],
)
def test_values_that_can_t_work(setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match=key):
        from_properties(NamesrvConfig, {key: value}, source="the test")


async def test_the_largest_values_work(config: NamesrvConfig) -> None:
    config.server_channel_max_idle_time_seconds = config.scan_not_active_broker_interval = 2**31 - 1
    config.wait_seconds_for_service = 2**31 - 1
    server = NameServer(config)
    await server.start()
    await server.stop()


async def test_the_boot_line_is_java_s(config: NamesrvConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gantrymq.namesrv.server")
    server = NameServer(config)
    await server.start()
    port = server.address.rpartition(":")[2]
    await server.stop()
    assert f"The Name Server boot success. serializeType=JSON, address {config.bind_address}:{port}" in caplog.messages


def test_new_and_changed_topics_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gantrymq.namesrv.topic_table")
    table = TopicTable()
    for read_queue_nums in (4, 4, 8):
        table.put([("orders", BrokerQueues("broker-a", read_queue_nums, 4, 6, 0))])
    four = "QueueData [brokerName=broker-a, readQueueNums=4, writeQueueNums=4, perm=6, topicSysFlag=0]"
    assert caplog.messages == [
        f"new topic registered, orders {four}",
        f"topic changed, orders OLD: {four} NEW: {four.replace('readQueueNums=4', 'readQueueNums=8')}",
    ]
    caplog.clear()
    table.put((f"topic-{number}", BrokerQueues("broker-a", 4, 4, 6, 0)) for number in range(1000))
    assert 0 < len(caplog.messages) < 100
