"""``@tool`` and ``as_tool``, which make tools of functions, classes and executors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary, ref

from callgate.errors import DefinitionError
from callgate.providers.guesses import explain_attributes
from callgate.tools.arguments import conversion
from callgate.tools.declaring.component import ToolComponent, component_record, make_component, read_constructor
from callgate.tools.declaring.executor import executor_record, is_executor
from callgate.tools.declaring.signature import read_colour, read_docstring, read_signature, resolve_hints
from callgate.tools.declaring.typed import Defaults, Settling, json_schema, make_adapter, read_output
from callgate.tools.definition import Effect, NoSchemaMode, ToolAnnotations, ToolDefinition
from callgate.tools.naming import did_you_mean
from callgate.tools.record import AuthorSettings, RecordSettings, Style, ToolRecord, as_declared
from callgate.tools.schemas.engines.dialect import Role

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", bound=type)

_INSTEAD = {
    "args_schema": "@tool(parameters=Model.model_json_schema())",
    "cache": "@tool(hooks=[Cache(60)])",
    "desc": "@tool(description=...)",
    "func": "@tool() above the function",
    "input_schema": "@tool(parameters={...})",
    "inputSchema": "@tool(parameters={...})",
    "post_hook": "@tool(hooks=[hook]), where the hook has a method did_execute",
    "pre_hook": "@tool(hooks=[hook]), where the hook has a method will_execute",
    "provided_by": '@tool(metadata={"provided_by": "..."})',
    "read_only": '@tool(effect="read")',
    "readonly": '@tool(effect="read")',
    "rate_limit": '@tool(hooks=[Quota("100/minute")])',
    "retries": "@tool(hooks=[Retry(3)])",
    "role": "@tool(allowed_roles={...})",
    "roles": "@tool(allowed_roles={...})",
    "schema": "@tool(parameters={...})",
    "timeout": "@tool(deadline=...)",
}
"""The option to write for names of other frameworks and of the source documents."""


class ToolOptions(AuthorSettings, total=False):
    """The options of ``@tool``: fields of ``ToolDefinition``, and those of ``ToolRecord`` that an author sets.

    ``name`` defaults to the function's or class's name, ``description`` to its docstring.
    ``parameters`` is kept verbatim; by default it is generated from the signature.
    ``output_schema`` is generated from the return annotation; ``False`` turns it off.
    """

    type: Literal["function"]
    name: str
    title: str | None
    description: str | None
    parameters: Mapping[str, object] | None
    output_schema: Mapping[str, object] | Literal[False] | None
    effect: Effect | Literal["read", "idempotent", "keyed", "irreversible"] | None
    key: Sequence[str]
    tags: Iterable[str]
    safe: bool | None
    safety: Mapping[str, object]
    allowed_roles: Iterable[str] | None
    capabilities: Mapping[str, object]
    annotations: ToolAnnotations
    examples: Sequence[object]
    version: str
    deprecated: str | None
    strict: bool | None
    provider_schema: Mapping[str, object] | None
    allow_no_schema: bool
    no_schema_mode: NoSchemaMode | Literal["read-only", "human-approval", "full"] | None
    tolerant: bool | None
    metadata: Mapping[str, object]
    hooks_by_stage: Mapping[str, Sequence[object]]


@explain_attributes(
    {
        "ainvoke": "await gate.invoke(tool, arguments, user=user)",
        "args_schema": "tool.definition.parameters",
        "description": "tool.definition.description",
        "func": "tool.__wrapped__",
        "invoke": "await gate.invoke(tool, arguments, user=user)",
        "name": "tool.definition.name",
        "parameters": "tool.definition.parameters",
        "run": "await gate.invoke(tool, arguments, user=user)",
    }
)
class FunctionTool(Generic[P, R_co]):
    """A function that is a tool: calling it calls the function, without a gate; a gate runs its ``record``."""

    __name__: str
    __wrapped__: Callable[P, R_co]

    def __init__(self, function: Callable[P, R_co], record: ToolRecord) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._record = record

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself: no gate, no validation, no policy."""
        return self._function(*args, **kwargs)

    @property
    def record(self) -> ToolRecord:
        """The tool as the runtime runs it."""
        return self._record

    @property
    def definition(self) -> ToolDefinition:
        """The frozen definition."""
        return self._record.definition

    def get_definition(self) -> ToolDefinition:
        """The frozen definition; the same accessor as on class tools."""
        return self._record.definition

    def __repr__(self) -> str:
        return f"<tool {self.definition.name!r} of {getattr(self._function, '__qualname__', self._function)}>"


