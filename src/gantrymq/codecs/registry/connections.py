"""`RegistryHttp` sends HTTP requests to a schema registry, with limits for the time and the size of a response."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from _thread import start_new_thread
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from gantrymq.background.loop_thread import LoopThread
from gantrymq.codecs.registry.settings import RegistrySettings
from gantrymq.errors import ConfigError

if TYPE_CHECKING:
    import httpx

#: The limit for the size of a response, in bytes. Registries store a schema as a message of at most some MiB.
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryResponse(NamedTuple):
    status: int
    #: The reason phrase of the status.
    reason: str
    location: str
    body: bytes


class ResponseTooLarge(Exception):
    """Raised if a response has more than MAX_RESPONSE_BYTES."""


class RegistryHttp:
    """The connections of one SchemaRegistry.

    Requests run on a separate event loop, where a timeout can cancel a request at any point, unlike with a blocking
    socket.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        import httpx

        token, user_info = settings.token, settings.user_info
        user, _, password = (user_info or "").partition(":")
        # The encoding is `identity`, because the size of a compressed response is unknown until it is decompressed.
        headers = {
            "accept": f"{_MEDIA_TYPE}, application/json",
            "accept-encoding": "identity",
            "content-type": _MEDIA_TYPE,
        }
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        auth = None if user_info is None else (user, password)
        self._timeout_s = settings.request_timeout_s
        self._client = httpx.AsyncClient(auth=auth, headers=headers, verify=_tls(settings), timeout=self._timeout_s)
        self._loop = LoopThread("schema registry")
        self._loop.start()
        # A finalizer, because no caller closes the decoder of a task, which is garbage collected. It must not wait:
        # the collection can begin in any thread, also in one with a lock that the loop needs, such as an import lock.
        self._finalizer = weakref.finalize(self, _end_later, self._loop, self._client)

    def close(self) -> None:
        """Closes the connections, and ends the requests in progress. Can be called in any thread."""
        if self._finalizer.detach() is not None:
            _end(self._loop, self._client)

    def request(self, method: str, url: str, parameters: Mapping[str, str], body: Any) -> RegistryResponse:
        """Sends a request and returns the response. Can be called in any thread.

        Raises httpx.TransportError, httpx.InvalidURL, TimeoutError and ResponseTooLarge. If `close` ends the request,
        raises CancelledError or ThreadDied.
        """
        return self._loop.submit(_request(self._client, self._timeout_s, method, url, parameters, body)).result()


async def _request(
    client: httpx.AsyncClient, timeout_s: float, method: str, url: str, parameters: Mapping[str, str], body: Any
) -> RegistryResponse:
    async with (
        asyncio.timeout(timeout_s),
        client.stream(method, url, params=parameters, json=body) as response,
    ):
        parts, size = list[bytes](), 0
        async for part in response.aiter_raw():
            parts.append(part)
            if (size := size + len(part)) > MAX_RESPONSE_BYTES:
                raise ResponseTooLarge
        location = response.headers.get("location", "")
        return RegistryResponse(response.status_code, response.reason_phrase, location, b"".join(parts))


def _end(loop: LoopThread, client: httpx.AsyncClient) -> None:
    if loop.is_alive:
        loop.submit(client.aclose()).result()
    loop.stop()


def _end_later(loop: LoopThread, client: httpx.AsyncClient) -> None:
    # At the end of the process no thread can start. The system closes the connections.
    with suppress(RuntimeError):
        start_new_thread(_end, (loop, client))


def _tls(settings: RegistrySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.authorities)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except OSError as e:
        raise ConfigError(f"{settings.names.tls}: can't be used: {e}") from e
    return context
