"""Requests of Spark and Arrow above a rate limit are repeated after the time that the broker demands."""

from __future__ import annotations

from gantrymq.arrow.name_server_client import NameServerClient
from gantrymq.errors import BrokerError, RefusalReason
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.client import RemotingClient


async def test_the_demanded_wait_replaces_the_growing_pause() -> None:
    """The pauses after 30 other errors would take 25 s, longer than the retry timeout."""
    remoting = RemotingClient()
    client = NameServerClient(["127.0.0.1:1"], remoting, 15_000)
    left = 30

    async def attempt() -> str:
        nonlocal left
        left -= 1
        if left:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY, "limited", "127.0.0.1:1", RefusalReason.RATE_LIMITED, retry_after_ms=1
            )
        return "stored"

    try:
        assert await client.retry(attempt) == "stored"
    finally:
        await remoting.close()
