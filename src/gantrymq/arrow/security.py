"""`Security`: the access keys and the TLS settings of connections.

It is a plain value, which Spark pickles and sends to the tasks. A task loads the files from its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.client.acl_hook import AclHook, read_keys
from gantrymq.contexts import Context
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import TlsConfig, client_context


@dataclass(slots=True, frozen=True)
class Security:
    """Keys for the access control of the cluster, and the TLS settings of clients."""

    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)

    @classmethod
    def of(cls, context: Context) -> Security:
        """The settings of a context, with the keys from its file. Raises ConfigError."""
        access_key = secret_key = None
        if context.acl_config is not None:
            access_key, secret_key = read_keys(Path(context.acl_config))
        return cls(access_key, secret_key, tls=context.client_tls)

    def remoting_client(self) -> RemotingClient:
        """Creates a client with these settings. Raises ConfigError for certificates that can't be read."""
        hooks = []
        if self.access_key is not None and self.secret_key is not None:
            hooks.append(AclHook(self.access_key, self.secret_key, self.security_token))
        return RemotingClient(ssl_context=client_context(self.tls), hooks=hooks, in_place=True)
