"""The generated messages correspond to proto/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GENERATED = ROOT / "src/gantrymq/proxy/v2"


def test_the_checked_in_modules_are_what_dev_proto_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools/proto.py", "--out", tmp_path], check=True, timeout=60)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    there = {path.name: path.read_text() for path in GENERATED.glob("*_pb2.py*")}
    assert made == there
