"""``ToolRecord``: a definition together with the code that executes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from weakref import WeakValueDictionary

from callgate.errors import DefinitionError
from callgate.providers.guesses import explain_camel_case, snake
from callgate.providers.kinds import annotations_of, fault_of_call, fault_of_function, fault_of_kind
from callgate.providers.markers import Injected
from callgate.tools.approval import Requirement, rule_of
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.limits import Limits, fault_of_seconds
from callgate.tools.naming import did_you_mean
from callgate.tools.schemas.engines.base import AuthorSchema, Validator
from callgate.tools.schemas.engines.dialect import Formats, Role, check_formats, without_formats
from callgate.tools.stage_hooks import StageHooks

Place: TypeAlias = Literal["caller", "worker"]
"""The process that runs a call."""


class Style(Enum):
    """The way in which the runtime calls ``ToolRecord.execute``."""

    KEYWORDS = "keywords"  # execute(**arguments, **injected)
    COMPONENT = "component"  # execute(arguments, **injected).run()
    RECORD = "record"  # execute(arguments, ctx)


KeyScope: TypeAlias = Literal["user", "tenant", "global"]
"""The callers among whom a declared key is one effect."""


class AuthorSettings(TypedDict, total=False):
    """The settings of a ``ToolRecord`` that are options of ``@tool``, too; see ``ToolRecord``."""

    hooks: Sequence[object]
    deadline: float | None
    idle: float | None
    hard_deadline: bool | None
    inline: bool
    max_threads: int
    parallel: bool
    run_on: Place
    limits: Limits | None
    requires_approval: Requirement
    resumable: bool
    dedupe: Literal["arguments"] | None
    key_scope: KeyScope | None
    within: float | None


class RecordSettings(AuthorSettings, total=False):
    """The settings of a ``ToolRecord``; see there."""

    is_async: bool
    injected: Sequence[Injected]
    context_parameter: str | None
    convert: Callable[[dict[str, object]], object] | None
    settle: Callable[[dict[str, object]], dict[str, object]] | None
    identity: Callable[[dict[str, object]], dict[str, object]] | None
    misfits: Mapping[str, object]
    converts: bool
    to_json: Callable[[object], object] | None
    from_json: Callable[[object], object] | None
    hooks_by_stage: Mapping[object, Sequence[object]]
    component: type | None
    streams: bool
    trusted: bool
    formats: Formats | None
    generated: frozenset[Role]


class Described(TypedDict, total=False):
    """The fields of a tool that is described without a ``ToolDefinition``."""

    id: str
    name: str
    description: str | None
    input_schema: Mapping[str, object] | type | None
    output_schema: Mapping[str, object] | type | None
    effect: Effect | Literal["read", "idempotent", "keyed", "irreversible"] | None
    tags: Iterable[str]
    metadata: Mapping[str, object]


class RecordOptions(RecordSettings, Described, total=False):
    """The keywords of ``ToolRecord``."""


@explain_camel_case
@dataclass(frozen=True, eq=False, init=False)
class ToolRecord:
    """The in-process form of a tool. ``@tool`` and ``as_tool`` make one; a record can also be written by hand.

    It takes a ``ToolDefinition``, or its main fields: ``ToolRecord(id="sum", name="Sum two numbers", description=...,
    input_schema={...}, execute=run)``. There ``id`` is the wire name and ``name`` the title for people. A schema may be a
    pydantic model, a dataclass or a TypedDict: ``execute(input: Model, ctx)`` then gets and returns its instances.

    ``execute`` is called as ``style`` says. ``is_async`` says that it is async (for ``COMPONENT``: that ``run`` is).
    ``injected`` are the parameters that the gate supplies; ``context_parameter`` is the name of the parameter that
    receives the ``ToolContext``, if any.
    ``settle`` adds defaults and the conversions of the annotated types to validated JSON arguments, before they are
    frozen; the result is JSON. It raises ``Invalid`` (stage ``instantiate``) for values that only those types refuse.
    ``identity`` maps settled arguments to a form in which equal values are equal, for keys; None: they are themselves.
    ``misfits`` are defaults that the schema refuses: settled arguments show them, and a caller cannot send them.
    ``convert`` turns settled arguments into the annotated types; None where they have them already, and not used where
    ``converts`` is False, since settling was enough. For ``COMPONENT`` it may return any object.
    ``to_json`` turns the tool's return value into JSON, and ``from_json`` back into the annotated return type; None
    where the return type is JSON already.
    ``streams``: ``execute`` (or ``run``) is an async generator; ``to_json`` is for each part, ``from_json`` for the list.
    ``deadline`` is in seconds, per invocation; ``idle`` are the seconds without progress that end it. ``hard_deadline`` runs an async body in a task that can be abandoned; None
    takes what ``Options`` of the gate say.
    Plain functions run in a worker thread, at most ``max_threads`` at a time, unless ``inline``.
    ``trusted`` is a property: True for a record that ``@tool`` or ``as_tool`` has made in this process. The schemas of any
    other record meet the limits for schemas from outside. ``trusted=False`` marks its definition as read from data, too.
    ``formats`` says whether ``format`` restricts values; see ``Options``. By default it does, except in a definition from
    data, where its dialect decides.
    ``generated`` names the schemas that come from the function's types: those types check the format themselves.
    ``requires_approval``: True, an ``Approval``, or a function of the validated arguments that returns a demand.
    ``resumable``: the body may suspend, and promises that it has had no effect when it does.
    ``dedupe="arguments"``: a call with the same arguments, by the same user, within ``within`` seconds is a repeat.
    ``key_scope``: callers among whom the declared key is one effect: ``"user"``, ``"tenant"`` (default of irreversible
    tools) or ``"global"``. Another user's repeat is ``conflict`` or ``in_flight``, and never gets the receipt.
    ``run_on="worker"``: of several calls (``call_many``, conversations) those of this tool are submitted as jobs.
    ``hooks`` belong to this tool alone; ``hooks_by_stage`` is the explicit form. A change of ``hooks_by_stage`` counts from
    the next ``invoke_tool``; a gate fixes it.
    """

    definition: ToolDefinition
    execute: Callable[..., Any]
    style: Style = Style.RECORD
    is_async: bool = True
    injected: Sequence[Injected] = ()
    context_parameter: str | None = None
    convert: Callable[[dict[str, object]], Any] | None = None
    settle: Callable[[dict[str, object]], dict[str, object]] | None = None
    identity: Callable[[dict[str, object]], dict[str, object]] | None = None
    misfits: Mapping[str, object] = field(default_factory=dict)
    converts: bool = True
    to_json: Callable[[object], object] | None = None
    from_json: Callable[[object], object] | None = None
    hooks: Sequence[object] = ()
    hooks_by_stage: StageHooks = field(default_factory=lambda: StageHooks({}))
    deadline: float | None = None
    idle: float | None = None
    hard_deadline: bool | None = None
    inline: bool = False
    max_threads: int = 8
    parallel: bool = True
    run_on: Place = "caller"
    limits: Limits | None = None
    component: type | None = None
    streams: bool = False
    formats: Formats | None = None
    generated: frozenset[Role] = frozenset()
    requires_approval: Requirement = False
    resumable: bool = False
    dedupe: Literal["arguments"] | None = None
    key_scope: KeyScope | None = None
    within: float | None = None
    validators: dict[Role, Validator] = field(default_factory=dict, init=False, repr=False)
    """Of a tool from outside, whose validators are kept nowhere else."""
    plans: dict[object, Any] = field(
        default_factory=dict, init=False, repr=False
    )  # of bare ``invoke_tool``; goes with it

    def __init__(
        self,
        definition: ToolDefinition | None = None,
        execute: Callable[..., object] | None = None,
        style: Style = Style.RECORD,
        **options: Unpack[RecordOptions],
    ) -> None:
        given: dict[str, Any] = dict(options)
        described = {name: given.pop(name) for name in Described.__annotations__ if name in given}
        execute = _checked(definition, execute, style, given)
        if definition is None:
            if isinstance(described.get("input_schema"), type) or isinstance(described.get("output_schema"), type):
                from callgate.tools.declaring.declare import read_types  # it needs this module

                given = read_types(described) | given
            definition = _definition(described)
            given.setdefault("is_async", inspect.iscoroutinefunction(execute))
        elif described:
            raise TypeError(f"the definition of a ToolRecord says {', '.join(sorted(described))}; give one of the two")
        fill = partial(object.__setattr__, self)  # as the constructor that a frozen dataclass gets
        for item in fields(self):
            if item.name in given:
                fill(item.name, given[item.name])
            elif item.default_factory is not MISSING:
                fill(item.name, item.default_factory())
            elif item.default is not MISSING:
                fill(item.name, item.default)
        self._settle_trust(definition, given.get("trusted"))
        fill("execute", execute)
        fill("style", style)
        fill("hooks", tuple(self.hooks))  # a hook that is appended later would not run
        fill("misfits", MappingProxyType(dict(self.misfits)))
        fill("hooks_by_stage", StageHooks(self.hooks_by_stage))
        self._check()

    def _settle_trust(self, definition: ToolDefinition, claimed: bool | None) -> None:
        """Mark the definition as read from data, if the record says so.

        Raises:
            DefinitionError: *claimed* is True.
        """
        if claimed:
            raise DefinitionError(
                f"tool {definition.name!r}: a ToolRecord cannot trust itself, so trusted=True is refused; leave it out, or "
                "declare the schemas in code, with @tool"
            )
        object.__setattr__(self, "definition", definition if claimed is None else definition.as_outside())

    def _check(self) -> None:
        if self.style is Style.RECORD:
            check_execute(self.execute, f"tool {self.id!r}: execute", [one.name for one in self.injected])
        for name in ("deadline", "idle"):
            if (fault := fault_of_seconds(getattr(self, name))) is not None:
                raise DefinitionError(f"tool {self.id!r}: {name} {fault}")
        if self.max_threads < 1:
            raise DefinitionError(f"tool {self.id!r}: max_threads must be at least 1")
        if self.run_on not in ("caller", "worker"):
            raise DefinitionError(f"tool {self.id!r}: run_on is 'caller' or 'worker', not {self.run_on!r}")
        if not callable(self.requires_approval):
            rule_of(self.requires_approval)
        elif (fault := fault_of_function(self.requires_approval, Requirement)) is not None:
            raise DefinitionError(f"tool {self.id!r}: requires_approval {fault}")
        check_formats(self.formats)
        self._check_dedupe()

    def _check_dedupe(self) -> None:
        if self.key_scope not in (None, "user", "tenant", "global"):
            raise DefinitionError(
                f"tool {self.id!r}: key_scope is 'user', 'tenant' or 'global', not {self.key_scope!r}"
            )
        if self.key_scope is not None and not self.definition.key:
            raise DefinitionError(f"tool {self.id!r}: key_scope is that of a declared key; give key=, too")
        if self.dedupe not in (None, "arguments"):
            raise DefinitionError(f"tool {self.id!r}: dedupe is 'arguments' or None, not {self.dedupe!r}")
        if (self.dedupe is None) != (self.within is None) or (self.within is not None and not self.within > 0):
            raise DefinitionError(f"tool {self.id!r}: dedupe='arguments' needs within=, seconds above 0, and within it")
        if self.dedupe is not None and (self.definition.key or self.definition.effect is Effect.READ):
            raise DefinitionError(f"tool {self.id!r}: dedupe is for tools with an effect and no key of their own")

    @property
    def trusted(self) -> bool:
        """True if a declaring function made this very record: a copy, another record or data is never trusted."""
        return _DECLARED.get(id(self)) is self

    def formats_for(self, formats: Formats | None) -> Formats | None:
        """Return whether ``format`` restricts values, where a gate says *formats*."""
        chosen = formats if self.formats is None else self.formats
        return "assert" if chosen is None and not self.definition.outside else chosen

    def schema_of(self, role: Role) -> Mapping[str, object] | None:
        """Return the schema that values are checked against: without ``format`` where it comes from types.

        That of a trusted record is an ``AuthorSchema``.

        A naive ``datetime`` is no ``date-time`` of JSON Schema, and pydantic says more about a refusal.
        """
        schema = self.definition.parameters if role == "parameters" else self.definition.output_schema
        schema = without_formats(schema) if schema is not None and role in self.generated else schema
        return AuthorSchema(schema) if schema is not None and self.trusted else schema

    @property
    def id(self) -> str:
        """The tool's name on the wire."""
        return self.definition.name

    @property
    def name(self) -> str:
        """The name for people: the title, else the wire name."""
        return self.definition.title or self.definition.name

    @property
    def description(self) -> str | None:
        """The description for models."""
        return self.definition.description

    @property
    def input_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the arguments."""
        return self.definition.parameters

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the output."""
        return self.definition.output_schema

    @property
    def tags(self) -> AbstractSet[str]:
        """The tags of the tool."""
        return self.definition.tags


