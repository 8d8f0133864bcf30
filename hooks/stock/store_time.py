"""The time that a stock hook gives to a store within a call."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from callgate.hooks.context import InvokeContext
from callgate.providers.stores.server_answers import answer_within, before_deadline


@contextmanager
def store_time(
    ctx: InvokeContext, most: float | None = None, *, least: float | None = None
) -> Generator[None, None, None]:
    """Limit requests to a store to the time that is left of the call, and to *most* seconds.

    With *least* they have that many seconds in any case, also after the deadline.
    """
    left = ctx.remaining()
    if left is not None:
        left = before_deadline(left) if least is None else max(left, least)
    with answer_within(most if left is None else left if most is None else min(most, left)):
        yield
