"""The effect ledger: what makes a call a repeat of another, and how a repeat is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from callgate import (
    Hook,
    InvokeContext,
    Outcome,
    ToolCall,
    ToolContext,
    ToolResult,
    User,
    tool,
)
from callgate.errors import Conflict, DefinitionError, ToolFailed
from callgate.testing import FakeClock
from tests.runtime.effects.scene_desk import AMY, ANN, BOB, RAE, Desk, call, code, gate_of, states

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])


def told(result: ToolResult) -> ToolResult:
    """A result without what is another at every call: how long it took, its correlation id, and whether it is a replay."""
    error = None if result.error is None else replace(result.error, correlation_id=None)
    return replace(result, duration=None, provenance=None, error=error, replayed=False)


# ---------------------------------------------------------------------- what is a repeat


@EVERY_STORE
async def test_two_intended_identical_calls_are_two_calls(store: str) -> None:
    """I4; design 7."""
    desk = Desk()
    async with gate_of(desk.tool(), store=store) as gate:
        await gate.invoke("pay", {"cents": 5}, user=ANN)
        await gate.invoke("pay", {"cents": 5}, user=ANN)
        for _ in range(2):
            await gate.call(call(5), user=ANN)
            await gate.call(call(5), user=ANN, session_id="s")
        await gate.call_many([call(5, id="a"), call(5, id="b")], user=ANN, request_id="r")
        for _ in range(2):  # an id that Callgate made up says nothing
            await gate.call(replace(call(5), synthetic_id=True), user=ANN, request_id="r")
            await gate.invoke("pay", {"cents": 5}, user=ANN, request_id="r")
        assert desk.paid == [5] * 12
        assert await states(gate) == ["committed"] * 12
        assert len(set(desk.keys)) == 12


@EVERY_STORE
async def test_the_same_call_of_the_same_request_and_session_is_a_repeat(store: str) -> None:
    """I4; design 7."""
    desk = Desk()
    same: Any = {"request_id": "r", "session_id": "s"}
    async with gate_of(desk.tool(), store=store) as gate:
        first = await gate.call(call(id="a"), user=ANN, **same)
        again = await gate.call(call(id="a"), user=ANN, **same)
        assert (told(again), again.replayed, first.replayed) == (told(first), True, False)
        for other in ({"request_id": "r2"}, {"session_id": "s2"}, {"session_id": None}):
            options: Any = {**same, **other}
            assert not (await gate.call(call(id="a"), user=ANN, **options)).replayed
        assert not (await gate.call(call(id="b"), user=ANN, **same)).replayed
        assert len(desk.paid) == 5


KEYED: list[tuple[str, dict[str, Any], dict[str, Any], list[tuple[ToolCall, dict[str, Any]]]]] = [
    (
        "the caller's key is before all others",
        {"effect": "keyed", "key": ("cents",)},
        {"idempotency_key": "k"},
        [(call(5, id="b"), {"request_id": "x"}), (call(5, id="c"), {"session_id": "y"})],
    ),
    (
        "then the declared fields",
        {"effect": "irreversible", "key": ("cents",)},
        {"request_id": "r"},
        [(call(5, id="b"), {"request_id": "r2"}), (call(5, id="c"), {"session_id": "y"})],
    ),
    (
        "then the arguments, where a tool asks for that",
        {"dedupe": "arguments", "within": 60.0},
        {"request_id": "r"},
        [
            (call(5, id="b"), {"request_id": "r2"}),
            (ToolCall(id="c", name="pay", arguments='{"how": "ok", "cents": 5}'), {}),
        ],
    ),
]


@EVERY_STORE
@pytest.mark.parametrize(("rule", "options", "first", "repeats"), KEYED, ids=[row[0] for row in KEYED])
async def test_a_key_makes_a_repeat_whatever_else_differs(
    rule: str, options: Any, first: Any, repeats: Any, store: str
) -> None:
    """I4; design 7."""
    desk = Desk()
    async with gate_of(desk.tool(**options), store=store) as gate:
        sent = call(5, how="ok")
        one = await gate.call(sent, user=ANN, **first)
        for repeat, more in repeats:
            kept = {"idempotency_key": first["idempotency_key"]} if "idempotency_key" in first else {}
            repeat = replace(repeat, arguments={"cents": 5, "how": "ok"})
            again = await gate.call(repeat, user=ANN, **{**kept, **more})
            assert (again.output, again.replayed) == (one.output, True)
        assert desk.paid == [5]


@EVERY_STORE
async def test_a_callers_key_never_replaces_declared_fields(store: str) -> None:
    """Design 12.2: see ``test_identities`` for all ways and stores."""
    desk = Desk()
    async with gate_of(desk.tool(key=("cents",)), store=store) as gate:
        for key in (None, "k1", "k2", None, "k1", "k2"):
            assert (await gate.call(call(5), user=ANN, idempotency_key=key)).output == "paid 1"
        assert (await gate.call(call(6), user=ANN, idempotency_key="k2")).outcome is Outcome.CONFLICT
        assert desk.paid == [5]
        found = await gate.store.effects.list("acme")
        assert desk.keys == [one.key for _, one in found]


SCOPES: dict[str | None, list[tuple[User, User]]] = {
    # the scope of a declared key, and pairs of callers who share the effect
    "user": [(ANN, ANN)],
    "tenant": [(ANN, ANN), (ANN, BOB)],
    None: [(ANN, ANN), (ANN, BOB)],  # the default of an irreversible tool
    "global": [(ANN, ANN), (ANN, BOB), (ANN, User("ann", "other")), (ANN, User("eve"))],
}


@EVERY_STORE
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_declared_key_is_one_effect_in_its_scope_and_only_its_caller_gets_the_receipt(
    store: str, scope: Any
) -> None:
    """Design 12.2."""
    options = {} if scope is None else {"key_scope": scope}
    others = [ANN, BOB, User("ann", "other"), User("eve")]
    for other in others:
        desk = Desk()
        async with gate_of(desk.tool(key=("cents",), **options), store=store) as gate:
            assert (await gate.call(call(7), user=ANN)).ok
            again = await gate.call(replace(call(7), id="again"), user=other)
            if (ANN, other) not in SCOPES[scope]:
                assert (again.outcome, len(desk.paid)) == (Outcome.SUCCESS, 2)
            elif other == ANN:
                assert (again.replayed, len(desk.paid)) == (True, 1)
            else:
                assert (again.outcome, again.output, len(desk.paid)) == (Outcome.CONFLICT, None, 1)


@EVERY_STORE
async def test_only_its_caller_gets_the_receipt_of_a_global_key_whatever_is_in_the_names(store: str) -> None:
    """The user ``b/c`` of the tenant ``a`` and the user ``c`` of the tenant ``a/b`` were one, and read each other's output."""
    users = [User("b/c", "a"), User("c", "a/b"), User("a/b/c"), User("c", "a%2Fb"), User("/b/c", "a")]
    for user in users:
        desk = Desk()
        async with gate_of(desk.tool(key=("cents",), key_scope="global"), store=store) as gate:
            assert (await gate.call(call(7), user=user)).ok
            again = {other: await gate.call(replace(call(7), id="again"), user=other) for other in users}
            assert [other for other in users if again[other].output is not None] == [user]
            assert desk.paid == [7]


