"""The runtime's built-in steps: parse, validate, freeze, check the output. They run after every hook of their stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callgate.errors import Denied, Invalid, SchemaRefused
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import FROZEN, LIVE
from callgate.providers.registry import MISSING
from callgate.runtime.pipeline.bodies import plain_copy
from callgate.runtime.pipeline.no_schema import NoSchemaPolicy, NoSchemaRules
from callgate.runtime.pipeline.services import Services
from callgate.tools.arguments.hydrated import HydrationResult
from callgate.tools.arguments.hydration import Hydrator, UnmadeTool
from callgate.tools.arguments.parse_errors import REFUSAL_CODES, ParseError
from callgate.tools.arguments.parsing import Parsed, parse_arguments
from callgate.tools.arguments.reader import strict_reader
from callgate.tools.calls import Issue
from callgate.tools.declaring.component import attached_validator
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.outputs import (
    LOOSE,
    Dump,
    HoldsOutput,
    Reader,
    check_content,
    infinite,
    not_finite,
    not_json,
    output_refusal,
    size_without_content,
    too_deep,
    too_large,
)
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.engines.base import Compiled
from callgate.tools.schemas.engines.dialect import Role
from callgate.tools.schemas.exact import exact_integers, wants_exact
from callgate.tools.schemas.flat import admits, is_flat
from callgate.tools.schemas.validation import Validator, compile_schema, explain
from callgate.tools.values import SCALARS, deeper_than, digest, dump, hash_of, json_bytes, thaw


class BuiltIns:
    """The built-in steps of one tool. The constructor computes once all that depends on the tool alone.

    ``check`` callables raise an exception if the value is not valid; ``validator.issues`` lists the reasons.
    """

    def __init__(
        self,
        record: ToolRecord,
        arguments: Validator | None,
        output: Validator | None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        refuses: bool = True,
        no_schema: NoSchemaPolicy | None = None,
    ) -> None:
        definition = record.definition
        self.settle, self.identity, self.misfits = record.settle, record.identity, record.misfits
        self.roles = definition.allowed_roles
        self.arguments = arguments
        self.output = output
        self.limits = record.limits or limits
        self.max_bytes, self.max_depth = self.limits.max_output_bytes, self.limits.max_output_depth
        self.small = self.limits.small_output
        self.shallow = min(self.small, 2 * self.max_depth)  # bytes within which an output keeps all limits
        self.tolerates = definition.tolerates
        self.takes_nothing = definition.takes_nothing
        self.exact = not self.tolerates and wants_exact(definition.parameters)
        self.flat = is_flat(definition.parameters)
        self.floats = not self.flat or admits(definition.parameters, {"number"})
        # True if the output schema itself keeps every output small and finite:
        self.bounded = is_flat(definition.output_schema) and not admits(definition.output_schema, {"number", "string"})
        self.refuses = refuses  # True refuses calls that need approval: no approver exists
        rules = NoSchemaRules(definition, no_schema, has_approvers=not refuses)
        self.unvalidated = rules if arguments is None else None
        self.schema = None if definition.parameters is None else digest(definition.parameters)
        self.parse, self.admit = self._reader(checked=False), self._reader(checked=True)
        self.check_output = self._make_check_output()
        self.dump, self.copy = Dump.of(record.to_json), plain_copy(self.shallow)
        self.copied = plain_copy(self.shallow, self.dump, bounded=self.bounded)
        self._hydrators: dict[bool, Hydrator] = {}

    @classmethod
    def of(cls, record: ToolRecord, services: Services) -> BuiltIns:
        """Make those of a tool, and compile its schemas.

        Raises:
            RegistrationError: no engine enforces a schema.
        """
        arguments: Any = attached_validator(record.component)
        if arguments is None:
            arguments = _validator("parameters", record, services)
        if arguments is not None and not record.definition.tolerates:
            arguments = exact_integers(arguments, record.definition.parameters)
        output, refuses = _validator("output", record, services), services.suspensions is None
        return cls(record, arguments, output, services.limits, refuses=refuses, no_schema=services.no_schema_policy)

    def hydrator(self, record: ToolRecord, lazy: bool, *, gated: bool = True) -> Hydrator:
        """Return the reader of this tool's calls outside of an invocation; a gate makes the instances of *gated* tools."""
        made = self._hydrators.get(lazy)
        if made is None:
            read = strict_reader(None, self.limits, exact=self.exact, floats=self.floats)
            tool = UnmadeTool(record.id, "a gate has it") if gated else None
            made = Hydrator(record, self.arguments, self.limits, lazy=lazy, read=read, tool=tool)
            self._hydrators[lazy] = made
        return made

    # ------------------------------------------------------------------ policy

    def check_roles(self, ctx: InvokeContext) -> None:
        """Check ``allowed_roles`` of the definition; the same rule decides which tools are shown."""
        if self.roles is not None and self.roles.isdisjoint(ctx.user.roles):
            raise Denied(f"{ctx.user.id} has none of the roles {sorted(self.roles)}", code="role")

    # ------------------------------------------------------------------ input

    def _reader(self, *, checked: bool) -> Callable[[InvokeContext], None]:
        """Make the step that reads the arguments: raw text or object to a plain dict.

        With *checked*, no hook runs before the freeze, and the step validates and freezes them as well.
        """
        slowly = self._admit_slowly if checked else self._parse_slowly
        validator, settle = (self.arguments, self.settle) if checked else (None, None)
        read = strict_reader(validator, self.limits, exact=self.exact, floats=self.floats, settle=settle)
        state, fast = (FROZEN, self.arguments is not None) if checked else (LIVE, True)

        def step(ctx: InvokeContext) -> None:
            given = (run := ctx.run).input
            if fast and (given.__class__ is str or (given.__class__ is dict and run.resumed is None)):
                try:
                    run.input = read(given)
                except Exception:  # noqa: BLE001  (the slow path finds the reason and reports it)
                    slowly(ctx)
                else:
                    run.input_state = state
            else:
                slowly(ctx)
            if run.plan.observed:
                run.read_at = run.plan.now()

        return step

    def _parse_slowly(self, ctx: InvokeContext) -> None:
        hydrated = ctx.run.hydration
        if hydrated is None or ctx.run.input is not hydrated:
            ctx.run.input = self._read(ctx)
            if self.misfits and ctx.run.resumed is not None:  # settled before the call was suspended
                ctx.run.input = {
                    name: value for name, value in ctx.run.input.items() if self.misfits.get(name, MISSING) != value
                }
        elif hydrated.success:
            ctx.run.input = thaw(hydrated.arguments)
        else:
            raise not_hydrated(hydrated)
        ctx.run.input_state = LIVE

    def _admit_slowly(self, ctx: InvokeContext) -> None:
        hydrated = ctx.run.hydration is not None and ctx.run.input is ctx.run.hydration
        self._parse_slowly(ctx)
        if not hydrated or self.arguments is None:  # else hydration has validated them
            self.validate(ctx)
        if self.settle is not None:
            ctx.run.input = self.settle(ctx.run.input)
        ctx.run.input_state = FROZEN
        if self.unvalidated is not None:
            self.unvalidated.admit(ctx)

    def validate(self, ctx: InvokeContext) -> None:
        """Validate the arguments against the whole canonical schema."""
        if self.arguments is None:
            assert self.unvalidated is not None
            self.unvalidated.check(ctx)
            return
        try:
            self.arguments.check(ctx.run.input)
        except Exception as error:
            raise refusal(self.arguments, ctx.run.input) from error
        ctx.run.checked = ctx.run.input

    def freeze(self, ctx: InvokeContext) -> None:
        """Freeze the arguments; what a hook set after they were validated is validated again."""
        run = ctx.run
        if run.checked is not run.input:
            if not isinstance(run.input, dict):
                raise Invalid("a hook left no object", issues=[Issue("", "type", "expected object")])
            self.validate(ctx)
        if self.settle is not None and (settled := self.settle(run.input)) is not run.input:
            run.settle(settled)
        run.input_state = FROZEN
        if self.unvalidated is not None:
            self.unvalidated.admit(ctx)

    def _read(self, ctx: InvokeContext) -> dict[str, object]:
        try:
            call = ctx.run.tool_call
            parsed = self.parsed(ctx.run.input, truncated=call is not None and call.truncated)
        except ParseError as error:
            raise unparsable(error) from error
        ctx.run.parse_rules = parsed.rules
        return parsed.value

    def parsed(self, given: object, *, truncated: bool = False) -> Parsed:
        """Parse arguments as the calls of the tool do, or raise ``ParseError``."""
        more = {"takes_nothing": self.takes_nothing, "exact": self.exact, "truncated": truncated}
        return parse_arguments(given, limits=self.limits, tolerant=self.tolerates, **more)

    def settled(self, arguments: dict[str, object]) -> dict[str, object]:
        """Return valid arguments with the defaults and conversions of the tool's types, as JSON.

        Raises:
            Invalid: the types refuse them.
        """
        return arguments if self.settle is None else self.settle(arguments)

    def hash_of(self, arguments: Any) -> str:
        """Return the SHA-256 of settled arguments, the same for equal values."""
        return hash_of(arguments if self.identity is None else self.identity(arguments))

    def differ(self, given: object, settled: object) -> bool:
        """Return True if settled arguments are others than the *given* ones, beyond defaults and conversions."""
        try:
            return self.hash_of(self.settled(self.parsed(given).value)) != self.hash_of(settled)
        except Exception:  # noqa: BLE001  (the given ones are refused, so a hook has mended them)
            return True

    def parse_again(self, hydration: HydrationResult | None, parsed: object, raw: object) -> object:
        """Return the arguments as they were parsed, for the history; *raw* is what the parser read."""
        if hydration is not None and hydration.success:
            return thaw(hydration.arguments)
        try:
            return self.parsed(raw).value
        except ParseError:
            return thaw(parsed)

    def judged(self, ctx: InvokeContext) -> dict[str, object]:
        """Return the facts about the validation of a call for records: whether, by which schema and validator, or the mode.

        ``validated`` is True once valid arguments are frozen. ``no_schema_mode`` is there for a tool without a schema.
        """
        if ctx.run.unknown is not None:
            return {"validated": False, "schema": None, "validator": None}
        if self.arguments is None:
            assert self.unvalidated is not None
            mode = self.unvalidated.mode_of(ctx.run.no_schema)
            facts: dict[str, object] = {"validated": False, "schema": None, "validator": None}
            return facts | {"no_schema_mode": None if mode is None else mode.value}
        try:
            name = self.arguments.id
        except SchemaRefused:  # a lazy validator
            name = None
        return {"validated": ctx.run.input_state == FROZEN, "schema": self.schema, "validator": name}

    # ------------------------------------------------------------------ output

    def _make_check_output(self) -> Callable[[InvokeContext], None] | None:
        validator = self.output
        if validator is None:
            return None
        check, native = validator.check, validator.native if isinstance(validator, Compiled) else None

        def check_output(ctx: InvokeContext) -> None:
            output = ctx.run.output
            try:
                if native is None or not native(output):
                    check(output)
            except Exception as error:
                raise output_refusal(validator, output) from error

        return check_output

    def response_as_json(self, run: HoldsOutput, output: object) -> object:
        """Return an output that a hook gave as JSON, in a copy that the call alone holds.

        Raises:
            Invalid: the output has no JSON form, or an iterator in it exceeds the limits.
        """
        if output.__class__ in SCALARS:
            return output
        made = self.copy(run, output)
        return LOOSE(output, Reader(self.limits)) if made is MISSING else made

    def limit_output(self, ctx: InvokeContext) -> None:
        """Check that the output is finite JSON within the limits of its size and its depth."""
        output = ctx.run.output
        if output is ctx.run.limited:  # measured as it was copied
            return
        try:
            data = json_bytes(output)
        except TypeError:
            data = self._long_way(output)
        if len(data) > self.shallow or data.find(b"null") >= 0:  # most outputs are short and have no null
            if len(data) > self.small:
                self._sizes(output, data, (0, 0))
            self._check(output, data)

    def measure(self, output: object, before: tuple[int, int]) -> tuple[int, int]:
        """Return the bytes of JSON and of content with a part of an output, which follows *before*.

        Raises:
            Invalid: the part is not finite JSON, or exceeds a limit.
        """
        try:
            data = json_bytes(output)
        except TypeError:
            data = self._long_way(output)
        self._check(output, data)
        return self._sizes(output, data, before)

    def _sizes(self, output: object, data: bytes, before: tuple[int, int]) -> tuple[int, int]:
        size, largest, content = size_without_content(output, data)
        if size + before[0] > self.max_bytes:
            raise too_large(f"over {self.max_bytes} bytes" if before[0] else f"{size} bytes", self.max_bytes)
        check_content(largest, content + before[1], self.limits)
        return before[0] + size + 1, before[1] + content

    def _check(self, output: object, data: bytes) -> None:
        if len(data) > 2 * self.max_depth and deeper_than(output, self.max_depth):
            raise too_deep(self.max_depth)
        if data.find(b"null") >= 0 and (path := not_finite(output)) is not None:  # `in` would try bytes as an index
            raise infinite(path)

    def _long_way(self, output: object) -> bytes:
        if deeper_than(output, self.max_depth):  # the encoder's own end differs between versions of Python
            raise too_deep(self.max_depth)
        try:
            return dump(output)
        except (TypeError, ValueError, RecursionError) as error:
            raise not_json(output, self.max_depth) from error


