"""What decides whether a call may go on: verdicts, the declarative rules ``permit`` and ``forbid``, and the protocol behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from callgate.errors import HookError
from callgate.providers.principal import User
from callgate.tools.definition import ToolDefinition


class Verdict(Enum):
    """What one decider says.

    ``PENDING``: it cannot tell without the arguments, ask it again when they are known. ``MAY_FORBID``: the same, but it
    will not permit.
    """

    PERMIT = "permit"
    FORBID = "forbid"
    ABSTAIN = "abstain"
    PENDING = "pending"
    MAY_FORBID = "may forbid"


PERMIT, FORBID, ABSTAIN, PENDING, MAY_FORBID = Verdict


class Ruling(NamedTuple):
    """A verdict with what the log is told of it."""

    verdict: Verdict
    reason: str


Said: TypeAlias = Verdict | Ruling
Answer: TypeAlias = Said | Awaitable[Said]
Predicate: TypeAlias = Callable[[User, ToolDefinition], bool | Awaitable[bool]]
"""Asked before the arguments are known."""
InputPredicate: TypeAlias = Callable[[User, ToolDefinition, Mapping[str, Any]], bool | Awaitable[bool]]
"""Asked with the validated arguments, which are frozen; what the call leaves out has its default."""


@runtime_checkable
class Decider(Protocol):
    """One voice of an ``Authorize``: a rule, a set of Cedar policies, or an object of your own.

    ``id`` is what a denial names in the log. What it raises denies.
    """

    @property
    def id(self) -> str:
        """Its name, unique within an ``Authorize``."""
        ...

    def before_input(self, user: User, tool: ToolDefinition) -> Answer:
        """The verdict on user and tool alone; ``PENDING`` or ``MAY_FORBID`` to be asked again."""
        ...

    def on_input(self, user: User, tool: ToolDefinition, arguments: Mapping[str, Any]) -> Answer:
        """The verdict on the arguments; asked only after ``PENDING`` or ``MAY_FORBID``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Permits or forbids where all of its conditions hold, and abstains elsewhere. Made by ``permit`` and ``forbid``."""

    id: str
    verdict: Verdict
    roles: frozenset[str] | None = None
    scopes: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    effects: frozenset[str] | None = None
    when: Predicate | None = None
    when_input: InputPredicate | None = None

    @property
    def is_static(self) -> bool:
        """Whether roles, scopes and tenants say it all: nothing is called."""
        return self.when is None and self.when_input is None

    def concerns(self, tool: ToolDefinition) -> bool:
        """Whether the rule is about this tool at all."""
        return (
            (self.tools is None or tool.name in self.tools)
            and (self.tags is None or not self.tags.isdisjoint(tool.tags))
            and (self.effects is None or (tool.effect is not None and tool.effect.value in self.effects))
        )

    def fits(self, user: User) -> bool:
        """Whether the user has one of the roles, all of the scopes, and one of the tenants."""
        return (
            (self.roles is None or not self.roles.isdisjoint(user.roles))
            and (self.scopes is None or self.scopes.issubset(user.scopes))
            and (self.tenants is None or user.tenant in self.tenants)
        )

    def before_input(self, user: User, tool: ToolDefinition) -> Answer:
        """See ``Decider``."""
        if not (self.concerns(tool) and self.fits(user)):
            return ABSTAIN
        again = PENDING if self.verdict is PERMIT else MAY_FORBID
        holds = self.verdict if self.when_input is None else again
        return holds if self.when is None else _verdict(self.when(user, tool), holds)

    def on_input(self, user: User, tool: ToolDefinition, arguments: Mapping[str, Any]) -> Answer:
        """See ``Decider``."""
        assert self.when_input is not None
        return _verdict(self.when_input(user, tool, arguments), self.verdict)


def permit(
    id: str,
    *,
    roles: Collection[str] | None = None,
    scopes: Collection[str] | None = None,
    tenants: Collection[str] | None = None,
    tools: Collection[str] | None = None,
    tags: Collection[str] | None = None,
    effects: Collection[str] | None = None,
    when: Predicate | None = None,
    when_input: InputPredicate | None = None,
) -> Rule:
    """A rule that lets calls pass, unless another forbids them. Every condition that is given has to hold.

    Args:
        id: what logs and audit call the rule.
        roles: the user has one of them.
        scopes: the user has all of them.
        tenants: the user belongs to one of them.
        tools: wire names of the tools it is about.
        tags: the tool has one of them.
        effects: the tool's effect is one of them, such as ``"read"``.
        when: asked with user and tool; returns a ``bool``, or an awaitable of one.
        when_input: asked with user, tool and the validated arguments, frozen.

    Raises:
        HookError: no id, or a condition that could never hold.
    """
    return _rule(id, PERMIT, when, when_input, roles, scopes, tenants, tools, tags, effects)


def forbid(
    id: str,
    *,
    roles: Collection[str] | None = None,
    scopes: Collection[str] | None = None,
    tenants: Collection[str] | None = None,
    tools: Collection[str] | None = None,
    tags: Collection[str] | None = None,
    effects: Collection[str] | None = None,
    when: Predicate | None = None,
    when_input: InputPredicate | None = None,
) -> Rule:
    """A rule that refuses calls, whatever permits them; the conditions are those of ``permit``.

    Raises:
        HookError: no id, or a condition that could never hold.
    """
    return _rule(id, FORBID, when, when_input, roles, scopes, tenants, tools, tags, effects)


_NAMES = ("roles", "scopes", "tenants", "tools", "tags", "effects")


def _rule(id: str, verdict: Verdict, when: Any, when_input: Any, *given: Collection[str] | None) -> Rule:
    if not isinstance(id, str) or not id:
        raise HookError(f"a rule is named by a text such as 'managers-refund', not {id!r}")
    names = {name: names_of(f"rule {id!r}", name, value) for name, value in zip(_NAMES, given, strict=True)}
    for name, asked in (("when", when), ("when_input", when_input)):
        if asked is not None and not callable(asked):
            raise HookError(f"rule {id!r}: {name} is {asked!r}; give a function")
    return Rule(id, verdict, **names, when=when, when_input=when_input)


def names_of(where: str, what: str, given: Collection[str] | None) -> frozenset[str] | None:
    """A collection of names, frozen; None stays None.

    Raises:
        HookError: one text instead of a collection, an empty one, or something else than text in it.
    """
    if given is None:
        return None
    if isinstance(given, str):
        raise HookError(f"{where}: {what} takes a collection of names; write {what}={{{given!r}}}")
    found = frozenset(given)
    if not found or not all(isinstance(name, str) for name in found):
        raise HookError(f"{where}: {what} takes names, at least one; leave it out where it does not matter")
    return found


def _verdict(answer: Any, holds: Verdict) -> Answer:
    if answer is True:
        return holds
    if answer is False:
        return ABSTAIN
    if isinstance(answer, Awaitable):
        return _Later(answer, holds)
    raise TypeError(f"a condition returns True or False, not {type(answer).__name__}")


class _Later:
    """The verdict of a condition that has to be awaited."""

    __slots__ = ("_answer", "_holds")

    def __init__(self, answer: Awaitable[Any], holds: Verdict) -> None:
        self._answer = answer
        self._holds = holds

    def __await__(self) -> Generator[Any, Any, Verdict]:
        known = yield from self._answer.__await__()
        if isinstance(known, Awaitable):
            raise TypeError("a condition returns True or False, not an awaitable of an awaitable")
        found = _verdict(known, self._holds)
        assert isinstance(found, Verdict)
        return found

    def close(self) -> None:
        """Nobody will await it."""
        drop(self._answer)


def drop(answer: Any) -> None:
    """Do away with an awaitable that nobody will await."""
    for name in ("close", "cancel"):
        way = getattr(answer, name, None)
        if way is not None:
            way()
            return
