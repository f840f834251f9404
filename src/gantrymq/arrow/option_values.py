"""`Values` parses the options of a read or a write. Every error names its option."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import overload

from gantrymq.arrow.client_settings import PREFIX, NewTopic, unknown_setting
from gantrymq.arrow.columns import READ_COLUMNS
from gantrymq.arrow.offsets import LARGEST_NUMBER, Boundary, load_json, parse_boundary, parse_queues, parse_times
from gantrymq.arrow.security import Security
from gantrymq.client.credentials import Credentials
from gantrymq.contexts import Context, Contexts
from gantrymq.errors import ClientError, ConfigError
from gantrymq.filter.sql import compile_sql
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.reserved_properties import KEEPABLE
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC, topic_problem
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.tls import TlsConfig

_APP_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_LAST_VERSION = 10**18 - 1
#: The pattern is stricter than `int`, which also accepts `1_0` and digits of other scripts.
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,100}")
#: A duration in Spark's notation, and its units in ms.
_DURATION = re.compile(r"([0-9]{1,18})\s*([a-z]*)")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Access keys and TLS. The TLS options have the names of Apache's clients.
SECURITY = (
    "accessKey",
    "secretKey",
    "securityToken",
    "tls.enable",
    "tls.client.authServer",
    "tls.client.checkServerName",
    "tls.client.trustCertPath",
    "tls.client.certPath",
    "tls.client.keyPath",
    "tls.client.keyPassword",
    "tls.protocols",
    "tls.ciphers",
)
_SELECTIONS = ("subscribe", "subscribePattern", "assign")


class Values:
    """The options of a read or a write, with their names in the documented spelling."""

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], action: str, elsewhere: Iterable[str] = ()
    ) -> None:
        """Checks the names of the options.

        Args:
            options: The given options, with names in any case.
            known: The names of the options of this action.
            action: `read` or `write`, for errors.
            elsewhere: Names that only other actions have, for a better error.

        Raises:
            ConfigError: An option is not in `known`. The error has the most similar name, if there is one.
        """
        names = check_names(options, known, action, elsewhere)
        self._values = {name: str(value).strip() for name, value in zip(names, options.values(), strict=True)}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        return self._values.get(name) or None

    def required(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise ConfigError(f"option {name} is required")
        return value

    def context(self) -> Context | None:
        """Reads the context of the option from this machine; None without the option.

        Raises ConfigError.
        """
        name = self.get("context")
        return None if name is None else Contexts()[name]

    def name_servers(self) -> list[str]:
        text = self.get("nameServer")
        if text is None:
            context = self.context()
            if context is None:
                raise ConfigError(f"option nameServer is required, or option context{self._hint()}")
            text = context.namesrv_addr
        addresses = comma_list(text.replace(";", ","))
        for address in addresses:
            try:
                parse_address(address)
            except ValueError as e:
                raise ConfigError(f"option nameServer: {e}") from None
        return addresses

    def _hint(self) -> str:
        """Returns an addition to the errors about missing options."""
        return ""

    def exclude(self, *names: str) -> None:
        """Raises ConfigError if more than one of these options is given."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} exclude each other")

    def topics(self) -> tuple[list[str], list[MessageQueue] | None]:
        """The topics of subscribe or assign, and the queues of assign."""
        self.exclude(*_SELECTIONS)
        if not any(self.get(name) for name in _SELECTIONS):
            raise ConfigError(f"one of the options {', '.join(_SELECTIONS)} is required{self._hint()}")
        assigned = None
        name, topics = "subscribe", comma_list(self.get("subscribe") or "")
        if (text := self.get("assign")) is not None:
            assigned = parse_queues("assign", text)
            name, topics = "assign", list(dict.fromkeys(queue.topic for queue in assigned))
        for topic in topics:
            if problem := topic_problem(topic):
                raise ConfigError(f"option {name}: {problem}")
        if not topics and "subscribePattern" not in self:
            raise ConfigError(f"option {name} names no topic")
        return topics, assigned

    def pattern(self, name: str) -> str | None:
        text = self.get(name)
        try:
            re.compile(text or "")
        except re.error as e:
            raise ConfigError(f"option {name}: {text!r} is no regular expression: {e}") from None
        return text

    def boundary(self, kind: str) -> Boundary | None:
        """The boundary of one of the three options that begin with `kind`; None without them."""
        by_offset, by_time, by_times = names = (f"{kind}Offsets", f"{kind}Timestamp", f"{kind}OffsetsByTimestamp")
        self.exclude(*names)
        timestamp = self.number(by_time, None, 0)
        if timestamp is not None:
            return Boundary(timestamp_ms=timestamp)
        if (text := self.get(by_times)) is not None:
            return parse_times(by_times, text)
        text = self.get(by_offset)
        return None if text is None else parse_boundary(by_offset, text)

    def security(self) -> Security:
        if (context := self.context()) is not None:
            for name in SECURITY:
                self.exclude("context", name)
            return Security.of(context)
        access_key, secret_key, token = (self.get(name) for name in ("accessKey", "secretKey", "securityToken"))
        if (access_key is None) != (secret_key is None) or (token is not None and access_key is None):
            raise ConfigError("options accessKey and secretKey go together, and securityToken only with them")

        tls = TlsConfig(
            tls_enable=self.flag("tls.enable", False),
            tls_client_auth_server=self.flag("tls.client.authServer", False),
            tls_client_check_server_name=self.flag("tls.client.checkServerName", True),
            tls_client_trust_cert_path=self.path("tls.client.trustCertPath"),
            tls_client_cert_path=self.path("tls.client.certPath"),
            tls_client_key_path=self.path("tls.client.keyPath"),
            tls_client_key_password=self.get("tls.client.keyPassword"),
            tls_protocols=self.get("tls.protocols"),
            tls_ciphers=self.get("tls.ciphers"),
        )
        if access_key is None or secret_key is None:
            return Security(tls=tls)
        return Security(Credentials(access_key, secret_key, token), tls)

    def new_topic(self) -> NewTopic:
        """The settings of a topic that the write creates."""
        default = NewTopic()
        return NewTopic(
            create_topic_key=self.get(f"{PREFIX}create_topic_key") or default.create_topic_key,
            default_topic_queue_nums=self.number(
                f"{PREFIX}default_topic_queue_nums", default.default_topic_queue_nums, 1
            ),
            unit_mode=self.flag(f"{PREFIX}unit_mode", default.unit_mode),
        )

    def path(self, name: str) -> Path | None:
        text = self.get(name)
        return None if text is None else Path(text)

    @overload
    def number(self, name: str, default: int, least: int) -> int: ...

    @overload
    def number(self, name: str, default: None, least: int) -> int | None: ...

    def number(self, name: str, default: int | None, least: int) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ConfigError(f"option {name}: {text[:100]!r} is no whole number")
        number = int(text)
        if number < least:
            raise ConfigError(f"option {name}: {number} is less than {least}")
        if number > LARGEST_NUMBER:
            raise ConfigError(f"option {name}: {number} is more than {LARGEST_NUMBER}")
        return number

    def duration_ms(self, name: str, default_ms: int) -> int:
        """The value of the option in ms. Without a unit, it is in ms. Raises ConfigError."""
        text = self.get(name)
        if text is None:
            return default_ms
        match = _DURATION.fullmatch(text.lower())
        if match is None or match[2] not in _UNITS_MS:
            raise ConfigError(f"option {name}: {text[:100]!r} is no duration; 500ms, 30s, 15m, 2h and 1d are examples")
        return int(match[1]) * _UNITS_MS[match[2]]

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default)) == "true"

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        """The value of the option, in lower case. Raises ConfigError if it is not in `allowed`."""
        words = tuple(allowed)
        text = (self.get(name) or default).lower()
        if text not in words:
            wrong = f"neither {words[0]} nor {words[1]}" if len(words) == 2 else f"none of {', '.join(words)}"
            raise ConfigError(f"option {name}: {text!r} is {wrong}")
        return text

    def property_columns(self) -> tuple[str, ...]:
        names = comma_list(self.get("propertyColumns") or "")
        # Names are case-insensitive, like Spark's column names.
        taken = {name.lower(): "a read has a column of this name" for name in READ_COLUMNS}
        for name in names:
            if (problem := taken.get(name.lower())) is not None:
                raise ConfigError(f"option propertyColumns: {name!r}: {problem}")
            taken[name.lower()] = "it is there twice"
        return tuple(names)


