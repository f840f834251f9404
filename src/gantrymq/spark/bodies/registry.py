"""SchemaRegistry: a schema registry with Confluent's REST interface (Confluent's own, Karapace, Apicurio's ccompat).

What is known by its id never changes and is kept by the process. A registry that can't be reached is asked again until
retryTimeoutMs is over, and then an error of the read or write: nothing is taken for a bad body because of it.
Ids that it doesn't know are remembered for a while, and asked for only so often (`unknown_ids`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from gantrymq.background.loop_thread import LoopThread
from gantrymq.errors import ClientError, CodecError, ConfigError
from gantrymq.extras import missing
from gantrymq.spark.bodies.unknown_ids import UnknownIds

if TYPE_CHECKING:
    import httpx

    from gantrymq.spark.option_values import Values

log = logging.getLogger(__name__)

T = TypeVar("T")

URL = "schema.registry.url"
SUBJECT = "schema.registry.subject"
USER_INFO = "schema.registry.basic.auth.user.info"
TOKEN = "schema.registry.bearer.auth.token"
AUTHORITIES = "schema.registry.ssl.ca.location"
CERTIFICATE = "schema.registry.ssl.certificate.location"
KEY = "schema.registry.ssl.key.location"
#: Names as Confluent's clients have them, but for subject and version, which those are given with each call.
REGISTRY_OPTIONS = (URL, SUBJECT, "schema.registry.version", USER_INFO, TOKEN, AUTHORITIES, CERTIFICATE, KEY)
#: Time from the start of a request to the last byte of its response, in s. A timeout for each read would not limit a
#: slow response.
REQUEST_TIMEOUT_S = 10.0
#: Size limit of a response, in bytes. Registries store a schema as a message of at most some MiB.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
DEFAULT_RETRY_TIMEOUT_MS = 60_000
#: So many schemas are kept; a worker meets a few.
MOST_KEPT = 1000
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
#: Worth asking again: too many requests, and what servers and proxies say when they are starting or overloaded.
_PASSING = (429, 500, 502, 503, 504)


class Reference(msgspec.Struct, frozen=True):
    """Another schema that one needs: under which name, and where it is."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True, rename={"kind": "schemaType", "text": "schema"}):
    """As the registry has it; without a type it is Avro. `id` isn't in answers to a question by id."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: int = 0


class _Id(msgspec.Struct):
    id: int


class _Problem(msgspec.Struct):
    message: str = ""


class _Answer(NamedTuple):
    status: int
    #: The reason phrase of the status.
    reason: str
    location: str
    body: bytes


class _TooLarge(Exception):
    """The answer has more than MAX_ANSWER_BYTES."""


@dataclass(slots=True, frozen=True)
class RegistryOptions:
    """Where the registry is, who asks, and what is its subject here.

    schema.registry.url     http://host:8081, several separated by commas: they are one registry
    schema.registry.subject the name that the schema has there; default TOPIC-value where there is one topic
    schema.registry.version a number, or latest (default): the schema that values are read or written by
    schema.registry.basic.auth.user.info        user:password
    schema.registry.bearer.auth.token           instead
    schema.registry.ssl.ca.location             a file of authorities, if the registry's isn't one that the system knows
    schema.registry.ssl.certificate.location    the client's own certificate, and
    schema.registry.ssl.key.location            its key; files of TLS must be on driver and executors
    """

    urls: tuple[str, ...]
    subject: str | None = None
    #: None for the latest.
    version: int | None = None
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    retry_timeout_ms: int = DEFAULT_RETRY_TIMEOUT_MS

    @classmethod
    def parse(cls, values: Values, topics: Sequence[str]) -> RegistryOptions | None:
        """None without a schema.registry.url. Raises ConfigError."""
        text = values.get(URL)
        if text is None:
            given = [name for name in REGISTRY_OPTIONS if name in values]
            if given:
                raise ConfigError(f"option {given[0]} has no meaning without {URL}")
            return None
        urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
        for url in urls:
            _check_url(url)
        values.exclude(USER_INFO, TOKEN)
        user_info = values.get(USER_INFO)
        if user_info is not None and ":" not in user_info:
            raise ConfigError(f"option {USER_INFO}: user:password is wanted")
        if KEY in values and CERTIFICATE not in values:
            raise ConfigError(f"option {KEY} has no meaning without {CERTIFICATE}")
        version = values.get("schema.registry.version")
        return cls(
            urls,
            values.get(SUBJECT) or (f"{topics[0]}-value" if len(topics) == 1 else None),
            None if version in (None, "latest") else values.number("schema.registry.version", None, 1),
            user_info,
            values.get(TOKEN),
            values.path(AUTHORITIES),
            values.path(CERTIFICATE),
            values.path(KEY),
            values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0) or 0,
        )

    def required_subject(self) -> str:
        """Raises ConfigError where there isn't one."""
        if self.subject is None:
            raise ConfigError(f"option {SUBJECT}, a name in the registry, is required where there isn't one topic")
        return self.subject


