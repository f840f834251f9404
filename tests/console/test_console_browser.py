"""The console in Debian's Chromium: pages with data, changes by clicks, live tail, languages, a phone.

The console and the browser are processes of their own. Without /usr/bin/chromium (`apt-get install chromium`), these
tests are skipped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import pytest
from browser_support import Watched, chromium, console, faults, needs_chromium, unlabelled
from playwright.async_api import Locator, Page
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.console.logins import hash_password
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.properties import TIMER_DELAY_MS
from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = [needs_chromium]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as cluster:
        yield cluster


async def load(cluster: EmbeddedCluster) -> None:
    """Creates topics, messages (some of them hostile), and a group with lag."""
    async with AdminClient(cluster.name_server) as admin:
        for topic in ("orders", "payments", "hostile"):
            await admin.ensure_topic(topic, queues=2)
    async with Producer(cluster.name_server, "loaders") as producer:
        for number in range(40):
            await producer.send(Message("orders", b'{"order": %d}' % number, keys=[f"order-{number}"], tags="new"))
        for body in (b"<script>alert(1)</script>", b"<img src=x onerror=alert(1)>", b"\x00\x01"):
            await producer.send(Message("hostile", body, tags="<b>", properties={"<i>": "<script>alert(2)</script>"}))
    seen: list[Any] = []

    async def consume(message: Message) -> None:
        seen.append(message)

    consumer = PushConsumer(cluster.name_server, "billing", consume, start_from="earliest")
    consumer.subscribe("orders")
    async with consumer:
        await until(lambda: len(seen) >= 40)
    async with Producer(cluster.name_server, "loaders") as producer:
        for number in range(5):
            await producer.send(Message("orders", b"late %d" % number))
        for number in range(3):
            await producer.send(Message("payments", b"remind %d" % number, delay_level=16 + number))
            await producer.send(Message("payments", b"due %d" % number, properties={TIMER_DELAY_MS: "3600000"}))
    async with AdminClient(cluster.name_server) as admin:
        # Like a query of Spark: it commits offsets, but is not a member.
        await admin.create_group(SubscriptionGroupConfig("lakehouse"), cluster="DefaultCluster")
        for address in cluster.brokers:
            await transport_of(admin).api.update_offset(address, "lakehouse", "orders", 0, 3)
        await admin.update_broker_config(cluster.brokers, {"popCkStayBufferTime": "0"})
    await make_dead_letters(cluster, "mourners", "hostile", 3)
    async with SimpleConsumer(cluster.name_server, "mailers") as poppers:
        poppers.subscribe("orders")

        async def popped() -> list[MessageExt]:
            return await poppers.receive(8, invisible_time=600, timeout=1)

        await until(popped)


async def make_dead_letters(cluster: EmbeddedCluster, group: str, topic: str, count: int) -> None:
    """Creates dead-letter messages: the group fails all messages of the topic without retries."""

    async def fail(message: Message) -> None:
        raise ValueError("no")

    consumer = PushConsumer(cluster.name_server, group, fail, start_from="earliest", max_reconsume_times=0)
    consumer.subscribe(topic)
    async with consumer, AdminClient(cluster.name_server) as admin:

        async def all_dead() -> bool:
            with suppress(ClientError, BrokerError):
                queues = (await admin.topic_stats(f"%DLQ%{group}")).offset_table.values()
                return sum(queue.max_offset for queue in queues) == count
            return False

        await until(all_dead)


COLOURS: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ARGUMENTS = {
    "topic": "?name=orders",
    "group": "?name=billing",
    "lite-group": "?name=billing",
    "messages": "?topic=orders",
    "message": "?topic=hostile&broker={broker}&queue={queue}&offset=0",
    "tail": "?topic=orders",
    "traces": "?id=0A",
    "dead-letter-messages": "?group=mourners",
    "history": "?span=15m",
    "rights": "?user=alice&resource=Topic:orders",
    "due": "?topic=payments",
    "search": "?q=orders",
}


@asynccontextmanager
async def consumer_of(cluster: EmbeddedCluster, arguments: dict[str, str]) -> AsyncIterator[None]:
    """Runs a consumer that has a page."""

    async def consume(message: Message) -> None:
        pass

    consumer = PushConsumer(cluster.name_server, "watchers", consume)
    consumer.subscribe("payments")
    async with consumer, AdminClient(cluster.name_server) as admin:

        async def connected() -> list[Any]:
            with suppress(ClientError, BrokerError):
                return (await admin.consumer_connection("watchers")).connection_set
            return []

        (one,) = await until(connected)
        arguments["member"] = "?" + urlencode({"group": "watchers", "client_id": one.client_id})
        yield


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_page(cluster: EmbeddedCluster) -> None:
    await load(cluster)
    async with AdminClient(cluster.name_server) as admin:
        stats = await admin.topic_stats("hostile")
    place = next(queue for queue, offsets in sorted(stats.offset_table.items()) if offsets.max_offset)
    arguments = {key: value.format(broker=place.broker_name, queue=place.queue_id) for key, value in ARGUMENTS.items()}
    arguments["broker"] = f"?address={cluster.brokers[0]}"
    async with consumer_of(cluster, arguments), console(cluster) as address, chromium() as browser:
        looks: tuple[tuple[str, tuple[int, int], Literal["light", "dark"]], ...] = (
            ("en-GB", (1280, 900), "dark"),
            ("zh-CN", (390, 800), "light"),
        )
        for language, size, colours in looks:
            context = await browser.new_context(
                locale=language, viewport={"width": size[0], "height": size[1]}, color_scheme=colours
            )
            watched = Watched(await context.new_page(), address)
            page = watched.page
            for one in PAGES:
                await page.goto(f"{address}/{one.name}{arguments.get(one.name, '')}")
                if one.name in ("topics", "groups", "streams", "dead-letters"):
                    # The data may still be gathered; the page then updates itself.
                    await page.wait_for_selector("table")
                assert await page.evaluate("document.documentElement.lang") == language.replace("-GB", "")
                assert await unlabelled(page) == [], one.name
                assert await page.evaluate("document.body.scrollWidth <= window.innerWidth"), one.name
                assert await faults(page) == [], one.name
                assert await page.evaluate("document.body.scrollWidth <= window.innerWidth"), f"{one.name}, forms open"
            assert watched.problems == []
            await context.close()


@pytest.mark.slow
async def test_changes_by_clicking(cluster: EmbeddedCluster) -> None:
    async with console(cluster) as address, chromium() as browser, AdminClient(cluster.name_server) as admin:
        watched = Watched(await browser.new_page(), address)
        page = watched.page
        await page.goto(f"{address}/topics")
        await page.get_by_role("button", name="Create a topic").click()
        await page.get_by_label("Name", exact=True).fill("clicked")
        await page.get_by_label("Queues on each broker").fill("3")
        await page.get_by_role("button", name="Create", exact=True).click()
        await page.wait_for_url("**/topic?name=clicked")
        await page.get_by_text("topic clicked is on 2 brokers").wait_for()
        assert (await admin.topic_config(cluster.brokers[1], "clicked")).write_queue_nums == 3
        # With the keyboard: the dialog takes the focus, and Escape closes it.
        send = page.get_by_role("button", name="Send a message", exact=True)
        await send.focus()
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "send"
        await page.keyboard.press("Escape")
        assert not await page.get_by_role("heading", name="Send a message to topic clicked?").is_visible()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.type("typed")
        await page.get_by_role("button", name="Send", exact=True).click()
        await page.get_by_text("is stored in queue").wait_for()
        assert await page.locator("td.text").inner_text() == "typed"
        await page.get_by_role("button", name="Delete", exact=True).click()
        await page.get_by_role("heading", name="Delete topic clicked?").wait_for()
        await page.get_by_label("Type its name").fill("clicked")
        await page.get_by_role("button", name="Delete topic").click()
        await page.get_by_text("topic clicked is deleted from 2 brokers").wait_for()
        assert "clicked" not in await admin.topic_list()
        await page.goto(f"{address}/groups")
        await page.get_by_role("button", name="Create a group").click()
        await page.get_by_label("Name", exact=True).fill("clickers")
        await page.get_by_label("Maximum retries").fill("3")
        await page.get_by_role("button", name="Create", exact=True).click()
        await page.get_by_text("group clickers is on 2 brokers").wait_for()
        config = await admin.group_config(cluster.brokers[1], "clickers")
        assert config is not None
        assert config.retry_max_times == 3
        await page.goto(f"{address}/broker?address={cluster.brokers[0]}")
        await page.get_by_role("button", name="Change a key").click()
        await page.get_by_label("Key", exact=True).fill("maxMessageSize")
        await page.get_by_label("Value", exact=True).fill("3145728")
        await page.get_by_role("button", name="Change", exact=True).click()
        await page.get_by_text(f"maxMessageSize=3145728 on broker {cluster.brokers[0]}").wait_for()
        assert (await admin.broker_config(cluster.brokers[0]))["maxMessageSize"] == "3145728"
        assert watched.problems == []
        # With the keyboard only: the first link skips the navigation.
        await page.goto(f"{address}/overview")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"


@pytest.mark.slow
async def test_finding_a_message(cluster: EmbeddedCluster) -> None:
    """With the `/` key and the search, then by key in the topic. The message opens in place, and closes again."""
    async with AdminClient(cluster.name_server) as admin, Producer(cluster.name_server, "finders") as producer:
        await admin.ensure_topic("findable", queues=1)
        for number in range(3):
            await producer.send(Message("findable", b'{"number": %d}' % number, keys=[f"found-{number}"]))
    async with console(cluster) as address, chromium() as browser:
        context = await browser.new_context(viewport={"width": 390, "height": 800}, timezone_id="Asia/Kolkata")
        watched = Watched(await context.new_page(), address)
        page = watched.page
        await page.goto(f"{address}/overview")
        await page.keyboard.press("/")
        await page.keyboard.type("findab")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="findable", exact=True).click()
        await page.get_by_label("Key", exact=True).fill("found-1")
        await page.get_by_role("button", name="Show").click()
        row = page.locator("tbody tr")
        assert await row.count() == 1
        time = page.locator("a[data-open]")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+05:30", await time.inner_text())
        await time.click()
        await page.locator("tr.opened").get_by_text('"number": 1').first.wait_for()
        assert "/topic?" in page.url
        assert await unlabelled(page) == []
        await time.click()
        assert await page.locator("tr.opened").count() == 0
        # On a phone, a button opens the navigation.
        assert not await page.get_by_role("link", name="Replicas").is_visible()
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name="Replicas").click()
        await page.wait_for_url("**/replicas")
        assert watched.problems == []


class Visit:
    """A visitor who starts at the overview, and the number of clicks."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self._address = address
        self._clicks = 0

    async def begin(self) -> None:
        await self.page.goto(f"{self._address}/overview")
        self._clicks = 0

    async def click(self, where: Locator) -> None:
        await where.click()
        self._clicks += 1

    def assert_short(self) -> None:
        assert self._clicks <= 4


