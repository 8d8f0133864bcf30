"""What comes in and what goes out: users, tool calls, outcomes, results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from callgate.providers.principal import ANONYMOUS, User

__all__ = ["ANONYMOUS", "ErrorInfo", "Issue", "Outcome", "ToolCall", "ToolResult", "User"]


class Outcome(StrEnum):
    """How an invocation ended."""

    SUCCESS = "success"
    INVALID = "invalid"
    DENIED = "denied"
    RETRY_LATER = "retry_later"
    SUSPENDED = "suspended"
    ERROR = "error"
    CANCELLED = "cancelled"
    CONFLICT = "conflict"
    IN_FLIGHT = "in_flight"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a caller asks for (contract 75).

    ``arguments`` is a JSON object, the JSON text of one, or None for no arguments; untrusted until hydrated.
    ``id`` is the provider's call id, or one made for it (``synthetic_id=True``).
    ``truncated`` says that the provider stopped for length: such a call is refused, whatever its text.
    ``chunk`` is the part of the provider's answer that it was read from, for provenance (contract 46).
    """

    id: str
    tool: str
    arguments: Any = None
    synthetic_id: bool = False
    truncated: bool = False
    chunk: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Issue:
    """One way in which a value breaks a schema; carries no value (contract 49, C7).

    ``pointer`` is a JSON Pointer into the value, ``keyword`` the schema keyword, ``expected`` what would be right.
    """

    pointer: str
    keyword: str
    expected: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.expected}"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What a model may know of a failure: a code, public text, value-free issues, and an id to look up the rest."""

    code: str
    public: str
    issues: tuple[Issue, ...] = ()
    correlation_id: str | None = None
    http_status: int | None = field(default=None, repr=False, compare=False)  # for hosts that answer over HTTP

    @property
    def pointer(self) -> str | None:
        """JSON Pointer of the first issue, when there is one."""
        return self.issues[0].pointer if self.issues else None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one call; ``gate.call`` returns one for every call (contract 76, C11).

    ``retry_after`` is in milliseconds, ``duration`` in seconds. ``output`` is a JSON value.
    """

    call_id: str
    tool: str
    outcome: Outcome
    output: Any = None
    error: ErrorInfo | None = None
    retry_after: int | None = None
    pending: Any = None
    replayed: bool = False
    pending_release: bool = False
    duration: float | None = None
    provenance: Any = field(default=None, repr=False)
    trace: Any = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether the tool ran, or was replayed, to a result."""
        return self.outcome is Outcome.SUCCESS

    def to_status(self) -> Mapping[str, Any]:
        """The ``{callId, toolName, status, output | error, metadata}`` shape (contract 76)."""
        body: dict[str, Any] = {"callId": self.call_id, "toolName": self.tool}
        if self.ok:
            body |= {"status": "success", "output": self.output}
        else:
            body |= {"status": "error", "error": self.error.public if self.error else self.outcome.value}
        metadata: dict[str, Any] = {"outcome": self.outcome.value, "duration": self.duration}
        return body | {"metadata": metadata | {"replayed": True} if self.replayed else metadata}

    def to_success(self) -> Mapping[str, Any]:
        """The ``{toolCallId, toolName, success, result, error?}`` shape (contract 36)."""
        body = {"toolCallId": self.call_id, "toolName": self.tool, "success": self.ok, "result": self.output}
        return body if self.ok else body | {"error": self.error.public if self.error else self.outcome.value}