class SchemaRegistry:
    """Asks the registry of `options`, by connections that end with it. One thread uses it.

    Raises ConfigError where an option is wrong, else ClientError.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        #: Opened by the first request.
        self._connections: _Connections | None = None
        self._unknown = UnknownIds()

    def close(self) -> None:
        """The connections, for those who know the end."""
        if self._connections is not None:
            self._connections.close()

    def schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema | None:
        """The schema of that id; None where there is none. With `serialized` a file descriptor in Base64 (protobuf).

        Raises CodecError where so many ids were unknown that another isn't asked for now.
        """
        key = (self._options.urls, schema_id, serialized)
        if (known := _kept.get(key)) is None:
            now = time.monotonic()
            if self._unknown.has(schema_id, now):
                return None
            if not self._unknown.may_ask(now):
                raise CodecError(
                    f"schema {schema_id} was not asked for: the schema registry doesn't know many other ids that "
                    "bodies name, and is asked for another only now and then; once these are gone, the body can be "
                    "read again"
                )
            parameters = {"format": "serialized"} if serialized else {}
            answer = self._ask("GET", f"/schemas/ids/{schema_id}", parameters)
            if isinstance(answer, _Problem):
                self._unknown.add(schema_id, time.monotonic())
                return None
            known = _keep(key, self._decoded(answer, RegisteredSchema))
        return known

    def subject_schema(self, subject: str, version: int | None) -> RegisteredSchema:
        """Of a subject that version, or the latest one."""
        found = self._subject_schema(subject, version)
        if isinstance(found, _Problem):
            raise ConfigError(
                f"the schema registry has no {'schema' if version is None else f'version {version}'} of subject "
                f"{subject}: name another by option {SUBJECT}, or give the schema itself by bodySchema or "
                f"bodySchemaFile ({found.message})"
            )
        return found

    def _subject_schema(self, subject: str, version: int | None) -> RegisteredSchema | _Problem:
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}")
        return answer if isinstance(answer, _Problem) else self._decoded(answer, RegisteredSchema)

    def referenced(self, reference: Reference, *, serialized: bool = False) -> RegisteredSchema:
        """What another schema needs. Raises CodecError where it is gone."""
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
        """The id of a schema, which with `register` is registered under `subject` if it isn't there."""
        path = f"/subjects/{quote(subject, safe='')}{'/versions' if register else ''}"
        answer = self._ask("POST", path, body={"schema": schema.text, "schemaType": schema.kind})
        if isinstance(answer, _Problem):
            raise ConfigError(
                f"the schema registry hasn't got this schema under subject {subject} ({answer.message}): "
                "register it, or set option auto.register.schemas to true"
            )
        return self._decoded(answer, _Id).id

    def _decoded(self, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as e:
            raise self._is_none(e) from e

    def _is_none(self, problem: object) -> ConfigError:
        return ConfigError(f"option {URL}: {self._options.urls[0]} doesn't answer as a schema registry does: {problem}")

    def _ask(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None, body: Any = None
    ) -> bytes | _Problem:
        """The answer, or what is said of something that isn't there."""
        try:
            import httpx
        except ImportError as e:
            raise missing("registry", f"option {URL}", e) from e
        options = self._options
        if self._connections is None:
            self._connections = _Connections(options)
        deadline = time.monotonic() + options.retry_timeout_ms / 1000
        pause_s = FIRST_PAUSE_S
        while True:
            problem = ""
            for url in options.urls:
                try:
                    answer = self._connections.request(method, url + path, parameters or {}, body)
                except _TooLarge:
                    raise self._is_none(f"its answer has more than {MAX_ANSWER_BYTES} bytes") from None
                except TimeoutError:
                    problem = f"{url}: no complete answer within {REQUEST_TIMEOUT_S:g} s"
                    continue
                except httpx.TransportError as e:
                    if "CERTIFICATE_VERIFY_FAILED" in str(e):
                        raise ConfigError(f"{url}: {e}: option {AUTHORITIES} names a file of authorities") from e
                    problem = f"{url}: {_innermost(e)}"
                    continue
                if answer.status not in _PASSING:
                    return self._checked(url + path, answer)
                problem = f"{url}: {answer.status} {_told(answer)}"
            if time.monotonic() + pause_s > deadline:
                raise ClientError(
                    f"the schema registry doesn't answer: {problem} "
                    f"(tried for {options.retry_timeout_ms / 1000:g} s, option retryTimeoutMs; option {URL})"
                )
            log.warning("asking the schema registry again: %s", problem)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _checked(self, url: str, answer: _Answer) -> bytes | _Problem:
        status, told = answer.status, _told(answer)
        if status == 200:
            return answer.body
        if status == 404:
            return _Problem(told)
        if status in (401, 403):
            raise ConfigError(f"the schema registry refuses: {status} {told}: options {USER_INFO} and {TOKEN}")
        if status in (409, 422):
            raise ConfigError(f"the schema registry doesn't take this schema: {told}")
        if 300 <= status < 400 and answer.location:
            raise ConfigError(f"option {URL}: {url} leads to {answer.location}: name that")
        raise self._is_none(f"{status} {told}")


class _Connections:
    """The connections of one SchemaRegistry. Requests run on an event loop of their own, which can end one at any
    point; a socket that blocks can't."""

    def __init__(self, options: RegistryOptions) -> None:
        import httpx

        token, user_info = options.token, options.user_info
        user, _, password = (user_info or "").partition(":")
        # The length of a compressed response is unknown until it is decompressed.
        headers = {
            "accept": f"{_MEDIA_TYPE}, application/json",
            "accept-encoding": "identity",
            "content-type": _MEDIA_TYPE,
        }
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        auth = None if user_info is None else (user, password)
        self._client = httpx.AsyncClient(auth=auth, headers=headers, verify=_tls(options), timeout=REQUEST_TIMEOUT_S)
        self._loop = LoopThread("schema registry")
        self._loop.start()
        # A decoder isn't told when its task ends: it is gone then.
        self._end = weakref.finalize(self, _end, self._loop, self._client)

    def request(self, method: str, url: str, parameters: Mapping[str, str], body: Any) -> _Answer:
        """Raises httpx.TransportError, TimeoutError and _TooLarge."""
        return self._loop.submit(_request(self._client, method, url, parameters, body)).result()

    def close(self) -> None:
        self._end()


async def _request(
    client: httpx.AsyncClient, method: str, url: str, parameters: Mapping[str, str], body: Any
) -> _Answer:
    async with (
        asyncio.timeout(REQUEST_TIMEOUT_S),
        client.stream(method, url, params=parameters, json=body) as response,
    ):
        parts, size = list[bytes](), 0
        async for part in response.aiter_raw():
            parts.append(part)
            if (size := size + len(part)) > MAX_ANSWER_BYTES:
                raise _TooLarge
        location = response.headers.get("location", "")
        return _Answer(response.status_code, response.reason_phrase, location, b"".join(parts))


def _end(loop: LoopThread, client: httpx.AsyncClient) -> None:
    if loop.is_alive:
        loop.submit(client.aclose()).result()
    loop.stop()


def _tls(options: RegistryOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.authorities)
        if options.certificate is not None:
            context.load_cert_chain(options.certificate, options.key)
    except OSError as e:
        raise ConfigError(f"options {AUTHORITIES}, {CERTIFICATE} and {KEY}: can't be used: {e}") from e
    return context


def _innermost(error: BaseException) -> str:
    """The text of the innermost cause: the outer errors only say that a connection failed."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    return str(error) or type(error).__name__


_kept: dict[tuple[tuple[str, ...], int, bool], RegisteredSchema] = {}


def _keep(key: tuple[tuple[str, ...], int, bool], schema: RegisteredSchema) -> RegisteredSchema:
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    _kept[key] = schema
    return schema


def _told(answer: _Answer) -> str:
    """What the answer says in words, on one line."""
    try:
        text = msgspec.json.decode(answer.body, type=_Problem).message
    except msgspec.DecodeError:
        text = answer.body[:10_000].decode(errors="replace")
    return " ".join(text.split())[:300] or answer.reason


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"option {URL}: {url!r} is no address; http://host:8081 is one")
    if parts.username is not None:
        raise ConfigError(f"option {URL}: user and password go into option {USER_INFO}")
