"""Names of the version numbers that clients and brokers send (`common/MQVersion`)."""

from __future__ import annotations

#: From this version on, names are regular: from V3_9_1_SNAPSHOT to V5_9_9, the last one.
_FIRST_REGULAR_VERSION = 194
_LAST_VERSION = 611


def version_name(version: int) -> str:
    """Returns a name such as V5_5_0. Returns the number itself for very old versions (3.8)."""
    if version < _FIRST_REGULAR_VERSION:
        return str(version)
    number, released = divmod(min(version, _LAST_VERSION) - 12, 2)
    return f"V{3 + number // 100}_{number // 10 % 10}_{number % 10}" + ("" if released else "_SNAPSHOT")
