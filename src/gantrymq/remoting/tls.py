"""TLS configuration of servers and clients.

`server_tls` provides a server's certificate. `tls_detection` detects TLS connections.
Source: remoting/netty/TlsSystemConfig, TlsHelper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path

from gantrymq.config import property_key
from gantrymq.errors import ConfigError
from gantrymq.system import tls

#: Keys that are never shown, because they contain passwords.
SECRET_KEYS = frozenset({"tls.server.keyPassword", "tls.client.keyPassword"})

#: The values of `tls.protocols`. Without the key, servers and clients use both.
_VERSIONS = {"TLSv1.2": tls.TLSVersion.TLSv1_2, "TLSv1.3": tls.TLSVersion.TLSv1_3}
_CIPHER_NAME = re.compile(r"[A-Za-z0-9_-]+")


class TlsMode(Enum):
    """The connections that a server accepts (`TlsMode`): plain, TLS, or both (PERMISSIVE)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether a client must present a certificate. If presented, it is verified (in Java only on request)."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass
class TlsConfig:
    """The TLS keys of every server's configuration. Files are in PEM format.

    `tls_enable` is for outgoing connections: from a broker to the NameServers, from a client to all servers.
    """

    #: Versions that servers and clients use, separated by commas. None allows TLSv1.2 and TLSv1.3.
    tls_protocols: str | None = field(default=None, metadata={"key": "tls.protocols"})
    #: Cipher suites of servers and clients: names of IANA or OpenSSL, separated by commas. None uses Python's default.
    tls_ciphers: str | None = field(default=None, metadata={"key": "tls.ciphers"})

    #: If no certificate is configured, create one when the first client uses TLS (see `server_tls.py`).
    tls_test_mode_enable: bool = field(default=True, metadata={"key": "tls.test.mode.enable"})
    tls_server_mode: TlsMode = field(default=TlsMode.PERMISSIVE, metadata={"key": "tls.server.mode"})
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.certPath"})
    tls_server_key_path: Path | None = field(default=None, metadata={"key": "tls.server.keyPath"})
    #: Password of an encrypted private key.
    tls_server_key_password: str | None = field(default=None, repr=False, metadata={"key": "tls.server.keyPassword"})
    #: Certificate authorities of the clients' certificates.
    tls_server_trust_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.trustCertPath"})
    tls_server_need_client_auth: ClientAuth = field(
        default=ClientAuth.NONE, metadata={"key": "tls.server.need.client.auth"}
    )
    tls_enable: bool = field(default=False, metadata={"key": "tls.enable"})
    tls_client_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.certPath"})
    tls_client_key_path: Path | None = field(default=None, metadata={"key": "tls.client.keyPath"})
    tls_client_key_password: str | None = field(default=None, repr=False, metadata={"key": "tls.client.keyPassword"})
    #: Certificate authorities of the servers' certificates. None uses the system's.
    tls_client_trust_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.trustCertPath"})
    #: Verify a server's certificate. False by default, as in Java.
    tls_client_auth_server: bool = field(default=False, metadata={"key": "tls.client.authServer"})
    #: Also verify that the certificate contains the host name or address of the server. Java never does.
    tls_client_check_server_name: bool = field(default=True, metadata={"key": "tls.client.checkServerName"})


def server_context(config: TlsConfig) -> tls.SSLContext | None:
    """Returns a server's SSL context, or None if it has no certificate or TLS is disabled. Raises ConfigError."""
    if config.tls_server_mode is TlsMode.DISABLED:
        return None
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    limit_context(context, config)
    if config.tls_server_cert_path is None:
        if config.tls_server_mode is TlsMode.ENFORCING:
            cert, key, _ = _certificate_keys(config, "server")
            raise ConfigError(f"tls.server.mode=enforcing needs {cert} and {key}")
        return None
    _load_certificate(
        context,
        _certificate_keys(config, "server"),
        config.tls_server_cert_path,
        config.tls_server_key_path,
        config.tls_server_key_password,
    )
    if config.tls_server_need_client_auth is not ClientAuth.NONE:
        if config.tls_server_trust_cert_path is None:
            raise ConfigError(
                f"tls.server.need.client.auth={config.tls_server_need_client_auth.value} needs tls.server.trustCertPath"
            )
        _load_trusted(context, "tls.server", config.tls_server_trust_cert_path)
        is_optional = config.tls_server_need_client_auth is ClientAuth.OPTIONAL
        context.verify_mode = tls.CERT_OPTIONAL if is_optional else tls.CERT_REQUIRED
    return context


def client_context(config: TlsConfig) -> tls.SSLContext | None:
    """Returns the SSL context of a RemotingClient, or None if `tls_enable` is false. Raises ConfigError."""
    if not config.tls_enable:
        return None
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    limit_context(context, config)
    context.check_hostname = config.tls_client_auth_server and config.tls_client_check_server_name
    if not config.tls_client_auth_server:
        context.verify_mode = tls.CERT_NONE
    elif config.tls_client_trust_cert_path is not None:
        _load_trusted(context, "tls.client", config.tls_client_trust_cert_path)
    else:
        context.load_default_certs()
    if config.tls_client_cert_path is not None:
        _load_certificate(
            context,
            _certificate_keys(config, "client"),
            config.tls_client_cert_path,
            config.tls_client_key_path,
            config.tls_client_key_password,
        )
    return context


