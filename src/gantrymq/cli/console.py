"""The command line of `gantry console`."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile, find_target

app = typer.Typer()


@app.command()
def console(
    name_servers: NameServers = None,
    context: ContextName = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one, which is printed.")] = 8180,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Show a cluster in a browser, until Ctrl-C."""
    from gantrymq.extras import need

    need("console", "gantry console")
    from gantrymq.console.server import run_console
    from gantrymq.console.settings import Settings

    target = find_target(name_servers, context, tls_config, acl_config)
    run_console(Settings(target.name_servers, host=host, port=port, hooks=target.hooks, ssl_context=target.ssl_context))
