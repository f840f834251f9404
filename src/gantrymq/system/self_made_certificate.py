"""A certificate that a server makes itself, for clients that want TLS and check nothing (`SelfSignedCertificate`).

It is made by the package cryptography where that is there (`gantrymq[tls]`), else by the program openssl.
"""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta

from gantrymq.errors import GantryError

_NAME = "gantrymq"
_DAYS = 3650
_OPENSSL_TIMEOUT_S = 20.0


def self_made_context() -> ssl.SSLContext:
    """What a server's TLS connections are made with. Takes some 20 ms. Raises GantryError when it can't be made."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Python reads keys from files only. This one has the mode 0600 and is gone at once.
    with tempfile.NamedTemporaryFile(prefix="gantrymq-") as file:
        file.write(_pem())
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _pem() -> bytes:
    """A key and its certificate."""
    try:
        return _by_cryptography()
    except ImportError:
        return _by_openssl()


def _by_cryptography() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    # A client's clock may be late.
    begin = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def _by_openssl() -> bytes:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(_DAYS), "-subj", f"/CN={_NAME}", "-keyout", "-", "-out", "-"]
    try:
        made = subprocess.run(command, check=True, capture_output=True, timeout=_OPENSSL_TIMEOUT_S)
    except FileNotFoundError as e:
        raise GantryError("neither the package cryptography (gantrymq[tls]) nor the program openssl is there") from e
    except (OSError, subprocess.SubprocessError) as e:
        raise GantryError(f"openssl can't make one: {e}") from e
    return made.stdout
