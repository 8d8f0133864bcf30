"""Settled arguments: validated JSON with the defaults and conversions of the annotated types, again as JSON.

Hooks, keys, approvers, caches and records see settled arguments, and the body gets what their JSON converts to. So a
type is accepted only if its JSON form gives the same value back.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from callgate.errors import DefinitionError
from callgate.tools.arguments import conversion
from callgate.tools.arguments.conversion import Convert
from callgate.tools.calls import Issue
from callgate.tools.declaring.typed import Argument, Defaults, Settling, json_schema, make_adapter
from callgate.tools.values import canonical, dump, thaw

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_DEEPEST = 6
"""Levels of nesting in a sample of a type; optional members below are left out."""
_SAMPLES = {
    "date-time": "2026-05-01T10:00:00Z",
    "date": "2026-05-01",
    "time": "10:00:00Z",
    "duration": "PT1H",
    "uuid": "0b8a1f1e-4a6f-4c7e-9d5b-2f6f3a9c1d2e",
    "uri": "https://example.com/a",
    "email": "a@example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-string": "{}",
    "base64url": "YQ==",
}
_DIGITS = 400
_PLAIN = frozenset({str, int, bool})
_TEXTS = ("aA1", "1", "a", "")


def settle_flat(ints: Sequence[str], floats: Sequence[str], defaults: Defaults) -> Settling:
    """Settle arguments that need no pydantic: fill the defaults, and convert the numbers of these parameters."""
    convert, misfits = conversion.flat_convert(ints, floats, defaults.fitting), defaults.misfits
    if not misfits:
        return Settling(convert)
    return Settling(lambda given: {**misfits, **(given if convert is None else convert(given))}, misfits=misfits)


def settle_typed(
    adapter: TypeAdapter[object], defaults: Defaults, wires: Mapping[str, str] | None = None, *, proven: bool
) -> Settling:
    """Settle with pydantic: fill *defaults*, validate, and dump to JSON; *wires* renames what pydantic does not.

    If the types are not *proven* (see ``prove``), each call checks that the JSON gives itself back.
    """
    validate = conversion.typed_convert(adapter)
    to_python = adapter.serializer.to_python
    kinds = _kinds(adapter.core_schema)
    unordered, equals = bool(kinds & {"set", "frozenset"}), bool(kinds & {"decimal", "datetime", "set", "frozenset"})
    fitting, misfits = dict(defaults.fitting), dict(defaults.misfits)

    def to_json(value: object) -> dict[str, object]:
        dumped: dict[str, object] = to_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        if unordered:
            dumped = _walk(to_python(value, by_alias=True, round_trip=True, warnings=False), dumped, None)
        return {wires.get(name, name): part for name, part in dumped.items()} if wires else dumped

    def settle(arguments: Mapping[str, object]) -> dict[str, object]:
        settled = to_json(validate({**fitting, **arguments}))
        if not proven and to_json(validate(settled)) != settled:
            raise conversion.refusal([Issue("", "unstable", "must convert to a value whose JSON form gives it back")])
        return {**misfits, **settled} if misfits else settled

    def identity(settled: Mapping[str, object]) -> dict[str, object]:
        value = validate(without(settled, misfits))
        python = to_python(value, by_alias=True, round_trip=True, warnings=False)
        found: dict[str, object] = _walk(python, to_json(value), _equal_form)
        return {**misfits, **found}

    return Settling(settle, identity if equals else None, misfits)


def without(arguments: Mapping[str, object], misfits: Mapping[str, object]) -> dict[str, object]:
    """Leave out the arguments that are still a default which the types refuse."""
    return {name: value for name, value in arguments.items() if name not in misfits or value != misfits[name]}


def guarded(settling: Settling, guard: Convert) -> Settling:
    """Let *guard* check the arguments before they are settled."""
    then = settling.settle
    return dataclasses.replace(settling, settle=guard if then is None else lambda arguments: then(guard(arguments)))


def defaults_of(given: Sequence[Argument]) -> Defaults:
    """Return the defaults that are JSON; others apply in the function alone."""
    from pydantic_core import PydanticSerializationError

    fitting: dict[str, object] = {}
    misfits: dict[str, object] = {}
    for item in given:
        if item.required:
            continue
        if item.default.__class__ in _PLAIN and item.hint is item.default.__class__:
            fitting[item.wire] = item.default
            continue
        adapter = _adapter(item.hint, item.name)
        try:
            adapter.validate_python(item.default)
        except Exception:  # noqa: BLE001  (a validator of the author's may raise anything)
            if _is_plain_json(item.default):
                misfits[item.wire] = thaw(item.default)
            continue
        try:
            shown = adapter.dump_python(item.default, mode="json", by_alias=True, round_trip=True, warnings="error")
        except (PydanticSerializationError, ValueError, TypeError):
            continue
        fitting[item.wire] = shown
    return Defaults(fitting, misfits)


def _adapter(hint: object, where: str) -> TypeAdapter[object]:
    with warnings.catch_warnings():  # of an alias, which has a meaning for the parameter and none for the type alone
        warnings.simplefilter("ignore")
        return make_adapter(hint, where)


def _is_plain_json(value: object) -> bool:
    try:
        return bool(json.loads(dump(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def prove(hint: object, where: str) -> bool:
    """Return True if samples of a type convert to values whose JSON form gives them back; False without a valid sample.

    Raises:
        DefinitionError: a value is not given back.
    """
    from pydantic_core import to_json

    adapter = _adapter(hint, where)
    if "generator" in _kinds(adapter.core_schema):
        raise DefinitionError(
            f"{where}: it has an iterator, which can be read once and then has no items; write list[...]"
        )
    schema, tried = json_schema(adapter), False
    for sample in _samples(schema, schema.get("$defs", {}), 0):
        try:
            value = adapter.validate_json(to_json(sample))
        except Exception:  # noqa: BLE001, S112  (not every sample fits)
            continue
        tried = True
        try:
            shown = adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False)
            repeated = adapter.validate_json(shown)
        except Exception as error:  # noqa: BLE001  (the author's own serialiser or validator may raise anything)
            raise _not_given_back(where, type(error).__name__) from None
        if not _same(value, repeated):
            raise _not_given_back(where, "another value")
    return tried


def _not_given_back(where: str, what: str) -> DefinitionError:
    return DefinitionError(
        f"{where}: the JSON form of this type does not give the value back ({what}), so approvers, keys and records would "
        "see other arguments than the tool gets; use a plain type and convert inside the tool"
    )


def _same(one: object, other: object) -> bool:
    """Compare two values; objects that only compare by identity count as equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    fields: dict[str, object] | None = getattr(one, "__dict__", None)
    if fields and (hasattr(one, "__pydantic_fields__") or dataclasses.is_dataclass(one)):
        return all(_same(value, getattr(other, name, None)) for name, value in fields.items())
    by_identity: object = object.__eq__
    return type(one).__eq__ is by_identity or bool(one == other)


