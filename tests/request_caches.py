"""The caches of the request decoders."""

from __future__ import annotations

from gantrymq.protocol import pull_request, send_request

send_targets = send_request._targets
pull_fields = pull_request._remembered


def clear_send_caches() -> None:
    send_request._targets.clear()
    send_request._options.clear()
