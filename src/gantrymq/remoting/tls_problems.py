"""Explains TLS connection errors and names the option to change, for error messages and `gantry doctor`."""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.system import tls

# Error codes of OpenSSL (X509_V_ERR_*).
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_SIGNERS = (18, 19, 20, 21)
_OTHER_NAMES = (62, 64)


class TlsProblem(NamedTuple):
    why: str
    remedy: str


def tls_problem(error: BaseException | None) -> TlsProblem | None:
    """Returns cause and remedy for an `error` of a client's handshake, or None if it is not a TLS error."""
    if isinstance(error, tls.SSLCertVerificationError):
        return _of_certificate(error)
    if isinstance(error, tls.SSLError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return TlsProblem(
                "the server does not use TLS",
                "connect without TLS (no tls.enable=true, --tls-config or ssl_context), or correct the port",
            )
        return TlsProblem(
            f"the TLS handshake failed: {error.reason or error}",
            "both sides need a TLS version and a cipher in common; the server's log may say more",
        )
    return None


def _of_certificate(error: tls.SSLCertVerificationError) -> TlsProblem:
    reason = error.verify_message
    if error.verify_code in _UNKNOWN_SIGNERS:
        return TlsProblem(
            f"no trusted CA signed the server's certificate ({reason})",
            "set its CA in tls.client.trustCertPath, or in the ssl_context (cafile)",
        )
    if error.verify_code in _OTHER_NAMES:
        return TlsProblem(
            f"the server's certificate is for another name or address ({reason.rstrip('.')})",
            "make one whose subjectAltName has what clients connect to, a broker's brokerIP1 for one, connect by the "
            "name that it has, or leave the name out of it (tls.client.checkServerName=false)",
        )
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return TlsProblem(
            f"the server's certificate is expired or not valid yet ({reason})",
            "give the server a new one (it needs no restart), or set the clock of the machine that is wrong",
        )
    return TlsProblem(
        f"the server's certificate can't be trusted: {reason}",
        "correct the certificate, or what is trusted in tls.client.trustCertPath",
    )
