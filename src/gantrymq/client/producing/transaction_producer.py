"""TransactionProducer: messages that are delivered only if a local transaction succeeds.

`send_in_transaction` stores a half message, which consumers do not receive. It then runs the local transaction and
sends commit or rollback to the broker. If neither arrives, the broker later checks the transaction with a producer of
the group (CHECK_TRANSACTION_STATE).
Source: client/producer/TransactionMQProducer, DefaultMQProducerImpl (sendMessageInTransaction, checkTransactionState).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, Protocol

from gantrymq.background.tasks import Tasks
from gantrymq.client.broker_api import TIMEOUT_MS, SendResult, SendStatus
from gantrymq.client.namespace import without_namespace
from gantrymq.client.options import arguments, takes
from gantrymq.client.producing.message_encoder import DELAYS
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.producer import TIMEOUT_S, Producer
from gantrymq.client.trace import MessageType, TraceBean, TraceContext, TraceType
from gantrymq.errors import ClientClosed, ClientError, GantryError, IllegalMessage, RequestTimeout, SendOutcomeUnknown
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol import sys_flag
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from gantrymq.protocol.message import Message, MessageExt, decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system import clock
from gantrymq.times import duration_ms

log = peer_log(__name__)

#: Largest number of pending checks (checkRequestHoldMax). The client drops further checks; the broker repeats them.
MAX_CHECKS = 2000
#: Largest size of the half messages of pending checks, in bytes.
MAX_CHECK_BYTES = 64 * 1024 * 1024
CHECK_CONCURRENCY = 8


class LocalTransactionState(Enum):
    """Result of a local transaction. If the result is UNKNOWN, the broker checks the transaction again later."""

    COMMIT_MESSAGE = sys_flag.TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = sys_flag.TRANSACTION_ROLLBACK
    UNKNOWN = 0

    @property
    def java_name(self) -> str:
        """Java's name of the state, which traces contain."""
        return "UNKNOW" if self is LocalTransactionState.UNKNOWN else self.name


