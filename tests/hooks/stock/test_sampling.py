"""``sampled``: a hook for a share of users or calls, the same ones everywhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, User, on
from callgate.errors import HookError
from callgate.hooks.stock.sampling import sampled
from tests.world import asked, look


class Denies(Hook):
    def __init__(self) -> None:
        self.held = 0

    def will_authorize(self, ctx: InvokeContext) -> None:
        ctx.abort("no")


class Leases(Hook):
    def __init__(self) -> None:
        self.taken = self.held = 0

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.taken += 1
        self.held += 1

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        self.held -= 1


async def denied(hook: Any, users: int = 2_000, **options: Any) -> list[str]:
    async with Gate([look], [hook]) as gate:
        results = [
            await gate.call(asked("look", n=1), user=User(f"u{n}"), request_id=f"r{n}", **options) for n in range(users)
        ]
    return [f"u{n}" for n, result in enumerate(results) if not result.ok]


async def test_about_that_share_of_users_is_in_and_always_the_same() -> None:
    """Issue: on a percentage."""
    tenth = await denied(sampled(Denies(), 10))
    assert 140 < len(tenth) < 260
    assert tenth == await denied(sampled(Denies(), 10))
    assert set(tenth) < set(await denied(sampled(Denies(), 20)))
    assert await denied(sampled(Denies(), 0), 50) == []
    assert len(await denied(sampled(Denies(), 100), 50)) == 50


async def test_calls_can_be_drawn_instead_of_users() -> None:
    async with Gate([look], [sampled(Denies(), 50, by="call")]) as gate:
        user = User("u")
        found = [(await gate.call(asked("look", n=1), user=user, request_id=f"r{n}")).ok for n in range(200)]
        again = [(await gate.call(asked("look", n=1), user=user, request_id=f"r{n}")).ok for n in range(200)]
    assert found == again
    assert 60 < sum(found) < 140


async def test_a_function_says_what_is_drawn_by() -> None:
    assert len(await denied(sampled(Denies(), 50, by=lambda ctx: "all in one"), 20)) in (0, 20)


async def test_what_a_sampled_hook_takes_is_given_back() -> None:
    """Contract C1."""
    hook = sampled(Leases(), 30)
    await denied(hook, 200)
    assert 0 < hook.taken < 200
    assert hook.held == 0


async def test_functions_classes_and_hooks_with_filters_are_sampled_too() -> None:
    @on("will_authorize")
    def nobody(ctx: InvokeContext) -> None:
        ctx.abort("no")

    class Even(Denies):
        def filter(self, ctx: InvokeContext) -> bool:
            return int(ctx.user.id[1:]) % 2 == 0

    half = await denied(sampled(nobody, 50), 200)
    assert 60 < len(half) < 140
    assert 60 < len(await denied(sampled(Denies, 50), 200)) < 140
    for hook in (Even(), Even):
        even = await denied(sampled(hook, 50), 200)
        assert 20 < len(even) < 80
        assert all(int(user[1:]) % 2 == 0 for user in even)


async def test_the_hook_itself_stays_as_it_was() -> None:
    hook = Denies()
    sampled(hook, 0)
    assert len(await denied(hook, 5)) == 5


def test_another_process_draws_the_same() -> None:
    code = (
        "import asyncio\n"
        "from tests.hooks.stock.test_sampling import Denies, denied, sampled\n"
        "print(asyncio.run(denied(sampled(Denies(), 10), 300)))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(asyncio.run(denied(sampled(Denies(), 10), 300)))


@pytest.mark.parametrize(
    ("percent", "by"), [(101, "user"), (-1, "user"), (True, "user"), ("10", "user"), (10, "tenant")]
)
def test_shares_that_mean_nothing_are_refused(percent: Any, by: Any) -> None:
    with pytest.raises(HookError, match="Denies"):
        sampled(Denies(), percent, by=by)
