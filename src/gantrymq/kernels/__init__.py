"""Loops over many records or frames, in native code (distribution gantrymq-native) or in Python.

The extra `native` installs the native code. GANTRYMQ_NATIVE=0 in the environment turns it off. Native code only changes
the speed: each native function has an equivalent in Python, and both pass the same tests. A native call processes many
records and contains no rules of the broker or a client. `interface.py` describes the native module.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import cast

from gantrymq.kernels.interface import INTERFACE, Native

__all__ = ["Native", "native"]


def _chosen() -> Native | None:
    if os.environ.get("GANTRYMQ_NATIVE") == "0":
        return None
    try:
        module = importlib.import_module("gantrymq_native")
    except ImportError:
        return None
    if (found := getattr(module, "INTERFACE", None)) != INTERFACE:
        logging.getLogger(__name__).warning(
            "gantrymq-native isn't used: its interface is %s, this gantrymq needs %s; install the two together",
            found,
            INTERFACE,
        )
        return None
    return cast(Native, module)


#: The native module, or None if only Python is used.
native = _chosen()
