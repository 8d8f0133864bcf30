"""The ORM of Django in tools, providers and hooks, on a real PostgreSQL that ends all connections."""

from __future__ import annotations

import json
from typing import Any

from tests.providers.stores.backends import schema
from tests.runtime.hosts.durable_runs import Worker

OK, ERROR = "success", "error"


def run(mode: str) -> tuple[dict[str, Any], list[str]]:
    """The outcomes of calls in a process of its own, and the last lines of what it logged."""
    with schema():  # skipped without a server
        found = json.loads(Worker("django_orm_app", f"{mode}-process", mode).output().splitlines()[-1])
    return found["outcomes"], found["reasons"]


def test_threads_recover_their_connections_and_the_orm_on_the_event_loop_is_explained() -> None:
    """One call of each thread finds that the database has ended its connection."""
    outcomes, reasons = run("auto")
    assert outcomes["before"] == [OK] * 3
    assert outcomes["after"] == outcomes["provided after"] == [ERROR, OK, OK]
    assert outcomes["Wrapped"][-1] == OK
    assert {*outcomes["on the loop"], *outcomes["Plain"]} == {ERROR}
    for place in ("tool of unwrapped", "Plain of plain"):
        explained = [one for one in reasons if one.strip().startswith(f"{place} runs on the event loop")]
        assert explained, reasons
        assert all("sync_to_async(...)" in one for one in explained)


def test_with_the_health_checks_of_django_no_call_fails() -> None:
    outcomes, _ = run("healthy")
    assert outcomes["before"] == outcomes["after"] == outcomes["provided after"] == [OK] * 3


def test_without_that_setting_each_later_call_of_the_thread_fails() -> None:
    """The control."""
    outcomes, reasons = run("unmanaged")
    assert outcomes["before"] == [OK] * 3
    assert outcomes["after"] == [ERROR] * 3
    assert sum(one.endswith("the connection is closed") for one in reasons) >= 2
