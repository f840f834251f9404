"""Runs the tests of the examples that have libraries of their own, each with an environment for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))

from code_blocks import code_blocks  # noqa: E402
from example_environments import EnvironmentUnavailable, environment  # noqa: E402

#: Requirements file and test file of each group, in examples/.
GROUPS = {
    "outbox": ("outbox/requirements.txt", "outbox/test_orders.py"),
    "fastapi": ("web/requirements.txt", "web/test_fastapi_shop.py"),
    "django": ("web/requirements.txt", "web/test_django_shop.py"),
    "airflow": ("sensors/requirements-airflow.txt", "sensors/test_airflow_lag.py"),
    "airflow-send": ("sensors/requirements-airflow.txt", "sensors/test_airflow_send.py"),
    "dagster": ("sensors/requirements-dagster.txt", "sensors/test_dagster_lag.py"),
    "ray": ("ray_data/requirements.txt", "ray_data/test_orders_by_tag.py"),
    "pandera": ("quality/requirements.txt", "quality/test_orders_quality.py"),
    "prefect": ("sensors/requirements-prefect.txt", "sensors/test_prefect_load.py"),
}
#: Files that docs/integrations.md shows.
SHOWN = [
    "outbox/orders.py",
    "web/fastapi_shop.py",
    "web/django_shop/apps.py",
    "web/django_shop/views.py",
    "sensors/airflow_lag.py",
    "sensors/airflow_send.py",
    "sensors/dagster_lag.py",
    "sensors/prefect_load.py",
    "quality/orders_quality.py",
    "ray_data/orders_by_tag.py",
]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", GROUPS)
def test_an_example_runs(group: str, tmp_path: Path) -> None:
    requirements, tests = (ROOT / "examples" / name for name in GROUPS[group])
    try:
        python = environment(requirements)
    except EnvironmentUnavailable as e:
        pytest.skip(f"the libraries of {group} cannot be installed: {e}")
    done = subprocess.run(
        # pyproject.toml has options for plugins that the environment does not have.
        [python, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir", tests.parent, tests],
        cwd=tests.parent,
        # Airflow writes files to its home as soon as it is imported.
        env=os.environ | {"AIRFLOW_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SHOWN)
def test_the_docs_show_the_example(name: str) -> None:
    code = (ROOT / "examples" / name).read_text()
    assert code in code_blocks((ROOT / "docs" / "integrations.md").read_text(), "python")
