"""Parameter schema, conversions and injected parameters from a function's signature and docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from callgate.errors import DefinitionError, ProviderError
from callgate.providers.markers import Injected, find_injected, hints_of
from callgate.tools.arguments import conversion
from callgate.tools.arguments.conversion import Convert
from callgate.tools.context import ToolContext
from callgate.tools.declaring.typed import (
    Argument,
    Defaults,
    Output,
    Settling,
    arguments_adapter,
    parameters_schema,
    read_output,
)
from callgate.tools.definition_rules import DESCRIPTION_LIMIT

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_COMPOSING = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if"})
_INJECTING = frozenset(
    "aioinject dishka fast_depends fastapi fastmcp injector langchain_core langgraph litestar taskiq_dependencies "
    "that_depends uncalled_for wireup".split()
)
"""Packages whose markers in an annotation, or in place of a default, say that they supply the parameter."""
_READ = frozenset({"Body", "File", "Form", "Path", "Query"})
"""Markers of FastAPI that are fields of pydantic: in an annotation their limits hold for what a model sends, too."""
_ITERATORS = (AsyncIterator, AsyncIterable, AsyncGenerator)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a callable. ``typed``: its body takes other values than settled JSON. ``streams``: it is an async generator, and ``output`` describes its parts."""

    parameters: Mapping[str, Any] | None
    convert: Convert | None
    settling: Settling
    typed: bool
    output: Output
    injected: tuple[Injected, ...]
    context_parameter: str | None
    is_async: bool
    streams: bool
    description: str | None


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters of a callable, by their source."""

    given: tuple[Argument, ...]
    injected: tuple[Injected, ...]
    context_parameter: str | None
    variadic: bool

    @property
    def hidden(self) -> frozenset[str]:
        """The names that a model may never send."""
        context = [self.context_parameter] if self.context_parameter else []
        return frozenset([item.name for item in self.injected] + context)


def read_signature(
    call: Callable[..., object],
    *,
    parameters: Mapping[str, Any] | None = None,
    generate: bool = True,
    output: bool = True,
) -> Signature:
    """Read a function or bound method.

    ``parameters`` is the author's own schema, kept verbatim. Without it a schema is generated, unless ``generate=False``.
    ``output=False`` omits the schema of the return annotation; the return value is still dumped to JSON.

    Raises:
        DefinitionError: JSON cannot give a parameter, or signature and schema contradict each other.
    """
    from callgate.tools.declaring.settling import defaults_of, guarded

    where = getattr(call, "__qualname__", type(call).__name__)
    hints = resolve_hints(call, where)
    description, documented = read_docstring(call.__doc__, inspect.signature(call).parameters)
    arguments = read_arguments(call, hints, documented, where)
    if arguments.variadic and generate and parameters is None:
        raise DefinitionError(f"{where}: **kwargs has no schema; name the parameters, or give `parameters`")
    generating = generate and parameters is None
    adapter = None
    typed = any(conversion.kind_of(item.hint) == "typed" for item in arguments.given)
    if generating or typed:
        adapter = arguments_adapter(arguments.given, where, variadic=arguments.variadic)
    defaults = defaults_of(arguments.given)
    own = parameters  # the author's schema, if there is one
    if generating and adapter is not None:
        parameters = parameters_schema(arguments.given, adapter, defaults.fitting)
    elif own is not None and "properties" in own:  # a settled call is validated again when it is resumed
        defaults = defaults.only(own["properties"])
    convert, settling = _converting(arguments, adapter, defaults, where)
    if not generating and (own is None or _leaves_room(own, arguments, where)):
        accepted = None if arguments.variadic else frozenset(item.wire for item in arguments.given)
        required = frozenset(item.wire for item in arguments.given if item.required)
        guards = (accepted, arguments.hidden, required)
        convert = conversion.guarded(convert, *guards)
        settling = guarded(settling, conversion.guarded(None, *guards))
    colour, streams, returned = read_colour(call, hints.get("return", Parameter.empty), where)
    return Signature(
        parameters=parameters,
        convert=convert,
        settling=settling,
        typed=typed,
        output=read_output(returned, where, schema=output, parts=streams),
        injected=arguments.injected,
        context_parameter=arguments.context_parameter,
        is_async=colour,
        streams=streams,
        description=description,
    )


def resolve_hints(call: Callable[..., object], where: str) -> dict[str, Any]:
    """Read type hints with their metadata; raises ``DefinitionError`` for an undefined name in them."""
    try:
        return hints_of(call)
    except (ProviderError, TypeError, AttributeError, SyntaxError) as error:
        raise DefinitionError(f"{where}: an annotation cannot be read: {error}") from error


def read_arguments(
    call: Callable[..., object], hints: Mapping[str, object], documented: Mapping[str, str], where: str
) -> Arguments:
    """Group the parameters by their source; raises ``DefinitionError`` for those that JSON cannot fill by name."""
    injected = find_injected(call)
    names = {item.name for item in injected}
    given: list[Argument] = []
    contexts: list[str] = []
    variadic = False
    parameters = inspect.signature(call).parameters
    if [one.kind for one in parameters.values()] == [Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD]:
        raise DefinitionError(
            f"{where} takes *args and **kwargs alone: a decorator hides the signature; let it use functools.wraps"
        )
    for parameter in parameters.values():
        name = parameter.name
        hint = hints.get(name, Parameter.empty)
        if parameter.kind is Parameter.VAR_KEYWORD:
            variadic = True
        elif parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY}:
            raise DefinitionError(f"{where}: parameter {name!r} is positional; a tool's arguments are given by name")
        elif is_context(hint):
            contexts.append(name)
        elif name not in names:
            given.append(_argument(parameter, hint, documented.get(name), where))
    if len(contexts) > 1:
        raise DefinitionError(f"{where}: only one parameter may be a ToolContext, not {' and '.join(contexts)}")
    return Arguments(tuple(given), injected, contexts[0] if contexts else None, variadic)


def is_context(hint: object) -> bool:
    """Check for an annotation that receives the context: ``ToolContext``, a subclass, optional or annotated."""
    if get_origin(hint) in {Annotated, Union, types.UnionType}:
        return any(is_context(item) for item in get_args(hint))
    return ToolContext in getattr(hint, "__mro__", ())


def _argument(parameter: Parameter, hint: object, documented: str | None, where: str) -> Argument:
    name = parameter.name
    if hint is Parameter.empty and name in {"self", "cls", "ctx"}:
        method = (
            "decorate a function or a class, not a method; for the method of an object write tool(...)(object.method)"
        )
        mend = "annotate it with ToolContext" if name == "ctx" else method
        raise DefinitionError(f"{where}: parameter {name!r} has no annotation; {mend}")
    if isinstance(parameter.default, dataclasses.Field):
        raise DefinitionError(
            f"{where}: parameter {name!r} has field(...) of dataclasses as its default; write {name}: <type> = <default>"
        )
    if conversion.is_field_info(parameter.default):
        raise DefinitionError(
            f"{where}: parameter {name!r} has Field(...) as its default, which a plain call would receive; "
            f"write {name}: Annotated[<type>, Field(...)] = <default>"
        )
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    _refuse_foreign(parameter, metadata, where)
    fields = [item for item in metadata if conversion.is_field_info(item)]
    if any(not item.is_required() for item in fields):
        raise DefinitionError(f"{where}: parameter {name!r}: write the default after =, not into Field(...)")
    given = [item.validation_alias or item.alias for item in fields if item.validation_alias or item.alias]
    aliases = [item for item in given if isinstance(item, str)]
    if len(aliases) != len(given):
        raise DefinitionError(f"{where}: parameter {name!r}: an alias must be one name")
    own = [item.description for item in fields if item.description]
    own += [item.documentation for item in metadata if type(item).__name__ == "Doc"]
    own += [item for item in metadata if isinstance(item, str)]
    return Argument(
        name=name,
        wire=aliases[-1] if aliases else name,
        hint=Any if hint is Parameter.empty else _repeatable(hint),
        required=parameter.default is Parameter.empty,
        default=parameter.default,
        description=own[0] if own else documented,
    )


def _repeatable(hint: Any) -> Any:
    """Return the hint with a list for each ``Iterable``: pydantic would make an iterator, which a body can read once."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Iterable or hint is Iterable:
        return types.GenericAlias(list, args or (Any,))
    if origin is Annotated:
        return Annotated[_repeatable(args[0]), *args[1:]]
    if origin in {Union, types.UnionType}:
        return Union[tuple(map(_repeatable, args))]  # noqa: UP007  (the members are known at run time only)
    return hint


