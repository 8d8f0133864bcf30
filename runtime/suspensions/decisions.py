"""What somebody may say to a call that waits (design 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Approve:
    """Let it run, with exactly the arguments that were shown."""


@dataclass(frozen=True, slots=True)
class Deny:
    """It must not run, now or later. *reason* is for logs and audit, *public* what the model may read."""

    reason: str = ""
    public: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """Let it run with these arguments instead: validated, authorised and bound anew. Earlier approvals count no more."""

    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Respond:
    """The answer that was asked for; to a call that waits for approval, its output, in place of running the tool.

    With *error* there is no answer: the text goes to the model as the tool's error.
    """

    value: Any = None
    error: str | None = None


Decision: TypeAlias = Approve | Deny | Edit | Respond | Literal["approve", "deny"]
"""What ``gate.resume`` takes; the two words are ``Approve()`` and ``Deny()``."""

_WORDS: dict[str, Approve | Deny] = {"approve": Approve(), "deny": Deny()}


def as_decision(given: Any) -> Approve | Deny | Edit | Respond:
    """A decision from what was given.

    Raises:
        TypeError: it is none.
    """
    found = _WORDS.get(given) if isinstance(given, str) else given
    if not isinstance(found, Approve | Deny | Edit | Respond):
        raise TypeError("a decision is Approve(), Deny(reason), Edit(arguments), Respond(value), 'approve' or 'deny'")
    if isinstance(found, Edit) and not isinstance(found.arguments, Mapping):
        raise TypeError("Edit takes the whole arguments, as a mapping")
    return found


def name_of(decision: Approve | Deny | Edit | Respond) -> str:
    """The word for it in records."""
    return type(decision).__name__.lower()