def test_a_key_scope_needs_a_declared_key() -> None:
    desk = Desk()
    with pytest.raises(DefinitionError, match="key_scope"):
        desk.tool(key_scope="tenant")
    with pytest.raises(DefinitionError, match="key_scope"):
        desk.tool(key=("cents",), key_scope="team")


@EVERY_STORE
async def test_the_same_key_with_other_arguments_is_a_conflict(store: str) -> None:
    """I4."""
    desk = Desk()
    tools = [desk.tool(), desk.tool("refund", key=("how",))]
    async with gate_of(tools, store=store) as gate:
        await gate.call(call(5), user=ANN, idempotency_key="k")
        await gate.call(call(5, "refund"), user=ANN)
        for other, key in ((call(6), "k"), (call(6, "refund"), None)):
            result = await gate.call(other, user=ANN, idempotency_key=key)
            assert (result.outcome, code(result), result.output) == (Outcome.CONFLICT, "conflict", None)
            assert not result.replayed
        with pytest.raises(Conflict):
            await gate.invoke("pay", {"cents": 6}, user=ANN, idempotency_key="k")
        same = await gate.call(ToolCall(id="x", name="pay", arguments='{"cents": 5.0}'), user=ANN, idempotency_key="k")
        assert same.replayed, "5.0 is 5"
        assert desk.paid == [5, 5]


@pytest.mark.parametrize("key", ["", "x" * 256, 7, b"k", ["k"]])
async def test_what_is_no_key_is_refused_and_nothing_runs(key: Any) -> None:
    """Design 7."""
    desk = Desk()
    async with gate_of(desk.tool()) as gate:
        result = await gate.call(call(), user=ANN, idempotency_key=key)
        assert (result.outcome, code(result)) == (Outcome.INVALID, "idempotency_key")
        assert (desk.paid, await states(gate)) == ([], [])
        assert (await gate.call(call(), user=ANN, idempotency_key="x" * 255)).ok


