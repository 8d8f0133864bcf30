"""Conversion between validated JSON and annotated Python types, with the cheapest function for each tool.

pydantic is imported where an adapter is made, never here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal, Protocol, TypeGuard, Union, get_args, get_origin

from callgate.errors import Invalid
from callgate.tools.calls import Issue
from callgate.tools.values import clip, dump, pointer

Convert = Callable[[dict[str, object]], dict[str, object]]
Kind = Literal["same", "int", "float", "typed"]

ISSUE_LIMIT = 16
_ANYTHING = (Any, object, Parameter.empty, dict, list, str, bool, None, type(None))
_BOUNDABLE = (str, bool, int, float, list, dict)
_BOUNDS = frozenset({"Gt", "Ge", "Lt", "Le", "Interval", "MultipleOf", "MinLen", "MaxLen", "Len"})
_WRAPPERS = frozenset({"Required", "NotRequired", "ReadOnly"})


def kind_of(hint: object) -> Kind:
    """The conversion that a validated JSON value needs to become ``hint``: none, a change of number class, or pydantic."""
    if is_json(hint, numbers=False):
        return "same"
    bare = _bare(hint)
    if bare is int or bare is float:
        return "int" if bare is int else "float"
    if get_origin(bare) not in {Union, types.UnionType}:
        return "typed"
    kinds: set[Kind] = {kind_of(member) for member in get_args(bare)}
    if "typed" in kinds:
        return "typed"
    if {"int", "float"} <= kinds:
        return "same"
    return "int" if "int" in kinds else "float"


def is_json(hint: object, *, numbers: bool, seen: frozenset[object] = frozenset()) -> bool:
    """Check that a JSON value which fits the hint's schema needs no conversion.

    ``numbers`` includes int and float: right for output, wrong for input, where JSON ``2.0`` fits ``integer``.
    """
    bare = _bare(hint)
    if any(bare is item for item in _ANYTHING) or (numbers and (bare is int or bare is float)):
        return True
    origin, args = get_origin(bare), get_args(bare)
    if origin is Literal:
        return all(item is None or item.__class__ in {str, bool} or (numbers and type(item) is int) for item in args)
    if origin in {Union, types.UnionType, list, typing.get_origin(Sequence[Any])}:
        return all(is_json(item, numbers=numbers, seen=seen) for item in args)
    if origin in {dict, typing.get_origin(Mapping[str, Any])}:
        return args[0] is str and is_json(args[1], numbers=numbers, seen=seen)
    if _is_typed_dict(bare) and bare not in seen and not hasattr(bare, "__pydantic_config__"):
        hints = typing.get_type_hints(bare, include_extras=True).values()
        return all(is_json(_unwrapped(item), numbers=numbers, seen=seen | {bare}) for item in hints)
    return _is_typed_dict(bare) and bare in seen


def has_typed_dict(hint: object) -> bool:
    """Return True if a TypedDict is in the hint: its JSON has no members but those of the type."""
    bare = _bare(hint)
    return _is_typed_dict(bare) or any(has_typed_dict(part) for part in get_args(bare))


def is_mapping(hint: object) -> bool:
    """True for a hint that keeps a JSON object unchanged: ``dict``, ``Mapping``, with or without parts, or ``Any``."""
    bare = _bare(hint)
    loose = any(bare is item for item in (Any, object, Parameter.empty, dict, Mapping))
    return loose or get_origin(bare) in {dict, typing.get_origin(Mapping[str, Any])}


def is_structured(hint: object) -> bool:
    """True for a type with named, typed fields: a TypedDict, a dataclass or a pydantic model."""
    return _is_typed_dict(hint) or (
        isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "__pydantic_validator__"))
    )


def _is_typed_dict(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__total__")


def _unwrapped(hint: object) -> object:
    while getattr(get_origin(hint), "_name", None) in _WRAPPERS:
        hint = get_args(hint)[0]
    return hint


def _bare(hint: Any) -> object:
    """Strip ``NewType``, aliases, and metadata that adds nothing to the JSON Schema."""
    while True:
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif get_origin(hint) is Annotated:
            base, *metadata = get_args(hint)
            described = all(_describes(item) for item in metadata)
            bare = _bare(base)
            bounded = (get_origin(bare) or bare) in _BOUNDABLE and all(_bounds(item) for item in metadata)
            if not described and not bounded:
                return hint
            hint = base
        else:
            return hint


def _describes(item: object) -> bool:
    """True for metadata that does not take part in validation."""
    if isinstance(item, str) or type(item).__name__ == "Doc":
        return True
    return is_field_info(item) and not item.metadata and _keeps_name(item)


def _bounds(item: object) -> bool:
    """True for metadata of a string, number, list or dict that its JSON Schema expresses in full."""
    kind = type(item)
    if kind.__module__ == "annotated_types":
        return kind.__name__ in _BOUNDS
    if kind.__name__.endswith("PydanticGeneralMetadata"):
        return set(vars(item)) <= {"pattern"}
    if is_field_info(item):
        return _keeps_name(item) and all(map(_bounds, item.metadata))
    return _describes(item)


class _FieldInfo(Protocol):
    metadata: Sequence[object]
    alias: str | None
    validation_alias: object
    discriminator: object
    description: str | None

    def is_required(self) -> bool: ...


def is_field_info(item: object) -> TypeGuard[_FieldInfo]:
    """True for a ``Field(...)`` of pydantic."""
    return type(item).__name__ == "FieldInfo" and type(item).__module__.startswith("pydantic")


def _keeps_name(field: _FieldInfo) -> bool:
    return field.alias is None and field.validation_alias is None and field.discriminator is None


def flat_convert(
    ints: Sequence[str], floats: Sequence[str], defaults: Mapping[str, object] | None = None
) -> Convert | None:
    """Convert ``2.0`` to ``2`` or ``2`` to ``2.0`` in flat arguments, and fill *defaults*, which have the right types.

    The function returns its argument if nothing changes. It is one loop each, because it runs in every call.
    """
    wrong = (*((name, float) for name in ints), *((name, int) for name in floats))
    given = tuple((defaults or {}).items())
    if not wrong and not given:
        return None

    def convert(arguments: dict[str, object]) -> dict[str, object]:
        settled = arguments
        for name, value in given:
            if name not in arguments:
                if settled is arguments:
                    settled = arguments.copy()
                settled[name] = value
        for name, other in wrong:
            if name in settled and settled[name].__class__ is other:
                return _settle(settled, ints, floats)
        return settled

    return convert


def _settle(arguments: Mapping[str, object], ints: Iterable[str], floats: Iterable[str]) -> dict[str, object]:
    settled = dict(arguments)
    issues: list[Issue] = []
    for name in ints:
        value = settled.get(name)
        if not isinstance(value, float):
            continue
        if value.is_integer():
            settled[name] = int(value)
        else:
            issues.append(Issue(pointer((name,)), "type", "must be an integer"))
    for name in floats:
        value = settled.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                settled[name] = float(value)
            except OverflowError:
                issues.append(Issue(pointer((name,)), "maximum", "must lie in the range of a double"))
    if issues:
        raise refusal(issues)
    return settled


def typed_convert(
    adapter: Any, *, stage: str = "instantiate", code: str | None = None, by_name: bool | None = None
) -> Convert:
    """Make a function that converts with pydantic as from JSON text, so that strict models and bytes work.

    With *by_name*, fields are read by their names as well as by their aliases.

    Raises (the closure):
        Invalid: a check that the JSON Schema cannot express failed.
    """
    from pydantic_core import ValidationError

    validate = adapter.validator.validate_json

    def convert(arguments: object) -> dict[str, object]:
        try:
            converted: dict[str, object] = validate(dump(arguments), by_name=by_name)
            return converted
        except ValidationError as error:
            issues = _issues(error, arguments)
        raise refusal(issues, stage=stage, code=code)  # outside the handler: the original error holds values

    return convert


def guarded(
    convert: Convert | None, accepted: frozenset[str] | None, refused: frozenset[str], required: frozenset[str]
) -> Convert:
    """Enforce a function's parameter list where its schema allows more; ``accepted`` None means any name.

    Raises (the closure):
        Invalid: an argument is unknown to the function, or a required one is missing.
    """

    def guard(arguments: dict[str, object]) -> dict[str, object]:
        names = arguments.keys()
        unknown = names & refused if accepted is None else names - accepted
        if unknown or not required <= names:
            extra = [Issue(pointer((clip(name),)), "additionalProperties", "must be absent") for name in unknown]
            missing = [Issue(pointer((name,)), "required", "is required") for name in required - names]
            raise refusal(sorted([*missing, *extra], key=str)[:ISSUE_LIMIT])
        return arguments if convert is None else convert(arguments)

    return guard


def refusal(issues: Sequence[Issue], *, stage: str = "instantiate", code: str | None = None) -> Invalid:
    """The error, without values, for arguments that the tool's own types refuse."""
    text = "; ".join(map(str, issues))
    public = f"The arguments are not valid: {text[:2000]}" if stage == "instantiate" else None
    error = Invalid(text, stage=stage, issues=issues, code=code, public=public)
    error.no_effect = stage == "instantiate"  # the tool's body has not begun
    return error


