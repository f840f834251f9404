"""The configuration of a running server, which requests read and change (`Configuration`).

The server keeps and returns keys that it does not use, if they are in the configuration file or if Java's server has
them, because another version or a Java server may use them.
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

#: Largest text of a change request, in bytes.
MAX_TEXT_BYTES = 64 * 1024


class ServerConfig(Protocol):
    """The fields that every server's configuration dataclass has."""

    #: File to which changes are saved.
    config_store_path: Path
    #: Keys that requests cannot change.
    config_black_list: list[str]


C = TypeVar("C", bound=ServerConfig)


class Configuration(Generic[C]):
    """Reads and changes a server's configuration object.

    Args:
        config: The configuration object that all parts of the server share.
        file_keys: Keys and values of the configuration file.
        fixed_keys: Keys that no request can change, in addition to the server's own list.
        secret_keys: Keys that no request can read.
        unused_defaults: Keys of Java's server that this server does not use, and their defaults.
    """

    def __init__(
        self,
        config: C,
        file_keys: Mapping[str, str],
        fixed_keys: frozenset[str],
        secret_keys: frozenset[str] = frozenset(),
        *,
        unused_defaults: Mapping[str, str] | None = None,
    ) -> None:
        self._config = config
        self._secret_keys = secret_keys
        self._fixed_keys = fixed_keys
        self._unused_defaults = unused_defaults or {}
        #: The unused keys of the file. An unused key with a default is added when it changes.
        self._unused = {key: file_keys[key] for key in unknown_keys([type(config)], dict(file_keys))}

    def properties(self) -> dict[str, str]:
        """Returns all keys and values, except secret keys."""
        known = dict(self._unused_defaults) | self._unused | to_properties(self._config)
        return {key: value for key, value in known.items() if key not in self._secret_keys}

    def changed(self, text: bytes, source: str) -> NewContent:
        """Returns the file content after the changes in `text`, with the function that applies them.

        Other keys than those in `properties` are ignored, as in Java.

        Raises:
            ConfigError: A value is invalid.
            RequestRefused: A key cannot be changed, or `text` is too long.
        """
        if len(text) > MAX_TEXT_BYTES:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{len(text)} bytes of configuration: too many")
        changes = parse_properties(text.decode("utf-8", "replace"), source=source)
        forbidden = sorted(changes.keys() & (self._fixed_keys | set(self._config.config_black_list)))
        if forbidden:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(forbidden)}"
            )
        kept = changes.keys() & (self._unused.keys() | self._unused_defaults.keys())
        unused = self._unused | {key: changes[key] for key in kept}
        for key in unknown_keys([type(self._config)], changes):
            if key in kept:
                log.warning("%s: the key %s is kept and has no effect", source, key)
            else:
                log.warning("%s: the key %s is unknown and ignored", source, key)
                del changes[key]
        updated = from_properties(type(self._config), to_properties(self._config) | changes, source=source)

        def apply() -> None:
            vars(self._config).update(vars(updated))
            self._unused = unused
            log.info("%s set %s", source, ", ".join(f"{key}={value}" for key, value in changes.items()))

        data = format_properties(unused | to_properties(updated)).encode()
        return NewContent(updated.config_store_path, data, apply)
