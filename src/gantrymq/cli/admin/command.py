"""Turns an async function into a command of `gantry admin`.

Each command gets the shared options, an event loop and a client of the cluster. Its output is printed.

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
from gantrymq.cli.admin.confirmation import Confirmation, DryRun, Yes
from gantrymq.cli.admin.examples import EXAMPLES
from gantrymq.cli.admin.output import Output, RowStream, write
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import find_target
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ClientError, GantryError

P = ParamSpec("P")
AdminCommand = Callable[Concatenate[AdminClient, P], Awaitable[Output | RowStream]]

# The client's log lines are suppressed: a failed command prints its error as one line.
logging.getLogger("gantrymq").addHandler(logging.NullHandler())


Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every master of this cluster.")]
Broker = Annotated[str | None, typer.Option("-b", "--brokerAddr", help="Only this broker, HOST:PORT.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic.")]
Group = Annotated[str, typer.Option("-g", "--groupName", help="Consumer group.")]

_JSON = Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")]
_CONFIRMATION = "confirmation"
_CONFIRMATION_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    for name, annotation in (("dry_run", DryRun), ("yes", Yes))
]


def command(app: typer.Typer, name: str) -> Callable[[AdminCommand[P]], None]:
    """Returns a decorator that registers an async function as the command `name`.

    The docstring of the function is the help, which ends with an example (`EXAMPLES`). The parameters after the first
    one are the options. Two names of parameters have a special effect:

    - `interval` (seconds): the command is repeated at this interval, unless it is 0.
    - `confirmation`: the command has the options --dry-run and --yes.
    """

    def register(function: AdminCommand[P]) -> None:
        signature = inspect.signature(function, eval_str=True)
        _, *options = signature.parameters.values()
        asks = _CONFIRMATION in signature.parameters
        options = [option for option in options if option.name != _CONFIRMATION]

        def run(
            name_servers: str | None,
            context: str | None,
            json: bool,
            tls_config: Path | None,
            acl_config: Path | None,
            **values: Any,
        ) -> None:
            if asks:
                values[_CONFIRMATION] = Confirmation(values.pop("dry_run"), values.pop("yes"))
            target = find_target(name_servers, context, tls_config, acl_config)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                admin = AdminClient(target.name_servers, ssl_context=target.ssl_context, credentials=target.credentials)
                runner.run(_run(function, admin, json, values))

        common = [
            *(_CONFIRMATION_OPTIONS if asks else ()),
            inspect.Parameter("name_servers", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=NameServers),
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ContextName),
            inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_JSON),
            inspect.Parameter("tls_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TlsConfigFile),
            inspect.Parameter("acl_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=AclConfigFile),
        ]
        parameters = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options] + common
        # typer reads the options from the signature and the annotations.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(
            name,
            help=inspect.getdoc(function),
            epilog=f"Example: gantry admin {name} {EXAMPLES[name]}".rstrip(),
            context_settings={"help_option_names": ["-h", "--help"]},
        )(run)

    return register


async def _run(
    function: Callable[..., Awaitable[Output | RowStream]], admin: AdminClient, json: bool, values: dict[str, Any]
) -> None:
    async with admin:
        while True:
            try:
                output = await function(admin, **values)
            except GantryError as e:
                if "\n" in str(e):
                    # The remark of a Java broker can contain a stack trace, so it is joined into one line.
                    raise ClientError(" ".join(str(e).split())) from e
                raise
            write(output, json=json)
            interval_s = values.get("interval")
            if not interval_s:
                return
            await asyncio.sleep(interval_s)
