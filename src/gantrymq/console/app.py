"""The console as an ASGI application: routes, templates, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gantrymq import __version__
from gantrymq.background.loop_thread import LoopThread
from gantrymq.console import template_filters
from gantrymq.console.access import Access, Gate, TooManyAttempts, Visitor
from gantrymq.console.audit import Audit
from gantrymq.console.bodies import pieces_of
from gantrymq.console.changes.all_changes import CHANGES
from gantrymq.console.changes.change import Change, LongChange
from gantrymq.console.changes.dead_letter_messages import MAX_SELECTED
from gantrymq.console.changes.topics import MESSAGE_TYPES
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.downloads import Downloads, TooManyDownloads
from gantrymq.console.guard import BODY_WITHIN_S, LOCAL_NAMES, MAX_BODY, Guard
from gantrymq.console.history import History
from gantrymq.console.language import LANGUAGES, language_of, translator
from gantrymq.console.links import link, local
from gantrymq.console.pages import API, BadArguments, Page, arguments_of, menu_of, openapi
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.queries.dead_letter_messages import DeadLetterFilter, export
from gantrymq.console.queries.messages import MessageArguments, find
from gantrymq.console.request_limits import RequestLimits
from gantrymq.console.request_scheduler import RequestScheduler
from gantrymq.console.sampler import Sampler
from gantrymq.console.sessions import new_id
from gantrymq.console.settings import Settings
from gantrymq.console.static_files import StaticFiles
from gantrymq.console.tail import MAX_TAILS, TailArguments, TailRound, tail
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo
from gantrymq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
LANGUAGE_COOKIE = "gantry_language"
#: Cookie with the outcome of a change, for the next page.
DONE_COOKIE = "gantry_done"
_DONE_S = 60
_A_YEAR_S = 365 * 86400
_MENU = menu_of(PAGES)
_PAGES_BY_NAME = {page.name: page for page in PAGES}
_MAX_FIELDS = MAX_SELECTED + 40
#: Size of one piece of a download, bytes.
_PIECE = 64 * 1024


class Console:
    """The ASGI application (`app`) for one cluster. Raises ConfigError if the users' file cannot be read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            # Shows directional characters of every value as code points, so that a name cannot reorder other text.
            finalize=template_filters.visible,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("number", "size", "percent", "span", "moment", "shell"):
            self._templates.filters[name] = getattr(template_filters, name)
        self._templates.filters["exactly"] = template_filters.Exact
        self._tails = 0
        self._downloads = Downloads()
        self._openapi = openapi(PAGES)
        self._done = URLSafeTimedSerializer(new_id(), salt="gantrymq.console.done")
        directory = settings.directory
        self._history = History(directory)
        self._gatherer = LoopThread("gantry-console-tables")
        self._access = Access(settings, RequestLimits(), self._history, self._gatherer)
        self._sampler = Sampler(self._access.own_view, self._history)
        self._audit = Audit(None if directory is None else directory / "audit.log")
        routes = [
            Route("/", lambda request: RedirectResponse("/overview")),
            Route("/language", self._choose_language),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route(f"{API}/openapi.json", lambda request: JSONResponse(self._openapi)),
            Route("/message/body", self._body),
            Route("/tail/stream", self._tail),
            Route("/dead-letters/export", self._export),
            Route("/static/{name}", StaticFiles(HERE / "static").serve),
        ]
        for page in PAGES:
            routes += [Route(f"/{page.name}", self._html(page)), Route(f"{API}/{page.name}", self._json(page))]
        for change in CHANGES:
            routes += [
                Route(f"/do/{change.name}", self._change(change), methods=["POST"]),
                Route(f"{API}/do/{change.name}", self._change(change), methods=["POST"]),
            ]
        self.app = Starlette(
            routes=routes,
            middleware=[
                Middleware(RequestScheduler),
                Middleware(Guard, names=None if self._access.requires_login else LOCAL_NAMES),
                Middleware(Gate, access=self._access),
            ],
            lifespan=self._lifespan,
            exception_handlers={404: self._not_found, ClientDisconnect: self._too_long},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._gatherer.start()
        self._sampler.start()
        self._access.start()
        try:
            yield
        finally:
            await self._sampler.stop()
            await self._access.close()
            await asyncio.get_running_loop().run_in_executor(None, self._gatherer.stop)
            await self._history.close()

    def _visitor(self, request: Request) -> Visitor:
        """Returns the visitor of a request. Raises GantryError if the session ended after the check by `Gate`."""
        visitor = self._access.visitor(request)
        if visitor is None:
            raise _Refused("your session has ended: log in again")
        return visitor

    # -- pages --------------------------------------------------------------------------------------------------

    def _html(self, page: Page) -> Any:
        """Returns the request handler for a page as HTML."""

        async def answer(request: Request) -> Response:
            try:
                arguments = arguments_of(page.arguments, request.query_params)
                result = await page.query(self._visitor(request).view, arguments)
            except (BadArguments, GantryError) as e:
                return self._error(request, e)
            return self._render(
                request,
                f"{page.name}.html",
                page.title,
                page=page,
                parent=_PAGES_BY_NAME.get(page.parent),
                arguments=arguments,
                it=result,
            )

        return answer

    def _json(self, page: Page) -> Any:
        """Returns the request handler for a page as JSON."""

        async def answer(request: Request) -> Response:
            try:
                arguments = arguments_of(page.arguments, request.query_params)
                result = await page.query(self._visitor(request).view, arguments)
            except (BadArguments, GantryError) as e:
                return JSONResponse({"error": str(e)}, _status(e))
            return Response(msgspec.json.encode(result), media_type="application/json")

        return answer

    def _error(self, request: Request, error: Exception, status: int = 0) -> Response:
        return self._render(request, "error.html", "Error", status=status or _status(error), error=str(error))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        if request.url.path.startswith(API):
            return JSONResponse({"error": "not found"}, 404)
        return self._error(request, GantryError("page not found"), 404)

    async def _too_long(self, request: Request, error: Exception) -> Response:
        problem = f"the form has more than {MAX_BODY // 1024} KiB, or did not arrive within {BODY_WITHIN_S:g} s"
        if request.url.path.startswith(API):
            return JSONResponse({"error": problem}, 413)
        return self._error(request, GantryError(problem), 413)

    # -- changes ------------------------------------------------------------------------------------------------

    def _change(self, change: Change | LongChange) -> Any:
        """Returns the request handler of a change."""

        async def answer(request: Request) -> Response:
            is_api = request.url.path.startswith(API)
            form = await self._form(request)
            try:
                done, arguments = await self._perform(request, change, form)
            except (BadArguments, GantryError) as e:
                status = _status(e)
                return JSONResponse({"error": str(e)}, status) if is_api else self._error(request, e, status)
            if is_api:
                return JSONResponse({"done": done})
            back = link("operations") if isinstance(change, LongChange) else change.back(arguments)
            response = RedirectResponse(back, 303)
            response.set_cookie(
                DONE_COOKIE,
                self._done.dumps(done[:500]),
                max_age=_DONE_S,
                httponly=True,
                samesite="strict",
                secure=self._settings.is_https,
            )
            return response

        return answer

    async def _perform(
        self, request: Request, change: Change | LongChange, form: dict[str, str]
    ) -> tuple[str, msgspec.Struct]:
        """Performs a change. Returns its outcome, or the text that an operation has started, and the arguments."""
        visitor = self._visitor(request)
        token = form.pop("csrf", "") or request.headers.get("x-csrf-token", "")
        if not self._access.is_own_form(request, token):
            raise _Refused("this form has expired, or is not of this console: open its page again")
        if not visitor.may_change:
            raise _Refused("you have no right to change anything")
        arguments = arguments_of(change.arguments, form)
        if isinstance(change, LongChange):
            change.check(arguments)
        shown = {name: "***" if name in change.secrets else value for name, value in form.items()}
        write = partial(self._audit.write, visitor.user, _address(request), change.name, shown)
        await asyncio.to_thread(write, "requested")
        outcome = "cancelled"
        try:
            if isinstance(change, LongChange):
                outcome = self._begin(visitor.view, change, arguments, write)
            else:
                outcome = await change.perform(visitor.view, arguments)
        except (BadArguments, GantryError) as e:
            outcome = f"failed: {e}"
            raise
        finally:
            visitor.view.forget()
            if isinstance(change, LongChange):
                # There is no await before this call. The operation may end at once, and its line must follow this line.
                self._record(write, outcome)
            else:
                await asyncio.to_thread(self._record, write, outcome)
        return outcome, arguments

    def _begin(
        self, view: ClusterView, change: LongChange, arguments: msgspec.Struct, write: Callable[[str], None]
    ) -> str:
        """Starts an operation, whose outcome is recorded when the operation ends."""

        def ended(outcome: str) -> None:
            view.forget()
            self._record(write, outcome)

        operation = view.operations.begin(
            change.name, change.about(arguments), partial(change.perform, view, arguments), ended
        )
        return f"operation {operation.id} is running"

    def _record(self, write: Callable[[str], None], outcome: str) -> None:
        """Records a completed change in the audit log or, after an error, in the log of the process."""
        try:
            write(outcome)
        except GantryError as e:
            log.error("%s; the outcome was: %s", e, outcome)

    async def _form(self, request: Request) -> dict[str, str]:
        """Returns the fields that are not empty. Several values of a field become lines of one text."""
        filled: dict[str, str] = {}
        async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
            for name, value in form.multi_items():
                if isinstance(value, str) and value != "":
                    filled[name] = f"{filled[name]}\n{value}" if name in filled else value
        return filled

    # -- login --------------------------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        """Shows the login form, and logs a user in. Records the outcome in the audit log."""
        back = local(request.query_params.get("next", "/"))
        if not self._access.requires_login:
            return RedirectResponse("/", 303)
        problem, status = "", 200
        if request.method == "POST":
            form = await self._form(request)
            if not self._access.is_own_form(request, form.get("csrf", "")):
                problem, status = "this form has expired: try again", 403
            else:
                name = form.get("name", "")
                write = partial(self._audit.write, name[:200], _address(request), "login", {})
                outcome = ""
                try:
                    session_id = await self._access.enter(request, name, form.get("password", ""))
                    if session_id is not None:
                        outcome = "logged in"
                        response = RedirectResponse(back, 303)
                        self._access.set_cookie(response, session_id)
                        return response
                    problem, status = "wrong name or password", 403
                    outcome = f"failed: {problem}"
                except TooManyAttempts as e:
                    # This failure is not recorded, so that more attempts cannot fill the disk. The earlier failures are
                    # recorded.
                    problem, status = str(e), 429
                except GantryError as e:
                    problem, status = str(e), 502
                    outcome = f"failed: {problem}"
                finally:
                    if outcome:
                        await asyncio.to_thread(self._record, write, outcome)
        return self._render(request, "login.html", "Log in", status=status, problem=problem, back=back)

    async def _logout(self, request: Request) -> Response:
        form = await self._form(request)
        if not self._access.is_own_form(request, form.get("csrf", "")):
            return self._error(request, _Refused("this form has expired: try again"), 403)
        self._access.end(request)
        response = RedirectResponse("/", 303)
        self._access.set_cookie(response, new_id())
        return response

    # -- downloads and streams ----------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> ASGIApp:
        """Downloads the body of a message."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response: Response
            try:
                arguments = arguments_of(MessageArguments, request.query_params)
                async with self._download(request) as view:
                    async with view.bodies:
                        message = await find(view, arguments)
                    # The body is decompressed once before the response starts, because a started response cannot report
                    # an error. The whole body is never in memory.
                    size = await asyncio.to_thread(lambda: sum(len(piece) for piece in pieces_of(message, _PIECE)))
                    headers = _attachment("body.bin") | {"Content-Length": str(size)}
                    response = StreamingResponse(
                        pieces_of(message, _PIECE), media_type="application/octet-stream", headers=headers
                    )
                    await response(scope, receive, send)
                    return
            except (BadArguments, GantryError) as e:
                response = self._error(request, e)
            await response(scope, receive, send)

        return answer

    @asynccontextmanager
    async def _download(self, request: Request) -> AsyncIterator[ClusterView]:
        """Counts one download of a visitor while the block runs. Raises TooManyDownloads."""
        visitor = self._visitor(request)
        async with self._downloads.one_of(visitor.user or _address(request)):
            yield visitor.view

    async def _tail(self, request: Request) -> ASGIApp:
        """Streams the live tail as server-sent events. Each event is a TailRound in JSON."""
        try:
            arguments = arguments_of(TailArguments, request.query_params)
            visitor = self._visitor(request)
        except (BadArguments, _Refused) as e:
            return JSONResponse({"error": str(e)}, _status(e))

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if self._tails >= MAX_TAILS:
                refused = JSONResponse({"error": f"{MAX_TAILS} live tails are open: try again later"}, 503)
                await refused(scope, receive, send)
                return
            self._tails += 1
            try:
                events = StreamingResponse(self._events(visitor, arguments), media_type="text/event-stream")
                await events(scope, receive, send)
            finally:
                self._tails -= 1

        return answer

    async def _events(self, visitor: Visitor, arguments: TailArguments) -> AsyncIterator[bytes]:
        try:
            async for one in tail(visitor.view, arguments, partial(self._access.is_open, visitor)):
                yield b"data: %b\n\n" % msgspec.json.encode(one)
        except GantryError as e:
            yield b"data: %b\n\n" % msgspec.json.encode(TailRound([], 0, str(e)))
        yield b"event: over\ndata: {}\n\n"

    async def _export(self, request: Request) -> ASGIApp:
        """Downloads the dead-letter messages that match a filter, as lines of JSON."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response: Response
            try:
                arguments = arguments_of(DeadLetterFilter, request.query_params)
                arguments.times()
                visitor = self._visitor(request)
                async with self._download(request) as view:
                    lines = export(view, arguments, partial(self._access.is_open, visitor))
                    headers = _attachment("dead-letters.jsonl")
                    response = StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)
                    await response(scope, receive, send)
                    return
            except (BadArguments, TooManyDownloads, _Refused) as e:
                response = self._error(request, e)
            await response(scope, receive, send)

        return answer

    async def _choose_language(self, request: Request) -> Response:
        """Sets the cookie and redirects to a page of this console."""
        response = RedirectResponse(local(request.query_params.get("back", "/")), 303)
        code = request.query_params.get("to", "")
        if code in LANGUAGES:
            response.set_cookie(LANGUAGE_COOKIE, code, max_age=_A_YEAR_S, samesite="lax", httponly=True)
        return response

    def _render(self, request: Request, template: str, title: str, *, status: int = 200, **values: Any) -> Response:
        """Renders a template in the visitor's language."""
        language = language_of(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language", ""))
        translate = translator(language)
        visitor = self._access.visitor(request)
        done = self._take_done(request)
        text = self._templates.get_template(template).render(
            _=translate,
            csrf=self._access.csrf_of(request),
            done=done,
            language=language,
            languages=LANGUAGES,
            link=link,
            may_change=visitor is not None and visitor.may_change,
            message_types=MESSAGE_TYPES,
            menu=_MENU if visitor is not None else (),
            path=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            title=translate(title),
            user=visitor.user if visitor is not None else "",
            version=__version__,
            **values,
        )
        response = HTMLResponse(text, status)
        if done:
            response.delete_cookie(DONE_COOKIE)
        return response

    def _take_done(self, request: Request) -> str:
        try:
            done = self._done.loads(request.cookies.get(DONE_COOKIE, ""), max_age=_DONE_S)
        except BadSignature:
            return ""
        return done if isinstance(done, str) else ""


class _Refused(GantryError):
    """Raised if the console rejects a request."""

    status = 403


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _address(request: Request) -> str:
    """Returns the address of the visitor."""
    return request.client.host if request.client is not None else "?"


def _status(error: Exception) -> int:
    if isinstance(error, _Refused):
        return error.status
    if isinstance(error, BadArguments):
        return 400
    if isinstance(error, TooManyDownloads):
        return 503
    if isinstance(error, NoRouteInfo):
        return 404
    if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
        return 403
    return 502
