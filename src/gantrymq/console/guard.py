"""Security checks of every request: response headers, host names and size limits.

The headers forbid all scripts but the console's own, in case a page contains a text as markup. Without a login, the
console accepts only the host names of its own machine, because another site could point its name to the console (DNS
rebinding).
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
#: Largest form, bytes.
MAX_BODY = 256 * 1024
#: Timeout to receive a form, s.
BODY_WITHIN_S = 20.0


class Guard:
    """Middleware for these checks. `names` are the accepted host names; None accepts all."""

    def __init__(self, app: ASGIApp, names: Sequence[str] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        received = 0
        is_whole = False
        until = asyncio.get_running_loop().time() + BODY_WITHIN_S

        async def bounded() -> Message:
            nonlocal received, is_whole
            try:
                # There is no timeout after the body: only a disconnect can follow.
                async with asyncio.timeout_at(None if is_whole else until):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            received += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            # A body that is too large has the same effect as a disconnect.
            return message if received <= MAX_BODY else {"type": "http.disconnect"}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered[name] = value
                answered.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._names is not None and _name(headers.get("host", "")) not in self._names:
            refused = PlainTextResponse(
                "without a login, this console answers only to the names of its own machine\n", 421
            )
            await refused(scope, receive, with_headers)
            return
        await self._app(scope, bounded, with_headers)


def _name(host: str) -> str:
    """Returns the name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
