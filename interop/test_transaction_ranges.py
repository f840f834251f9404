"""Our broker is killed while it ends a range of half messages.

Apache's broker takes over its store and checks the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest
from servers import gantry_broker, gantry_namesrv, java_broker

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import GantryError
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.half_ranges import HalfRange, encode_half_ranges
from gantrymq.protocol.headers.half_ranges import EndHalfMessagesRequestHeader
from gantrymq.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from gantrymq.protocol.message import MessageQueue, decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection

pytestmark = pytest.mark.interop(feature="transactions", clients="gantry", servers="java gantry")

TOPIC = "Ranges"
BATCHES = 6
OF_BATCH = 500
COUNT = BATCHES * OF_BATCH
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
GROUP = {"TRAN_MSG": "true", "PGROUP": "producers", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
WAIT_S = 120


@pytest.mark.timeout(400)
async def test_java_goes_on_with_what_our_broker_had_begun(tmp_path: Path) -> None:
    store = tmp_path / "store"
    config = {
        "brokerName": "broker-a",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "transactionTimeOut": 1000,
        "transactionCheckInterval": 1000,
        "transactionCheckMax": 1000,
    }
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    remoting = RemotingClient({RequestCode.CHECK_TRANSACTION_STATE: commit})
    api = BrokerApi(remoting)
    try:
        ours = gantry_broker(tmp_path / "ours", namesrv.address, **config)
        try:
            await api.create_topic(ours.address, TopicConfig(TOPIC, read_queue_nums=1, write_queue_nums=1))
            ranges = [await prepare(remoting, ours.address, number) for number in range(BATCHES)]
            header = EndHalfMessagesRequestHeader(
                producer_group="producers", topics=TOPIC, commit_or_rollback=TRANSACTION_COMMIT
            )
            request = RemotingCommand.request(RequestCode.END_HALF_MESSAGES, header, encode_half_ranges(ranges))
            ending = asyncio.create_task(remoting.call(ours.address, request))
            while not await api.max_offset(ours.address, TOPIC, 0):
                pass
        finally:
            ours.kill()
        with contextlib.suppress(GantryError):
            await ending
        java = java_broker(tmp_path / "java", namesrv.address, **config)
        try:
            first = await api.max_offset(java.address, TOPIC, 0)
            assert 0 < first <= COUNT
            found = await bodies(api, java.address)
            assert found == [b"%d" % n for n in range(first)]
            heartbeat = HeartbeatData(client_id="p", producer_data_set=[ProducerData("producers")])
            deadline = time.monotonic() + WAIT_S
            while len(set(found)) < COUNT and time.monotonic() < deadline:
                # Brokers remove producers without heartbeats.
                beat = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(heartbeat))
                await remoting.call(java.address, beat)
                await asyncio.sleep(0.5)
                found = await bodies(api, java.address)
            print(f"{first} of {COUNT} were there, {sum(n - 1 for n in Counter(found).values())} are there twice")
            assert set(found) == {b"%d" % n for n in range(COUNT)}
        finally:
            java.kill()
    finally:
        await remoting.close()
        namesrv.kill()


async def prepare(remoting: RemotingClient, address: str, number: int) -> HalfRange:
    body = encode_batch((0, b"%d" % n, b"") for n in range(OF_BATCH * number, OF_BATCH * (number + 1)))
    request = send_command(
        "producers",
        QUEUE,
        body,
        encode_properties(GROUP),
        time.time_ns() // 1_000_000,
        sys_flag=TRANSACTION_PREPARED,
        batch=True,
    )
    fields = (await remoting.call(address, request)).ext_fields
    return HalfRange(int(fields["queueOffset"]), decode_offset_message_id(fields["msgId"])[1], OF_BATCH)


def commit(connection: Connection, request: RemotingCommand) -> None:
    """Responds to a check with a commit."""
    asked = request.read_header(CheckTransactionStateRequestHeader)
    end = EndTransactionRequestHeader(
        producer_group="producers",
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=TRANSACTION_COMMIT,
        msg_id=asked.msg_id or "",
        from_transaction_check=True,
    )
    connection.send_oneway(RemotingCommand.request(RequestCode.END_TRANSACTION, end))


async def bodies(api: BrokerApi, address: str) -> list[bytes]:
    found: list[bytes] = []
    end = await api.max_offset(address, TOPIC, 0)
    while len(found) < end:
        pulled = await api.pull_at_once(address, QUEUE, len(found), 32, "readers")
        found += [message.body for message in decode_messages(pulled.body)]
    return found
