"""Tests that use the fixtures of the pytest plugin, with types: nothing here may be reported."""

from __future__ import annotations

import asyncio
from typing import assert_type

from callgate import Gate, Options, User, tool
from callgate.models import OpenAIChat, Reply
from callgate.testing import (
    EveryCancelPoint,
    FakeClock,
    LeaseLedger,
    ModelRequest,
    OpenScriptedModel,
    RecordingHook,
    Say,
    SweepReport,
    Trace,
    TraceCall,
    VirtualTime,
)


@tool(effect="read")
async def find_order(order_id: str) -> str:
    """Find an order."""
    return order_id


def test_every_point(every_cancel_point: EveryCancelPoint) -> None:
    async def scenario(ledger: LeaseLedger) -> None:
        ledger.acquired("lock")
        try:
            await asyncio.sleep(1)
        finally:
            ledger.released("lock")

    assert_type(every_cancel_point(scenario, pairs=5), SweepReport)


def test_a_trace(
    virtual_time: VirtualTime, callgate_trace: TraceCall, recording_hook: RecordingHook, fake_clock: FakeClock
) -> None:
    async def run() -> Trace:
        async with Gate([find_order], [recording_hook], options=Options(clock=fake_clock)) as gate:
            return await callgate_trace(gate, find_order, {"order_id": "7"}, user=User("u"))

    assert virtual_time.run(run()).output == "7"
    assert recording_hook.moments[0].call == 1


def test_a_conversation(scripted_model: OpenScriptedModel) -> None:
    def echo(request: ModelRequest) -> Say:
        return Say(request.text)

    async def run() -> Reply:
        async with OpenAIChat(f"{scripted_model(echo, repeat=True).url}/v1", model="m") as client:
            return await client.reply("Hello")

    assert asyncio.run(run()).text == "Hello"
