"""Finding the NameServers by HTTP: a page that says HOST:PORT;HOST:PORT (common/namesrv/DefaultTopAddressing)."""

from __future__ import annotations

import asyncio
import urllib.request
from http.client import HTTPException

from gantrymq.errors import ConnectFailed
from gantrymq.remoting.address import parse_address

#: How often the page is asked again, in seconds.
POLL_INTERVAL_S = 120.0
TIMEOUT_S = 3.0
#: A page is one line; nobody has so many NameServers.
MAX_PAGE_BYTES = 64 * 1024


def is_discovery_url(name_servers: str) -> bool:
    """Whether a client was given a page's URL in place of the NameServers' addresses."""
    return name_servers.startswith(("http://", "https://"))


def discovery_url(domain: str, subgroup: str = "nsaddr") -> str:
    """The page of Java's `rocketmq.namesrv.domain` and `rocketmq.namesrv.domain.subgroup`; port 8080 without one."""
    host = domain if ":" in domain else f"{domain}:8080"
    return f"http://{host}/rocketmq/{subgroup}"


def split_addresses(text: str) -> list[str]:
    """The addresses of "HOST:PORT;HOST:PORT"."""
    return [address.strip() for address in text.split(";") if address.strip()]


def parse_page(page: str) -> list[str]:
    """The addresses in a page's first line. Raises ValueError when there is none, or something else."""
    lines = page.split()
    addresses = split_addresses(lines[0]) if lines else []
    if not addresses:
        raise ValueError("the page names no NameServer")
    for address in addresses:
        parse_address(address)
    return addresses


async def fetch_name_servers(url: str) -> list[str]:
    """The addresses that the page at `url` names. Raises ConnectFailed."""
    try:
        return parse_page(await asyncio.to_thread(_get, url))
    except (OSError, ValueError, HTTPException) as e:
        # URLError, HTTPError and TimeoutError are OSErrors.
        raise ConnectFailed(f"no NameServer addresses from {url}: {e}", url) from e


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        if response.status != 200:
            raise OSError(f"it answers {response.status}")
        return str(response.read(MAX_PAGE_BYTES).decode("utf-8", "replace"))
