"""Development mode: what a gate prints on stderr for the developer."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from callgate.hooks.linter import lint
from callgate.runtime.plans import Plans
from callgate.tools.record import ToolRecord

BANNER = (
    "callgate: development mode, not for production: tools without a permit run, records end with the process, and "
    "errors show their text"
)


def report(tools: Iterable[ToolRecord], plans: Plans) -> None:
    """Print the banner, the plan of each tool, and the lint findings."""
    lines = [BANNER]
    for record in tools:
        plan = plans.of(record.id)
        lines += [str(plan), *(f"lint {finding}" for finding in lint(plan))]
    _print("\n".join(lines))


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
