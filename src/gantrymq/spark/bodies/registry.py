"""`SchemaRegistry`: a client of registries with Confluent's REST interface (Confluent, Karapace, Apicurio's ccompat).

The schema of an id never changes, so a process caches it. If the registry is unreachable, requests are repeated until
retryTimeoutMs. Then the read or write fails; it does not treat the bodies as corrupt. `UnknownIds` limits the requests
for ids that the registry doesn't have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from gantrymq.errors import ClientError, CodecError, ConfigError
from gantrymq.extras import missing
from gantrymq.spark.bodies.registry_http import (
    MAX_RESPONSE_BYTES,
    REQUEST_TIMEOUT_S,
    RegistryHttp,
    RegistryResponse,
    ResponseTooLarge,
)
from gantrymq.spark.bodies.registry_options import AUTHORITIES, SUBJECT, TOKEN, URL, USER_INFO, RegistryOptions

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
#: Largest number of schemas that a process caches. A worker usually needs a few.
MAX_CACHED = 1000
#: The time for which an id counts as unknown, in seconds. The id may be registered later.
UNKNOWN_FOR_S = 60.0
#: The number of unknown ids that can be requested without a pause, and the pause after each further id, in seconds.
FREE_MISSES = 100
MISS_PAUSE_S = 0.1
#: HTTP statuses after which a request is retried: too many requests, or a server or proxy that is not ready.
_PASSING = (429, 500, 502, 503, 504)


class Reference(msgspec.Struct, frozen=True):
    """A schema to which another schema refers by `name`, and its location in the registry."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True, rename={"kind": "schemaType", "text": "schema"}):
    """A schema from the registry. Without a type, the schema is Avro. Responses to a request by id have no `id`."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: int = 0


class _Id(msgspec.Struct):
    id: int


class _Problem(msgspec.Struct):
    message: str = ""


class UnknownIds:
    """Limits the requests for ids that the registry doesn't have. Times are in seconds.

    Corrupt bodies can have any ids. FREE_MISSES requests for unknown ids are free. After each further such request, no
    id outside the cache is requested for MISS_PAUSE_S. The pause begins with the response, so that a slow registry
    doesn't delay a task for long. This also limits the ids in memory to about 700.
    """

    def __init__(self) -> None:
        #: {id: time until which it counts as unknown}, in ascending order of the time.
        self._until: dict[int, float] = {}
        self._free = FREE_MISSES
        self._missed_at = 0.0

    def __len__(self) -> int:
        return len(self._until)

    def has(self, schema_id: int, now: float) -> bool:
        """Whether the id counts as unknown, because the registry lacked it within the last UNKNOWN_FOR_S."""
        return self._until.get(schema_id, now) > now

    def may_request(self, now: float) -> bool:
        """Whether another id that the registry may lack can be requested."""
        return self._free > 0 or now >= self._missed_at + MISS_PAUSE_S

    def add(self, schema_id: int, now: float) -> None:
        """Records an id that the registry doesn't have."""
        while self._until:
            first = next(iter(self._until))
            if self._until[first] > now:
                break
            del self._until[first]
        self._until[schema_id] = now + UNKNOWN_FOR_S
        self._free = max(0, self._free - 1)
        self._missed_at = now


