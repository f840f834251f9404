"""With a controller, a response says if all in-sync replicas have the message.

Only these replicas can become master.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from controlled_support import ControlledBrokers
from paused_slaves import pause_slave, resume_slave
from replicated_brokers import Replicas
from wait_until import until

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import TIMEOUT_FIELD, UNCONFIRMED_FIELD

HASTY = {TIMEOUT_FIELD: "300"}


async def test_late_slaves(tmp_path: Path) -> None:
    """The response is marked as unconfirmed, for each kind of send and for each code path that answers it."""
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        for body in (b"first", b"second"):
            # Native code handles the second send, if it is installed.
            answer = await peer.send("orders", body, fields=HASTY)
            assert (answer.code, UNCONFIRMED_FIELD in answer.ext_fields) == (ResponseCode.SUCCESS, False)
        (message, *_) = decode_messages((await peer.pull("orders")).body)
        pause_slave(replicas.brokers[3])
        batch = encode_batch([(0, b"x", b""), (0, b"y", b"")])
        back = ConsumerSendMsgBackRequestHeader(offset=message.commit_log_offset, group="consumers", delay_level=1)
        half = {"TRAN_MSG": "true", "PGROUP": "producers"}
        answers = await asyncio.gather(
            peer.send("orders", b"plain", fields=HASTY),
            peer.send("orders", b"odd", fields=HASTY, properties={"DELAY": "1"}),
            peer.send("orders", b"half", fields=HASTY, properties=half),
            peer.send("orders", batch, fields=HASTY, code=RequestCode.SEND_BATCH_MESSAGE),
            peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        )
        assert [answer.code for answer in answers] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 5
        assert [answer.ext_fields.get(UNCONFIRMED_FIELD) for answer in answers] == ["true"] * 5
        careless = await peer.send("orders", b"careless", fields=HASTY, properties={"WAIT": "false"})
        assert (careless.code, UNCONFIRMED_FIELD in careless.ext_fields) == (ResponseCode.SUCCESS, False)
        resume_slave(replicas.brokers[3])
        assert (await peer.send("orders", b"last")).code == ResponseCode.SUCCESS


async def test_a_change_of_master(tmp_path: Path) -> None:
    """The new master can have the message that the former one finally refuses."""
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
        pause_slave(replicas.brokers[3])
        sending = asyncio.ensure_future(peer.send("orders", b"second", fields={TIMEOUT_FIELD: "20000"}))
        await until(lambda: replicas.brokers[1].store.queue("orders", 0).max_offset == 2)
        header = ElectMasterRequestHeader(
            cluster_name="DefaultCluster", broker_name="broker-a", broker_id=2, designate_elect=True
        )
        request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        await replicas.remoting.call(replicas.controller.address, request)
        answer = await sending
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.ext_fields[UNCONFIRMED_FIELD] == "true"
        await until(lambda: replicas.masters() == [2])
        refused = await peer.send("orders", b"third")
        assert refused.code != ResponseCode.SUCCESS
        assert UNCONFIRMED_FIELD not in refused.ext_fields


async def test_without_a_controller(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        pause_slave(replicas.slave)
        answer = await peer.send("orders", b"late", fields=HASTY)
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert UNCONFIRMED_FIELD not in answer.ext_fields
