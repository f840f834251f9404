"""Changes of a broker's configuration."""

from __future__ import annotations

import msgspec

from gantrymq.console.changes.change import Change
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.servers import check_address, is_secret
from gantrymq.errors import GantryError


class SetConfig(msgspec.Struct):
    """Sets one key of a broker's configuration. `value` can be empty."""

    address: str
    key: str
    value: str = ""


async def set_config(view: ClusterView, one: SetConfig) -> str:
    key, value = one.key.strip(), one.value.strip()
    if not key or any(c in key + value for c in "\r\n"):
        raise BadArguments("a key is required, and key and value must be one line each")
    if is_secret(key):
        raise BadArguments(f"{key} is a secret: change it in the broker's configuration file")
    await check_address(view, one.address)
    await view.admin.update_broker_config([one.address], {key: value})
    now = (await view.admin.broker_config(one.address)).get(key)
    if now != value:
        raise GantryError(
            f"broker {one.address} accepted {key}={value}, but reports {key}={now}: it may not support the key"
        )
    return f"{key}={value} on broker {one.address}"


CHANGES = (
    Change(
        name="set-config",
        arguments=SetConfig,
        perform=set_config,
        back=lambda one: link("broker", address=one.address),
    ),
)
