"""Content of tools through A2A: each block with data is a part of its own, and a remote gate puts it back."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import a2a_pb2 as p

from callgate import Gate, tool
from callgate.content import Audio, Content, File, Image, from_json
from callgate.providers.content_json import digest_of, with_data
from tests.runtime.hosts.a2a.making import Official, running
from tests.runtime.hosts.a2a.test_remote import calling, made
from tests.tools.content.making import BLOCKS


@tool(effect="read")
async def draw(kind: str) -> list[str | Content]:
    """Draw."""
    return ["Here:", BLOCKS[kind]]


@pytest.mark.parametrize("kind", BLOCKS)
async def test_data_of_a_block_is_a_part_and_the_rest_is_the_data_of_the_result(kind: str) -> None:
    block = BLOCKS[kind]
    async with running(Gate([draw])) as agent:
        client: Official = await agent.as_user("ann")
        seen = await client.call("draw", {"kind": kind})
        task = await client.client.get_task(p.GetTaskRequest(id=seen.task))
    raw = [one for artifact in task.artifacts for one in artifact.parts if one.HasField("raw")]
    found: list[Any] = [*with_data(block.to_json())]
    assert seen.data[0]["result"] == ["Here:", digest_of(found[0]) if found else block.to_json()]
    data = [(one.raw, one.media_type, one.filename) for one in raw]
    assert data == [
        (block.data, block.mime_type, block.name or "") for _ in found if isinstance(block, Image | Audio | File)
    ]


@pytest.mark.parametrize("kind", BLOCKS)
async def test_a_remote_gate_gets_the_block_as_it_was(kind: str) -> None:
    async with running(Gate([draw])) as agent, calling(agent) as gate:
        result = await made(gate, "draw", {"kind": kind})
    text, block = result.output
    assert (text, from_json(block)) == ("Here:", BLOCKS[kind])