def _refuse_foreign(parameter: Parameter, metadata: Sequence[object], where: str) -> None:
    """Refuse a parameter that another framework would supply: here a model would send it, such as the user of the call.

    Raises:
        DefinitionError: it is marked so, or its default would be the marker.
    """
    for item in (*metadata, parameter.default):
        kind = item if isinstance(item, type) else type(item)
        package, read = kind.__module__.partition(".")[0], item is not parameter.default and kind.__name__ in _READ
        if package in _INJECTING and not read:
            raise DefinitionError(
                f"{where}: parameter {parameter.name!r} is marked with {kind.__name__} of {package}, which is not asked "
                f"here, so a model would send it; write {parameter.name}: Annotated[<type>, Provide[<token>]], and give the "
                "gate provide={<token>: ...}"
            )
    if parameter.default is ...:
        raise DefinitionError(f"{where}: parameter {parameter.name!r} has ... as its default; leave the default out")


def _converting(
    arguments: Arguments, adapter: TypeAdapter[object] | None, defaults: Defaults, where: str
) -> tuple[Convert | None, Settling]:
    """Return the conversion of settled arguments to those of the body, and how arguments are settled."""
    from callgate.tools.declaring.settling import prove, settle_flat, settle_typed, without

    kinds = {item.wire: conversion.kind_of(item.hint) for item in arguments.given}
    if adapter is not None and "typed" in kinds.values():
        typed = [item for item in arguments.given if kinds[item.wire] == "typed"]
        checked = [prove(item.hint, f"{where}: parameter {item.name!r}") for item in typed]  # each may refuse
        proven = all(checked)
        wires = {item.name: item.wire for item in arguments.given if item.name != item.wire}
        convert, misfits = conversion.typed_convert(adapter), defaults.misfits
        settling = settle_typed(adapter, defaults, wires, proven=proven)
        return (lambda settled: convert(without(settled, misfits))) if misfits else convert, settling
    ints = [name for name, kind in kinds.items() if kind == "int"]
    floats = [name for name, kind in kinds.items() if kind == "float"]
    return conversion.flat_convert(ints, floats), settle_flat(ints, floats, defaults)


