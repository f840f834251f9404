"""`minInSyncReplicas`: nothing is acknowledged while too few brokers are in sync.

This applies to all kinds of requests, including pending ones.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from controlled_support import ControlledBrokers
from paused_slaves import pause_slave
from wait_until import until

from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader, SendMessageResponseHeader
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED

BATCH = encode_batch([(0, b"a", b""), (0, b"b", b"")])


async def lacks_replicas(replicas: ControlledBrokers) -> None:
    """Waits until the master detects that no other broker is in sync."""
    waits = next(part for part in replicas.brokers[1].features.all if isinstance(part, PendingResponses))
    await until(lambda: waits.lacks_replicas)


@pytest.mark.parametrize("sys_flag", [0, TRANSACTION_PREPARED], ids=["batch", "half batch"])
async def test_batches_are_refused(tmp_path: Path, sys_flag: int) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)

        async def send() -> RemotingCommand:
            properties = {"TRAN_MSG": "true", "PGROUP": "producers"} if sys_flag else {}
            code = RequestCode.SEND_BATCH_MESSAGE
            return await peer.send("orders", BATCH, code=code, sys_flag=sys_flag, properties=properties)

        assert (await send()).code == ResponseCode.SUCCESS
        await replicas.stop(2)
        await lacks_replicas(replicas)
        end = replicas.brokers[1].store.max_physical_offset
        answer = await send()
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        assert replicas.brokers[1].store.max_physical_offset == end


async def test_a_message_that_is_given_back_is_refused(tmp_path: Path) -> None:
    """A send-back is refused. The consumer keeps the message and sends it back again later."""
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        await peer.send("orders", b"hard")
        (message,) = decode_messages((await peer.pull("orders")).body)
        header = ConsumerSendMsgBackRequestHeader(offset=message.commit_log_offset, group="consumers", delay_level=-1)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS
        await replicas.stop(2)
        await lacks_replicas(replicas)
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")


async def test_a_recall_is_refused(tmp_path: Path) -> None:
    """The recall is not stored.

    Unless it is repeated with enough replicas, the message is delivered.
    """
    async with ControlledBrokers(tmp_path, 2, recall_message_enable=True) as replicas:
        await replicas.all_in_sync()
        master = replicas.brokers[1]
        peer = await replicas.peer(1)
        sent = await peer.send("orders", b"wrong", properties={"TIMER_DELAY_MS": "3600000"})
        handle = sent.read_header(SendMessageResponseHeader).recall_handle or ""

        async def recall() -> tuple[int, str | None]:
            header = RecallMessageRequestHeader(topic="orders", recall_handle=handle)
            answer = await peer.ask(RequestCode.RECALL_MESSAGE, header)
            return answer.code, answer.remark

        await replicas.stop(2)
        await lacks_replicas(replicas)
        end = master.store.max_physical_offset
        assert await recall() == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        assert master.store.max_physical_offset == end
        await replicas.start(2)
        await replicas.all_in_sync()
        waits = next(part for part in master.features.all if isinstance(part, PendingResponses))
        # The master gets the new in-sync set after the controller.
        await until(lambda: not waits.lacks_replicas)
        assert (await recall())[0] == ResponseCode.SUCCESS
        assert master.store.max_physical_offset > end


async def test_what_waits_when_the_set_shrinks_is_not_acknowledged(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        replicas.brokers[1].config.replication.slave_timeout = 1_000
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"both")).code == ResponseCode.SUCCESS
        pause_slave(replicas.brokers[2])
        one = asyncio.ensure_future(peer.send("orders", b"one"))
        await until(lambda: replicas.brokers[1].store.queue("orders", 0).max_offset == 2)
        await replicas.stop(2)
        assert (await one).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        # The message is like any late one: consumers get it, and a retry is acknowledged, once two brokers have it.
        await replicas.start(2)
        await replicas.all_in_sync()
        assert (await peer.send("orders", b"both again")).code == ResponseCode.SUCCESS
        shown = [message.body for message in decode_messages((await peer.pull("orders")).body)]
        assert shown == [b"both", b"one", b"both again"]


async def test_late_slaves_are_told_of_a_message_that_is_given_back(tmp_path: Path) -> None:
    """A consumer that drops the message would lose it if this master failed."""
    async with ControlledBrokers(tmp_path, 2, recall_message_enable=True) as replicas:
        await replicas.all_in_sync()
        master = replicas.brokers[1]
        peer = await replicas.peer(1)
        sent = await peer.send("orders", b"hard")
        timed = await peer.send("orders", b"wrong", properties={"TIMER_DELAY_MS": "3600000"})
        handle = timed.read_header(SendMessageResponseHeader).recall_handle or ""
        pause_slave(replicas.brokers[2])
        master.config.replication.slave_timeout = 150
        header = ConsumerSendMsgBackRequestHeader(
            offset=decode_offset_message_id(sent.ext_fields["msgId"])[1], group="consumers", delay_level=1
        )
        end = master.store.max_physical_offset
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert master.store.max_physical_offset > end
        recall = RecallMessageRequestHeader(topic="orders", recall_handle=handle)
        assert (await peer.ask(RequestCode.RECALL_MESSAGE, recall)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
