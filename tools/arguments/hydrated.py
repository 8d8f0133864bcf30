"""What hydration gives: a call's arguments, how they came to be, and a token that vouches for them."""

from __future__ import annotations

import dataclasses
import hmac
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import orjson

from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition
from callgate.tools.schemas.validation import Validator
from callgate.tools.values import canonical, freeze

T = TypeVar("T")
_SEAL = blake2b(key=secrets.token_bytes(32), digest_size=20)
_AS_IT_IS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
HydrationStage = Literal["parse", "validate", "instantiate"]
Repairer = Callable[[ToolCall, "HydrationError"], Any]
"""Given the call and why it failed, new arguments (text or object), or None to give up. Called at most once a call."""


@dataclass(frozen=True, slots=True)
class HydrationError:
    """Why a call could not be hydrated; ``message`` is value-free, ``detail`` a code or the issues."""

    stage: HydrationStage
    message: str
    detail: Any = None


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    token: Any = field(default=None, repr=False, compare=False)

    @property
    def trusted(self) -> bool:
        """False when a repairer wrote the arguments: ask a person before running them (contract 49, C10c)."""
        known = vars(self).get("provenance")  # one that nobody has asked for yet is of a call that was plainly right
        return self.success and (known is None or not known.repaired)

    def vouched_for(self, definition: ToolDefinition, validator: Validator | None) -> bool:
        """Whether this process made the token for exactly this call, arguments, definition and validator (design 10.2).

        Nobody vouches for repaired arguments: a gate reads the original ones again.
        """
        if not self.trusted or self.token is None or self.arguments is None or validator is None:
            return False
        try:
            if isinstance(self.token, Seal):
                return self.token.holds_for(self, definition, validator)
            return hmac.compare_digest(self.token, sign(definition.digest, validator.id, self.call, self.arguments))
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


class Seal:
    """The token of a call that was plainly right: what was judged, kept apart. Only a ``Hydrator`` makes one.

    It costs nothing until somebody asks whether it holds; then what the result has now must be what was judged.
    """

    __slots__ = ("arguments", "by", "call")

    def __init__(self, by: Any, call: ToolCall, arguments: dict[str, Any]) -> None:
        self.by, self.call, self.arguments = by, call, arguments

    def holds_for(self, result: HydrationResult, definition: ToolDefinition, validator: Validator) -> bool:
        """Whether it was made for this result, as it is, by a hydrator of this definition and validator."""
        if result.call is not self.call or self.by.judge["id"] != validator.id or self.by.digest != definition.digest:
            return False
        try:
            return orjson.dumps(result.arguments, option=_AS_IT_IS) == orjson.dumps(self.arguments)
        except TypeError:  # integers that are too long for it, or altered into what is no JSON
            return sign("", "", self.call, result.arguments) == sign("", "", self.call, self.arguments)


class _OnDemand:
    """The provenance of a result that was made without one: nothing is put together that nobody reads."""

    def __get__(self, result: HydrationResult | None, _owner: type) -> Any:
        if result is None:
            raise AttributeError("provenance")
        known = result.__dict__
        known["provenance"] = made(Provenance, known["_seal"].by.facts(result, known["_wire"], known["_seconds"]))
        return known["provenance"]


setattr(HydrationResult, "provenance", _OnDemand())  # noqa: B010  (the field's own value, once set, comes first)


def sign(definition: str, validator: str, call: ToolCall, arguments: Any) -> str:
    """A keyed hash of what a validator has judged: definition, validator, call and arguments."""
    seal = _SEAL.copy()
    seal.update(f"{definition} {validator} ".encode())
    try:
        seal.update(orjson.dumps([repr(call.id), call.arguments, arguments], option=_AS_IT_IS))
    except TypeError:  # integers that are too long for it, and what is no JSON
        raw: Any = call.arguments
        raw = (
            raw
            if isinstance(raw, str)
            else repr(raw)
            if not isinstance(raw, Mapping)
            else canonical(freeze(raw)).decode()
        )
        seal.update(b"the long way " + canonical([repr(call.id), raw, arguments]))
    return seal.hexdigest()


def made(cls: type[T], fields: dict[str, Any]) -> T:
    """A frozen dataclass from its fields, those with a default left out: its own ``__init__`` sets them one by one."""
    one = object.__new__(cls)
    one.__dict__.update(fields)
    return one


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
