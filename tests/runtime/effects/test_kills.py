"""Processes that are killed while they call tools: nothing takes effect twice, and all that began is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.stores.backends import place
from tests.runtime.effects.kill_findings import problems_of
from tests.runtime.effects.kill_loop import FATES, Left, loop_on
from tests.runtime.effects.kill_points import POINTS

KINDS = ["sqlite-file", "postgresql"]


async def killed(kind: str, folder: Path, kills: int, seed: int = 1, sabotage: str = "") -> Left:
    """What so many kills leave behind."""
    with place(kind, folder) as (address, _):
        async with loop_on(address, folder, seed, sabotage) as loop:
            await loop.run(kills)
            left = await loop.finish()
    print(left.figures())
    return left


@pytest.mark.parametrize("kind", KINDS)
async def test_workers_that_are_killed_anywhere_leave_no_effect_twice_and_none_unrecorded(
    kind: str, tmp_path: Path
) -> None:
    """Contract I3, I4, I5, I17, I20. Real deaths: on each database one in each way, and five at any moment."""
    left = await killed(kind, tmp_path, len(FATES))
    assert problems_of(left) == []
    assert left.lines
    assert left.orphans


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
async def test_soak_a_thousand_workers_that_are_killed(kind: str, tmp_path: Path) -> None:
    """Contract I3, I4, I5, I17, I20. The same, 1,000 times on each database, at every point that has a name."""
    left = await killed(kind, tmp_path, 1_000, seed=2)
    assert problems_of(left) == []
    assert left.kills.keys() >= set(POINTS)


async def test_workers_that_claim_nothing_are_found_out(tmp_path: Path) -> None:
    """Contract I3, I4: the control. The same loop without the step that claims."""
    expected = ("double: ", "no intent in the ledger")
    problems = list[str]()
    for seed in range(1, 11):  # one loop is enough, unless the machine is so busy that its workers come to nothing
        (folder := tmp_path / str(seed)).mkdir()
        problems = problems_of(await killed("sqlite-file", folder, 3, seed, sabotage="no-claim"))
        if all(any(problem.startswith(kind) for problem in problems) for kind in expected):
            break
    assert any(problem.startswith("double: ") and "of the key" in problem for problem in problems)
    assert any(problem.startswith("no intent in the ledger") for problem in problems)
