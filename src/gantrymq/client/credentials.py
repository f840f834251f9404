"""Credentials: the keys with which a client signs its requests (`AclClientRPCHook`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.errors import ConfigError
from gantrymq.remoting.connection import RpcHook
from gantrymq.remoting.signatures import SigningHook
from gantrymq.system import files


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of one user. A producer, a consumer or an AdminClient signs each request with them.

    Example:
        Producer("127.0.0.1:9876", "orders", credentials=Credentials(access_key, secret_key))

    Args:
        access_key: Access key.
        secret_key: Secret key.
        security_token: Token of temporary keys (Alibaba's STS). Default: None.

    Raises:
        ConfigError: A key is blank or no string.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, key in (("access_key", self.access_key), ("secret_key", self.secret_key)):
            # The error omits the value, which may be a secret.
            if not isinstance(key, str):
                raise ConfigError(f"{name}: must be a string, is {type(key).__name__}")
            if not key.strip():
                raise ConfigError(f"{name}: is blank")

    @classmethod
    def from_file(cls, path: Path) -> Credentials:
        """Returns the keys in mqadmin's tools.yml at `path`: `accessKey` and `secretKey`. Raises ConfigError."""
        # Imported here, because clients without such a file do not need the parser.
        import yaml

        try:
            # Reads all values as strings, because a key can consist of digits.
            document = yaml.load(files.read_bytes(path), Loader=yaml.BaseLoader)
        except OSError as e:
            raise ConfigError(f"can't read {path}: {e.strerror or e}") from e
        except (yaml.YAMLError, ValueError):
            # The parser's error quotes the file, which contains a secret.
            raise ConfigError(f"{path} is no YAML") from None
        keys = document if isinstance(document, dict) else {}
        access_key, secret_key = keys.get("accessKey"), keys.get("secretKey")
        if not isinstance(access_key, str) or not isinstance(secret_key, str):
            raise ConfigError(f"{path} needs accessKey and secretKey")
        return cls(access_key.strip(), secret_key.strip())


def rpc_hooks(credentials: Credentials | None, hooks: Sequence[RpcHook] = ()) -> Sequence[RpcHook]:
    """Returns `hooks`, followed by the hook that signs requests. The signature then covers the changes of all hooks."""
    if credentials is None:
        return hooks
    return [*hooks, SigningHook(credentials.access_key, credentials.secret_key, credentials.security_token)]
