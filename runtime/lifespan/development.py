"""Development mode: what a gate prints on stderr for the developer."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from callgate.hooks.linter import Finding
from callgate.hooks.plan import Plan

BANNER = (
    "callgate: development mode, not for production: tools without a permit run, records end with the process, and "
    "errors show their text"
)


def report(plans: Iterable[Plan], findings: Iterable[Finding]) -> None:
    """Print the banner, the plan of each tool, and the lint findings."""
    lines = [BANNER, *map(str, plans), *(f"lint {finding}" for finding in findings)]
    sys.stderr.write("\n".join(lines) + "\n")
