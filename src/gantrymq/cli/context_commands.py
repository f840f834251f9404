"""The command lines of `gantry context`, which gives names to clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gantrymq.cli.admin.output import Output, listing, write
from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, TlsConfigFile
from gantrymq.cli.target import find_target, read_credentials, tls_context
from gantrymq.contexts import Context, Contexts
from gantrymq.errors import ConfigError
from gantrymq.remoting.address import parse_address

app = new_app(
    no_args_is_help=True,
    help="Name clusters with their addresses, keys and TLS settings.\n\nCommands take the name with --context.",
)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@app.command()
def add(
    name: Name,
    name_servers: Annotated[str, typer.Option("-n", "--namesrvAddr", metavar="HOST:PORT;...", help="The NameServers.")],
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Add a cluster. The context stores the paths of the files."""
    addresses = [address.strip() for address in name_servers.split(";") if address.strip()]
    try:
        for address in addresses:
            parse_address(address)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="'-n' / '--namesrvAddr'") from None
    if not addresses:
        raise typer.BadParameter("at least one HOST:PORT", param_hint="'-n' / '--namesrvAddr'")
    # Loads the files, so that invalid files fail here instead of at the first use of the context.
    tls_context(tls_config)
    if acl_config is not None:
        read_credentials(acl_config)
    contexts = Contexts()
    contexts.add(name, Context(";".join(addresses), _absolute(acl_config), _absolute(tls_config)))
    typer.echo(f"context {name} is in {contexts.path}; to use it: gantry context use {name}, or --context {name}")


@app.command()
def use(name: Name) -> None:
    """Select the default for commands without --context."""
    contexts = Contexts()
    contexts.use(name)
    typer.echo(f"the current context is {name}: {contexts[name].namesrv_addr}")


@app.command("list")
def list_contexts(json: Json = False) -> None:
    """List the contexts. The current one has a star."""
    contexts = Contexts()
    rows = [{"name": name, "current": name == contexts.current} | _fields(contexts[name]) for name in contexts.names()]
    if not rows and not json:
        typer.echo("no context yet: gantry context add NAME -n HOST:PORT")
        return
    columns: dict[str, Any] = {
        "current": ("", lambda current: "*" if current else ""),
        "name": "Name",
        "namesrvAddr": "NameServers",
        "aclConfig": ("Access Keys", lambda path: path or ""),
        "tlsConfig": ("TLS", lambda path: path or ""),
    }
    write(listing(rows, columns), json=json)


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    json: Json = False,
) -> None:
    """Show a context; without a name, the cluster that commands use here, and which setting selects it."""
    if name is not None:
        fields, origin = _fields(Contexts()[name]), f"context {name}"
    else:
        target = find_target(checks_addresses=False)
        fields, origin = (
            _fields(Context(target.name_servers, _text(target.acl_config), _text(target.tls_config))),
            (target.origin),
        )
    lines = [f"{label}: {fields[key] or '-'}" for label, key in _LABELS.items()]
    write(Output(fields | {"origin": origin}, [f"{origin}", *(f"  {line}" for line in lines)]), json=json)


@app.command()
def remove(name: Name) -> None:
    """Remove a cluster. Its files are not deleted."""
    contexts = Contexts()
    was_current = contexts.current == name
    contexts.remove(name)
    typer.echo(f"context {name} removed" + ("; no context is current" if was_current else ""))


_LABELS = {"NameServers": "namesrvAddr", "access keys": "aclConfig", "TLS": "tlsConfig"}


def _fields(context: Context) -> dict[str, Any]:
    return {
        "namesrvAddr": context.namesrv_addr,
        "aclConfig": context.acl_config,
        "tlsConfig": context.tls_config,
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _absolute(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError(f"{path} is no file")
    return str(path.expanduser().absolute())
