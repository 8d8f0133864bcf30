"""pydantic adapters, their JSON Schemas, and return annotations. Imported at first use only."""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter
from typing import Annotated, Any, Never, NoReturn, get_args, get_origin

from callgate.errors import DefinitionError
from callgate.tools.arguments import conversion
from callgate.tools.arguments.conversion import Convert
from callgate.tools.calls import ToolResult
from callgate.tools.outputs import LOOSE, Dump

_ITERABLES = (Iterable, Iterator, Generator)
_OPEN = frozenset({"any", "generator", "is-instance", "custom-error", "callable"})
_HOLDERS = {"list": "items_schema", "set": "items_schema", "frozenset": "items_schema", "dict": "values_schema"}
"""The containers in a core schema, with the key of their parts: without it they admit anything."""
_NO_OUTPUT = (None, type(None), Any, object, Parameter.empty, ToolResult, Never, NoReturn)


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter that a caller fills. ``wire`` is its name in JSON: the alias, else the parameter's name."""

    name: str
    wire: str
    hint: Any
    required: bool
    default: Any
    description: str | None


@dataclass(frozen=True, slots=True)
class Output:
    """The content of a return annotation: its schema, the conversion to JSON, and the conversion back."""

    schema: dict[str, Any] | None = None
    to_json: Dump = LOOSE
    from_json: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Settling:
    """The way in which a tool settles its arguments. None means that they are settled once they are valid.

    ``settle`` raises ``Invalid`` for values that only the types refuse. ``identity`` maps settled arguments to a form in
    which equal values are equal: ``1.0`` and ``1.00`` as decimals, one instant in two time zones. ``misfits`` are the
    defaults that the tool's own schema refuses, such as None for a ``str``: hooks see them, and a caller cannot send them.
    """

    settle: Convert | None = None
    identity: Convert | None = None
    misfits: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of a callable that are JSON, by wire name: those that fit their types, and the others."""

    fitting: Mapping[str, Any] = field(default_factory=dict[str, Any])
    misfits: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def only(self, names: Container[str]) -> Defaults:
        """Keep the defaults of these parameters."""
        return Defaults(*({name: one[name] for name in one if name in names} for one in (self.fitting, self.misfits)))


def arguments_adapter(given: Sequence[Argument], where: str, *, variadic: bool = False) -> Any:
    """One pydantic adapter for all arguments; absent arguments stay absent, so that the function's defaults apply."""
    import typing_extensions
    from pydantic import ConfigDict, Field

    fields: dict[str, Any] = {}
    for item in given:
        hint = Annotated[item.hint, Field(description=item.description)] if item.description else item.hint
        fields[item.name] = hint if item.required else typing_extensions.NotRequired[hint]
    make: Any = typing_extensions.TypedDict
    shape = make("Arguments", fields)
    shape.__pydantic_config__ = ConfigDict(extra="allow" if variadic else "forbid")
    with_hints = {item.name: item.hint for item in given}
    return make_adapter(shape, where, parts=with_hints)


def make_adapter(hint: Any, where: str, parts: Mapping[str, Any] | None = None) -> Any:
    """A pydantic ``TypeAdapter``; an error names the part that pydantic cannot handle."""
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter
    from pydantic_core import SchemaError

    try:
        adapter: Any = TypeAdapter(hint)
        adapter.json_schema(schema_generator=_generator())
    except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError, TypeError) as error:
        for name, part in (parts or {}).items():
            make_adapter(part, f"{where}: parameter {name!r}")
        text = str(error).split("\n", 1)[0]
        raise DefinitionError(f"{where}: this type has no JSON form: {text}") from error
    return adapter


