"""The console as a server: HTTPS, a port in use, and the thread of `gantry up --console`."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from wait_until import wait_until

from gantrymq.console.audit import Audit
from gantrymq.console.server import ConsoleThread
from gantrymq.console.settings import Settings
from gantrymq.console.tail import MAX_TAILS
from gantrymq.errors import ConfigError, GantryError
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


def test_a_thread(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with ConsoleThread(Settings(cluster.name_server, port=0, directory=tmp_path / "new")) as console:
        assert httpx.get(f"{console.address}overview", timeout=30).status_code == 200
        assert console.error is None
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{console.address}overview", timeout=30)
    assert (tmp_path / "new" / "history.db").exists()


def test_files_that_only_their_owner_can_read(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A new directory, and one whose files were readable by other users."""
    directory = tmp_path / "state"
    for name in ("history.db", "history.db-wal", "audit.log"):
        with ConsoleThread(Settings(cluster.name_server, port=0, directory=directory)) as console:
            assert httpx.get(f"{console.address}overview", timeout=30).status_code == 200
            wait_until((directory / "history.db-wal").exists)
            Audit(directory / "audit.log").write("", "", "none", {}, "nothing")
            modes = {path.name: path.stat().st_mode & 0o777 for path in (directory, *directory.iterdir())}
        assert modes.pop("state") == 0o700
        assert {"history.db", "history.db-wal", "audit.log"} <= modes.keys()
        assert set(modes.values()) == {0o600}
        directory.chmod(0o755)
        if (directory / name).exists():
            (directory / name).chmod(0o644)


def test_a_directory_with_other_files_stays_as_it_is(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir(0o755)
    directory.chmod(0o755)
    (directory / "letter").touch()
    with ConsoleThread(Settings(cluster.name_server, port=0, directory=directory)):
        assert directory.stat().st_mode & 0o777 == 0o755


def test_a_static_file_is_loaded_once(cluster: EmbeddedCluster) -> None:
    with ConsoleThread(Settings(cluster.name_server, port=0)) as console, httpx.Client() as client:
        address = f"{console.address}static/console.js"
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/javascript")
        again = client.get(address, headers={"if-none-match": f'"other", W/{answer.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(address, headers={"if-none-match": '"other"'}).content == answer.content
        assert client.head(address).status_code == 200
        for name in ("nothing.js", "../app.py", "%2e%2e/app.py"):
            assert client.get(f"{console.address}static/{name}").status_code == 404


def test_a_port_that_is_taken(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an error, and nothing is logged."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(GantryError, match=str(port)), ConsoleThread(Settings(cluster.name_server, port=port)):
            pass
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_https(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificate")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"), "-days", "1"]
    name = ["-subj", "/CN=console", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, *files, *name], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    settings = Settings(cluster.name_server, port=0, certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    with ConsoleThread(settings) as console:
        assert console.address.startswith("https://127.0.0.1:")
        answer = httpx.get(f"{console.address}overview", verify=context, timeout=30)
        assert answer.status_code == 200
        assert "Secure" in answer.headers["set-cookie"]


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    (tmp_path / "cert.pem").write_text("no certificate")
    for certificate in (tmp_path / "cert.pem", tmp_path / "missing.pem"):
        settings = Settings("127.0.0.1:1", port=0, certificate=certificate, key=tmp_path / "key.pem")
        with pytest.raises(ConfigError, match=f"can't use the certificate {re.escape(str(certificate))}"):
            ConsoleThread(settings)


def test_an_encrypted_key_is_refused(tmp_path: Path) -> None:
    """It does not prompt for the password of the key."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificate")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:secret", "-subj", "/CN=console"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([*make, *files], check=True, capture_output=True)
    settings = Settings("127.0.0.1:1", port=0, certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    with pytest.raises(ConfigError, match="must not be encrypted"):
        ConsoleThread(settings)


def test_a_forged_address_of_a_proxy_is_not_believed(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The address of a login attempt is that of the connection, not of a header.

    Otherwise each attempt could have a new one.
    """
    (tmp_path / "users").write_text("")
    settings = Settings(cluster.name_server, port=0, login="file", users_file=tmp_path / "users")
    with ConsoleThread(settings) as console, httpx.Client(base_url=console.address, timeout=30) as client:
        token = re.search(r'name="csrf" value="([^"]+)"', client.get("/login").text)
        assert token is not None
        answers = [
            client.post(
                "/login",
                data={"name": f"n{n}", "password": "x", "csrf": token[1]},
                headers={"x-forwarded-for": f"10.0.0.{n}"},
            ).status_code
            for n in range(6)
        ]
        assert answers == [403] * 5 + [429]


def test_a_tail_ends_with_its_reader(cluster: EmbeddedCluster) -> None:
    with ConsoleThread(Settings(cluster.name_server, port=0)) as console, httpx.Client(timeout=10) as client:
        url = f"{console.address}tail/stream?topic=TBW102"

        def opened() -> int:
            with client.stream("GET", url) as answer:
                return answer.status_code

        with ExitStack() as open_tails:
            for _ in range(MAX_TAILS):
                assert open_tails.enter_context(client.stream("GET", url)).status_code == 200
            assert opened() == 503
        wait_until(lambda: opened() == 200)


def test_a_login_that_cant_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ConsoleThread(Settings("127.0.0.1:1", login="file", users_file=tmp_path / "nowhere"))


def test_gantry_up_with_a_console(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "up", "--port", "0", "--console", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("ready:"):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        address = re.search(r"console at (\S+)/;", lines[-1])
        assert address is not None, lines[-1]
        assert "broker-a" in httpx.get(f"{address[1]}/overview", timeout=30).text
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stdout.close()
    assert (tmp_path / "console" / "history.db").exists()
