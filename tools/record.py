"""A tool as the runtime runs it: the contract plus what executes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

from callgate.errors import DefinitionError
from callgate.providers.markers import Injected
from callgate.tools.approval import Requirement, rule_of
from callgate.tools.definition import Effect, ToolDefinition
from callgate.tools.limits import Limits

Place: TypeAlias = Literal["caller", "worker"]
"""Where a call runs."""


class Style(Enum):
    """How ``ToolRecord.execute`` is called."""

    KEYWORDS = "keywords"  # execute(**arguments, **injected)
    COMPONENT = "component"  # execute(arguments, **injected).run()
    RECORD = "record"  # execute(arguments, ctx), the ToolRecord contract (contract 81)


@dataclass(frozen=True, eq=False)
class ToolRecord:
    """The in-process form of a tool (contract 81). ``@tool`` and ``as_tool`` make one; hand-written ones are fine.

    ``execute`` is called as ``style`` says; ``is_async`` tells its colour (for ``COMPONENT``: the colour of ``run``).
    ``injected`` are the parameters that the gate supplies; ``context_parameter`` is the name of the parameter that
    receives the ``ToolContext``, if any.
    ``convert`` turns validated JSON arguments into the annotated types, or is None where they already are; it raises
    ``Invalid`` (stage ``instantiate``) for what only those types can refuse. For ``COMPONENT`` it may give any object.
    ``to_json`` turns what the tool returns into JSON, and ``from_json`` back into the annotated return type; None
    where the return type is JSON already.
    ``streams``: ``execute`` (or ``run``) is an async generator; ``to_json`` is for each part, ``from_json`` for the list.
    ``deadline`` is in seconds, per invocation. ``hard_deadline`` runs the body in a task that can be abandoned.
    Plain functions run in a worker thread, at most ``max_threads`` at a time, unless ``inline``.
    ``trusted`` is False for schemas that come from outside.
    ``requires_approval``: True, an ``Approval``, or a function of the validated arguments that says which, if any.
    ``resumable``: the body may suspend, and promises that it has done nothing yet when it does.
    ``dedupe="arguments"``: a call with the same arguments, by the same user, within ``within`` seconds is a repeat.
    ``run_on="worker"``: of several calls (``call_many``, conversations) those of this tool are submitted as jobs.
    ``hooks`` belong to this tool alone; ``hooks_by_stage`` is the explicit form (contract 94).
    """

    definition: ToolDefinition
    execute: Callable[..., Any]
    style: Style = Style.RECORD
    is_async: bool = True
    injected: Sequence[Injected] = ()
    context_parameter: str | None = None
    convert: Callable[[dict[str, Any]], Any] | None = None
    to_json: Callable[[Any], Any] | None = None
    from_json: Callable[[Any], Any] | None = None
    hooks: Sequence[Any] = ()
    hooks_by_stage: Mapping[Any, Sequence[Any]] = field(default_factory=dict)
    deadline: float | None = None
    hard_deadline: bool = False
    inline: bool = False
    max_threads: int = 8
    parallel: bool = True
    run_on: Place = "caller"
    limits: Limits | None = None
    component: type | None = None
    streams: bool = False
    trusted: bool = True
    requires_approval: Requirement = False
    resumable: bool = False
    dedupe: Literal["arguments"] | None = None
    within: float | None = None
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of bare ``invoke_tool``; goes with it

    def __post_init__(self) -> None:
        if self.deadline is not None and not self.deadline > 0:
            raise DefinitionError(f"tool {self.id!r}: deadline is in seconds and must be above 0")
        if self.max_threads < 1:
            raise DefinitionError(f"tool {self.id!r}: max_threads must be at least 1")
        if self.run_on not in ("caller", "worker"):
            raise DefinitionError(f"tool {self.id!r}: run_on is 'caller' or 'worker', not {self.run_on!r}")
        if not callable(self.requires_approval):
            rule_of(self.requires_approval)
        self._check_dedupe()

    def _check_dedupe(self) -> None:
        if self.dedupe not in (None, "arguments"):
            raise DefinitionError(f"tool {self.id!r}: dedupe is 'arguments' or None, not {self.dedupe!r}")
        if (self.dedupe is None) != (self.within is None) or (self.within is not None and not self.within > 0):
            raise DefinitionError(f"tool {self.id!r}: dedupe='arguments' needs within=, seconds above 0, and within it")
        if self.dedupe is not None and (self.definition.key or self.definition.effect is Effect.READ):
            raise DefinitionError(f"tool {self.id!r}: dedupe is for tools with an effect and no key of their own")

    @property
    def id(self) -> str:
        """The wire name."""
        return self.definition.name

    @property
    def name(self) -> str:
        """The name for people: the title, or else the wire name."""
        return self.definition.title or self.definition.name
