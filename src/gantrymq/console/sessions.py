"""Sessions: who a request comes from.

A browser has a random id in a signed cookie, and nothing else: keys and rights of who has logged in stay in this
process, so all sessions end with it. A visitor without a login has an id, too, of which nothing is kept here; the token
that its forms bring back is made from it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from itsdangerous import BadSignature, Signer

from gantrymq.console.eye import Eye

COOKIE = "gantry_console"
#: A session that nobody uses ends after so long, any after so long, s.
IDLE_S = 2 * 3600.0
LONGEST_S = 12 * 3600.0
MAX_SESSIONS = 500


@dataclass(slots=True)
class Session:
    """Of a user who has logged in. `proof` is what the password was compared with, where the console has that."""

    user: str
    role: str
    eye: Eye
    began: float
    seen: float
    proof: str = ""

    def is_over(self, now: float) -> bool:
        return now - self.seen > IDLE_S or now - self.began > LONGEST_S


class Sessions:
    """Told the time. Who is dropped has to be closed: `ended` has their eyes."""

    def __init__(self) -> None:
        key = secrets.token_bytes(32)
        self._signer = Signer(key, salt="gantrymq.console.session", digest_method=hashlib.sha256)
        self._csrf_key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.ended: list[Eye] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def id_of(self, cookie: str | None) -> str | None:
        """The id that a cookie of ours has."""
        if not cookie or len(cookie) > 200:
            return None
        try:
            return self._signer.unsign(cookie).decode()
        except (BadSignature, UnicodeDecodeError):
            return None

    def cookie_of(self, session_id: str) -> str:
        return self._signer.sign(session_id).decode()

    def find(self, session_id: str | None, now: float) -> Session | None:
        """The session of who has logged in."""
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
        """Whether the session goes on. Unlike `find`, this is no use of the session."""
        session = self._sessions.get(session_id)
        return session is not None and not session.is_over(now)

    def open_ones(self, now: float) -> dict[str, Session]:
        """Those that go on, by id; the others end."""
        for session_id in [one for one, session in self._sessions.items() if session.is_over(now)]:
            self.end(session_id)
        return dict(self._sessions)

    def begin(self, user: str, role: str, eye: Eye, now: float, proof: str = "") -> str:
        """The id of a new session; ids from before a login never become one."""
        session_id = new_id()
        self._sessions[session_id] = Session(user, role, eye, now, now, proof)
        while len(self._sessions) > MAX_SESSIONS:
            self.end(next(iter(self._sessions)))
        return session_id

    def end(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.ended.append(session.eye)

    def end_all(self) -> None:
        for session_id in list(self._sessions):
            self.end(session_id)

    def csrf_token(self, session_id: str) -> str:
        """What forms of this visitor bring along."""
        return hmac.new(self._csrf_key, session_id.encode(), "sha256").hexdigest()

    def is_token(self, session_id: str, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token(session_id).encode(), token.encode())


def new_id() -> str:
    return secrets.token_urlsafe(24)
