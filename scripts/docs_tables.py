"""Write the parts of the docs that are made from the code: the stages, the diagram, the errors, the events, the rules.

In a page they stand between ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``python scripts/docs_tables.py``
brings them up to date; ``tests/test_docs.py`` fails when they are stale.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from callgate import errors
from callgate.hooks.stages import STAGES, May, OnFailure, Row, Stage, diagram
from callgate.hooks.state.step import plan_step
from callgate.providers.logs import LogEvent
from callgate.runtime.models import codec, codecs
from callgate.runtime.models.wire.endings import NO_CALL_RUNS, ReplyEnding
from callgate.runtime.models.wire.members import Handling
from callgate.runtime.pipeline.failure import outcome_of
from callgate.tools.arguments import tolerance
from callgate.tools.calls import ErrorInfo, Outcome, ToolResult
from callgate.tools.limits import Limits

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"(?<=<!-- generated: )([a-z-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_RAISING = {
    OnFailure.DENY: "denies",
    OnFailure.FAIL: "fails the call",
    OnFailure.SUPPRESS: "is recorded",
}
_VERBS = {May.MASK: "set masked_input", May.BIND: "bind providers", May.REPLACE_ERROR: "replace the error"}


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(text: object) -> str:
    """Text as code, or nothing."""
    return f"`{text}`" if text else ""


def meanings(kind: type[Enum]) -> dict[str, str]:
    """What the docstring of an enum says of each value: ``value``: text."""
    text = " ".join((kind.__doc__ or "").split("\n\n")[1].split())
    return {name: said.replace("``", "`") for name, said in re.findall(r"``(\w+)``: (.*?)\.(?= ``\w+``:|$)", text)}


def meaning_of_endings() -> str:
    """Each ending of an answer, and whether calls of the answer run."""
    runs = dict.fromkeys(NO_CALL_RUNS, "none") | dict.fromkeys((ReplyEnding.DONE, ReplyEnding.EMPTY), "it has none")
    runs[ReplyEnding.TRUNCATED] = "those that are complete"
    said = meanings(ReplyEnding)
    rows = [(code(one), said[one], runs.get(one, "all")) for one in ReplyEnding]
    return table(("Ending", "Meaning", "Calls that run"), rows)


def by_wire(known: str, head: tuple[str, str]) -> str:
    """A closed table of each wire: its words, by what they mean."""
    parts: list[str] = []
    for name in codecs():
        words: dict[str, list[str]] = {}
        for word, meant in getattr(codec(name), known, {}).items():
            words.setdefault(meant, []).append(code(word))
        rows = [(code(one), ", ".join(sorted(words[one]))) for one in words]
        parts.append(f"### {known.capitalize()} of `{name}`\n\n{table(head, rows)}")
    return "\n".join(parts)


def member_tables() -> str:
    """What a codec does with each kind of content, and the kinds of each wire."""
    said = meanings(Handling)
    explained = table(("Handling", "Meaning"), [(code(one), said[one]) for one in Handling])
    return f"{explained}\n{by_wire('members', ('Handling', 'Kinds'))}"


def stage_table() -> str:
    """Every stage, in the order of the lifecycle."""
    rows = [
        (row.position + 1, code(row.stage), row.section.value, _powers(row), _RAISING[row.on_failure], _own(row))
        for row in STAGES.values()
    ]
    return table(("", "Stage", "Section", "Hooks may", "A hook that raises", "The runtime's own step"), rows)


def _powers(row: Row) -> str:
    named = (
        _VERBS.get(power, f"set {power.value}" if power in {May.INPUT, May.OUTPUT} else power.value)
        for power in May
        if power in row.may
    )
    return ", ".join(named)


def _own(row: Row) -> str:
    return f"gives back what `{row.gives_back}` took" if row.gives_back else row.built_in or ""


def error_table() -> str:
    """Every way in which an invocation ends without a result."""
    rows = [
        (code(kind.__name__), _outcome(kind), kind.http_status, code(kind.code), kind.default_public)
        for kind in _tree(errors.InvocationError)
        if kind is not errors.InvocationError
    ]
    return table(("`gate.invoke` raises", "Outcome", "HTTP", "`code`", "`public`, unless it says more"), rows)


def _tree(kind: type[errors.InvocationError]) -> Iterator[type[errors.InvocationError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


_NEEDED: dict[type, tuple[Any, ...]] = {errors.RetryLater: (0,), errors.ToolError: ("",)}


def _outcome(kind: type[errors.InvocationError]) -> str:
    return code(outcome_of(kind(*_NEEDED.get(kind, ())), plan_step(Stage.WILL_EXECUTE, "tool")))


def outcome_table() -> str:
    """Every outcome, with what a result shows in both of the documents' shapes."""
    rows = []
    for outcome in Outcome:
        error = None if outcome is Outcome.SUCCESS else ErrorInfo(outcome, outcome)
        result = ToolResult("c1", "t", outcome, output=1 if error is None else None, error=error)
        rows.append(
            (code(outcome), code(result.to_status()["status"]), code(result.to_success()["success"]) or "`False`")
        )
    return table(("`outcome`", "`to_status()`: `status`", "`to_success()`: `success`"), rows)


def tree() -> str:
    """The error tree, as ``callgate.errors`` draws it."""
    found = re.search(r"::\n\n(.*?)\n\n``public``", errors.__doc__ or "", re.DOTALL)
    if found is None:
        raise ValueError("callgate.errors has no tree in its docstring")
    return f"```text\n{re.sub('^    ', '', found[1], flags=re.MULTILINE)}\n```\n"


def rule_table() -> str:
    """The rules of tolerance, as ``callgate.tools.arguments.tolerance`` lists them."""
    lines = (tolerance.__doc__ or "").splitlines()
    rows = [
        tuple(re.sub(r"``(.*?)``", r"`\1`", cell) for cell in line.split(None, 1)) for line in lines if _is_rule(line)
    ]
    return table(("Rule", "What it reads"), rows)


def _is_rule(line: str) -> bool:
    return line.startswith("``") and line.split("``")[1] in tolerance.RULES


def limit_table() -> str:
    """The limits on values, with their defaults."""
    limits = Limits()
    names = [name for name in Limits.__dataclass_fields__ if not name.startswith("_")]
    return table(("`Limits`", "Default"), [(code(name), f"{getattr(limits, name):,}") for name in names])


def event_table() -> str:
    """Every event that may be logged."""
    rows = [
        (code(event), logging.getLevelName(event.level).lower(), event.about, ", ".join(map(code, event.fields)))
        for event in sorted(LogEvent)
    ]
    return table(("Event", "Level", "When", "Fields, beside the ids"), rows)


GENERATED: dict[str, Callable[[], str]] = {
    "diagram": lambda: f"{diagram()}\n",
    "error-table": error_table,
    "error-tree": tree,
    "events": event_table,
    "limits": limit_table,
    "outcomes": outcome_table,
    "rules": rule_table,
    "endings": lambda: by_wire("endings", ("Ending", "Stop reasons")),
    "handlings": member_tables,
    "meaning-of-endings": meaning_of_endings,
    "stages": stage_table,
}


def refreshed(page: str) -> str:
    """A page with its generated parts made anew.

    Raises:
        KeyError: it asks for a part that there is none of.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{GENERATED[found[1]]()}\n", page)


def main() -> None:
    """Bring every page up to date."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        if refreshed(text) != text:
            page.write_text(refreshed(text), "utf-8")
            print(f"{page.name}: brought up to date")


if __name__ == "__main__":
    main()
