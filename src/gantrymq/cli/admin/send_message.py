"""mqadmin's commands that send a message, or measure sends. Source: tools/command/message, broker, cluster."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gantrymq.cli.admin.command import Topic, command
from gantrymq.cli.admin.output import Output, listing, table
from gantrymq.cli.admin.values import TrueFalse
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt, MessageQueue

app = new_app()

_GROUP = "gantry_admin"

Size = Annotated[int, typer.Option("-s", "--size", min=1, help="Bytes of each.")]
Amount = Annotated[int, typer.Option("-a", "--amount", min=1, help="How many messages.")]


@command(app, "sendMessage")
async def send_message(
    admin: AdminClient,
    topic: Topic,
    body: Annotated[str, typer.Option("-p", "--body", help="The body, sent as UTF-8.")],
    keys: Annotated[str | None, typer.Option("-k", "--key", help="Keys, separated by blanks.")] = None,
    tags: Annotated[str | None, typer.Option("-c", "--tags", help="Tag.")] = None,
    broker_name: Annotated[str | None, typer.Option("-b", "--broker", help="The broker's name; with -i.")] = None,
    queue_id: Annotated[int | None, typer.Option("-i", "--qid", min=0, help="Queue id; with -b.")] = None,
    trace: Annotated[
        TrueFalse, typer.Option("-m", "--msgTraceEnable", help="Also write a trace of the send.")
    ] = TrueFalse.FALSE,
) -> Output:
    """Send a message."""
    queue = None
    if queue_id is not None:
        if broker_name is None:
            raise typer.BadParameter("a queue needs its broker", param_hint="'-b' / '--broker'")
        queue = MessageQueue(topic, broker_name, queue_id)
    async with _producer(admin, trace=bool(trace)) as producer:
        if queue is None and broker_name is not None:
            queue = next((q for q in await producer.queues(topic) if q.broker_name == broker_name), None)
            if queue is None:
                raise typer.BadParameter(f"no queue of {topic} on {broker_name}", param_hint="'-b' / '--broker'")
        result = await producer.send(Message(topic, body.encode(), tags=tags, keys=keys), queue=queue)
    return _sent(result)


@command(app, "sendMsgStatus")
async def send_msg_status(
    admin: AdminClient,
    broker_name: Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name, which is a topic, too.")],
    size: Annotated[int, typer.Option("-s", "--messageSize", min=1, help="Bytes of each.")] = 128,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="How many.")] = 50,
) -> Output:
    """Send messages to a broker's own topic, and print the time of each send."""
    return _measured(await _send_many(admin, broker_name, size, count))


@command(app, "checkMsgSendRT")
async def check_msg_send_rt(admin: AdminClient, topic: Topic, amount: Amount = 100, size: Size = 128) -> Output:
    """Check message send response time."""
    return _measured(await _send_many(admin, topic, size, amount))


@command(app, "clusterRT")
async def cluster_rt(
    admin: AdminClient,
    amount: Amount = 100,
    size: Size = 128,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="Only this cluster.")] = None,
    as_log: Annotated[TrueFalse, typer.Option("-p", "--print", help="Lines with | for a log.")] = TrueFalse.FALSE,
    room: Annotated[str, typer.Option("-m", "--room", help="The machine room's name, for -p.")] = "noname",
    interval: Annotated[int, typer.Option("-i", "--interval", min=0, help="Seconds; 0: once.")] = 10,
) -> Output:
    """List all clusters' message send response time."""
    clusters = [cluster] if cluster else sorted((await admin.cluster_info()).cluster_addr_table)
    rows = []
    for name in clusters:
        for broker in await admin.brokers_of(name):
            sent = await _send_many(admin, broker.broker_name, size, amount)
            rows.append(
                {
                    "clusterName": name,
                    "brokerName": broker.broker_name,
                    "rtMs": _average_ms(sent),
                    "successCount": sum(one["success"] for one in sent),
                    "failCount": sum(not one["success"] for one in sent),
                }
            )
    if as_log:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{now}|{room}|{row['clusterName']}|{row['brokerName']}|{row['rtMs']:.0f}" for row in rows]
        return Output(rows, lines)
    columns: dict[str, Any] = {
        "clusterName": "Cluster Name",
        "brokerName": "Broker Name",
        "rtMs": "RT",
        "successCount": "Success Count",
        "failCount": "Fail Count",
    }
    return listing(rows, columns)


async def send_again(admin: AdminClient, message: MessageExt, unit_name: str) -> Output:
    """Sends a stored message to its topic again, with the same properties and therefore the same id."""
    async with _producer(admin, unit_name=unit_name) as producer:
        return _sent(await producer.send(Message(message.topic, message.body, properties=message.properties)))


def _sent(result: SendResult) -> Output:
    row = {
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        "sendStatus": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
    }
    columns = {"brokerName": "Broker Name", "queueId": "QID", "sendStatus": "Send Result", "msgId": "MsgId"}
    return Output(row, [table([row], columns)])


def _producer(admin: AdminClient, *, trace: bool = False, unit_name: str = "") -> Producer:
    return transport_of(admin).producer(
        admin.name_servers, _GROUP, retry_times=0, enable_trace=trace, unit_name=unit_name
    )


async def _send_many(admin: AdminClient, topic: str, size: int, count: int) -> list[dict[str, Any]]:
    """Sends messages to the queues of a topic in rotation. Returns a row for each send, even if it failed.

    Raises NoRouteInfo for an unknown topic.
    """
    rows = []
    async with _producer(admin) as producer:
        queues = await producer.queues(topic)
        for number in range(count):
            queue = queues[number % len(queues)]
            start = time.perf_counter()
            error = None
            try:
                await producer.send(Message(topic, b"a" * size), queue=queue)
            except GantryError as e:
                error = str(e)
            rows.append(
                {
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "success": error is None,
                    "error": error,
                    "rtMs": (time.perf_counter() - start) * 1000,
                }
            )
    return rows


def _average_ms(sent: list[dict[str, Any]]) -> float:
    """Returns the average time of a send, without the first send, which opens the connection."""
    later = sent[1:] or sent
    return float(sum(one["rtMs"] for one in later) / len(later))


def _measured(sent: list[dict[str, Any]]) -> Output:
    average = _average_ms(sent)
    columns: dict[str, Any] = {
        "brokerName": "Broker Name",
        "queueId": "QID",
        "success": "Send Result",
        "rtMs": "RT",
    }
    return Output({"sent": sent, "averageRtMs": average}, [table(sent, columns), f"Avg RT: {average:.2f}"])
