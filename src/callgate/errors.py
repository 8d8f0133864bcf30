"""Every error Callgate raises, in one tree.

::

    CallgateError                    base; has .code, .public and .correlation_id
    ├── RegistrationError            a tool, hook or provider is refused when it is registered
    │   ├── DefinitionError          the tool's definition is wrong (name, schema, flags)
    │   │   └── SchemaRefused        no engine would enforce this schema in full
    │   ├── HookError                unknown stage, missing method, refused by the linter
    │   └── ProviderError            an injected provider is missing, cyclic or of the wrong scope
    ├── GateClosed                   used before start or after stop
    ├── StageError                   a context member was used in a stage that may not use it
    ├── ProviderMissing              ctx.get(token) found nothing (also a LookupError)
    ├── StoreError                   a store failed, or its address is wrong; .sqlstate
    │   ├── StoreConflict            another process wrote first
    │   └── StoreUnsupported         this backend does not support the request
    ├── ModelError                   a model's provider failed; .status, .retry_after, .provider
    │   └── StreamCut                its streamed response broke off; .reply is the received part
    └── InvocationError              one invocation ended without a result
        ├── Denied                   a policy refused the call, or ctx.abort()
        ├── RetryLater               over quota or busy; .retry_after in milliseconds
        ├── Invalid                  arguments or output break the contract; .issues
        │   └── UnknownTool          no tool of that name
        ├── Suspended                the call waits for a person or a client; .handle
        ├── ToolFailed               the tool raised
        │   └── ToolError            raised by a tool's author, with text the model may read
        ├── DeadlineExceeded         time ran out (also a TimeoutError)
        ├── Conflict                 same idempotency key, other arguments
        ├── InFlight                 the same effect is running now
        ├── OutcomeUnknown           the effect may or may not have happened
        ├── NotRecorded              the ledger could not be written, so nothing was run
        ├── NotPending               no suspended call has this handle, or not for this user
        └── Stale                    this process has another version of the tool or policies of a suspended call

    Control (BaseException)          control flow, not an error: ``except Exception`` in a tool cannot swallow it
    ├── ControlRespond               ctx.respond(value)
    └── ControlSuspend               ctx.suspend(...)

``public`` is the only text that may reach a model: it carries no argument value and no exception text.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Sequence
from typing import Any


class CallgateError(Exception):
    """Base of every Callgate error.

    ``code`` is stable and machine-readable; ``public`` is safe to show to a model; ``str(error)`` is for developers.
    """

    code: str = "error"
    default_public: str = "The call failed."
    public: str = default_public  # for a subclass whose constructor does not call this one
    correlation_id: str | None = None

    def __init__(self, message: str = "", *, public: str | None = None, code: str | None = None) -> None:
        super().__init__(message or public or self.default_public)
        self.public = public if isinstance(public, str) else self.default_public  # developers read what else it is
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:  # pickle and copy call no constructor: its arguments are not ``args``
        return copyreg.__newobj__, (type(self),), {**vars(self), "args": self.args}  # type: ignore[attr-defined]


class RegistrationError(CallgateError):
    """A tool, hook or provider is refused when it is registered; nothing runs half-configured."""

    code = "registration"


class DefinitionError(RegistrationError):
    """A tool's definition breaks a rule; the message says which and how to mend it."""

    code = "definition"


class SchemaRefused(DefinitionError):
    """A schema that is invalid, unsafe, or that no engine would enforce in full.

    ``reason`` is a stable code such as ``external_ref``; ``pointer`` is the JSON Pointer into the schema.
    """

    code = "schema_refused"

    def __init__(self, reason: str, message: str, pointer: str = "") -> None:
        super().__init__(f"schema refused ({reason}) at {pointer or '/'}: {message}")
        self.reason = reason
        self.pointer = pointer


class HookError(RegistrationError):
    """A hook names an unknown stage, lacks a listed method, or is refused by the linter."""

    code = "hook"


class ProviderError(RegistrationError):
    """An injected dependency cannot be provided; the message names it and its path."""

    code = "provider"