def _leaves_room(schema: Mapping[str, Any], arguments: Arguments, where: str) -> bool:
    """Check an author's schema against the signature; returns True where it allows arguments that the function lacks."""
    properties = schema.get("properties") or {}
    for name in sorted(arguments.hidden & properties.keys()):
        raise DefinitionError(f"{where}: {name!r} is supplied by the gate and must not be in the schema")
    if _COMPOSING & schema.keys():
        return True
    known = {item.wire for item in arguments.given}
    for name in sorted(properties.keys() - known):
        if not arguments.variadic:
            raise DefinitionError(f"{where}: the schema has {name!r}, which the function does not take")
    for item in arguments.given:
        if item.required and item.wire not in (schema.get("required") or ()):
            raise DefinitionError(f"{where}: the schema does not require {item.wire!r}, which has no default")
    return schema.get("additionalProperties") is not False or "patternProperties" in schema


def read_colour(call: Callable[..., object], returned: object, where: str) -> tuple[bool, bool, object]:
    """Read whether a callable is async, whether it streams, and its return type (or the type of its parts)."""
    if inspect.isgeneratorfunction(call):
        raise DefinitionError(f"{where}: a tool that streams is an async generator; write `async def`")
    origin, args = get_origin(returned), get_args(returned)
    if inspect.isasyncgenfunction(call):
        return True, True, args[0] if origin in _ITERATORS and args else Parameter.empty
    if inspect.iscoroutinefunction(call):
        return True, False, returned
    if origin in {Awaitable, Coroutine} and args:
        return True, False, args[-1]
    return False, False, returned


