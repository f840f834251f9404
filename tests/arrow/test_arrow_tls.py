"""Tests the TLS options of `read_topic` and `write_topic`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from certificates import Pair, make_certificate

from gantrymq.arrow import read_topic, write_topic
from gantrymq.arrow.option_values import Values
from gantrymq.arrow.options import READ_OPTIONS, ReadOptions
from gantrymq.errors import ConfigError
from gantrymq.remoting.tls import ClientAuth
from gantrymq.testing.embedded import EmbeddedCluster

PASSWORD = "sesame"


def test_an_encrypted_key(certificate: Pair, tmp_path: Path) -> None:
    encrypted = make_certificate(tmp_path, "client", passphrase=PASSWORD)
    options = {
        "tls.enable": "true",
        "tls.client.certPath": str(encrypted.cert),
        "tls.client.keyPath": str(encrypted.key),
    }
    with EmbeddedCluster(
        tls_server_cert_path=certificate.cert,
        tls_server_key_path=certificate.key,
        tls_server_need_client_auth=ClientAuth.REQUIRE,
        tls_server_trust_cert_path=encrypted.cert,
    ) as cluster:
        with pytest.raises(ConfigError, match=r"set tls\.client\.keyPassword"):
            read_topic(cluster.name_server, "kept", options=options)
        options["tls.client.keyPassword"] = PASSWORD
        assert write_topic(cluster.name_server, "kept", pa.table({"body": ["a"]}), options=options) == 1
        assert read_topic(cluster.name_server, "kept", options=options).read_all().num_rows == 1


def test_the_password_is_not_shown() -> None:
    given = {"nameServer": "127.0.0.1:9876", "subscribe": "kept", "tls.client.keyPassword": PASSWORD}
    assert PASSWORD not in repr(ReadOptions.of(Values(given, READ_OPTIONS, "read")))


@pytest.mark.parametrize("option", ["tls.protocols", "tls.ciphers"])
def test_unknown_versions_and_ciphers(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: 'another'"):
        read_topic("127.0.0.1:9876", "kept", options={"tls.enable": "true", option: "another"})
