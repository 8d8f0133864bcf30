"""The runtime's own steps: parse, validate, freeze, check the output. They run after every hook of their stage (C34)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from callgate.errors import Denied, Invalid
from callgate.tools.arguments.hydration import Hydrator
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.arguments.reader import strict_reader
from callgate.tools.calls import Issue
from callgate.tools.definition import NoSchemaMode
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.validation import Validator, explain
from callgate.tools.values import dump, json_bytes, thaw

RAW, FROZEN, LIVE = 1, 2, 0


def _admits(schema: Any, kinds: set[str]) -> bool:
    """Whether a flat schema has a property that admits one of the JSON types, or does not say."""
    return any(not _kinds(part) or _kinds(part) & kinds for part in (schema.get("properties") or {}).values())


def _kinds(schema: Any) -> set[str]:
    kinds = schema.get("type")
    if kinds is not None:
        return {kinds} if isinstance(kinds, str) else set(kinds)
    return {kind for branch in schema.get("anyOf") or () for kind in _kinds(branch)}


def is_flat(schema: Any) -> bool:
    """Whether every admitted argument is a scalar: then a call's own keyword dict is copy enough."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") is not False:
        return False
    return all(_scalar(part) for part in (schema.get("properties") or {}).values())


def _scalar(schema: Any) -> bool:
    if not isinstance(schema, dict) or "$ref" in schema:
        return False
    kinds = schema.get("type")
    if kinds is not None:
        return {"object", "array"}.isdisjoint([kinds] if isinstance(kinds, str) else kinds)
    branches = schema.get("anyOf") or schema.get("oneOf")
    return bool(branches) and all(_scalar(branch) for branch in branches or ())


class BuiltIns:
    """The built-in steps of one tool; everything that depends on the tool alone is worked out here, once.

    ``check`` callables raise anything when the value is not valid; ``validator.issues`` says why.
    """

    def __init__(
        self,
        record: ToolRecord,
        arguments: Validator | None,
        output: Validator | None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        refuses: bool = True,
    ) -> None:
        definition = record.definition
        self.roles = frozenset(definition.allowed_roles)
        self.arguments = arguments
        self.output = output
        self.limits = record.limits or limits
        self.most = self.limits.max_output_bytes
        self.tolerates = definition.tolerates
        self.flat = is_flat(definition.parameters)
        self.floats = not self.flat or _admits(definition.parameters, {"number"})
        #  True when the output schema itself keeps every output small and finite:
        self.bounded = is_flat(definition.output_schema) and not _admits(definition.output_schema, {"number", "string"})
        self.refuses = refuses  # what needs approval: nobody could give it
        self.mode = None if arguments is not None else definition.no_schema_mode
        self.parse = self._make_parse()
        self.validate_last = self._make_validate_last()
        self.admit = self._make_admit()
        self.check_output = self._make_check_output()
        self._hydrators: dict[bool, Hydrator] = {}

    def hydrator(self, record: ToolRecord, lazy: bool) -> Hydrator:
        """What reads this tool's calls outside of an invocation."""
        made = self._hydrators.get(lazy)
        if made is None:
            read = strict_reader(None, self.limits, floats=self.floats)
            made = self._hydrators[lazy] = Hydrator(record, self.arguments, self.limits, lazy=lazy, read=read)
        return made

    # ------------------------------------------------------------------ policy

    def check_roles(self, ctx: Any) -> None:
        """``allowed_roles`` of the definition: one rule for what is shown and for what is run (contract C29)."""
        if self.roles.isdisjoint(ctx.user.roles):
            raise Denied(f"{ctx.user.id} has none of the roles {sorted(self.roles)}", code="role")

    # ------------------------------------------------------------------ input

    def _make_parse(self) -> Callable[[Any], None]:
        """Raw text or object to a plain dict; what tolerance did is kept in ``ctx.parse_rules`` (contract 45-47)."""
        read, slowly = strict_reader(None, self.limits, floats=self.floats), self._parse_slowly

        def parse(ctx: Any) -> None:
            raw = ctx._input
            if raw.__class__ is str:
                try:
                    ctx._input = read(raw)
                except ValueError:  # not plainly right: the long way finds out what it is, and says it
                    slowly(ctx)
                else:
                    ctx._input_state = LIVE
                return
            slowly(ctx)

        return parse

    def _parse_slowly(self, ctx: Any) -> None:
        hydrated = ctx.hydration
        if hydrated is None or ctx._input is not hydrated:
            ctx._input = self._read(ctx)
        elif hydrated.success:
            ctx._input = thaw(hydrated.arguments)
        else:
            raise not_hydrated(hydrated)
        ctx._input_state = LIVE

    def validate(self, ctx: Any) -> None:
        """Against the canonical schema, always in full (contract 44, 48)."""
        if self.arguments is None:
            self._without_schema()
            return
        try:
            self.arguments.check(ctx._input)
        except Exception as error:
            raise refusal(self.arguments, ctx._input) from error

    def revalidate(self, ctx: Any) -> None:
        """Normalising hooks ran: what they made is checked again before it is frozen (contract C16)."""
        if not isinstance(ctx._input, dict):
            raise Invalid("a normalising hook left no object", issues=[Issue("", "type", "expected object")])
        ctx._input = thaw(ctx._input)
        self.validate(ctx)
        ctx._input_state = FROZEN

    def _make_validate_last(self) -> Callable[[Any], None]:
        """No hook normalises: valid arguments are frozen at once. Nobody else holds them any more; hooks get copies."""
        validator, flat = self.arguments, self.flat

        def validate_last(ctx: Any) -> None:
            arguments = ctx._input
            if arguments.__class__ is not dict:
                raise Invalid("a hook left no object", issues=[Issue("", "type", "expected object")])
            ctx._input = arguments = arguments.copy() if flat else thaw(arguments)
            if validator is None:
                self._without_schema()
            else:
                try:
                    validator.check(arguments)
                except Exception as error:
                    raise refusal(validator, arguments) from error
            ctx._input_state = FROZEN

        return validate_last

    def _make_admit(self) -> Callable[[Any], None]:
        """Parse, validate and freeze in one call, for plans in which no hook looks in between."""
        slowly = self._admit_slowly
        if self.arguments is None:
            return slowly
        read = strict_reader(self.arguments.check, self.limits, floats=self.floats)

        def admit(ctx: Any) -> None:
            raw = ctx._input
            if raw.__class__ is str:
                try:
                    ctx._input = read(raw)
                except Exception:  # noqa: BLE001  (not plainly right: the long way finds out what it is, and says it)
                    slowly(ctx)
                else:
                    ctx._input_state = FROZEN
                return
            slowly(ctx)

        return admit

    def _admit_slowly(self, ctx: Any) -> None:
        vouched = ctx.hydration is not None and ctx._input is ctx.hydration
        self._parse_slowly(ctx)
        if not vouched:
            self.validate(ctx)
        ctx._input_state = FROZEN

    def _read(self, ctx: Any) -> dict[str, Any]:
        try:
            parsed = parse_arguments(
                ctx._input,
                limits=self.limits,
                tolerant=self.tolerates,
                truncated=ctx._call is not None and ctx._call.truncated,
            )
        except ParseError as error:
            raise unparsable(error) from error
        ctx.parse_rules = parsed.rules
        return parsed.value

    def parse_again(self, ctx: Any) -> Any:
        """The arguments as they were parsed, for the history."""
        try:
            return parse_arguments(ctx.raw_input, limits=self.limits, tolerant=self.tolerates).value
        except ParseError:
            return ctx._input

    def _without_schema(self) -> None:
        """A tool without a schema is refused unless its mode allows it (contract 15, 17, C9)."""
        if self.mode is NoSchemaMode.HUMAN_APPROVAL and self.refuses:
            raise Denied("a tool without a schema in mode human-approval needs an approver", code="approval_required")
        if self.mode is None:
            raise Denied("a tool without a schema is not callable", code="no_schema")

    # ------------------------------------------------------------------ output

    def _make_check_output(self) -> Callable[[Any], None] | None:
        validator = self.output
        if validator is None:
            return None
        check = validator.check

        def check_output(ctx: Any) -> None:
            try:
                check(ctx._output)
            except Exception as error:
                raise output_refusal(validator, ctx._output) from error

        return check_output

    def limit_output(self, ctx: Any) -> None:
        """JSON only, finite, within ``limits.max_output_bytes`` (part C of the contract, 4)."""
        try:
            data = json_bytes(ctx._output)
        except TypeError:
            data = self._long_way(ctx._output)
        if len(data) > self.most:
            raise bad_output(f"the output has {len(data)} bytes; {self.most} is the most", code="output_too_large")
        if data.find(b"null") >= 0 and not _finite(ctx._output):  # `in` would first try the bytes as an index
            raise bad_output("the output holds a number that is not finite")

    @staticmethod
    def _long_way(output: Any) -> bytes:
        try:
            return dump(output)
        except (TypeError, ValueError, RecursionError) as error:
            raise bad_output(f"the output is not JSON: {type(output).__name__}") from error


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return value - value == 0.0
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return True


