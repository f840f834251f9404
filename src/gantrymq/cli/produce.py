"""The command line of `gantry produce`. `produce_delivery` implements it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.admin.values import parse_time
from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import find_target
from gantrymq.cli.values import TIME_HELP, unescape
from gantrymq.times import MAX_MS

GROUP = "gantry_produce"

app = new_app()


@app.command()
def produce(
    topic: Annotated[str, typer.Argument()],
    files: Annotated[
        list[Path] | None,
        typer.Argument(dir_okay=False, allow_dash=True, help="What to send; standard input without them, or for -."),
    ] = None,
    name_servers: NameServers = None,
    context: ContextName = None,
    delimiter: Annotated[str, typer.Option("-D", "--delimiter", help="Ends a message.")] = r"\n",
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one message, of any bytes.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("-K", "--key-separator", help="Before it is a message's key, behind it the body.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Messages are JSON objects: body (text) or bodyBase64, keys, tags, properties, shardingKey, "
            "delayLevel, delayMs, deliverAtMs, flag; what gantry consume --json writes.",
        ),
    ] = False,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            help="Bodies are JSON values; encode them with the latest schema of --subject in this schema registry. "
            "Credentials: GANTRY_REGISTRY_USER_INFO (user:password) or GANTRY_REGISTRY_TOKEN in the environment.",
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="A subject of --registry; TOPIC-value without it.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="The messages' tag.")] = None,
    key: Annotated[list[str] | None, typer.Option("-k", "--key", help="A key of every message; repeat it.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; repeat it.")
    ] = None,
    delay_level: Annotated[int, typer.Option("--delay-level", min=0, max=18, help="Delivered later: 1 s to 2 h.")] = 0,
    delay_ms: Annotated[
        int | None, typer.Option("--delay-ms", min=1, max=MAX_MS, help="Delay of the delivery, in ms.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help=f"Delivered then: {TIME_HELP}.")
    ] = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Messages of the same key go to the same queue, in their order.")
    ] = False,
    group: Annotated[str, typer.Option("-g", "--group", help="The producer group.")] = GROUP,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what is no message (no JSON, too long ...) and go on.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress, also on a terminal.")] = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Send the lines of files or of standard input, each as a message.

    Empty lines are skipped. The command ends at the first failure, with exit code 1. The lines before an invalid line
    are sent. After Ctrl-C, the lines that were already read are sent; a second Ctrl-C cancels them. In each case, the
    command prints how many messages were acknowledged.
    """
    from gantrymq.cli.produce_delivery import BATCH_SIZE, BUFFER_BYTES, LINGER_S, run_produce
    from gantrymq.cli.produce_input import MessageMaker
    from gantrymq.client.producing.producer import Producer
    from gantrymq.protocol.message import Message

    def separator(text: str | None, hint: str) -> bytes | None:
        try:
            value = None if text is None else unescape(text)
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint=hint) from None
        if value == b"":
            raise typer.BadParameter("must not be empty", param_hint=hint)
        return value

    if json and (key_separator is not None or whole):
        raise typer.BadParameter("goes with neither --key-separator nor --whole", param_hint="'--json'")
    if registry is not None and json:
        raise typer.BadParameter("does not go with --json, whose bodies are encoded already", param_hint="'--registry'")
    if subject is not None and registry is None:
        raise typer.BadParameter("needs --registry", param_hint="'--subject'")
    given = {}
    for text in properties or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="'--property'")
        given[name] = value
    defaults = Message(
        topic,
        b"",
        tags=tags,
        keys=key,
        delay_level=delay_level,
        delay=None if delay_ms is None else delay_ms / 1000,
        deliver_at=None if deliver_at is None else parse_time(deliver_at, "'--deliver-at'"),
        properties=given,
    )
    encode = None
    if registry is not None:
        from gantrymq.cli.registry import subject_codec

        encode = subject_codec(registry, subject or f"{topic}-value").encode_json
    target = find_target(name_servers, context, tls_config, acl_config)
    producer = Producer(
        target.name_servers,
        group,
        linger=LINGER_S,
        batch_size=BATCH_SIZE,
        buffer_bytes=BUFFER_BYTES,
        ssl_context=target.ssl_context,
        credentials=target.credentials,
    )
    raise typer.Exit(
        run_produce(
            producer,
            MessageMaker(
                topic, defaults, json=json, key_separator=separator(key_separator, "'--key-separator'"), encode=encode
            ),
            files or [],
            None if whole else separator(delimiter, "'--delimiter'"),
            ordered=ordered,
            skip_bad=skip_bad,
            quiet=quiet,
        )
    )
