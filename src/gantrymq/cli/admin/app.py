"""The typer application of `gantry admin`. A command is imported when it is run."""

from __future__ import annotations

from typing import Any, ClassVar

from gantrymq.cli.admin.catalogue import BY_MODULE
from gantrymq.cli.lazy import Lazy, LazyGroup, new_app
from gantrymq.protocol.unsupported_features import UNSUPPORTED_FEATURES

_PACKAGE = "gantrymq.cli.admin"
#: Headings of the list of commands, by module.
_PANELS = {
    "topics": "Topics",
    "lite": "Topics",
    "brokers": "Brokers",
    "groups": "Consumer groups",
    "consumers": "Consumer groups",
    "offsets": "Consumer groups",
    "messages": "Messages",
    "dead_letter_messages": "Messages",
    "given_up": "Messages",
    "send_message": "Messages",
    "namesrv": "NameServers",
    "ha": "Replicas and controllers",
    "controllers": "Replicas and controllers",
    "stats": "Topics",
    "exports": "Exports",
    "auth": "Users and permissions",
}


class MqadminGroup(LazyGroup):
    """The group of all commands. A name can be in any case, as in mqadmin, and can have hyphens: update-topic."""

    table: ClassVar = {
        name: Lazy(f"{_PACKAGE}.{module}", text, panel=_PANELS.get(module))
        for module, commands in BY_MODULE.items()
        for name, text in commands.items()
    } | {
        name: Lazy(f"{_PACKAGE}.unsupported", f"Not supported: {feature.text}.", hidden=True)
        for feature in UNSUPPORTED_FEATURES
        for name in feature.commands
    }
    _by_lower_case: ClassVar = {name.lower(): name for name in table}

    def find(self, name: str) -> str | None:
        return self._by_lower_case.get(name.replace("-", "").lower())

    @classmethod
    def similar(cls, name: str) -> list[str]:
        """Returns the most similar names of supported commands, in any of their spellings."""
        from difflib import get_close_matches

        supported = [lower for lower, proper in cls._by_lower_case.items() if not cls.table[proper].hidden]
        return [cls._by_lower_case[one] for one in get_close_matches(name.replace("-", "").lower(), supported)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.find(args[0]) is None and not ctx.resilient_parsing:
            # Raised even without a similar name, because typer's own error would contain names of hidden commands.
            meant = ", ".join(map(repr, self.similar(args[0])))
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {meant}?" if meant else ""))
        return super().resolve_command(ctx, args)


app = new_app(
    cls=MqadminGroup,
    no_args_is_help=True,
    help="Look at a cluster and change it, with mqadmin's commands and flags.",
    epilog="Examples:\n\ngantry admin topicList\n\ngantry admin updateTopic -c DefaultCluster -t orders -r 8 -w 8\n\n"
    "gantry admin consumerProgress -g billing\n\ngantry admin queryMsgByKey -t orders -k order-17\n\n"
    "Without -n, --context, GANTRY_CONTEXT, NAMESRV_ADDR or the current context selects the cluster: 'gantry context "
    "show' prints it. Names can have hyphens: update-topic. Other commands of mqadmin only print why they are not "
    "supported.",
)


@app.callback()
def _admin() -> None:
    pass
