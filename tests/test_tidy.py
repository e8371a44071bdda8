"""Style that a machine can check (see CONTRIBUTING.md)."""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
import vulture

ROOT = Path(__file__).parent.parent
PACKAGES = (
    ROOT / "broker" / "headrace_broker",
    ROOT / "operator" / "headrace_operator",
    ROOT / "operator" / "headrace_cli",
    ROOT / "spark_operator_jobs" / "headrace_jobs",
)
MODULE_LINES_MAX = 400
"""Lines of code: blank lines, comments and docstrings are free."""
LONGER_MODULES = {
    "broker/headrace_broker/server/follower/replica_fetcher.py": "a fetcher and what it fetches",
    "broker/headrace_broker/log/partition_log.py": "one log: its segments and its offsets are one",
    "broker/headrace_broker/server/partitions/partition.py": "one replica: role, log, waiters",
}
"""Modules that may be longer, each with the reason: a state machine is not cut in two."""
FUNCTION_LINES_MAX = 60
FOLDER_MODULES_MAX = 25
FULLER_FOLDERS = {
    "broker/headrace_broker/protocol/messages": "one module for each of Kafka's messages",
    "broker/headrace_broker/protocol/messages/records": "one module for each kind of record",
    "broker/headrace_broker/server/api": "one module for each API",
}

CALLED_FROM_OUTSIDE = [
    "kubectl_main",  # by kubectl, as an entry point of the package
    *("connection_made", "connection_lost", "eof_received"),  # by asyncio, as are the next two
    *("get_buffer", "buffer_updated"),
    *("pause_writing", "resume_writing"),
    *("as_ssl_context", "as_http_headers"),  # by kopf, of a login
    "wrap_bio",  # by asyncio, of a TLS context
    "onQuery*",  # by Spark's StreamingQueryListener
    "init",  # by Spark, of a StatefulProcessor
    "handleInputRows",  # likewise
    *("streamReader", "initialOffset", "latestOffset"),  # by Spark, of a data source
    "prepareForTriggerAvailableNow",  # likewise
]
REGISTERED_BY_DECORATOR = ["@*.command", "@*.checks", "@*.get", "@*.post", "@kopf.*"]
DEAD_BUT_WANTED = {
    "broker/headrace_broker/protocol/headers.py": "how clients frame requests: tests are clients",
    "broker/headrace_broker/protocol/messages/": "all that Kafka has; what is served is server/api",
    "broker/headrace_broker/protocol/records.py": "decode_record_key: encode_record_key's pair",
    "broker/headrace_broker/protocol/codec.py": "__call__: the type of a compiled function",
}
"""What nobody calls and yet stays, by the beginning of its path, each with the reason."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted(package.rglob("*.py"))


def _project_files() -> Iterator[Path]:
    yield from _modules()
    yield from sorted((ROOT / "tests").rglob("*.py"))


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            # A docstring, of a module, a class, a function or an attribute.
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


@pytest.mark.parametrize("path", list(_modules()), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_stay_short(path: Path) -> None:
    source = path.read_text()
    lines = code_lines(source)
    if str(path.relative_to(ROOT)) not in LONGER_MODULES:
        assert len(lines) <= MODULE_LINES_MAX, (
            f"{path} has more than {MODULE_LINES_MAX} lines of code"
        )
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            length = sum(node.lineno <= line <= end for line in lines)
            assert length <= FUNCTION_LINES_MAX, (
                f"{path}:{node.lineno} {node.name} has {length} lines of code"
            )


def test_every_longer_module_needs_its_exception() -> None:
    for name in LONGER_MODULES:
        assert len(code_lines((ROOT / name).read_text())) > MODULE_LINES_MAX, (
            f"{name} is short enough"
        )


def test_folders_stay_surveyable() -> None:
    sizes = Counter(
        str(path.parent.relative_to(ROOT)) for path in _modules() if path.stem != "__init__"
    )
    full = {folder for folder, size in sizes.items() if size > FOLDER_MODULES_MAX}
    assert full == set(FULLER_FOLDERS)


def test_no_module_is_part_of_an_import_circle() -> None:
    """Imports for types count: what they tie together cannot be understood apart."""
    graph = grimp.build_graph(*(package.name for package in PACKAGES), cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    sorter = TopologicalSorter(imports)
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_code_is_dead() -> None:
    """Functions, methods, properties and classes that only tests use belong to tests/support."""
    found = vulture.Vulture(
        ignore_names=CALLED_FROM_OUTSIDE, ignore_decorators=REGISTERED_BY_DECORATOR
    )
    found.scavenge([str(package) for package in PACKAGES])
    dead = [
        f"{path}:{item.first_lineno}: {item.typ} {item.name}"
        for item in found.get_unused_code(min_confidence=60)
        if item.typ in {"function", "method", "property", "class"}
        and not (path := str(item.filename.relative_to(ROOT))).startswith(tuple(DEAD_BUT_WANTED))
    ]
    assert not dead, "delete it, move it to tests/support, or say why it stays: " + ", ".join(dead)


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
    from headrace_broker.server.api.dispatch import NOT_HANDLERS, load_api_table

    folder = ROOT / "broker" / "headrace_broker" / "server" / "api"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", *NOT_HANDLERS}
    table = {entry.key.name.lower() for entry in load_api_table().values()}
    assert files == table
    for name in files:
        docstring = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text())) or ""
        assert "ersion" in docstring, f"server/api/{name}.py lists no versions"


def test_each_decision_has_a_number_of_its_own() -> None:
    pages = [page for page in (ROOT / "docs" / "decisions").glob("*.md") if page.name[0].isdigit()]
    numbers = [int(page.name[:4]) for page in pages]
    assert sorted(numbers) == list(range(1, len(pages) + 1))
    for page, number in zip(pages, numbers, strict=True):
        assert page.read_text().startswith(f"# {number}. "), page.name
