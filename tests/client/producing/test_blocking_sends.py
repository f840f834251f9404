"""`SyncProducer.send` in the thread of its caller: over a connection of its own, without the event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import FrameType

import pytest
from internals import blocking_sends
from native_code import BOTH, use_python
from scripted_producer import AnsweringBroker, Sent, keep_silent, scripted_cluster
from wait_until import until, wait_until

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing import send_attempt, send_command
from gantrymq.client.producing.latency_fault import LatencyFaults
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed, ClientError, IllegalMessage, SendOutcomeUnknown, ThreadDied
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.remoting import blocking_connection
from gantrymq.remoting.connection import Connection
from gantrymq.sync import SyncProducer
from gantrymq.system import network

MESSAGE = Message("topic", b"body")
#: Longer than a loaded machine needs.
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True, params=BOTH)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test with native code and without."""
    if request.param == "python":
        use_python(monkeypatch, send_attempt)
        use_python(monkeypatch, send_command)


class Broker(AnsweringBroker):
    """Keeps the connection of each send in `connections`."""

    def __init__(self, name: str = "broker") -> None:
        super().__init__(name)
        self.connections: list[Connection] = []

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.connections.append(connection)
        return super()._send(connection, request)


def send(producer: SyncProducer, message: Message = MESSAGE, timeout: float = TIMEOUT_S) -> SendStatus:
    return producer.send(message, timeout=timeout).status


def faults_of(producer: SyncProducer) -> LatencyFaults:
    sends = blocking_sends(producer)._sends
    assert sends is not None
    assert sends.sender.faults is not None
    return sends.sender.faults


@asynccontextmanager
async def connected(*brokers: Broker) -> AsyncIterator[SyncProducer]:
    """Yields a producer with a route, a connection to each broker, and a blocking connection to one."""
    async with scripted_cluster(*brokers) as address:
        producer = SyncProducer(Producer(address, "producers"))
        await asyncio.to_thread(producer.start)
        try:
            while all(len(set(broker.connections)) < 2 for broker in brokers):
                await asyncio.to_thread(send, producer)
            for broker in brokers:
                broker.sent.clear()
                broker.connections.clear()
            yield producer
        finally:
            await asyncio.to_thread(producer.close)


async def begin_send(broker: Broker, producer: SyncProducer) -> asyncio.Task[SendStatus]:
    """Returns the send of another thread, to which the broker does not respond."""
    broker.answers = [keep_silent]
    sending = asyncio.create_task(asyncio.to_thread(send, producer))
    await until(lambda: len(broker.sent) == 1)
    return sending


async def test_a_thread_has_a_connection_of_its_own() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        results = [await asyncio.to_thread(producer.send, Message("topic", b"%d" % n)) for n in range(20)]
        assert len(set(broker.connections)) == 1
        assert broker.connection not in broker.connections
    assert [sent.body for sent in broker.sent] == [b"%d" % n for n in range(20)]
    assert [sent.properties["UNIQ_KEY"] for sent in broker.sent] == [result.msg_id for result in results]
    assert [sent.header.queue_id for sent in broker.sent] == [result.queue.queue_id for result in results]


async def test_properties_are_sent() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        await asyncio.to_thread(send, producer, Message("topic", b"body", tags="tag", keys="key"))
        assert broker.connection not in broker.connections
    assert broker.sent[0].properties["TAGS"] == "tag"


async def test_the_event_loop_continues_a_failed_send() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        for answer in (Connection.abort, lambda connection: RemotingCommand.response(ResponseCode.SYSTEM_BUSY)):
            broker.answers = [answer]
            assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
    assert len(broker.sent) == 4
    assert len({sent.properties["UNIQ_KEY"] for sent in broker.sent}) == 2


async def test_after_a_failure_the_event_loop_sends_for_some_time() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        broker.answers = [Connection.abort]
        await asyncio.to_thread(send, producer)
        broker.connections.clear()
        await asyncio.to_thread(send, producer)
        assert broker.connections == [broker.connection]
        blocking_sends(producer)._paused_until = 0.0
        await asyncio.to_thread(send, producer)
        assert broker.connections[-1] is not broker.connection


async def test_a_send_times_out() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        broker.answers = [keep_silent]
        with pytest.raises(SendOutcomeUnknown, match="did not answer in 200 ms"):
            await asyncio.to_thread(send, producer, timeout=0.2)
        assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
    assert len(broker.sent) == 2


async def test_other_threads_use_the_event_loop() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        waiting = await begin_send(broker, producer)
        assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
        assert broker.connections[1] is broker.connection
        broker.connections[0].abort()
        assert await waiting is SendStatus.SEND_OK


async def test_invalid_calls_raise_in_the_callers_thread() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        with pytest.raises(IllegalMessage):
            await asyncio.to_thread(send, producer, Message("topic", b""))
        with pytest.raises(ClientError):
            await asyncio.to_thread(send, producer, timeout=-1.0)
        assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
        assert broker.connection not in broker.connections
    assert len(broker.sent) == 1


async def test_a_close_ends_the_send_of_another_thread() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        sending = await begin_send(broker, producer)
        await asyncio.to_thread(producer.close)
        with pytest.raises((ClientClosed, SendOutcomeUnknown)):
            await sending
        await until(lambda: broker.connections[0].is_closed)


