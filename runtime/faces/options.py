"""The options of a ``Gate``, grouped by subject. Durations are seconds; points in time are aware datetimes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from callgate.providers.clock import Clock
from callgate.runtime.engine import new_instance
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.schemas.validation import Engine as ValidatorEngine

Mode: TypeAlias = Literal["production", "development"]
"""``"production"`` refuses to open half-configured; ``"development"`` opens, and reports on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions of a gate: ``Gate(sessions=Sessions(ttl=900.0))``.

    Args:
        ttl: seconds after which an unused session ends; None means never.
        maximum: number of sessions that may exist; for a new one the least recently used ends. None means no limit.
    """

    ttl: float | None = 3600.0
    maximum: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a gate that few services change: ``Gate(options=Options(lazy=True))``.

    Args:
        limits: bounds on the size of arguments and outputs.
        lazy: compile a tool's plan and validators at its first call instead of at start.
        resolve: makes an instance of a hook class, once an invocation.
        validator: the engine for author-written schemas; default: jsonschema-rs.
        clock: source of the time, for tests.
    """

    limits: Limits = DEFAULT_LIMITS
    lazy: bool = False
    resolve: Callable[[Any], Any] = new_instance
    validator: ValidatorEngine | None = None
    clock: Clock | None = None
