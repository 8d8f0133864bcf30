"""Two services share a database: each has effects, approvals and jobs of its own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from callgate import Approve, Gate, Options
from callgate.errors import NotPending, RegistrationError
from callgate.jobs import EmbeddedJobs
from callgate.providers.signing import SigningKeys
from callgate.stores import JobState
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import ANN, BOB, LEAD, Desk, asked, call, gate_of


@pytest.fixture(params=["sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


async def test_the_same_key_is_an_effect_of_each_service(address: str) -> None:
    """Issue 16 A9. The keys that the tools send on to other services differ, too."""
    desks = {name: Desk() for name in ("", "billing", "shipping")}
    for name, desk in desks.items():
        for _ in range(2):
            async with gate_of(desk.tool(key=("cents",), effect="keyed"), store=address, namespace=name) as gate:
                assert (await gate.call(call(), user=ANN)).output == "paid 1"
                assert len(await gate.store.effects.list(None)) == 1
    assert [desk.paid for desk in desks.values()] == [[5], [5], [5]]
    assert len({desk.keys[0] for desk in desks.values()}) == 3


async def test_a_worker_of_another_service_never_runs_a_job(address: str) -> None:
    desk = Desk()

    def service(namespace: str) -> Gate:
        return gate_of(desk.tool(), store=address, namespace=namespace, jobs=EmbeddedJobs(0))

    async with service("billing") as billing, service("shipping") as shipping:
        job = await billing.submit(call(), user=ANN, key="k")
        assert await shipping.jobs.run_invocation() is None
        assert await shipping.jobs.run_invocation(job.id) is None
        with pytest.raises(NotPending):
            await shipping.job(job.id, user=ANN).status()
        other = await shipping.submit(call(), user=ANN, key="k")
        assert other.id != job.id
        assert await billing.jobs.run_invocation() is JobState.DONE
        assert (await job).output == "paid 1"
        assert (await other.status()).state is JobState.QUEUED


async def test_an_approver_sees_and_decides_the_calls_of_one_service(address: str) -> None:
    desk = Desk()

    def service(namespace: str) -> Gate:
        return gate_of(desk.tool(requires_approval=LEAD), store=address, namespace=namespace)

    async with service("billing") as billing, service("shipping") as shipping:
        handle = await asked(billing)
        assert [one.handle for one in await billing.waits.pending(BOB)] == [handle]
        assert list(await shipping.waits.pending(BOB)) == []
        with pytest.raises(NotPending):
            await shipping.resume(handle, Approve(), approver=BOB)
        assert (await billing.resume(handle, Approve(), approver=BOB)).output == "paid 1"


def test_a_signature_is_valid_in_its_namespace_alone() -> None:
    """A row that is moved to another namespace by hand is not believed there."""
    key = ["a key of the tests"]
    mac = SigningKeys(key, "billing").sign(b"x")
    assert SigningKeys(key, "billing").verify(mac, b"x")
    assert not SigningKeys(key, "shipping").verify(mac, b"x")
    assert SigningKeys(key).ids != SigningKeys(key, "billing").ids


@pytest.mark.parametrize("name", ["Billing", "a b", "é", "x" * 64, "a\n"])
def test_a_name_that_could_be_misread_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="namespace"):
        Options(namespace=name)
