"""Authorisation rules: ``permit`` and ``forbid``, verdicts, and the ``Decider`` protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from callgate.errors import HookError
from callgate.providers.kinds import fault_of_kind, refuse_result, truth
from callgate.providers.principal import User
from callgate.tools.definition import ToolDefinition, fault_of_effects
from callgate.tools.naming import fault_of_names


class Verdict(Enum):
    """The verdict of one decider.

    ``PENDING``: the verdict depends on the arguments, so call ``on_input`` when they are known. ``MAY_FORBID``: the same
    for a decider that can only forbid or abstain.
    """

    PERMIT = "permit"
    FORBID = "forbid"
    ABSTAIN = "abstain"
    PENDING = "pending"
    MAY_FORBID = "may forbid"


PERMIT, FORBID, ABSTAIN, PENDING, MAY_FORBID = Verdict


class Ruling(NamedTuple):
    """A verdict with a reason for the log."""

    verdict: Verdict
    reason: str


Judgement: TypeAlias = Verdict | Ruling
EventualJudgement: TypeAlias = Judgement | Awaitable[Judgement]
Predicate: TypeAlias = Callable[[User, ToolDefinition], bool | Awaitable[bool]]
"""A condition on user and tool."""
InputPredicate: TypeAlias = Callable[[User, ToolDefinition, Mapping[str, Any]], bool | Awaitable[bool]]
"""A condition on user, tool and the validated, frozen arguments; missing ones have the default of the schema."""


@runtime_checkable
class Decider(Protocol):
    """A decider of an ``Authorize``: a rule, a set of Cedar policies, or your own object.

    The log names its ``id`` in a denial. An exception in a decider denies the call.
    """

    @property
    def id(self) -> str:
        """The name, unique within an ``Authorize``."""
        ...

    def before_input(self, user: User, tool: ToolDefinition) -> EventualJudgement:
        """Return the verdict on user and tool; ``PENDING`` or ``MAY_FORBID`` when it depends on the arguments."""
        ...

    def on_input(self, user: User, tool: ToolDefinition, arguments: Mapping[str, object]) -> EventualJudgement:
        """Return the verdict on the arguments; called only after ``PENDING`` or ``MAY_FORBID``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule made by ``permit`` or ``forbid``. It gives its verdict when all its conditions hold, and abstains otherwise."""

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
        """True when roles, scopes and tenants are the only conditions, so that no function is called."""
        return self.when is None and self.when_input is None

    def concerns(self, tool: ToolDefinition) -> bool:
        """Return True when the rule applies to this tool."""
        return (
            (self.tools is None or tool.name in self.tools)
            and (self.tags is None or not self.tags.isdisjoint(tool.tags))
            and (self.effects is None or (tool.effect is not None and tool.effect.value in self.effects))
        )

    def fits(self, user: User) -> bool:
        """Return True when the user has one of the roles, all scopes, and one of the tenants."""
        return (
            (self.roles is None or not self.roles.isdisjoint(user.roles))
            and (self.scopes is None or self.scopes.issubset(user.scopes))
            and (self.tenants is None or user.tenant in self.tenants)
        )

    def before_input(self, user: User, tool: ToolDefinition) -> EventualJudgement:
        """See ``Decider``."""
        if not (self.concerns(tool) and self.fits(user)):
            return ABSTAIN
        undecided = PENDING if self.verdict is PERMIT else MAY_FORBID
        holds = self.verdict if self.when_input is None else undecided
        return holds if self.when is None else _verdict(self.when(user, tool), holds)

    def on_input(self, user: User, tool: ToolDefinition, arguments: Mapping[str, object]) -> EventualJudgement:
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
    """Make a rule that permits calls for which all given conditions hold. A ``forbid`` rule overrides it.

    Args:
        id: the name of the rule in logs and the audit log.
        roles: the user has one of them.
        scopes: the user has all of them.
        tenants: the user belongs to one of them.
        tools: the tool has one of these names.
        tags: the tool has one of them.
        effects: the tool's effect is one of them, such as ``"read"``.
        when: a function of user and tool that returns a ``bool``, or an awaitable of one.
        when_input: the same with the validated, frozen arguments as the third parameter.

    Raises:
        HookError: no id, or a condition that no call could meet.
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
    """Make a rule that denies calls, also permitted ones; it takes the conditions of ``permit``.

    Raises:
        HookError: no id, or a condition that no call could meet.
    """
    return _rule(id, FORBID, when, when_input, roles, scopes, tenants, tools, tags, effects)


_NAMES = ("roles", "scopes", "tenants", "tools", "tags", "effects")


def _rule(
    id: str,
    verdict: Verdict,
    when: Predicate | None,
    when_input: InputPredicate | None,
    *given: Collection[str] | None,
) -> Rule:
    if not isinstance(id, str) or not id:
        raise HookError(f"a rule needs an id such as 'managers-refund'; {id!r} was given")
    names = {name: names_of(f"rule {id!r}", name, value) for name, value in zip(_NAMES, given, strict=True)}
    if (fault := fault_of_effects(names["effects"])) is not None:
        raise HookError(f"rule {id!r}: effects {fault}")
    for name, condition, kind in (("when", when, Predicate), ("when_input", when_input, InputPredicate)):
        if condition is not None and (fault := fault_of_kind(condition, kind)) is not None:
            raise HookError(f"rule {id!r}: {name} {fault}")
    return Rule(id, verdict, **names, when=when, when_input=when_input)


def names_of(where: str, what: str, given: Collection[str] | None) -> frozenset[str] | None:
    """Freeze a collection of names; None stays None.

    Raises:
        HookError: a single text, an empty collection, or an item that is no text, or an empty one: no tenant has it.
    """
    if given is None:
        return None
    if isinstance(given, str):
        raise HookError(f"{where}: {what} takes a collection of names; write {what}={{{given!r}}}")
    found = frozenset(given)
    if not found or not all(isinstance(name, str) and name for name in found):
        raise HookError(f"{where}: {what} takes at least one name, and no empty one; leave it out to match all")
    if (fault := fault_of_names(what, found)) is not None:
        raise HookError(f"{where}: {what} {fault}")
    return found


def _verdict(answer: object, holds: Verdict) -> EventualJudgement:
    if isinstance(answer, Awaitable):
        return _Later(answer, holds)
    return holds if truth("a rule", "the condition", answer) else ABSTAIN


class _Later:
    """The verdict of an asynchronous condition."""

    __slots__ = ("_answer", "_holds")

    def __init__(self, answer: Awaitable[object], holds: Verdict) -> None:
        self._answer = answer
        self._holds = holds

    def __await__(self) -> Generator[object, None, Verdict]:
        known = yield from self._answer.__await__()
        if isinstance(known, Awaitable):
            refuse_result("a rule", "the awaited condition", known, "True or False")
        found = _verdict(known, self._holds)
        assert isinstance(found, Verdict)
        return found

    def close(self) -> None:
        """Discard the awaitable without awaiting it."""
        drop(self._answer)


def drop(answer: object) -> None:
    """Discard an awaitable without awaiting it."""
    for name in ("close", "cancel"):
        way = getattr(answer, name, None)
        if way is not None:
            way()
            return
