"""Tests that the documentation site builds without a warning and makes no request to another host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import gantrymq
import gantrymq.codecs

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
CONFIGURATIONS = {"en": "mkdocs.yml", "zh": "mkdocs.zh.yml"}
#: Elements that a browser loads automatically. A link that a reader must click is not a request.
LOADED = {"script", "link", "img", "iframe", "source", "video", "audio", "object", "embed", "track", "input"}
ANOTHER_HOST = re.compile(r"^(https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(url\(|@import)\s*['\"]?(https?:)?//")


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site in one language and returns its directory."""
    directory = tmp_path_factory.mktemp(request.param)
    command = ["-m", "mkdocs", "build", "--strict", "-q", "-f", CONFIGURATIONS[request.param]]
    done = subprocess.run(
        [sys.executable, *command, "--site-dir", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return directory


class Loaded(HTMLParser):
    """Collects the addresses and styles that a browser loads for a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.text = page.read_text(encoding="utf-8")
        self.addresses: list[str] = []
        self.styles = ""
        self._in_style = False
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        given = dict(attrs)
        self.styles += given.get("style") or ""
        # A browser does not load the page in the other language until a reader opens it.
        if tag in LOADED and given.get("rel") not in ("alternate", "canonical", "next", "prev"):
            self.addresses += [
                given[name] or "" for name in ("src", "href", "srcset", "data", "poster") if name in given
            ]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles += data


def test_no_page_asks_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 2
    for page in pages:
        loaded = Loaded(page)
        assert loaded.addresses, page
        assert not [address for address in loaded.addresses if ANOTHER_HOST.match(address)], page
        assert not IN_STYLE.search(loaded.styles), page
        # The theme's script fetches code or data for these: diagrams, and a repository's statistics.
        assert 'class="mermaid"' not in loaded.text
        assert 'data-md-component="source"' not in loaded.text
    for style in site.rglob("*.css"):
        assert not IN_STYLE.search(style.read_text(encoding="utf-8")), style


def test_what_a_page_loads_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            # The server returns this page for any missing path, so its links start at the root.
            continue
        for address in Loaded(page).addresses:
            path = address.partition("#")[0].partition("?")[0]
            assert path.startswith("data:") or (page.parent / path).exists(), (page, address)


def test_the_search_is_local_and_has_all_pages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    known = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert known == {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    home = (site / "index.html").read_text(encoding="utf-8")
    configuration = re.search(r'<script id="__config" type="application/json">(.*?)</script>', home)
    assert configuration
    assert (site / json.loads(configuration[1])["search"]).exists()


@pytest.mark.skipif(shutil.which("node") is None, reason="the search is JavaScript; node runs it")
def test_the_search_finds_what_is_there(site: Path) -> None:
    is_chinese = "教程" in (site / "index.html").read_text(encoding="utf-8")
    expected = {"SYNC_FLUSH": "broker.html", "select_by_hash": "client.html", "StatefulSet": "deployment.html"}
    # Words of Kafka's users.
    expected |= {"bootstrap.servers": "client.html", "KRaft": "controller.html", "retention.ms": "store.html"}
    expected |= {"DLT": "retries.html", "min.insync.replicas": "replication.html"}
    expected |= {"延时消息": "client.html"} if is_chinese else {"delay level": "broker.html"}
    done = subprocess.run(
        ["node", str(Path(__file__).parent / "search_worker.js"), str(site), *expected],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (word, page), line in zip(expected.items(), done.stdout.splitlines(), strict=True):
        assert page in json.loads(line), word


def test_pages_with_synonyms_exist() -> None:
    from search_synonyms import SYNONYMS

    assert not [page for page in SYNONYMS if not (ROOT / "docs" / page).exists()]


def test_the_reference_has_all_that_can_be_imported(site: Path) -> None:
    reference = [*site.glob("reference/api/*.html"), site / "reference" / "errors.html"]
    pages = "".join(page.read_text(encoding="utf-8") for page in reference)
    for name in (*gantrymq.__all__, *gantrymq.codecs.__all__):
        # Constants are explained in the chapters. Everything else has an entry or a mention in the reference.
        assert f'.{name}"' in pages or f"<code>{name}</code>" in pages or name in ("CONTENT_TYPE", "MessageOptions"), (
            name
        )
