"""AclHook: signs every request of a client (`AclClientRPCHook`)."""

from __future__ import annotations

from pathlib import Path

import yaml

from gantrymq.errors import ConfigError
from gantrymq.remoting.signatures import SigningHook
from gantrymq.system import files


def read_keys(path: Path) -> tuple[str, str]:
    """`accessKey` and `secretKey` of mqadmin's tools.yml at `path`. Raises ConfigError."""
    try:
        # All values as they are written: a key of digits is no number.
        document = yaml.load(files.read_bytes(path), Loader=yaml.BaseLoader)
    except OSError as e:
        raise ConfigError(f"can't read {path}: {e.strerror or e}") from e
    except (yaml.YAMLError, ValueError):
        # What the parser says quotes the file, which holds a secret.
        raise ConfigError(f"{path} is no YAML") from None
    keys = document if isinstance(document, dict) else {}
    access_key, secret_key = keys.get("accessKey"), keys.get("secretKey")
    if not isinstance(access_key, str) or not isinstance(secret_key, str):
        raise ConfigError(f"{path} needs accessKey and secretKey")
    return access_key.strip(), secret_key.strip()


class AclHook(SigningHook):
    """Give it to a producer, a consumer or an AdminClient: `hooks=[AclHook(access_key, secret_key)]`.

    `security_token` goes with keys that are lent for a while (Alibaba's STS). Raises ConfigError for a blank key.
    """

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        if not access_key.strip() or not secret_key.strip():
            raise ConfigError("an access key and a secret key are needed; one of them is blank")
        super().__init__(access_key, secret_key, security_token)

    @classmethod
    def from_file(cls, path: Path) -> AclHook:
        """With the keys of mqadmin's tools.yml at `path`. Raises ConfigError."""
        return cls(*read_keys(path))

    def __repr__(self) -> str:
        return f"AclHook({self.access_key!r})"
