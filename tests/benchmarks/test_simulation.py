"""The simulation of calls: it keeps to the bounds of queues, and grouping of changes is what makes it fast."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import LIMIT, differs
from benchmarks.simulation_model import Parts, Site, plan, simulate

PARTS = Parts(call=0.0002, batch=0.0003, change=0.00003, server_batch=0.0002, server_change=0.00004, sync=0.0008)
SECONDS = st.floats(1e-5, 2e-3)


@settings(max_examples=15, deadline=None)
@given(st.builds(Parts, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), st.sampled_from([1, 2, 7, 30]))
def test_no_answer_is_beyond_the_bounds_of_its_queues(parts: Parts, callers: int) -> None:
    found = simulate(parts, Site(callers))
    alone = 2 * (parts.batch + parts.change + parts.server_batch + parts.server_change + parts.sync) + parts.call
    slack = 1 + 2 * callers / max(found.calls_s, 1)  # calls that ended in the span and had begun before it
    assert found.calls_s <= callers / alone * slack
    assert found.calls_s <= 1 / (parts.call + 2 * parts.change) * slack
    assert 0 < found.process_share <= 1.01


def test_one_caller_waits_for_two_transactions() -> None:
    alone = PARTS.call + 2 * (PARTS.batch + PARTS.change + PARTS.server_batch + PARTS.server_change + PARTS.sync)
    assert simulate(PARTS, Site(1)).calls_s == pytest.approx(1 / alone, rel=0.01)


def test_the_same_site_gives_the_same_answer() -> None:
    assert simulate(PARTS, Site(16, 2)) == simulate(PARTS, Site(16, 2))


def test_without_grouping_the_simulation_does_not_reproduce_a_grouped_measurement() -> None:
    """A control: the check of 20 % tells a wrong model from the right one."""
    measured = simulate(PARTS, Site(64)).calls_s
    assert not differs(simulate(PARTS, Site(64)).calls_s, measured)
    assert differs(simulate(PARTS, Site(64, grouped=False)).calls_s, measured)
    assert differs(simulate(replace(PARTS, sync=PARTS.sync * 10), Site(4)).calls_s, simulate(PARTS, Site(4)).calls_s)
    assert differs(measured * (1 + 1.1 * LIMIT), measured)
    assert differs(measured * (1 - 1.1 * LIMIT), measured)


def test_processes_share_flushes_of_the_log() -> None:
    """Flushes that each process had for itself would limit ten processes to the commits of one disk."""
    slow, many = replace(PARTS, sync=0.004), Site(1, 10, 10, 10)
    alone = simulate(slow, Site(1, server_cores=10)).calls_s
    assert simulate(slow, many).calls_s > 4 * alone
    assert simulate(slow, many).log_share <= 1.01


def test_the_bandwidth_of_the_log_limits_calls() -> None:
    bound = replace(PARTS, log=2_000, log_byte=1 / 1e6)  # 1 MB a second, and 4 kB a call
    found = simulate(bound, Site(64, 4, 4, 8))
    assert found.calls_s == pytest.approx(1e6 / 4_000, rel=0.2)
    assert found.log_share > 0.95
    assert plan(bound, 10_000, trip=0.0005, server_cores=8) is None


def test_a_plan_has_processes_enough_and_says_when_the_database_has_not() -> None:
    found = plan(PARTS, 5_000, trip=0.0005, server_cores=8)
    assert found is not None
    site, answer = found
    assert answer.calls_s >= 5_000
    fewer = simulate(PARTS, replace(site, processes=site.processes - 1, cores=site.cores - 1))
    assert fewer.calls_s < 5_000
    assert plan(replace(PARTS, server_change=0.01), 5_000, trip=0.0005, server_cores=1) is None
