"""`RegistryOptions`: the options of a schema registry with Confluent's REST interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gantrymq.arrow.option_values import Values
from gantrymq.codecs.registry.settings import OptionNames, RegistrySettings, split_urls
from gantrymq.errors import ConfigError

URL = "schema.registry.url"
SUBJECT = "schema.registry.subject"
USER_INFO = "schema.registry.basic.auth.user.info"
TOKEN = "schema.registry.bearer.auth.token"
AUTHORITIES = "schema.registry.ssl.ca.location"
CERTIFICATE = "schema.registry.ssl.certificate.location"
KEY = "schema.registry.ssl.key.location"
#: The names are the same as in Confluent's clients, except subject and version, which these clients pass with each
#: call.
REGISTRY_OPTIONS = (URL, SUBJECT, "schema.registry.version", USER_INFO, TOKEN, AUTHORITIES, CERTIFICATE, KEY)
DEFAULT_RETRY_TIMEOUT_MS = 60_000
NAMES = OptionNames(
    url=f"option {URL}",
    credentials=f"options {USER_INFO} and {TOKEN}",
    user_info=f"option {USER_INFO}",
    authorities=f"option {AUTHORITIES}",
    tls=f"options {AUTHORITIES}, {CERTIFICATE} and {KEY}",
    retry_timeout="option retryTimeoutMs",
    other_schema=f"name another by option {SUBJECT}, or give the schema itself by bodySchema or bodySchemaFile",
    register="register it, or set option auto.register.schemas to true",
    no_prefix=f"bodies without them are read without the option {URL}",
    message="option bodyMessage",
    descriptor_set="give a descriptor set by option bodySchemaFile",
)


@dataclass(slots=True, frozen=True)
class RegistryOptions:
    """The addresses of the registry, the credentials and the subject.

    Options:
        schema.registry.url: `http://host:8081`, several instances of one registry separated by commas.
        schema.registry.subject: The subject of the schema. Default: TOPIC-value, if the query has one topic.
        schema.registry.version: The version of the schema, a number or `latest`. Default: `latest`.
        schema.registry.basic.auth.user.info: `user:password`.
        schema.registry.bearer.auth.token: A token in place of user and password.
        schema.registry.ssl.ca.location: A file with certificate authorities. Default: those of the system.
        schema.registry.ssl.certificate.location: The client certificate.
        schema.registry.ssl.key.location: The key of the client certificate. TLS files must exist on the driver and on
            the executors.
    """

    connection: RegistrySettings
    subject: str | None = None
    #: None for the latest version.
    version: int | None = None

    @classmethod
    def parse(cls, values: Values, topics: Sequence[str]) -> RegistryOptions | None:
        """Parses the options; returns None without schema.registry.url. Raises ConfigError for an invalid option."""
        text = values.get(URL)
        if text is None:
            given = [name for name in REGISTRY_OPTIONS if name in values]
            if given:
                raise ConfigError(f"option {given[0]} has no meaning without {URL}")
            return None
        values.exclude(USER_INFO, TOKEN)
        if KEY in values and CERTIFICATE not in values:
            raise ConfigError(f"option {KEY} has no meaning without {CERTIFICATE}")
        version = values.get("schema.registry.version")
        connection = RegistrySettings(
            urls=split_urls(text),
            user_info=values.get(USER_INFO),
            token=values.get(TOKEN),
            authorities=values.path(AUTHORITIES),
            certificate=values.path(CERTIFICATE),
            key=values.path(KEY),
            retry_timeout_s=values.number("retryTimeoutMs", DEFAULT_RETRY_TIMEOUT_MS, 0) / 1000,
            names=NAMES,
        )
        return cls(
            connection,
            subject=values.get(SUBJECT) or (f"{topics[0]}-value" if len(topics) == 1 else None),
            version=None if version in (None, "latest") else values.number("schema.registry.version", None, 1),
        )

    def required_subject(self) -> str:
        """Returns the subject. Raises ConfigError without a subject, unless the query has exactly one topic."""
        if self.subject is None:
            raise ConfigError(
                f"option {SUBJECT}, a name in the registry, is required unless the query has exactly one topic"
            )
        return self.subject
