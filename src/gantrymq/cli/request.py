"""Implements `gantry request`: sends a message and waits for the reply."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import find_target

if TYPE_CHECKING:
    from gantrymq.protocol.message import MessageExt

app = new_app()

GROUP = "gantry_request"

# The client's log lines are suppressed, because its errors have the same information.
logging.getLogger("gantrymq").addHandler(logging.NullHandler())


@app.command()
def request(
    topic: Annotated[str, typer.Argument()],
    body: Annotated[str | None, typer.Argument(help="What to ask; standard input without it.")] = None,
    name_servers: NameServers = None,
    context: ContextName = None,
    timeout_ms: Annotated[
        int, typer.Option("--timeout", min=1, metavar="MS", help="Timeout of a reply, in ms.")
    ] = 3000,
    tags: Annotated[str | None, typer.Option("--tags", help="The request's tag.")] = None,
    key: Annotated[list[str] | None, typer.Option("-k", "--key", help="A key of it; repeat it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The reply as a JSON object, with its properties.")] = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Send a request and write its reply to standard output.

    A consumer of the topic replies: gantry reply, or a program with reply_message. Exit code 1 if no reply arrives in
    time.
    """
    from gantrymq.background.event_loop import new_event_loop
    from gantrymq.cli.json_message import encode
    from gantrymq.client.producing.producer import Producer
    from gantrymq.protocol.message import Message

    target = find_target(name_servers, context, tls_config, acl_config)
    message = Message(topic, sys.stdin.buffer.read() if body is None else body.encode(), tags=tags, keys=key)

    async def ask() -> MessageExt:
        async with Producer(
            target.name_servers, GROUP, ssl_context=target.ssl_context, credentials=target.credentials
        ) as producer:
            return await producer.request(message, timeout=timeout_ms / 1000)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        reply = runner.run(ask())
    sys.stdout.buffer.write((encode(reply) if json else reply.body) + b"\n")
    sys.stdout.flush()
