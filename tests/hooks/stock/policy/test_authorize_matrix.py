"""Every combination of up to five deciders, in every order, against a specification of thirty lines."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest

from callgate import Gate, InvokeContext, ToolCall, User
from callgate.errors import Denied, HookError
from callgate.hooks.base import Hook
from callgate.hooks.stock.policy.authorize import Authorize
from callgate.hooks.stock.policy.rules import Decider, Verdict, forbid, permit
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.hooks.making import echoing

KINDS = ("permit", "forbid", "abstain", "raise", "hang")
UP_TO_FIVE = [kinds for count in range(6) for kinds in itertools.product(KINDS, repeat=count)]


def covering(places: int) -> list[tuple[str, ...]]:
    """Of that many deciders: at any three places every combination of three kinds, once.

    A row holds the values of a polynomial, at most quadratic, at the places: it is determined by any three of them.
    """
    return [
        tuple(KINDS[(a + b * place + c * place * place) % 5] for place in range(places))
        for a, b, c in itertools.product(range(5), repeat=3)
    ]


SAMPLE = [*(kinds for kinds in UP_TO_FIVE if len(kinds) < 4), *covering(4), *covering(5)]
"""Up to three deciders in every combination and order; four and five, so that any three of them are in every one."""

# ---------------------------------------------------------------------- the specification


def spec(kinds: Iterable[str]) -> bool:
    """Whether the tool runs, given what the deciders do. Nothing here knows an order."""
    permitted = False
    for kind in kinds:
        if kind in ("forbid", "raise", "hang"):
            return False
        if kind == "permit":
            permitted = True
    return permitted


# ---------------------------------------------------------------------- deciders that do one thing


async def _hang(swallow: bool) -> Verdict:
    try:
        await asyncio.sleep(10_000)
    except asyncio.CancelledError:
        if not swallow:
            raise
    return Verdict.PERMIT  # too late


class Does:
    """A decider that does one thing: at once or after waiting, before or on the arguments."""

    def __init__(self, id: str, kind: str, *, late: bool = False, waits: bool = False, swallows: bool = False) -> None:
        self.id, self.kind, self.late, self.waits, self.swallows = id, kind, late, waits, swallows

    def before_input(self, user: User, tool: Any) -> Any:
        return Verdict.PENDING if self.late else self._act()

    def on_input(self, user: User, tool: Any, arguments: Any) -> Any:
        return self._act()

    def _act(self) -> Any:
        if self.kind == "hang":
            return _hang(self.swallows)
        return self._waiting() if self.waits else self._say()

    def _say(self) -> Verdict:
        if self.kind == "raise":
            raise RuntimeError("a decider broke")
        return Verdict(self.kind)

    async def _waiting(self) -> Verdict:
        await asyncio.sleep(0.1)
        return self._say()


Make = Callable[[int, str], Decider]


async def runs(hooks: Sequence[Hook]) -> bool:
    async with Gate([echoing()], hooks, allow_unguarded=True) as gate:
        return (await gate.call(ToolCall(id="c", name="echo", arguments={}), user=User("u"))).ok


async def disagreements(make: Make, sequences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    found = []
    for kinds in sequences:
        deciders = [make(place, kind) for place, kind in enumerate(kinds)]
        if await runs([Authorize(*deciders)]) is not spec(kinds):
            found.append(kinds)
    return found


WAYS: dict[str, Make] = {
    "at once": lambda place, kind: Does(f"d{place}", kind),
    "ids the other way round": lambda place, kind: Does(f"d{9 - place}", kind),
    "waiting": lambda place, kind: Does(f"d{place}", kind, waits=True),
    "on the arguments": lambda place, kind: Does(f"d{place}", kind, late=True),
    "now and later by turns": lambda place, kind: Does(f"d{place}", kind, late=place % 2 == 0, waits=place == 1),
    "later and now, cancellation swallowed": lambda place, kind: Does(
        f"d{place}", kind, late=place % 2 == 1, swallows=True
    ),
}


def sizes() -> list[Any]:
    """Every way with a sample, and as a soak with every sequence."""
    return [
        *(pytest.param(way, SAMPLE, id=f"{way}, sample") for way in WAYS),
        *(pytest.param(way, UP_TO_FIVE, id=f"{way}, all", marks=pytest.mark.soak) for way in WAYS),
    ]


def test_the_sample_has_every_kind_at_any_three_places_beside_every_other() -> None:
    """Contract I6: so every pair of deciders is in it in both orders, next to each other and apart."""
    assert len(SAMPLE) == len(set(SAMPLE)) == 1 + 5 + 25 + 125 + 125 + 125
    for count in range(6):
        rows = [kinds for kinds in SAMPLE if len(kinds) == count]
        for chosen in itertools.combinations(range(count), min(count, 3)):
            found = {tuple(kinds[place] for place in chosen) for kinds in rows}
            assert found == set(itertools.product(KINDS, repeat=len(chosen))), chosen


@pytest.mark.parametrize(("way", "sequences"), sizes())
def test_up_to_five_deciders_in_every_order_decide_as_the_specification_says(
    way: str, sequences: list[tuple[str, ...]]
) -> None:
    """Contract I6, C22, C29. A sample of 406 sequences; as a soak 3,906: every combination, in every order of registration."""

    @on_virtual_time
    async def all_of_them(loop: StepLoop) -> None:
        assert await disagreements(WAYS[way], sequences[1:]) == []

    assert len(UP_TO_FIVE) == 3_906
    with pytest.raises(HookError, match="denies every call"):
        Authorize()  # the one without deciders
    all_of_them()


@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.soak)])
def test_the_stage_at_which_a_decider_speaks_changes_nothing(every: int) -> None:
    """Contract I6. Up to three deciders, each before or on the arguments, at once or waiting: 8,420 sequences.

    A short run tries all of up to two, and one in 37 of three.
    """
    kinds = [(kind, late, waits) for kind in KINDS for late in (False, True) for waits in (False, True)]
    small = [chosen for count in (1, 2) for chosen in itertools.product(kinds, repeat=count)]
    three = list(itertools.product(kinds, repeat=3))
    assert (len(small), len(three)) == (20 + 400, 8_000)

    @on_virtual_time
    async def all_of_them(loop: StepLoop) -> None:
        wrong = []
        for chosen in [*small, *three[::every]]:
            deciders = [Does(f"d{i}", kind, late=late, waits=waits) for i, (kind, late, waits) in enumerate(chosen)]
            if await runs([Authorize(*deciders)]) is not spec(kind for kind, _, _ in chosen):
                wrong.append(chosen)
        assert wrong == []

    all_of_them()


def _rule(place: int, kind: str, late: bool) -> Decider:
    """The same five, as the declarative rules say them."""

    def breaks(*_: Any) -> bool:
        raise RuntimeError("a condition broke")

    def hangs(*_: Any) -> Awaitable[bool]:
        async def wait() -> bool:
            await asyncio.sleep(10_000)
            return True

        return wait()

    made = forbid if kind == "forbid" else permit
    asked: Any = {"raise": breaks, "hang": hangs, "abstain": lambda *_: False}.get(kind, lambda *_: True)
    if late:
        return made(f"r{place}", when_input=asked)
    if kind in ("permit", "forbid") and place % 2:
        return made(f"r{place}")
    if kind == "abstain" and place % 2:
        return made(f"r{place}", roles={"nobody"})
    return made(f"r{place}", when=asked)


STAGES = {"before": False, "on the arguments": True, "mixed": None}


@pytest.mark.parametrize(
    ("late", "sequences"),
    [
        *(pytest.param(late, SAMPLE, id=f"{name}, sample") for name, late in STAGES.items()),
        *(pytest.param(late, UP_TO_FIVE, id=f"{name}, all", marks=pytest.mark.soak) for name, late in STAGES.items()),
    ],
)
def test_declarative_rules_decide_as_the_specification_says(
    late: bool | None, sequences: list[tuple[str, ...]]
) -> None:
    """Contract I6."""

    @on_virtual_time
    async def all_of_them(loop: StepLoop) -> None:
        def make(place: int, kind: str) -> Decider:
            return _rule(place, kind, place % 3 == 0 if late is None else late)

        assert await disagreements(make, sequences[1:]) == []

    all_of_them()


@on_virtual_time
async def test_several_hooks_have_to_agree_in_whatever_order_they_are_registered(loop: StepLoop) -> None:
    """Contract I6. Each hook holds up to two deciders."""
    sets = [kinds for count in (1, 2) for kinds in itertools.combinations_with_replacement(KINDS, count)]
    for first, second in itertools.product(sets, repeat=2):
        hooks = [Authorize(*(Does(f"d{i}", kind) for i, kind in enumerate(kinds))) for kinds in (first, second)]
        assert await runs(hooks) is (spec(first) and spec(second)), (first, second)


@pytest.mark.parametrize("sets", [20, pytest.param(60, marks=pytest.mark.soak)])
@on_virtual_time
async def test_the_reason_of_a_denial_is_the_same_in_every_order(loop: StepLoop, sets: int) -> None:
    """Contract I6: what the log is told does not depend on the order of registration either."""
    numbers = random.Random(7)
    for _ in range(sets):
        deciders = [
            Does(f"d{i}", kind, late=numbers.random() < 0.4) for i, kind in enumerate(numbers.choices(KINDS, k=4))
        ]
        reasons = set()
        for order in itertools.permutations(deciders):
            try:
                async with Gate([echoing()], [Authorize(*order)], allow_unguarded=True) as gate:
                    await gate.invoke("echo", {}, user=User("u"))
                reasons.add("ran")
            except Denied as error:
                reasons.add(str(error))
        assert len(reasons) == 1


@on_virtual_time
async def test_an_authoriser_that_lets_the_last_word_win_is_found_out(loop: StepLoop) -> None:
    """The control of the proofs above: forbid does not win, and nothing said permits."""

    class LastWordWins(Hook):
        def __init__(self, deciders: Sequence[Does]) -> None:
            self.deciders = deciders

        async def will_authorize(self, ctx: InvokeContext) -> None:
            allowed = True
            for one in self.deciders:
                try:
                    verdict = one.before_input(ctx.user, ctx.tool)
                    verdict = await asyncio.wait_for(verdict, 1) if asyncio.iscoroutine(verdict) else verdict
                except (RuntimeError, TimeoutError):
                    continue
                allowed = verdict is not Verdict.FORBID
            if not allowed:
                ctx.abort()

    wrong = 0
    for kinds in UP_TO_FIVE[:156]:
        deciders = [Does(f"d{i}", kind) for i, kind in enumerate(kinds)]
        wrong += await runs([LastWordWins(deciders)]) is not spec(kinds)
    assert wrong > 20
