"""The configuration of a NameServer that runs: keys of its file that it doesn't use, what it logs, what it refuses."""

from __future__ import annotations

import logging
from time import monotonic

import pytest
from waiting import until

from gantrymq.config import from_properties, load_properties, parse_properties
from gantrymq.errors import BrokerError, ConfigError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient

#: Java's NameServer knows the first; the second is anybody's.
FILE_KEYS = {"clusterTest": "true", "ownNote": "rack 7", "enableTopicList": "false"}


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
    assert written == await shown(server, client)
    assert written.items() >= {"clusterTest": "true", "ownNote": "rack 8", "enableTopicList": "true"}.items()
    # A key that was nowhere before is not taken, as in Java.
    assert "unheardOf" not in written
    await server.stop()


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
