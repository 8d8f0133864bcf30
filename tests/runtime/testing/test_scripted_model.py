"""A scripted model over real HTTP: what it says, what it was asked, what it keeps of a request, how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from callgate.testing import Call, Fault, ModelRequest, RawArguments, Say, ScriptedModel, Stop, Think, Usage
from tests.runtime.testing.wire_requests import WIRES, Line, body, each_wire, path, reason, results, streamed

TWO = [Call("refund", {"order_id": "7"}, id="a"), Call("refund", {"order_id": "8"}, id="b")]


@pytest.fixture
async def http() -> Any:
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        yield client


@each_wire
async def test_a_conversation_of_two_turns_is_answered_and_told_in_neutral_words(wire: str, http: Any) -> None:
    """Contract 55, 57-59: what a model is told can be asserted without knowing its wire."""
    async with ScriptedModel([[Think("hm"), Say("Let me see."), *TWO], Say("Done.")]) as model:
        line = Line(http, model.url, wire)
        history = await line.turn()
        history += results(wire, [("a", "refund", "paid"), ("b", "refund", "denied")])
        await line.turn(history)
    first, second = model.requests
    assert [(tool.name, tool.description, tool.parameters["required"]) for tool in first.tools] == [
        ("refund", "Pays an order back.", ["order_id"])
    ]
    assert (first.model, first.wire, first.text, first.results) == ("m", wire, "give me my money back", ())
    told = ["paid", "denied"] if wire != "gemini" else [{"output": "paid"}, {"output": "denied"}]
    assert [result.content for result in second.results] == told
    assert {result.tool for result in second.results} == {"refund"}
    (again,) = [message for message in second.messages if message.role == "assistant"]
    assert [call.arguments for call in again.calls] == [{"order_id": "7"}, {"order_id": "8"}]
    assert again.text == "Let me see."
    assert (model.left, model.refusals) == (0, [])


@each_wire
async def test_a_stream_says_what_the_whole_answer_says(wire: str, http: Any) -> None:
    """Contract 61: by a reader of our own, written apart from the adapters."""
    turn = [Say("Let me see what I can do."), *TWO]
    async with ScriptedModel([turn], repeat=True) as model:
        line = Line(http, model.url, wire)
        whole = (await line.ask()).json()
        events = streamed(wire, (await line.ask(stream=True)).text)
    assert folded(wire, events) == said(wire, whole)
    assert said(wire, whole) == ("Let me see what I can do.", [{"order_id": "7"}, {"order_id": "8"}])


def said(wire: str, whole: Any) -> tuple[str, list[Any]]:
    match wire:
        case "openai_chat":
            message = whole["choices"][0]["message"]
            return message["content"], [
                json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())
            ]
        case "openai_responses":
            text = "".join(part["text"] for item in whole["output"] for part in item.get("content", ()))
            return text, [json.loads(item["arguments"]) for item in whole["output"] if "arguments" in item]
        case "anthropic":
            text = "".join(block.get("text", "") for block in whole["content"])
            return text, [block["input"] for block in whole["content"] if "input" in block]
        case "gemini":
            parts = whole["candidates"][0]["content"]["parts"]
            text = "".join(part.get("text", "") for part in parts)
            return text, [part["functionCall"]["args"] for part in parts if "functionCall" in part]
        case _:
            message = whole["message"]
            return message["content"], [call["function"]["arguments"] for call in message.get("tool_calls", ())]


def folded(wire: str, events: list[Any]) -> tuple[str, list[Any]]:
    if wire in {"gemini", "ollama"}:
        each = [said(wire, event) for event in events]
        return "".join(text for text, _ in each), [call for _, calls in each for call in calls]
    text = ""
    calls: dict[int, str] = {}
    for event in events:
        if wire == "openai_chat":
            for delta in (choice["delta"] for choice in event["choices"]):
                text += delta.get("content") or ""
                for call in delta.get("tool_calls", ()):
                    calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
        elif event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            calls[event["output_index"]] = calls.get(event["output_index"], "") + event["delta"]
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                calls[event["index"]] = calls.get(event["index"], "") + event["delta"]["partial_json"]
    return text, [json.loads(arguments) for arguments in calls.values()]


@each_wire
async def test_a_key_is_noted_and_never_kept(wire: str, http: Any) -> None:
    """Invariant: no credential in a record. A control: other headers are kept."""
    secrets = [
        {"Authorization": "Bearer s3cret"},
        {"x-api-key": "s3cret"},
        {"x-goog-api-key": "s3cret"},
        {"api-key": "s3cret"},
    ]
    async with ScriptedModel([Say("hi")], repeat=True) as model:
        url = model.url + path(wire)
        for headers in secrets:
            await http.post(url, json=body(wire), headers={**headers, "x-kept": "yes"})
        await http.post(f"{url}?key=s3cret&alt=json", json=body(wire))
        await http.post(url, json=body(wire))
    assert [asked.key for asked in model.requests] == [True] * 5 + [False]
    assert "s3cret" not in repr(model.requests)
    assert model.requests[0].headers["x-kept"] == "yes"
    assert model.requests[4].path.endswith("?alt=json")


@each_wire
async def test_a_script_that_has_ended_says_so_and_names_what_was_asked(wire: str, http: Any) -> None:
    async with ScriptedModel([Say("hi")]) as model:
        line = Line(http, model.url, wire)
        await line.turn()
        answer = await line.ask()
    assert answer.status_code == 400
    assert reason(wire, answer).startswith("the script has ended after 1 turns; no turn is left for request 2")
    assert "give me my money back" in reason(wire, answer)
    assert model.refusals == [reason(wire, answer)]


async def test_a_script_may_repeat(http: Any) -> None:
    async with ScriptedModel([Say("one"), Say("two")], repeat=True) as model:
        line = Line(http, model.url, "ollama")
        heard = [(await line.ask()).json()["message"]["content"] for _ in range(5)]
    assert heard == ["one", "two", "one", "two", "one"]


async def test_a_turn_may_be_a_function_of_what_was_asked(http: Any) -> None:
    def echo(asked: ModelRequest) -> Say:
        return Say(f"{asked.number}: {asked.text}")

    async with ScriptedModel([echo, Say("fixed"), echo]) as model:
        line = Line(http, model.url, "ollama")
        heard = [(await line.ask()).json()["message"]["content"] for _ in range(3)]
    assert heard == ["1: give me my money back", "fixed", "3: give me my money back"]


async def test_what_a_function_of_the_script_raises_is_raised_as_the_model_closes(http: Any) -> None:
    """An assertion inside of a script fails the test, not only the answer."""

    def check(asked: ModelRequest) -> Say:
        assert asked.tools == (), "no tool was to be offered"
        return Say("never")

    model = ScriptedModel(check)
    with pytest.raises(AssertionError, match="no tool was to be offered"):
        async with model:
            answer = await Line(http, model.url, "anthropic").ask()
            assert answer.status_code == 400
            assert "the script failed: AssertionError" in reason("anthropic", answer)


WRONG: dict[str, Callable[[], object]] = {
    "no arguments": lambda: Call("find", None),  # type: ignore[arg-type]
    "a text as arguments": lambda: Call("find", '{"a": 1}'),  # type: ignore[arg-type]
    "a value that JSON does not have": lambda: Call("find", {"a": object()}),
    "a function as tool": lambda: Call(print),  # type: ignore[arg-type]
    "raw arguments that are no text": lambda: RawArguments({"a": 1}),  # type: ignore[arg-type]
    "a text that is none": lambda: Say(None),  # type: ignore[arg-type]
    "a thought that is none": lambda: Think(None),  # type: ignore[arg-type]
    "a reason that is none": lambda: Stop(5),  # type: ignore[arg-type]
    "a status as text": lambda: Fault.http("500"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_part_of_another_type_is_refused_where_it_is_written(name: str) -> None:
    """The answer failed, the client asked again, and a test went on with the next turn."""
    with pytest.raises(TypeError):
        WRONG[name]()


def _fails(_: int) -> None:
    raise LookupError("the pause fails")


@pytest.mark.parametrize("turn", [Usage(input="many"), [Say("Hi."), Fault.slow(_fails)]])  # type: ignore[arg-type]
async def test_whatever_fails_in_an_answer_is_raised_as_the_model_closes(http: Any, turn: Any) -> None:
    with pytest.raises((TypeError, LookupError)):
        async with ScriptedModel([turn, Say("The next turn.")]) as model:
            with pytest.raises(httpx.HTTPError):
                await Line(http, model.url, "openai_chat").ask()


async def test_an_error_of_the_test_itself_is_not_hidden_by_one_of_the_script(http: Any) -> None:
    def fail(asked: ModelRequest) -> Say:
        raise LookupError

    with pytest.raises(ZeroDivisionError):
        async with ScriptedModel(fail) as model:
            await Line(http, model.url, "ollama").ask()
            raise ZeroDivisionError


async def test_what_is_no_part_of_a_turn_is_refused(http: Any) -> None:
    wrong: Any = [["text"]]
    with pytest.raises(TypeError, match="a turn consists of Say, Think, Call"):
        async with ScriptedModel(wrong) as model:
            await Line(http, model.url, "ollama").ask()


@pytest.mark.parametrize("prefix", ["", "/v1", "/openai/v1", "/proxy/a/b"])
@pytest.mark.parametrize("wire", WIRES)
async def test_any_prefix_of_a_path_is_understood(wire: str, prefix: str, http: Any) -> None:
    tail = {**dict.fromkeys(WIRES, ""), "gemini": "/publishers/google"}[wire]
    ends = path(wire).removeprefix("/v1beta").removeprefix("/v1")
    async with ScriptedModel([Say("hi")]) as model:
        answer = await http.post(model.url + prefix + tail + ends, json=body(wire))
    assert (answer.status_code, model.requests[0].wire) == (200, wire)


async def test_another_path_is_404_and_names_the_wires(http: Any) -> None:
    async with ScriptedModel([Say("hi")]) as model:
        answers = [await http.get(f"{model.url}/v1/models"), await http.get(model.url + path("anthropic"))]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert "openai_chat" in answers[0].json()["error"]["message"]
    assert model.left == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"], ids=["nothing", "half", "a list", "no text"])
@each_wire
async def test_a_body_that_is_no_json_object_is_refused(wire: str, content: bytes, http: Any) -> None:
    async with ScriptedModel([Say("hi")]) as model:
        answer = await http.post(model.url + path(wire), content=content)
    assert answer.status_code == 400
    assert "JSON" in reason(wire, answer)
    assert model.left == 1


@each_wire
async def test_usage_is_what_the_script_says(wire: str, http: Any) -> None:
    async with ScriptedModel([[Say("x"), Usage(100, 20, 120)]]) as model:
        whole = (await Line(http, model.url, wire).ask()).json()
    counted = {
        "openai_chat": lambda: (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]),
        "gemini": lambda: (whole["usageMetadata"]["promptTokenCount"], whole["usageMetadata"]["candidatesTokenCount"]),
        "ollama": lambda: (whole["prompt_eval_count"], whole["eval_count"]),
    }.get(wire, lambda: (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]))()
    assert counted == (100, 20)


def test_it_serves_from_a_thread_of_its_own_and_leaves_none() -> None:
    before = threading.active_count()
    with ScriptedModel([Say("one"), Fault.http(503), Say("two")]) as model, httpx.Client(trust_env=False) as client:
        answers = [client.post(model.url + path("ollama"), json=body("ollama")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 503, 200]
    assert threading.active_count() == before


def test_it_has_no_address_before_it_is_open() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        _ = ScriptedModel([Say("hi")]).url


async def test_two_models_and_two_clients_at_once_do_not_mix(http: Any) -> None:
    async with ScriptedModel([Say("a")] * 20) as one, ScriptedModel([Say("b")] * 20) as other:
        lines = [Line(http, model.url, "ollama") for model in (one, other) for _ in range(20)]
        answers = await asyncio.gather(*(line.ask() for line in lines))
    assert [answer.json()["message"]["content"] for answer in answers] == ["a"] * 20 + ["b"] * 20
    assert [asked.number for asked in one.requests] == [*range(1, 21)]


async def test_a_stream_of_gemini_without_sse_is_one_json_array(http: Any) -> None:
    async with ScriptedModel([Say("Let me see what I can do.")]) as model:
        url = model.url + path("gemini", stream=True).removesuffix("?alt=sse")
        chunks = (await http.post(url, json=body("gemini"))).json()
    assert folded("gemini", chunks)[0] == "Let me see what I can do."


def test_the_fixture_makes_models_that_are_open_until_the_test_ends(scripted_model: Any) -> None:
    one, other = scripted_model([Say("one")]), scripted_model([Say("other")], repeat=True)
    with httpx.Client(trust_env=False) as client:
        for model, text in ((one, "one"), (other, "other"), (other, "other")):
            answer = client.post(model.url + path("ollama"), json=body("ollama")).json()
            assert answer["message"]["content"] == text
    assert (one.left, len(other.requests)) == (0, 2)


RAW = {
    "HTTP/1.0": b"POST /api/chat HTTP/1.0\r\ncontent-length: %d\r\n\r\n%s",
    "a body in chunks": b"POST /api/chat HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
    "100-continue": b"POST /api/chat HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n%s",
}


@pytest.mark.parametrize("form", RAW)
async def test_other_forms_of_http_are_understood(form: str) -> None:
    content = json.dumps(body("ollama")).encode()
    async with ScriptedModel([Say("hi")]) as model:
        reader, writer = await asyncio.open_connection(*model.url.removeprefix("http://").split(":"))
        writer.write(RAW[form] % (len(content), content))
        got = b""
        while b'"done": true' not in got:
            part = await asyncio.wait_for(reader.read(4096), 100)
            assert part, got
            got += part
        writer.close()
        await writer.wait_closed()
    assert b"200" in got
    assert model.refusals == []


@pytest.mark.parametrize(
    "sent", [b"", b"POST /api/chat HT", b"\x16\x03\x01 no http\r\n\r\n"], ids=["none", "half", "other"]
)
async def test_what_is_no_request_hurts_nobody_else(sent: bytes, http: Any) -> None:
    async with ScriptedModel([Say("hi")]) as model:
        _, writer = await asyncio.open_connection(*model.url.removeprefix("http://").split(":"))
        writer.write(sent)
        writer.close()
        await writer.wait_closed()
        assert (await Line(http, model.url, "ollama").ask()).status_code == 200
    assert len(model.requests) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@each_wire
async def test_a_long_answer_comes_whole(wire: str, stream: bool, http: Any) -> None:
    text = "a long text, é " * 2000
    async with ScriptedModel([Say(text)]) as model:
        answer = await Line(http, model.url, wire).ask(stream=stream)
    assert (folded(wire, streamed(wire, answer.text)) if stream else said(wire, answer.json()))[0] == text
