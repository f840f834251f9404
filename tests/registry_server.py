"""A schema registry for tests: the part of Confluent's REST interface that is used, with data in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Registry:
    """State of the registry.

    `schemas` has the schema of each id, from 1 on; `subjects` has ids. `requests` records each request. The first
    entry of `fails` is the next response, and is then removed.
    """

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    #: Subjects that were deleted. Requests with deleted=true still find them.
    deleted: set[str] = field(default_factory=set)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    #: Total number of connections, and the open ones.
    connections: int = 0
    open: set[Any] = field(default_factory=set)
    fails: list[tuple[int, bytes]] = field(default_factory=list)
    authorization: str | None = None
    #: First bytes of the next response, and a pause in seconds. If set, the response never ends:
    #: its last byte is repeated after each pause.
    endless: tuple[bytes, float] | None = None
    #: The time for which each response is delayed, in seconds.
    delay_s: float = 0.0

    def add(self, subject: str, text: str, kind: str = "AVRO", references: Any = ()) -> int:
        schema = {"schema": text, "schemaType": kind, "references": list(references)}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def add_proto(self, subject: str, file: bytes, references: Any = ()) -> int:
        """Adds a file descriptor. As registries do, it is returned as source text, except with format=serialized."""
        return self.add(subject, base64.b64encode(file).decode(), "PROTOBUF", references)

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        path = [unquote(part) for part in parts.path.strip("/").split("/")]
        serialized = parse_qs(parts.query).get("format") == ["serialized"]
        match method, path:
            case "GET", ["schemas", "ids", number]:
                if not 0 < int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                return 200, self._shown(int(number), serialized)
            case "GET", ["subjects", subject, "versions", version]:
                numbers = self.subjects.get(subject)
                is_deleted = subject in self.deleted and parse_qs(parts.query).get("deleted") != ["true"]
                if numbers is None or is_deleted:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                place = len(numbers) if version == "latest" else int(version)
                if place > len(numbers):
                    return 404, {"error_code": 40402, "message": f"Version {version} not found."}
                number = numbers[place - 1]
                return 200, {"subject": subject, "version": place, "id": number} | self._shown(number, serialized)
            case "POST", ["subjects", subject, "versions"]:
                given = json.loads(body)
                if given["schema"] == '"incompatible"':
                    return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
                return 200, {"id": self.add(subject, given["schema"], given["schemaType"])}
            case "POST", ["subjects", subject]:
                given = json.loads(body)
                schema = {"schema": given["schema"], "schemaType": given["schemaType"], "references": []}
                numbers = [number for number in self.subjects.get(subject, []) if self.schemas[number - 1] == schema]
                if not numbers:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {"subject": subject, "version": 1, "id": numbers[0]} | schema
        return 404, {"error_code": 404, "message": f"HTTP 404 Not Found: {method} {target}"}

    def _shown(self, number: int, serialized: bool) -> dict[str, Any]:
        schema = dict(self.schemas[number - 1])
        if schema["schemaType"] == "AVRO":
            # Registries omit the type of Avro schemas.
            del schema["schemaType"]
        elif schema["schemaType"] == "PROTOBUF" and not serialized:
            schema["schema"] = 'syntax = "proto3"; ...'
        return schema


@contextmanager
def running_registry() -> Iterator[Registry]:
    registry = Registry()
    is_over = Event()

    class Handler(BaseHTTPRequestHandler):
        # Registries use persistent connections.
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            registry.connections += 1
            registry.open.add(self)

        def finish(self) -> None:
            super().finish()
            registry.open.discard(self)

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            registry.requests.append(f"{self.command} {self.path}")
            is_over.wait(registry.delay_s)
            if registry.endless is not None:
                begin, pause_s = registry.endless
                self.close_connection = True
                with suppress(OSError):
                    self.wfile.write(begin)
                    while not is_over.wait(pause_s):
                        self.wfile.write(begin[-1:] * (1 if pause_s else 65536))
                return
            if registry.fails:
                status, answer = registry.fails.pop(0)
            elif registry.authorization not in (None, self.headers.get("authorization")):
                status, answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
            else:
                status, found = registry.answer(self.command, self.path, body)
                answer = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            if 300 <= status < 400:
                self.send_header("location", answer.decode())
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _do

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()