class SchemaRegistry:
    """Sends requests to a schema registry. Not thread-safe.

    The methods raise ConfigError if an option is wrong, and ClientError if the registry doesn't respond.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        #: Created with the first request.
        self._connections: RegistryHttp | None = None
        self._unknown = UnknownIds()

    def close(self) -> None:
        """Closes the connections. Otherwise they are closed when this object is garbage collected."""
        if self._connections is not None:
            self._connections.close()

    def schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema | None:
        """Returns the schema with this id; None if the registry doesn't have it.

        If `serialized` is true, the text of a protobuf schema is a file descriptor in Base64. Raises CodecError if the
        id can't be requested at present, because too many other ids were unknown.
        """
        key = (self._options.urls, schema_id, serialized)
        if (known := _cache.get(key)) is None:
            now = time.monotonic()
            if self._unknown.has(schema_id, now):
                return None
            if not self._unknown.may_request(now):
                raise CodecError(
                    f"schema {schema_id} was not requested: the schema registry has none of many other ids that bodies "
                    "name, so requests for further ids are limited. Read the body again without these bodies"
                )
            parameters = {"format": "serialized"} if serialized else {}
            response = self._request("GET", f"/schemas/ids/{schema_id}", parameters)
            if isinstance(response, _Problem):
                self._unknown.add(schema_id, time.monotonic())
                return None
            known = _cached(key, self._decoded(response, RegisteredSchema))
        return known

    def subject_schema(self, subject: str, version: int | None) -> RegisteredSchema:
        """Returns the schema of a subject in this version; None means the latest version."""
        found = self._subject_schema(subject, version)
        if isinstance(found, _Problem):
            raise ConfigError(
                f"the schema registry has no {'schema' if version is None else f'version {version}'} of subject "
                f"{subject}: name another by option {SUBJECT}, or give the schema itself by bodySchema or "
                f"bodySchemaFile ({found.message})"
            )
        return found

    def _subject_schema(self, subject: str, version: int | None) -> RegisteredSchema | _Problem:
        response = self._request("GET", f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}")
        return response if isinstance(response, _Problem) else self._decoded(response, RegisteredSchema)

    def referenced(self, reference: Reference, *, serialized: bool = False) -> RegisteredSchema:
        """Returns the schema of a reference. Raises CodecError if the registry doesn't have it."""
        found = self._subject_schema(reference.subject, reference.version)
        if isinstance(found, _Problem):
            raise CodecError(
                f"the schema registry has no version {reference.version} of subject {reference.subject}, which another "
                f"schema refers to as {reference.name}: bring it back there, or register that other one anew "
                f"({found.message})"
            )
        again = self.schema(found.id, serialized=True) if serialized else found
        return found if again is None else again

    def id_of(self, subject: str, schema: RegisteredSchema, *, register: bool) -> int:
        """Returns the id of a schema under `subject`. If `register` is true, registers a missing schema.

        Raises ConfigError if the schema doesn't exist and `register` is false.
        """
        path = f"/subjects/{quote(subject, safe='')}{'/versions' if register else ''}"
        response = self._request("POST", path, body={"schema": schema.text, "schemaType": schema.kind})
        if isinstance(response, _Problem):
            raise ConfigError(
                f"the schema registry doesn't have this schema under subject {subject} ({response.message}): "
                "register it, or set option auto.register.schemas to true"
            )
        return self._decoded(response, _Id).id

    def _decoded(self, response: bytes, kind: type[T]) -> T:
        try:
            # Raises UnicodeDecodeError for text that is not UTF-8.
            return msgspec.json.decode(response, type=kind)
        except ValueError as e:
            raise self._is_none(e) from e

    def _is_none(self, problem: object) -> ConfigError:
        return ConfigError(f"option {URL}: {self._options.urls[0]} doesn't respond like a schema registry: {problem}")

    def _request(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None, body: Any = None
    ) -> bytes | _Problem:
        """Sends a request, with retries. Returns the body of the response, or a _Problem for the status 404."""
        try:
            import httpx
        except ImportError as e:
            raise missing("registry", f"option {URL}", e) from e
        options = self._options
        if self._connections is None:
            self._connections = RegistryHttp(options)
        deadline = time.monotonic() + options.retry_timeout_ms / 1000
        pause_s = FIRST_PAUSE_S
        while True:
            problem = ""
            for url in options.urls:
                try:
                    response = self._connections.request(method, url + path, parameters or {}, body)
                except ResponseTooLarge:
                    raise self._is_none(f"its response has more than {MAX_RESPONSE_BYTES} bytes") from None
                except TimeoutError:
                    problem = f"{url}: no complete response within {REQUEST_TIMEOUT_S:g} s"
                    continue
                except httpx.TransportError as e:
                    if "CERTIFICATE_VERIFY_FAILED" in str(e):
                        raise ConfigError(f"{url}: {e}: option {AUTHORITIES} names a file of authorities") from e
                    problem = f"{url}: {_innermost(e)}"
                    continue
                if response.status not in _PASSING:
                    return self._checked(url + path, response)
                problem = f"{url}: {response.status} {_error_text(response)}"
            if time.monotonic() + pause_s > deadline:
                raise ClientError(
                    f"the schema registry doesn't respond: {problem} "
                    f"(tried for {options.retry_timeout_ms / 1000:g} s, option retryTimeoutMs; option {URL})"
                )
            log.warning("retrying the request to the schema registry: %s", problem)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _checked(self, url: str, response: RegistryResponse) -> bytes | _Problem:
        status, text = response.status, _error_text(response)
        if status == 200:
            return response.body
        if status == 404:
            return _Problem(text)
        if status in (401, 403):
            raise ConfigError(f"the schema registry refuses: {status} {text}: options {USER_INFO} and {TOKEN}")
        if status in (409, 422):
            raise ConfigError(f"the schema registry doesn't accept this schema: {text}")
        if 300 <= status < 400 and response.location:
            raise ConfigError(f"option {URL}: {url} leads to {response.location}: name that")
        raise self._is_none(f"{status} {text}")


def _innermost(error: BaseException) -> str:
    """Returns the text of the innermost cause. Outer errors only say that a connection failed."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    return str(error) or type(error).__name__


_cache: dict[tuple[tuple[str, ...], int, bool], RegisteredSchema] = {}


def _cached(key: tuple[tuple[str, ...], int, bool], schema: RegisteredSchema) -> RegisteredSchema:
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    _cache[key] = schema
    return schema


def _error_text(response: RegistryResponse) -> str:
    """Returns the error text of the response, on one line."""
    try:
        text = msgspec.json.decode(response.body, type=_Problem).message
    except ValueError:
        text = response.body[:10_000].decode(errors="replace")
    return " ".join(text.split())[:300] or response.reason
