"""`verify` takes a limited amount of memory, however many keys the messages have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from store_support import open_store, put

from gantrymq.kernels import native

#: 4.8 million keys, which take 110 MiB as index entries.
RECORDS, KEYS = 300, 16_000
LOG_FILE = 64 * 1024 * 1024

#: A script that prints the number of records, and the growth of the process in KiB.
CHECK = """
import resource, sys
from pathlib import Path
from store_support import small_config
from gantrymq.store.verify import verify

config = small_config(Path(sys.argv[1]), mapped_file_size_commit_log=int(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = verify(config)
print(report.records, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
def test_many_keys_are_checked_some_at_a_time(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_commit_log=LOG_FILE)
    for _ in range(RECORDS):
        put(store, store.queue("T", 0), b"x", properties=b"KEYS\x01" + b"k " * KEYS + b"\x02")
    store.close()
    found = subprocess.run(
        [sys.executable, "-c", CHECK, str(tmp_path), str(LOG_FILE)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    records, grown_kib = map(int, found.stdout.split())
    assert records == RECORDS
    # 10 MiB of it are the mapped log.
    assert grown_kib < 40 * 1024
