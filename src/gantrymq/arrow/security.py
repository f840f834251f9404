"""`Security`: the access keys and the TLS settings of connections.

An object is a plain value, which Spark pickles and sends to the tasks. A task loads the files from its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq.client.credentials import Credentials, rpc_hooks
from gantrymq.contexts import Context
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import TlsConfig, client_context


@dataclass(slots=True, frozen=True)
class Security:
    """Keys for the access control of the cluster, and the TLS settings of clients."""

    credentials: Credentials | None = None
    tls: TlsConfig = field(default_factory=TlsConfig)

    @classmethod
    def of(cls, context: Context) -> Security:
        """The settings of a context, with the keys from its file. Raises ConfigError."""
        return cls(context.credentials, context.client_tls)

    def remoting_client(self) -> RemotingClient:
        """Creates a client with these settings. Raises ConfigError for certificates that can't be read."""
        return RemotingClient(ssl_context=client_context(self.tls), hooks=rpc_hooks(self.credentials), in_place=True)
