"""Tests of the doctor's findings about TLS errors. Each cause has its own remedy, and clients' errors name it too."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cli_support import name_server

from gantrymq.client.doctor.diagnosis import diagnose
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.remoting.tls import ClientAuth, TlsMode

Certificate = tuple[Path, Path]
MakeCertificate = Callable[..., Certificate]


@pytest.fixture
def certificate(tmp_path: Path) -> MakeCertificate:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def make(name: str, alternative: str = "127.0.0.1", days: int = 2) -> Certificate:
        """Creates a self-signed certificate, valid from ten days ago for `days` days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        names = (
            x509.DNSName(alternative) if alternative.endswith(".example") else x509.IPAddress(ip_address(alternative))
        )
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        cert_path, key_path = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        cert_path.write_bytes(built.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_path, key_path

    return make


async def diagnosed(tmp_path: Path, server: Certificate, context: ssl.SSLContext | None, **options: object) -> Finding:
    """Returns the finding about a NameServer with this certificate, for a client that uses `context`."""
    tls = {"tls_server_mode": TlsMode.ENFORCING} | options
    async with name_server(
        tmp_path / "namesrv", tls_server_cert_path=server[0], tls_server_key_path=server[1], **tls
    ) as running:
        findings = await diagnose(running.address, ssl_context=context, timeout_ms=2000)
    (finding,) = [one for one in findings if one.severity is not Severity.OK]
    assert finding.severity is Severity.PROBLEM
    return finding


async def test_a_certificate_that_nobody_trusted_signed(tmp_path: Path, certificate: MakeCertificate) -> None:
    context = ssl.create_default_context(cafile=certificate("another")[0])
    finding = await diagnosed(tmp_path, certificate("server"), context)
    assert "no trusted CA signed the server's certificate (self-signed certificate)" in finding.why
    assert finding.remedy.startswith("Set its CA in tls.client.trustCertPath")
    # The error of every client uses the same words.
    assert "can't connect to 127.0.0.1:" in finding.what
    assert "set its CA in tls.client.trustCertPath, or in the ssl_context (cafile)" in finding.what


async def test_a_certificate_for_another_name(tmp_path: Path, certificate: MakeCertificate) -> None:
    server = certificate("server", "broker.example")
    finding = await diagnosed(tmp_path, server, ssl.create_default_context(cafile=server[0]))
    assert "for another name or address" in finding.why
    assert "subjectAltName" in finding.remedy


async def test_a_certificate_that_is_too_old(tmp_path: Path, certificate: MakeCertificate) -> None:
    server = certificate("server", days=-1)
    finding = await diagnosed(tmp_path, server, ssl.create_default_context(cafile=server[0]))
    assert "is expired or not valid yet" in finding.why
    assert finding.remedy.startswith("Give the server a new one")


async def test_a_client_s_certificate_that_is_missing(tmp_path: Path, certificate: MakeCertificate) -> None:
    server = certificate("server")
    context = ssl.create_default_context(cafile=server[0])
    wanted = {"tls_server_need_client_auth": ClientAuth.REQUIRE, "tls_server_trust_cert_path": server[0]}
    finding = await diagnosed(tmp_path, server, context, **wanted)
    assert "it wants a client's certificate (tls.server.need.client.auth)" in finding.why
    assert finding.remedy.startswith("Give tls.client.certPath and tls.client.keyPath")


async def test_tls_that_the_server_doesn_t_speak(tmp_path: Path, certificate: MakeCertificate) -> None:
    server = certificate("server")
    context = ssl.create_default_context(cafile=server[0])
    finding = await diagnosed(tmp_path, server, context, tls_server_mode=TlsMode.DISABLED)
    assert "it takes no TLS (tls.server.mode=disabled" in finding.why
    assert finding.remedy.startswith("Leave out --tls-config")


async def test_a_plain_client_where_tls_is_wanted(tmp_path: Path, certificate: MakeCertificate) -> None:
    finding = await diagnosed(tmp_path, certificate("server"), None)
    assert "Nothing ever came over it: does the server take TLS only (tls.enable=true, --tls-config)" in finding.what
    assert "--tls-config FILE with tls.enable=true" in finding.remedy
