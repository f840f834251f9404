from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from scripted import ScriptedBroker, ScriptedNameServer, route_over, serving

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConnectFailed
from gantrymq.protocol.message import Message
from gantrymq.remoting.name_server_discovery import discovery_url, fetch_name_servers, parse_page, unit_url


class Page:
    """A web server with one page."""

    def __init__(self) -> None:
        self.text, self.status, self.asked = "", 200, 0
        self.path = ""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.asked += 1
                page.path = self.path
                self.send_response(page.status)
                self.end_headers()
                self.wfile.write(page.text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/rocketmq/nsaddr"


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    thread = threading.Thread(target=page.server.serve_forever, args=(0.01,))
    thread.start()
    yield page
    page.server.shutdown()
    thread.join()
    page.server.server_close()


def test_urls_are_those_of_java() -> None:
    assert discovery_url("jmenv.example") == "http://jmenv.example:8080/rocketmq/nsaddr"
    assert discovery_url("jmenv.example:80", "unit") == "http://jmenv.example:80/rocketmq/unit"
    assert unit_url("http://h/rocketmq/nsaddr", "") == "http://h/rocketmq/nsaddr"
    assert unit_url("http://h/rocketmq/nsaddr", "cell-1") == "http://h/rocketmq/nsaddr-cell-1?nofix=1"
    assert unit_url("http://h/rocketmq/nsaddr?a=b", "cell-1") == "http://h/rocketmq/nsaddr-cell-1?nofix=1&a=b"


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1;b:2\n", "  a:1;b:2;\r\nmore\r\n"])
def test_pages(text: str) -> None:
    assert parse_page(text) == ["a:1", "b:2"]


@pytest.mark.parametrize("text", ["", "\n", ";", "<html>", "a:1;b"])
def test_pages_without_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"NameServer|HOST:PORT"):
        parse_page(text)


async def test_failures_name_the_page(page: Page) -> None:
    page.status = 404
    with pytest.raises(ConnectFailed, match=page.url):
        await fetch_name_servers(page.url)
    page.status, page.text = 200, "sorry"
    with pytest.raises(ConnectFailed, match="HOST:PORT"):
        await fetch_name_servers(page.url)


async def test_a_producer_finds_its_name_servers(page: Page) -> None:
    broker = ScriptedBroker("broker")
    first, second = ScriptedNameServer({}), ScriptedNameServer({})
    async with serving([first, second, broker]):
        for name_server in (first, second):
            name_server.routes["topic"] = route_over({"broker": broker.address})
        page.text = first.address
        async with Producer(page.url, "producers") as producer:
            await producer.send(Message("topic", b"body"))
            assert first.asked == ["topic"]
            page.text = second.address
            await producer.client.routes.rediscover()
            await producer.client.routes.refresh("topic")
            assert second.asked == ["topic"]
            assert page.path == "/rocketmq/nsaddr"
            # The known addresses stay when the page is gone.
            page.status = 500
            with pytest.raises(ConnectFailed):
                await producer.client.routes.rediscover()
            assert producer.client.routes.name_servers == [second.address]


async def test_a_unit_has_its_own_page(page: Page) -> None:
    broker, name_server = ScriptedBroker("broker"), ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address})
        page.text = name_server.address
        async with Producer(page.url, "producers", unit_name="cell-1") as producer:
            await producer.send(Message("topic", b"body"))
            assert producer.client.client_id.endswith("@cell-1")
    assert page.path == "/rocketmq/nsaddr-cell-1?nofix=1"


async def test_a_page_that_fails_is_asked_again(page: Page) -> None:
    page.status = 500
    async with Producer(page.url, "producers") as producer:
        with pytest.raises(ConnectFailed, match=page.url):
            await producer.send(Message("topic", b"body"))
        broker, name_server = ScriptedBroker("broker"), ScriptedNameServer({})
        async with serving([name_server, broker]):
            name_server.routes["topic"] = route_over({"broker": broker.address})
            page.status, page.text = 200, name_server.address
            await producer.send(Message("topic", b"body"))
