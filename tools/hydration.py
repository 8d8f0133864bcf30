"""Hydration: a raw tool call becomes a checked one. Parse, validate, instantiate; nothing runs (contract 44-56)."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from callgate.errors import Invalid, InvocationError
from callgate.tools.calls import Issue, ToolCall
from callgate.tools.definition import ToolDefinition
from callgate.tools.parsing import DEFAULT_LIMITS, Limits, ParseError, parse_arguments
from callgate.tools.record import Style, ToolRecord
from callgate.tools.validation import Validator, explain
from callgate.tools.values import canonical, digest, thaw

_KEY = secrets.token_bytes(32)
HydrationStage = Literal["parse", "validate", "instantiate"]
Repairer = Callable[[ToolCall, "HydrationError"], Any]
"""Given the call and why it failed, new arguments (text or object), or None to give up. Called at most once a call."""


@dataclass(frozen=True, slots=True)
class HydrationError:
    """Why a call could not be hydrated; ``message`` is value-free."""

    stage: HydrationStage
    message: str
    detail: Any = None


@dataclass(frozen=True, slots=True)
class ValidatorInfo:
    """Which validator judged, and whether it was compiled at registration or at first use (contract 48)."""

    name: str
    version: str
    id: str
    compiled_at: Literal["registration", "run-time"] = "registration"
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything about how arguments came to be what they are (contract 46-54, C9, C10b).

    ``rules`` names what tolerance did; ``repair`` is the repairer's before and after. ``is_validated`` is False for a
    tool without a schema, and then ``no_schema_mode`` says why it was let through.
    """

    provider_tool_id: str
    provider_call_id: str
    synthetic_id: bool
    original_raw_args: Any
    chunk: Any = field(default=None, repr=False)
    wire: str | None = None
    definition: str | None = None
    parsed: Any = None
    rules: tuple[str, ...] = ()
    raw_sha256: str | None = None
    effective_sha256: str | None = None
    validated: Any = None
    is_validated: bool = False
    validator: ValidatorInfo | None = None
    no_schema_mode: str | None = None
    repaired: bool = False
    repair: Any = None


@dataclass(frozen=True, slots=True)
class HydrationResult:
    """One hydrated call (contract 52). ``arguments`` are the validated arguments of a successful one.

    ``tool`` is the instance for a class whose constructor takes nothing but arguments; other tools are constructed
    by the gate, after authorisation (design 10.1).
    """

    call: ToolCall
    success: bool
    provenance: Provenance
    arguments: dict[str, Any] | None = None
    tool: Any = None
    errors: tuple[HydrationError, ...] = ()
    token: str | None = field(default=None, repr=False)

    @property
    def trusted(self) -> bool:
        """False when a repairer wrote the arguments: ask a person before running them (contract 49, C10c)."""
        return self.success and not self.provenance.repaired

    def vouched_for(self, definition: ToolDefinition, validator: Validator | None) -> bool:
        """Whether this process made the token for exactly these arguments, definition and validator (design 10.2)."""
        if not self.success or self.token is None or self.arguments is None or validator is None:
            return False
        return hmac.compare_digest(self.token, _sign(definition, validator, self.arguments))


def _sign(definition: ToolDefinition, validator: Validator, arguments: Any) -> str:
    message = b"\0".join((definition.digest.encode(), validator.id.encode(), canonical(arguments)))
    return hmac.new(_KEY, message, "sha256").hexdigest()


def hydrate(
    call: ToolCall,
    record_of: Callable[[str], ToolRecord | None],
    validator_of: Callable[[str], Validator | None],
    *,
    wire: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    repair: Repairer | None = None,
) -> HydrationResult:
    """Hydrate one call; never raises for what is in it.

    ``repair`` is off by default; it runs at most once, is recorded, and leaves the result untrusted.
    """
    base: dict[str, Any] = {
        "provider_tool_id": call.tool,
        "provider_call_id": call.id,
        "synthetic_id": call.synthetic_id,
        "original_raw_args": thaw(call.arguments) if isinstance(call.arguments, dict) else call.arguments,
        "chunk": call.chunk,
        "wire": wire,
    }
    record = record_of(call.tool)
    if record is None:
        error = HydrationError("instantiate", "there is no such tool", "unknown_tool")
        return HydrationResult(call, False, Provenance(**base), errors=(error,))
    base["definition"] = record.definition.digest
    found = _attempt(call, call.arguments, record, validator_of(call.tool), base, limits)
    if found.success or repair is None:
        return found
    mended = repair(call, found.errors[0])
    if mended is None:
        return found
    base |= {
        "repaired": True,
        "repair": {"by": getattr(repair, "__qualname__", repr(repair)), "after": mended, "at": time.time()},
    }
    return _attempt(call, mended, record, validator_of(call.tool), base, limits)


def _attempt(
    call: ToolCall, raw: Any, record: ToolRecord, validator: Validator | None, base: dict[str, Any], limits: Limits
) -> HydrationResult:
    def failed(stage: HydrationStage, message: str, detail: Any = None) -> HydrationResult:
        return HydrationResult(call, False, Provenance(**base), errors=(HydrationError(stage, message, detail),))

    try:
        parsed = parse_arguments(
            raw, limits=record.limits or limits, tolerant=record.definition.tolerates, truncated=call.truncated
        )
    except ParseError as error:
        return failed("parse", error.public, {"code": error.code, "position": error.position})
    arguments = parsed.value
    base |= {"parsed": arguments, "rules": parsed.rules}
    if parsed.rules:
        base |= {"raw_sha256": parsed.raw_sha256, "effective_sha256": parsed.effective_sha256}
    if validator is None:
        base["no_schema_mode"] = str(record.definition.no_schema_mode)
        if record.definition.no_schema_mode is None:
            return failed("validate", "the tool has no schema and may not be called")
        return HydrationResult(call, True, Provenance(**base), arguments=arguments)
    began = time.perf_counter()
    try:
        validator.check(arguments)
    except Exception:  # noqa: BLE001  (whatever a validator raises is not a yes)
        issues: tuple[Issue, ...] = explain(validator, arguments)
        return failed("validate", "; ".join(map(str, issues))[:2000], issues)
    took = time.perf_counter() - began
    base |= {
        "validated": arguments,
        "is_validated": True,
        "validator": ValidatorInfo(validator.engine, validator.version, validator.id, seconds=took),
    }
    try:
        instance = _instance(record, arguments)
    except InvocationError as error:
        return failed("instantiate", error.public, getattr(error, "issues", None))
    except Exception as error:  # noqa: BLE001  (a constructor may raise anything; its text may hold values)
        return failed("instantiate", "the tool refused the arguments", type(error).__name__)
    token = _sign(record.definition, validator, arguments)
    return HydrationResult(call, True, Provenance(**base), arguments=arguments, tool=instance, token=token)


def _instance(record: ToolRecord, arguments: dict[str, Any]) -> Any:
    if record.style is not Style.COMPONENT or record.injected:
        return None
    return record.execute(thaw(arguments))


__all__ = [
    "HydrationError",
    "HydrationResult",
    "Invalid",
    "Provenance",
    "Repairer",
    "ValidatorInfo",
    "digest",
    "hydrate",
]
