"""What the machine draws: calls, decisions, and what somebody does who can write in the store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

from callgate import Approve, Deny, Edit, Respond, User
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from tests.runtime.effects.machine_world import CALLERS, DECIDERS

TOOLS = st.sampled_from(["pay", "pay", "pay", "send", "send", "post", "ping", "peek", "draft", "fill"])
AMOUNTS = st.sampled_from([20, 500, 1, 20, 500, 9, 99, 2, 30, "x"])
HOWS = st.sampled_from([*["ok"] * 4, "responds", "tool_error", "raise", "abort", "later", "bad"])
GIVEN = st.sampled_from([None, "k1", None, "k2"])
REQUESTS = st.sampled_from([None, "r1", None, "r2"])
WHICH = st.integers(0, 40)
PEOPLE = st.sampled_from(DECIDERS)
ARGUMENTS = st.builds(lambda n, how: {"n": n, "how": how}, AMOUNTS, HOWS)
ASKED = st.tuples(TOOLS, ARGUMENTS, st.sampled_from(CALLERS), GIVEN, REQUESTS, st.sampled_from(["c1", "c2"]))
DECISIONS = st.one_of(
    st.sampled_from([Approve(), Approve(), Approve(), Deny(), Respond(7), Respond(8), Respond(error="No.")]),
    st.sampled_from([Respond("text"), Edit({"n": "x", "how": "ok"})]),
    ARGUMENTS.map(Edit),
)
KEY_RINGS = st.sampled_from([("a",), ("b", "a"), ("b",), ("c", "b"), ("a", "c")])
IN_BETWEEN = ["expires", "edit", "arguments", "lost", "edit", "arguments", "gone", "escalates", "other"]
Change: TypeAlias = tuple[str, Any]
"""A column of a suspended call, and what is done to it."""
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.tuples(st.just("body"), st.integers(0, 20_000)),
    st.tuples(st.just("state"), st.sampled_from(list(SuspensionState))),
    st.tuples(st.sampled_from(["made_at", "expires_at", "number"]), st.sampled_from([1, -1, 700])),
    st.tuples(st.sampled_from(["id", "kind", "tool", "user", "mac", "tenant"]), st.none()),
)


Asked: TypeAlias = tuple[str, dict[str, Any], User, str | None, str | None, str]
"""Tool, arguments, user, idempotency key, request id, call id."""


@dataclass(frozen=True)
class Handle:
    """What somebody was handed. ``whole``: nobody has changed it since."""

    text: str
    id: str
    tenant: str | None
    signer: str
    whole: bool = True


def with_changed(row: SuspensionRecord, change: Change) -> SuspensionRecord:
    """A row with one column, or one bit of its body, changed."""
    column, value = change
    if column == "tenant":
        return row
    if column == "body":
        body = bytearray(row.body)
        body[value // 8 % len(body)] ^= 1 << value % 8
        return replace(row, body=bytes(body))
    if column in {"id", "kind", "tool", "user", "mac"}:
        text = getattr(row, column)
        return replace(row, **{column: text[:-1] + ("1" if text.endswith("0") else "0")})
    return replace(row, **{column: value if column == "state" else (getattr(row, column) or 0.0) + value})
