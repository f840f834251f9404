"""Configuration: all keys that a server knows of, read and changed while it runs (remoting/Configuration).

The keys of its file that it has no use for stay in the file and are shown: another version, or Java's server, may
read it next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gantrymq.config import format_properties, from_properties, parse_properties, to_properties, unknown_keys
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.file_changes import NewContent

log = peer_log(__name__)

#: A request for changes has no longer text, bytes.
MAX_TEXT_BYTES = 64 * 1024


class ServerConfig(Protocol):
    """A dataclass with the keys of a server, these among them."""

    #: Where a change is written to.
    config_store_path: Path
    #: Keys that requests may not change.
    config_black_list: list[str]


C = TypeVar("C", bound=ServerConfig)


class Configuration(Generic[C]):
    """`config` is the object that all parts of the server hold; `file_keys` are those of the file it was read from.

    Nobody may change `fixed_keys`, whatever the configuration's own list says, or read `secret_keys`.
    """

    def __init__(
        self,
        config: C,
        file_keys: Mapping[str, str],
        fixed_keys: frozenset[str],
        secret_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._config = config
        self._secret_keys = secret_keys
        self._fixed_keys = fixed_keys
        self._unused = {key: file_keys[key] for key in unknown_keys([type(config)], dict(file_keys))}

    def properties(self) -> dict[str, str]:
        """All keys and values but the secret ones."""
        known = self._unused | to_properties(self._config)
        return {key: value for key, value in known.items() if key not in self._secret_keys}

    def changed(self, text: bytes, source: str) -> NewContent:
        """What the keys of a properties text make of it. Raises ConfigError, or RequestRefused for a key that is fixed.

        As in Java a key that isn't known yet changes nothing.
        """
        if len(text) > MAX_TEXT_BYTES:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{len(text)} bytes of configuration: too many")
        changes = parse_properties(text.decode("utf-8", "replace"), source=source)
        forbidden = sorted(changes.keys() & (self._fixed_keys | set(self._config.config_black_list)))
        if forbidden:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(forbidden)}"
            )
        unused = self._unused | {key: changes[key] for key in changes.keys() & self._unused.keys()}
        for key in unknown_keys([type(self._config)], changes):
            if key not in unused:
                log.warning("%s: the key %s is not known", source, key)
        updated = from_properties(type(self._config), to_properties(self._config) | changes, source=source)

        def apply() -> None:
            vars(self._config).update(vars(updated))
            self._unused = unused
            log.info("%s set %s", source, ", ".join(f"{key}={value}" for key, value in changes.items()))

        data = format_properties(unused | to_properties(updated)).encode()
        return NewContent(updated.config_store_path, data, apply)
