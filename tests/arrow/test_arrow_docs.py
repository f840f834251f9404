"""Tests that the examples of docs/arrow.md run, with pandas, Polars and DuckDB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gantrymq.arrow import read_topic
from gantrymq.arrow.read_arguments import BATCH_OPTIONS
from gantrymq.testing.embedded import EmbeddedCluster

PAGE = (Path(__file__).parent.parent.parent / "docs" / "arrow.md").read_text()


def test_the_examples_run(tmp_path: Path) -> None:
    """The examples run in order, as a reader would run them."""
    names: dict[str, Any] = {}
    with EmbeddedCluster(directory=tmp_path) as cluster:
        store = next(path.parent for path in tmp_path.rglob("commitlog"))
        for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
            code = code.replace("127.0.0.1:9876", cluster.name_server).replace("/data/broker-a", str(store))
            exec(compile(code, "docs/arrow.md", "exec"), names)
        rows = read_topic(cluster.name_server, "orders", columns=["body"]).read_all()
        scan = names["scan_topic"](cluster.name_server, "orders")
        assert scan.head(2).collect().height == 2
        assert scan.collect().height == rows.num_rows
    assert sorted(rows.column("body").to_pylist()) == [b"%d" % n for n in range(1, 7)]
    assert sorted(names["orders"].body) == [b"1", b"2", b"3"]
    assert dict(names["by_tag"].iter_rows()) == {"paid": 2, "sent": 1}
    assert names["paid"] == [(2,)]
    assert sorted(names["bodies"]) == [b"1", b"2", b"3"]
    assert names["tags"].to_dict(as_series=False) == {"tags": ["paid", "paid"]}
    assert set(names["position"]["orders"]) >= {"broker-a:0"}
    assert len(names["stored"]) == 6


def test_the_options_are_listed() -> None:
    listed = PAGE.partition("These options are possible:")[2].partition("the access keys")[0]
    assert set(re.findall(r"`([\w.]+)`", listed)) == {
        name
        for name in BATCH_OPTIONS
        if not name.startswith("tls.") and name not in ("accessKey", "secretKey", "securityToken")
    }
