"""Access control of a run: the brokers check all requests, and all programs sign theirs.

Programs sign as the administrator unless their client has credentials of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gantrymq.auth.config import AuthConfig
from gantrymq.client.credentials import Credentials, rpc_hooks
from gantrymq.client.options import TransportOptions
from gantrymq.remoting.connection import RpcHook

#: The super user of all brokers.
ADMINISTRATOR = Credentials("sim", "secret of sim")

_default: Credentials | None = None


def use(*, is_on: bool) -> None:
    """Switches access control on or off for the clients of this run."""
    global _default
    _default = ADMINISTRATOR if is_on else None


def credentials() -> Credentials | None:
    """Returns the credentials of programs without credentials of their own; None without access control."""
    return _default


def config_of_brokers() -> AuthConfig:
    """Returns the configuration of brokers that check all requests."""
    keys = ADMINISTRATOR.access_key, ADMINISTRATOR.secret_key
    return AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=json.dumps(dict(zip(("username", "password"), keys, strict=True))),
        inner_client_authentication_credentials=json.dumps(dict(zip(("accessKey", "secretKey"), keys, strict=True))),
    )


def _hooks(options: TransportOptions) -> Sequence[RpcHook]:
    return rpc_hooks(options.credentials or _default, options.hooks)


TransportOptions.rpc_hooks = property(_hooks)  # type: ignore[method-assign, assignment]
