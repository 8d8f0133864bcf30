"""What users may read later: only their own, within the bounds, for a time."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from callgate.runtime.hosts.mcp.user_memory import Owner, UserMemory

MAX_BYTES, MAX_COUNT, TTL = 100, 5, 60.0
ANN, LEA, EVE = ("acme", "ann"), ("acme", "lea"), ("evil", "ann")
Step: TypeAlias = tuple[str, Owner, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "pass"]), st.sampled_from([ANN, LEA, EVE]), st.integers(1, 120)),
    max_size=60,
)


def own(memory: UserMemory[str], owner: Owner) -> list[str]:
    return [key for key, _ in memory.of(owner)]


@given(STEPS)
def test_the_memory_is_that_of_a_plain_list_with_the_same_rules(steps: list[Step]) -> None:
    """Owners, bounds, order of eviction and time, against the rules written down as a list of rows."""
    now = 0.0
    memory = UserMemory[str](MAX_BYTES, MAX_COUNT, TTL, lambda: now)
    rows: list[tuple[str, Owner, int, float]] = []
    for number, (what, owner, size) in enumerate(steps):
        key = f"k{number}"
        if what == "put":
            rows = [row for row in rows if row[3] > now]
            if memory.put(owner, key, key, size):
                while sum(row[2] for row in rows) + size > MAX_BYTES or len(rows) >= MAX_COUNT:
                    rows.remove(next((row for row in rows if row[1] == owner), rows[0]))
                rows.append((key, owner, size, now + TTL))
            else:
                assert size > MAX_BYTES
        elif what == "remove":
            memory.remove(f"k{size}")
            rows = [row for row in rows if row[0] != f"k{size}"]
        else:
            now += size
        for one in (ANN, LEA, EVE):
            left = [row[0] for row in rows if row[1] == one and row[3] > now]
            assert own(memory, one) == left
            assert [memory.get(one, row[0]) for row in rows] == [row[0] if row[0] in left else None for row in rows]
        assert memory.size == sum(row[2] for row in rows if row[3] > now) <= MAX_BYTES


def test_a_user_with_many_values_loses_their_own_and_not_those_of_others() -> None:
    memory = UserMemory[str](MAX_BYTES, MAX_COUNT, TTL, lambda: 0.0)
    memory.put(LEA, "lea", "", 20)
    for number in range(50):
        memory.put(ANN, str(number), "", 20)
    assert (own(memory, LEA), own(memory, ANN)) == (["lea"], ["46", "47", "48", "49"])
