"""Runs `gantry` for `python -m gantrymq.cli`."""

import sys

from gantrymq.cli.main import run

sys.exit(run())
