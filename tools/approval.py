"""Approval rules: the people who have to approve a call before it runs."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from callgate.errors import DefinitionError
from callgate.providers.kinds import check_fields
from callgate.providers.principal import ANONYMOUS, User

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Question:
    """One of several questions that a call asks at once: its text, and the JSON Schema of its answer; None allows any JSON.

    The runtime sets ``place``, which identifies the question when the call runs again.
    """

    prompt: str
    schema: Mapping[str, object] | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class Approval:
    """A rule: *quorum* different people of the caller's tenant, each with one of the *roles* (None: any role).

    ``requester`` allows the caller to approve its own call. The request expires after ``expires`` seconds. After
    ``escalate_after`` seconds, people with a role of ``escalate_to`` may approve as well. ``reason`` tells the approver
    why approval is required. Anonymous users never approve.

    Raises:
        DefinitionError: no group of people could meet the rule.
    """

    roles: Collection[str] | None = None
    quorum: int = 1
    requester: bool = False
    expires: float = DAY
    escalate_after: float | None = None
    escalate_to: Collection[str] = frozenset()
    reason: str | None = None

    def __post_init__(self) -> None:
        for name in ("roles", "escalate_to"):
            given: Iterable[str] | None = getattr(self, name)
            if given is None:
                continue
            found = frozenset([given] if isinstance(given, str) else given)
            if not all(isinstance(role, str) and role for role in found):
                raise DefinitionError(f"Approval: {name} are names")
            if name == "roles" and not found:
                raise DefinitionError("Approval: roles is empty, so no one could approve; leave it out for any role")
            object.__setattr__(self, name, found)
        check_fields(self, DefinitionError, skip=("quorum",))  # "no" as requester would let callers approve themselves
        if type(self.quorum) is not int or self.quorum < 1:
            raise DefinitionError(f"Approval: a quorum is a number of people, 1 at the least, not {self.quorum!r}")
        if not (0 < self.expires < math.inf):
            raise DefinitionError("Approval: expires is in seconds, above 0")
        if self.escalate_after is not None and not (0 <= self.escalate_after < math.inf):
            raise DefinitionError("Approval: escalate_after is in seconds, 0 or more")
        if (self.escalate_after is None) != (not self.escalate_to):
            raise DefinitionError("Approval: escalate_after and escalate_to belong together")

    def allows(self, approver: User, requester: str, waited: float) -> bool:
        """Check that a user of the caller's tenant may approve a call that has waited for *waited* seconds."""
        if approver.id == ANONYMOUS.id or (approver.id == requester and not self.requester):
            return False
        if self.roles is None or not frozenset(self.roles).isdisjoint(approver.roles):
            return True
        late = self.escalate_after is not None and waited >= self.escalate_after
        return late and not frozenset(self.escalate_to).isdisjoint(approver.roles)

    def to_dict(self) -> dict[str, object]:
        """Return the rule as JSON."""
        return {
            "roles": sorted(self.roles or ()),
            "quorum": self.quorum,
            "requester": self.requester,
            "expires": self.expires,
            "escalate_after": self.escalate_after,
            "escalate_to": sorted(self.escalate_to),
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the rule that ``to_dict`` wrote."""
        given: dict[str, Any] = {**data, "roles": data.get("roles") or None}  # a stored rule has [] for any role
        return cls(**given)


Demand: TypeAlias = bool | Approval | None
"""The approval that a call needs: False for none, True for ``Approval()``."""
Requirement: TypeAlias = bool | Approval | Callable[[dict[str, Any]], Demand | Awaitable[Demand]]
"""The type of ``requires_approval``: a demand, or a function of the validated arguments that returns one."""


def rule_of(demand: object) -> Approval | None:
    """Convert a demand to a rule.

    Raises:
        DefinitionError: the demand has another type.
    """
    if demand is None or demand is False:
        return None
    if demand is True:
        return Approval()
    if isinstance(demand, Approval):
        return demand
    raise DefinitionError(
        f"requires_approval is True, False or an Approval, not {type(demand).__name__}; write "
        'requires_approval=Approval(roles={"manager"})'
    )


def met(rule: Approval, approvals: Iterable[tuple[User, float]], requester: str) -> bool:
    """Check that enough different people have approved; each is given with the seconds that the call had waited."""
    counted = {approver.id for approver, waited in approvals if rule.allows(approver, requester, waited)}
    return len(counted) >= rule.quorum