class AsyncFunctionTool(FunctionTool[P, R_co]):
    """A tool of an ``async def`` function. Frameworks see by its ``__call__`` that it must be awaited."""

    def __init__(self, function: Callable[P, R_co], record: ToolRecord) -> None:
        super().__init__(function, record)
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> object:  # type: ignore[override]  # R_co is awaitable
        """Call and await the function itself: no gate, no validation, no policy."""
        return await cast("Any", self._function(*args, **kwargs))


class ToolDecorator(Protocol):
    """The decorator that ``@tool(...)`` returns."""

    @overload
    def __call__(self, target: C, /) -> C: ...  # type: ignore[overload-overlap]  # a class is callable, too
    @overload
    def __call__(self, target: Callable[P, R_co], /) -> FunctionTool[P, R_co]: ...


@overload
def tool(target: C, /) -> C: ...  # type: ignore[overload-overlap]  # a class is callable, too
@overload
def tool(target: Callable[P, R_co], /) -> FunctionTool[P, R_co]: ...
@overload
def tool(definition: Mapping[str, object], /, **options: Unpack[ToolOptions]) -> ToolDecorator: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> ToolDecorator: ...
def tool(target: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function or a class, bare or with options; the options may also be one mapping, ``@tool({...})``.

    A function, async or plain, stays a plain callable; its schema comes from its signature and docstring. Parameters
    marked ``Annotated[T, Provide[...]]`` and one annotated ``ToolContext`` are supplied by the gate and absent from
    the schema. An async generator sends partial outputs. A plain function runs in a worker thread unless ``inline``.

    A class gets ``ToolComponent`` added. Each call constructs it with the validated arguments as one object, and then
    ``run()`` does the work.

    Raises:
        DefinitionError: a rule is broken, or JSON cannot fill the signature; nothing is registered.
        TypeError: an option is unknown, or the target is neither a function nor a class.
    """
    known = ToolOptions.__annotations__
    if isinstance(target, Mapping):
        if twice := target.keys() & options.keys():
            raise TypeError(f"@tool has {', '.join(sorted(map(str, twice)))} twice: in the mapping and as an option")
        target, options = None, {**target, **options}
    for name in options.keys() - known:
        hint = f"; write {_INSTEAD[name]}" if name in _INSTEAD else did_you_mean(name, known)
        raise TypeError(f"@tool has no option {name!r}{hint}")

    def decorate(item: object) -> object:
        if isinstance(item, type):
            return _class_tool(item, options)
        if isinstance(item, FunctionTool):
            raise DefinitionError(f"{item!r} is a tool already")
        if not callable(item):
            write = f"@tool(name={item!r})" if isinstance(item, str) else "@tool above it, or @tool(option=value)"
            kind = type(item).__name__
            raise TypeError(f"@tool takes a function or a class, and options by name; not {kind}; write {write}")
        record = _function_record(item, options)
        return (AsyncFunctionTool if record.is_async and not record.streams else FunctionTool)(item, record)

    return decorate if target is None else decorate(target)


def as_tool(item: object) -> ToolRecord:
    """Return the record of a tool: the result of ``@tool``, a function, an executor, or a record itself.

    Raises:
        DefinitionError: the object lacks a part of a tool; the message names it.
        TypeError: the object is of another kind.
    """
    if isinstance(item, ToolRecord):
        return item
    if isinstance(item, FunctionTool):
        return cast("FunctionTool[..., object]", item).record
    if isinstance(item, type):
        return _from_class(item)
    if isinstance(item, ToolComponent):
        raise DefinitionError(f"give the class {type(item).__qualname__}, not an instance: one is made for each call")
    if is_executor(item):
        return _remembered(item, executor_record)
    if callable(item):
        return _remembered(item, lambda function: _function_record(function, {}))
    raise TypeError(f"a tool is a function, a class made with @tool, an executor or a ToolRecord; not {item!r:.80}")


_RECORDS: WeakKeyDictionary[object, ref[ToolRecord]] = WeakKeyDictionary()


def _remembered(item: object, build: Callable[[Any], ToolRecord]) -> ToolRecord:
    """Cache one record for one object, while a reference to it exists; not where equality is not identity."""
    kind: Any = type(item)
    if kind.__eq__ is not object.__eq__ or kind.__weakrefoffset__ == 0:
        return build(item)
    known = _RECORDS.get(item)
    record = known() if known else None
    if record is None:
        record = build(item)
        _RECORDS[item] = ref(record)
    return record


def _from_class(cls: type) -> ToolRecord:
    if record := component_record(cls):
        return record
    if is_executor(cls):
        raise DefinitionError(f"give an instance of {cls.__qualname__}, not the class")
    if callable(getattr(cls, "run", None)):
        raise DefinitionError(f"{cls.__qualname__} has run() and no definition of its own: decorate it with @tool")
    raise TypeError(f"the class {cls.__qualname__} is no tool: it has no run() and is not decorated with @tool")


def _split(options: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of the definition and those of the record."""
    record = {name: value for name, value in options.items() if name in RecordSettings.__annotations__}
    return {name: value for name, value in options.items() if name not in record}, record


def _define(options: dict[str, Any], streams: bool, **found: Any) -> ToolDefinition:
    """Make a definition from the author's options, else from the callable."""
    if streams:
        options["capabilities"] = {"streaming": True, **options.get("capabilities", {})}
    if options.get("parameters", found) is None:
        del options["parameters"]
    return ToolDefinition(**{**found, **options})


def _callable(target: Any) -> Callable[..., object]:
    if isinstance(target, functools.partial):
        raise DefinitionError("a partial has no annotations of its own; write a function that calls it")
    return target if inspect.isroutine(target) else target.__call__


def _function_record(function: object, options: Mapping[str, object]) -> ToolRecord:
    call = _callable(function)
    declared, record = _split(options)
    output, parameters = declared.pop("output_schema", None), declared.pop("parameters", None)
    found = read_signature(
        call, parameters=parameters, generate=not declared.get("allow_no_schema"), output=output is None
    )
    definition = _define(
        declared,
        found.streams,
        name=getattr(function, "__name__", type(function).__name__),
        description=found.description,
        parameters=found.parameters,
        output_schema=found.output.schema if output is None else output or None,
    )
    made = ToolRecord(
        definition=definition,
        execute=call,
        style=Style.KEYWORDS,
        is_async=found.is_async,
        injected=found.injected,
        context_parameter=found.context_parameter,
        convert=found.convert,
        settle=found.settling.settle,
        identity=found.settling.identity,
        misfits=found.settling.misfits,
        converts=found.typed,
        to_json=found.output.to_json,
        from_json=found.output.from_json,
        streams=found.streams,
        generated=_generated(parameters, output),
        **record,
    )
    return as_declared(made)


def _generated(parameters: object, output: object) -> frozenset[Role]:
    """Return the schemas that come from types, where the author gave neither or one of both."""
    given: dict[Role, object] = {"parameters": parameters, "output": output}
    return frozenset(role for role, schema in given.items() if schema is None)


def _class_tool(cls: type, options: Mapping[str, object]) -> type:
    if component_record(cls) is not None:
        raise DefinitionError(f"{cls.__qualname__} is a tool already")
    where = cls.__qualname__
    declared, record = _split(options)
    run = _run_of(cls)
    constructor = read_constructor(cls)
    schema, convert, settling = _object_schema(constructor.hint, where)
    is_async, streams, returned = read_colour(run, resolve_hints(run, where).get("return", Any), where)
    wanted = declared.pop("output_schema", None)
    output = read_output(returned, f"{where}.run", schema=wanted is None, parts=streams)
    definition = _define(
        declared,
        streams,
        name=cls.__name__,
        description=read_docstring(cls.__doc__)[0],
        parameters=None if declared.get("allow_no_schema") else schema,
        output_schema=output.schema if wanted is None else wanted or None,
    )
    template = ToolRecord(
        definition=definition,
        execute=type,
        style=Style.COMPONENT,
        is_async=is_async,
        injected=constructor.injected,
        context_parameter=constructor.context_parameter,
        convert=convert,
        settle=settling.settle,
        identity=settling.identity,
        to_json=output.to_json,
        from_json=output.from_json,
        streams=streams,
        generated=_generated(declared.get("parameters"), wanted),
        **record,
    )
    return make_component(
        cls,
        definition,
        lambda made: as_declared(dataclasses.replace(template, execute=made, component=made)),
        takes_arguments=constructor.takes_arguments,
    )


def _run_of(cls: type) -> Callable[..., object]:
    """Check that ``run`` is overridden and callable without arguments."""
    run = inspect.getattr_static(cls, "run", None)
    if run is None or run is ToolComponent.run or not inspect.isfunction(run):
        raise DefinitionError(f"{cls.__qualname__}: a class tool has a method `async def run(self, params=None)`")
    _, *others = inspect.signature(run).parameters.values()
    if any(item.default is item.empty and item.kind not in {item.VAR_POSITIONAL, item.VAR_KEYWORD} for item in others):
        raise DefinitionError(f"{cls.__qualname__}.run is called without arguments: give its parameters defaults")
    return run


def _object_schema(hint: object, where: str) -> tuple[dict[str, object] | None, conversion.Convert | None, Settling]:
    """Read the type of a constructor's arguments object: a TypedDict, dataclass or model has a schema."""
    if conversion.is_mapping(hint):
        return None, None, Settling()
    if not conversion.is_structured(hint):
        raise DefinitionError(
            f"{where}: the constructor's first parameter receives all the arguments as one object; annotate it with "
            "dict[str, Any], a TypedDict, a dataclass or a model"
        )
    adapter = make_adapter(hint, where)
    schema: dict[str, object] = {"additionalProperties": False, **json_schema(adapter)}
    if conversion.kind_of(hint) == "same":
        return schema, None, Settling()
    from callgate.tools.declaring.settling import prove, settle_typed

    proven = prove(hint, f"{where}: the arguments")
    return schema, conversion.typed_convert(adapter), settle_typed(adapter, Defaults(), proven=proven)


def read_types(described: dict[str, object]) -> dict[str, object]:
    """Replace types in ``input_schema`` and ``output_schema`` by their schemas; return the settings of their record.

    Raises:
        DefinitionError: pydantic cannot convert one of the types.
    """
    where = f"ToolRecord {described.get('id') or described.get('name')}"
    settings, generated = dict[str, object](), set[Role]()
    if isinstance(wanted := described.get("input_schema"), type):
        described["input_schema"], convert, settling = _object_schema(wanted, where)
        settings |= {"convert": convert, "settle": settling.settle, "identity": settling.identity}
        generated.add("parameters")
    if isinstance(returned := described.get("output_schema"), type):
        output = read_output(returned, where)
        described["output_schema"] = output.schema
        settings |= {"to_json": output.to_json, "from_json": output.from_json}
        generated.add("output")
    return settings | {"generated": frozenset(generated)}