def _issues(error: Any, value: object) -> list[Issue]:
    found = error.errors(include_url=False, include_input=False)
    return [
        Issue(pointer(_path(item, value)), item["type"], _public(item) or _expected(item["type"]))
        for item in found[:ISSUE_LIMIT]
    ]


def _public(item: Mapping[str, Any]) -> str | None:
    """Return the text for the model of a validator's own error, or None.

    It is the attribute ``public`` of the error, as errors of Callgate have it, or ``public`` in the context of a
    ``PydanticCustomError``. Every other text may hold values, also that of a ``PydanticCustomError`` without a context.
    """
    context = item.get("ctx") or {}
    public = getattr(context.get("error"), "public", None) or context.get("public")
    return clip(public, 500) if isinstance(public, str) and public else None


def _path(item: Mapping[str, Any], value: Any) -> list[str | int]:
    """The path into the value: pydantic's location without the names of union members."""
    path: list[str | int] = []
    for part in item["loc"]:
        inside = isinstance(value, Mapping) and part in value
        if inside or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
            value = value[part]
            path.append(clip(part) if isinstance(part, str) else part)
    if item["type"] == "missing":
        path.append(item["loc"][-1])
    return path


_OFFSETS = {
    "timezone_aware": "must have an offset, such as Z or +01:00",
    "timezone_naive": "must have no offset, such as Z or +01:00",
}


def _expected(kind: str) -> str:
    """A text from the error's type alone: pydantic's messages may hold values."""
    if kind in {"value_error", "assertion_error"}:
        return "must pass the tool's own check"
    if kind in _OFFSETS:
        return _OFFSETS[kind]
    if kind == "missing":
        return "is required"
    for ending in ("_parsing", "_type", "_format"):
        if kind.endswith(ending):
            return f"must be a valid {kind.removesuffix(ending).split('_from_')[0].replace('_', ' ')}"
    return f"must satisfy: {kind.replace('_', ' ')}"
