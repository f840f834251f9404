"""The entry point of `gantry`: runs the subcommand, and turns its errors into messages and exit codes.

Exit codes: 0 success, 1 failure, 2 invalid command line, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.errors import GantryError


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs `gantry` and returns the exit code. `arguments` defaults to those of the process."""
    if sys.stdin is None:
        # Closed (`<&-`): uvloop would use its file descriptor, 0, and abort when it closes it.
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        if arguments[:1] in (["namesrv"], ["broker"], ["controller"], ["proxy"]):
            from gantrymq.cli.server_options import parse_quickly

            options = parse_quickly(arguments[0], arguments[1:])
            if options is not None:
                from gantrymq.cli.servers import run_server

                return run_server(arguments[0], options)

        from gantrymq.cli.app import run_command

        run_command(arguments)
        return 0
    except SystemExit as e:
        # From the parser, which has already printed the help or an error.
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
        print(f"gantry: {e}", file=sys.stderr)
        return 1
    except Exception as e:
        if debug:
            raise
        print(f"gantry: {type(e).__name__}: {e} (gantry --debug shows where)", file=sys.stderr)
        return 1
