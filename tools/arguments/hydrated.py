"""Results of hydration: the arguments of a call, their provenance, and a token that says that they were validated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import orjson

from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition
from callgate.tools.schemas.validation import Validator
from callgate.tools.values import canonical, freeze

_UNCONVERTED = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
HydrationStage = Literal["parse", "validate", "instantiate"]


@dataclass(frozen=True, slots=True)
class HydrationError:
    """The reason why hydration failed; ``message`` holds no values, ``detail`` is a code or the issues."""

    stage: HydrationStage
    message: str
    detail: Any = None


Repairer = Callable[[ToolCall, HydrationError], object]
"""A function, plain or async, from a call and its error to new arguments (text or object), or None to abandon the repair.

It is called at most once for each call.
"""


@dataclass(frozen=True)
class ValidatorInfo:
    """The validator that checked the arguments, when it was compiled, and the ``seconds`` that the check took."""

    name: str
    version: str
    id: str
    compiled_at: Literal["compile-time", "run-time"] = "compile-time"
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """Record of the one repair of a call, successful or not.

    ``at`` is in seconds since the epoch. ``after`` is None when the repairer abandoned the repair; ``failed`` is the
    type of the exception that it raised.
    """

    by: str
    at: float
    reason: HydrationError
    before: object = None
    after: object = None
    failed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON. It holds argument values: redact it like the arguments."""
        shown: dict[str, Any] = _plain(self)
        return shown

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` returned."""
        fields: dict[str, Any] = {**data, "reason": HydrationError(**data["reason"])}
        return cls(**fields)


@dataclass(frozen=True)
class HydrationProvenance:
    """Provenance of arguments: received text, parsed value, tolerance, validation and repair.

    ``rules`` names the tolerance rules that were applied. ``validated`` is the value that passed. ``is_validated`` is
    False for a tool without a schema; then ``no_schema_mode`` says why the call may run.
    """

    provider_tool_id: str
    provider_call_id: str
    synthetic_id: bool
    original_raw_args: object
    chunk: object = field(default=None, repr=False)
    wire: str | None = None
    definition: str | None = None
    parsed: object = None
    rules: tuple[str, ...] = ()
    raw_sha256: str | None = None
    effective_sha256: str | None = None
    validated: object = None
    is_validated: bool = False
    validator: ValidatorInfo | None = None
    no_schema_mode: str | None = None
    repaired: bool = False
    repair: Repair | None = None

    @classmethod
    def of(cls, facts: dict[str, object]) -> Self:
        """Make a provenance in one step: the ``__init__`` of a frozen dataclass sets its 17 fields one by one."""
        made = object.__new__(cls)
        made.__dict__.update(facts)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON for logs and audit. It holds argument values: redact it like the arguments.

        ``validated`` is a boolean here; the value that passed is under ``validatedArgs``.
        """
        shown = {_camel(item.name): _plain(getattr(self, item.name)) for item in dataclasses.fields(self)}
        shown["validatedArgs"] = shown.pop("validated")
        shown["validated"] = shown.pop("isValidated")
        return shown


@dataclass(frozen=True)
class HydrationResult:
    """One hydrated call. ``arguments`` are the validated arguments, frozen; None when hydration failed.

    ``tool`` is an instance of a class tool, not run yet: of any from ``hydrate_without_gate``, and of a tool with
    ``effect="read"`` from ``Client.tool_call`` with plain tools. ``tool.run()`` of any other valid result of ``tool_call``
    and of ``gate.hydrate`` raises ``TypeError`` with the line to write: a gate makes the instance after authorisation.
    ``token`` stays in this process: a copy has none.
    """

    call: ToolCall
    success: bool
    provenance: HydrationProvenance
    arguments: dict[str, Any] | None = None
    tool: Any = None
    errors: tuple[HydrationError, ...] = ()
    token: Any = field(default=None, repr=False, compare=False)

    @property
    def trusted(self) -> bool:
        """False when a repairer wrote the arguments: a gate then does as its ``on_repair`` says."""
        return self.success and not self.provenance.repaired

    def vouched_for(self, definition: ToolDefinition, validator: Validator | None) -> bool:
        """True when this process validated exactly these arguments of this call, by this definition and validator.

        *validator* is None for a tool without a schema; then only the arguments of a repair are vouched for.
        """
        if not isinstance(self.token, Attestation) or self.arguments is None:
            return False
        try:
            return self.token.holds_for(self, definition, validator)
        except (TypeError, ValueError, RecursionError):  # changed into something that is not JSON
            return False

    def with_tool(self, tool: object) -> HydrationResult:
        """Return the same result with another ``tool``."""
        return dataclasses.replace(self, tool=tool)

    def to_wire(self) -> dict[str, Any]:
        """Convert to plain JSON for a client: success, errors, and provenance with the call's id."""
        seen = self.provenance.to_dict()
        validator = seen["validator"] and {name: seen["validator"][name] for name in ("name", "version", "compiledAt")}
        names = ("providerToolId", "providerCallId", "originalRawArgs", "parsed", "repaired")
        provenance = {name: seen[name] for name in names} | {"validated": seen["validatedArgs"], "validator": validator}
        return {"success": self.success, "errors": _plain(self.errors), "provenance": provenance}

    def __reduce__(self) -> tuple[object, ...]:
        return HydrationResult, (self.call, self.success, self.provenance, self.arguments, None, self.errors)


class StrictResult(HydrationResult):
    """The result of strict, valid arguments. Its provenance is built when it is first read."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)

    @cached_property
    def provenance(self) -> HydrationProvenance:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See ``HydrationResult``."""
        token: Attestation = self.token
        return token.provenance(self.arguments)

    def with_tool(self, tool: object) -> HydrationResult:
        """See ``HydrationResult``; the provenance is not built for it."""
        return StrictResult(**{**self.__dict__, "tool": tool})

    @property
    def trusted(self) -> bool:
        """See ``HydrationResult``: no repairer ran."""
        return self.success


class Checker(Protocol):
    """The hydrator that issued an attestation."""

    validator: Validator | None
    digest: str

    def provenance(self, call: ToolCall, wire: str | None, arguments: object, seconds: float) -> HydrationProvenance:
        """Build the provenance of strict, valid arguments."""
        ...


class Attestation:
    """The token of a validated call, issued by a ``Hydrator``: received and validated arguments, apart from the result."""

    __slots__ = ("_arguments", "_by", "_call", "_raw", "_seconds", "_wire", "repair")

    def __init__(
        self,
        by: Checker,
        call: ToolCall,
        raw: str | bytes,
        arguments: Mapping[str, object],
        wire: str | None,
        seconds: float,
        repair: Repair | None = None,
    ) -> None:
        self._by, self._call, self._raw, self._arguments = by, call, raw, arguments
        self._wire, self._seconds = wire, seconds
        self.repair = repair

    def holds_for(self, result: HydrationResult, definition: ToolDefinition, validator: Validator | None) -> bool:
        """Check that the call and the arguments of *result* are unchanged, and the definition and validator the same."""
        own = self._by.validator
        if (
            result.call is not self._call
            or (None if own is None else own.id) != (None if validator is None else validator.id)
            or self._by.digest != definition.digest
        ):
            return False
        return evidence_of(result.call) == self._raw and _written(result.arguments) == _written(self._arguments)

    def provenance(self, arguments: object) -> HydrationProvenance:
        """The provenance of strict, valid arguments."""
        return self._by.provenance(self._call, self._wire, arguments, self._seconds)


def evidence_of(call: ToolCall) -> str | bytes:
    """The received arguments in a form that cannot change."""
    raw = call.arguments
    return raw if isinstance(raw, str | bytes) else _written(raw)


def _written(value: object) -> bytes:
    """JSON bytes in which ``True``, ``1`` and ``1.0`` differ."""
    try:
        return orjson.dumps(value, option=_UNCONVERTED)
    except TypeError:  # integers beyond 64 bits, mappings that are not dicts
        return b"canonical " + canonical(freeze(value))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _plain(value: object, depth: int = 64) -> Any:
    """Convert to JSON for any encoder: other values become their type's name, lone surrogates are escaped."""
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
