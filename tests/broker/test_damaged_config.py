"""A broker with damaged configuration files.

It starts if they can be rebuilt, and otherwise reports the damaged file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broker_support import Peer, config
from pop_support import PopPeer
from wait_until import until
from writer_support import Writer, numbered

from gantrymq.broker.broker import Broker
from gantrymq.errors import ConfigError, StoreError
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.pop import MODE_POP, RequestMode
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.properties import DEDUPLICATE_ID
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import now_ms

DOCS = Path(__file__).parents[2] / "docs" / "store.md"
CAN_BE_REBUILT = (
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "gantryDeduplication.json",
    "gantryWriters.json",
    "timermetrics",
    "timercheck",
)
CANNOT = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "messageRequestMode.json",
    "auth/users.json",
)


async def use_everything(directory: Path, remoting: RemotingClient) -> None:
    """Uses all features, so that every file under `config/` is written."""
    broker = Broker(config(directory))
    broker.config.auth.init_authentication_user = '{"username":"root","password":"secret"}'
    broker.config.auth.authentication_enabled = False
    await broker.start()
    peer = PopPeer(await remoting.connection(broker.address))
    for properties in ({}, {"DELAY": "1"}, {"TIMER_DELIVER_MS": str(now_ms() + 3600_000)}):
        assert (await peer.send("orders", b"x", properties=properties)).code == ResponseCode.SUCCESS
    assert (await Writer(remoting, broker.port).send(numbered(0))).code == ResponseCode.SUCCESS
    window = CreateTopicRequestHeader(
        topic="once",
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        attributes="+deduplication.window.ms=60000",
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, window)).code == ResponseCode.SUCCESS
    once = await peer.send("once", b"x", queue_id=0, properties={DEDUPLICATE_ID: "a"})
    assert once.code == ResponseCode.SUCCESS
    sql = SubscriptionData("orders", sub_string="a = 1", expression_type="SQL92", sub_version=1)
    consumer = ConsumerData("poppers", subscription_data_set=[sql])
    body = encode_json(HeartbeatData(client_id="me", consumer_data_set=[consumer]))
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
    [popped] = await peer.messages("orders", order=True, queue_id=0)
    assert (await peer.ack(popped)).code == ResponseCode.SUCCESS
    mode = RequestMode("orders", "poppers", MODE_POP)
    answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_json(mode))
    assert answer.code == ResponseCode.SUCCESS
    await until(lambda: broker.features.schedule.offsets())
    await until(lambda: (directory / "config" / "timercheck").exists())
    await broker.stop()


def damage(path: Path) -> None:
    for each in (path, path.with_name(path.name + ".bak")):
        if each.exists():
            each.write_bytes(b"\xff\x00 no file of ours" * 3)


@pytest.mark.parametrize("name", CAN_BE_REBUILT)
async def test_what_can_be_rebuilt_keeps_no_broker_from_starting(
    tmp_path: Path, remoting: RemotingClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await use_everything(tmp_path, remoting)
    damage(tmp_path / "config" / name)
    for is_damaged in (True, False):
        caplog.clear()
        broker = Broker(config(tmp_path))
        await broker.start()
        try:
            peer = Peer(await remoting.connection(broker.address))
            assert (await peer.send("orders", b"more")).code == ResponseCode.SUCCESS
            assert broker.features.timer.waiting() == {"orders": 1}
        finally:
            await broker.stop()
        assert (name in caplog.text) == is_damaged


@pytest.mark.parametrize("name", CANNOT)
async def test_what_cannot_be_rebuilt_is_named(tmp_path: Path, remoting: RemotingClient, name: str) -> None:
    await use_everything(tmp_path, remoting)
    damage(tmp_path / "config" / name)
    with pytest.raises((StoreError, ConfigError), match=re.escape(name)):
        await Broker(config(tmp_path)).start()


async def test_the_documentation_has_them_all(tmp_path: Path, remoting: RemotingClient) -> None:
    await use_everything(tmp_path, remoting)
    directory = tmp_path / "config"
    files = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith(".bak")} == {*CAN_BE_REBUILT, *CANNOT}
    rows = dict(re.findall(r"^\| `config/(\S+)` \|.*\| (yes|no)\b.*\|$", DOCS.read_text(), re.MULTILINE))
    assert rows == dict.fromkeys(CAN_BE_REBUILT, "yes") | dict.fromkeys(CANNOT, "no")
