"""The two kinds of login: users of the cluster, or users in a file."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import NamedTuple, Protocol

import argon2

from gantrymq.client.credentials import Credentials
from gantrymq.console.request_limits import LimitedAdmin, RequestLimits
from gantrymq.console.sessions import Session
from gantrymq.console.settings import Settings
from gantrymq.errors import BrokerError, ConfigError, GantryError, RefusalReason
from gantrymq.protocol.codes import ResponseCode

ADMIN, VIEWER = "admin", "viewer"
_MAX_NAME = 128
#: Hash for unknown names, so that their check takes as long as the check of a wrong password.
_NOBODYS = "$argon2id$v=19$m=65536,t=3,p=4$v50Wn8mNZt+uNYShoSJesQ$X4H5nepbojaBRJ5h/1fodBKJ58CasLvp4DI+ZzWYB24"
_MAX_PASSWORD = 1024


class Entry(NamedTuple):
    """A successful login. `credentials` sign the user's requests. `proof` is the hash of the password."""

    name: str
    role: str
    credentials: Credentials | None
    proof: str = ""


class Login(Protocol):
    async def enter(self, name: str, password: str) -> Entry | None:
        """Checks name and password. Returns None if either is wrong. Raises GantryError if the check fails."""
        ...

    async def is_current(self, session: Session) -> bool:
        """Returns True if the user of a session could log in again, or if the check fails."""
        ...


class ClusterLogin:
    """Login with the users of RocketMQ 5.x. The brokers check the rights of each request."""

    def __init__(self, settings: Settings, limits: RequestLimits) -> None:
        self._settings = settings
        self._limits = limits

    async def enter(self, name: str, password: str) -> Entry | None:
        """Accepts the password if any broker accepts it. Brokers with different names can have different users."""
        if not name.strip() or not password.strip() or max(len(name), len(password)) > _MAX_PASSWORD:
            return None
        credentials = Credentials(name, password)
        is_refused = is_unchecked = False
        error: GantryError = GantryError("no broker is registered that could check the password")
        async with self._admin(credentials) as admin, self._admin(Credentials(name, secrets.token_hex())) as guess:
            for broker in (await admin.cluster_info()).broker_addr_table.values():
                for address in broker.broker_addrs.values():
                    try:
                        if not await _accepts(admin, address):
                            is_refused = True
                        elif await _accepts(guess, address):
                            is_unchecked = True
                        else:
                            return Entry(name, ADMIN, credentials)
                    except GantryError as e:
                        error = e
                        continue
                    # One replica of each broker is enough, because all replicas have the same users.
                    break
        if is_refused:
            return None
        if is_unchecked:
            raise GantryError(
                "the brokers check no password: set authenticationEnabled=true to log in with their users"
            )
        raise error

    def _admin(self, credentials: Credentials) -> LimitedAdmin:
        settings = self._settings
        return LimitedAdmin(
            settings.name_servers,
            self._limits,
            credentials=credentials,
            ssl_context=settings.ssl_context,
            timeout_ms=settings.timeout_ms,
        )

    async def is_current(self, session: Session) -> bool:
        """Returns False if all brokers that respond reject the signature.

        The user is then unknown or disabled, or has another password.
        """
        admin = session.view.admin
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


async def _accepts(admin: LimitedAdmin, address: str) -> bool:
    """Returns True if the broker accepts the admin's signature. Raises GantryError without a response."""
    try:
        await admin.runtime_info(address)
    except BrokerError as e:
        if e.code != ResponseCode.NO_PERMISSION:
            raise
        return e.reason is RefusalReason.NOT_PERMITTED
    return True


class FileLogin:
    """Login with the users in a file with lines NAME:ROLE:HASH. The console's own keys sign their requests.

    The file is read for each login and each check of a session.
    """

    def __init__(self, path: Path, credentials: Credentials | None) -> None:
        self._path = path
        self._credentials = credentials
        self._hasher = argon2.PasswordHasher()
        # There is only one check at a time, because a check takes 64 MiB of memory.
        self._one_at_a_time = asyncio.Lock()
        self.users()

    def users(self) -> dict[str, tuple[str, str]]:
        """Reads the file. Returns {name: (role, hash)}. Raises ConfigError for an invalid file."""
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"can't read the users' file {self._path}: {_reason(e)}") from e
        users = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, role, hashed = [*line.strip().split(":", 2), "", ""][:3]
            if not name or role not in (ADMIN, VIEWER) or not hashed.startswith("$argon2"):
                raise ConfigError(
                    f"{self._path}, line {number}: expected NAME:admin:HASH or NAME:viewer:HASH, with a HASH of "
                    "'gantry console --hash-password'"
                )
            users[name] = (role, hashed)
        return users

    async def enter(self, name: str, password: str) -> Entry | None:
        if len(name) > _MAX_NAME or len(password) > _MAX_PASSWORD:
            return None
        role, hashed = self.users().get(name, ("", _NOBODYS))
        async with self._one_at_a_time:
            is_right = await asyncio.get_running_loop().run_in_executor(None, self._verify, hashed, password)
        return Entry(name, role, self._credentials, hashed) if is_right and role else None

    async def is_current(self, session: Session) -> bool:
        """Returns False if the user's line was removed or changed."""
        try:
            users = await asyncio.to_thread(self.users)
        except ConfigError:
            # The file may be incomplete while an editor writes it.
            return True
        return users.get(session.user) == (session.role, session.proof)

    def _verify(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return False


def hash_password(password: str) -> str:
    """Returns the argon2 hash of a password, for the users' file."""
    return argon2.PasswordHasher().hash(password)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