@cache
def _generator(by_own: bool = False) -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Remove the titles of fields, which repeat their names; with *by_own*, each model decides over its aliases."""

        def field_title_should_be_set(self, schema: object) -> bool:
            return False

        def _of_own(self, make: Callable[[Any], dict[str, Any]], schema: Any) -> dict[str, Any]:
            outer = self.by_alias
            if by_own:
                self.by_alias = bool((schema.get("config") or {}).get("serialize_by_alias"))
            try:
                return make(schema)
            finally:
                self.by_alias = outer

        def model_schema(self, schema: object) -> dict[str, Any]:
            return self._of_own(super().model_schema, schema)

        def dataclass_schema(self, schema: object) -> dict[str, Any]:
            return self._of_own(super().dataclass_schema, schema)

        def typed_dict_schema(self, schema: object) -> dict[str, Any]:
            return self._of_own(super().typed_dict_schema, schema)

    return Untitled


def json_schema(adapter: Any, *, mode: str = "validation") -> dict[str, Any]:
    """The adapter's schema without titles that repeat a type's name; its root is never a bare ``$ref``."""
    by_own = mode == "serialization" and decides_aliases(adapter)
    schema: dict[str, Any] = adapter.json_schema(schema_generator=_generator(by_own), mode=mode)
    definitions: dict[str, Any] = schema.pop("$defs", {})
    if schema.keys() == {"$ref"}:
        schema = dict(definitions[schema["$ref"].removeprefix("#/$defs/")])
    for name, definition in definitions.items():
        if definition.get("title") == name:
            del definition["title"]
    schema.pop("title", None)
    return schema | ({"$defs": definitions} if definitions else {})


def parameters_schema(given: Sequence[Argument], adapter: object, defaults: Mapping[str, object]) -> dict[str, Any]:
    """The schema of all arguments, with *defaults* by wire name: an object without additional properties."""
    found = json_schema(adapter)
    properties = found.get("properties", {})
    for item in given:
        if item.wire in defaults and "default" not in properties[item.wire]:
            properties[item.wire] |= {"default": defaults[item.wire]}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if "required" in found:
        schema["required"] = found["required"]
    schema["additionalProperties"] = False
    return schema | ({"$defs": found["$defs"]} if "$defs" in found else {})


def read_output(hint: Any, where: str, *, schema: bool = True, parts: bool = False) -> Output:
    """Read the schema and the conversions of a return annotation (serialised form).

    With ``parts`` the hint is of one part of a stream: ``to_json`` is for a part, the rest for the list of all parts. The
    parts of an iterable are converted one by one, too.

    Raises:
        DefinitionError: pydantic cannot convert it to JSON.
    """
    if parts and not any(hint is item for item in _NO_OUTPUT):
        whole = read_output(list[hint], where, schema=schema)
        return replace(whole, to_json=read_output(hint, where, schema=False).to_json)
    if get_origin(hint) in _ITERABLES:
        item: Any = get_args(hint)[0]
        whole = read_output(types.GenericAlias(list, (item,)), where, schema=schema)
        return replace(whole, to_json=Dump(each=read_output(item, where, schema=False).to_json))
    if any(hint is item for item in _NO_OUTPUT):
        return Output(to_json=LOOSE)
    native = conversion.is_json(hint, numbers=True)
    if native and not schema:
        return Output(to_json=LOOSE)
    try:
        adapter = make_adapter(hint, f"{where}: return")
        found = json_schema(adapter, mode="serialization") if schema else None
    except DefinitionError as error:
        raise DefinitionError(f"{error}; return a dataclass, a model or a TypedDict, or annotate Any") from error
    if native:
        return Output(found, LOOSE)
    by_own = decides_aliases(adapter)
    back = conversion.typed_convert(adapter, stage="output", code="invalid_output", by_name=by_own)
    return Output(found, Dump(adapter, by_alias=None if by_own else True, is_open=_is_open(adapter)), back)


def decides_aliases(adapter: object) -> bool:
    """Return True if a type of the adapter sets ``serialize_by_alias``; pydantic then decides for all of them."""
    return any((part.get("config") or {}).get("serialize_by_alias") is not None for part in _core(adapter))


def _is_open(adapter: object) -> bool:
    """Return True if the adapter's type admits values of any type, which may hold an iterator or another mapping."""
    return any(
        part.get("type") in _OPEN or (part.get("type") in _HOLDERS and _HOLDERS[part["type"]] not in part)
        for part in _core(adapter)
    )


def _core(adapter: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of the adapter's core schema."""
    waiting: list[Any] = [adapter.core_schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            waiting += [part for key, part in one.items() if key not in {"metadata", "config"}]
        elif isinstance(one, list | tuple):
            waiting += one