class TransactionListener(Protocol):
    """Runs and checks local transactions. Methods are plain functions, which run in threads, or coroutine functions."""

    def execute_local_transaction(
        self, message: Message, arg: Any
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Runs the local transaction after the half message is stored. `arg` comes from `send_in_transaction`.

        `message.properties["UNIQ_KEY"]` identifies the transaction, also in a check. An exception counts as UNKNOWN.
        """

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Returns the state of a transaction for which the broker has no result. An exception counts as UNKNOWN."""


class TransactionSendResult(NamedTuple):
    """The result of the half message, and the state of the local transaction."""

    result: SendResult
    state: LocalTransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionProducerOptions(ProducerOptions):
    """Options of `TransactionProducer`."""

    listener: TransactionListener = field(
        kw_only=False, metadata={"doc": "Runs local transactions, and checks those of its group."}
    )

    def _check(self) -> None:
        ProducerOptions._check(self)
        for name in ("execute_local_transaction", "check_local_transaction"):
            if not callable(getattr(self.listener, name, None)):
                raise ClientError(f"listener={self.listener!r} has no method {name}: see TransactionListener")


class TransactionProducer(Producer):
    """A `Producer` whose `send_in_transaction` delivers messages only if a local transaction succeeds.

    All producers that can check the same transactions must have the same group.
    """

    @takes(TransactionProducerOptions)
    def __init__(self, options: TransactionProducerOptions) -> None:
        super().__init__(**arguments(options, ProducerOptions))
        self._listener = options.listener
        self._checks = Tasks("checks of transactions")
        self._check_bytes = 0
        self._check_slots = asyncio.Semaphore(CHECK_CONCURRENCY)

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout: float | timedelta = TIMEOUT_S
    ) -> TransactionSendResult:
        """Stores `message` as a half message, runs the listener's local transaction, and commits or rolls back.

        If the half message's status is not SEND_OK, this method rolls the half message back and runs no transaction.
        Delays of the message are ignored.

        Args:
            message: Message to send.
            arg: Passed to `execute_local_transaction` of the listener. Default: None.
            timeout: Timeout for storing the half message, in seconds or as a timedelta. Default: 3.0.

        Returns:
            The result of the half message, and the state of the local transaction.

        Raises:
            IllegalMessage: The message is invalid, or has a `deduplicate_id`.
            GantryError: As for `send`. The local transaction has not run.
        """
        timeout_ms = duration_ms("timeout", timeout)
        self._check_open()
        if message.deduplicate_id:
            raise IllegalMessage("a message of a transaction can't have a deduplicate_id: it may be rolled back")
        # The broker checks transactions with connected producers, so send a heartbeat before the half message.
        deadline = clock.monotonic() + timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._greet_brokers_of(message.topic, timeout_ms)
        except TimeoutError:
            raise RequestTimeout(f"no broker of {message.topic} answered in {timeout_ms} ms", message.topic) from None
        half = self._half_message(message)
        try:
            result = await self._send_one(half, max(1, int((deadline - clock.monotonic()) * 1000)))
        except SendOutcomeUnknown as e:
            if e.result is not None:
                await self._try_to_end(half, e.result, LocalTransactionState.ROLLBACK_MESSAGE, None)
            raise
        state, remark = LocalTransactionState.ROLLBACK_MESSAGE, None
        if result.status is SendStatus.SEND_OK:
            if result.transaction_id:
                half.properties[names.TRANSACTION_ID] = result.transaction_id
            state, remark = await self._ask(self._listener.execute_local_transaction, half, arg)
        await self._try_to_end(half, result, state, remark)
        return TransactionSendResult(result, state)

    async def _try_to_end(
        self, half: Message, result: SendResult, state: LocalTransactionState, remark: str | None
    ) -> None:
        """Commits or rolls back. Logs an error without raising it, because the broker checks the transaction later."""
        try:
            await self._end(half, result, state, remark)
        except GantryError as e:
            log.warning("broker %s did not learn that %s is %s: %s", result.queue.broker_name, result.msg_id, state, e)

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        self._checks = Tasks(f"a check of a transaction of group {self.group}")
        self._check_bytes = 0
        self._check_slots = asyncio.Semaphore(CHECK_CONCURRENCY)
        stack.push_async_callback(self._checks.stop)

    def _half_message(self, message: Message) -> Message:
        properties = {name: value for name, value in message.properties.items() if name not in DELAYS}
        properties.setdefault(names.UNIQUE_KEY, self._next_unique_key())
        properties[names.TRANSACTION_PREPARED] = "true"
        properties[names.PRODUCER_GROUP] = self.group
        return Message(message.topic, message.body, flag=message.flag, properties=properties)

    async def _end(self, half: Message, result: SendResult, state: LocalTransactionState, remark: str | None) -> None:
        _, commit_log_offset = decode_offset_message_id(result.offset_msg_id)
        header = EndTransactionRequestHeader(
            topic=self._wire_topic(half.topic),
            producer_group=self.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=result.msg_id,
            transaction_id=result.transaction_id,
            bname=result.queue.broker_name,
        )
        queue = result.queue._replace(topic=self._wire_topic(half.topic))
        address = await self.sender.broker_address(queue, TIMEOUT_MS)
        self._trace(half, result.msg_id, header, address, state)
        await self.client.api.end_transaction(address, header, remark)

    # -- requests of brokers ------------------------------------------------------------------------------------

    def _handlers(self) -> Mapping[int, RequestHandler]:
        return {**super()._handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._check_received}

    def _check_received(self, connection: Connection, command: RemotingCommand) -> None:
        """Starts a check. The request is one-way; the result goes to the broker as END_TRANSACTION."""
        header = command.read_header(CheckTransactionStateRequestHeader)
        (half,) = decode_messages(command.body, header.bname or "")
        size = len(command.body)
        if len(self._checks) >= MAX_CHECKS or (self._checks and self._check_bytes + size > MAX_CHECK_BYTES):
            log.warning("a check of transaction %s was dropped: %d others wait", half.msg_id, len(self._checks))
            return
        self._check_bytes += size
        self._checks.start(self._checked(connection.address, header, half, size))

    async def _checked(
        self, address: str, header: CheckTransactionStateRequestHeader, half: MessageExt, size: int
    ) -> None:
        try:
            await self._check(address, header, half)
        finally:
            self._check_bytes -= size

    async def _check(self, address: str, header: CheckTransactionStateRequestHeader, half: MessageExt) -> None:
        half.topic = without_namespace(half.topic, self._namespace)
        async with self._check_slots:
            state, remark = await self._ask(self._listener.check_local_transaction, half)
        end = EndTransactionRequestHeader(
            topic=header.topic,
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=half.msg_id,
            from_transaction_check=True,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        self._trace(half, half.msg_id, end, address, state)
        try:
            await self.client.api.end_transaction(address, end, remark)
        except ClientClosed:
            pass
        except GantryError as e:
            log.warning("broker %s did not learn that %s is %s: %s", address, half.msg_id, state, e)

    async def _ask(
        self, function: Callable[..., LocalTransactionState | Awaitable[LocalTransactionState]], *args: Any
    ) -> tuple[LocalTransactionState, str | None]:
        """Runs a function of the listener. Returns its state, and a remark for the broker if it raised."""
        try:
            if inspect.iscoroutinefunction(function):
                state = await function(*args)
            else:
                state = await asyncio.to_thread(function, *args)
        except Exception as e:
            log.exception("%s of %r failed: the broker will ask for the transaction", function, args[0])
            return LocalTransactionState.UNKNOWN, f"{function.__name__} exception: {e!r}"
        if not isinstance(state, LocalTransactionState):
            log.error("%s of %r returned %r, which is no LocalTransactionState", function, args[0], state)
            return LocalTransactionState.UNKNOWN, None
        return state, None

    def _trace(
        self,
        message: Message,
        msg_id: str,
        header: EndTransactionRequestHeader,
        address: str,
        state: LocalTransactionState,
    ) -> None:
        if self._trace_dispatcher is None:
            return
        bean = TraceBean(
            topic=message.topic,
            msg_id=msg_id,
            tags=message.tags or "",
            keys=message.properties.get(names.KEYS, ""),
            store_host=address,
            message_type=MessageType.TRANSACTION_COMMIT,
            transaction_id=header.transaction_id or "",
            transaction_state=state.java_name,
            from_transaction_check=bool(header.from_transaction_check),
        )
        group = without_namespace(self.group, self._namespace)
        self._trace_dispatcher.append(TraceContext(TraceType.END_TRANSACTION, group, [bean]))
