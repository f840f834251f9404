"""The command line of `gantry console`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import find_target
from gantrymq.logs import log_to_stderr

app = new_app()


@app.command()
def console(
    name_servers: NameServers = None,
    context: ContextName = None,
    host: Annotated[str, typer.Option(help="The address to listen on; another than 127.0.0.1 needs --login.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one, which is printed.")] = 8180,
    login: Annotated[
        str,
        typer.Option(metavar="none|cluster|file", help="No login, the users of the brokers, or the users of a file."),
    ] = "none",
    users: Annotated[
        Path | None,
        typer.Option("--users", dir_okay=False, metavar="FILE", help="For --login file: NAME:admin|viewer:HASH lines."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", file_okay=False, help="Directory of audit log and history. Default: standard error and memory."
        ),
    ] = None,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Draw charts from this Prometheus, which scrapes the brokers.")
    ] = "",
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", dir_okay=False, metavar="FILE", help="Serve HTTPS with this certificate, PEM."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", dir_okay=False, metavar="FILE", help="The key of the certificate, PEM, not encrypted."),
    ] = None,
    hash_password: Annotated[
        bool,
        typer.Option(
            "--hash-password",
            help="Print the HASH of a password for --users. Reads it from the terminal, or a line of standard input.",
        ),
    ] = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Show a cluster in a browser, until Ctrl-C."""
    from gantrymq.extras import need

    need("console", "gantry console")
    if hash_password:
        from gantrymq.console.logins import hash_password as hash_of

        typer.echo(hash_of(_new_password()))
        return
    # Without --dir, the log of the process is the audit log.
    log_to_stderr()
    from gantrymq.console.server import run_console
    from gantrymq.console.settings import Settings

    target = find_target(name_servers, context, tls_config, acl_config)
    run_console(
        Settings(
            target.name_servers,
            host=host,
            port=port,
            credentials=target.credentials,
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


def _new_password() -> str:
    """Reads a password from the terminal, with a confirmation, or from the first line of standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise typer.BadParameter("the first line of standard input is empty", param_hint="'--hash-password'")
    return password
