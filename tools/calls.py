"""Data of calls: users, tool calls, outcomes and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Never, Self

from callgate.providers.guesses import explain_attributes, explain_camel_case
from callgate.providers.ids import new_id
from callgate.providers.principal import ANONYMOUS, User
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
        **unknown: Never,
    ) -> None:
        fill = partial(object.__setattr__, self)  # as the constructor that a frozen dataclass gets
        fill("name", name)
        fill("arguments", arguments)
        fill("id", f"call_{new_id()}" if id is None else id)
        fill("synthetic_id", synthetic_id or id is None)
        fill("truncated", truncated)
        fill("chunk", chunk)
        fill("wire_name", name if wire_name is None else wire_name)
        if positional or unknown or name is _NO_NAME:  # last: a traceback shows the refused object
            raise TypeError(
                "a ToolCall has a name and takes keywords; write ToolCall(name=..., arguments={...}, id=...)"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the call as a JSON object, without ``chunk``; ``from_dict`` reads it."""
        made: dict[str, object] = {"id": self.id, "name": self.name, "arguments": self.arguments}
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


def _of_status(status: object, error: ErrorInfo | str | None) -> tuple[Outcome, ErrorInfo | None]:
    """Read the ``status`` and the text of an executor's result."""
    if status not in ("success", "error") or (status == "success" and error is not None):
        raise TypeError(
            f"a ToolResult has an outcome, or the status 'success' or 'error', not {status!r}; write "
            'ToolResult(status="success", output=...) or ToolResult(status="error", error=text) in an executor'
        )
    return Outcome(status), ErrorInfo("tool_error", error) if isinstance(error, str) else error


_fill = object.__setattr__


@explain_camel_case
@explain_attributes(
    {
        "callId": "result.call_id",
        "toolCallId": "result.call_id",
        "content": "result.output",
        "data": "result.output",
        "is_error": "not result.ok",
        "isError": "not result.ok",
        "result": "result.output",
        "success": "result.ok",
        "value": "result.output",
    }
)
@dataclass(frozen=True, slots=True, init=False)
class ToolResult:
    """The result of one call; ``gate.call`` returns one for every call.

    An executor writes ``ToolResult(status="success", output=...)`` or ``ToolResult(status="error", error=text)``: the gate
    fills in the rest, and measures the duration itself.

    ``retry_after`` is in milliseconds, ``duration`` in seconds. ``output`` is a JSON value. ``ran_with`` has the arguments
    that ran, masked as in records, if an approver, a repairer or a hook has changed those of the caller; else it is None.
    ``pending_release`` says that the call has not given back all that it took: its body goes on, or a release did not end.
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

    def __init__(
        self,
        call_id: str = "",
        tool: str = "",
        outcome: Outcome | None = None,
        output: object = None,
        error: ErrorInfo | str | None = None,
        retry_after: int | None = None,
        pending: object = None,
        replayed: bool = False,
        pending_release: bool = False,
        duration: float | None = None,
        ran_with: Mapping[str, object] | None = None,
        provenance: object = None,
        trace: object = None,
        *,
        status: Literal["success", "error"] | None = None,
        tool_name: str | None = None,
        metadata: object = None,
    ) -> None:
        if outcome is None:
            outcome, error = _of_status(status, error)
            tool = tool if tool_name is None else tool_name
        fill = _fill  # as the constructor that a frozen dataclass gets
        fill(self, "call_id", call_id)
        fill(self, "tool", tool)
        fill(self, "outcome", outcome)
        fill(self, "output", output)
        fill(self, "error", error)
        fill(self, "retry_after", retry_after)
        fill(self, "pending", pending)
        fill(self, "replayed", replayed)
        fill(self, "pending_release", pending_release)
        fill(self, "duration", duration)
        fill(self, "ran_with", ran_with)
        fill(self, "provenance", provenance)
        fill(self, "trace", trace)

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
        metadata: dict[str, object] = {"outcome": self.outcome.value, "duration": self.duration}
        if self.ran_with is not None:
            metadata["ranWith"] = self.ran_with
        return metadata | {"replayed": True} if self.replayed else metadata

    def to_status(self) -> Mapping[str, Any]:
        """Return the shape ``{callId, toolName, status, output | error, metadata}``."""
        body: dict[str, object] = {"callId": self.call_id, "toolName": self.tool, "status": self.status}
        if self.ok:
            body["output"] = self.output
        else:
            body["error"] = self.error.public if self.error else self.outcome.value
        return body | {"metadata": self.metadata}

    def to_success(self) -> Mapping[str, object]:
        """Return the shape ``{toolCallId, toolName, success, result, error?}``."""
        body = {"toolCallId": self.call_id, "toolName": self.tool, "success": self.ok, "result": self.output}
        return body if self.ok else body | {"error": self.error.public if self.error else self.outcome.value}
