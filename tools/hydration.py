"""Hydration: a raw tool call becomes a checked one. Parse, validate, instantiate; nothing runs (contract 44-56)."""

from __future__ import annotations

import dataclasses
import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from callgate.errors import Invalid, SchemaRefused
from callgate.tools.calls import Issue, ToolCall
from callgate.tools.definition import NoSchemaMode, ToolDefinition
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.parse_errors import ParseError
from callgate.tools.parsing import parse_arguments
from callgate.tools.record import Style, ToolRecord
from callgate.tools.validation import LazyValidator, Validator, explain
from callgate.tools.values import canonical, freeze, thaw

__all__ = [
    "HydrationError",
    "HydrationResult",
    "HydrationStage",
    "Provenance",
    "Repair",
    "Repairer",
    "ValidatorInfo",
    "hydrate",
    "hydrate_all",
]

_KEY = secrets.token_bytes(32)
HydrationStage = Literal["parse", "validate", "instantiate"]
Repairer = Callable[[ToolCall, "HydrationError"], Any]
"""Given the call and why it failed, new arguments (text or object), or None to give up. Called at most once a call."""


@dataclass(frozen=True, slots=True)
class HydrationError:
    """Why a call could not be hydrated; ``message`` is value-free, ``detail`` a code or the issues."""

    stage: HydrationStage
    message: str
    detail: Any = None


@dataclass(frozen=True, slots=True)
class ValidatorInfo:
    """Which validator judged, when it was compiled, and how many ``seconds`` it took (contract 48)."""

    name: str
    version: str
    id: str
    compiled_at: Literal["compile-time", "run-time"] = "compile-time"
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """The one repair of a call, whatever came of it (contract 49, C10c).

    ``at`` is in seconds since the epoch; ``after`` is None when the repairer gave up, ``failed`` the type of what it
    raised.
    """

    by: str
    at: float
    reason: HydrationError
    before: Any = None
    after: Any = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything about how arguments came to be what they are (contract 46-54, C9, C10b).

    ``rules`` names what tolerance did. ``validated`` is the value that passed; ``is_validated`` is False for a tool
    without a schema, and then ``no_schema_mode`` says why it was let through.
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
    repair: Repair | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON for logs and audit. It holds argument values: redact it like the arguments themselves.

        ``validated`` is a boolean here, as C9 asks; the value that passed is under ``validatedArgs``.
        """
        shown = {_camel(item.name): _plain(getattr(self, item.name)) for item in dataclasses.fields(self)}
        shown["validatedArgs"] = shown.pop("validated")
        shown["validated"] = shown.pop("isValidated")
        return shown


@dataclass(frozen=True, slots=True)
class HydrationResult:
    """One hydrated call (contract 52). ``arguments`` are the validated arguments of a successful one, frozen.

    ``tool`` is the instance for a class whose constructor takes nothing but arguments; other tools are constructed
    by the gate, after authorisation (design 10.1). ``token`` stays in this process: a copy has none.
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
        """Whether this process made the token for exactly this call, arguments, definition and validator (design 10.2).

        Nobody vouches for repaired arguments: a gate reads the original ones again.
        """
        if not self.trusted or self.token is None or self.arguments is None or validator is None:
            return False
        try:
            return hmac.compare_digest(self.token, _sign(definition, validator, self.call, self.arguments))
        except (TypeError, ValueError, RecursionError):  # altered into something that is not JSON
            return False

    def to_wire(self) -> dict[str, Any]:
        """The documents' own shape, as plain JSON (contract 52), plus the call's id (C10b)."""
        seen = self.provenance.to_dict()
        validator = seen["validator"] and {name: seen["validator"][name] for name in ("name", "version", "compiledAt")}
        names = ("providerToolId", "providerCallId", "originalRawArgs", "parsed", "repaired")
        provenance = {name: seen[name] for name in names} | {"validated": seen["validatedArgs"], "validator": validator}
        return {"success": self.success, "errors": _plain(self.errors), "provenance": provenance}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.call, self.success, self.provenance, self.arguments, None, self.errors)


def _sign(definition: ToolDefinition, validator: Validator, call: ToolCall, arguments: Any) -> str:
    raw: Any = call.arguments
    if not isinstance(raw, str):
        raw = canonical(freeze(raw)).decode() if isinstance(raw, Mapping) else repr(raw)
    message = canonical([definition.digest, validator.id, repr(call.id), raw, arguments])
    return hmac.new(_KEY, message, "sha256").hexdigest()


def hydrate_all(
    calls: Iterable[ToolCall],
    record_of: Callable[[str], ToolRecord | None],
    validator_of: Callable[[str], Validator | None],
    **options: Any,
) -> list[HydrationResult]:
    """``hydrate`` for every call of an answer: one result each, in order, none dropped (contract 53, C10a)."""
    return [hydrate(call, record_of, validator_of, **options) for call in calls]


