"""Logins: who a visitor is, by the cluster's own users or by those of a file."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import argon2

from gantrymq.client.acl_hook import AclHook
from gantrymq.console.limited import LimitedAdmin, Limits
from gantrymq.console.sessions import Session
from gantrymq.console.settings import Settings
from gantrymq.errors import BrokerError, ConfigError, GantryError, RefusalReason
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import RpcHook

ADMIN, VIEWER = "admin", "viewer"
_MAX_NAME = 128
#: Of a password that nobody has: an unknown name takes as long as a wrong password.
_NOBODYS = "$argon2id$v=19$m=65536,t=3,p=4$v50Wn8mNZt+uNYShoSJesQ$X4H5nepbojaBRJ5h/1fodBKJ58CasLvp4DI+ZzWYB24"
_MAX_PASSWORD = 1024


class Entry(NamedTuple):
    """Who came in: `hooks` sign this user's questions; a viewer changes nothing. `proof` is the password's hash."""

    name: str
    role: str
    hooks: Sequence[RpcHook]
    proof: str = ""


class Login(Protocol):
    async def enter(self, name: str, password: str) -> Entry | None:
        """None for a name or password that is wrong. Raises GantryError when that can't be found out."""
        ...

    async def is_current(self, session: Session) -> bool:
        """Whether the user of a session could still log in as it did. True when that can't be found out."""
        ...


class ClusterLogin:
    """The users of RocketMQ 5.x: what a user may see and do is for brokers to say, of each question."""

    def __init__(self, settings: Settings, limits: Limits) -> None:
        self._settings = settings
        self._limits = limits

    async def enter(self, name: str, password: str) -> Entry | None:
        if not name.strip() or not password.strip() or max(len(name), len(password)) > _MAX_PASSWORD:
            return None
        # A broker that only authorizes takes the name at its word: then a wrong password is as good as the right one.
        if await self._is_known(AclHook(name, secrets.token_hex())):
            raise GantryError("the brokers check no password (authenticationEnabled=false): nobody can log in")
        hook = AclHook(name, password)
        return Entry(name, ADMIN, [hook]) if await self._is_known(hook) else None

    async def _is_known(self, hook: AclHook) -> bool:
        """Whether the first broker that answers takes what this hook signs."""
        settings = self._settings
        async with LimitedAdmin(
            settings.name_servers,
            self._limits,
            hooks=[hook],
            ssl_context=settings.ssl_context,
            timeout_ms=settings.timeout_ms,
        ) as admin:
            info = await admin.cluster_info()
            error: GantryError = GantryError("the NameServers know no broker that could say who you are")
            for broker in info.broker_addr_table.values():
                for address in broker.broker_addrs.values():
                    try:
                        await admin.runtime_info(address)
                    except BrokerError as e:
                        if e.code != ResponseCode.NO_PERMISSION:
                            error = e
                            continue
                        return e.reason is RefusalReason.NOT_PERMITTED
                    except GantryError as e:
                        error = e
                        continue
                    return True
            raise error

    async def is_current(self, session: Session) -> bool:
        """False when the brokers that answer don't know the user with this password, or it is disabled."""
        admin = session.eye.admin
        is_refused = False
        try:
            brokers = (await admin.cluster_info()).broker_addr_table.values()
        except GantryError:
            return True
        for address in [address for broker in brokers for address in broker.broker_addrs.values()]:
            try:
                await admin.runtime_info(address)
                return True
            except BrokerError as e:
                if e.code == ResponseCode.NO_PERMISSION:
                    if e.reason is RefusalReason.NOT_PERMITTED:
                        return True
                    is_refused = True
            except GantryError:
                continue
        return not is_refused


class FileLogin:
    """Users of a file, NAME:ROLE:HASH a line, with an argon2 hash; the console asks with its own keys for all of them.

    The file is read for each login, and to see whether a session's user is still in it.
    """

    def __init__(self, path: Path, hooks: Sequence[RpcHook]) -> None:
        self._path = path
        self._hooks = hooks
        self._hasher = argon2.PasswordHasher()
        # A check takes 64 MiB.
        self._one_at_a_time = asyncio.Lock()
        self.users()

    def users(self) -> dict[str, tuple[str, str]]:
        """{name: (role, hash)}. Raises ConfigError."""
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"can't read {self._path}: {e}") from e
        users = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, role, hashed = [*line.strip().split(":", 2), "", ""][:3]
            if not name or role not in (ADMIN, VIEWER) or not hashed.startswith("$argon2"):
                raise ConfigError(f"{self._path}, line {number}: NAME:admin|viewer:ARGON2HASH is wanted")
            users[name] = (role, hashed)
        return users

    async def enter(self, name: str, password: str) -> Entry | None:
        if len(name) > _MAX_NAME or len(password) > _MAX_PASSWORD:
            return None
        role, hashed = self.users().get(name, ("", _NOBODYS))
        async with self._one_at_a_time:
            is_right = await asyncio.get_running_loop().run_in_executor(None, self._verify, hashed, password)
        return Entry(name, role, self._hooks, hashed) if is_right and role else None

    async def is_current(self, session: Session) -> bool:
        """False when the line of the user is gone or another one."""
        try:
            users = await asyncio.to_thread(self.users)
        except ConfigError:
            # Perhaps it is being written.
            return True
        return users.get(session.user) == (session.role, session.proof)

    def _verify(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return False


def hash_password(password: str) -> str:
    """What the users' file has of a password."""
    return argon2.PasswordHasher().hash(password)
