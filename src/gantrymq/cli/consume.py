"""The command line of `gantry consume`. `consume_reading` implements it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gantrymq.cli.admin.values import TIME_HELP, parse_time
from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile, find_target

if TYPE_CHECKING:
    from gantrymq.cli.consume_reading import Start

app = new_app()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@app.command()
def consume(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="Names, and patterns as of files: 'orders-*' is what there is when it begins."
        ),
    ],
    name_servers: NameServers = None,
    context: ContextName = None,
    form: Annotated[
        str,
        typer.Option(
            "-f",
            "--format",
            help="%s body, %S its bytes, %k keys, %K their bytes, %g tag, %h properties, %t topic, %b broker, "
            "%p queue, %o offset, %T store time, %B born time (ms), %i message id, %r times delivered before, "
            r"%%; \n \t \xHH.",
        ),
    ] = r"%s\n",
    json: Annotated[bool, typer.Option("--json", help="A JSON object a line; gantry produce --json reads it.")] = False,
    decode: Annotated[
        str | None,
        typer.Option(
            "--decode",
            metavar="CODEC",
            help="Bodies as JSON, with --json beside them as 'value': json[:MODULE:TYPE], pydantic:MODULE:MODEL, "
            "avro:SCHEMA_FILE, protobuf:MODULE:CLASS; modules of this directory, too. Ends at the first body that is "
            "none.",
        ),
    ] = None,
    offset: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="beginning|end|N|-N|@TIME",
            help=f"Where to begin in each queue; -N: so many before the end; @TIME: {TIME_HELP}. For "
            "a group: where one begins that has no offset yet (not N).",
        ),
    ] = "beginning",
    count: Annotated[int | None, typer.Option("-c", "--count", min=1, help="Ends after so many.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="Ends where the queues ended when it began.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("-g", "--group", help="Share the queues with this group's consumers and commit what is written."),
    ] = None,
    queue_id: Annotated[
        int | None, typer.Option("-p", "--queue", min=0, help="Only the queue of this id, on every broker; no group.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Only these: 'TagA || TagB'.")] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="Only what this SQL92 expression is true for.")] = None,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Write topics' messages to standard output, until Ctrl-C, --count or -e.

    Without a group it reads all queues and leaves no trace.
    """
    from gantrymq.cli.consume_format import body, decoded_body, formatter
    from gantrymq.cli.consume_reading import run_consume
    from gantrymq.cli.json_message import encode
    from gantrymq.client.consuming.consumer_base import MessageFilter

    if tags is not None and sql is not None:
        raise typer.BadParameter("one of the two is possible", param_hint="'--tags' / '--sql'")
    if group is not None and queue_id is not None:
        raise typer.BadParameter("a group shares out all queues", param_hint="'-p' / '--queue'")
    start = _start(offset)
    if group is not None and start.offset is not None:
        raise typer.BadParameter("a group has its own offsets", param_hint="'-o' / '--offset'")
    value = decoded_body(decode) if decode is not None else None
    target = find_target(name_servers, context, tls_config, acl_config)
    run_consume(
        topics,
        target,
        group,
        MessageFilter(tags=tags, sql=sql),
        start,
        (lambda message: encode(message, value and value(message)) + b"\n") if json else formatter(form, value or body),
        queue_id=queue_id,
        count=count,
        exit_at_end=exit_at_end,
    )


def _start(offset: str) -> Start:
    """Parses the value of `--offset`."""
    from gantrymq.cli.consume_reading import Start

    if offset == "beginning":
        return Start()
    if offset == "end":
        return Start("latest")
    if offset.startswith("@"):
        try:
            return Start(_EPOCH + timedelta(milliseconds=parse_time(offset[1:], "'-o' / '--offset'")))
        except OverflowError:
            raise typer.BadParameter(f"{offset!r} is after the year 9999", param_hint="'-o' / '--offset'") from None
    try:
        return Start(offset=int(offset))
    except ValueError:
        raise typer.BadParameter(
            f"{offset!r} is none of beginning, end, N, -N, @TIME", param_hint="'-o' / '--offset'"
        ) from None
