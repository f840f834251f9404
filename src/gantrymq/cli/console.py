"""The command line of `gantry console`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile, find_target

app = typer.Typer(add_completion=False)


@app.command()
def console(
    name_servers: NameServers = None,
    context: ContextName = None,
    host: Annotated[str, typer.Option(help="The address to listen on; another than 127.0.0.1 needs --login.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one, which is printed.")] = 8180,
    login: Annotated[
        str, typer.Option(metavar="none|cluster|file", help="Whose users log in: nobody's, the brokers', a file's.")
    ] = "none",
    users: Annotated[
        Path | None,
        typer.Option("--users", dir_okay=False, metavar="FILE", help="For --login file: NAME:admin|viewer:HASH lines."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nobody changes anything.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", file_okay=False, help="Keeps audit log and history here; else the log and memory have them."
        ),
    ] = None,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Charts come from this Prometheus, which asks the brokers.")
    ] = "",
    certificate: Annotated[
        Path | None, typer.Option("--cert", dir_okay=False, metavar="FILE", help="Serve HTTPS with it, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", dir_okay=False, metavar="FILE", help="Its key.")] = None,
    hash_password: Annotated[
        bool, typer.Option("--hash-password", help="Ask for a password, print its HASH for --users, and exit.")
    ] = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Show a cluster in a browser, until Ctrl-C."""
    from gantrymq.extras import need

    need("console", "gantry console")
    if hash_password:
        from gantrymq.console.logins import hash_password as hash_of

        typer.echo(hash_of(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)))
        return
    from gantrymq.console.server import run_console
    from gantrymq.console.settings import Settings

    target = find_target(name_servers, context, tls_config, acl_config)
    run_console(
        Settings(
            target.name_servers,
            host=host,
            port=port,
            hooks=target.hooks,
            ssl_context=target.ssl_context,
            login=login,
            users_file=users,
            read_only=read_only,
            directory=directory,
            prometheus=prometheus,
            certificate=certificate,
            key=key,
        )
    )
