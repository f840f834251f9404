"""The command `givenUpTransactions`, for transactions that are still open after the broker's last check.

mqadmin has no such command.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.admin.command import command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, human_time, listing
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol import properties as names

app = new_app()


@command(app, "givenUpTransactions")
async def given_up_transactions(
    admin: AdminClient,
    confirmation: Confirmation,
    commit: Annotated[bool, typer.Option("--commit", help="Send them to their topics.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Drop them.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Only the first ones. Default for the list: 1000.")
    ] = None,
) -> Output:
    """List the transactions that brokers have given up; with --commit or --drop, end them."""
    if commit and drop:
        raise typer.BadParameter("either --commit or --drop")
    if commit or drop:
        which = "all" if count is None else f"the first {count}"
        action = f"{'commit' if commit else 'drop'} {which} given-up transactions"
        if plan := await confirmation.check(action):
            return plan
        ended = await admin.end_given_up(commit=commit, max_messages=count)
        what = "sent to their topics" if commit else "dropped"
        return Output({"committed" if commit else "dropped": ended}, [f"{ended} given-up transactions {what}"])
    rows = [
        {
            "msgId": half.msg_id,
            "topic": half.properties.get(names.REAL_TOPIC, ""),
            "producerGroup": half.properties.get(names.PRODUCER_GROUP, ""),
            "keys": " ".join(half.keys),
            "bornTimestamp": half.born_timestamp,
        }
        for half in await admin.given_up_transactions(count or 1000)
    ]
    return listing(
        rows,
        {
            "msgId": "Message",
            "topic": "Topic",
            "producerGroup": "Producer group",
            "keys": "Keys",
            "bornTimestamp": ("Born", human_time),
        },
    )
