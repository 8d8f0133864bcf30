"""How much of a sweep of cancel points the tests of a hook do: a part in ``make test``, all of it in ``make soak``."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.runtime.testing.cancel_modes import AnyioScope, Native

QUICK: dict[str, Any] = {"modes": (Native, AnyioScope), "pairs": 12}
"""A cancellation arrives once, or at every wait until its scope ends: hooks meet no third way.

``asyncio.timeout`` and ``asyncio.wait_for`` cancel once, too. They differ outside of the call:
``tests/runtime/pipeline/test_cancellation.py`` tries them at each point of the pipeline.
"""

swept = pytest.mark.parametrize(
    "sweep", [pytest.param(QUICK, id="quick"), pytest.param({"pairs": 200}, id="whole", marks=pytest.mark.soak)]
)
"""Runs a test with the options of a sweep; one to the deadline takes its ``pairs`` only."""
