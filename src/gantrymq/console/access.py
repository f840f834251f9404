"""Access control of the console: identifies the user of a request, and requires a login.

`Gate` checks each request before its route runs, so it also protects pages that are added later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gantrymq.background.loop_thread import LoopThread
from gantrymq.background.repeating import Repeating
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.connections import source_of
from gantrymq.console.history import History
from gantrymq.console.logins import ADMIN, ClusterLogin, FileLogin, Login
from gantrymq.console.pages import API
from gantrymq.console.request_limits import RequestLimits
from gantrymq.console.sessions import COOKIE, Sessions, new_id
from gantrymq.console.settings import Settings
from gantrymq.errors import ConfigError, GantryError
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: Interval between two checks of the users of sessions, s.
CHECK_S = 5.0
#: Largest number of pending logins. The console checks passwords one after the other, 0.1 s each.
MAX_LOGINS = 64
#: After MAX_FAILURES within WITHIN_S, an address cannot log in until the oldest failure is older than WITHIN_S. After
#: as many failures of a user name, from any addresses, a login with this name takes DELAY_S longer. A refusal would let
#: an attacker lock out other users.
MAX_FAILURES = 5
WITHIN_S = 60.0
DELAY_S = 2.0
#: Largest number of addresses and names whose failures are counted. The oldest entries are dropped.
MAX_KNOWN = 10_000
_VISITOR = "gantrymq.visitor"
#: Paths that are accessible without a login.
_OPEN = ("/login", "/language", "/static/")


class LoginAttempts:
    """Counts failed logins by key: an address or a user name. The caller passes the time, s."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, key: str, now: float) -> float:
        """Returns the seconds until the key has fewer than MAX_FAILURES failures; 0 if it has fewer."""
        recent = self._recent(key, now)
        return recent[0] + WITHIN_S - now if len(recent) >= MAX_FAILURES else 0.0

    def failed(self, key: str, now: float) -> None:
        recent = self._recent(key, now)
        self._failures[key] = [*recent[-(MAX_FAILURES - 1) :], now]
        self._failures.move_to_end(key)
        while len(self._failures) > MAX_KNOWN:
            self._failures.popitem(last=False)

    def succeeded(self, key: str, counted_at: float) -> None:
        """Removes the failure that was counted in advance at `counted_at`. Other failures still count."""
        failures = self._failures.get(key, [])
        if counted_at in failures:
            failures.remove(counted_at)
        if not failures:
            self._failures.pop(key, None)

    def _recent(self, key: str, now: float) -> list[float]:
        return [at for at in self._failures.get(key, ()) if now - at < WITHIN_S]


@dataclass(slots=True)
class Visitor:
    """The user of a request, with the user's rights. `user` is empty if the console has no login."""

    session_id: str
    user: str
    view: ClusterView
    csrf: str
    may_change: bool


class TooManyAttempts(GantryError):
    """Raised for too many failed or pending logins."""


class Access:
    """The logins and sessions of a console. All views share `limits`, `history` and the thread `gatherer`."""

    def __init__(self, settings: Settings, limits: RequestLimits, history: History, gatherer: LoopThread) -> None:
        self.settings = settings
        self._limits = limits
        self._history = history
        self._gatherer = gatherer
        self.own_view = ClusterView(settings, limits, settings.credentials, history, gatherer)
        self.sessions = Sessions()
        self._attempts = LoginAttempts()
        self._logins = 0
        self._check = Repeating("check the users of sessions", self.check_sessions, CHECK_S)
        self._login: Login | None = None
        if settings.login == "cluster":
            self._login = ClusterLogin(settings, limits)
        elif settings.users_file is not None:
            self._login = FileLogin(settings.users_file, settings.credentials)

    @property
    def requires_login(self) -> bool:
        """True if the console requires a login."""
        return self._login is not None

    def start(self) -> None:
        """Starts the periodic checks of sessions."""
        if self.requires_login:
            self._check.start()

    async def close(self) -> None:
        await self._check.stop()
        self.sessions.end_all()
        await self.close_ended()
        await self.own_view.close()

    async def close_ended(self) -> None:
        """Closes the views of sessions that have ended."""
        for view in self.sessions.take_ended():
            if view is not self.own_view:
                await view.close()

    async def check_sessions(self) -> None:
        """Ends the sessions of users that were removed or disabled, or whose password or role changed."""
        assert self._login is not None
        for session_id, session in self.sessions.open_ones(monotonic()).items():
            if not await self._login.is_current(session):
                log.info("closing the session of %r: the user was removed or changed", session.user)
                self.sessions.end(session_id)
        await self.close_ended()

    def is_open(self, visitor: Visitor) -> bool:
        """Returns True if the visitor's session is open, or if the console has no login."""
        return not self.requires_login or self.sessions.is_open(visitor.session_id, monotonic())

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Returns the visitor of a request; None if the visitor must log in."""
        session_id = connection.scope[_VISITOR]
        session = self.sessions.find(session_id, monotonic())
        may_change = not self.settings.read_only
        csrf = self.sessions.csrf_token(session_id)
        if session is not None:
            return Visitor(session_id, session.user, session.view, csrf, may_change and session.role == ADMIN)
        return None if self.requires_login else Visitor(session_id, "", self.own_view, csrf, may_change)

    def csrf_of(self, connection: HTTPConnection) -> str:
        """Returns the token for forms, also for visitors without a login."""
        return self.sessions.csrf_token(connection.scope[_VISITOR])

    def is_own_form(self, request: Request, token: str) -> bool:
        """Returns True if a form was sent from a page of this console (CSRF check)."""
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
            return False
        return self.sessions.is_token(request.scope[_VISITOR], token)

    async def enter(self, request: Request, name: str, password: str) -> str | None:
        """Logs in. Returns the id of a new session; None if the name or password is wrong.

        Raises TooManyAttempts, or a GantryError if the password cannot be checked.
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
        # The failure is counted in advance, so that the limit also holds for concurrent logins.
        self._attempts.failed(address, now)
        self._attempts.failed(user, now)
        self._logins += 1
        try:
            if is_delayed:
                await asyncio.sleep(DELAY_S)
            entry = await self._login.enter(name, password)
        except ConfigError as e:
            raise GantryError("the console can't read its users' file") from e
        finally:
            self._logins -= 1
        if entry is None:
            return None
        self._attempts.succeeded(address, now)
        self._attempts.succeeded(user, now)
        is_own = entry.credentials is self.settings.credentials
        view = (
            self.own_view
            if is_own
            else ClusterView(self.settings, self._limits, entry.credentials, self._history, self._gatherer)
        )
        return self.sessions.begin(entry.name, entry.role, view, monotonic(), entry.proof)

    def end(self, connection: HTTPConnection) -> None:
        """Ends the session of a request."""
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
    """Middleware that forwards a request only if its session is open, or if its path needs no login."""

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
                target = quote(path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""))
                refused = RedirectResponse(f"/login?next={target}", 303)
            await refused(scope, receive, with_cookie)
            return
        await self._app(scope, receive, send if path.startswith("/static/") else with_cookie)
        await access.close_ended()
