"""Lazy public modules: names are imported on first use, and an unknown name is answered with the line to write."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from shutil import copytree
from subprocess import run
from types import ModuleType

import pytest

import callgate.hooks
from callgate._lazy import FACES, lazy

ROOT = Path(__file__).resolve().parents[1]


def lazy_faces() -> list[str]:
    """The public modules that import lazily, by the text of their files."""
    files = {
        "callgate": ROOT / "src/callgate/__init__.py",
        **{name: ROOT / f"src/callgate/{name.partition('.')[2]}.py" for name in FACES[1:]},
        "callgate.hooks": ROOT / "hooks/__init__.py",
        "callgate.tools": ROOT / "tools/__init__.py",
    }
    return [name for name, path in files.items() if path.exists() and "= lazy(" in path.read_text("utf-8")]


@pytest.fixture
def face() -> Iterator[ModuleType]:
    module = ModuleType("a_face")
    sys.modules["a_face"] = module
    module.__getattr__, module.__dir__ = lazy(  # type: ignore[method-assign]
        "a_face", {"localcontext": "decimal", "Decimal": "decimal", "ROUND_UP": "decimal"}
    )
    yield module
    del sys.modules["a_face"]


def test_a_name_is_imported_on_first_use_and_kept(face: ModuleType) -> None:
    from decimal import Decimal

    assert "Decimal" not in vars(face)
    assert face.Decimal is Decimal
    assert vars(face)["Decimal"] is Decimal
    assert {"Decimal", "localcontext"} <= set(dir(face))


def test_the_names_are_exported_in_the_order_of_the_linter(face: ModuleType) -> None:
    assert face.__all__ == ["ROUND_UP", "Decimal", "localcontext"]


def test_an_unknown_name_is_answered_with_the_nearest_one(face: ModuleType) -> None:
    with pytest.raises(
        AttributeError, match=r"^module 'a_face' has no attribute 'Decimate'; did you mean 'Decimal'\?$"
    ):
        _ = face.Decimate
    with pytest.raises(AttributeError, match=r"^module 'a_face' has no 'Decimel'; write: from a_face import Decimal$"):
        _ = face.Decimel
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing_like_it'$"):
        _ = face.nothing_like_it
    with pytest.raises(AttributeError, match=r"has no attribute '__wrapped__'$"):
        _ = face.__wrapped__


def test_a_name_of_another_public_module_is_answered_with_its_import_line(face: ModuleType) -> None:
    """An import statement shows it as well: Python drops the text of an AttributeError there."""
    with pytest.raises(AttributeError, match=r"; write: from callgate\.errors import HookError$"):
        _ = face.HookError
    with pytest.raises(AttributeError, match=r"; write: from callgate\.testing import FakeClock$"):
        _ = face.FakeClock
    with pytest.raises(
        ImportError, match=r"^module 'callgate' has no 'Quota'; write: from callgate\.hooks import Quota$"
    ):
        from callgate import Quota  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"; write: from callgate\.hooks import Quota$"):
        from callgate import RateLimit  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("name", lazy_faces())
@pytest.mark.parametrize("unknown", ["ToolHook", "RateLimiter", "pickTools", "toolPreStages", "IToolExecutor"])
def test_a_name_with_a_hint_is_absent_like_any_other_and_an_import_shows_the_hint(name: str, unknown: str) -> None:
    """``hasattr`` and ``getattr`` with a default ask for names that may not exist: mocks, pickle and doctest do."""
    module = import_module(name)
    assert not hasattr(module, unknown)
    assert getattr(module, unknown, 7) == 7
    for statement in (f"from {name} import {unknown}", f"import {name}.{unknown}"):
        with pytest.raises(ImportError, match=rf"^module '{name}' has no '{unknown}'; write: from callgate"):
            exec(statement)
    with pytest.raises(ImportError, match=r"cannot import name|No module named"):
        exec(f"from {name} import nothing_like_it")


def test_submodules_are_attributes() -> None:
    assert getattr(callgate.hooks, "base").Hook is callgate.hooks.Hook  # noqa: B009  (checkers do not know it)
    from callgate.hooks import stages

    assert stages.Stage is callgate.hooks.Stage


@pytest.mark.parametrize("name", lazy_faces())
def test_the_imports_and_the_table_name_the_same_things(name: str) -> None:
    module = import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    (table,) = [node for node in ast.walk(block) if isinstance(node, ast.Dict)]
    assert ast.literal_eval(table) == imported, "name it in the import block and in the table"
    assert set(module.__all__) == set(imported)
    for public in module.__all__:
        assert getattr(module, public) is not None

    def order(name: str) -> tuple[int, str]:  # the linter's order: CONSTANTS, Classes, functions
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert list(module.__all__) == sorted(set(module.__all__), key=order)


PEERS = {
    "_collections_abc",
    "a2a",
    "httpx",
    "mcp",
    "psycopg",
    "pydantic",
    "pydantic_core",
    "sqlalchemy",
    "sqlite3",
    "starlette",
}


def only_for_checkers(text: str) -> set[str]:
    """The packages of which a module imports something for type checkers alone."""
    blocks = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If)]
    inside = [one for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING" for one in node.body]
    return {str(one.module).split(".")[0] if isinstance(one, ast.ImportFrom) else ast.unparse(one) for one in inside}


def test_only_public_modules_import_callgate_for_type_checkers_alone() -> None:
    """Elsewhere an import cycle means a wrong layer. Optional peers, which are imported late, may give their types."""
    assert only_for_checkers("if TYPE_CHECKING:\n    from callgate.errors import Denied") == {"callgate"}
    allowed = {
        ROOT / "runtime" / "remote" / "mcp" / "sampling.py",
        ROOT / "hooks" / "__init__.py",
        ROOT / "tools" / "__init__.py",
        *(ROOT / "src" / "callgate").glob("*.py"),
    }
    wrong = [
        str(path.relative_to(ROOT))
        for folder in ("runtime", "hooks", "providers", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if path not in allowed and not only_for_checkers(path.read_text("utf-8")) <= PEERS
    ]
    assert wrong == []


def test_the_helper_imports_nothing_of_callgate() -> None:
    tree = ast.parse((ROOT / "src/callgate/_lazy.py").read_text("utf-8"))
    imported = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in imported if name.startswith("callgate")] == []


@pytest.mark.parametrize(
    "statement", ["callgate.Gate", "import callgate.hooks", "from callgate.jobs import JobRetries"]
)
def test_a_checkout_without_links_says_what_to_do(statement: str, tmp_path: Path) -> None:
    """Git writes files in place of links where it may make none, as on Windows; the error was a ``RecursionError``."""
    source = ROOT / "src" / "callgate"
    links = {one.name for one in source.iterdir() if one.is_symlink()}
    copytree(source, tmp_path / "callgate", ignore=lambda _, names: links & set(names))
    done = run(
        [sys.executable, "-S", "-c", f"import callgate\n{statement}"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: callgate.")
    assert "core.symlinks true" in last
