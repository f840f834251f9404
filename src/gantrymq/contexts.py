"""Contexts: clusters with a name, an address and connection settings, stored in a file of the user.

`gantry context` writes the file. Commands, pipelines and Spark (option `context`) read it. The file contains addresses,
and the paths of files with keys and certificates, but not the keys themselves. Only the user can access the file (mode
0600), because a changed address would send the user's messages to another cluster.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from gantrymq.client.credentials import Credentials
from gantrymq.config import from_properties, load_properties, replace_file
from gantrymq.errors import ConfigError
from gantrymq.remoting.tls import TlsConfig, client_context
from gantrymq.system import tls

#: Valid names of contexts. A shell needs no quotes for them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Context(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    """The connection settings of one cluster.

    `namesrv_addr` is a list of HOST:PORT, separated by `;`. `acl_config` and `tls_config` are paths of the files for
    the options --acl-config and --tls-config.
    """

    namesrv_addr: str
    acl_config: str | None = None
    tls_config: str | None = None

    @property
    def credentials(self) -> Credentials | None:
        """The keys that sign requests; None without `acl_config`. Raises ConfigError if the file is invalid."""
        return None if self.acl_config is None else Credentials.from_file(Path(self.acl_config))

    @property
    def ssl_context(self) -> tls.SSLContext | None:
        """The SSL context for connections, or None without TLS. Raises ConfigError if a file is invalid."""
        return client_context(self.client_tls)

    @property
    def client_tls(self) -> TlsConfig:
        """The TLS configuration of `tls_config`; TLS is off without it. Raises ConfigError if the file is invalid."""
        return TlsConfig() if self.tls_config is None else tls_of(Path(self.tls_config))


class _File(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The JSON content of the file. `current` is the name of the default context."""

    current: str | None = None
    contexts: dict[str, Context] = {}


def contexts_path() -> Path:
    """Returns the user's file: `$XDG_CONFIG_HOME/gantrymq/contexts.json`, by default in `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "gantrymq" / "contexts.json"


def tls_of(path: Path) -> TlsConfig:
    """Reads a client's Java tls.properties; `tls.enable` is true by default. Raises ConfigError if it is invalid."""
    properties = {"tls.enable": "true"} | load_properties(path)
    return from_properties(TlsConfig, properties, source=str(path))


class Contexts:
    """The contexts of a file. Each change is written to the file at once."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file, which need not exist (default: `contexts_path()`). Raises ConfigError if it is invalid."""
        self.path = path or contexts_path()
        self._content = _File()
        try:
            self._content = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise ConfigError(f"can't read the contexts in {self.path}: {e.strerror or e}") from e
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise ConfigError(f"the contexts in {self.path} can't be read: {e}; correct or delete the file") from e

    @property
    def current(self) -> str | None:
        """The name of the default context, or None."""
        return self._content.current

    def names(self) -> list[str]:
        """Returns the names of all contexts, sorted."""
        return sorted(self._content.contexts)

    def __getitem__(self, name: str) -> Context:
        """Returns the context `name`. If it does not exist, raises ConfigError with the names of all contexts."""
        context = self._content.contexts.get(name)
        if context is None:
            known = ", ".join(self.names()) or "none yet (gantry context add NAME -n HOST:PORT)"
            raise ConfigError(f"there is no context {name!r}; known: {known}")
        return context

    def add(self, name: str, context: Context) -> None:
        """Adds a context. Raises ConfigError if its name is invalid or already used."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} can't be a context's name: letters, digits, _, - and ., at most 64")
        if name in self._content.contexts:
            raise ConfigError(f"there is a context {name} already; gantry context remove {name} takes it away")
        self._content.contexts[name] = context
        self._write()

    def use(self, name: str) -> None:
        """Makes `name` the current context, which is the default. Raises ConfigError for an unknown name."""
        _ = self[name]
        self._content.current = name
        self._write()

    def remove(self, name: str) -> None:
        """Removes a context. If it is current, there is no current context afterwards. Raises ConfigError."""
        _ = self[name]
        del self._content.contexts[name]
        if self._content.current == name:
            self._content.current = None
        self._write()

    def _write(self) -> None:
        """Replaces the file. Raises ConfigError if it cannot be written."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"can't write {self.path}: {e.strerror or e}") from e
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(self._content), indent=2) + b"\n", mode=0o600)
