"""The docs tell the truth: their code runs and prints what they say, their tables are the code's, their links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import callgate
from callgate import hooks, jobs, mcp, models, picking, stores, testing
from callgate.hooks import base
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage, diagram
from callgate.hooks.state.run import Run
from callgate.tools.calls import ANONYMOUS
from callgate.tools.context import ToolContext
from callgate.tools.declaring.declare import ToolOptions
from scripts.docs_tables import DOCS, GENERATED, refreshed

ROOT = DOCS.parent
NO_PLAN: Any = None
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [page for page in PAGES if page.name != "contract.md"]
FENCE = re.compile(r"^```(?P<kind>\S*)(?P<more>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
each_written_page = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(DOCS).as_posix())


@dataclass(frozen=True)
class Block:
    """A Python block: where its code begins, and what the text block right after it says that it prints."""

    line: int
    code: str
    prints: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    found = [match for match in FENCE.finditer(text) if match["kind"] in {"python", "text"}]
    for match, after in zip_longest(found, found[1:]):
        if match["kind"] == "python":
            shown = after is not None and after["kind"] == "text" and not text[match.end() : after.start()].strip()
            yield Block(
                text.count("\n", 0, match.start("text")), match["text"], after["text"] if after and shown else ""
            )


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


@each_written_page
def test_every_python_block_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(f"docs_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)  # some pages keep a store in a file
    for block in blocks(page):
        printed = io.StringIO()
        code = compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, vars(module))
        assert printed.getvalue() == block.prints, f"{page.name}, line {block.line + 1}"


@each_page
def test_no_python_block_is_kept_from_running(page: Path) -> None:
    fences = re.findall(r"^```(.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert {fence for fence in fences if "py" in fence.lower()} <= {"python"}


@each_page
def test_the_parts_made_from_the_code_are_fresh(page: Path) -> None:
    text = page.read_text("utf-8")
    assert refreshed(text) == text, "run: make pages"


def test_every_part_made_from_the_code_is_shown_somewhere() -> None:
    shown = "".join(page.read_text("utf-8") for page in PAGES)
    assert [name for name in GENERATED if f"<!-- generated: {name} -->" not in shown] == []


def test_the_page_of_the_stages_shows_the_diagram_and_every_stage() -> None:
    """Contract 97."""
    page = (DOCS / "reference" / "stages.md").read_text("utf-8")
    assert diagram() in page
    assert [stage for stage in Stage if f"| `{stage}` |" not in page] == []


def test_the_page_of_hooks_names_every_option_and_only_members_that_the_context_has() -> None:
    page = prose(DOCS / "how-to" / "write-a-hook.md")
    assert [option for option in base._OPTIONS if f"`{option}" not in page] == []
    offered = page.split("## What the context offers")[1]
    members = {
        name
        for row in re.findall(r"^\| (`.*?) \|", offered, re.MULTILINE)
        for name in re.findall(r"`(?:await )?(\w+)", row)
    }
    ctx = InvokeContext(NO_PLAN, {}, ANONYMOUS, 0.0)
    assert members - {*dir(ctx)} == set()
    assert {"respond", "input_history", "get", "lease"} <= members


def unknown_members(text: str) -> list[str]:
    """The attributes of ``ctx`` in code spans that neither hooks nor tools have, and those of ``ctx.run`` that it lacks."""
    run = InvokeContext(NO_PLAN, {}, ANONYMOUS, 0.0).run
    known = {*dir(InvokeContext), *dir(ToolContext)}
    return [
        match[0][1:]
        for match in re.finditer(r"`ctx\.(\w+)(?:\.(\w+))?", text)
        if match[1] not in known
        or (match[1] == "run" and match[2] and match[2] not in {*dir(run), *Run.__annotations__})
    ]


SOURCES = [path for folder in ("hooks", "runtime", "tools", "providers") for path in (ROOT / folder).rglob("*.py")]
TEXTS = [*WRITTEN, ROOT / "README.md", ROOT / "SECURITY.md", *SOURCES]


def test_texts_name_only_members_that_a_context_has() -> None:
    found = {path.name: unknown_members(path.read_text("utf-8")) for path in TEXTS}
    assert {name: members for name, members in found.items() if members} == {}
    assert unknown_members("`ctx.plan`, `ctx.user` and ``ctx.run.nothing``") == ["ctx.plan", "ctx.run.nothing"]


PUBLIC = {
    name: getattr(module, name)
    for module in (callgate, hooks, jobs, mcp, models, picking, stores, testing)
    for name in dir(module)
    if name[0].isalpha() and callable(getattr(module, name))
}


def unknown_options(text: str) -> list[str]:
    """The options in code spans, such as ``Gate(store=...)``, that the public class or function does not take."""
    found: list[str] = []
    for name, inside in re.findall(r"`(?:callgate\.)?(\w+)\((\w[^`]*)\)", text):
        while inside != (inside := re.sub(r"\([^()]*\)", "", inside)):
            pass  # an option of a call within
        taken = inspect.signature(PUBLIC[name]).parameters if name in PUBLIC else {}
        is_hook = isinstance(PUBLIC.get(name), type) and issubclass(PUBLIC[name], hooks.Hook)
        if taken and (is_hook or not any(one.kind is one.VAR_KEYWORD for one in taken.values())):
            known = {*taken, *(base._OPTIONS if is_hook else ())}
            found += [f"{name}({one}=)" for one in re.findall(r"(?:^|, )(\w+)=", inside) if one not in known]
    return found


def test_texts_name_only_options_that_there_are() -> None:
    found = {path.name: unknown_options(path.read_text("utf-8")) for path in TEXTS}
    assert {name: options for name, options in found.items() if options} == {}
    wrong = "``Gate(clock=...)``, `Gate(options=Options(clock=now))`, `Quota(5, per=60)`"
    assert unknown_options(wrong) == ["Gate(clock=)", "Quota(per=)"]


def test_the_page_of_tools_names_every_option() -> None:
    page = prose(DOCS / "how-to" / "declare-a-tool.md")
    assert [option for option in ToolOptions.__annotations__ if f"`{option}`" not in page] == []


def test_the_page_of_tools_names_every_reason_for_which_a_schema_is_refused() -> None:
    table = prose(DOCS / "how-to" / "declare-a-tool.md").split("| Reason | What to do |")[1].split("\n\n")[0]
    told = {
        reason for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for reason in re.findall(r"`(\w+)`", row)
    }
    assert told == reasons()


def reasons() -> set[str]:
    """The first arguments of ``SchemaRefused(...)`` in the sources."""
    calls = (
        node
        for path in sorted((ROOT / "tools").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SchemaRefused"
    )
    found = [call.args[0] for call in calls if call.args]
    return {reason.value for reason in found if isinstance(reason, ast.Constant) and isinstance(reason.value, str)}


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in set(LINK.findall(prose(page))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", FENCE.sub("", target.read_text("utf-8")), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, link


def slug(heading: str) -> str:
    """A heading as hosts make an anchor of it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_first_page_leads_to_every_other() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    pages = (page.relative_to(DOCS).as_posix() for page in PAGES)
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []
