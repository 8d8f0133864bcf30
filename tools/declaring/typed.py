"""pydantic adapters, their JSON Schemas, and return annotations. Imported at first use only."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Never, NoReturn, get_args, get_origin

from callgate.errors import DefinitionError
from callgate.providers.injector import marker_type
from callgate.tools.arguments import conversion
from callgate.tools.arguments.conversion import Convert
from callgate.tools.calls import ToolResult
from callgate.tools.outputs import LOOSE, Dump
from callgate.tools.values import dump, json_bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core.core_schema import BytesSchema


_ITERABLES = (Iterable, Iterator, Generator)
_OPEN = frozenset({"any", "generator", "is-instance", "custom-error", "callable"})
_HOLDERS = {"list": "items_schema", "set": "items_schema", "frozenset": "items_schema", "dict": "values_schema"}
"""The containers in a core schema, with the key of their parts: without it they admit anything."""
_NAMED = frozenset({"model", "dataclass", "typed-dict"})
"""Types with named members. The serialiser takes a dict for a model as it is, with members that the model lacks."""
_NO_OUTPUT = (None, type(None), Any, object, Parameter.empty, ToolResult, Never, NoReturn)


_RAW = "raw-bytes"
"""The format of bytes that pydantic would decode as UTF-8; types with an encoding of their own write another one."""
_BYTES_IN_JSON = (
    "bytes have no JSON form: many are no UTF-8. Write File of callgate.content instead of bytes, or let the model encode "
    'them: model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")'
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter that a caller fills. ``wire`` is its name in JSON: the alias, else the parameter's name."""

    name: str
    wire: str
    hint: object
    required: bool
    default: object
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
    misfits: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of a callable that are JSON, by wire name: those that fit their types, and the others."""

    fitting: Mapping[str, object] = field(default_factory=dict[str, object])
    misfits: Mapping[str, object] = field(default_factory=dict[str, object])

    def only(self, names: Container[str]) -> Defaults:
        """Keep the defaults of these parameters."""
        return Defaults(*({name: one[name] for name in one if name in names} for one in (self.fitting, self.misfits)))


def arguments_adapter(given: Sequence[Argument], where: str, *, variadic: bool = False) -> TypeAdapter[object]:
    """One pydantic adapter for all arguments; absent arguments stay absent, so that the function's defaults apply."""
    import typing_extensions
    from pydantic import ConfigDict, Field

    fields: dict[str, object] = {}
    for item in given:
        hint = Annotated[item.hint, Field(description=item.description)] if item.description else item.hint
        fields[item.name] = hint if item.required else typing_extensions.NotRequired[hint]
    make: Any = typing_extensions.TypedDict
    shape = make("Arguments", fields)
    shape.__pydantic_config__ = ConfigDict(extra="allow" if variadic else "forbid")
    with_hints = {item.name: item.hint for item in given}
    return make_adapter(shape, where, parts=with_hints)


def make_adapter(hint: Any, where: str, parts: Mapping[str, object] | None = None) -> TypeAdapter[object]:
    """A pydantic ``TypeAdapter``; an error names the part that pydantic cannot handle."""
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter
    from pydantic_core import SchemaError

    try:
        adapter: TypeAdapter[object] = TypeAdapter(hint)
        adapter.json_schema(schema_generator=_generator())
    except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError, TypeError) as error:
        failed = error
    else:
        return adapter
    for name, part in (parts or {}).items():
        make_adapter(part, f"{where}: parameter {name!r}")
    # outside the handler: pydantic's own advice, a hundred lines of it, does not fit a tool
    raise DefinitionError(f"{where}: {_no_form(hint, str(failed).split(chr(10), 1)[0], where)}")


def _no_form(hint: object, text: str, where: str) -> str:
    """Say why pydantic has no schema for a type, and what to write."""
    found = re.search(r"schema for (?:<class ')?(?:[\w.<>]*\.)?(.+?)(?:'>)?\. Set ", text)
    if found is None:
        return f"this type has no JSON form: {text}"
    name, parameter = found[1], where.rpartition(" ")[2].strip("'")
    if name == "InvokeContext":
        return f"InvokeContext is for hooks; a tool takes its own context: write {parameter}: ToolContext"
    if "parameter" not in where:
        return f"{name} has no JSON form; return a dict, a dataclass, a TypedDict or a pydantic model"
    marker = marker_type()
    metadata = getattr(hint, "__metadata__", ())
    if marker is not None and (isinstance(hint, marker) or marker in metadata):
        kind = getattr(hint, "__origin__", None) or getattr(hint, "provider", None)
        name = getattr(kind, "__name__", "Db")
        return f"Provide marks an annotation: write {parameter}: Annotated[{name}, Provide[{name}]]"
    return (
        f"{name} has no JSON form, so a model cannot send it. If the gate supplies it, write "
        f"{parameter}: Annotated[{name}, Provide[{name}]]; else take a dataclass, a TypedDict or a pydantic model"
    )


