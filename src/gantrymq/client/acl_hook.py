"""AclHook: signs each request of a client (`AclClientRPCHook`)."""

from __future__ import annotations

from pathlib import Path

from gantrymq.errors import ConfigError
from gantrymq.remoting.signatures import SigningHook
from gantrymq.system import files


def read_keys(path: Path) -> tuple[str, str]:
    """Reads `accessKey` and `secretKey` from mqadmin's tools.yml at `path`. Raises ConfigError."""
    # Imported here, because clients without such a file do not need it.
    import yaml

    try:
        # All values as strings, because a key can consist of digits.
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
    return access_key.strip(), secret_key.strip()


class AclHook(SigningHook):
    """Signs each request of a producer, a consumer or an AdminClient.

    Example:
        Producer("127.0.0.1:9876", "orders", hooks=[AclHook(access_key, secret_key)])

    Args:
        access_key: Access key.
        secret_key: Secret key.
        security_token: Token of temporary keys (Alibaba's STS). Default: None.

    Raises:
        ConfigError: A key is blank.
    """

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        if not access_key.strip() or not secret_key.strip():
            raise ConfigError("an access key and a secret key are needed; one of them is blank")
        super().__init__(access_key, secret_key, security_token)

    @classmethod
    def from_file(cls, path: Path) -> AclHook:
        """Returns a hook with the keys of mqadmin's tools.yml at `path`. Raises ConfigError."""
        return cls(*read_keys(path))

    def __repr__(self) -> str:
        return f"AclHook({self.access_key!r})"
