"""`gantry admin`: its commands as one group, each imported when it is run."""

from __future__ import annotations

from typing import ClassVar

import typer

from gantrymq.cli.admin.catalogue import BY_MODULE
from gantrymq.cli.admin.unsupported import UNSUPPORTED
from gantrymq.cli.lazy import Lazy, LazyGroup

_PACKAGE = "gantrymq.cli.admin"


class MqadminGroup(LazyGroup):
    """Finds updateTopic as mqadmin does, in any case, and as update-topic."""

    table: ClassVar = {
        name: Lazy(f"{_PACKAGE}.{module}", text)
        for module, commands in BY_MODULE.items()
        for name, text in commands.items()
    } | {
        name: Lazy(f"{_PACKAGE}.unsupported", f"Not supported yet ({needs}).", hidden=True)
        for needs, names in UNSUPPORTED.items()
        for name in names
    }
    _by_lower_case: ClassVar = {name.lower(): name for name in table}

    def find(self, name: str) -> str | None:
        return self._by_lower_case.get(name.replace("-", "").lower())


app = typer.Typer(
    cls=MqadminGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Look at a cluster and change it, with mqadmin's commands and flags.",
    epilog="Without -n it goes where all commands go (gantry context show). updateTopic is update-topic, too. "
    "mqadmin's commands that are not in this list are not supported yet.",
)


@app.callback()
def _admin() -> None:
    pass
