"""Questions of a remote server: several at once are one suspension, whose answers come in any order, from any process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types

import callgate.mcp
from callgate import Gate, Outcome, Respond, User
from callgate.errors import Invalid
from callgate.mcp import McpServer
from callgate.runtime.remote.mcp import transports
from tests.runtime.hosts.mcp.test_questions import BOTH_ERAS, Person, accept
from tests.runtime.hosts.mcp.test_questions_at_once import GOOD, OUTPUT, QUESTIONS, Trips
from tests.runtime.hosts.mcp.world import client_of, server_of, text_of
from tests.runtime.hosts.serving import served
from tests.runtime.remote.mcp.test_mounted import ANN, at, gate_with
from tests.runtime.remote.mcp.toy import Toy, text

pytestmark = pytest.mark.timeout(120)
NAMED: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}


def form(message: str, schema: dict[str, Any] = NAMED) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


class Asking(Toy):
    """A stateless server whose tool asks in rounds; ``seen`` has the answers of each request, by the server's keys."""

    def __init__(self, *rounds: Sequence[str]) -> None:
        super().__init__()
        self.rounds, self.seen = rounds, list[dict[str, Any]]()

    async def _ask(self, ctx: Any, params: Any) -> Any:
        number = int(params.request_state or 0)
        self.seen.append({key: one.content["x"] for key, one in (params.input_responses or {}).items()})
        if number == len(self.rounds):
            return text("done")
        asked: types.InputRequests = {key: form(f"{number} {key}") for key in self.rounds[number]}
        return types.InputRequiredResult(request_state=str(number + 1), input_requests=asked)


@contextlib.asynccontextmanager
async def asking(toy: Toy, **options: Any) -> AsyncGenerator[Gate]:
    app = toy.server.streamable_http_app()
    async with served(app, timeout_graceful_shutdown=1) as running, gate_with(**options) as gate:
        await gate.mount(at(running))
        yield gate


ROUNDS: list[tuple[Sequence[str], ...]] = [
    (["a"],),
    (["a", "b"],),
    (["a", "b"], ["a", "b"]),
    (["a"], ["a", "b"], ["b"]),
    (["a", "b", "c"], ["c"], ["b", "a"]),
    (["a b", "a.b", "ä" * 90, "."],),
]


@pytest.mark.parametrize("rounds", ROUNDS, ids=lambda rounds: " ".join(str(len(keys)) for keys in rounds))
async def test_each_round_of_questions_is_one_suspension(rounds: tuple[Sequence[str], ...], tmp_path: Any) -> None:
    """Another gate answers each of them: the server gets its state, and each answer of the round under its own key."""
    toy, store = Asking(*rounds), f"sqlite:///{tmp_path}/gate.db"
    async with asking(toy, store=store) as gate, asking(toy, store=store) as other:
        result = await gate.call("toy_ask", {}, user=ANN)
        expected: list[dict[str, str]] = [{}]
        for number, keys in enumerate(rounds):
            assert result.outcome is Outcome.SUSPENDED
            asked = result.pending.questions
            if len(keys) == 1:
                assert asked is None
                assert result.pending.prompt == f"The server toy asks: {number} {keys[0]}"
                expected.append({keys[0]: f"{number} {keys[0]}"})
                decision: Any = Respond({"x": f"{number} {keys[0]}"})
            else:
                prompts = {name: one.prompt for name, one in asked.items()}
                assert sorted(prompts.values()) == sorted(f"The server toy asks: {number} {key}" for key in keys)
                decision = {
                    name: {"x": prompt.removeprefix("The server toy asks: ")} for name, prompt in prompts.items()
                }
                expected.append({key: f"{number} {key}" for key in keys})
            result = await other.resume(result.pending.handle, decision, approver=ANN)
        assert result.output == "done"
    assert toy.seen == expected


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
async def test_answers_come_one_by_one(order: tuple[str, ...]) -> None:
    """The server is called again once, with the last answer; a wrong answer is refused before."""
    toy = Asking("abc")
    async with asking(toy) as gate:
        result = await gate.call("toy_ask", {}, user=ANN)
        handle = result.pending.handle
        for name in order:
            with pytest.raises(Invalid, match="expected string"):
                await gate.resume(handle, {name: {"x": 1}}, approver=ANN)
            assert len(toy.seen) == 1
            result = await gate.resume(handle, {name: {"x": name}}, approver=ANN)
        assert result.output == "done"
    assert toy.seen[1:] == [{"a": "a", "b": "b", "c": "c"}]


