"""An async function becomes a command: options that all commands have, NameServers, the event loop, the output.

Source: tools/command/MQAdminStartup, srvutil/ServerUtil.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from gantrymq.background.event_loop import new_event_loop
from gantrymq.cli.admin.output import Output, write
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile, find_target
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ClientError, GantryError

P = ParamSpec("P")
AdminCommand = Callable[Concatenate[AdminClient, P], Awaitable[Output]]

# What the client logs on the way to an error is no part of the one line that a command says.
logging.getLogger("gantrymq").addHandler(logging.NullHandler())


Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every master of this cluster.")]
Broker = Annotated[str | None, typer.Option("-b", "--brokerAddr", help="This broker alone, HOST:PORT.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic.")]
Group = Annotated[str, typer.Option("-g", "--groupName", help="Consumer group.")]

_JSON = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]


def command(app: typer.Typer, name: str) -> Callable[[AdminCommand[P]], None]:
    """Makes the function the command `name`; its docstring is the help, its parameters after the first the options.

    One that has the parameter `interval` (seconds) is repeated, if that isn't 0.
    """

    def register(function: AdminCommand[P]) -> None:
        signature = inspect.signature(function, eval_str=True)
        _, *options = signature.parameters.values()

        def run(
            name_servers: str | None,
            context: str | None,
            json: bool,
            tls_config: Path | None,
            acl_config: Path | None,
            **values: Any,
        ) -> None:
            target = find_target(name_servers, context, tls_config, acl_config)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                admin = AdminClient(target.name_servers, ssl_context=target.ssl_context, hooks=target.hooks)
                runner.run(_run(function, admin, json, values))

        common = [
            inspect.Parameter("name_servers", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=NameServers),
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ContextName),
            inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_JSON),
            inspect.Parameter("tls_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TlsConfigFile),
            inspect.Parameter("acl_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=AclConfigFile),
        ]
        parameters = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options] + common
        # What typer reads the options from.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=inspect.getdoc(function), context_settings={"help_option_names": ["-h", "--help"]})(run)

    return register


async def _run(
    function: Callable[..., Awaitable[Output]], admin: AdminClient, json: bool, values: dict[str, Any]
) -> None:
    async with admin:
        while True:
            try:
                output = await function(admin, **values)
            except GantryError as e:
                if "\n" in str(e):
                    # A remark of Java's may hold a stack trace.
                    raise ClientError(" ".join(str(e).split())) from e
                raise
            write(output, json=json)
            interval_s = values.get("interval")
            if not interval_s:
                return
            await asyncio.sleep(interval_s)
