"""Every verb in every stage where it can be done, against a model that knows nothing but the stage table.

See ``lifecycle_cases`` for the cells and the model. Through workers: ``tests/runtime/jobs/test_matrix_through_workers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from callgate import Stage
from callgate.hooks.stages import May
from tests.hooks.verbs import POWER, VERBS
from tests.runtime.pipeline.lifecycle_cases import (
    NEIGHBOURS,
    SCENARIOS,
    WHERE,
    Cell,
    Model,
    cells,
    deadline_cells,
    every_cell,
)
from tests.runtime.pipeline.lifecycle_gates import observed


async def check(cells: Iterator[Cell]) -> None:
    tried = 0
    for cell in cells:
        assert await observed(cell) == Model(cell).expected(), cell
        tried += 1
    assert tried


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("stage", Stage)
async def test_a_verb_in_a_stage_does_what_the_table_says(stage: Stage, verb: str) -> None:
    """Contract 88, 96, 97, 98, 99, 100, 101, 102, 103, C1, C1a, C15a, C16, C17, C18, C19."""
    await check(cells(stage, verb))


async def test_a_deadline_that_passes_in_any_stage_or_in_the_tool_ends_the_call_there() -> None:
    """I12, design 5: the model knows where, and what follows."""
    await check(deadline_cells())


@pytest.mark.soak
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("stage", Stage)
async def test_a_verb_in_a_stage_does_what_the_table_says_wherever_it_is_registered(stage: Stage, verb: str) -> None:
    """Contract 94, C1, C1a, C1f."""
    await check(every_cell(stage, verb))


def test_the_matrix_is_whole() -> None:
    """Contract 90, 97."""
    assert set().union(*(scenario.stages for scenario in SCENARIOS)) == set(Stage)
    tried = [cell for stage in Stage for verb in VERBS for cell in cells(stage, verb)]
    assert len(tried) > 3_000
    shapes = {(cell.stage, cell.neighbour, cell.first) for cell in tried}
    assert len(shapes) == len(Stage) * len(NEIGHBOURS) * 2
    assert {(cell.verb, cell.where) for cell in tried} == set(product(VERBS, WHERE))
    assert {POWER[verb] for verb in VERBS if verb in POWER} | {May.REPLACE_ERROR} == set(May)