class GateClosed(CallgateError):
    """The gate was used before ``async with gate`` or after it ended."""

    code = "gate_closed"
    default_public = "The service is not available."


class StageError(CallgateError):
    """A context member was used in a stage that may not use it, such as setting ``ctx.input`` once frozen."""

    code = "stage"


class ProviderMissing(CallgateError, LookupError):
    """``ctx.get(token)`` found no provider in request, session or global scope."""

    code = "provider_missing"


class StoreError(CallgateError):
    """A store failed, or its address is wrong; never shown to a model. ``sqlstate`` is the database's code, or None."""

    code = "store"

    def __init__(self, message: str = "", *, sqlstate: str | None = None, **more: str | None) -> None:
        super().__init__(message, **more)
        self.sqlstate = sqlstate


class StoreConflict(StoreError):
    """Another process wrote first; nothing was changed."""

    code = "store_conflict"


class StoreUnsupported(StoreError):
    """This backend does not support the request; use the backend that the message names."""

    code = "store_unsupported"


class ModelError(CallgateError):
    """A model's provider failed: it refused, could not be reached, or sent an invalid response.

    ``status`` is the HTTP status, or None; ``retry_after`` the requested delay in milliseconds; ``provider`` the wire.
    ``str()`` may quote the provider's message, bounded; never a header, an API key, or what was sent. It has no cause:
    the errors of HTTP libraries hold the whole request.
    """

    code = "model"
    default_public = "The model's provider did not answer."

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        retry_after: int | None = None,
        provider: str | None = None,
        public: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, public=public, code=code)
        self.status, self.retry_after, self.provider = status, retry_after, provider