_DECLARED: WeakValueDictionary[int, ToolRecord] = WeakValueDictionary()
"""The trusted records, by identity: a subclass may say that it is equal to another record."""


def as_declared(record: ToolRecord) -> ToolRecord:
    """Trust a record that a declaring function has just made, unless its definition was read from data."""
    if not record.definition.outside:
        _DECLARED[id(record)] = record
    return record


def _checked(
    definition: object, execute: Callable[..., object] | None, style: object, settings: Mapping[str, object]
) -> Callable[..., object]:
    """Return *execute*; refuse unknown settings, and arguments of another type."""
    for name in settings.keys() - RecordSettings.__annotations__.keys():
        hint = f"; write {INSTEAD[name]}" if name in INSTEAD else did_you_mean(snake(name), _KEYWORDS)
        raise TypeError(f"ToolRecord() has no parameter {name!r}{hint}")
    if not callable(execute):
        kind = type(execute).__name__
        raise TypeError(f"a ToolRecord needs execute, a function of the arguments and the context, not {kind}; {_LINE}")
    for value, kinds in ((definition, ToolDefinition | None), (style, Style)):
        if (fault := fault_of_kind(value, kinds)) is not None:
            raise TypeError(f"an argument of ToolRecord by position {fault}; {_LINE}")
    for name in _CHECKED_BY_TYPE & settings.keys():
        if (fault := fault_of_kind(settings[name], annotations_of(RecordOptions)[name])) is not None:
            raise DefinitionError(f"ToolRecord: {name} {fault}")
    return execute


