"""Contexts: names for clusters, with what it takes to reach them, in a file of the user's.

`gantry context` writes it; commands, pipelines and Spark (option `context`) read it. The file holds addresses and the
paths of files with keys and certificates, not the keys. It is the user's alone (0600): who may change it sends the
user's messages to another cluster.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from gantrymq.client.acl_hook import AclHook
from gantrymq.config import from_properties, load_properties, replace_file
from gantrymq.errors import ConfigError
from gantrymq.remoting.tls import TlsConfig, client_context
from gantrymq.system import tls

#: Names that a shell needs no quotes for.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Context(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    """One cluster: `namesrv_addr` is HOST:PORT;..., the files are those of --acl-config and --tls-config."""

    namesrv_addr: str
    acl_config: str | None = None
    tls_config: str | None = None

    @property
    def hooks(self) -> list[AclHook]:
        """What signs the requests. Raises ConfigError for a file that can't be used."""
        return [] if self.acl_config is None else [AclHook.from_file(Path(self.acl_config))]

    @property
    def ssl_context(self) -> tls.SSLContext | None:
        """What to connect with; None without TLS. Raises ConfigError."""
        return client_context(self.client_tls)

    @property
    def client_tls(self) -> TlsConfig:
        """Raises ConfigError for a file that can't be used."""
        return TlsConfig() if self.tls_config is None else tls_of(Path(self.tls_config))


class _File(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    current: str | None = None
    contexts: dict[str, Context] = {}


def contexts_path() -> Path:
    """$XDG_CONFIG_HOME/gantrymq/contexts.json; without that variable in ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "gantrymq" / "contexts.json"


def tls_of(path: Path) -> TlsConfig:
    """Java's tls.properties for a client, which need not say tls.enable=true. Raises ConfigError."""
    properties = {"tls.enable": "true"} | load_properties(path)
    return from_properties(TlsConfig, properties, source=str(path))


class Contexts:
    """The file's content. Whatever changes it writes it."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises ConfigError when the file can't be read."""
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
        """The one in use where nothing else is said."""
        return self._content.current

    def names(self) -> list[str]:
        return sorted(self._content.contexts)

    def __getitem__(self, name: str) -> Context:
        """Raises ConfigError for one that isn't there; it names those that are."""
        context = self._content.contexts.get(name)
        if context is None:
            known = ", ".join(self.names()) or "none yet (gantry context add NAME -n HOST:PORT)"
            raise ConfigError(f"there is no context {name!r}; known: {known}")
        return context

    def add(self, name: str, context: Context) -> None:
        """Raises ConfigError for a name that is taken, or can't be one."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} can't be a context's name: letters, digits, _, - and ., at most 64")
        if name in self._content.contexts:
            raise ConfigError(f"there is a context {name} already; gantry context remove {name} takes it away")
        self._content.contexts[name] = context
        self._write()

    def use(self, name: str) -> None:
        """Makes it the current one. Raises ConfigError for one that isn't there."""
        _ = self[name]
        self._content.current = name
        self._write()

    def remove(self, name: str) -> None:
        """Raises ConfigError for one that isn't there. If it was the current one, there is none after it."""
        _ = self[name]
        del self._content.contexts[name]
        if self._content.current == name:
            self._content.current = None
        self._write()

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"can't write {self.path}: {e.strerror or e}") from e
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(self._content), indent=2) + b"\n", mode=0o600)
