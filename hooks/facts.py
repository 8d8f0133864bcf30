"""Two facts that a context keeps: what it waits for, and what failed without changing the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate.hooks.stages import Stage
from callgate.tools.approval import Approval


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why and for what an invocation waits: what ``result.pending`` is.

    ``prompt`` is for people, ``schema`` of the answer, ``expires`` in seconds from when it began to wait. ``handle`` is
    what ``gate.resume`` takes, None where nothing keeps it: in a bare ``invoke_tool``. ``rules`` say who may answer
    (none: the caller), ``place`` where in the lifecycle it was asked.
    """

    kind: str
    prompt: str
    schema: Mapping[str, Any] | None = None
    expires: float | None = None
    handle: str | None = None
    rules: tuple[Approval, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A failure that was recorded and changed nothing (contract C1c)."""

    stage: Stage
    hook: str
    error: BaseException
