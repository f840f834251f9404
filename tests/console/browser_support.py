"""A browser for tests of the console: Debian's Chromium, with errors of a page and findings of axe-core."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantrymq.testing.embedded import EmbeddedCluster

CHROMIUM = Path("/usr/bin/chromium")

pytest.importorskip("playwright", reason="playwright isn't installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python isn't installed")
from axe_playwright_python.async_playwright import Axe  # noqa: E402
from playwright.async_api import Browser, Page, async_playwright  # noqa: E402

needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} isn't there: apt-get install chromium")


@asynccontextmanager
async def console(cluster: EmbeddedCluster, *options: str) -> AsyncIterator[str]:
    """Starts a console in its own process. Yields its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gantrymq.cli", "console", "-n", cluster.name_server, "--port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().rpartition(" ")[2].strip().rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """A page, and its problems: script errors, violations of the content security policy, requests to other hosts."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("console", lambda one: self.problems.append(one.text) if one.type == "error" else None)
        page.on("request", lambda one: None if one.url.startswith(address) else self.problems.append(one.url))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))


async def faults(page: Page) -> list[str]:
    """Returns axe-core's findings on the page with all forms open, as parts of the page. Stops updates of the page.

    First waits for transitions of colours: contrast during a transition is not that of the page.
    """
    await page.evaluate(
        """async () => {
            document.body.addEventListener("htmx:beforeSwap", (event) => { event.detail.shouldSwap = false; });
            for (const one of document.querySelectorAll("details")) one.open = true;
            for (const one of document.querySelectorAll(".dialog")) one.removeAttribute("popover");
            await Promise.allSettled(document.getAnimations().map((one) => one.finished));
        }"""
    )
    found = (await Axe().run(page)).response["violations"]
    return [f"{fault['id']} ({fault['impact']}): {node['html'][:200]}" for fault in found for node in fault["nodes"]]


async def unlabelled(page: Page) -> list[str]:
    """Returns problems for screen readers: fields, buttons and links without a name, tables without headings."""
    found: list[str] = await page.evaluate(
        """() => {
            const named = (e) => (e.getAttribute("aria-label") || e.textContent || "").trim()
                || (e.labels && e.labels.length) || e.type === "hidden";
            const bad = [...document.querySelectorAll("input, select, button, a")].filter((e) => !named(e));
            const tables = [...document.querySelectorAll("table")].filter((t) => !t.querySelector("th[scope]"));
            const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
            const twice = ids.filter((id, n) => ids.indexOf(id) !== n);
            return [...bad, ...tables].map((e) => e.outerHTML.slice(0, 120)).concat(twice,
                document.querySelectorAll("h1").length === 1 ? [] : ["not one h1"],
                document.documentElement.lang ? [] : ["no language"]);
        }"""
    )
    return found
