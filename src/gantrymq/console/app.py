"""The console as an ASGI application: routes, templates, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gantrymq import __version__
from gantrymq.console import figures
from gantrymq.console.eye import Eye
from gantrymq.console.guard import LOCAL_NAMES, Guard
from gantrymq.console.language import LANGUAGES, language_of, translator
from gantrymq.console.limited import Limits
from gantrymq.console.pages import API, BadArguments, Page, arguments_of, openapi
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.queries.dead_letters import ExportArguments, export
from gantrymq.console.queries.messages import MessageArguments, find
from gantrymq.console.settings import Settings
from gantrymq.console.tail import MAX_TAILS, TailArguments, TailRound, tail
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo
from gantrymq.protocol.codes import ResponseCode

HERE = Path(__file__).parent
LANGUAGE_COOKIE = "gantry_language"
_A_YEAR_S = 365 * 86400


class _Static(StaticFiles):
    """Files whose names have the version in their query: they never change."""

    def file_response(self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "public, max-age=86400"
        return response


class Console:
    """The application, `app`, for one cluster."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("number", "size", "percent", "span", "moment"):
            self._templates.filters[name] = getattr(figures, name)
        self._tails = 0
        self._openapi = openapi(PAGES)
        routes = [
            Route("/", lambda request: RedirectResponse("/overview")),
            Route("/language", self._choose_language),
            Route(f"{API}/openapi.json", lambda request: JSONResponse(self._openapi)),
            Route("/message/body", self._body),
            Route("/tail/stream", self._tail),
            Route("/dead-letters/export", self._export),
            Mount("/static", _Static(directory=HERE / "static")),
        ]
        for page in PAGES:
            routes += [Route(f"/{page.name}", self._html(page)), Route(f"{API}/{page.name}", self._json(page))]
        self.app = Starlette(
            routes=routes,
            middleware=[Middleware(Guard, names=LOCAL_NAMES)],
            lifespan=self._lifespan,
            exception_handlers={404: self._not_found},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._eye = Eye(self._settings, Limits(), self._settings.hooks)
        try:
            yield
        finally:
            await self._eye.close()

    # -- pages --------------------------------------------------------------------------------------------------

    def _html(self, page: Page) -> Any:
        async def answer(request: Request) -> Response:
            try:
                arguments = arguments_of(page.arguments, request.query_params)
                result = await page.query(self._eye, arguments)
            except (BadArguments, GantryError) as e:
                return self._error(request, e)
            return self._render(request, f"{page.name}.html", page.title, page=page, arguments=arguments, it=result)

        return answer

    def _json(self, page: Page) -> Any:
        async def answer(request: Request) -> Response:
            try:
                result = await page.query(self._eye, arguments_of(page.arguments, request.query_params))
            except (BadArguments, GantryError) as e:
                return JSONResponse({"error": str(e)}, _status(e))
            return Response(msgspec.json.encode(result), media_type="application/json")

        return answer

    def _error(self, request: Request, error: Exception) -> Response:
        return self._render(request, "error.html", "Error", status=_status(error), error=str(error))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        if request.url.path.startswith(API):
            return JSONResponse({"error": "there is no such address"}, 404)
        return self._render(request, "error.html", "Error", status=404, error="there is no such page")

    async def _body(self, request: Request) -> Response:
        """A message's body as it is, to be kept and not to be shown."""
        try:
            found = await find(self._eye, arguments_of(MessageArguments, request.query_params))
            body = found.body
        except (BadArguments, GantryError) as e:
            return self._error(request, e)
        return Response(body, media_type="application/octet-stream", headers=_attachment("body.bin"))

    async def _tail(self, request: Request) -> Response:
        """Server-sent events, each a TailRound in JSON."""
        try:
            arguments = arguments_of(TailArguments, request.query_params)
        except BadArguments as e:
            return JSONResponse({"error": str(e)}, 400)
        if self._tails >= MAX_TAILS:
            return JSONResponse({"error": f"{MAX_TAILS} live tails are open already"}, 503)
        return StreamingResponse(self._events(arguments), media_type="text/event-stream")

    async def _events(self, arguments: TailArguments) -> AsyncIterator[bytes]:
        self._tails += 1
        try:
            async for one in tail(self._eye, arguments):
                yield b"data: %b\n\n" % msgspec.json.encode(one)
            yield b"event: over\ndata: {}\n\n"
        except GantryError as e:
            yield b"data: %b\n\n" % msgspec.json.encode(TailRound([], 0, str(e)))
            yield b"event: over\ndata: {}\n\n"
        finally:
            self._tails -= 1

    async def _export(self, request: Request) -> Response:
        try:
            arguments = arguments_of(ExportArguments, request.query_params)
        except BadArguments as e:
            return self._error(request, e)
        lines = export(self._eye, arguments)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=_attachment("dead-letters.jsonl"))

    async def _choose_language(self, request: Request) -> Response:
        """Sets the cookie, and goes back to a page of this console."""
        back = request.query_params.get("back", "/")
        if not back.startswith("/") or back.startswith(("//", "/\\")):
            back = "/"
        response = RedirectResponse(back, 303)
        code = request.query_params.get("to", "")
        if code in LANGUAGES:
            response.set_cookie(LANGUAGE_COOKIE, code, max_age=_A_YEAR_S, samesite="lax", httponly=True)
        return response

    def _render(self, request: Request, template: str, title: str, *, status: int = 200, **values: Any) -> Response:
        language = language_of(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language", ""))
        translate = translator(language)
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        text = self._templates.get_template(template).render(
            _=translate,
            language=language,
            languages=LANGUAGES,
            pages=PAGES,
            path=path,
            title=translate(title),
            version=__version__,
            link=link,
            **values,
        )
        return HTMLResponse(text, status)


def link(name: str, _base: msgspec.Struct | None = None, /, **arguments: object) -> str:
    """The address of a page; with `_base` its other arguments are as they are there."""
    given: dict[str, object] = {}
    if _base is not None:
        defaults: Mapping[str, Any] = {f.name: f.default for f in msgspec.structs.fields(_base)}
        given = {key: value for key, value in msgspec.structs.asdict(_base).items() if value != defaults.get(key)}
    given |= arguments
    texts = {key: _text(value) for key, value in given.items() if value not in (None, "")}
    return f"/{name}?{urlencode(texts)}" if texts else f"/{name}"


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _status(error: Exception) -> int:
    if isinstance(error, BadArguments):
        return 400
    if isinstance(error, NoRouteInfo):
        return 404
    if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
        return 403
    return 502
