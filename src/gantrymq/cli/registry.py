"""The option `--registry`: bodies with schemas from a schema registry. Imported only with this option."""

from __future__ import annotations

import os
import sys

from gantrymq.codecs.registry.codec import RegistryCodec
from gantrymq.codecs.registry.settings import OptionNames, RegistrySettings, split_urls
from gantrymq.errors import CodecError
from gantrymq.logs import terminal_text
from gantrymq.protocol.message import MessageExt

#: Environment variables with credentials. Other users can see the options of a command, so there are none for this.
USER_INFO = "GANTRY_REGISTRY_USER_INFO"
TOKEN = "GANTRY_REGISTRY_TOKEN"
#: The number of bodies that cannot be decoded, of which each has a note.
_MAX_NOTES = 10
_NAMES = OptionNames(
    url="'--registry'",
    credentials=f"set {USER_INFO} (user:password) or {TOKEN} in the environment",
    user_info=f"the environment variable {USER_INFO}",
    authorities="environment variable SSL_CERT_FILE",
    tls="environment variable SSL_CERT_FILE",
    retry_timeout="check its address",
    other_schema="register a schema, or name another subject by '--subject'",
    no_prefix="it was sent without a schema registry",
    message="a subject with one message",
)


def settings(urls: str) -> RegistrySettings:
    """Returns the settings for the value of `--registry`. Raises ConfigError if it is invalid."""
    # An empty variable counts as unset.
    user_info, token = os.environ.get(USER_INFO) or None, os.environ.get(TOKEN) or None
    return RegistrySettings(split_urls(urls), user_info=user_info, token=token, names=_NAMES)


def subject_codec(urls: str, subject: str) -> RegistryCodec:
    """Returns a codec with the latest schema of the subject. Raises the errors of `RegistryCodec.load`."""
    codec = RegistryCodec(settings(urls), subject=subject)
    codec.load()
    return codec


class RegisteredBodies:
    """Shows bodies as JSON. A body that cannot be decoded is shown as it was sent, with a note on standard error."""

    def __init__(self, urls: str) -> None:
        self._codec = RegistryCodec(settings(urls))
        self._notes = 0

    def close(self) -> None:
        """Ends a request in progress, so that a signal ends the command at once."""
        self._codec.close()

    async def json(self, message: MessageExt) -> bytes | None:
        """Returns the value of a body as JSON; None if it cannot be decoded.

        Raises ClientError if the registry doesn't respond.
        """
        try:
            return self._codec.to_json(await self._codec.value_async(message))
        except CodecError as e:
            self._notes += 1
            if self._notes <= _MAX_NOTES:
                print(f"gantry: shown as it was sent: {terminal_text(str(e))}", file=sys.stderr)
            if self._notes == _MAX_NOTES:
                print("gantry: further bodies that cannot be decoded have no note", file=sys.stderr)
            return None
