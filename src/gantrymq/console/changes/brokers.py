"""A broker's configuration."""

from __future__ import annotations

import msgspec

from gantrymq.console.changes.change import Change
from gantrymq.console.eye import Eye
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.servers import check_address, is_secret
from gantrymq.errors import GantryError


class SetConfig(msgspec.Struct):
    """One key of a broker's configuration; an empty `value` is one, too."""

    address: str
    key: str
    value: str = ""


async def set_config(eye: Eye, one: SetConfig) -> str:
    key, value = one.key.strip(), one.value.strip()
    if not key or any(c in key + value for c in "\r\n"):
        raise BadArguments("a key and a value on one line are needed")
    if is_secret(key):
        raise BadArguments(f"{key} is a secret: it is changed in the broker's own file")
    await check_address(eye, one.address)
    await eye.admin.update_broker_config([one.address], {key: value})
    now = (await eye.admin.broker_config(one.address)).get(key)
    if now != value:
        raise GantryError(f"broker {one.address} took {key}={value} and says {key}={now}: it may not know the key")
    return f"{key}={value} on broker {one.address}"


CHANGES = (
    Change(
        name="set-config",
        arguments=SetConfig,
        perform=set_config,
        back=lambda one: link("broker", address=one.address),
    ),
)
