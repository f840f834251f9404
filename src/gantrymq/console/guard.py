"""Guard: what holds for every request and every answer, whatever its page.

Headers keep a page from running what isn't the console's own script, should a text ever get into it as more than text.
A console without a login answers to this machine's names alone: a page of another site can point its own name here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
#: Forms are small; what is larger is not read.
MAX_BODY = 256 * 1024
#: A form comes whole in so long, s: one that doesn't holds a place.
BODY_WITHIN_S = 20.0


class Guard:
    """`names` are the hosts that it answers to; all with None."""

    def __init__(self, app: ASGIApp, names: Sequence[str] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        taken = 0
        is_whole = False
        until = asyncio.get_running_loop().time() + BODY_WITHIN_S

        async def bounded() -> Message:
            nonlocal taken, is_whole
            try:
                # After the body there is but the news that its sender is gone.
                async with asyncio.timeout_at(None if is_whole else until):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            taken += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            # The rest of a body that is too long counts as one that its sender gave up.
            return message if taken <= MAX_BODY else {"type": "http.disconnect"}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered[name] = value
                answered.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._names is not None and _name(headers.get("host", "")) not in self._names:
            refused = PlainTextResponse("this console answers to the names of its own machine alone\n", 421)
            await refused(scope, receive, with_headers)
            return
        await self._app(scope, bounded, with_headers)


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
