"""Data of calls: users, tool calls, outcomes and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Never, Self

from callgate.providers.ids import new_id
from callgate.providers.principal import ANONYMOUS, User
from callgate.tools.naming import explain_attributes
from callgate.tools.values import dump

__all__ = ["ANONYMOUS", "ErrorInfo", "Issue", "Outcome", "ToolCall", "ToolResult", "User"]


class Outcome(StrEnum):
    """The outcome of an invocation."""

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


_NO_NAME: Any = object()


@dataclass(frozen=True, slots=True, init=False)
class ToolCall:
    """A request to run a tool.

    Args:
        name: the tool's name.
        arguments: a JSON object, the JSON text of one, or None for no arguments; untrusted until hydrated.
        id: the provider's id of the call; without one the call gets an id of its own, and ``synthetic_id`` is true.
        synthetic_id: the id was made here and not by a provider.
        truncated: the provider stopped for length; such a call is refused, whatever its text.
        chunk: the part of the provider's response that the call was read from, for provenance.
        wire_name: the tool's name as the provider spelt it; default: ``name``.
    """

    name: str
    arguments: Any
    id: str
    synthetic_id: bool
    truncated: bool
    chunk: Any = field(repr=False, compare=False)
    wire_name: str = field(repr=False, compare=False)

    def __init__(
        self,
        *positional: Never,
        name: str = _NO_NAME,
        arguments: object = None,
        id: str | None = None,
        synthetic_id: bool = False,
        truncated: bool = False,
        chunk: object = None,
        wire_name: str | None = None,
    ) -> None:
        if positional or name is _NO_NAME:
            raise TypeError(
                "a ToolCall has a name and takes keywords; write ToolCall(name=..., arguments={...}, id=...)"
            )
        fill = partial(object.__setattr__, self)  # as the constructor that a frozen dataclass gets
        fill("name", name)
        fill("arguments", arguments)
        fill("id", f"call_{new_id()}" if id is None else id)
        fill("synthetic_id", synthetic_id or id is None)
        fill("truncated", truncated)
        fill("chunk", chunk)
        fill("wire_name", name if wire_name is None else wire_name)

    def to_dict(self) -> dict[str, Any]:
        """Return the call as a JSON object, without ``chunk``; ``from_dict`` reads it."""
        made: dict[str, Any] = {"id": self.id, "name": self.name, "arguments": self.arguments}
        if self.wire_name != self.name:
            made["wire_name"] = self.wire_name
        return made | {flag: True for flag in ("synthetic_id", "truncated") if getattr(self, flag)}

    def to_function_call(self) -> dict[str, Any]:
        """Return the call as OpenAI spells it, ``{id, type, function: {name, arguments}}``; ``arguments`` is JSON text."""
        arguments = self.arguments if isinstance(self.arguments, str) else dump(self.arguments or {}).decode()
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a call of what ``to_dict`` returned.

        Raises:
            TypeError: a key is unknown, or ``name`` is missing.
        """
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Issue:
    """One issue of a value that breaks a schema; carries no value.

    ``pointer`` is a JSON Pointer into the value, ``keyword`` the schema keyword, ``expected`` the demand of the schema.
    """

    pointer: str
    keyword: str
    expected: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.expected}"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The part of a failure that a model may read: a code, public text, issues without values, and a correlation id."""

    code: str
    public: str
    issues: tuple[Issue, ...] = ()
    correlation_id: str | None = None
    http_status: int | None = field(default=None, repr=False, compare=False)  # for hosts that answer over HTTP

    @property
    def pointer(self) -> str | None:
        """The JSON Pointer of the first issue; None without issues."""
        return self.issues[0].pointer if self.issues else None


@explain_attributes(
    {
        "content": "result.output",
        "data": "result.output",
        "is_error": "not result.ok",
        "isError": "not result.ok",
        "result": "result.output",
        "success": "result.ok",
        "value": "result.output",
    }
)
@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call; ``gate.call`` returns one for every call.

    ``retry_after`` is in milliseconds, ``duration`` in seconds. ``output`` is a JSON value. ``ran_with`` has the arguments
    that ran, masked as in records, if an approver, a repairer or a hook has changed those of the caller; else it is None.
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
    ran_with: Mapping[str, Any] | None = None
    provenance: Any = field(default=None, repr=False)
    trace: Any = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """True when the tool ran, or its result was replayed, without an error."""
        return self.outcome is Outcome.SUCCESS

    @property
    def tool_name(self) -> str:
        """The wire name of the tool, as ``tool``."""
        return self.tool

    @property
    def status(self) -> Literal["success", "error"]:
        """``"success"``, or ``"error"`` for every other outcome."""
        return "success" if self.ok else "error"

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The outcome, and the duration in seconds; ``ranWith`` and ``replayed`` where they say something."""
        metadata: dict[str, Any] = {"outcome": self.outcome.value, "duration": self.duration}
        if self.ran_with is not None:
            metadata["ranWith"] = self.ran_with
        return metadata | {"replayed": True} if self.replayed else metadata

    def to_status(self) -> Mapping[str, Any]:
        """Return the shape ``{callId, toolName, status, output | error, metadata}``."""
        body: dict[str, Any] = {"callId": self.call_id, "toolName": self.tool, "status": self.status}
        if self.ok:
            body["output"] = self.output
        else:
            body["error"] = self.error.public if self.error else self.outcome.value
        return body | {"metadata": self.metadata}

    def to_success(self) -> Mapping[str, Any]:
        """Return the shape ``{toolCallId, toolName, success, result, error?}``."""
        body = {"toolCallId": self.call_id, "toolName": self.tool, "success": self.ok, "result": self.output}
        return body if self.ok else body | {"error": self.error.public if self.error else self.outcome.value}
