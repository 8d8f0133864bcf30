"""Development mode: what a gate prints on stderr for the developer."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from typing import Any

from callgate.errors import InvocationError, ToolError
from callgate.hooks.base import Hook
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


class Tracebacks(Hook):
    """Print the traceback of each failing tool and hook. Decisions, such as a denial, have none."""

    async def on_error(self, ctx: Any) -> None:
        """Print why the call failed."""
        error = ctx.run.error
        cause = error.__cause__ if isinstance(error, InvocationError) else error
        if cause is not None and not isinstance(error, ToolError):
            self._show(ctx, ctx.run.failed_in.name, cause)

    async def will_finalize_invoke(self, ctx: Any) -> None:
        """Print the failures that did not change the outcome."""
        for failure in ctx.suppressed:
            self._show(ctx, f"{failure.hook}.{failure.stage}", failure.error)

    @staticmethod
    def _show(ctx: Any, where: str, error: BaseException) -> None:
        _print(f"callgate: {ctx.tool_id}: {where} failed\n{''.join(traceback.format_exception(error)).rstrip()}")


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
