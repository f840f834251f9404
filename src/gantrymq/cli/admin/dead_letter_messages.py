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
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Those of this topic alone.")] = None,
    begin: Annotated[str | None, typer.Option("-b", "--beginTimestamp", help=f"From then on: {TIME_HELP}")] = None,
    end: Annotated[str | None, typer.Option("-e", "--endTimestamp", help="Up to then.")] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="At most so many.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Those that were sent once more before, too.")] = False,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="To the topic, and so to all its groups; for groups that pop.")
    ] = False,
) -> Output:
    """Send a group's dead letters to it once more."""
    sent = await admin.resend_dead_letter_messages(
        group,
        topic=topic,
        begin=point_in_time(parse_time(begin, "'--beginTimestamp'")) if begin is not None else 0,
        end=point_in_time(parse_time(end, "'--endTimestamp'")) if end is not None else None,
        max_messages=count,
        again=again,
        to_topic=to_topic,
    )
    text = f"{sent.resent} dead letters of {group} sent once more"
    if sent.left_out:
        text += f", {sent.left_out} left out"
    if sent.unreadable:
        text += f", {sent.unreadable} can't be read"
    return Output({"resent": sent.resent, "leftOut": sent.left_out, "unreadable": sent.unreadable}, [text])
