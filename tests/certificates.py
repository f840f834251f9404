"""Creates server and client certificates for tests with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


class Pair(NamedTuple):
    cert: Path
    key: Path


def make_certificate(directory: Path, name: str, *, passphrase: str | None = None, names: str = "IP:127.0.0.1") -> Pair:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificate")
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    encryption = ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    subprocess.run(
        ["openssl", "req", "-x509", *NEW_KEY, *encryption, "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName={names}", "-keyout", pair.key, "-out", pair.cert],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return pair


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Returns a certificate for 127.0.0.1. Tests share it and must not change it."""
    return make_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1")
