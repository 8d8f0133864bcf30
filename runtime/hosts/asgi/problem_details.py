"""Errors over HTTP as problem details (RFC 9457), without argument values and internal details."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from callgate.tools.calls import ErrorInfo, Issue, Outcome, ToolResult

PROBLEM_JSON = b"application/problem+json"

STATUS: Mapping[Outcome, int] = {
    Outcome.INVALID: 422,
    Outcome.DENIED: 403,
    Outcome.RETRY_LATER: 429,
    Outcome.SUSPENDED: 202,
    Outcome.ERROR: 500,
    Outcome.CANCELLED: 503,
    Outcome.CONFLICT: 409,
    Outcome.IN_FLIGHT: 409,
    Outcome.UNKNOWN: 504,
}
"""The HTTP status of an outcome, unless its error code has a status."""

IN_FLIGHT_PAUSE = 1000
"""Milliseconds after which a client may ask again for a call that is running; its end is not known."""

_BY_CODE = {"unknown_tool": 404, "deadline_exceeded": 504, "idle_timeout": 504, "too_large": 413}
_DEFAULT = ErrorInfo("error", "The call failed.")


class Disconnected(Exception):
    """The client has disconnected."""


class Problem(Exception):
    """An error response. ``detail`` is public; ``headers`` are added to the response."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        issues: Iterable[Issue] = (),
        correlation_id: str | None = None,
        retry_after: int | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.issues = tuple(issues)
        self.correlation_id = correlation_id
        self.retry_after = retry_after
        self.headers = list(headers)
        if retry_after is not None:
            self.headers.append((b"retry-after", str(max(1, math.ceil(retry_after / 1000))).encode()))

    def document(self) -> dict[str, object]:
        """Return the problem document. ``errors`` point into the arguments; ``retry_after_ms`` is in milliseconds."""
        document: dict[str, object] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.correlation_id is not None:
            document["correlation_id"] = self.correlation_id
        if self.issues:
            document["errors"] = [
                {"pointer": issue.pointer, "keyword": issue.keyword, "detail": issue.expected} for issue in self.issues
            ]
        if self.retry_after is not None:
            document["retry_after_ms"] = self.retry_after
        return document

    def body(self) -> bytes:
        """Return the document as JSON, in ASCII: any text can be encoded."""
        return json.dumps(self.document(), separators=(",", ":")).encode()


def status_of(result: ToolResult) -> int:
    """Return the HTTP status of a result."""
    if result.ok:
        return 200
    error = result.error or _DEFAULT
    own = getattr(error, "http_status", None)
    if result.outcome is Outcome.DENIED and isinstance(own, int) and 400 <= own < 500 and _has_phrase(own):
        return own
    return _BY_CODE.get(error.code) or STATUS.get(result.outcome, 500)


def problem_of(result: ToolResult, correlation_id: str) -> Problem:
    """Convert a result without an output to a problem."""
    error, retry_after = result.error or _DEFAULT, result.retry_after
    if retry_after is None and result.outcome is Outcome.IN_FLIGHT:
        retry_after = IN_FLIGHT_PAUSE
    return Problem(
        status_of(result),
        error.code,
        error.public,
        issues=error.issues,
        correlation_id=error.correlation_id or correlation_id,
        retry_after=retry_after,
    )


def not_open() -> Problem:
    """Return the problem of a gate that is not open."""
    return Problem(503, "gate_closed", "The service is not available.")


def _has_phrase(status: int) -> bool:
    return status in set(HTTPStatus)
