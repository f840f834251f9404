"""Makes the screenshots of docs/console.md: the console of a shop's cluster, in light and dark mode.

    .venv/bin/python tools/console_screenshots.py [--directory docs/images] [--phone] [PAGE ...]

It starts a cluster with replicas and a controller, fills it, and writes an hour of figures into the console's history.
It needs Debian's packages chromium and, for the pages in Chinese, fonts-noto-cjk.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.console.history import SAMPLE_S, History
from gantrymq.console.logins import hash_password
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import TIMER_DELAY_MS
from gantrymq.testing.processes import ProcessCluster

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
#: Longest wait for a state of the cluster or of a page, s.
TIMEOUT_S = 180.0
DESKTOP, PHONE = (1280, 860), (390, 844)
#: Colours of a picture. Text stays sharp, and a picture takes some 40 KB.
COLOURS = 96
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
#: Pages of which docs/zh shows pictures.
IN_CHINESE = ("overview", "group", "topic")
CLUSTER = "DefaultCluster"
TOPICS = ("orders", "payments", "shipments", "stock", "notifications")
#: Messages of topic orders that group warehouse has not consumed.
BACKLOG = 900
#: Messages per second to each of orders and payments.
RATE = 8


async def until(what: str, check: Callable[[], Any]) -> Any:
    """Waits until `check` returns a true value."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(GantryError):
            if found := await check():
                return found
        await asyncio.sleep(0.2)
    raise TimeoutError(what)


async def masters(admin: AdminClient) -> list[str]:
    brokers = (await admin.cluster_info()).broker_addr_table
    return [one.broker_addrs[0] for _, one in sorted(brokers.items()) if 0 in one.broker_addrs]


def order(number: int) -> Message:
    body = {
        "order_id": f"A-{10000 + number}",
        "customer": f"c-{random.randrange(1000, 9999)}",
        "items": random.randrange(1, 6),
        "total": round(random.uniform(8, 240), 2),
        "currency": random.choice(("EUR", "EUR", "USD")),
    }
    tag = random.choice(("created", "created", "paid", "cancelled"))
    return Message("orders", json.dumps(body).encode(), keys=[f"A-{10000 + number}"], tags=tag)


def payment(number: int) -> Message:
    body = {"payment_id": f"P-{70000 + number}", "order_id": f"A-{10000 + number}", "method": "card"}
    return Message("payments", json.dumps(body).encode(), keys=[f"P-{70000 + number}"], tags="authorized")


