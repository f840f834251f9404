"""The parts of the module `ssl` that the package uses."""

from __future__ import annotations

from ssl import (
    CERT_NONE,
    CERT_OPTIONAL,
    CERT_REQUIRED,
    PROTOCOL_TLS_CLIENT,
    PROTOCOL_TLS_SERVER,
    SSLCertVerificationError,
    SSLContext,
    SSLError,
    TLSVersion,
)

__all__ = [
    "CERT_NONE",
    "CERT_OPTIONAL",
    "CERT_REQUIRED",
    "PROTOCOL_TLS_CLIENT",
    "PROTOCOL_TLS_SERVER",
    "SSLCertVerificationError",
    "SSLContext",
    "SSLError",
    "TLSVersion",
]
