"""A producer of transactional messages that uses the protocol directly and answers transaction checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker_support import Peer

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from gantrymq.protocol.message import MessageExt, decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, RpcHook

TIMEOUT_S = 10.0
Verdict = Callable[[MessageExt], int]


class Producer(Peer):
    """A member of the group `producers` that stores the transaction checks it receives.

    If `verdict` is set, it returns the response to each check.
    """

    def __init__(self, verdict: Verdict | None = None, hooks: Sequence[RpcHook] = ()) -> None:
        self.client = RemotingClient({RequestCode.CHECK_TRANSACTION_STATE: self._question}, hooks=hooks)
        self.questions: asyncio.Queue[tuple[CheckTransactionStateRequestHeader, MessageExt]] = asyncio.Queue()
        self._verdict = verdict

    async def connect(self, port: int) -> Producer:
        super().__init__(await self.client.connection(f"127.0.0.1:{port}"))
        data = HeartbeatData(client_id=f"producer-{id(self)}", producer_data_set=[ProducerData("producers")])
        assert (await self.ask(RequestCode.HEART_BEAT, body=encode_json(data))).code == ResponseCode.SUCCESS
        return self

    def _question(self, connection: Connection, request: RemotingCommand) -> None:
        assert request.is_oneway
        header = request.read_header(CheckTransactionStateRequestHeader)
        [message] = decode_messages(request.body)
        self.questions.put_nowait((header, message))
        if self._verdict is not None:
            end = end_header(
                header.tran_state_table_offset,
                header.commit_log_offset,
                self._verdict(message),
                from_transaction_check=True,
            )
            connection.send_oneway(RemotingCommand.request(RequestCode.END_TRANSACTION, end))

    async def question(self) -> tuple[CheckTransactionStateRequestHeader, MessageExt]:
        return await asyncio.wait_for(self.questions.get(), TIMEOUT_S)

    async def prepare(self, topic: str, body: bytes, properties: dict[str, str] | None = None, **more: object) -> Half:
        """Sends a half message."""
        fields = {"TRAN_MSG": "true", "PGROUP": "producers"} | (properties or {})
        response = await self.send(topic, body, properties=fields, sys_flag=TRANSACTION_PREPARED, **more)  # type: ignore[arg-type]
        assert response.code == ResponseCode.SUCCESS, response.remark
        return Half(response.ext_fields)

    async def end(
        self, half: Half, verdict: int = TRANSACTION_COMMIT, *, timeout_ms: int = 20_000, **changed: object
    ) -> RemotingCommand:
        header = end_header(half.queue_offset, half.commit_log_offset, verdict, **changed)
        return await self.ask(RequestCode.END_TRANSACTION, header, timeout_ms=timeout_ms)


class Half:
    """The fields of the response to a half message."""

    def __init__(self, fields: dict[str, str]) -> None:
        self.fields = fields
        self.queue_offset = int(fields["queueOffset"])
        self.commit_log_offset = decode_offset_message_id(fields["msgId"])[1]


def end_header(
    queue_offset: int, commit_log_offset: int, verdict: int, /, **changed: object
) -> EndTransactionRequestHeader:
    header = EndTransactionRequestHeader(
        producer_group="producers",
        tran_state_table_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        commit_or_rollback=verdict,
        msg_id="KEY",
        topic="orders",
    )
    for name, value in changed.items():
        setattr(header, name, value)
    return header


async def all_messages(peer: Peer, topic: str, queue_id: int = 0) -> list[MessageExt]:
    """Returns all messages of a queue."""
    messages: list[MessageExt] = []
    while True:
        response = await peer.pull(topic, len(messages), queue_id=queue_id, max_msg_nums=1000)
        if response.code != ResponseCode.SUCCESS:
            return messages
        messages += decode_messages(response.body)


def progress(broker: Broker) -> tuple[int | None, int | None]:
    """Returns the half offset and the op offset in `consumerOffset.json`."""
    query = broker.offsets.query
    return (
        query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0),
        query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0),
    )
