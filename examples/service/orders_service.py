"""A service: takes orders, sends invoices. Stops in order, says when it is ready, and can be measured.

    python orders_service.py --name-server 127.0.0.1:9876 --port 8080

http://127.0.0.1:8080/ready answers 200 while orders can come in, else 503; /metrics is for Prometheus.
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
    """Tells systemd (sd_notify); nothing elsewhere."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def serve_http(
    answers: dict[str, Callable[[], tuple[int, bytes]]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One request, one answer: enough for probes, which come from inside."""
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

    # In this order they are closed: first nothing comes in, then what is in hand is sent.
    http = await asyncio.start_server(partial(serve_http, {"/ready": ready, "/metrics": metrics}), "127.0.0.1", port)
    async with http, producer, consumer:
        await consumer.wait_assigned(60_000)
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
