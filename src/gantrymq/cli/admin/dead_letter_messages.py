"""The command `resendDlq`, which sends dead-letter messages again. mqadmin has no such command."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.admin.command import Group, command
from gantrymq.cli.admin.output import Output
from gantrymq.cli.admin.values import parse_time
from gantrymq.cli.lazy import new_app
from gantrymq.cli.values import TIME_HELP
from gantrymq.client.admin.client import AdminClient
from gantrymq.times import point_in_time

app = new_app()


@command(app, "resendDlq")
async def resend_dlq(
    admin: AdminClient,
    group: Group,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only messages of this topic.")] = None,
    begin: Annotated[
        str | None, typer.Option("-b", "--beginTimestamp", help=f"Stored at or after: {TIME_HELP}")
    ] = None,
    end: Annotated[str | None, typer.Option("-e", "--endTimestamp", help="Stored at or before.")] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Maximum number.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also messages that were resent or left out before.")] = False,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="To the topic, and so to all its groups. For POP consumers.")
    ] = False,
) -> Output:
    """Resend the dead-letter messages of a group."""
    sent = await admin.resend_dead_letter_messages(
        group,
        topic=topic,
        begin=point_in_time(parse_time(begin, "'--beginTimestamp'")) if begin is not None else 0,
        end=point_in_time(parse_time(end, "'--endTimestamp'")) if end is not None else None,
        max_messages=count,
        again=again,
        to_topic=to_topic,
    )
    text = f"{sent.resent} dead-letter messages of group {group} resent"
    if sent.left_out:
        text += f", {sent.left_out} left out"
    if sent.unreadable:
        text += f", {sent.unreadable} unreadable"
    return Output({"resent": sent.resent, "leftOut": sent.left_out, "unreadable": sent.unreadable}, [text])