PAGE = types.ElicitRequest(params=types.ElicitRequestURLParams(message="?", url="https://evil.example"))
REFUSED: dict[str, types.InputRequests] = {
    "a form and a page": {"a": form("?"), "b": PAGE},
    "a form and a completion": {
        "a": form("?"),
        "b": types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[], max_tokens=9)),
    },
    "a form and the folders": {"a": form("?"), "b": types.ListRootsRequest()},
    "more than ten forms": {str(number): form("?") for number in range(11)},
    "a schema that is refused": {
        "a": form("?"),
        "b": form("?", {"type": "object", "properties": {"s": {"type": "string", "pattern": "("}}}),
    },
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_result_that_asks_for_anything_else_ends_the_call(kind: str) -> None:
    """The user is asked nothing, and the model reads no internals of the server."""
    toy = Toy()
    toy.answers["ask"] = lambda: types.InputRequiredResult(request_state="s", input_requests=REFUSED[kind])
    async with asking(toy) as gate:
        result = await gate.call("toy_ask", {}, user=ANN)
        assert result.outcome is Outcome.ERROR
        assert result.error is not None
        assert result.error.code == "remote_waits"
        assert "evil" not in result.error.public


async def test_a_server_cannot_write_the_state_of_its_questions() -> None:
    """Members of a schema that the gate uses for itself are dropped, wherever the server puts them."""
    state = {"x-mcp-rounds": [["b"]], "x-mcp-keys": {"b": "evil"}, "x-mcp-state": "evil"}
    toy = Asking("ab")

    async def lies(ctx: Any, params: Any) -> Any:
        result = await Asking._ask(toy, ctx, params)
        if isinstance(result, types.InputRequiredResult):
            result.input_requests = {key: form("?", {**NAMED, **state}) for key in ("a", "b")}
        return result

    toy._ask = lies  # type: ignore[method-assign]
    async with asking(toy) as gate:
        handle = (await gate.call("toy_ask", {}, user=ANN)).pending.handle
        assert (await gate.resume(handle, {"a": {"x": "1"}, "b": {"x": "2"}}, approver=ANN)).output == "done"
    assert toy.seen[1:] == [{"a": "1", "b": "2"}]


# ---------------------------------------------------------------------- a gate behind a gate


@contextlib.asynccontextmanager
async def gate_behind_gate(trips: Trips, **options: Any) -> AsyncGenerator[Gate]:
    """A gate that has the tools of another one, which asks only clients that can show forms."""
    behind = trips.gate()
    app = callgate.mcp.server(behind, authenticate=lambda _: User("desk")).asgi()
    async with behind, served(app) as running, gate_with() as gate:
        await gate.mount(McpServer(name="up", url=f"http://127.0.0.1:{running.port}/mcp", **options))
        yield gate


@BOTH_ERAS
async def test_questions_pass_through_two_gates(era: str) -> None:
    """A modern client gets three forms in one result; an older client is asked three times during its request."""
    trips, person = Trips(), Person(*(accept(**one.content) for one in GOOD.values() if one.content))
    async with (
        gate_behind_gate(trips) as gate,
        client_of(server_of(gate, "memory"), "memory", era, answers=person) as client,
    ):
        assert text_of(await client.call_tool("up_trip", {})) == OUTPUT
        first = "The server up asks 3 questions.\nThe server up asks: Your trip.\n"
        assert [one.message for one in person.asked] == [f"{first}{one.prompt}" for one in QUESTIONS.values()]
    assert trips.booked == 1


@pytest.mark.parametrize("how", ["modern", "handshake", "the control: not announced"])
async def test_a_server_hears_that_forms_can_be_asked(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that pages cannot: a client of the SDK would announce both."""
    if how.startswith("the control"):
        monkeypatch.setattr(transports, "_Announcing", lambda stream: stream)
    toy = Toy()
    toy._say = _offered  # type: ignore[method-assign, assignment]
    async with served(toy.server.streamable_http_app()) as running, gate_with() as gate:
        await gate.mount(at(running, legacy=how == "handshake"))
        offered = (await gate.call("toy_say", {}, user=ANN)).output
        assert ("url" not in offered) == (not how.startswith("the control"))
        assert "form" in offered


async def _offered(ctx: Any, _params: Any) -> types.CallToolResult:
    return text(" ".join(ctx.session.client_capabilities.elicitation.model_dump(exclude_none=True)))
