"""Bits of sysFlag in a record and in a pull request (`MessageSysFlag`, `PullSysFlag`)."""

from __future__ import annotations

COMPRESSED = 1
MULTI_TAGS = 1 << 1

TRANSACTION_MASK = 3 << 2
TRANSACTION_PREPARED = 1 << 2
TRANSACTION_COMMIT = 2 << 2
TRANSACTION_ROLLBACK = 3 << 2

BORN_HOST_V6 = 1 << 4
STORE_HOST_V6 = 1 << 5
NEED_UNWRAP = 1 << 6
INNER_BATCH = 1 << 7

#: Bits 8 to 10: the compression type (`protocol.compression`).
COMPRESSION_SHIFT = 8
COMPRESSION_MASK = 7 << COMPRESSION_SHIFT

PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 1 << 1
PULL_SUBSCRIPTION = 1 << 2
PULL_CLASS_FILTER = 1 << 3
PULL_LITE = 1 << 4
