"""An example service that receives orders and sends invoices, with readiness, metrics and a clean shutdown.

    python orders_service.py --name-server 127.0.0.1:9876 --port 8080

http://127.0.0.1:8080/ready returns status 200 while the service can receive orders, and 503 otherwise. /metrics returns
metrics for Prometheus.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

import gantrymq
from gantrymq import Message, MessageExt, Producer, PushConsumer
from gantrymq.logs import log_to_stderr
from gantrymq.metrics import gauge, render

log = logging.getLogger("orders")


def notify(state: str) -> None:
    """Notifies systemd of a state (`sd_notify`). Does nothing if systemd did not start the service."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def serve_http(
    answers: dict[str, Callable[[], tuple[int, bytes]]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Handles one HTTP request per connection. This is enough for probes from the internal network."""
    try:
        async with asyncio.timeout(5):
            line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
            path = line.decode("latin-1").split(" ")[1]
            status, body = answers[path]() if path in answers else (404, b"not found\n")
            writer.write(
                b"HTTP/1.1 %d \r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
            )
            await writer.drain()
    except (OSError, IndexError, EOFError, TimeoutError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


async def main(name_server: str, port: int) -> None:
    invoiced = 0
    producer = Producer(name_server, "orders-service")

    async def handle(order: MessageExt) -> None:
        nonlocal invoiced
        await producer.send(Message("invoices", b"invoice for " + order.body, keys=order.keys))
        invoiced += 1

    consumer = PushConsumer(name_server, "orders-service", handle)
    consumer.subscribe("orders")

    def ready() -> tuple[int, bytes]:
        health = consumer.health()
        return (200, b"ready\n") if health.is_ready else (503, f"not ready: {health.last_error}\n".encode())

    def metrics() -> tuple[int, bytes]:
        lag = sum(consumer.lag().values())
        return 200, render(
            [
                gauge("orders_invoiced", "Orders invoiced since the start.", invoiced),
                gauge("orders_lag", "Orders that wait.", lag),
            ]
        )

    # Closed in reverse order: the consumer stops first, so that the producer can still send the pending invoices.
    http = await asyncio.start_server(partial(serve_http, {"/ready": ready, "/metrics": metrics}), "127.0.0.1", port)
    async with http, producer, consumer:
        await consumer.wait_assigned(timeout=60)
        print(f"ready at 127.0.0.1:{http.sockets[0].getsockname()[1]}", flush=True)
        notify("READY=1")
        try:
            await asyncio.Event().wait()
        finally:
            notify("STOPPING=1")
            log.info("stopping: %d invoiced", invoiced)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name-server", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    log_to_stderr()
    gantrymq.run(partial(main, options.name_server, options.port))
