"""Style that a machine can check (see CONTRIBUTING.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    ROOT / "broker" / "headrace_broker",
    ROOT / "operator" / "headrace_operator",
    ROOT / "operator" / "headrace_cli",
    ROOT / "spark_operator_jobs" / "headrace_jobs",
)
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted(package.rglob("*.py"))


def _project_files() -> Iterator[Path]:
    yield from _modules()
    yield from sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("path", list(_modules()), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_stay_short(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= MODULE_LINES_MAX, f"{path} has more than {MODULE_LINES_MAX} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, (
                f"{path}:{node.lineno} {node.name} has {length} lines"
            )


def test_nothing_shadows_the_standard_librarys_operator() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "broker" / "__init__.py").exists()


def test_nothing_is_left_to_be_done_in_a_comment() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" * 3)
    for path in _project_files():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            comment = line.partition("#")[2]
            assert not any(word in comment for word in words), f"{path}:{number}: {line.strip()}"


def test_every_module_that_owns_something_says_what() -> None:
    for path in _modules():
        tree = ast.parse(path.read_text())
        if tree.body:
            assert ast.get_docstring(tree), f"{path} has no docstring"


def test_every_api_file_is_named_as_its_api_and_lists_its_versions() -> None:
    from headrace_broker.server.dispatch import load_api_table

    folder = ROOT / "broker" / "headrace_broker" / "server" / "api"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    table = {entry.key.name.lower() for entry in load_api_table().values()}
    assert files == table
    for name in files:
        docstring = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text())) or ""
        assert "ersion" in docstring, f"server/api/{name}.py lists no versions"
