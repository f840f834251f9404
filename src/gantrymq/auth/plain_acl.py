"""The content of plain_acl.yml: accounts, and addresses of clients that need no account.

Source: acl/plain/PlainPermissionManager, PlainAccessResource, common/Permission (RocketMQ 4.9 to 5.2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import msgspec
import yaml

from gantrymq.auth.address_pattern import Matches, parse_pattern
from gantrymq.errors import ConfigError
from gantrymq.protocol.acl_signature import Signer
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, retry_topic

log = logging.getLogger(__name__)

#: Keys must be longer than this, characters (`AclConstants`).
_SHORTEST_KEY = 6


class Perm(IntFlag):
    """The permission of an account on a topic or group."""

    DENY = 1
    PUB = 4
    SUB = 8

    @classmethod
    def parse(cls, text: str) -> Perm:
        """Parses a permission. Returns DENY for an unknown text."""
        return _PERMS.get(text.strip(), cls.DENY)

    def __str__(self) -> str:
        return "|".join(perm.name or "" for perm in self)


_PERMS = {"PUB": Perm.PUB, "SUB": Perm.SUB, "PUB|SUB": Perm.PUB | Perm.SUB, "SUB|PUB": Perm.PUB | Perm.SUB}


@dataclass(slots=True, frozen=True)
class Account:
    """One account. `signer` has its secret key, `perms` the permissions by topic (for a group: its retry topic)."""

    access_key: str
    signer: Signer
    is_trusted: Matches
    is_admin: bool
    default_topic_perm: Perm
    default_group_perm: Perm
    perms: dict[str, Perm]


@dataclass(slots=True, frozen=True)
class PlainAcl:
    """The accounts by access key. `trusted` matches the addresses of clients that need no account."""

    accounts: dict[str, Account]
    trusted: list[Matches]

    @classmethod
    def merge(cls, parts: Iterable[PlainAcl]) -> PlainAcl:
        """Merges the contents of several files. If an access key occurs twice, only its first account is used."""
        merged = cls({}, [])
        for part in parts:
            merged.trusted.extend(part.trusted)
            for access_key, account in part.accounts.items():
                if merged.accounts.setdefault(access_key, account) is not account:
                    log.warning("accessKey %s is in several files: using the first one", access_key)
        return merged


class _Account(msgspec.Struct, rename="camel"):
    """An account in the form of the file."""

    access_key: str
    secret_key: str
    white_remote_address: str = ""
    admin: str = "false"
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: list[str] = []
    group_perms: list[str] = []


class _File(msgspec.Struct, rename="camel"):
    """The content of the file, not yet converted."""

    global_white_remote_addresses: list[str] = []
    accounts: list[_Account] = []


def parse_plain_acl(data: bytes, source: str) -> PlainAcl:
    """Parses a file. Raises ConfigError for an invalid file. The message names `source` and contains no secret."""
    try:
        # BaseLoader keeps all values as text, because a key can consist of digits.
        document = yaml.load(data, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as e:
        # Only the position is used, because the error's text contains parts of the file.
        where = "" if e.problem_mark is None else f", line {e.problem_mark.line + 1}"
        raise ConfigError(f"{source}{where}: invalid YAML: {e.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise ConfigError(f"{source}: invalid YAML: {type(e).__name__}") from None
    try:
        content = msgspec.convert(_without_blanks(document) or {}, _File)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{source}: {e}") from e
    acl = PlainAcl({}, [])
    for pattern in content.global_white_remote_addresses:
        acl.trusted.append(_pattern(pattern, f"{source}: globalWhiteRemoteAddresses"))
    for given in content.accounts:
        account = _account(given, f"{source}: accessKey {given.access_key}")
        if acl.accounts.setdefault(account.access_key, account) is not account:
            log.warning("%s: accessKey %s occurs twice: using the first one", source, account.access_key)
    return acl


def _account(given: _Account, named: str) -> Account:
    """Converts an account. Raises ConfigError with `named` in the message if it is invalid."""
    if len(given.access_key) <= _SHORTEST_KEY or len(given.secret_key) <= _SHORTEST_KEY:
        raise ConfigError(f"{named}: accessKey and secretKey must have more than {_SHORTEST_KEY} characters")
    perms = {retry_topic(name): perm for name, perm in _resource_perms(given.group_perms, f"{named}: groupPerms")}
    perms.update(_resource_perms(given.topic_perms, f"{named}: topicPerms"))
    return Account(
        given.access_key,
        Signer(given.secret_key),
        _pattern(given.white_remote_address, f"{named}: whiteRemoteAddress"),
        given.admin.lower() == "true",
        Perm.parse(given.default_topic_perm),
        Perm.parse(given.default_group_perm),
        perms,
    )


def _resource_perms(texts: list[str], named: str) -> Iterable[tuple[str, Perm]]:
    for text in texts:
        name, equals, perm = text.partition("=")
        if not equals or not name.strip() or "=" in perm:
            raise ConfigError(f"{named}: {text!r}: expected NAME=PERMISSION")
        yield name.strip(), Perm.parse(perm)


def _pattern(text: str, named: str) -> Matches:
    try:
        return parse_pattern(text)
    except ValueError as e:
        raise ConfigError(f"{named}: {e}") from e


def _without_blanks(value: Any) -> Any:
    """Removes keys without a value, which BaseLoader reads as empty text."""
    if isinstance(value, dict):
        return {k: _without_blanks(v) for k, v in value.items() if v not in ("", "~", "null")}
    if isinstance(value, list):
        return [_without_blanks(v) for v in value]
    return value


def resource_text(resource: str) -> str:
    """Returns topic:NAME or group:NAME, for messages."""
    if resource.startswith(RETRY_TOPIC_PREFIX):
        return f"group:{resource.removeprefix(RETRY_TOPIC_PREFIX)}"
    return f"topic:{resource}"