def check_names(options: Iterable[str], known: Iterable[str], action: str, elsewhere: Iterable[str] = ()) -> list[str]:
    """Returns the names of `options` in the documented spelling. Arguments and errors are those of `Values`."""
    proper = {name.lower(): name for name in known}
    names = []
    for given in options:
        name = proper.get(given.lower())
        if name is None:
            raise ConfigError(_unknown(given, proper, action, elsewhere))
        names.append(name)
    return names


def _unknown(given: str, proper: Mapping[str, str], action: str, elsewhere: Iterable[str]) -> str:
    if given.lower().startswith(PREFIX):
        return unknown_setting(given, action, proper.values())
    near = get_close_matches(given.lower(), proper, 1)
    if near:
        return f"no option {given!r}: did you mean {proper[near[0]]!r}?"
    if given.lower() in {name.lower() for name in elsewhere}:
        return f"option {given!r} has no meaning in a {action}"
    known = ", ".join(sorted(proper.values()))
    return f"no option {given!r} in a {action}; there are {known}"


def comma_list(text: str) -> list[str]:
    """The distinct parts of a comma-separated list, without surrounding blanks and empty parts."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def expected_brokers(text: str | None) -> dict[str, frozenset[str]]:
    """{topic: its brokers} of the option expectedBrokers; the key "" is for all topics. Raises ConfigError."""
    if text is None:
        return {}
    if not text.startswith("{"):
        return {"": frozenset(comma_list(text))}
    try:
        by_topic = load_json(text)
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option expectedBrokers is neither a list nor JSON: {e}") from e
    for brokers in by_topic.values():
        if not isinstance(brokers, list) or not all(isinstance(broker, str) for broker in brokers):
            raise ConfigError(f'option expectedBrokers: {{"topic": ["broker", ...]}} was expected, not {text}')
    return {topic: frozenset(brokers) for topic, brokers in by_topic.items()}


def transaction_of(name: str | None, number: int | None) -> tuple[str, int] | None:
    """Checks and pairs the options txnAppId and txnVersion; None without them. Raises ConfigError."""
    if (name is None) != (number is None):
        raise ConfigError("options txnAppId and txnVersion go together")
    if name is None or number is None:
        return None
    if not _APP_ID.fullmatch(name) or number > _LAST_VERSION:
        raise ConfigError(f"txnAppId has 1 to 100 letters, digits and -_.: and txnVersion is at most {_LAST_VERSION}")
    return name, number


def kept_properties(text: str) -> frozenset[str]:
    """The names of the option keepProperties. Raises ConfigError for a property that a new message cannot keep."""
    kept = comma_list(text)
    if wrong := [name for name in kept if name not in KEEPABLE]:
        raise ConfigError(f"option keepProperties: {wrong[0]!r} can't be kept, but {', '.join(KEEPABLE)}")
    return frozenset(kept)


def checked_tags(text: str | None, topics: Iterable[str]) -> str | None:
    """The tag expression, or None for all messages.

    Raises ConfigError for tags that a broker would accept but never match, because the read would silently be empty.
    """
    if text is None or text == SUBSCRIBE_ALL:
        return None
    tags = [tag.strip() for tag in text.split("||")]
    for tag in tags:
        if tag in ("", SUBSCRIBE_ALL) or "|" in tag or "," in tag:
            raise ConfigError(f"option tags: {tag!r} in {text!r} is no tag; TagA || TagB is an example")
    if SCHEDULE_TOPIC in topics:
        raise ConfigError(
            f"option tags: brokers don't know those in {SCHEDULE_TOPIC}; a condition on the column tags does"
        )
    return text


def checked_sql92(text: str | None) -> str | None:
    """The SQL92 expression, compiled as a check. Raises ConfigError with the position and the reason."""
    if text is not None:
        try:
            compile_sql(text)
        except ClientError as e:
            raise ConfigError(f"option sql92: {e}") from e
    return text
