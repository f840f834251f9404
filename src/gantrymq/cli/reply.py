"""Implements `gantry reply`: replies to requests with a text, with the output of a program, or with the request."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import Target, find_target

if TYPE_CHECKING:
    from gantrymq.protocol.message import MessageExt

app = new_app()

GROUP = "gantry_reply"


@app.command()
def reply(
    topic: Annotated[str, typer.Argument()],
    text: Annotated[str | None, typer.Argument(help="The reply to each; without it and --command the request.")] = None,
    name_servers: NameServers = None,
    context: ContextName = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="'PROGRAM ARGUMENT...'",
            help="Run for each request, which it reads from standard input; what it writes is the reply.",
        ),
    ] = None,
    group: Annotated[str, typer.Option("-g", "--group", help="The consumer group; its members share the requests.")] = (
        GROUP
    ),
    count: Annotated[
        int | None, typer.Option("-c", "--count", min=1, help="Stop after this number of requests.")
    ] = None,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Answer the requests that come to a topic from now on.

    It ends after --count, or on Ctrl-C. If a message is not a request, or if the program fails, standard error names
    the message. It is not tried again.
    """
    if text is not None and command is not None:
        raise typer.BadParameter("one of TEXT and --command is possible", param_hint="'--command'")
    try:
        program = None if command is None else shlex.split(command)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="'--command'") from None
    if program == []:
        raise typer.BadParameter("must not be empty", param_hint="'--command'")
    if program is not None and shutil.which(program[0]) is None:
        raise typer.BadParameter(f"there is no program {program[0]}", param_hint="'--command'")
    from gantrymq.service import run

    target = find_target(name_servers, context, tls_config, acl_config)

    async def serve() -> None:
        await _serve(target, topic, text, program, group, count)

    run(serve)


async def _serve(
    target: Target, topic: str, text: str | None, program: list[str] | None, group: str, count: int | None
) -> None:
    from gantrymq.client.consuming.push_consumer import PushConsumer
    from gantrymq.client.producing.producer import Producer
    from gantrymq.client.producing.request_reply import reply_message
    from gantrymq.errors import GantryError

    answered, enough = 0, asyncio.Event()
    producer = Producer(target.name_servers, GROUP, ssl_context=target.ssl_context, credentials=target.credentials)

    async def handle(message: MessageExt) -> None:
        nonlocal answered
        try:
            # Called before the program runs, because it raises an error for a message that is not a request.
            answer = reply_message(message, message.body if text is None else text.encode())
            if program is not None:
                answer.body = await _ask(program, message)
            await producer.send(answer)
        except (GantryError, OSError) as e:
            print(f"gantry: no reply to {message.msg_id}: {e}", file=sys.stderr, flush=True)
            return
        answered += 1
        if count is not None and answered >= count:
            enough.set()

    consumer = PushConsumer(
        target.name_servers,
        group,
        handle,
        start_from=datetime.now(UTC),
        ssl_context=target.ssl_context,
        credentials=target.credentials,
    )
    consumer.subscribe(topic)
    try:
        async with producer, consumer:
            await enough.wait()
    finally:
        print(f"{answered:,} requests answered", file=sys.stderr)


async def _ask(program: list[str], message: MessageExt) -> bytes:
    """Runs the program with the body as input, and returns its output. Raises OSError if it can't start or fails."""
    # A file instead of a pipe. The program can exit without reading its input; uvloop's pipes would then raise.
    with tempfile.TemporaryFile() as question:
        question.write(message.body)
        question.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(*program, stdin=question, stdout=asyncio.subprocess.PIPE)
        except OSError as e:
            raise OSError(f"{program[0]} can't be run: {e.strerror or e}") from e
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise OSError(f"{program[0]} ended with exit code {process.returncode}")
    return output
