"""The header with which an administrator has a half message asked about again (`ResumeCheckHalfMessageRequestHeader`).

Those of END_TRANSACTION and CHECK_TRANSACTION_STATE are in `producer_headers`.
"""

from __future__ import annotations

from gantrymq.protocol.headers import Header


class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE (323); `msg_id` is an offset message id."""

    msg_id: str
    topic: str | None = None
