from __future__ import annotations

import resource

from gantrymq.store.open_files import raise_open_files_limit


def test_raised_as_far_as_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        limit = raise_open_files_limit()
        assert limit > 256 or before[1] <= 256
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, before[1])
        assert raise_open_files_limit() == limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