def check_execute(execute: Callable[..., object], where: str, marked: Collection[str] = ()) -> None:
    """Refuse an ``execute`` that does not take the input and the context; *marked* are its injected parameters."""
    if (fault := fault_of_call(execute, ("input", "ctx"), marked)) is not None:
        raise DefinitionError(
            f"{where}{fault} cannot be called with (input, ctx): write `async def execute(input, ctx)`, or declare the tool "
            "with @tool, which calls a function with its parameters"
        )


INSTEAD = {
    "inputSchema": "ToolRecord(input_schema={...})",
    "parameters": "ToolRecord(input_schema={...})",
    "post_hook": "ToolRecord(hooks=[hook]), where the hook has a method did_execute",
    "pre_hook": "ToolRecord(hooks=[hook]), where the hook has a method will_execute",
    "provided_by": 'ToolRecord(metadata={"provided_by": "..."})',
    "timeout": "ToolRecord(deadline=...)",
}
"""The line to write for keywords of the source documents and of other frameworks."""
_LINE = "write ToolRecord(id=..., description=..., input_schema={...}, execute=execute)"
_CHECKED_BY_TYPE = frozenset(RecordOptions.__annotations__) - {
    *("deadline", "idle", "run_on", "key_scope", "dedupe", "formats", "requires_approval"),
    *("id", "name", "description", "input_schema", "output_schema", "effect", "tags", "metadata", "trusted"),
}
"""Settings that are checked against their annotation; the others have checks whose messages say more."""
_KEYWORDS = ("definition", "execute", "style", *RecordOptions.__annotations__)


def _definition(described: Mapping[str, Any]) -> ToolDefinition:
    found = dict(described)
    wire = found.pop("id", None) or found.get("name")
    if wire is None:
        raise TypeError("a ToolRecord needs id, the name of the tool on the wire, or a definition")
    title = found.pop("name", None)
    return ToolDefinition(
        name=wire, title=title if title != wire else None, parameters=found.pop("input_schema", None), **found
    )


def runs_again(record: ToolRecord) -> bool:
    """Return True for an irreversible tool without a key of its own: a call that a model repeats runs it again."""
    return record.definition.effect is Effect.IRREVERSIBLE and not record.definition.key and record.dedupe is None