def unparsable(error: ParseError) -> Invalid:
    """The refusal of arguments that cannot be read; carries no value."""
    issue = Issue("", error.code, error.public)
    return Invalid(str(error), stage="parse", code="invalid_json", public=error.public, issues=[issue])


def not_hydrated(hydrated: Any) -> Invalid:
    """The refusal of a call whose hydration failed: it takes the error path, so it is audited (design 10.2)."""
    first = hydrated.errors[0]
    issues = [one for one in first.detail if isinstance(one, Issue)] if isinstance(first.detail, tuple) else []
    code = {"parse": "invalid_json", "validate": "invalid_arguments"}.get(first.stage, first.stage)
    return Invalid(first.message, stage=first.stage, code=code, public=first.message, issues=issues)


def refusal(validator: Validator, value: Any) -> Invalid:
    """The refusal of arguments that break the schema, with every issue the validator names."""
    issues = explain(validator, value)
    text = "; ".join(map(str, issues))[:2000]
    return Invalid(text, stage="validate", issues=issues, public=f"The arguments are not valid: {text}")


def output_refusal(validator: Validator, value: Any) -> Invalid:
    """The refusal of an output that breaks the output schema; the issues are for developers, not for the model."""
    issues = explain(validator, value)
    return bad_output("the output breaks the output schema: " + "; ".join(map(str, issues))[:2000], issues=issues)


def bad_output(message: str, *, code: str = "invalid_output", issues: Sequence[Issue] = ()) -> Invalid:
    """An output that may not leave; *message* is for developers."""
    return Invalid(message, stage="output", code=code, public=OUTPUT_REFUSED[code], issues=issues)


OUTPUT_REFUSED = {
    "invalid_output": "The tool's output is not valid.",
    "output_too_large": "The tool's output is too large.",
}
