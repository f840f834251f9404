"""`RegistrySettings`: the addresses of a schema registry, the credentials, TLS files and timeouts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gantrymq.errors import ConfigError

#: The limit from the start of a request to the last byte of its response, in seconds. A timeout for each read would not
#: limit a slow response.
REQUEST_TIMEOUT_S = 10.0
DEFAULT_RETRY_TIMEOUT_S = 5.0
#: The characters of a header's value, of which a bearer token has no space.
_TOKEN = re.compile(r"[!-~]+")


class OptionNames(NamedTuple):
    """The names of the settings in error texts: Python arguments, options of a Spark query or of a command line.

    Attributes:
        url: The addresses.
        credentials: The user and password, or the token.
        user_info: The user and password.
        authorities: The file with certificate authorities.
        tls: All TLS files.
        retry_timeout: The time for which requests are repeated.
        other_schema: What to do if the registry lacks the schema of a subject.
        register: What to do if the registry lacks the schema of a write.
        no_prefix: What to do if bodies lack the prefix.
        message: The name of a protobuf message.
        descriptor_set: What to do if the registry can't supply the files of a protobuf schema.
    """

    url: str = "urls of RegistrySettings"
    credentials: str = "user_info and token of RegistrySettings"
    user_info: str = "user_info of RegistrySettings"
    authorities: str = "authorities of RegistrySettings"
    tls: str = "authorities, certificate and key of RegistrySettings"
    retry_timeout: str = "retry_timeout_s of RegistrySettings"
    other_schema: str = "register a schema, or give another subject"
    register: str = "register it"
    no_prefix: str = "decode bodies without them with another codec"
    message: str = "argument message"
    descriptor_set: str = "use a registry that supports format=serialized, or register the import as a reference"


#: The names for Python programs.
ARGUMENTS = OptionNames()


@dataclass(slots=True, frozen=True)
class RegistrySettings:
    """The connection to a schema registry.

    A request ends within `retry_timeout_s` plus `request_timeout_s` for each address (`limit_s`).

    Attributes:
        urls: Instances of one registry, such as `http://host:8081`.
        user_info: `user:password`.
        token: A bearer token in place of user and password.
        authorities: A file with certificate authorities. Default: those of the system.
        certificate: The client certificate.
        key: The key of the client certificate.
        request_timeout_s: The limit of one request, in seconds. Default: 10.
        retry_timeout_s: The time for which requests to an unreachable registry are repeated, in seconds. Default: 5.
        names: The names of these settings in error texts.
    """

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    request_timeout_s: float = REQUEST_TIMEOUT_S
    retry_timeout_s: float = DEFAULT_RETRY_TIMEOUT_S
    names: OptionNames = ARGUMENTS

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError(f"{self.names.url}: the address of a schema registry is missing")
        for url in self.urls:
            self._check_url(url)
        if self.user_info is not None and ":" not in self.user_info:
            raise ConfigError(f"{self.names.user_info}: the form is user:password")
        if self.token is not None:
            if self.user_info is not None:
                raise ConfigError(f"{self.names.credentials}: only one of the two is allowed")
            # The text does not have the token, because error texts end up in logs.
            if not _TOKEN.fullmatch(self.token):
                raise ConfigError(f"{self.names.credentials}: the token is empty, or has characters other than ASCII's")
        if self.key is not None and self.certificate is None:
            raise ConfigError(f"{self.names.tls}: a key needs its certificate")

    @property
    def limit_s(self) -> float:
        """The limit for one request with its retries, in seconds."""
        return self.retry_timeout_s + len(self.urls) * self.request_timeout_s

    def _check_url(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            # Reading the port raises ValueError for an invalid one.
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")
        except ValueError:
            raise self._invalid_url(url) from None
        if parts.username is not None:
            raise ConfigError(f"{self.names.url}: user and password go into {self.names.user_info}")
        if not is_valid or parts.query or parts.fragment or not url.isprintable() or " " in url:
            raise self._invalid_url(url)

    def _invalid_url(self, url: str) -> ConfigError:
        # The part before an @ can be a password.
        return ConfigError(f"{self.names.url}: {url.rpartition('@')[2]!r} is no address like http://host:8081")


def split_urls(text: str) -> tuple[str, ...]:
    """Splits addresses that are separated by commas."""
    return tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
