"""The run of one fuzz target, in a process of its own."""

from __future__ import annotations

import logging
import traceback
from hashlib import sha256
from pathlib import Path
from typing import Any

from fuzz.engine import run

_ROOT = Path(__file__).parent.parent
#: Inputs of findings. Git ignores this directory.
_CRASHES = _ROOT / "fuzz" / "crashes"


def run_target(name: str, seconds: float, seed: int) -> list[Any]:
    """Runs a target and prints its figures. Returns them, with 1 as the last one if the target failed, otherwise 0."""
    # Damaged files cause a line each.
    logging.disable()
    result = run(name, seed=seed, cpu_s=seconds)
    print(f"{name:20}{result.cases:>10} inputs  {result.cpu_s:6.1f} s", flush=True)
    row = [name, result.cases, round(result.cpu_s, 1)]
    if result.finding is None:
        return [*row, 0]
    data, error = result.finding
    _CRASHES.mkdir(exist_ok=True)
    path = _CRASHES / f"{name}-{sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    traceback.print_exception(error)
    print(f"to repeat: ./dev fuzz {name} --input {path.relative_to(_ROOT)}", flush=True)
    return [*row, 1]
