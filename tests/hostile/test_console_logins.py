"""Password guessing with many simultaneous requests."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from console_target import console_under_attack


@pytest.mark.slow
async def test_many_guesses(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """From one address, only five guesses are compared with the password. The audit log has each of them."""
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        # The innocent visitor's login from the same address is not counted as a failure.
        codes: Counter[int] = Counter()
        async with httpx.AsyncClient(base_url=target.url, timeout=60) as attacker:
            token = re.search(r'name="csrf" value="([^"]+)"', (await attacker.get("/login")).text)
            assert token is not None
            form = {"name": "innocent", "csrf": token[1]}
            for _ in range(20):
                answers = await asyncio.gather(
                    *(attacker.post("/login", data=form | {"password": f"guess {n}"}) for n in range(50))
                )
                codes.update(answer.status_code for answer in answers)
        assert codes == {403: 5, 429: 995}
    lines = (tmp_path / "state" / "audit.log").read_text().splitlines()
    assert sum('"failed: ' in line for line in lines) == 5
    assert sum('"logged in"' in line for line in lines) == 1
