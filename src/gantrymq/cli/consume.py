"""The options of `gantry consume`. `consume_reading` implements it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.cli.plain_options import ACL_CONFIG, CONTEXT, NAME_SERVERS, TLS_CONFIG, InvalidOption, PlainOption
from gantrymq.cli.values import TIME_HELP, time_of

if TYPE_CHECKING:
    from gantrymq.cli.consume_format import Formatter
    from gantrymq.cli.consume_reading import Start

HELP = """Write topics' messages to standard output, until Ctrl-C, --count or -e.

Without a group, it reads all queues and commits no offsets.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

OPTIONS = (
    PlainOption(
        "topics", (), str, "Names, or patterns such as 'orders-*', which are resolved at the start.", "TOPIC..."
    ),
    NAME_SERVERS,
    CONTEXT,
    PlainOption(
        "form",
        ("-f", "--format"),
        str,
        "%s body, %S its bytes, %k keys, %K their bytes, %g tag, %h properties, %t topic, %b broker, "
        "%p queue, %o offset, %T store time, %B born time (ms), %i message id, %r times delivered before, "
        r"%%; \n \t \xHH.",
        default=r"%s\n",
    ),
    PlainOption("json", ("--json",), bool, "Write one JSON object per line, as gantry produce --json reads them."),
    PlainOption(
        "decode",
        ("--decode",),
        str,
        "Decode bodies and write them as JSON; with --json, in the field 'value': json[:MODULE:TYPE], "
        "pydantic:MODULE:MODEL, avro:SCHEMA_FILE, protobuf:MODULE:CLASS. The working directory can have the module. "
        "Exits at the first body that cannot be decoded.",
        "CODEC",
    ),
    PlainOption(
        "registry",
        ("--registry",),
        str,
        "Decode bodies with the schemas of a schema registry, and write them as JSON; with --json, in the field "
        "'value'. Other bodies are written as they were sent. Credentials: GANTRY_REGISTRY_USER_INFO (user:password) "
        "or GANTRY_REGISTRY_TOKEN in the environment.",
        "URL",
    ),
    PlainOption(
        "offset",
        ("-o", "--offset"),
        str,
        f"Start position in each queue. N: this offset; -N: N messages before the end; @TIME: {TIME_HELP}. With a "
        "group, it applies only to queues without a committed offset, and N and -N are invalid.",
        "beginning|end|N|-N|@TIME",
        "beginning",
    ),
    PlainOption("count", ("-c", "--count"), int, "Exit after this number of messages.", minimum=1),
    PlainOption("exit_at_end", ("-e", "--exit"), bool, "Exit at the ends that the queues had at the start."),
    PlainOption(
        "group", ("-g", "--group"), str, "Join this consumer group, and commit the offsets of written messages."
    ),
    PlainOption(
        "queue_id", ("-p", "--queue"), int, "Only the queue with this id, on every broker. Not with a group.", minimum=0
    ),
    PlainOption("tags", ("--tags",), str, "Only messages with one of these tags: 'TagA || TagB'."),
    PlainOption("sql", ("--sql",), str, "Only messages that match this SQL92 expression."),
    TLS_CONFIG,
    ACL_CONFIG,
)


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The parsed options."""

    topics: list[str]
    name_servers: str | None
    context: str | None
    form: str
    json: bool
    decode: str | None
    registry: str | None
    offset: str
    count: int | None
    exit_at_end: bool
    group: str | None
    queue_id: int | None
    tags: str | None
    sql: str | None
    tls_config: Path | None
    acl_config: Path | None


def run(options: ConsumeOptions) -> None:
    """Runs `gantry consume`. Raises InvalidOption before anything is read."""
    from gantrymq.cli.consume_format import body_decoder, formatter
    from gantrymq.cli.consume_reading import Output, run_consume
    from gantrymq.cli.target import find_target
    from gantrymq.client.consuming.consumer_base import MessageFilter

    group, tags, sql = options.group, options.tags, options.sql
    if tags is not None and sql is not None:
        raise InvalidOption("only one of the two is allowed", "'--tags' / '--sql'")
    if group is not None and options.queue_id is not None:
        raise InvalidOption("a group reads all queues", "'-p' / '--queue'")
    if options.decode is not None and options.registry is not None:
        raise InvalidOption("only one of the two is allowed", "'--decode' / '--registry'")
    start = _start(options.offset)
    if group is not None and start.offset is not None:
        raise InvalidOption("a group has its own offsets", "'-o' / '--offset'")
    if options.json:
        from gantrymq.cli.json_message import json_line

        form: Formatter = json_line
    else:
        form = formatter(options.form)
    with ExitStack() as stack:
        decode = None
        if options.decode is not None:
            decode = body_decoder(options.decode)
        elif options.registry is not None:
            from gantrymq.cli.registry import RegisteredBodies

            decode = stack.enter_context(closing(RegisteredBodies(options.registry))).json
        run_consume(
            options.topics,
            find_target(options.name_servers, options.context, options.tls_config, options.acl_config),
            group,
            MessageFilter(tags=tags, sql=sql),
            start,
            Output(form, decode),
            queue_id=options.queue_id,
            count=options.count,
            exit_at_end=options.exit_at_end,
        )


def _start(offset: str) -> Start:
    """Parses the value of `--offset`."""
    from gantrymq.cli.consume_reading import Start

    if offset == "beginning":
        return Start()
    if offset == "end":
        return Start("latest")
    try:
        if offset.startswith("@"):
            return Start(_EPOCH + timedelta(milliseconds=time_of(offset[1:])))
    except ValueError as e:
        raise InvalidOption(str(e), "'-o' / '--offset'") from None
    except OverflowError:
        raise InvalidOption(f"{offset!r} is after the year 9999", "'-o' / '--offset'") from None
    try:
        return Start(offset=int(offset))
    except ValueError:
        raise InvalidOption(f"{offset!r} is none of beginning, end, N, -N, @TIME", "'-o' / '--offset'") from None