_TITLES = r"(?:(?:Arg(?:ument)?s|Param(?:eter)?s|Kwargs|Keyword (?:Arg(?:ument)?|Param(?:eter)?)s|Other Parameters):)"
_HEADING = re.compile(rf"^{_TITLES}[ \t]*(?P<entry>.*)$(?=(?:\n(?P<indent>[ \t]+)\S)?)", re.MULTILINE)
_READ_AS = ("Args", "Arguments", "Parameters", "Params")
"""The headings that the parser knows. It reads a heading once, so each section gets another."""


def _plain_sections(text: str, names: Collection[str]) -> str:
    """Rewrite the sections of parameters in Google style, so that the parser reads "Keyword Args:" and "Args: a: text"."""
    titles = iter(_READ_AS)
    known = rf"\**(?:{'|'.join(map(re.escape, names))})(?: ?\([^)]*\))?:" if names else r"(?!)"

    def rewritten(found: re.Match[str]) -> str:
        entry, indent = found["entry"], found["indent"] or "    "
        if entry and not re.match(known, entry):
            return found[0]  # prose, such as "Parameters: see below"
        entries = re.split(rf"[,;]?[ \t]+(?={known})", entry) if entry else []
        title = next(titles, None)
        return found[0] if title is None else "\n".join([f"{title}:", *(indent + one for one in entries)])

    return _HEADING.sub(rewritten, _own_line(text, known))


def _own_line(text: str, known: str) -> str:
    """Move a heading at the end of the first line, as in "Adds. Args: a: text", to a line of its own."""
    found = re.match(rf"(?P<summary>.*?\S)[ \t]+(?P<title>{_TITLES})(?=[ \t]*\n?[ \t]*{known})[ \t]*", text)
    if found is None:
        return text
    first, *rest = text[found.end() :].split("\n")
    lines = [first, *(f"    {line}" for line in rest)]  # the other lines lost their margin
    body = "\n".join(lines)
    return f"{found['summary']}\n\n{found['title']}{' ' if first else ''}{body}"


def read_docstring(text: str | None, names: Collection[str] = ()) -> tuple[str | None, dict[str, str]]:
    """Read the description (at most 65,536 characters) and the texts of parameters; Google, NumPy or reST style.

    *names* are the parameters, for several of them in one line.
    """
    if not text or not text.strip():
        return None, {}
    import docstring_parser

    text = _plain_sections(inspect.cleandoc(text), names)
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return _cut(inspect.cleandoc(text).split("\n\n", 1)[0]), {}
    short, long = (parsed.short_description or "").strip(), (parsed.long_description or "").strip()
    whole = f"{short}\n\n{long}".strip()
    descriptions = {
        name.strip().lstrip("*"): " ".join(item.description.split())
        for item in parsed.params
        if item.description
        for name in item.arg_name.split(",")
    }
    return _cut(whole if len(whole) <= DESCRIPTION_LIMIT else short) or None, descriptions


def _cut(text: str) -> str:
    return text if len(text) <= DESCRIPTION_LIMIT else text[: DESCRIPTION_LIMIT - 1] + "…"