@pytest.mark.parametrize(
    "options",
    [
        {"dedupe": "arguments"},
        {"within": 5.0},
        {"dedupe": "all", "within": 5.0},
        {"dedupe": "arguments", "within": 0.0},
        {"dedupe": "arguments", "within": 5.0, "key": ("cents",)},
        {"dedupe": "arguments", "within": 5.0, "effect": "read"},
    ],
)
def test_a_dedupe_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Desk().tool(**options)


@EVERY_STORE
async def test_the_same_arguments_are_a_repeat_for_as_long_as_the_tool_says(store: str) -> None:
    """Design 7: dedupe, within."""
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(dedupe="arguments", within=60.0), store=store, clock=clock) as gate:
        first = await gate.call(call(5), user=ANN)
        clock.advance(59.9)
        assert (await gate.call(call(5, id="b"), user=ANN)).output == first.output
        assert not (await gate.call(call(6), user=ANN)).replayed
        clock.advance(0.1)
        again = await gate.call(call(5), user=ANN)
        assert (again.output, again.replayed) == ("paid 3", False)
        assert (await gate.call(call(5), user=ANN)).output == "paid 3"
        assert (desk.paid, desk.tokens) == ([5, 6, 5], [1, 1, 2]), "a claim in the place of another has a higher token"


# ---------------------------------------------------------------------- the answer


@EVERY_STORE
@pytest.mark.parametrize("how", ["ok", "tool_error", "responds"])
async def test_a_repeat_gets_the_same_result_with_a_marker_whichever_way_it_comes(store: str, how: str) -> None:
    """I4."""
    desk = Desk()
    sent = call(5, how=how)
    async with gate_of(desk.tool(), store=store) as gate:
        first = await gate.call(sent, user=ANN, idempotency_key="k")
        again = await gate.call(sent, user=ANN, idempotency_key="k")
        many = await gate.call_many([sent, sent], user=ANN, idempotency_key="k")
        for repeat in (again, *many):
            assert repeat.replayed
            assert told(repeat) == told(first)
        assert not first.replayed
        if first.ok:
            assert await gate.invoke("pay", sent.arguments, user=ANN, idempotency_key="k") == first.output
        else:
            with pytest.raises(ToolFailed) as failed:
                await gate.invoke("pay", sent.arguments, user=ANN, idempotency_key="k")
            assert first.error is not None
            assert (failed.value.code, failed.value.public) == (first.error.code, first.error.public)
        assert desk.paid == [5]


OUTPUTS: list[Any] = [
    None,
    0,
    False,
    "",
    [],
    {},
    "é\U0001f600\n",
    2**63,
    -(2**200),
    1.5,
    1e300,
    {"a": [1, {"b": None}]},
    [[[]]],
    '{"v":1,"error":{}}',
    {"v": 1, "error": {"code": "x"}},
]


@EVERY_STORE
@pytest.mark.parametrize("output", OUTPUTS, ids=repr)
async def test_any_output_comes_back_as_it_was(store: str, output: Any) -> None:
    """I4."""

    @tool(effect="irreversible", output_schema=False)
    async def give() -> Any:
        """Give."""
        return output

    async with gate_of(give, store=store) as gate:
        first = await gate.call(ToolCall(id="c", name="give", arguments={}), user=ANN, idempotency_key="k")
        again = await gate.call(ToolCall(id="c", name="give", arguments={}), user=ANN, idempotency_key="k")
        assert (first.outcome, first.output, again.output) == (Outcome.SUCCESS, output, output)
        assert type(again.output) is type(output)
        assert again.replayed


async def test_a_repeat_gets_what_the_first_caller_got_and_is_not_shaped_again() -> None:
    """I4: the shaped output, verbatim."""
    desk, shaped = Desk(), list[Any]()

    class Shapes(Hook):
        def will_transform_output(self, ctx: InvokeContext) -> None:
            shaped.append(ctx.output)
            ctx.output = f"{ctx.output}, shaped"

    async with gate_of(desk.tool(), [Shapes()]) as gate:
        for _ in range(3):
            result = await gate.call(call(), user=ANN, idempotency_key="k")
            assert result.output == "paid 1, shaped"
        assert shaped == ["paid 1"]


async def test_a_typed_call_gives_the_type_again() -> None:
    """Design 4: the tool object gives a typed result."""
    from dataclasses import dataclass

    @dataclass
    class Receipt:
        number: int

    @tool(effect="irreversible")
    async def pay(cents: int) -> Receipt:
        """Pay."""
        return Receipt(cents)

    async with gate_of(pay) as gate:
        for _ in range(2):
            assert await gate.invoke(pay, {"cents": 5}, user=ANN, idempotency_key="k") == Receipt(5)


