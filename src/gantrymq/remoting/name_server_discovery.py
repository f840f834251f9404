"""NameServer discovery over HTTP: a page that contains HOST:PORT;HOST:PORT (`DefaultTopAddressing`)."""

from __future__ import annotations

import asyncio

from gantrymq.errors import ConnectFailed
from gantrymq.remoting.address import parse_address

#: Interval of requests for the page, s.
POLL_INTERVAL_S = 120.0
TIMEOUT_S = 3.0
#: Largest page, in bytes. A real page has a single line.
MAX_PAGE_BYTES = 64 * 1024


def is_discovery_url(name_servers: str) -> bool:
    """Returns whether `name_servers` is the URL of a page instead of addresses."""
    return name_servers.startswith(("http://", "https://"))


def discovery_url(domain: str, subgroup: str = "nsaddr") -> str:
    """Returns the URL for Java's `rocketmq.namesrv.domain` and `rocketmq.namesrv.domain.subgroup`. Port: 8080."""
    host = domain if ":" in domain else f"{domain}:8080"
    return f"http://{host}/rocketmq/{subgroup}"


def unit_url(url: str, unit_name: str) -> str:
    """Returns the URL of a unit's page; `url` if the name is empty. Source: `DefaultTopAddressing.fetchNSAddr`."""
    if not unit_name:
        return url
    path, _, query = url.partition("?")
    return f"{path}-{unit_name}?nofix=1" + (f"&{query}" if query else "")


def split_addresses(text: str) -> list[str]:
    """Splits "HOST:PORT;HOST:PORT" into addresses."""
    return [address.strip() for address in text.split(";") if address.strip()]


def parse_page(page: str) -> list[str]:
    """Returns the addresses in the first line of a page. Raises ValueError if this line is empty or invalid."""
    lines = page.split()
    addresses = split_addresses(lines[0]) if lines else []
    if not addresses:
        raise ValueError("the page names no NameServer")
    for address in addresses:
        parse_address(address)
    return addresses


async def fetch_name_servers(url: str) -> list[str]:
    """Returns the addresses on the page at `url`. Raises ConnectFailed."""
    # Imported here, because few clients need it.
    from http.client import HTTPException

    try:
        return parse_page(await asyncio.to_thread(_get, url))
    except (OSError, ValueError, HTTPException) as e:
        # Includes URLError, HTTPError and TimeoutError, which are OSErrors.
        raise ConnectFailed(f"no NameServer addresses from {url}: {e}", url) from e


def _get(url: str) -> str:
    from urllib.request import urlopen

    with urlopen(url, timeout=TIMEOUT_S) as response:
        if response.status != 200:
            raise OSError(f"it answers {response.status}")
        return str(response.read(MAX_PAGE_BYTES).decode("utf-8", "replace"))
