"""`SchemaRegistry`: a client of registries with Confluent's REST interface (Confluent, Karapace, Apicurio's ccompat).

The schema of an id never changes, so a process caches it. If the registry is unreachable, requests are repeated until
`retry_timeout_s`. Then the read or write fails; it does not treat the bodies as corrupt. `UnknownIds` limits the
requests for ids that the registry doesn't have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from gantrymq.codecs.registry.connections import MAX_RESPONSE_BYTES, RegistryHttp, RegistryResponse, ResponseTooLarge
from gantrymq.codecs.registry.settings import OptionNames, RegistrySettings
from gantrymq.errors import ClientClosed, ClientError, CodecError, ConfigError, ThreadDied
from gantrymq.extras import missing
from gantrymq.logs import log_text, peer_log

log = peer_log(__name__)

T = TypeVar("T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
#: Largest number of schemas that a process caches. A worker usually needs a few.
MAX_CACHED = 1000
#: Largest number of schemas to which a schema refers, with their own references.
MAX_REFERENCES = 100
#: The time for which an id counts as unknown, in seconds. The id may be registered later.
UNKNOWN_FOR_S = 60.0
#: The number of unknown ids that can be requested without a pause, and the pause after each further id, in seconds.
FREE_MISSES = 100
MISS_PAUSE_S = 0.1
#: HTTP statuses after which a request is retried: too many requests, or a server or proxy that is not ready.
_PASSING = (429, 500, 502, 503, 504)
#: Error codes of responses with the status 404 for a subject, version or schema that does not exist.
_MISSING = range(40400, 40500)


class Reference(msgspec.Struct, frozen=True):
    """A schema to which another schema refers by `name`, and its location in the registry."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema from the registry. The id is 0 if the response did not have it."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: int = 0


#: An id of a schema. In a body it takes four bytes, which Java reads as a signed number.
_SchemaId = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class _SchemaResponse(msgspec.Struct, rename={"kind": "schemaType", "text": "schema"}):
    """The response with a schema. Registries omit the type of Avro schemas, or send null."""

    text: str
    kind: str | None = None
    references: tuple[Reference, ...] | None = None


class _Id(msgspec.Struct):
    id: _SchemaId


class _VersionResponse(_SchemaResponse, kw_only=True):
    """The response with a version of a subject."""

    id: _SchemaId


class _Problem(msgspec.Struct):
    message: str = ""
    error_code: int = 0


