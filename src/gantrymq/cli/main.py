"""The entry point of `gantry`: runs the subcommand, and turns its errors into messages and exit codes.

Exit codes: 0 success, 1 failure, 2 invalid command line, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.errors import GantryError


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs `gantry` and returns the exit code. `arguments` defaults to the arguments of the process."""
    if sys.stdin is None:
        # Standard input is closed (`<&-`): uvloop would use file descriptor 0 and abort when it closes this descriptor.
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        code = _run_quickly(arguments)
        if code is None:
            from gantrymq.cli.app import run_command

            run_command(arguments)
            code = 0
        return code
    except SystemExit as e:
        # Raised by the parser, which has already printed the help or an error.
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe. Without the redirect, the flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (GantryError, OSError) as e:
        if debug:
            raise
        _print_error(e)
        return 1
    except Exception as e:
        if debug:
            raise
        _print_error(f"{type(e).__name__}: {e} (gantry --debug shows where)")
        return 1


def _print_error(error: object) -> None:
    # Imported here, because commands without an error need less time without it.
    from gantrymq.logs import terminal_text

    print(f"gantry: {terminal_text(str(error))}", file=sys.stderr)


def _run_quickly(arguments: Sequence[str]) -> int | None:
    """Runs a command whose options are data, without typer. Returns None if typer must handle the command line."""
    command = arguments[0] if arguments else ""
    if command in ("namesrv", "broker", "controller", "proxy"):
        from gantrymq.cli.plain_options import parse_quickly
        from gantrymq.cli.server_options import ServerOptions, server_options

        values = parse_quickly(server_options(command), arguments[1:])
        if values is not None:
            from gantrymq.cli.servers import run_server

            return run_server(command, ServerOptions(**values))
    elif command == "consume":
        from gantrymq.cli import consume
        from gantrymq.cli.plain_options import InvalidOption, parse_quickly

        values = parse_quickly(consume.OPTIONS, arguments[1:])
        if values is not None:
            # typer prints the error if options exclude each other.
            with suppress(InvalidOption):
                consume.run(consume.ConsumeOptions(**values))
                return 0
    return None