@pytest.mark.slow
async def test_a_first_visit(cluster: EmbeddedCluster) -> None:
    """Each answer takes at most four clicks: why a group has lag, its dead letters resent, a message by its key."""
    async with AdminClient(cluster.name_server) as admin, Producer(cluster.name_server, "visited") as producer:
        for topic in ("invoices", "returns"):
            await admin.ensure_topic(topic, queues=1)
        # The overview lists the groups with the most lag and dead letters: more than those of the other tests have.
        for number in range(60):
            await producer.send(Message("invoices", b"invoice %d" % number, keys=[f"invoice-{number}"]))
            await producer.send(Message("returns", b"return %d" % number))
    await make_dead_letters(cluster, "refunds", "returns", 60)
    is_stuck = asyncio.Event()
    seen: set[bytes] = set()

    async def wait_for_the_bank(message: Message) -> None:
        if message.body != b"invoice 0":
            is_stuck.set()
            await asyncio.Event().wait()

    async def refund(message: Message) -> None:
        seen.add(message.body)

    consumer = PushConsumer(cluster.name_server, "payers", wait_for_the_bank, start_from="earliest")
    consumer.subscribe("invoices")
    refunds = PushConsumer(cluster.name_server, "refunds", refund)
    refunds.subscribe("returns")
    async with consumer, refunds, console(cluster) as address, chromium() as browser:
        await is_stuck.wait()
        watched = Watched(await browser.new_page(), address)
        page = watched.page
        page.set_default_timeout(60_000)
        visit = Visit(page, address)

        await visit.begin()
        await visit.click(page.get_by_role("link", name="payers", exact=True))
        await page.wait_for_url("**/group?name=payers")
        await visit.click(page.locator("a[href*=client_id]"))
        await page.get_by_text("in wait_for_the_bank").wait_for()
        visit.assert_short()

        await visit.begin()
        await visit.click(page.get_by_role("link", name="refunds Dead letters"))
        await page.wait_for_url("**/dead-letter-messages?group=refunds")
        await visit.click(page.get_by_role("button", name="Resend all that the filter finds"))
        await visit.click(page.get_by_role("button", name="Resend", exact=True))
        await page.get_by_text("60 dead letters resent, 0 skipped").wait_for()
        await until(lambda: len(seen) == 60)
        visit.assert_short()

        await visit.begin()
        await visit.click(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Topics", exact=True))
        await visit.click(page.get_by_role("link", name="invoices", exact=True))
        await page.get_by_label("Key", exact=True).fill("invoice-7")
        await visit.click(page.get_by_role("button", name="Show"))
        await visit.click(page.locator("a[data-open]"))
        await page.locator("tr.opened").get_by_text("invoice 7").first.wait_for()
        visit.assert_short()
        assert watched.problems == []


@pytest.mark.slow
async def test_dead_letters_page_by_page(cluster: EmbeddedCluster) -> None:
    """The next page continues the list. A dead letter opens in place, or the reason why it cannot."""
    async with AdminClient(cluster.name_server) as admin, Producer(cluster.name_server, "paged") as producer:
        await admin.ensure_topic("paged", queues=1)
        for number in range(52):
            await producer.send(Message("paged", b"paged %d" % number))
    await make_dead_letters(cluster, "pagers", "paged", 52)
    async with console(cluster) as address, chromium() as browser:
        watched = Watched(await browser.new_page(), address)
        page = watched.page
        await page.goto(f"{address}/dead-letter-messages?group=pagers")
        bodies = page.locator("td.text")
        first = await bodies.all_inner_texts()
        await page.get_by_role("link", name="Next").click()
        await page.wait_for_url("**/dead-letter-messages?*token=*")
        second = await bodies.all_inner_texts()
        assert (len(first), len(second)) == (50, 2)
        assert {*first, *second} == {f"paged {number}" for number in range(52)}
        assert await page.get_by_role("link", name="Next").count() == 0
        links = page.locator("a[data-open]")
        await links.nth(0).click()
        await page.locator("tr.opened").get_by_text(second[0]).first.wait_for()
        # The message is gone by the time it is opened.
        await links.nth(1).evaluate("link => { link.href = link.href.replace(/offset=\\d+/, 'offset=999999'); }")
        await links.nth(1).click()
        await page.locator("tr.opened .problem").wait_for()
        assert "/dead-letter-messages?" in page.url
        assert await faults(page) == []
        # The response of the missing message has an error status, which Chromium logs.
        assert [one for one in watched.problems if "status of 502" not in one] == []


@pytest.mark.slow
async def test_dead_letters_by_clicking(cluster: EmbeddedCluster) -> None:
    """Resends two selected messages, then all that a filter finds. The group receives all of them again."""
    async with AdminClient(cluster.name_server) as admin, Producer(cluster.name_server, "writers") as producer:
        await admin.ensure_topic("letters", queues=1)
        for number in range(4):
            await producer.send(Message("letters", b"letter %d" % number, tags="odd" if number % 2 else "even"))
    await make_dead_letters(cluster, "readers", "letters", 4)
    seen: list[bytes] = []

    async def consume(message: Message) -> None:
        seen.append(message.body)

    consumer = PushConsumer(cluster.name_server, "readers", consume)
    consumer.subscribe("letters")
    async with consumer, console(cluster) as address, chromium() as browser:
        watched = Watched(await browser.new_page(), address)
        page = watched.page
        await page.goto(f"{address}/dead-letters")
        await page.get_by_role("link", name="readers", exact=True).click()
        await page.get_by_label("Key, tag or body contains").fill("even")
        await page.get_by_role("button", name="Show").click()
        await page.wait_for_url("**/dead-letter-messages?*search=even*")
        assert await page.locator("tbody tr").count() == 2
        await page.get_by_label("Select all on this page").check()
        await page.get_by_role("button", name="Resend selected").click()
        await page.get_by_role("heading", name="Resend the selected dead letters of group readers?").wait_for()
        await page.get_by_role("button", name="Resend", exact=True).click()
        await page.wait_for_url("**/operations")
        await page.get_by_text("2 dead letters resent, 0 skipped").wait_for()
        await until(lambda: sorted(seen) == [b"letter 0", b"letter 2"])
        await page.goto(f"{address}/dead-letter-messages?group=readers&search=odd")
        await page.get_by_role("button", name="Resend all that the filter finds").click()
        await page.get_by_role("button", name="Resend", exact=True).click()
        await page.wait_for_url("**/operations")
        await page.get_by_text("2 dead letters resent, 2 skipped").wait_for()
        await until(lambda: sorted(seen) == [b"letter %d" % number for number in range(4)])
        assert await faults(page) == []
        assert watched.problems == []


@pytest.mark.slow
async def test_live_tail_under_load(cluster: EmbeddedCluster) -> None:
    """More than 5,000 messages per second arrive in batches.

    The page shows some of them, and the number of omitted ones.
    """
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("fast", queues=4)
    async with console(cluster) as address, chromium() as browser:
        watched = Watched(await browser.new_page(), address)
        page = watched.page
        await page.goto(f"{address}/tail?topic=fast")
        stop = asyncio.Event()

        async def send() -> int:
            sent = 0
            async with Producer(cluster.name_server, "fast") as producer:
                while not stop.is_set():
                    batches = [[Message("fast", b"<b>%d</b>" % (sent + n)) for n in range(100)] for _ in range(4)]
                    await asyncio.gather(*(producer.send_batch(batch) for batch in batches))
                    sent += 400
            return sent

        sending = asyncio.ensure_future(send())
        try:
            await page.get_by_text(re.compile(r"skipped: [\d,]{6,}")).wait_for(timeout=60_000)
            assert 20 <= await page.locator("#tail tbody tr").count() <= 200
            assert await page.locator("#tail b").count() == 0
        finally:
            stop.set()
            assert await sending > 1000
        assert watched.problems == []


@pytest.mark.slow
async def test_login_in_a_browser(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"vic:viewer:{hash_password('vicpass')}\n")
    options = ("--login", "file", "--users", str(tmp_path / "users"))
    async with console(cluster, *options) as address, chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{address}/topics")
        await page.wait_for_url("**/login?next=/topics")
        await page.get_by_label("Name").fill("vic")
        await page.get_by_label("Password").fill("wrong")
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_text("wrong name or password").wait_for()
        for colours in COLOURS:
            await page.emulate_media(color_scheme=colours)
            assert await faults(page) == []
        await page.get_by_label("Name").fill("vic")
        await page.get_by_label("Password").fill("vicpass")
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url("**/topics")
        assert await page.get_by_role("button", name="Create a topic").count() == 0
        await page.goto(f"{address}/nowhere")
        for colours in COLOURS:
            await page.emulate_media(color_scheme=colours)
            assert await faults(page) == []
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Log out").click()
        await page.wait_for_url("**/login?next=**")
