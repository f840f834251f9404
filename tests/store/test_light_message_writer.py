"""Which messages the store dispatches to light queues when it appends them."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_support import open_store, put

from gantrymq.limits import LIGHT_QUEUES_OF_MESSAGE
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, decode_properties

A = "%LMQ%a"


@pytest.mark.parametrize(
    ("names", "other"),
    [
        (f"{A},%LMQ%{'x' * 251}", ""),
        (A + ",x" * LIGHT_QUEUES_OF_MESSAGE, ""),
        (A + ",x" * 5000, ""),
        (A, "x" * (MAX_PROPERTIES_LENGTH - 50)),
    ],
)
def test_illegal_names_are_not_dispatched(tmp_path: Path, names: str, other: str) -> None:
    """A message that was accepted earlier must be delivered. A rebuild dispatches the same messages."""
    store = open_store(tmp_path / "store", enable_lmq=True)
    queue = store.queue("T", 0)
    forged = f"INNER_MULTI_QUEUE_OFFSET\x01{names.count(',') * '7,'}7\x02" if len(names) < 1000 and not other else ""
    properties = f"INNER_MULTI_DISPATCH\x01{names}\x02{forged}other\x01{other}\x02".encode()
    result = put(store, queue, b"illegal", properties=properties)
    put(store, queue, b"legal", properties=f"INNER_MULTI_DISPATCH\x01{A}\x02".encode())
    stored = decode_properties(store.read_record(result.physical_offset).properties)
    assert stored["INNER_MULTI_DISPATCH"] == names
    assert "INNER_MULTI_QUEUE_OFFSET" not in stored
    assert store.queue(A, 0).max_offset == 1
    store.close()
    (tmp_path / "store" / "lightqueue" / "units.db").unlink()
    again = open_store(tmp_path / "store", enable_lmq=True)
    assert again.queue(A, 0).max_offset == 1
    again.close()