def _validator(role: Role, record: ToolRecord, services: Services) -> Validator | None:
    schema = record.schema_of(role)
    if schema is None:
        return None
    formats = record.formats_for(services.formats)
    ready = record.validators.get(role)
    if ready is not None and services.validator is None and formats == record.formats_for(None):
        return ready
    return compile_schema(schema, trusted=record.trusted, engine=services.validator, formats=formats)


def unparsable(error: ParseError) -> Invalid:
    """Return the refusal of arguments that cannot be parsed; it contains no value."""
    issues = [Issue("", error.code, error.public)]
    return Invalid(str(error), stage=error.stage, code=REFUSAL_CODES[error.stage], public=error.public, issues=issues)


def not_hydrated(hydrated: HydrationResult) -> Invalid:
    """Return the refusal of a call whose hydration failed. It takes the error path, so it is audited."""
    first = hydrated.errors[0]
    issues = [one for one in first.detail if isinstance(one, Issue)] if isinstance(first.detail, tuple) else []
    code = REFUSAL_CODES.get(first.stage, first.stage)
    code = "invalid_arguments" if issues else code  # as of a call that was not hydrated before
    return Invalid(first.message, stage=first.stage, code=code, public=first.message, issues=issues)


def refusal(validator: Validator, value: object) -> Invalid:
    """Return the refusal of arguments that break the schema, with every issue the validator names."""
    issues = explain(validator, value)
    text = "; ".join(map(str, issues))[:2000]
    return Invalid(text, stage="validate", issues=issues, public=f"The arguments are not valid: {text}")
