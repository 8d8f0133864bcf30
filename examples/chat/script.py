"""The script of the model: one conversation with mistakes, and answers about books."""

from __future__ import annotations

import json
from typing import Any

from callgate.testing import Call, ModelRequest, RawArguments, Say, Think

OPENING = "Are Solaris and Roadside Picnic in? Lend me the first for three weeks and the other for the whole winter."
TITLES = ("Solaris", "Roadside Picnic", "The Invincible")


def answer(asked: ModelRequest) -> list[Any]:
    """Return the next turn, by the reader's last message and the model's progress since then."""
    said = max(index for index, message in enumerate(asked.messages) if message.role == "user" and message.text)
    turn = sum(message.role == "assistant" for message in asked.messages[said:])
    told = [_read(result.content) for result in asked.results]
    if asked.messages[said].text == OPENING:
        return _story(turn, told)
    return _chat(asked.messages[said].text, turn, told)


def _story(turn: int, told: list[Any]) -> list[Any]:
    """Two calls in one turn, one with a wrong type and the other denied; then a corrected call, and the end."""
    if turn == 0:
        books = [Call("find_book", {"title": title}) for title in TITLES[:2]]
        return [Think("Two books: I can look for both at once."), Say("Let me look for both."), *books]
    if turn == 1:
        first, other = (result["book_id"] for result in told)
        mistaken = RawArguments(json.dumps({"book_id": first, "days": "three weeks"}))
        return [Say("Both are in."), Call("lend", mistaken), Call("lend", {"book_id": other, "days": 120})]
    if turn == 2:
        reasons = ", ".join(result["error"]["code"] for result in told)
        return [Think(f"So: {reasons}. The days are a number; the winter is too long."), _lend_again()]
    lent = told[0]
    return [
        Say(f"{lent['title']} is yours for {lent['days']} days. "),
        Say("I could not lend you the other for the whole winter: ask for four weeks at most."),
    ]


def _lend_again() -> Call:
    return Call("lend", {"book_id": "B-1", "days": 21})


def _chat(text: str, turn: int, told: list[Any]) -> list[Any]:
    wanted = next((title for title in TITLES if title.lower() in text.lower()), None)
    if wanted is None:
        return [Say(f"I am a script. Ask me for {', '.join(TITLES[:-1])} or {TITLES[-1]}, or give me a model.")]
    if turn == 0:
        return [Call("find_book", {"title": wanted})]
    copies = told[0]["copies"]
    return [Say(f"{wanted} is {f'in, {copies} of it' if copies else 'out'}.")]


def _read(content: Any) -> Any:
    """Read a result in the wire's form: an object, a nested object (Gemini), or JSON text."""
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            return content
    if isinstance(content, dict) and content.keys() == {"output"}:
        return _read(content["output"])
    return content