def _samples(schema: object, known: Mapping[str, object], depth: int) -> Iterator[object]:
    """Make a few JSON values that may fit a schema; each branch of a choice is used once."""
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        yield from _samples(known.get(str(schema["$ref"]).removeprefix("#/$defs/")), known, depth + 1)
        return
    if "const" in schema or "enum" in schema:
        yield from [schema["const"]] if "const" in schema else schema["enum"][:3]
        return
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if branches:
        for branch in branches:
            yield from _samples(branch, known, depth)
        return
    make = _MAKE.get(str(schema.get("type")))
    if make is None:
        yield from _TEXTS[:1]
    elif depth <= _DEEPEST or schema.get("type") not in {"object", "array"}:
        yield from make(schema, known, depth)


def _text_samples(schema: Mapping[str, Any], _known: Mapping[str, object], _depth: int) -> Iterator[object]:
    shape = str(schema.get("format"))
    if shape in _SAMPLES:
        yield _SAMPLES[shape]
        yield _SAMPLES[shape].removesuffix("Z")
    least = schema.get("minLength", 0)
    yield from (text + "a" * (least - len(text)) for text in _TEXTS)


def _number_samples(schema: Mapping[str, Any], _known: Mapping[str, object], _depth: int) -> Iterator[object]:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    maximum = schema.get("maximum", schema.get("exclusiveMaximum"))
    step = schema.get("multipleOf", 1)
    yield from (1, 7 * step)
    yield from [] if least is None else (least, least + step)
    yield from [] if maximum is None else (maximum, maximum - step)


def _array_samples(schema: Mapping[str, Any], known: Mapping[str, object], depth: int) -> Iterator[object]:
    heads = [next(_samples(one, known, depth + 1), None) for one in schema.get("prefixItems") or ()]
    parts = list(_samples(schema.get("items"), known, depth + 1)) or ["a"]
    least = max(schema.get("minItems", 0) - len(heads), 0)
    yield heads + [parts[index % len(parts)] for index in range(least)]
    if schema.get("items") is not False:
        yield from (heads + [part] * max(least, 1) for part in parts)


def _object_samples(schema: Mapping[str, Any], known: Mapping[str, object], depth: int) -> Iterator[object]:
    members = {name: list(_samples(part, known, depth + 1)) for name, part in (schema.get("properties") or {}).items()}
    extra = list(_samples(schema.get("additionalProperties"), known, depth + 1))
    if not members:
        yield {}
        yield from ({"a": part} for part in extra)
        return
    for index in range(max(map(len, members.values()), default=1)):
        yield {name: parts[min(index, len(parts) - 1)] for name, parts in members.items() if parts}


_MAKE: dict[str, Callable[[Mapping[str, object], Mapping[str, object], int], Iterator[object]]] = {
    "string": _text_samples,
    "integer": _number_samples,
    "number": _number_samples,
    "boolean": lambda _schema, _known, _depth: iter((True, False)),
    "null": lambda _schema, _known, _depth: iter((None,)),
    "array": _array_samples,
    "object": _object_samples,
}


def _kinds(schema: object) -> set[str]:
    """Return the types in a core schema of pydantic."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if isinstance(one.get("type"), str):
                found.add(one["type"])
            waiting += [part for key, part in one.items() if key != "metadata"]
        elif isinstance(one, list | tuple):
            waiting += one
    return found


def _walk(python: object, dumped: object, leaf: Callable[[object, object], object] | None) -> Any:
    """Return *dumped* with the items of sets in a fixed order, and with *leaf* applied to scalars."""
    if isinstance(python, dict) and isinstance(dumped, dict) and len(python) == len(dumped):
        return {key: _walk(value, dumped[key], leaf) for value, key in zip(python.values(), dumped, strict=True)}
    if isinstance(dumped, list) and isinstance(python, set | frozenset | list | tuple) and len(python) == len(dumped):
        items = [_walk(one, other, leaf) for one, other in zip(python, dumped, strict=True)]
        return sorted(items, key=canonical) if isinstance(python, set | frozenset) else items
    return dumped if leaf is None else leaf(python, dumped)


def _equal_form(python: object, dumped: object) -> object:
    """Return the same text for equal decimals and equal instants."""
    if isinstance(python, Decimal) and python.is_finite():
        text = format(python, "f") if abs(python.adjusted()) < _DIGITS else str(python)
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if isinstance(python, datetime) and python.tzinfo is not None:
        return python.astimezone(UTC).isoformat()
    return dumped
