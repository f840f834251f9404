"""h2spec, the conformance suite for HTTP/2 (github.com/summerwind/h2spec), with this project's proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxies import gantry_proxy
from servers import HERE, Server, gantry_namesrv

pytestmark = pytest.mark.interop(feature="HTTP/2 (h2spec)", clients="suite", servers="gantry")

_MODULE = HERE / "h2spec"
_PROGRAM = _MODULE / "target" / "h2spec"
_RPC = "/apache.rocketmq.v2.MessagingService/SendMessage"
#: Timeout of all tests, and of each test's wait for the proxy, in seconds. On a busy machine, h2spec's 2 s are too
#: short.
_TIMEOUT_S = 400
_TEST_TIMEOUT_S = 10


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Replaces the fixture of conftest.py, because this file needs no Java."""


@pytest.fixture(scope="module")
def h2spec() -> Path:
    """Builds h2spec, which takes a minute the first time."""
    if shutil.which("go") is None:
        pytest.skip("h2spec needs Go, which is not installed")
    command = ["go", "build", "-o", str(_PROGRAM), "github.com/summerwind/h2spec/cmd/h2spec"]
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    built = subprocess.run(command, cwd=_MODULE, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if built.returncode:
        pytest.skip(f"go can't build h2spec: {built.stderr[-500:]}")
    return _PROGRAM


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("h2spec")
    namesrv = gantry_namesrv(directory / "namesrv")
    try:
        proxy = gantry_proxy(directory / "proxy", namesrv.address)
        try:
            yield proxy
        finally:
            proxy.kill()
    finally:
        namesrv.kill()


@pytest.mark.timeout(2 * _TIMEOUT_S)
@pytest.mark.parametrize("options", [(), ("-t", "-k")], ids=["plain", "tls"])
def test_the_proxy_conforms_to_http2(h2spec: Path, proxy: Server, options: tuple[str, ...]) -> None:
    host, _, port = proxy.address.rpartition(":")
    command = [str(h2spec), *options, "-h", host, "-p", port, "-P", _RPC, "-o", str(_TEST_TIMEOUT_S)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    failures = result.stdout.partition("\nFailures:")[2]
    assert result.returncode == 0, failures or result.stdout[-2000:] + result.stderr[-2000:]
    assert " 0 skipped, 0 failed" in result.stdout
