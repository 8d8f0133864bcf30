"""Decisions on a suspended call: approve, deny, edit or respond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Approve:
    """Run the call with exactly the arguments that the approver saw."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse the call for good. *reason* goes to logs and audit; the model may read *public*."""

    reason: str = ""
    public: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """Run the call with other arguments. They are validated and authorised anew; earlier approvals no longer count."""

    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Respond:
    """The requested answer. For a call that waits for approval: its output, in place of running the tool.

    With *error* there is no answer: the model gets the text as the tool's error.
    """

    value: Any = None
    error: str | None = None


Decision: TypeAlias = Approve | Deny | Edit | Respond | Literal["approve", "deny"]
"""What ``gate.resume`` takes; the two words are ``Approve()`` and ``Deny()``."""

_WORDS: dict[str, Approve | Deny] = {"approve": Approve(), "deny": Deny()}


def as_decision(given: Any) -> Approve | Deny | Edit | Respond:
    """Return the argument of ``gate.resume`` as a decision.

    Raises:
        TypeError: the value is not a decision.
    """
    found = _WORDS.get(given) if isinstance(given, str) else given
    if not isinstance(found, Approve | Deny | Edit | Respond):
        raise TypeError("a decision is Approve(), Deny(reason), Edit(arguments), Respond(value), 'approve' or 'deny'")
    if isinstance(found, Edit) and not isinstance(found.arguments, Mapping):
        raise TypeError("Edit takes the whole arguments, as a mapping")
    return found


def name_of(decision: Approve | Deny | Edit | Respond) -> str:
    """Return the name of the decision in records."""
    return type(decision).__name__.lower()
