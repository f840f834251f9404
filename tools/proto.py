"""Generates the gRPC modules in src/gantrymq/proxy/v2 from proto/. `./dev proto` runs it.

proto/ is apache/rocketmq-apis at commit 3e60073, without admin.proto, which a proxy does not serve. The modules import
each other relatively, so only gantrymq has to be on the path.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = "apache/rocketmq/v2"
OUT = ROOT / "src/gantrymq/proxy/v2"


def generate(out: Path) -> None:
    """Writes the modules and their stubs to the existing directory `out`. Raises SystemExit if protoc fails."""
    sources = sorted(str(path) for path in (PROTO / PACKAGE).glob("*.proto"))
    with tempfile.TemporaryDirectory() as made:
        if protoc.main(
            ["protoc", f"-I{PROTO}", f"-I{_well_known()}", f"--python_out={made}", f"--pyi_out={made}", *sources]
        ):
            raise SystemExit("protoc failed")
        for path in sorted((Path(made) / PACKAGE).iterdir()):
            (out / path.name).write_text(
                re.sub(r"(?m)^from apache\.rocketmq\.v2 import", "from . import", path.read_text())
            )


def _well_known() -> Path:
    """Returns the directory that contains google/protobuf/*.proto."""
    return Path(protoc.__file__).parent / "_proto"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="where to write (default: %(default)s)")
    generate(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