# ---------------------------------------------------------------------- whose it is


@EVERY_STORE
@pytest.mark.parametrize("keyed", ["given", "declared", "arguments", "call"])
async def test_nobody_ever_sees_anothers_receipt(store: str, keyed: str) -> None:
    """I4, I8: a canary for each user of each tenant, and each tool."""
    rules: dict[str, dict[str, Any]] = {
        "declared": {"key": ("order",), "key_scope": "user"},
        "arguments": {"dedupe": "arguments", "within": 60.0},
    }
    options: Any = rules.get(keyed, {})
    asked: dict[str, Any] = {"given": {"idempotency_key": "7"}, "call": {"request_id": "r"}}.get(keyed, {})
    people = [ANN, AMY, BOB, RAE, User("ann"), User("acme", "ann"), User('ann","acme', None), User("", "acme")]

    def canary(name: str) -> Any:
        async def tell(order: str, ctx: ToolContext) -> str:
            return f"canary of {ctx.user.tenant!r} {ctx.user.id!r} from {name}"

        return tool(name=name, description="Tell.", effect="irreversible", **options)(tell)

    async with gate_of([canary("tell"), canary("tell2")], store=store) as gate:
        for repeated in (False, True):
            for user in people:
                for name in ("tell", "tell2"):
                    result = await gate.call(ToolCall(id="c", name=name, arguments={"order": "7"}), user=user, **asked)
                    assert result.output == f"canary of {user.tenant!r} {user.id!r} from {name}"
                    assert result.replayed is repeated
        if keyed in {"given", "declared", "call"}:
            stranger = await gate.call(
                ToolCall(id="c", name="tell", arguments={"order": "7"}), user=User("eve", "acme"), **asked
            )
            assert (stranger.ok, stranger.replayed) == (True, False)


@EVERY_STORE
async def test_the_key_is_there_for_the_tool_to_pass_on(store: str) -> None:
    """Design 7: ``ctx.idempotency_key``; the caller's own, or one that nobody else has."""
    desk = Desk()
    async with gate_of([desk.tool(), desk.tool("refund", key=("cents",), key_scope="user")], store=store) as gate:
        for user in (ANN, AMY, RAE, ANN):
            await gate.call(call(5, "refund"), user=user)
        await gate.call(call(6, "refund"), user=ANN)
        assert len(set(desk.keys)) == len(desk.keys) == 4
        assert all(isinstance(key, str) and len(key) >= 32 for key in desk.keys)
        desk.keys.clear()
        for how in ("abort", "later", "no_effect", "ok", "ok"):  # what had no effect runs again, under the same key
            await gate.call(call(8, "refund", how=how), user=ANN)
        assert len(desk.keys) == 4
        assert len(set(desk.keys)) == 1
        assert desk.tokens[-4:] == [1, 2, 3, 4]
        await gate.call(call(), user=ANN, idempotency_key="mine")
        assert desk.keys[-1] == "mine"


@EVERY_STORE
@pytest.mark.parametrize("how", ["a caller's key", "a declared key", "the same call"])
async def test_anonymous_callers_never_share_a_receipt(how: str, store: str) -> None:
    """I4, I9: the effect happens once, and only a session shows that the caller is the same."""
    desk = Desk()
    options: dict[str, Any] = {"key": ("cents",)} if how == "a declared key" else {}
    asked: dict[str, Any] = {
        "a caller's key": {"idempotency_key": "k"},
        "a declared key": {},
        "the same call": {"request_id": "r"},
    }[how]
    nobody = User("anonymous")
    async with gate_of(desk.tool(**options), store=store) as gate:
        assert (await gate.call(call(5), user=nobody, **asked)).ok
        repeat = await gate.call(call(5), user=nobody, **asked)
        assert (repeat.outcome, repeat.output, repeat.replayed) == (Outcome.CONFLICT, None, False)
        assert desk.paid == [5]
        desk.paid.clear()
        asked = {**asked, **({"idempotency_key": "l"} if how == "a caller's key" else {})}
        sums = 6
        for replayed in (False, True):
            result = await gate.call(call(sums), user=nobody, session_id="s", **asked)
            assert (result.ok, result.replayed) == (True, replayed)
        other = await gate.call(call(sums), user=nobody, session_id="t", **asked)
        assert other.outcome is Outcome.CONFLICT or how == "the same call"  # of another session it is another call
        assert not other.replayed
