"""Transactions that are ended twice. Only the first end counts."""

from __future__ import annotations

import asyncio

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.plan import TOPIC
from sim.scene import AGAIN_S, PRODUCERS_S, Scene
from sim.workloads.base import Workload

_MESSAGES = 20
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
#: Longest delays of the second end, in seconds: before and after the broker stores the first end.
_AGAIN_S = (0.0, 0.5, 5.0, 30.0)


class _Decisions:
    """A TransactionListener."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return self._of(message.body.decode())

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return self._of(message.body.decode())

    def _of(self, name: str) -> LocalTransactionState:
        return _ROLLBACK if self._scene.history.sent[name].is_void else _COMMIT


class Endings(Workload):
    """Sends a rollback and then a commit, or two commits, for messages of the standard topic (`checkers/copies.py`)."""

    network = 36

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_done = False
        self.add("notary", self._send)

    def is_done(self) -> bool:
        return self._is_done

    async def _send(self, program: Program) -> None:
        await asyncio.sleep(PRODUCERS_S)
        producer = TransactionProducer(self.scene.names, "notaries", _Decisions(self.scene))
        async with producer:
            for number in range(_MESSAGES):
                try:
                    await self._decide(producer, f"{program.name}.{number}")
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(2 * self.chance.random())
            self._is_done = True
            assert program.ending is not None
            # Stays online for checks of its transactions.
            await program.ending.wait()

    async def _decide(self, producer: TransactionProducer, name: str) -> None:
        # With faults the first end may be lost, so the second one may count.
        is_void = self.chance.random() < 0.5 and not self.has_faults
        self.scene.ask(Sent(name, TOPIC, asked_at=self.scene.now(), is_void=is_void))
        message = Message(TOPIC, name.encode())
        sent = await producer.send_in_transaction(message)
        if sent.result.status is not SendStatus.SEND_OK:
            return
        if not is_void:
            self.scene.stored(name, sent.result)
        await asyncio.sleep(self.chance.choice(_AGAIN_S) * self.chance.random())
        await self._commit(producer, message, sent.result)

    async def _commit(self, producer: TransactionProducer, message: Message, result: SendResult) -> None:
        await producer._end(message, result, _COMMIT, None)
        self.scene.history.note(self.scene.now(), f"{message.body.decode()} is committed, as its second end")
