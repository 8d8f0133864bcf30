"""Requests of a server for completions and folders: refused, unless the owner of the gate allows them, within a budget."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types

from callgate import Gate, Outcome, Respond
from callgate.errors import RegistrationError
from callgate.mcp import McpServer, Sampling, SamplingRequest
from tests.runtime.hosts.serving import served
from tests.runtime.remote.mcp.asking import COMMAND, ROOT, AskingToy
from tests.runtime.remote.mcp.test_mounted import ANN, BOB, EVERY_WAY, gate_with

pytestmark = pytest.mark.timeout(120)
BOTH_ERAS = pytest.mark.parametrize("legacy", [False, True], ids=["modern", "handshake"])


class Model:
    """Says how often it was asked, and keeps the requests."""

    def __init__(self) -> None:
        self.asked: list[SamplingRequest] = []

    async def __call__(self, request: SamplingRequest) -> types.CreateMessageResult:
        self.asked.append(request)
        content = types.TextContent(text=f"answer {len(self.asked)}")
        return types.CreateMessageResult(role="assistant", content=content, model="toy")


@contextlib.asynccontextmanager
async def asking(
    transport: str = "http", legacy: bool = False, gate: Gate | None = None, **options: Any
) -> AsyncGenerator[tuple[AskingToy, Gate]]:
    """A gate with the tools of the server; over stdio the server is another process, and ``AskingToy`` a stand-in."""
    toy, gate = AskingToy(), gate or gate_with()
    async with contextlib.AsyncExitStack() as stack:
        if transport == "http":
            app = toy.server.streamable_http_app()
            running = await stack.enter_async_context(served(app, timeout_graceful_shutdown=1))
            server = McpServer(name="toy", url=f"http://127.0.0.1:{running.port}/mcp", legacy=legacy, **options)
        else:
            server = McpServer(name="toy", command=COMMAND, cwd=ROOT, legacy=legacy, **options)
        await stack.enter_async_context(gate)
        await gate.mount(server)
        yield toy, gate


@EVERY_WAY
async def test_what_the_owner_allows_is_answered(transport: str, legacy: bool) -> None:
    """The server hears that it may ask; the model gets the request with its call, and no more tokens than allowed."""
    model = Model()
    async with asking(transport, legacy, sampling=Sampling(answer=model, max_tokens=7), roots=["/srv/data"]) as (
        _,
        gate,
    ):
        offered = json.loads((await gate.call("toy_can", {}, user=ANN)).output)
        assert (offered["sampling"], offered["roots"]) == ({}, {})
        assert (await gate.call("toy_sample", {"times": 2}, user=ANN)).output == "answer 1, answer 2"
        assert (await gate.call("toy_sample", {"tokens": 3}, user=ANN)).output == "answer 3"
        assert (await gate.call("toy_roots", {}, user=ANN)).output == "file:///srv/data"
    assert [(one.server, one.tool, one.user, one.params.max_tokens) for one in model.asked] == [
        ("toy", "sample", ANN, 7),
        ("toy", "sample", ANN, 7),
        ("toy", "sample", ANN, 3),
    ]


@EVERY_WAY
async def test_by_default_nothing_is_offered_or_answered(transport: str, legacy: bool) -> None:
    """A server that asks in spite of it gets a refusal."""
    async with asking(transport, legacy) as (_, gate):
        assert set(json.loads((await gate.call("toy_can", {}, user=ANN)).output)) <= {"elicitation", "extensions"}
        for name in ("toy_sample", "toy_roots"):
            result = await gate.call(name, {}, user=ANN)
            if legacy:
                assert result.output.startswith("refused: ")
            else:
                assert result.error is not None
                assert result.error.code == "remote_waits"


async def _hangs(_: SamplingRequest) -> types.CreateMessageResult:
    await asyncio.Event().wait()
    raise AssertionError


async def _crashes(_: SamplingRequest) -> types.CreateMessageResult:
    raise RuntimeError("password=hunter2")


@BOTH_ERAS
@pytest.mark.parametrize("answer", [Model(), _hangs, _crashes], ids=["too many requests", "too slow", "a crash"])
async def test_a_budget_holds_for_each_call(answer: Any, legacy: bool) -> None:
    """Beyond it the server is refused, and reads nothing of the failure; the next call has a budget of its own."""
    budget = Sampling(answer=answer, max_requests=2, timeout=0.05 if answer is _hangs else 30.0)
    async with asking(legacy=legacy, sampling=budget) as (_, gate):
        for _ in range(2):
            result = await gate.call("toy_sample", {"times": 3}, user=ANN)
            assert "hunter2" not in str(result)
            if not legacy:
                assert result.error is not None
                assert result.error.code == "remote_waits"
            elif isinstance(answer, Model):
                assert [one.partition(":")[0][:6] for one in result.output.split(", ")] == [
                    "answer",
                    "answer",
                    "refuse",
                ]
            else:
                assert result.output.count("refused: ") == 3
        if isinstance(answer, Model):
            assert len(answer.asked) == 4
            answer.asked.clear()


@BOTH_ERAS
async def test_folders_may_depend_on_the_user(legacy: bool) -> None:
    """A function gets the user of the call; one that fails refuses."""

    async def folders(user: Any) -> list[str | Path]:
        return [Path("/home") / user.id, "file:///shared"]

    async with asking(legacy=legacy, roots=folders) as (_, gate):
        assert (await gate.call("toy_roots", {}, user=BOB)).output == "file:///home/bob file:///shared"
    async with asking(legacy=legacy, roots=lambda user: [f"{user.id}/relative"]) as (_, gate):
        result = await gate.call("toy_roots", {}, user=BOB)
        assert (result.output or "").startswith("refused: ") == legacy
        assert (result.outcome is Outcome.ERROR) == (not legacy)


async def test_a_completion_and_a_form_are_asked_at_once() -> None:
    """The user answers the form; the model was asked once, before."""
    model = Model()
    async with asking(sampling=Sampling(answer=model)) as (_, gate):
        result = await gate.call("toy_both", {}, user=ANN)
        assert result.outcome is Outcome.SUSPENDED
        assert result.pending.prompt == "The server toy asks: Name?"
        done = await gate.resume(result.pending.handle, Respond({"name": "Ann"}), approver=ANN)
        assert done.output == "answer 1 Ann"
    assert len(model.asked) == 1


WRONG: list[Any] = [
    lambda: {"roots": ["relative"]},
    lambda: {"roots": "/srv"},
    lambda: {"sampling": Model()},
    lambda: {"sampling": Sampling(answer=Model(), max_tokens=0)},
    lambda: {"sampling": Sampling(answer=Model(), max_requests=True)},
    lambda: {"sampling": Sampling(answer=Model(), timeout=0)},
    lambda: {"sampling": Sampling(answer=3)},  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_permissions_are_refused(number: int) -> None:
    """Where they are given."""
    with pytest.raises(RegistrationError):
        McpServer(name="toy", url="http://127.0.0.1:1", **WRONG[number]())