class UnknownIds:
    """Limits the requests for ids that the registry doesn't have. Times are in seconds.

    Corrupt bodies can have any ids. FREE_MISSES requests for unknown ids are free. After each further request for an
    unknown id, only cached ids are available for MISS_PAUSE_S. The pause begins with the response, so that a slow
    registry doesn't delay a task for long. This also limits the ids in memory to about 700.
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
    """Sends requests to a schema registry. Not thread-safe, except `close`.

    The methods raise ConfigError if an option is wrong, ClientError if the registry doesn't respond, and ClientClosed
    after `close`.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        #: Created with the first request.
        self._connections: RegistryHttp | None = None
        self._unknown = UnknownIds()
        self._closed = threading.Event()
        #: Guards `_connections` and `_closed`.
        self._lock = threading.Lock()

    @property
    def settings(self) -> RegistrySettings:
        """The settings of the connection."""
        return self._settings

    @property
    def names(self) -> OptionNames:
        """The names of the settings in error texts."""
        return self._settings.names

    def close(self) -> None:
        """Closes the connections, and ends the request in progress. Can be called in any thread.

        Otherwise the connections are closed when this object is garbage collected.
        """
        with self._lock:
            self._closed.set()
        if self._connections is not None:
            self._connections.close()

    def schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema | None:
        """Returns the schema with this id; None if the registry doesn't have it.

        If `serialized` is true, the text of a protobuf schema is a file descriptor in Base64. Raises CodecError if the
        id can't be requested at present, because too many other ids were unknown.
        """
        # The whole settings, because the same id can be another schema for other credentials.
        key = (self._settings, schema_id, serialized)
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
            known = _cached(key, _schema(self._decoded(response, _SchemaResponse)))
        return known

    def subject_schema(self, subject: str, version: int | None) -> RegisteredSchema:
        """Returns the schema of a subject in this version; None means the latest version."""
        found = self._subject_schema(subject, version)
        if isinstance(found, _Problem):
            raise ConfigError(
                f"the schema registry has no {'schema' if version is None else f'version {version}'} of subject "
                f"{subject}: {self.names.other_schema} ({found.message})"
            )
        return found

    def _subject_schema(
        self, subject: str, version: int | None, *, deleted: bool = False
    ) -> RegisteredSchema | _Problem:
        path = f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}"
        response = self._request("GET", path, {"deleted": "true"} if deleted else {})
        if isinstance(response, _Problem):
            return response
        found = self._decoded(response, _VersionResponse)
        return _schema(found)._replace(id=found.id)

    def referenced(self, reference: Reference, *, serialized: bool = False) -> RegisteredSchema:
        """Returns the schema of a reference. Raises CodecError if the registry doesn't have it."""
        # Other schemas can refer to deleted ones. Source: io.confluent.kafka.schemaregistry.AbstractSchemaProvider.
        found = self._subject_schema(reference.subject, reference.version, deleted=True)
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
                f"{self.names.register}"
            )
        return self._decoded(response, _Id).id

    def _decoded(self, response: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(response, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
            raise self._is_none(e) from e

    def _is_none(self, problem: object) -> ConfigError:
        return ConfigError(
            f"{self.names.url}: {self._settings.urls[0]} doesn't respond like a schema registry: {problem}"
        )

    def _request(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None, body: Any = None
    ) -> bytes | _Problem:
        """Sends a request, with retries. Returns the body of the response, or a _Problem for the status 404."""
        settings, names = self._settings, self.names
        try:
            import httpx
        except ImportError as e:
            raise missing("registry", names.url, e) from e
        deadline = time.monotonic() + settings.retry_timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            problem = ""
            for url in settings.urls:
                connections = self._opened()
                try:
                    response = connections.request(method, url + path, parameters or {}, body)
                except (CancelledError, ThreadDied):
                    if not self._closed.is_set():
                        raise
                    raise self._is_closed() from None
                except ResponseTooLarge:
                    raise self._is_none(f"its response has more than {MAX_RESPONSE_BYTES} bytes") from None
                except TimeoutError:
                    problem = f"{url}: no complete response within {settings.request_timeout_s:g} s"
                    continue
                except httpx.TransportError as e:
                    if "CERTIFICATE_VERIFY_FAILED" in str(e):
                        raise ConfigError(f"{url}: {e}: {names.authorities} names a file of authorities") from e
                    problem = f"{url}: {_innermost(e)}"
                    continue
                except httpx.InvalidURL as e:
                    raise ConfigError(f"{names.url}: {url!r} is no address like http://host:8081: {e}") from e
                if response.status not in _PASSING:
                    return self._checked(url + path, response)
                problem = f"{url}: {response.status} {_problem(response).message}"
            if self._closed.is_set():
                # The closing of the connections caused the error.
                raise self._is_closed()
            if time.monotonic() + pause_s > deadline:
                raise ClientError(
                    f"the schema registry doesn't respond: {problem} "
                    f"(tried for {settings.retry_timeout_s:g} s, {names.retry_timeout}; {names.url})"
                )
            log.warning("retrying the request to the schema registry: %s", problem)
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _opened(self) -> RegistryHttp:
        with self._lock:
            if self._closed.is_set():
                raise self._is_closed()
            if self._connections is None:
                self._connections = RegistryHttp(self._settings)
            return self._connections

    def _is_closed(self) -> ClientClosed:
        return ClientClosed("the client of the schema registry is closed: create a new codec")

    def _checked(self, url: str, response: RegistryResponse) -> bytes | _Problem:
        status = response.status
        if status == 200:
            return response.body
        problem = _problem(response)
        text = problem.message
        # Other servers, and a registry with another path, answer 404 for every id. Bodies are then not corrupt.
        if status == 404 and problem.error_code in _MISSING:
            return problem
        if status in (401, 403):
            raise ConfigError(f"the schema registry refuses: {status} {text}: {self.names.credentials}")
        if status in (409, 422):
            raise ConfigError(f"the schema registry doesn't accept this schema: {text}")
        if 300 <= status < 400 and response.location:
            raise ConfigError(f"{self.names.url}: {url} redirects to {log_text(response.location)}: use that address")
        raise self._is_none(f"{status} {text}")


def _innermost(error: BaseException) -> str:
    """Returns the text of the innermost cause. Outer errors only say that a connection failed."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    return str(error) or type(error).__name__


def _schema(response: _SchemaResponse) -> RegisteredSchema:
    return RegisteredSchema(response.text, response.kind or "AVRO", response.references or ())


_CacheKey = tuple[RegistrySettings, int, bool]
_cache: dict[_CacheKey, RegisteredSchema] = {}


def _cached(key: _CacheKey, schema: RegisteredSchema) -> RegisteredSchema:
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    _cache[key] = schema
    return schema


def _problem(response: RegistryResponse) -> _Problem:
    """Returns the error in the response, with its text on one line."""
    try:
        problem = msgspec.json.decode(response.body, type=_Problem)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        problem = _Problem(response.body[:10_000].decode(errors="replace"))
    text = " ".join(problem.message[:10_000].split())
    return _Problem(log_text(text, 300) or log_text(response.reason), problem.error_code)


def references_of(
    registry: SchemaRegistry, schema: RegisteredSchema, *, serialized: bool = False
) -> dict[str, tuple[Reference, RegisteredSchema]]:
    """Returns the schemas to which a schema refers, directly or through others, by name.

    Raises CodecError if the registry lacks one, or if there are more than MAX_REFERENCES. Raises ClientError if the
    requests together take longer than the limit for one request.
    """
    limit_s = registry.settings.limit_s
    deadline = time.monotonic() + limit_s
    found: dict[str, tuple[Reference, RegisteredSchema]] = {}
    left = list(schema.references)
    while left:
        reference = left.pop()
        if reference.name in found:
            continue
        if len(found) == MAX_REFERENCES:
            raise CodecError(f"the schema refers to more than {MAX_REFERENCES} others: register a smaller one")
        if time.monotonic() > deadline:
            raise ClientError(
                f"the schema registry is too slow: the schemas to which a schema refers took more than {limit_s:g} s "
                f"({registry.names.url})"
            )
        other = registry.referenced(reference, serialized=serialized)
        found[reference.name] = reference, other
        left += other.references
    return found


def known_schema(registry: SchemaRegistry, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
    """Returns the schema with the id that a body has. Raises CodecError for an unknown id."""
    found = registry.schema(schema_id, serialized=serialized)
    if found is None:
        raise CodecError(f"the schema registry has no schema {schema_id}, which the body names")
    return found


def schema_of_body(
    registry: SchemaRegistry, schema_id: int, kind: str, *, serialized: bool = False
) -> RegisteredSchema:
    """Returns the schema with the id that a body has. Raises CodecError for an unknown id or another `kind`."""
    found = known_schema(registry, schema_id, serialized=serialized)
    if found.kind != kind:
        raise CodecError(f"schema {schema_id}, which the body names, is {found.kind}, not {kind}")
    return found
