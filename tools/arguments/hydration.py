"""Hydration: parse and validate the arguments of a tool call. No tool is made or runs, unless the name says so."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping

from callgate.errors import Control, Invalid, InvocationError, SchemaRefused
from callgate.tools.arguments.hydrated import (
    Attestation,
    HydrationError,
    HydrationProvenance,
    HydrationResult,
    HydrationStage,
    Repair,
    Repairer,
    StrictResult,
    ValidatorInfo,
    evidence_of,
)
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.arguments.repairing import frozen_copy, is_repairable, repair_now, repair_with
from callgate.tools.calls import Issue, ToolCall
from callgate.tools.definition import Effect, NoSchemaMode
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.record import Style, ToolRecord
from callgate.tools.schemas.exact import wants_exact
from callgate.tools.schemas.validation import LazyValidator, Validator, explain
from callgate.tools.values import freeze, thaw

__all__ = [
    "HydrationError",
    "HydrationProvenance",
    "HydrationResult",
    "HydrationStage",
    "Hydrator",
    "Repair",
    "Repairer",
    "UnmadeTool",
    "ValidatorInfo",
    "hydrate",
    "hydrate_and_construct",
    "successes",
    "unknown",
    "with_instance",
]


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
    """Parse and validate one call; an invalid call gives a failed result and raises nothing. No tool is made.

    Args:
        call: the call as the model sent it.
        record_of: returns the tool of a name, or None.
        validator_of: returns the validator of a tool's arguments, or None.
        wire: the name of the provider's format, for provenance.
        limits: limits on the arguments, where the tool has none of its own.
        repair: makes new arguments after a failed parse or validation. It runs at most once and is recorded; the
            result is then untrusted.
        lazy: validators are compiled at first use.

    Raises:
        TypeError: *repair* is async: await ``Hydrator.repair`` instead.
    """
    record = record_of(call.name) if isinstance(call.name, str) else None
    if record is None:
        return unknown(call, wire)
    return Hydrator(record, validator_of(call.name), limits, lazy=lazy).hydrate(call, wire, repair)


def hydrate_and_construct(hydrator: Hydrator, found: HydrationResult) -> HydrationResult:
    """Make the instance of a class tool without a gate, so without authorisation; ``run`` is not called.

    A constructor that raises gives a failed result of stage ``instantiate``.
    """
    record = hydrator.record
    supplied = bool(record.injected) or record.context_parameter is not None
    waits = record.definition.no_schema_mode is NoSchemaMode.HUMAN_APPROVAL
    if not found.success or record.style is not Style.COMPONENT or supplied or waits or not found.trusted:
        return found
    given = thaw(found.arguments)
    try:
        settled = given if record.settle is None else record.settle(given)
        tool = record.execute(settled if record.convert is None else record.convert(settled))
    except InvocationError as error:
        detail = getattr(error, "issues", ()) or {"code": error.code}
        return _refused(found, error.public, detail)
    except (Exception, Control) as error:  # noqa: BLE001  (a constructor may raise anything; its text may hold values)
        return _refused(found, "The tool failed.", {"code": "tool_failed", "type": type(error).__name__})
    return found.with_tool(tool)


def successes(results: Iterable[HydrationResult]) -> list[HydrationResult]:
    """Return the results that succeeded, in order; those of a repair too, which a gate treats as its ``on_repair`` says."""
    return [one for one in results if one.success]


class UnmadeTool:
    """Stands for the instance of a tool that only a gate makes; its ``run`` refuses with the line to write."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason

    async def run(self, params: object = None) -> object:
        """Refuse.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"the tool {self.name!r} does not run here: {self.reason}; write `await gate.call(hydrated, user=user)`, "
            "which authorises, runs and records the call"
        )


def with_instance(hydrator: Hydrator | None, found: HydrationResult) -> HydrationResult:
    """Add ``tool`` to a valid call: the instance of a class tool with ``effect="read"``, else an ``UnmadeTool``.

    *hydrator* is None where a gate has the tool: its policies come first.
    """
    if not found.success:
        return found
    reason = "a gate has it" if hydrator is None else _why_unmade(hydrator.record)
    if reason is None and hydrator is not None:
        found = hydrate_and_construct(hydrator, found)
        if found.tool is not None or not found.success:
            return found
        reason = "it takes more than its arguments, or its arguments were repaired"
    return found.with_tool(UnmadeTool(found.call.name, reason or ""))


def _why_unmade(record: ToolRecord) -> str | None:
    """Return the reason why only a gate may make an instance of a tool, or None."""
    definition = record.definition
    if record.style is not Style.COMPONENT:
        return "it is a function, which has no instance"
    if definition.effect is not Effect.READ:
        return 'it does not declare effect="read", so a policy has to authorise it'
    if record.requires_approval or record.hooks or record.hooks_by_stage or definition.allowed_roles is not None:
        return "it has policies of its own, which only a gate applies"
    return None if definition.has_schema else "it has no schema, so a policy has to authorise it"


def _refused(found: HydrationResult, message: str, detail: object) -> HydrationResult:
    error = HydrationError("instantiate", message, detail)
    return HydrationResult(found.call, False, found.provenance, errors=(error,))


def unknown(call: ToolCall, wire: str | None = None) -> HydrationResult:
    """The failed result of a call to an unknown tool."""
    return _failed(call, _seen(call, wire), "instantiate", "there is no such tool", {"code": "unknown_tool"})


class Hydrator:
    """Hydrates the calls of one tool. What depends on the tool alone is computed once, here.

    *read* is a fast strict parser from text to an object. It raises an ``Exception`` for any other text, which is then
    parsed again with tolerance and diagnosis. *tool* is that of each valid result.
    """

    def __init__(
        self,
        record: ToolRecord,
        validator: Validator | None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        lazy: bool = False,
        read: Callable[[str], dict[str, object]] | None = None,
        tool: object = None,
    ) -> None:
        self.record, self.validator, self._tool = record, validator, tool
        self.limits = record.limits or limits
        self.digest = record.definition.digest
        self._exact = not record.definition.tolerates and wants_exact(record.definition.parameters)
        self._late = lazy or isinstance(validator, LazyValidator)
        self._read = None if validator is None or self._late else read

    def hydrate(self, call: ToolCall, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """See ``hydrate``, the function."""
        raw = call.arguments
        found: HydrationResult | None = None
        if raw.__class__ is str and not call.truncated:
            found = self._strictly(call, raw, wire)
        if found is None:
            found = self._attempt(call, raw, _seen(call, wire) | {"definition": self.digest})
        return found if repair is None else self.repair_now(found, repair)

    def repair_now(self, found: HydrationResult, repair: Repairer) -> HydrationResult:
        """Repair a failed parse or validation once, with a plain repairer; other results stay as they are.

        Raises:
            TypeError: the repairer is async.
        """
        if not is_repairable(found):
            return found
        return self._again(found, repair_now(repair, found.call, found.errors[0]))

    async def repair(self, found: HydrationResult, repair: Repairer) -> HydrationResult:
        """Repair a failed parse or validation once, with a plain or async repairer; other results stay as they are."""
        if not is_repairable(found):
            return found
        return self._again(found, await repair_with(repair, found.call, found.errors[0]))

    def _again(self, found: HydrationResult, noted: Repair) -> HydrationResult:
        """Hydrate once more with the repairer's arguments."""
        if noted.after is None:
            return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, repair=noted))
        base = _seen(found.call, found.provenance.wire) | {"definition": self.digest}
        return self._attempt(found.call, thaw(noted.after), base | {"repaired": True, "repair": noted})

    def _strictly(self, call: ToolCall, raw: str, wire: str | None) -> HydrationResult | None:
        """The result for strict, valid arguments; None for all others, which ``_attempt`` reads and diagnoses."""
        if self._read is None or self.validator is None:
            return None
        try:
            arguments = self._read(raw)
            began = time.perf_counter()
            self.validator.check(arguments)
            took = time.perf_counter() - began
            if self.record.settle is not None:
                self.record.settle(thaw(arguments))  # the gate settles them where it freezes them
        except Exception:  # noqa: BLE001
            return None
        token = Attestation(self, call, raw, arguments, wire, took)
        return StrictResult(call=call, success=True, arguments=freeze(arguments), tool=self._tool, token=token)

    def provenance(self, call: ToolCall, wire: str | None, arguments: object, seconds: float) -> HydrationProvenance:
        """Build the provenance of strict, valid arguments."""
        facts = _seen(call, wire) | {"definition": self.digest, "parsed": arguments, "validated": arguments}
        return HydrationProvenance.of(facts | {"is_validated": True, "validator": self._info(seconds)})

    def _info(self, seconds: float) -> ValidatorInfo | None:
        """The validator's names; None for a lazy one whose schema was refused."""
        assert self.validator is not None
        try:
            names = self.validator.engine, self.validator.version, self.validator.id
        except SchemaRefused:
            return None
        return ValidatorInfo(*names, "run-time" if self._late else "compile-time", seconds)

    def _attempt(self, call: ToolCall, raw: object, base: dict[str, object]) -> HydrationResult:
        """Read the arguments once, with tolerance and diagnosis."""
        definition, facts = self.record.definition, dict(base)
        try:
            parsed = parse_arguments(
                raw,
                limits=self.limits,
                tolerant=definition.tolerates,
                truncated=call.truncated,
                takes_nothing=definition.takes_nothing,
                exact=self._exact,
            )
        except ParseError as error:
            return _failed(call, facts, error.stage, error.public, {"code": error.code, "position": error.position})
        if parsed.rules:
            facts |= {"rules": parsed.rules, "raw_sha256": parsed.raw_sha256}
            facts |= {"effective_sha256": parsed.effective_sha256}
        issues = self._issues(parsed.value, facts)
        arguments = facts["parsed"] = freeze(parsed.value)
        if issues:
            return _failed(call, facts, "validate", "; ".join(map(str, issues))[:2000], issues)
        if facts.get("validator") is not None:
            facts |= {"validated": arguments, "is_validated": True}
        if self.record.settle is not None:
            try:
                self.record.settle(thaw(arguments))
            except Invalid as error:
                return _failed(call, facts, "instantiate", error.public, error.issues)
            except Exception as error:  # noqa: BLE001  (a converter may raise anything; its text may hold values)
                detail = {"code": "instantiate", "type": type(error).__name__}
                return _failed(call, facts, "instantiate", "The tool's types refused the arguments.", detail)
        token, repair = None, facts.get("repair")
        if self.validator is not None or repair is not None:
            token = Attestation(
                self, call, evidence_of(call), parsed.value, None, 0.0, repair if isinstance(repair, Repair) else None
            )
        return HydrationResult(call, True, HydrationProvenance.of(facts), arguments, self._tool, token=token)

    def _issues(self, arguments: Mapping[str, object], facts: dict[str, object]) -> tuple[Issue, ...]:
        """The issues of the arguments; notes the validator, or the mode in which a tool without a schema runs."""
        definition, validator = self.record.definition, self.validator
        if not definition.has_schema:
            facts["no_schema_mode"] = str(definition.no_schema_mode)
            return ()
        if validator is None:
            return (Issue("", "schema", "this tool has a schema, but no validator"),)
        issues: tuple[Issue, ...] = ()
        began = time.perf_counter()
        try:
            validator.check(arguments)
        except Exception:  # noqa: BLE001  (any exception of a validator means invalid)
            issues = explain(validator, arguments)
        facts["validator"] = self._info(time.perf_counter() - began)
        return issues


def _seen(call: ToolCall, wire: str | None) -> dict[str, object]:
    """The provenance of a call before its arguments are read."""
    raw = call.arguments
    return {
        "provider_tool_id": call.wire_name,
        "provider_call_id": call.id,
        "synthetic_id": call.synthetic_id,
        "original_raw_args": raw if raw.__class__ is str else frozen_copy(raw),
        "chunk": call.chunk,
        "wire": wire,
    }


def _failed(
    call: ToolCall, facts: dict[str, object], stage: HydrationStage, message: str, detail: object = None
) -> HydrationResult:
    return HydrationResult(call, False, HydrationProvenance.of(facts), errors=(HydrationError(stage, message, detail),))