def limit_context(context: tls.SSLContext, config: TlsConfig) -> None:
    """Applies `tls.protocols` and `tls.ciphers`. As in Java, a version without ciphers is off. Raises ConfigError."""
    protocols = _names(config.tls_protocols)
    ciphers = {_openssl_name(name): name for name in _names(config.tls_ciphers)}
    if not protocols and not ciphers:
        return
    if unknown := [name for name in protocols if name not in _VERSIONS]:
        raise ConfigError(f"tls.protocols: {unknown[0][:200]!r} must be {' or '.join(_VERSIONS)}")
    usable = set(protocols or _VERSIONS)
    if ciphers:
        usable &= _limit_ciphers(context, ciphers, usable)
        if not usable:
            raise ConfigError(
                f"tls.ciphers={config.tls_ciphers}: none of them works with tls.protocols={config.tls_protocols}"
            )
    context.minimum_version = min(_VERSIONS[name] for name in usable)
    context.maximum_version = max(_VERSIONS[name] for name in usable)


def _limit_ciphers(context: tls.SSLContext, names: dict[str, str], protocols: set[str]) -> set[str]:
    """Limits a context to ciphers. Returns the TLS versions that have any of these. Raises ConfigError.

    `names` maps OpenSSL's names to those in the configuration.
    """
    all_of_13 = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.3"}
    of_13 = all_of_13.intersection(names)
    if of_13 and of_13 != all_of_13 and "TLSv1.3" in protocols:
        missing = ", ".join(sorted(all_of_13 - of_13))
        raise ConfigError(
            f"tls.ciphers: Python can't choose among the ciphers of TLSv1.3: add {missing}, or remove "
            f"{', '.join(sorted(of_13))}"
        )
    others = [name for name in names if name not in all_of_13]
    versions = {"TLSv1.3"} if of_13 else set()
    if others:
        try:
            context.set_ciphers(":".join(filter(_CIPHER_NAME.fullmatch, others)))
        except tls.SSLError:
            available = set()
        else:
            available = {cipher["name"] for cipher in context.get_ciphers()}
        if unknown := [name for name in others if name not in available]:
            raise ConfigError(f"tls.ciphers: {names[unknown[0]][:200]!r} is unknown to OpenSSL, or too weak")
        versions.add("TLSv1.2")
    return versions


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _openssl_name(name: str) -> str:
    """Returns OpenSSL's name of a cipher suite: ECDHE-RSA-AES128-SHA for TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA.

    The ciphers of TLS 1.3 have the same names in both lists.
    """
    exchange, is_older, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not is_older:
        return name
    cipher = re.sub(r"(AES|ARIA|CAMELLIA)_(\d+)", r"\1\2", cipher).replace("_CBC", "").replace("_CCM_8", "_CCM8")
    if cipher.startswith("CHACHA20"):
        cipher = cipher.removesuffix("_SHA256")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _certificate_keys(config: TlsConfig, side: str) -> tuple[str, str, str]:
    """Returns the configuration keys of the certificate, its private key and the password. The proxy has other keys."""
    keys = {each.name: property_key(each) for each in fields(config)}
    return keys[f"tls_{side}_cert_path"], keys[f"tls_{side}_key_path"], keys[f"tls_{side}_key_password"]


def _load_certificate(
    context: tls.SSLContext,
    keys: tuple[str, str, str],
    cert_path: Path,
    key_path: Path | None,
    key_password: str | None,
) -> None:
    """Loads a certificate and its private key. Raises ConfigError, which never contains the password.

    `keys` are the configuration keys of the three values, for errors.
    """
    of_cert, of_key, of_password = keys
    named = f"{of_cert}={cert_path}, {of_key}={key_path or f'(in {of_cert})'}"
    is_encrypted = False

    def password() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        if not key_password:
            # Otherwise OpenSSL prompts for the password on the terminal.
            raise ConfigError(f"{named}: the key is encrypted: set {of_password}")
        return key_password

    try:
        context.load_cert_chain(cert_path, key_path, password=password)
    except OSError as e:
        # tls.SSLError is a subclass of OSError.
        if is_encrypted and not (isinstance(e, tls.SSLError) and e.reason == "KEY_VALUES_MISMATCH"):
            raise ConfigError(f"{named}: the key can't be decrypted: check {of_password}") from e
        raise ConfigError(f"{named}: {e.strerror or e}") from e
    except ValueError as e:
        raise ConfigError(f"{named}, {of_password}: {e}") from e


def _load_trusted(context: tls.SSLContext, prefix: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as e:
        raise ConfigError(f"{prefix}.trustCertPath={path}: {e.strerror or e}") from e
