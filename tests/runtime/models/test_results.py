"""The messages that answer a model's calls; of an error it learns no value (contract 36, 76, design 10.10)."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.runtime.models.wire.codec import Translation
from callgate.runtime.models.wire.names import NameMap
from callgate.runtime.models.wire.result_text import MAX_ERROR_BYTES
from callgate.tools.calls import ErrorInfo, Issue, Outcome, ToolResult

DONE = ToolResult("c1", "get_weather", Outcome.SUCCESS, {"temp": 21})
FAILED = ToolResult(
    "c2",
    "get_weather",
    Outcome.INVALID,
    error=ErrorInfo(
        "invalid_arguments", "The arguments are not valid.", (Issue("/days", "minimum", "at least 1"),), "id-7"
    ),
)


def test_chat_completions_gets_one_tool_message_a_result() -> None:
    done, failed = codec("openai_chat").results([DONE, FAILED])
    assert done == {"role": "tool", "tool_call_id": "c1", "content": '{"temp":21}'}
    assert failed["tool_call_id"] == "c2"


def test_anthropic_gets_one_user_message_with_all_results() -> None:
    (message,) = codec("anthropic").results([DONE, FAILED])
    done, failed = message["content"]
    assert message["role"] == "user"
    assert done == {"type": "tool_result", "tool_use_id": "c1", "content": '{"temp":21}', "is_error": False}
    assert (failed["tool_use_id"], failed["is_error"]) == ("c2", True)
    assert codec("anthropic").results([]) == []


def test_ollama_gets_one_tool_message_a_result_with_the_tools_name() -> None:
    done, failed = codec("ollama").results([DONE, FAILED])
    assert done == {"role": "tool", "tool_name": "get_weather", "content": '{"temp":21}'}
    assert failed["tool_name"] == "get_weather"


def test_responses_gets_one_output_item_a_result() -> None:
    done, failed = codec("openai_responses").results([DONE, FAILED])
    assert done == {"type": "function_call_output", "call_id": "c1", "output": '{"temp":21}'}
    assert (failed["call_id"], json.loads(failed["output"])["error"]["code"]) == ("c2", "invalid_arguments")


def test_gemini_gets_one_user_turn_with_a_response_part_a_result() -> None:
    (turn,) = codec("gemini").results([DONE, FAILED])
    done, failed = (part["functionResponse"] for part in turn["parts"])
    assert turn["role"] == "user"
    assert done == {"id": "c1", "name": "get_weather", "response": {"output": {"temp": 21}}}
    assert (failed["id"], set(failed["response"])) == ("c2", {"error"})
    assert codec("gemini").results([]) == []


def test_gemini_gets_an_id_only_where_it_gave_one() -> None:
    """Contract C10b: the others are matched by name and order."""
    made = ToolResult("call_1", "f", Outcome.SUCCESS, "ok")
    known = replace(made, provenance={"hydration": SimpleNamespace(synthetic_id=False)})
    (turn,) = codec("gemini").results([made, replace(made, call_id="call_12__"), known])
    assert [part["functionResponse"].get("id") for part in turn["parts"]] == [None, None, "call_1"]


def test_gemini_and_ollama_get_the_name_that_the_model_knows() -> None:
    """Contract 50."""
    for wire in ("gemini", "ollama"):
        translation = Translation({"tools": []}, {}, NameMap.of(["fs.read"]))
        (message,) = codec(wire).results([ToolResult("x", "fs.read", Outcome.SUCCESS)], translation)
        assert translation.names.wire("fs.read") in json.dumps(message)
        assert "fs.read" not in json.dumps(message)


def test_an_error_is_its_code_public_text_and_issues() -> None:
    (failed,) = codec("openai_chat").results([FAILED])
    assert json.loads(failed["content"]) == {
        "error": {
            "code": "invalid_arguments",
            "message": "The arguments are not valid.",
            "issues": [{"pointer": "/days", "expected": "at least 1"}],
            "correlation_id": "id-7",
        }
    }


def test_a_failure_tells_nothing_of_an_output_it_may_still_hold() -> None:
    """Contract I9."""
    result = ToolResult("c", "f", Outcome.DENIED, output="secret", error=ErrorInfo("denied", "The call was denied."))
    assert "secret" not in codec("openai_chat").results([result])[0]["content"]


def test_an_outcome_without_an_error_says_its_name_and_when_to_come_back() -> None:
    (message,) = codec("ollama").results([ToolResult("c", "f", Outcome.RETRY_LATER, retry_after=1500)])
    assert json.loads(message["content"]) == {
        "error": {"code": "retry_later", "message": "retry_later", "retry_after_ms": 1500}
    }


def test_an_error_with_many_issues_stays_short() -> None:
    issues = tuple(Issue(f"/{'é' * 300}/{number}", "type", "string") for number in range(40))
    result = ToolResult("c", "f", Outcome.INVALID, error=ErrorInfo("invalid_arguments", "No.", issues))
    text = codec("openai_chat").results([result])[0]["content"]
    assert len(text.encode()) <= MAX_ERROR_BYTES
    assert 0 < len(json.loads(text)["error"]["issues"]) < 16


@pytest.mark.parametrize(
    ("output", "text"), [("plain", "plain"), ("", ""), (None, "null"), (0, "0"), ([], "[]"), ({"a": "é"}, '{"a":"é"}')]
)
def test_an_output_is_text_as_it_is_or_else_json(output: Any, text: str) -> None:
    assert codec("openai_chat").results([ToolResult("c", "f", Outcome.SUCCESS, output)])[0]["content"] == text
