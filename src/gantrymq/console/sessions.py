"""Sessions of browsers.

A browser has only a random id in a signed cookie. The keys and rights of the user stay in this process, so all sessions
end with the process. A visitor without a login also has an id, from which the token for forms is derived. The process
stores no state for such a visitor.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from itsdangerous import BadSignature, Signer

from gantrymq.console.cluster_view import ClusterView

COOKIE = "gantry_console"
#: A session ends after IDLE_S without a request, and after LONGEST_S in any case.
IDLE_S = 2 * 3600.0
LONGEST_S = 12 * 3600.0
MAX_SESSIONS = 500


@dataclass(slots=True)
class Session:
    """The session of a logged-in user. For users in a file, `proof` is the hash of the password."""

    user: str
    role: str
    view: ClusterView
    began: float
    seen: float
    proof: str = ""

    def is_over(self, now: float) -> bool:
        return now - self.seen > IDLE_S or now - self.began > LONGEST_S


class Sessions:
    """All sessions of a console. The caller passes the time, s, and closes the views that `take_ended` returns."""

    def __init__(self) -> None:
        key = secrets.token_bytes(32)
        self._signer = Signer(key, salt="gantrymq.console.session", digest_method=hashlib.sha256)
        self._csrf_key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._ended: list[ClusterView] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def id_of(self, cookie: str | None) -> str | None:
        """Returns the id in a cookie if this process has signed the cookie, otherwise None."""
        if not cookie or len(cookie) > 200:
            return None
        try:
            return self._signer.unsign(cookie).decode()
        except (BadSignature, UnicodeDecodeError):
            return None

    def cookie_of(self, session_id: str) -> str:
        return self._signer.sign(session_id).decode()

    def find(self, session_id: str | None, now: float) -> Session | None:
        """Returns the session with this id and counts the call as a use; None if there is no such session."""
        session = self._sessions.get(session_id or "")
        if session is None or session_id is None:
            return None
        if session.is_over(now):
            self.end(session_id)
            return None
        session.seen = now
        self._sessions.move_to_end(session_id)
        return session

    def is_open(self, session_id: str, now: float) -> bool:
        """Returns True if the session is open. Unlike `find`, a call does not count as a use."""
        session = self._sessions.get(session_id)
        return session is not None and not session.is_over(now)

    def open_ones(self, now: float) -> dict[str, Session]:
        """Ends the expired sessions, and returns the open sessions by id."""
        for session_id in [one for one, session in self._sessions.items() if session.is_over(now)]:
            self.end(session_id)
        return dict(self._sessions)

    def begin(self, user: str, role: str, view: ClusterView, now: float, proof: str = "") -> str:
        """Starts a session and returns its new id. The visitor's id before the login is never reused."""
        session_id = new_id()
        self._sessions[session_id] = Session(user, role, view, now, now, proof)
        while len(self._sessions) > MAX_SESSIONS:
            self.end(next(iter(self._sessions)))
        return session_id

    def end(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._ended.append(session.view)

    def end_all(self) -> None:
        for session_id in list(self._sessions):
            self.end(session_id)

    def take_ended(self) -> list[ClusterView]:
        """Returns the views of the sessions that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def csrf_token(self, session_id: str) -> str:
        """Returns the token for this visitor's forms."""
        return hmac.new(self._csrf_key, session_id.encode(), "sha256").hexdigest()

    def is_token(self, session_id: str, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token(session_id).encode(), token.encode())


def new_id() -> str:
    return secrets.token_urlsafe(24)
