"""Tests that the examples of docs/integrations.md run and match the files of examples/tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_server import running_registry
from wait_until import wait_until

from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent.parent
ADDRESS = "127.0.0.1:9876"
WORKERS = {
    "taskiq_shop": ["taskiq", "worker", "taskiq_shop:broker", "--workers", "1"],
    "celery_shop": ["celery", "-A", "celery_shop", "worker", "-c", "1"],
    "faststream_shop": ["faststream", "run", "faststream_shop:app"],
}


def examples() -> list[str]:
    text = (ROOT / "docs" / "integrations.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.mark.parametrize(("number", "said"), [(0, "42 apples ['order-17']"), (1, 'as JSON: "1970-01-01T00:00:05Z"')])
def test_the_codecs(number: int, said: str, cluster: EmbeddedCluster) -> None:
    code = examples()[number].replace(ADDRESS, cluster.name_server)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{said}\n"), done.stderr


def test_the_codec_of_a_schema_registry(cluster: EmbeddedCluster) -> None:
    (code,) = [code for code in examples() if "RegistryCodec(" in code]
    fields = [{"name": "what", "type": "string"}, {"name": "count", "type": "int"}]
    with running_registry() as registry:
        registry.add("registered-orders-value", json.dumps({"type": "record", "name": "Order", "fields": fields}))
        code = code.replace(ADDRESS, cluster.name_server).replace("http://127.0.0.1:8081", registry.url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "42 apples\n"), done.stderr


@pytest.mark.parametrize("name", WORKERS)
def test_the_workers(name: str, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    code = (ROOT / "examples" / "tasks" / f"{name}.py").read_text()
    assert code in examples()
    (tmp_path / f"{name}.py").write_text(code.replace(ADDRESS, cluster.name_server))
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", *WORKERS[name]],
            cwd=tmp_path,
            env=os.environ | {"C_FORCE_ROOT": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            subprocess.run([sys.executable, f"{name}.py"], cwd=tmp_path, check=True, timeout=60)

            def said() -> str:
                assert worker.poll() is None
                return (tmp_path / "log").read_text()

            wait_until(lambda: "invoice for order-17: 42.00 euros" in said())
            wait_until(lambda: "invoice for order-18: 7.00 euros" in said())
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_test_and_the_asyncapi_page_of_faststream(tmp_path: Path) -> None:
    (code,) = [code for code in examples() if "TestRocketMQBroker" in code]
    (tmp_path / "faststream_shop.py").write_text((ROOT / "examples" / "tasks" / "faststream_shop.py").read_text())
    (tmp_path / "test_shop.py").write_text(code)
    subprocess.run([sys.executable, "test_shop.py"], cwd=tmp_path, check=True, timeout=60)
    generate = ["faststream", "docs", "gen", "faststream_shop:app"]
    subprocess.run([sys.executable, "-m", *generate], cwd=tmp_path, check=True, timeout=60)
    page = json.loads((tmp_path / "asyncapi.json").read_text())
    assert {channel["address"] for channel in page["channels"].values()} == {"shop-orders", "shop-invoices"}
