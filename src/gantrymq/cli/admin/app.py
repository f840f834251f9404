"""`gantry admin`: its commands as one group, imported when one of them is wanted."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class MqadminGroup(TyperGroup):
    """Finds updateTopic as mqadmin does, in any case, and as update-topic."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._load()
        wanted = cmd_name.replace("-", "").lower()
        return next((command for name, command in self.commands.items() if name.lower() == wanted), None)

    def _load(self) -> None:
        if self.commands:
            return
        from gantrymq.cli.admin import (
            auth,
            brokers,
            consumers,
            groups,
            messages,
            namesrv,
            offsets,
            sending,
            stats,
            topics,
            unsupported,
        )

        for part in (topics, brokers, groups, consumers, offsets, messages, sending, namesrv, stats, auth, unsupported):
            self.commands.update(typer.main.get_group(part.app).commands)


app = typer.Typer(
    cls=MqadminGroup,
    no_args_is_help=True,
    help="Look at a cluster and change it, with mqadmin's commands and flags.",
    epilog="NAMESRV_ADDR stands for -n. updateTopic is update-topic, too. mqadmin's commands that are not in this list "
    "are not supported yet.",
)