def hydrate(
    call: ToolCall,
    record_of: Callable[[str], ToolRecord | None],
    validator_of: Callable[[str], Validator | None],
    *,
    wire: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    repair: Repairer | None = None,
    lazy: bool = False,
) -> HydrationResult:
    """Hydrate one call; never raises for what is in it.

    ``repair`` is off by default; it runs at most once, for a failed parse or validation, is recorded, and leaves the
    result untrusted. ``lazy`` says that validators are compiled at first use.
    """
    base: dict[str, Any] = {
        "provider_tool_id": call.tool,
        "provider_call_id": call.id,
        "synthetic_id": call.synthetic_id,
        "original_raw_args": _kept(call.arguments),
        "chunk": call.chunk,
        "wire": wire,
    }
    record = record_of(call.tool) if isinstance(call.tool, str) else None
    if record is None:
        return _failed(call, base, "instantiate", "there is no such tool", {"code": "unknown_tool"})
    base["definition"] = record.definition.digest
    attempt = _Attempt(call, record, validator_of(call.tool), limits, lazy)
    found = attempt.run(call.arguments, base)
    if found.success or repair is None or call.truncated or found.errors[0].stage == "instantiate":
        return found
    noted = _ask(repair, call, found.errors[0])
    if noted.after is None:
        return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, repair=noted))
    return attempt.run(thaw(noted.after), base | {"repaired": True, "repair": noted})


def _ask(repair: Repairer, call: ToolCall, reason: HydrationError) -> Repair:
    name = getattr(repair, "__qualname__", None) or type(repair).__qualname__
    noted = Repair(name, time.time(), reason, before=_kept(call.arguments))
    try:
        after = repair(call, reason)
    except Exception as error:  # noqa: BLE001  (a repairer that fails has not repaired)
        return dataclasses.replace(noted, failed=type(error).__name__)
    return dataclasses.replace(noted, after=_kept(after))


def _failed(
    call: ToolCall, facts: dict[str, Any], stage: HydrationStage, message: str, detail: Any = None
) -> HydrationResult:
    return HydrationResult(call, False, Provenance(**facts), errors=(HydrationError(stage, message, detail),))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What one reading of a call needs to know; a repaired call is read twice."""

    call: ToolCall
    record: ToolRecord
    validator: Validator | None
    limits: Limits
    lazy: bool

    def run(self, raw: Any, base: dict[str, Any]) -> HydrationResult:
        call, definition, facts = self.call, self.record.definition, dict(base)
        try:
            parsed = parse_arguments(
                raw,
                limits=self.record.limits or self.limits,
                tolerant=definition.tolerates,
                truncated=call.truncated,
            )
        except ParseError as error:
            return _failed(call, facts, "parse", error.public, {"code": error.code, "position": error.position})
        if parsed.rules:
            facts |= {"rules": parsed.rules, "raw_sha256": parsed.raw_sha256}
            facts |= {"effective_sha256": parsed.effective_sha256}
        issues = self._judge(parsed.value, facts)
        arguments = facts["parsed"] = freeze(parsed.value)
        if issues:
            return _failed(call, facts, "validate", "; ".join(map(str, issues))[:2000], issues)
        if facts.get("validator") is not None:
            facts |= {"validated": arguments, "is_validated": True}
        try:
            tool = self._instance(arguments)
        except Invalid as error:
            return _failed(call, facts, "instantiate", error.public, error.issues)
        except Exception as error:  # noqa: BLE001  (a constructor may raise anything; its text may hold values)
            detail = {"code": "instantiate", "type": type(error).__name__}
            return _failed(call, facts, "instantiate", "The tool refused the arguments.", detail)
        vouches = self.validator is not None and not facts.get("repaired")
        token = _sign(definition, self.validator, call, arguments) if self.validator and vouches else None
        return HydrationResult(call, True, Provenance(**facts), arguments, tool, token=token)

    def _judge(self, arguments: dict[str, Any], facts: dict[str, Any]) -> tuple[Issue, ...]:
        """Why the arguments are not valid; notes who judged, or under which mode nobody did (contract 16, C9)."""
        definition, validator = self.record.definition, self.validator
        if not definition.has_schema:
            facts["no_schema_mode"] = str(definition.no_schema_mode)
            return ()
        if validator is None:
            return (Issue("", "schema", "nothing validates this tool's arguments"),)
        issues: tuple[Issue, ...] = ()
        began = time.perf_counter()
        try:
            validator.check(arguments)
        except Exception:  # noqa: BLE001  (whatever a validator raises is not a yes)
            issues = explain(validator, arguments)
        took = time.perf_counter() - began
        late = self.lazy or isinstance(validator, LazyValidator)
        try:
            judge = validator.engine, validator.version, validator.id
        except SchemaRefused:  # compiled just now, and refused: there is no validator
            return issues
        facts["validator"] = ValidatorInfo(*judge, "run-time" if late else "compile-time", took)
        return issues

    def _instance(self, arguments: dict[str, Any]) -> Any:
        """Try the arguments on the annotated types, and on a constructor that takes nothing else (design 10.1)."""
        record = self.record
        given: Any = thaw(arguments)
        if record.convert is not None:
            given = record.convert(given)
        supplied = bool(record.injected) or record.context_parameter is not None
        waits = record.definition.no_schema_mode is NoSchemaMode.HUMAN_APPROVAL
        if record.style is not Style.COMPONENT or supplied or waits:
            return None
        return record.execute(given)


# ---------------------------------------------------------------------- as plain JSON


def _kept(value: Any) -> Any:
    """Arguments as they came in, safe from later changes; what nests too deep to be copied is kept itself."""
    try:
        return freeze(value)
    except RecursionError:
        return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _plain(value: Any, depth: int = 64) -> Any:
    """Plain JSON that any encoder takes: what JSON does not have is named, half surrogates are escaped."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 1329 else f"<an integer of {value.bit_length()} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if dataclasses.is_dataclass(value):
        return {_camel(item.name): _plain(getattr(value, item.name), depth - 1) for item in dataclasses.fields(value)}
    return f"<{type(value).__name__}>"
