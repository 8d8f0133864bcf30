"""Hydration: a raw tool call becomes a checked one. Parse, validate, instantiate; nothing runs (contract 44-56)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from callgate.errors import Invalid, SchemaRefused
from callgate.tools.arguments.hydrated import (
    HydrationError,
    HydrationResult,
    HydrationStage,
    Provenance,
    Repair,
    Repairer,
    Seal,
    ValidatorInfo,
    made,
    sign,
)
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import Issue, ToolCall
from callgate.tools.definition import NoSchemaMode
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.record import Style, ToolRecord
from callgate.tools.schemas.validation import LazyValidator, Validator, explain
from callgate.tools.values import freeze, thaw

__all__ = [
    "HydrationError",
    "HydrationResult",
    "HydrationStage",
    "Hydrator",
    "Provenance",
    "Repair",
    "Repairer",
    "ValidatorInfo",
    "hydrate",
    "hydrate_all",
    "unknown",
]


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
    record = record_of(call.tool) if isinstance(call.tool, str) else None
    if record is None:
        return unknown(call, wire)
    return Hydrator(record, validator_of(call.tool), limits, lazy=lazy).hydrate(call, wire, repair)


def unknown(call: ToolCall, wire: str | None = None) -> HydrationResult:
    """The failed result of a call of no tool there is (C10a)."""
    return _failed(call, _seen(call, wire), "instantiate", "there is no such tool", {"code": "unknown_tool"})


class Hydrator:
    """Hydrates the calls of one tool; what depends on the tool alone is worked out here, once.

    *read* is the shortest way from text to an object, which raises an ``Exception`` for all that is not plainly right.
    """

    def __init__(
        self,
        record: ToolRecord,
        validator: Validator | None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        lazy: bool = False,
        read: Callable[[str], dict[str, Any]] | None = None,
    ) -> None:
        self.record, self.validator = record, validator
        self.limits = record.limits or limits
        self.late = lazy or isinstance(validator, LazyValidator)
        self.digest = record.definition.digest
        supplied = bool(record.injected) or record.context_parameter is not None
        waits = record.definition.no_schema_mode is NoSchemaMode.HUMAN_APPROVAL
        self._constructs = record.style is Style.COMPONENT and not supplied and not waits
        self._read = read
        self.judge: dict[str, Any] | None = None  # who judges: of a validator that is compiled and needs nothing else
        if read is not None and validator is not None and not (self.late or self._constructs or record.convert):
            self.judge = {"name": validator.engine, "version": validator.version, "id": validator.id}

    def hydrate(self, call: ToolCall, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``hydrate``, the function."""
        raw = call.arguments
        if self.judge is not None and raw.__class__ is str and not call.truncated:
            found = self._quickly(call, raw, wire)
            if found is not None:
                return found
        base = _seen(call, wire) | {"definition": self.digest}
        found = self._attempt(call, raw, base)
        if found.success or repair is None or call.truncated or found.errors[0].stage == "instantiate":
            return found
        noted = _ask(repair, call, found.errors[0])
        if noted.after is None:
            return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, repair=noted))
        return self._attempt(call, thaw(noted.after), base | {"repaired": True, "repair": noted})

    def _quickly(self, call: ToolCall, raw: str, wire: str | None) -> HydrationResult | None:
        """The result of a call that is plainly right; None where the long way has to find out what is wrong."""
        assert self._read is not None
        assert self.validator is not None
        try:
            arguments = self._read(raw)
            began = time.perf_counter()
            self.validator.check(arguments)
            took = time.perf_counter() - began
        except Exception:  # noqa: BLE001
            return None
        about = {"call": call, "success": True, "arguments": freeze(arguments), "_wire": wire, "_seconds": took}
        about["token"] = about["_seal"] = Seal(self, call, arguments)
        return made(HydrationResult, about)

    def facts(self, result: HydrationResult, wire: str | None, seconds: float) -> dict[str, Any]:
        """The provenance of a call that was plainly right, put together when somebody asks."""
        known = {"definition": self.digest, "parsed": result.arguments, "validated": result.arguments}
        judge = ValidatorInfo(**self.judge or {}, seconds=seconds)
        return _seen(result.call, wire) | known | {"is_validated": True, "validator": judge}

    def _attempt(self, call: ToolCall, raw: Any, base: dict[str, Any]) -> HydrationResult:
        """One reading; a repaired call is read twice."""
        definition, facts = self.record.definition, dict(base)
        try:
            parsed = parse_arguments(
                raw,
                limits=self.limits,
                tolerant=definition.tolerates,
                truncated=call.truncated,
            )
        except ParseError as error:
            return _failed(call, facts, "parse", error.public, {"code": error.code, "position": error.position})
        if parsed.rules:
            facts |= {"rules": parsed.rules, "raw_sha256": parsed.raw_sha256}
            facts |= {"effective_sha256": parsed.effective_sha256}
        issues = self._judged(parsed.value, facts)
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
        token = sign(self.digest, self.validator.id, call, arguments) if self.validator and vouches else None
        return HydrationResult(call, True, Provenance(**facts), arguments, tool, token=token)

    def _judged(self, arguments: dict[str, Any], facts: dict[str, Any]) -> tuple[Issue, ...]:
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
        try:
            judge = validator.engine, validator.version, validator.id
        except SchemaRefused:  # compiled just now, and refused: there is no validator
            return issues
        facts["validator"] = ValidatorInfo(*judge, "run-time" if self.late else "compile-time", took)
        return issues

    def _instance(self, arguments: dict[str, Any]) -> Any:
        """Try the arguments on the annotated types, and on a constructor that takes nothing else (design 10.1)."""
        record = self.record
        given: Any = thaw(arguments)
        if record.convert is not None:
            given = record.convert(given)
        return record.execute(given) if self._constructs else None


def _seen(call: ToolCall, wire: str | None) -> dict[str, Any]:
    """What is known of a call before it is read."""
    raw = call.arguments
    return {
        "provider_tool_id": call.tool,
        "provider_call_id": call.id,
        "synthetic_id": call.synthetic_id,
        "original_raw_args": raw if raw.__class__ is str else _kept(raw),
        "chunk": call.chunk,
        "wire": wire,
    }


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


def _kept(value: Any) -> Any:
    """Arguments as they came in, safe from later changes; what nests too deep to be copied is kept itself."""
    try:
        return freeze(value)
    except RecursionError:
        return value
