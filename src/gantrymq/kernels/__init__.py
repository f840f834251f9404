"""Loops over many records or frames: in native code where the distribution gantrymq-native is there, else in Python.

`pip install "gantrymq[native]"` brings it; GANTRYMQ_NATIVE=0 in the environment leaves it alone. It changes how long
something takes, and nothing else: each function of it has a twin in Python, and the tests of both are the same.
Native is what one call does for many records; no rule of the broker or of a client is there. `interface.py` says what
the native module has.
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


#: The native module; None where Python does all.
native = _chosen()
