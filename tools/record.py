"""``ToolRecord``: a definition together with the code that executes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from callgate.errors import DefinitionError
from callgate.providers.markers import Injected
from callgate.tools.approval import Requirement, rule_of
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.limits import Limits, fault_of_seconds
from callgate.tools.naming import did_you_mean
from callgate.tools.schemas.engines.dialect import Formats, Role, check_formats, without_formats

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

    hooks: Sequence[Any]
    deadline: float | None
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
    convert: Callable[[dict[str, Any]], Any] | None
    settle: Callable[[dict[str, Any]], dict[str, Any]] | None
    identity: Callable[[dict[str, Any]], dict[str, Any]] | None
    misfits: Mapping[str, Any]
    converts: bool
    to_json: Callable[[Any], Any] | None
    from_json: Callable[[Any], object] | None
    hooks_by_stage: Mapping[Any, Sequence[object]]
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
    input_schema: Mapping[str, Any] | type | None
    output_schema: Mapping[str, Any] | type | None
    effect: Effect | Literal["read", "idempotent", "keyed", "irreversible"] | None
    tags: Iterable[str]
    metadata: Mapping[str, Any]


class RecordOptions(RecordSettings, Described, total=False):
    """The keywords of ``ToolRecord``."""


class StageHooks(MutableMapping[Any, Sequence[object]]):
    """``hooks_by_stage`` of a tool. Changes count from the next ``invoke_tool``, and are refused once a gate has the tool."""

    def __init__(self, given: Mapping[Any, Sequence[object]]) -> None:
        self._given: dict[Any, Sequence[object]] = dict(given)
        self._fixed = False

    def fix(self) -> None:
        """Refuse changes from now on: the gate has checked its policy with these hooks."""
        if not self._fixed:
            self._given = {stage: tuple(hooks) for stage, hooks in self._given.items()}
            self._fixed = True

    def __getitem__(self, stage: object) -> Sequence[object]:
        return self._given[stage]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __setitem__(self, stage: object, hooks: Sequence[object]) -> None:
        self._changeable()[stage] = hooks

    def __delitem__(self, stage: object) -> None:
        del self._changeable()[stage]

    def _changeable(self) -> dict[Any, Sequence[object]]:
        if self._fixed:
            raise TypeError(
                "the hooks of this tool are fixed: a gate has it, and would not check the change. Set hooks_by_stage "
                "before the gate opens, or write gate.exchange(add=[the new tool], replace=True)"
            )
        return self._given


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
    ``deadline`` is in seconds, per invocation. ``hard_deadline`` runs an async body in a task that can be abandoned; None
    takes what ``Options`` of the gate say.
    Plain functions run in a worker thread, at most ``max_threads`` at a time, unless ``inline``.
    ``trusted`` is False for schemas from outside. ``formats`` says whether ``format`` restricts values; see ``Options``.
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
    convert: Callable[[dict[str, Any]], Any] | None = None
    settle: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    identity: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    misfits: Mapping[str, Any] = field(default_factory=dict)
    converts: bool = True
    to_json: Callable[[Any], Any] | None = None
    from_json: Callable[[Any], object] | None = None
    hooks: Sequence[Any] = ()
    hooks_by_stage: StageHooks = field(default_factory=lambda: StageHooks({}))
    deadline: float | None = None
    hard_deadline: bool | None = None
    inline: bool = False
    max_threads: int = 8
    parallel: bool = True
    run_on: Place = "caller"
    limits: Limits | None = None
    component: type | None = None
    streams: bool = False
    trusted: bool = True
    formats: Formats | None = None
    generated: frozenset[Role] = frozenset()
    requires_approval: Requirement = False
    resumable: bool = False
    dedupe: Literal["arguments"] | None = None
    key_scope: KeyScope | None = None
    within: float | None = None
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of bare ``invoke_tool``; goes with it

    def __init__(
        self,
        definition: ToolDefinition | None = None,
        execute: Callable[..., object] | None = None,
        style: Style = Style.RECORD,
        **options: Unpack[RecordOptions],
    ) -> None:
        given: dict[str, Any] = dict(options)
        described = {name: given.pop(name) for name in Described.__annotations__ if name in given}
        for name in given.keys() - RecordSettings.__annotations__.keys():
            hint = f"; write {INSTEAD[name]}" if name in INSTEAD else did_you_mean(name, _KEYWORDS)
            raise TypeError(f"ToolRecord() has no parameter {name!r}{hint}")
        if execute is None:
            raise TypeError("a ToolRecord needs execute: a function of the arguments and the context")
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
        fill("definition", definition)
        fill("execute", execute)
        fill("style", style)
        fill("hooks", tuple(self.hooks))  # a hook that is appended later would not run
        fill("hooks_by_stage", StageHooks(self.hooks_by_stage))
        self._check()

    def _check(self) -> None:
        if (fault := fault_of_seconds(self.deadline)) is not None:
            raise DefinitionError(f"tool {self.id!r}: deadline {fault}")
        if self.max_threads < 1:
            raise DefinitionError(f"tool {self.id!r}: max_threads must be at least 1")
        if self.run_on not in ("caller", "worker"):
            raise DefinitionError(f"tool {self.id!r}: run_on is 'caller' or 'worker', not {self.run_on!r}")
        if not callable(self.requires_approval):
            rule_of(self.requires_approval)
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

    def schema_of(self, role: Role) -> Mapping[str, object] | None:
        """Return the schema that values are checked against: without ``format`` where it comes from types.

        A naive ``datetime`` is no ``date-time`` of JSON Schema, and pydantic says more about a refusal.
        """
        schema = self.definition.parameters if role == "parameters" else self.definition.output_schema
        return without_formats(schema) if schema is not None and role in self.generated else schema

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


INSTEAD = {
    "inputSchema": "ToolRecord(input_schema={...})",
    "parameters": "ToolRecord(input_schema={...})",
    "post_hook": "ToolRecord(hooks=[hook]), where the hook has a method did_execute",
    "pre_hook": "ToolRecord(hooks=[hook]), where the hook has a method will_execute",
    "provided_by": 'ToolRecord(metadata={"provided_by": "..."})',
    "timeout": "ToolRecord(deadline=...)",
}
"""The line to write for keywords of the source documents and of other frameworks."""
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
