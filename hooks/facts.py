"""Two facts that a context keeps: what it waits for, and what failed without changing the outcome."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callgate.hooks.stages import Stage


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why and for what an invocation waits; ``handle`` is unguessable."""

    kind: str
    prompt: str
    schema: Mapping[str, Any] | None = None
    expires: float | None = None
    handle: str = field(default_factory=lambda: secrets.token_urlsafe(24))


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A failure that was recorded and changed nothing (contract C1c)."""

    stage: Stage
    hook: str
    error: BaseException
