"""Access: who a request comes from, and that nobody gets further without a login where one is asked for.

It stands before all routes: a page that is added later is closed, too.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gantrymq.background.loop_thread import LoopThread
from gantrymq.background.repeating import Repeating
from gantrymq.console.attempts import DELAY_S, Attempts
from gantrymq.console.connections import source_of
from gantrymq.console.eye import Eye
from gantrymq.console.history import History
from gantrymq.console.limited import Limits
from gantrymq.console.logins import ADMIN, ClusterLogin, FileLogin, Login
from gantrymq.console.pages import API
from gantrymq.console.sessions import COOKIE, Sessions, new_id
from gantrymq.console.settings import Settings
from gantrymq.errors import ConfigError, GantryError
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: How often the users of sessions are checked, s.
CHECK_S = 5.0
#: Logins at once: a password is checked in 0.1 s, one after the other.
MAX_LOGINS = 64
_VISITOR = "gantrymq.visitor"
#: What everybody gets.
_OPEN = ("/login", "/language", "/static/")


@dataclass(slots=True)
class Visitor:
    """`user` is empty without a login."""

    session_id: str
    user: str
    eye: Eye
    csrf: str
    may_change: bool


class TooManyAttempts(GantryError):
    """Somebody fails to log in again and again."""


class Access:
    """Who may come in. `limits` are those of all questions."""

    def __init__(self, settings: Settings, limits: Limits, history: History, gatherer: LoopThread) -> None:
        self.settings = settings
        self._limits = limits
        self._history = history
        self._gatherer = gatherer
        self.own_eye = Eye(settings, limits, settings.hooks, history, gatherer)
        self.sessions = Sessions()
        self._attempts = Attempts()
        self._logins = 0
        self._check = Repeating("check that sessions' users exist", self.check_sessions, CHECK_S)
        self._login: Login | None = None
        if settings.login == "cluster":
            self._login = ClusterLogin(settings, limits)
        elif settings.users_file is not None:
            self._login = FileLogin(settings.users_file, settings.hooks)

    @property
    def asks(self) -> bool:
        """Whether there is a login."""
        return self._login is not None

    def start(self) -> None:
        """Begins to check sessions."""
        if self.asks:
            self._check.start()

    async def close(self) -> None:
        await self._check.stop()
        self.sessions.end_all()
        await self.close_ended()
        await self.own_eye.close()

    async def close_ended(self) -> None:
        """Ends the connections of sessions that have ended."""
        ended, self.sessions.ended = self.sessions.ended, []
        for eye in ended:
            if eye is not self.own_eye:
                await eye.close()

    async def check_sessions(self) -> None:
        """Ends the sessions of users that were removed or disabled, or whose password or role changed."""
        assert self._login is not None
        for session_id, session in self.sessions.open_ones(monotonic()).items():
            if not await self._login.is_current(session):
                log.info("the session of %r ends: the user is removed or changed", session.user)
                self.sessions.end(session_id)
        await self.close_ended()

    def is_open(self, visitor: Visitor) -> bool:
        """Whether the visitor's session goes on; without a login always."""
        return not self.asks or self.sessions.is_open(visitor.session_id, monotonic())

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Who it is; None for somebody who has to log in."""
        session_id = connection.scope[_VISITOR]
        session = self.sessions.find(session_id, monotonic())
        may_change = not self.settings.read_only
        csrf = self.sessions.csrf_token(session_id)
        if session is not None:
            return Visitor(session_id, session.user, session.eye, csrf, may_change and session.role == ADMIN)
        return None if self.asks else Visitor(session_id, "", self.own_eye, csrf, may_change)

    def csrf_of(self, connection: HTTPConnection) -> str:
        """The token for forms, of who isn't logged in, too."""
        return self.sessions.csrf_token(connection.scope[_VISITOR])

    def is_own_form(self, request: Request, token: str) -> bool:
        """Whether a form comes from a page of ours."""
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
            return False
        return self.sessions.is_token(request.scope[_VISITOR], token)

    async def enter(self, request: Request, name: str, password: str) -> str | None:
        """The id of a new session; None for a name or password that is wrong.

        Raises TooManyAttempts, or a GantryError when the cluster can't say.
        """
        assert self._login is not None
        address = f"from {source_of(request.client.host if request.client is not None else '?')}"
        user = f"as {name[:200]}"
        now = monotonic()
        wait_s = self._attempts.wait_s(address, now)
        if wait_s > 0:
            raise TooManyAttempts(f"too many attempts: try again in {wait_s:.0f} s")
        if self._logins >= MAX_LOGINS:
            raise TooManyAttempts("too many logins at once: try again in a few seconds")
        is_delayed = self._attempts.wait_s(user, now) > 0
        # Counted as failed until it isn't, so that many at once are counted.
        self._attempts.failed(address, now)
        self._attempts.failed(user, now)
        self._logins += 1
        try:
            if is_delayed:
                await asyncio.sleep(DELAY_S)
            entry = await self._login.enter(name, password)
        except ConfigError as e:
            raise GantryError("the users' file can't be read now") from e
        finally:
            self._logins -= 1
        if entry is None:
            return None
        self._attempts.succeeded(address, now)
        self._attempts.succeeded(user, now)
        is_own = entry.hooks is self.settings.hooks
        eye = self.own_eye if is_own else Eye(self.settings, self._limits, entry.hooks, self._history, self._gatherer)
        return self.sessions.begin(entry.name, entry.role, eye, monotonic(), entry.proof)

    def end(self, connection: HTTPConnection) -> None:
        """Ends the session that a request belongs to."""
        self.sessions.end(connection.scope[_VISITOR])

    def set_cookie(self, response: Response, session_id: str) -> None:
        response.set_cookie(
            COOKIE,
            self.sessions.cookie_of(session_id),
            httponly=True,
            samesite="strict",
            secure=self.settings.is_https,
            path="/",
        )


class Gate:
    """The application behind `access`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        access = self._access
        connection = HTTPConnection(scope)
        known = access.sessions.id_of(connection.cookies.get(COOKIE))
        session_id = scope[_VISITOR] = known or new_id()

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and known is None:
                headers = MutableHeaders(scope=message)
                if not any(value.startswith(f"{COOKIE}=") for value in headers.getlist("set-cookie")):
                    response = Response()
                    access.set_cookie(response, session_id)
                    headers.append("set-cookie", response.headers["set-cookie"])
            await send(message)

        path: str = scope["path"]
        if not path.startswith(_OPEN) and access.visitor(connection) is None:
            refused: Response
            if path.startswith(API) or path.endswith("/stream"):
                refused = JSONResponse({"error": "log in first"}, 401)
            else:
                asked = quote(path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""))
                refused = RedirectResponse(f"/login?next={asked}", 303)
            await refused(scope, receive, with_cookie)
            return
        await self._app(scope, receive, send if path.startswith("/static/") else with_cookie)
        await access.close_ended()