class Shop:
    """The clients of the cluster: a producer with a steady rate, and consumers of which one is too slow."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        #: Unique key of a message whose producer and consumers write traces.
        self.traced = ""

    async def start(self, stack: AsyncExitStack) -> None:
        """Fills the cluster. The clients run until `stack` is closed."""
        admin = await stack.enter_async_context(AdminClient(self._name_server))
        for topic in TOPICS:
            await admin.ensure_topic(topic, queues=4)
        brokers = await masters(admin)
        await admin.update_broker_config(brokers, {"popCkStayBufferTime": "0"})
        producer = await stack.enter_async_context(Producer(self._name_server, "shop", linger=0.01))
        await asyncio.gather(*(producer.send(order(number)) for number in range(BACKLOG)))
        await self._add_pending(producer)
        await self._commit_offsets(admin, brokers)
        await self._add_users(admin, brokers)
        await self._add_dead_letters(admin, producer)
        await self._pop(producer)
        await self._consume("billing", "orders", self._bill, stack)
        await self._consume("warehouse", "orders", self._reserve_stock, stack)
        await self._consume("ledger", "payments", self._bill, stack)
        async with Producer(self._name_server, "checkout", enable_trace=True) as traced:
            self.traced = (await traced.send(payment(4242))).msg_id
        sending = asyncio.ensure_future(self._send(producer))
        stack.callback(sending.cancel)

    async def _consume(self, group: str, topic: str, handler: MessageHandler, stack: AsyncExitStack) -> None:
        async def start() -> bool:
            consumer = PushConsumer(
                self._name_server, group, handler, start_from="earliest", enable_trace=group == "ledger"
            )
            consumer.subscribe(topic)
            await stack.enter_async_context(consumer)
            return True

        await until(f"consumer of {group}", start)

    async def _send(self, producer: Producer) -> None:
        number = BACKLOG
        while True:
            number += 1
            await asyncio.gather(producer.send(order(number)), producer.send(payment(number)))
            await asyncio.sleep(1 / RATE)

    @staticmethod
    async def _bill(message: Message) -> None:
        await asyncio.sleep(0.004)

    @staticmethod
    async def _reserve_stock(message: Message) -> None:
        # Slower than the producer: twenty at once take 8 s.
        await asyncio.sleep(8.0)

    @staticmethod
    async def _add_pending(producer: Producer) -> None:
        """Sends delayed messages: payment reminders by level, and delivery notices at their own times."""
        for number in range(6):
            reminder = json.dumps({"order_id": f"A-{10000 + number}", "template": "payment-reminder"}).encode()
            await producer.send(
                Message("notifications", reminder, keys=[f"A-{10000 + number}"], delay_level=15 + number % 4)
            )
            notice = json.dumps({"order_id": f"A-{10100 + number}", "template": "delivery-today"}).encode()
            delay = {TIMER_DELAY_MS: str(3_600_000 * (number + 1))}
            await producer.send(Message("notifications", notice, keys=[f"A-{10100 + number}"], properties=delay))

    @staticmethod
    async def _commit_offsets(admin: AdminClient, brokers: Sequence[str]) -> None:
        """Commits offsets for groups without members, as Spark queries do."""
        for group, topic, offset in (("lakehouse-orders", "orders", 200), ("lakehouse-revenue", "orders", 190)):
            await admin.create_group(SubscriptionGroupConfig(group), cluster=CLUSTER)
            for address in brokers:
                for queue in range(4):
                    await transport_of(admin).api.update_offset(address, group, topic, queue, offset)

    @staticmethod
    async def _add_users(admin: AdminClient, brokers: Sequence[str]) -> None:
        for name, kind, entries in (
            ("admin", "Super", []),
            ("alice", "Normal", [("Topic:orders", ["Pub", "Sub"]), ("Group:billing", ["Sub"])]),
            ("warehouse", "Normal", [("Topic:orders", ["Sub"]), ("Group:warehouse", ["Sub"])]),
            ("lakehouse", "Normal", [("Topic:*", ["Sub"]), ("Group:lakehouse*", ["Sub"])]),
        ):
            await admin.create_user(brokers, UserInfo(name, "a-long-password", kind))
            if entries:
                rights = [PolicyEntryInfo(resource, actions, ["10.0.0.0/8"], "Allow") for resource, actions in entries]
                await admin.create_acl(brokers, AclInfo(f"User:{name}", [PolicyInfo("Custom", rights)]))

    async def _add_dead_letters(self, admin: AdminClient, producer: Producer) -> None:
        """Two groups fail messages without retries."""
        for group, topic, count in (("shipping-labels", "shipments", 14), ("stock-sync", "stock", 5)):
            for number in range(count):
                body = json.dumps({"order_id": f"A-{10000 + number}", "carrier": "post", "country": "??"}).encode()
                await producer.send(Message(topic, body, keys=[f"A-{10000 + number}"], tags="created"))

            async def fail(message: Message) -> None:
                raise ValueError("unknown country")

            consumer = PushConsumer(self._name_server, group, fail, start_from="earliest", max_reconsume_times=0)
            consumer.subscribe(topic)
            async with consumer:

                async def are_dead(group: str = group, count: int = count) -> bool:
                    queues = (await admin.topic_stats(f"%DLQ%{group}")).offset_table.values()
                    return sum(queue.max_offset for queue in queues) == count

                await until(f"dead letters of {group}", are_dead)

    async def _pop(self, producer: Producer) -> None:
        """Pops messages without an acknowledgement."""
        for number in range(12):
            await producer.send(Message("notifications", b'{"template": "welcome"}', keys=[f"c-{2000 + number}"]))
        async with SimpleConsumer(self._name_server, "mailer") as consumer:
            consumer.subscribe("notifications")
            await until("pops", lambda: consumer.receive(8, invisible_time=900, timeout=1))
            await consumer.receive(4, invisible_time=900, timeout=1)


async def write_history(directory: Path, used: float) -> None:
    """Writes an hour of samples: steady rates, a lag that grows in the second half, and a disk that fills to `used`."""
    history = History(directory)
    now = time.time()
    for back in range(3600 // SAMPLE_S, 0, -1):
        hour = 1 - back * SAMPLE_S / 3600
        rate = 2 * RATE * (1 + 0.2 * math.sin(hour * 9) + random.uniform(-0.06, 0.06))
        lag = BACKLOG * max(0.0, (hour - 0.45) / 0.55) ** 1.3 + random.uniform(0, 40)
        values = {"in": rate, "out": 1.8 * rate, "lag": lag, "disk": used - 0.02 * (1 - hour)}
        values |= {"group/warehouse/lag": lag, "group/warehouse/seconds": lag / RATE, "group/warehouse/tps": 2.5}
        for group in ("billing", "ledger"):
            values |= {f"group/{group}/lag": random.uniform(0, 9), f"group/{group}/tps": rate / 2}
        for broker, part in (("broker-a", 0.52), ("broker-b", 0.48)):
            values |= {f"broker/{broker}/in": part * rate, f"broker/{broker}/out": 1.8 * part * rate}
            values[f"broker/{broker}/disk"] = values["disk"]
        await history.add(now - back * SAMPLE_S, values)
    await history.close()


@asynccontextmanager
async def console(name_server: str, directory: Path, *options: str) -> AsyncIterator[str]:
    """Starts a console in its own process. Yields its address."""
    arguments = ("console", "-n", name_server, "--port", "0", "--dir", str(directory), *options)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gantrymq.cli", *arguments), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().rpartition(" ")[2].strip().rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def settle(page: Page) -> None:
    """Waits until the page has its data: charts are drawn, doctor has finished, no table is being gathered.

    Reloads a page that is incomplete because requests to brokers timed out.
    """

    async def is_complete() -> bool:
        if await page.locator(".note.warning").count():
            await page.reload()
        found: bool = await page.evaluate(
            """() => document.readyState === "complete" && !document.querySelector("[hx-trigger^=load]")
                && [...document.querySelectorAll("[data-series]")].every((one) => one.querySelector("canvas"))
                && !document.querySelector(".note.warning")
                && !/doctor/i.test([...document.querySelectorAll("p[role=status]")].map((one) => one.textContent))"""
        )
        return found

    await until(page.url, is_complete)


async def shoot(page: Page, path: Path) -> None:
    """Writes a screenshot as a PNG with a palette."""
    await page.mouse.move(0, 0)
    # Stacks and configurations have the paths of this checkout and of the temporary directory.
    await page.evaluate(
        """(paths) => {
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
                const text = paths.reduce((one, path) => one.replaceAll(path, "/srv/shop"), texts.currentNode.data);
                texts.currentNode.data = text.replace(/\\/tmp\\/tmp\\w+/g, "/srv/shop");
            }
        }""",
        [str(ROOT), sys.base_prefix],
    )
    shot = Image.open(io.BytesIO(await page.screenshot())).convert("RGB")
    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


class Pictures:
    """Opens pages in the browser, and writes their pictures to a directory."""

    def __init__(self, browser: Browser, address: str, directory: Path, wanted: Sequence[str]) -> None:
        self._browser = browser
        self._address = address
        self._directory = directory
        self._wanted = wanted

    async def take(
        self, pages: dict[str, str], language: str = "en-GB", suffix: str = "", size: tuple[int, int] = DESKTOP
    ) -> None:
        """Takes each page, {name: path}, in both colour schemes."""
        for scheme in SCHEMES:
            context = await self._browser.new_context(
                locale=language,
                timezone_id="UTC",
                viewport={"width": size[0], "height": size[1]},
                color_scheme=scheme,
                reduced_motion="reduce",
            )
            page = await context.new_page()
            for name, path in pages.items():
                if self._wanted and name not in self._wanted:
                    continue
                await page.goto(f"{self._address}/{path}")
                if name == "tail":
                    await page.locator("#tail tbody tr").nth(12).wait_for()
                if name == "operations" and scheme == "light":
                    await self._resend(page)
                await settle(page)
                end = "-dark" if scheme == "dark" else ""
                await shoot(page, self._directory / f"console-{name}{suffix}{end}.png")
            await context.close()

    async def _resend(self, page: Page) -> None:
        await page.goto(f"{self._address}/dead-letter-messages?group=stock-sync")
        await page.get_by_role("button", name="Resend all that the filter finds").click()
        await page.get_by_role("button", name="Resend", exact=True).click()
        await page.get_by_text("5 dead letters resent, 0 skipped").wait_for()


async def pages_of(admin: AdminClient, traced: str) -> dict[str, str]:
    """Returns the paths of the pages, by name."""
    broker = (await masters(admin))[0]
    stats = await admin.topic_stats("orders")
    place = next(queue for queue, offsets in sorted(stats.offset_table.items()) if offsets.max_offset)

    async def members() -> list[Any]:
        return (await admin.consumer_connection("warehouse")).connection_set

    member = (await until("members", members))[0].client_id
    arguments: dict[str, dict[str, str]] = {
        "topic": {"name": "orders"},
        "group": {"name": "warehouse"},
        "lite-group": {"name": "warehouse"},
        "messages": {"topic": "payments", "span": "1h"},
        "message": {"topic": "orders", "broker": place.broker_name, "queue": str(place.queue_id), "offset": "0"},
        "tail": {"topic": "orders"},
        "traces": {"id": traced},
        "dead-letter-messages": {"group": "shipping-labels"},
        "history": {"span": "1h"},
        "rights": {"user": "alice", "resource": "Topic:orders", "ip": "10.1.4.7"},
        "due": {"topic": "notifications"},
        "search": {"q": "order"},
        "broker": {"address": broker},
        "member": {"group": "warehouse", "client_id": member},
    }
    return {one.name: f"{one.name}?{urlencode(arguments.get(one.name, {}))}" for one in PAGES}


async def main(directory: Path, wanted: Sequence[str], is_phone: bool) -> None:
    random.seed(7)
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        properties = {"traceTopicEnable": "true"}
        cluster = stack.enter_context(
            ProcessCluster(root, brokers=2, replicas=2, controller=True, broker_properties=properties)
        )
        admin = await stack.enter_async_context(AdminClient(cluster.namesrv_addr))

        async def has_masters() -> bool:
            return len(await masters(admin)) == 2

        await until("two masters", has_masters)
        shop = Shop(cluster.namesrv_addr)
        await shop.start(stack)
        (root / "console").mkdir(mode=0o700)
        addresses = await masters(admin)

        async def is_steady() -> bool:
            """Returns whether the messages of the beginning are no longer in the rates."""
            rates = [(await admin.runtime_info(address))["putTps"].split()[0] for address in addresses]
            return sum(map(float, rates)) < 3 * RATE

        await until("a steady rate", is_steady)
        runtime = await admin.runtime_info(addresses[0])
        await write_history(root / "console", float(runtime["commitLogDiskRatio"]))
        address = await stack.enter_async_context(console(cluster.namesrv_addr, root / "console"))
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        stack.push_async_callback(browser.close)
        pages = await pages_of(admin, shop.traced)
        pictures = Pictures(browser, address, directory, wanted)
        if is_phone:
            await pictures.take(pages, size=PHONE, suffix="-390")
            return
        await pictures.take(pages)
        await pictures.take({"phone": "overview"}, "zh-CN", size=PHONE)
        await pictures.take({name: pages[name] for name in IN_CHINESE}, "zh-CN", ".zh")
        (root / "users").write_text(f"alice:admin:{hash_password('a-password')}\n")
        (root / "with-login").mkdir(mode=0o700)
        options = ("--login", "file", "--users", str(root / "users"))
        address = await stack.enter_async_context(console(cluster.namesrv_addr, root / "with-login", *options))
        await Pictures(browser, address, directory, wanted).take({"login": "login"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=IMAGES)
    parser.add_argument("--phone", action="store_true", help="at a width of 390 px, to look at them")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: all")
    given = parser.parse_args()
    # The handlers that fail would write their stacks.
    logging.disable(logging.CRITICAL)
    given.directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.directory, given.pages, given.phone))