async def test_a_dead_thread_ends_the_send_of_another_thread() -> None:
    broker = Broker()
    async with connected(broker) as producer:
        sending = await begin_send(broker, producer)

        def die() -> None:
            raise SystemExit

        thread = producer._thread
        assert thread is not None
        thread.call_soon(die)
        with pytest.raises(ThreadDied):
            await sending
        with pytest.raises(ThreadDied):
            await asyncio.to_thread(send, producer)
        await until(lambda: broker.connections[0].is_closed)


async def test_an_idle_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    async with connected(broker) as producer:
        await asyncio.to_thread(send, producer)
        monkeypatch.setattr(blocking_connection, "IDLE_S", 0.0)
        await asyncio.to_thread(send, producer)
        await asyncio.to_thread(send, producer)
        assert broker.connection not in broker.connections
        await until(lambda: broker.connections[0].is_closed)
    assert len(set(broker.connections)) > 1


async def test_without_a_second_connection_the_event_loop_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(host: str, port: int, timeout_s: float) -> network.Socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(network, "connect", refuse)
    broker = Broker()
    async with scripted_cluster(broker) as address:
        with SyncProducer(Producer(address, "producers")) as producer:
            for _ in range(3):
                assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
    assert len(set(broker.connections)) == 1


async def test_a_response_can_arrive_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()

    def answer_in_parts(connection: Connection) -> None:
        sent = broker.sent[-1]
        fields = {"msgId": "0" * 32, "queueId": str(sent.header.queue_id), "queueOffset": "7"}
        response = RemotingCommand.response(fields=fields)
        response.opaque = opaques[-1]
        frame = response.encode()
        transport = connection._transport
        assert transport is not None
        transport.write(frame[:9])
        asyncio.get_running_loop().call_later(0.02, transport.write, frame[9:])

    opaques: list[int] = []
    respond = broker._send

    def note_opaque(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        opaques.append(request.opaque)
        return respond(connection, request)

    async with connected(broker) as producer:
        monkeypatch.setitem(broker.server._handlers, RequestCode.SEND_MESSAGE_V2, note_opaque)
        broker.answers = [answer_in_parts]
        result = await asyncio.to_thread(producer.send, MESSAGE, timeout=TIMEOUT_S)
        assert result.queue_offset == 7
        assert await asyncio.to_thread(send, producer) is SendStatus.SEND_OK
    assert len(broker.sent) == 2


async def test_a_response_in_parts_does_not_extend_the_timeout() -> None:
    broker = Broker()

    def trickle(connection: Connection) -> None:
        frame = RemotingCommand.response().encode()
        transport = connection._transport
        assert transport is not None

        def write_byte(n: int) -> None:
            if not connection.is_closed:
                transport.write(frame[n : n + 1])
                asyncio.get_running_loop().call_later(0.05, write_byte, n + 1)

        write_byte(0)

    async with connected(broker) as producer:
        broker.answers = [trickle]
        with pytest.raises(SendOutcomeUnknown, match="did not answer in 300 ms"):
            async with asyncio.timeout(30):
                await asyncio.to_thread(send, producer, timeout=0.3)
        await until(lambda: broker.connections[0].is_closed)


async def test_faults_are_recorded() -> None:
    brokers = Broker("a"), Broker("b")
    async with connected(*brokers) as producer:
        for _ in range(8):
            await asyncio.to_thread(send, producer)
        faults = faults_of(producer)
        assert {name: item.under_way for name, item in faults.items.items()} == {"a": 0, "b": 0}
    assert all(broker.sent for broker in brokers)


async def test_unused_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Broker("a"), Broker("b")
    async with connected(*brokers) as producer:
        while not all(broker.connections for broker in brokers):
            await asyncio.to_thread(send, producer)
        unused = [broker.connections[-1] for broker in brokers]
        monkeypatch.setattr(blocking_connection, "IDLE_S", 0.0)
        await asyncio.to_thread(send, producer)
        await until(lambda: all(connection.is_closed for connection in unused))


@contextmanager
def served(broker: Broker) -> Iterator[str]:
    """Runs the broker in another thread."""
    with ExitStack() as stack, LoopThread("servers") as thread:
        cluster = scripted_cluster(broker)
        address = thread.submit(cluster.__aenter__()).result()  # type: ignore[arg-type]
        stack.callback(lambda: thread.submit(cluster.__aexit__(None, None, None)).result())  # type: ignore[arg-type]
        with stack.pop_all():
            yield address


def test_an_interrupted_send_leaves_nothing() -> None:
    broker = Broker()
    with served(broker) as address, SyncProducer(Producer(address, "producers")) as producer:
        while len(set(broker.connections)) < 2:
            send(producer)
        del broker.sent[:], broker.connections[:]
        broker.answers = [keep_silent]
        main = threading.get_ident()

        def interrupt() -> None:
            wait_until(lambda: len(broker.sent) == 1)
            signal.pthread_kill(main, signal.SIGUSR1)

        def raise_interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, raise_interrupt)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                send(producer)
        finally:
            interrupting.join()
            signal.signal(signal.SIGUSR1, before)
        wait_until(lambda: broker.connections[0].is_closed)
        faults = faults_of(producer)
        assert faults.items["broker"].under_way == 0
        # The next send has a new connection.
        assert send(producer) is SendStatus.SEND_OK
        assert broker.connections[1] not in (broker.connections[0], broker.connection)
    assert isinstance(broker.sent[1], Sent)