class StreamCut(ModelError):
    """A response broke off, or reported an error, before its end; none of the calls in ``reply``, its part, may run."""

    code = "stream_cut"
    default_public = "The model's answer broke off."

    def __init__(self, message: str = "", *, reply: Any = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.reply = reply


class InvocationError(CallgateError):
    """The base of errors that end one invocation; ``invoke`` raises one of its subclasses.

    ``no_effect`` says that a tool which raised this did nothing, so that the same effect may be tried again: ``ctx.abort``
    and ``ctx.retry_after`` in a tool's body, ``ToolError(..., no_effect=True)`` and ``Invalid(..., no_effect=True)`` set
    it. Any other error from a body or a constructor leaves the outcome open. ``pending_release``: see ``ToolResult``.
    """

    http_status: int = 500
    no_effect: bool = False
    pending_release: bool = False


class Denied(InvocationError):
    """A policy refused the call, or a hook called ``ctx.abort``. Also known as ``ControlAbort``."""

    code = "denied"
    http_status = 403
    default_public = "The call was denied."

    def __init__(
        self,
        reason: str = "",
        *,
        public: str | None = None,
        code: str | None = None,
        http_status: int | None = None,
        no_effect: bool = False,
    ) -> None:
        super().__init__(reason, public=public, code=code)
        self.no_effect = no_effect is True
        if http_status is not None:
            self.http_status = http_status


class RetryLater(InvocationError):
    """Not now: over quota or busy. ``retry_after`` is in milliseconds. Also ``ControlRetryAfter``."""

    code = "retry_later"
    http_status = 429
    default_public = "Busy or over quota; try again later."
    retry_after: int = 1000

    def __init__(
        self,
        retry_after: int,
        reason: str = "",
        *,
        public: str | None = None,
        code: str | None = None,
        no_effect: bool = False,
    ) -> None:
        if not (isinstance(retry_after, int | float) and 0 <= retry_after <= 10**12):
            raise ValueError(f"retry_after is in milliseconds, from 0 to 10**12, not {retry_after!r:.80}")
        super().__init__(reason, public=public, code=code)
        self.retry_after, self.no_effect = math.ceil(retry_after), no_effect is True


class Invalid(InvocationError):
    """The arguments (or the output) break the contract. ``issues`` are value-free; ``no_effect`` as of ``ToolError``."""

    code = "invalid_arguments"
    http_status = 422
    default_public = "The arguments are not valid."
    stage: str = "validate"
    issues: tuple[Any, ...] = ()

    def __init__(
        self,
        message: str = "",
        *,
        stage: str = "validate",
        issues: Sequence[Any] = (),
        public: str | None = None,
        code: str | None = None,
        no_effect: bool = False,
    ) -> None:
        super().__init__(message, public=public, code=code)
        self.stage, self.issues = stage, tuple(issues)
        self.no_effect = no_effect is True

    @property
    def pointer(self) -> str | None:
        """JSON Pointer of the first issue, when there is one."""
        return self.issues[0].pointer if self.issues else None


class UnknownTool(Invalid):
    """No tool of that name is registered, or the caller may not see it."""

    code = "unknown_tool"
    http_status = 404
    default_public = "There is no such tool."


class Suspended(InvocationError):
    """The invocation waits for a person or a client; resume it with ``handle``."""

    code = "suspended"
    http_status = 202
    default_public = "The call waits for approval or input."
    pending: Any = None

    def __init__(self, pending: Any = None) -> None:
        super().__init__()
        self.pending = pending

    @property
    def handle(self) -> str | None:
        """The handle for ``gate.resume``."""
        return getattr(self.pending, "handle", None)


class ToolFailed(InvocationError):
    """The tool raised; the original is ``__cause__`` and never reaches a model."""

    code = "tool_failed"
    default_public = "The tool failed."


class ToolError(ToolFailed):
    """Raise this in a tool: ``public`` is text that the model may read.

    A repeat under the same key gets the error again. With ``no_effect=True`` the tool did nothing, and a repeat runs it.
    """

    code = "tool_error"

    def __init__(self, public: str, *, code: str | None = None, no_effect: bool = False) -> None:
        super().__init__(public, public=public, code=code)
        self.no_effect = no_effect is True


class DeadlineExceeded(InvocationError, TimeoutError):
    """The invocation's or a hook's time ran out."""

    code = "deadline_exceeded"
    http_status = 504
    default_public = "The call took too long."


class Conflict(InvocationError):
    """The same idempotency key was used with other arguments."""

    code = "conflict"
    http_status = 409
    default_public = "This key was used for another call."


class InFlight(InvocationError):
    """The same effect is running now."""

    code = "in_flight"
    http_status = 409
    default_public = "The same call is running now."


class OutcomeUnknown(InvocationError):
    """The effect may or may not have happened: the tool was abandoned, or its process ended, before it reported."""

    code = "outcome_unknown"
    http_status = 504
    default_public = "It is not known whether the call took effect. Do not repeat it."


class NotRecorded(InvocationError):
    """The ledger could not record the intent to run the tool, so the tool was not run."""

    code = "not_recorded"
    http_status = 503
    default_public = "The call could not be recorded, so it was not run. Try again later."
    no_effect = True


class NotPending(InvocationError):
    """No suspended call has this handle. It is unknown, used, expired, changed, or of another user; the error hides which."""

    code = "not_pending"
    http_status = 404
    default_public = "Nothing waits under this handle."


class Stale(InvocationError):
    """This process has another version of the tool or policies of a suspended call, which waits for its own version."""

    code = "stale"
    http_status = 409
    default_public = "The tool or its policies have changed; try again later, or ask again."


class Control(BaseException):
    """Control flow of an invocation; not an ``Exception``, so a tool's ``except Exception`` cannot swallow it."""


class ControlRespond(Control):
    """Raised by ``ctx.respond(value)``: skip to the post stages with this output; ``shaped`` skips the output stages."""

    def __init__(self, value: Any, *, validate: bool = True, shaped: bool = False, parsed: bool = False) -> None:
        super().__init__()
        self.value, self.validate, self.shaped = value, validate, shaped
        self.parsed = parsed  # just parsed from JSON, so nothing else holds it, and it is not copied


class ControlSuspend(Control):
    """Raised by ``ctx.suspend(...)``: release capacity and wait for a person or a client."""

    no_effect = True

    def __init__(self, pending: Any) -> None:
        super().__init__()
        self.pending = pending


ControlAbort = Denied
ControlRetryAfter = RetryLater