@cache
def _generator(by_own: bool = False) -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Remove the titles of fields, which repeat their names; with *by_own*, each model decides over its aliases."""

        def field_title_should_be_set(self, schema: object) -> bool:
            return False

        def bytes_schema(self, schema: BytesSchema) -> dict[str, object]:
            found: dict[str, object] = super().bytes_schema(schema)
            raw = self.mode == "serialization" and self._config.ser_json_bytes == "utf8"
            return found | {"format": _RAW} if raw else found

        def _of_own(self, make: Callable[[Any], dict[str, object]], schema: Any) -> dict[str, object]:
            outer = self.by_alias
            if by_own:
                self.by_alias = bool((schema.get("config") or {}).get("serialize_by_alias"))
            try:
                return make(schema)
            finally:
                self.by_alias = outer

        def model_schema(self, schema: object) -> dict[str, object]:
            return self._of_own(super().model_schema, schema)

        def dataclass_schema(self, schema: object) -> dict[str, object]:
            return self._of_own(super().dataclass_schema, schema)

        def typed_dict_schema(self, schema: object) -> dict[str, object]:
            return self._of_own(super().typed_dict_schema, schema)

    return Untitled


def json_schema(
    adapter: TypeAdapter[object], *, mode: Literal["validation", "serialization"] = "validation"
) -> dict[str, Any]:
    """The adapter's schema without titles that repeat a type's name; its root is never a bare ``$ref``."""
    by_own = mode == "serialization" and decides_aliases(adapter)
    schema = adapter.json_schema(schema_generator=_generator(by_own), mode=mode)
    definitions: dict[str, Any] = schema.pop("$defs", {})
    if schema.keys() == {"$ref"}:
        schema = dict(definitions[schema["$ref"].removeprefix("#/$defs/")])
    for name, definition in definitions.items():
        if definition.get("title") == name:
            del definition["title"]
    schema.pop("title", None)
    return schema | ({"$defs": definitions} if definitions else {})


def parameters_schema(
    given: Sequence[Argument], adapter: TypeAdapter[object], defaults: Mapping[str, object]
) -> dict[str, object]:
    """The schema of all arguments, with *defaults* by wire name: an object without additional properties."""
    found = json_schema(adapter)
    properties = found.get("properties", {})
    for item in given:
        if item.wire in defaults and "default" not in properties[item.wire]:
            properties[item.wire] |= {"default": defaults[item.wire]}
    schema: dict[str, object] = {"type": "object", "properties": properties}
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
        item: object = get_args(hint)[0]
        whole = read_output(types.GenericAlias(list, (item,)), where, schema=schema)
        return replace(whole, to_json=Dump(each=read_output(item, where, schema=False).to_json))
    if any(hint is item for item in _NO_OUTPUT):
        return Output(to_json=LOOSE)
    native = conversion.is_json(hint, numbers=True)
    loose = native and not conversion.has_typed_dict(hint)
    if loose and not schema:
        return Output(to_json=LOOSE)
    from callgate.tools import content  # tools without types for pydantic do without

    if content.is_content(hint):
        found = content.content_schema(hint) if schema else None
        return Output(found, Dump(first=content.content_of), content.typed_content(hint))
    try:
        adapter = make_adapter(hint, f"{where}: return")
        found = json_schema(adapter, mode="serialization")
    except DefinitionError as error:
        raise DefinitionError(f"{error}; return a dataclass, a model or a TypedDict, or annotate Any") from error
    if json_bytes({"format": _RAW})[1:-1] in dump(found):
        raise DefinitionError(f"{where}: return: {_BYTES_IN_JSON}")
    of_type, found = found, found if schema else None
    if loose:
        return Output(found, LOOSE)
    parts_with_names = [part for part in _core(adapter) if part.get("type") in _NAMED]
    named = of_type if parts_with_names else None
    by_own, is_open = decides_aliases(adapter), _is_open(adapter)
    if native:
        flat = parts_with_names == [adapter.core_schema]
        members = frozenset[str](parts_with_names[0]["fields"]) if flat else None
        return Output(found, Dump(adapter, is_open=is_open, named=named, members=members))
    back = conversion.typed_convert(adapter, stage="output", code="invalid_output", by_name=by_own)
    return Output(found, Dump(adapter, by_alias=None if by_own else True, is_open=is_open, named=named), back)


def decides_aliases(adapter: TypeAdapter[object]) -> bool:
    """Return True if a type of the adapter sets ``serialize_by_alias``; pydantic then decides for all of them."""
    return any((part.get("config") or {}).get("serialize_by_alias") is not None for part in _core(adapter))


def _is_open(adapter: TypeAdapter[object]) -> bool:
    """Return True if the adapter's type admits values of any type, which may hold an iterator or another mapping."""
    return any(
        part.get("type") in _OPEN or (part.get("type") in _HOLDERS and _HOLDERS[part["type"]] not in part)
        for part in _core(adapter)
    )


def _core(adapter: TypeAdapter[object]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of the adapter's core schema."""
    waiting: list[object] = [adapter.core_schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            waiting += [part for key, part in one.items() if key not in {"metadata", "config"}]
        elif isinstance(one, list | tuple):
            waiting += one
