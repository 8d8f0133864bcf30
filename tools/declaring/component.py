"""Class tools: each call constructs an instance with the validated arguments and runs it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from inspect import Parameter
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary, ref

from callgate.errors import DefinitionError
from callgate.providers.markers import Injected, find_injected
from callgate.tools.declaring.signature import is_context, resolve_hints
from callgate.tools.definition import ToolDefinition
from callgate.tools.record import ToolRecord

_VARIADIC = frozenset({Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD})


@dataclass(slots=True)
class _Slot:
    """The tool data of a decorated class, kept outside of it.

    Nothing here may refer to the class, ``build`` included: the table is weak in its keys alone.
    """

    definition: ToolDefinition
    build: Callable[[type], ToolRecord]
    record: ref[ToolRecord] | None = None
    validator: object = None


_SLOTS: WeakKeyDictionary[type, _Slot] = WeakKeyDictionary()


class ToolType(type):
    """The metaclass of tool classes: it holds the read-only aliases, which instances and ``vars()`` do not show."""

    def __getattr__(cls, name: str) -> NoReturn:
        """Answer the names of the source documents; only asked for attributes that do not exist."""
        hint = "; write get_definition()" if name in {"getDefinition", "toolMetadata"} else ""
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}{hint}")

    @property
    def definition(cls) -> ToolDefinition | None:
        """The same as ``get_definition()``."""
        return definition_of(cls)

    @property
    def validator(cls) -> object:
        """The validator of the arguments: the attached one, or a new one, which is kept.

        None where there is no schema.

        Raises:
            SchemaRefused: no engine would enforce the schema in full.
        """
        slot = _SLOTS.get(cls)
        if slot is None or (slot.validator is None and slot.definition.parameters is None):
            return None
        if slot.validator is None:
            from callgate.tools.schemas.validation import compile_schema

            record = component_record(cls)
            assert record is not None
            slot.validator = compile_schema(cast("Mapping[str, object]", record.schema_of("parameters")))
        return slot.validator


class ToolComponent(metaclass=ToolType):
    """The base of every class tool; ``@tool`` adds it, so authors need not inherit it.

    The constructor takes the validated arguments as one object; ``run`` does the work.
    """

    __slots__ = ()

    def __init__(self, arguments: object = None, /) -> None:
        """Take the validated arguments; the base ignores them."""

    async def run(self, params: object = None) -> Any:
        """Do the work; the base does nothing and returns None."""

    @classmethod
    def get_definition(cls) -> ToolDefinition | None:
        """The definition of this class; None on the base, and on a subclass that is not decorated itself.

        A subclass may act differently from its parent, so it needs its own declaration.
        """
        return definition_of(cls)


def definition_of(cls: type) -> ToolDefinition | None:
    """The definition that ``@tool`` gave this class, or None; registries read it."""
    slot = _SLOTS.get(cls)
    return slot.definition if slot else None


def component_record(cls: type) -> ToolRecord | None:
    """The record of a decorated class, the same object while a reference to it exists; None if it is not decorated."""
    slot = _SLOTS.get(cls)
    if slot is None:
        return None
    record = slot.record() if slot.record else None
    if record is None:
        record = slot.build(cls)
        slot.record = ref(record)
    return record


def attached_validator(cls: type | None) -> object:
    """The validator that was attached to a class or compiled for its ``validator``; else None."""
    slot = None if cls is None else _SLOTS.get(cls)
    return None if slot is None else slot.validator


def attach_validator(cls: type, validator: object) -> None:
    """Attach a compiled validator to a decorated class, at decoration or later.

    Raises:
        DefinitionError: the class is not decorated with ``@tool``.
    """
    slot = _SLOTS.get(cls)
    if slot is None:
        raise DefinitionError(f"{cls.__qualname__} is not decorated with @tool")
    slot.validator = validator


def make_component(
    original: type, definition: ToolDefinition, build: Callable[[type], ToolRecord], *, takes_arguments: bool
) -> type:
    """Make a runtime subclass of ``original`` and ``ToolComponent`` that carries the definition.

    The original constructor, methods, static members and names are kept. Where the constructor takes no arguments
    object (``takes_arguments=False``), it is called without one, and ``run`` gets the arguments if it has a parameter.
    """
    body: dict[str, object] = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "get_definition": classmethod(definition_of),
    }
    if not takes_arguments:
        body |= _without_constructor(original)
    bases = (original,) if issubclass(original, ToolComponent) else (original, ToolComponent)
    keywords = {"metaclass": _metaclass(type(original))}
    made = types.new_class(original.__name__, bases, keywords, lambda namespace: namespace.update(body))
    _SLOTS[made] = _Slot(definition, build)
    return made


@cache
def _metaclass(kind: type) -> type:
    """A metaclass that derives from the author's (such as ``ABCMeta``) and from this library's."""
    if issubclass(ToolType, kind):
        return ToolType
    return kind if issubclass(kind, ToolType) else type(f"Tool{kind.__name__}", (kind, ToolType), {})


def _without_constructor(original: Any) -> dict[str, object]:
    """Members that take the arguments object in place of the constructor, and pass it to ``run``."""
    kept = "_ToolComponent__arguments"

    def __init__(self: Any, arguments: object = None, /, **injected: object) -> None:  # noqa: N807
        object.__setattr__(self, kept, arguments)
        original.__init__(self, **injected)

    def run(self: Any, params: Any = None) -> Any:
        return original.run(self, getattr(self, kept) if params is None else params)

    async def run_async(self: object, params: object = None) -> object:
        return await run(self, params)

    if len(inspect.signature(original.run).parameters) < 2:
        return {"__init__": __init__}
    entry = run_async if inspect.iscoroutinefunction(original.run) else run
    return {"__init__": __init__, "run": wraps(original.run)(entry)}


@dataclass(frozen=True, slots=True)
class Constructor:
    """The parameters of a class tool's constructor: the arguments object, of type ``hint``, and injected ones."""

    takes_arguments: bool = False
    hint: object = Parameter.empty
    injected: tuple[Injected, ...] = ()
    context_parameter: str | None = None


def read_constructor(cls: Any) -> Constructor:
    """Read a class's constructor: one arguments object, first, and injected parameters by keyword.

    Raises:
        DefinitionError: the constructor needs another parameter.
    """
    where = cls.__qualname__
    if cls.__init__ in {object.__init__, ToolComponent.__init__} and cls.__new__ is object.__new__:
        return Constructor()
    hints = resolve_hints(cls, where)
    injected = find_injected(cls)
    names = {item.name for item in injected}
    context: str | None = None
    takes, hint = False, Parameter.empty
    for index, parameter in enumerate(inspect.signature(cls).parameters.values()):
        name, kind = parameter.name, parameter.kind
        if is_context(hints.get(name)):
            context = name
        elif index == 0 and name not in names and kind not in {Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD}:
            takes, hint = True, hints.get(name, Parameter.empty)
        elif name not in names and parameter.default is Parameter.empty and kind not in _VARIADIC:
            raise DefinitionError(
                f"{where}: the constructor takes the validated arguments as one object, first, and injected "
                f"parameters by keyword; {name!r} is neither: read it from that object"
            )
    return Constructor(takes, hint, injected, context)
