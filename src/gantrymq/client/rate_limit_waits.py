"""Waits of pulls and pops whose rate limit is exceeded."""

from __future__ import annotations

import asyncio

from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.refusals import retry_after_ms
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import monotonic


async def invoke_within_limits(
    remoting: RemotingClient, address: str, request: RemotingCommand, timeout_ms: int, *, wait_ms: int
) -> RemotingCommand:
    """Sends `request` and returns the response. While a rate limit is exceeded, waits and repeats the request.

    All attempts and waits share `timeout_ms`, and the waits end after `wait_ms`. If the server demands a longer wait,
    sleeps for the rest of `wait_ms` and returns the refusal. Raises a RemotingError.
    """
    began = monotonic()
    waits_end = began + wait_ms / 1000
    left_ms = timeout_ms
    while True:
        response = await remoting.invoke(address, request, left_ms)
        # The fields of other responses are not decoded here.
        demanded_ms = retry_after_ms(response) if response.code == ResponseCode.FLOW_CONTROL else None
        if demanded_ms is None:
            return response
        left_s = waits_end - monotonic()
        if demanded_ms / 1000 >= left_s:
            # Callers repeat empty results at once.
            await asyncio.sleep(max(left_s, 0.0))
            return response
        await asyncio.sleep(demanded_ms / 1000)
        left_ms = max(1, timeout_ms - int((monotonic() - began) * 1000))
