"""Creates a self-signed certificate for clients that use TLS without verification (`SelfSignedCertificate`).

Uses the package cryptography if it is installed (`gantrymq[tls]`), otherwise the program openssl.
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
    """Returns a server's SSL context. Takes about 20 ms. Raises GantryError if no certificate can be created."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Python loads keys only from files. This one has mode 0600 and is deleted at once.
    with tempfile.NamedTemporaryFile(prefix="gantrymq-") as file:
        file.write(_pem())
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _pem() -> bytes:
    """Returns a private key and its certificate, as PEM."""
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
    # A client's clock may be slow.
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
