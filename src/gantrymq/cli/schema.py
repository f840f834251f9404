"""Implements `gantry schema`: derives the schema of the bodies of a topic."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic
from typing import Annotated

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import Target, find_target
from gantrymq.codecs.json_types import DEFAULT_SAMPLE, FieldInference, InferredFields
from gantrymq.logs import terminal_text

app = new_app(no_args_is_help=True)
#: If no message arrives for this time, the command ends with an error, in seconds.
_NO_PROGRESS_S = 15.0


@app.callback()
def schema() -> None:
    """Derive the schema of the bodies of a topic."""


@app.command()
def infer(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="N", help="The number of messages, the newest of each queue.")
    ] = DEFAULT_SAMPLE,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            help="Convert the latest schema of --subject in this schema registry, without reading messages.",
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="A subject of --registry; TOPIC-value without it.")
    ] = None,
    name_servers: NameServers = None,
    context: ContextName = None,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Write the fields of JSON bodies as DDL, for the option bodySchema of Spark reads.

    Bodies that are not JSON objects, and fields with several types, are reported on standard error. Strings with times
    remain STRING: replace the type with TIMESTAMP or DATE if all values have the format of RFC 3339.
    """
    if subject is not None and registry is None:
        raise typer.BadParameter("needs --registry", param_hint="'--subject'")
    if registry is not None:
        print(_registered_ddl(registry, subject or f"{topic}-value"))
        return
    fields = asyncio.run(_inferred(find_target(name_servers, context, tls_config, acl_config), topic, sample))
    for remark in fields.remarks:
        print(terminal_text(remark), file=sys.stderr)
    print(fields.ddl)


def _registered_ddl(urls: str, subject: str) -> str:
    """Returns the DDL of the latest schema of a subject."""
    from gantrymq.extras import need

    need("spark", "gantry schema infer --registry")
    from gantrymq.cli.registry import settings
    from gantrymq.spark.bodies.ddl import fields_ddl
    from gantrymq.spark.bodies.registered import type_of_subject

    return fields_ddl(type_of_subject(settings(urls), subject))


async def _inferred(target: Target, topic: str, count: int) -> InferredFields:
    """Returns the fields of the newest bodies of each queue, about `count` bodies in total at most."""
    from gantrymq.client.consuming.lite_pull_consumer import MAX_POLL_MESSAGES, LitePullConsumer
    from gantrymq.errors import BrokerUnavailable
    from gantrymq.protocol.topic_name import TOOLS_GROUP

    # Without a list of the bodies, because 1000 large ones can need gigabytes.
    inference = FieldInference(f"topic {topic!r}")
    async with LitePullConsumer(
        target.name_servers,
        TOOLS_GROUP,
        auto_commit=False,
        ssl_context=target.ssl_context,
        credentials=target.credentials,
    ) as reader:
        queues = await reader.queues(topic)
        await reader.assign(queues)
        of_queue = -(-count // max(1, len(queues)))
        ends = {queue: await reader.end_offset(queue) for queue in queues}
        for queue, end in ends.items():
            await reader.seek(queue, max(0, end - of_queue))
        last = monotonic()
        while behind := [queue for queue, end in ends.items() if reader.position(queue) < end]:
            messages = await reader.poll(max_messages=MAX_POLL_MESSAGES, timeout=0.1)
            for message in messages:
                inference.add(message.body)
            if messages:
                last = monotonic()
            elif monotonic() - last > _NO_PROGRESS_S:
                raise BrokerUnavailable(f"no message of {', '.join(map(str, behind))} in {_NO_PROGRESS_S:g} s")
    return inference.result()
