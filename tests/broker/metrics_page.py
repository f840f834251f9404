"""The metrics page of a broker, parsed into names, types, labels and buckets, and the list of Java's metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

#: The metrics of Apache's broker 5.5.0 after `fill_metrics`. `interop/test_metrics.py` compares it with that broker.
JAVA_METRICS = Path(__file__).parent / "java_metrics.json"
#: Java's exporter adds these itself.
_EXPORTER_LABEL, _EXPORTER_METRIC = "otel_scope_name", "target_info"
_SUFFIXES = ("_bucket", "_sum", "_count")


class Described(NamedTuple):
    """A metric without its values. `labels` are those of all samples, `buckets` the upper limits of a histogram."""

    type: str
    labels: list[str]
    buckets: list[float]


def described(page: str) -> dict[str, Described]:
    """Returns the metrics of a page by name."""
    found: dict[str, Described] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split()
            if name != _EXPORTER_METRIC:
                found[name] = Described(kind, [], [])
        elif match := re.fullmatch(r"(\w+)(?:\{(.*)\})? \S+", line):
            name = match[1]
            if name not in found:
                name = next((base for end in _SUFFIXES if (base := name.removesuffix(end)) in found), "")
            for label, value in re.findall(r'(\w+)="([^"]*)"', match[2] or "") if name else ():
                _, labels, buckets = found[name]
                if label == "le" and float(value) not in buckets:
                    buckets.append(float(value))
                elif label not in ("le", _EXPORTER_LABEL, *labels):
                    labels.append(label)
    return {name: Described(one.type, sorted(one.labels), one.buckets) for name, one in sorted(found.items())}


def java_metrics() -> dict[str, Described]:
    """Returns the list of Java's metrics."""
    return {name: Described(**fields) for name, fields in json.loads(JAVA_METRICS.read_bytes()).items()}


def write_java_metrics(metrics: Mapping[str, Described]) -> None:
    """Replaces the list of Java's metrics, with a line for each one."""
    lines = (f"  {json.dumps(name)}: {json.dumps(one._asdict())}" for name, one in sorted(metrics.items()))
    JAVA_METRICS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
