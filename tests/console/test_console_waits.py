"""The time for which pages wait for queries that take long, if older values are cached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from virtual_time import run_in_virtual_time

from gantrymq.console import cached_value
from gantrymq.console.cluster_view import (
    ClusterView,
    DeadLetterStats,
    Groups,
    Servers,
    TopicFigures,
    Topics,
    TopicSeen,
)
from gantrymq.console.pages import arguments_of
from gantrymq.console.queries import topics as topics_page
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.request_limits import RequestLimits
from gantrymq.console.settings import Settings
from gantrymq.protocol.bodies.route import ClusterInfo


class HangingView(ClusterView):
    """A cluster of one topic without brokers. The queries return at once until `is_hung`, and never after it."""

    is_hung = False

    async def _answer(self, value: Any) -> Any:
        if self.is_hung:
            await asyncio.Event().wait()
        return value

    async def _gather_servers(self) -> Servers:
        return await self._answer(Servers(ClusterInfo(), {}, []))

    async def _gather_topics(self) -> Topics:
        return await self._answer(Topics({"orders": TopicSeen("NORMAL", brokers=["broker-a"])}, []))

    async def _gather_groups(self) -> Groups:
        return await self._answer(Groups())

    async def _gather_dead_letter_stats(self) -> DeadLetterStats:
        return await self._answer(DeadLetterStats({}, []))

    async def _gather_topic_figures(self, name: str) -> TopicFigures:
        return await self._answer(TopicFigures(1, 0.0, 0, None, []))

    async def _gather_retention(self) -> dict[str, int]:
        return await self._answer({"broker-a": 72})

    async def _gather_findings(self) -> Any:
        return await self._answer([])


@pytest.mark.parametrize(
    ("name", "arguments", "most_s"),
    [
        ("overview", {}, 0.1),
        ("topics", {}, 0.15),
        ("groups", {}, 0.1),
        ("streams", {}, 0.1),
        ("dead-letters", {}, 0.1),
        ("search", {"q": "orders"}, 0.1),
    ],
)
def test_old_values_are_shown_soon(
    name: str, arguments: dict[str, str], most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits for several values are not added up."""
    (page,) = [page for page in PAGES if page.name == name]
    given = arguments_of(page.arguments, arguments)

    async def load() -> float:
        loop = asyncio.get_running_loop()
        for module in (cached_value, topics_page):
            monkeypatch.setattr(module, "monotonic", loop.time)
        view = HangingView(Settings("127.0.0.1:1"), RequestLimits(1), None)
        await asyncio.sleep(1)
        first = await page.query(view, given)
        await asyncio.sleep(3600)
        view.is_hung = True
        began = loop.time()
        assert await page.query(view, given) == first
        took_s = loop.time() - began
        await view.close()
        return took_s

    assert run_in_virtual_time(load()) == pytest.approx(most_s)


@pytest.mark.parametrize("name", ["dead-letters", "streams"])
def test_first_values_that_never_arrive(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page loads without its table. Its wait does not include the timeout of the NameServers."""
    (page,) = [page for page in PAGES if page.name == name]

    async def load() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(cached_value, "monotonic", loop.time)
        view = HangingView(Settings("127.0.0.1:1"), RequestLimits(1), None)
        view.is_hung = True
        began = loop.time()
        assert (await page.query(view, arguments_of(page.arguments, {}))).table is None
        took_s = loop.time() - began
        await view.close()
        return took_s

    assert run_in_virtual_time(load()) == pytest.approx(cached_value.WAIT_S)
