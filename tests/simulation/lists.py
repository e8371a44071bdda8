"""Writes `docs/simulation-lists.md`: what the simulator runs, judges, reaches and must find.

All of it is read from the code, and a test of the page compares them. What seeds reached is in
`reached.json`: `python -m simulation.lists --take RECORD` puts there what `simulation.run --record`
kept of a range, `--later RECORD` what it kept of another one, beside it; `--found RECORD` puts into
`found.json` what `simulation.mutants.run --record` found. Without them the page alone is new.
"""

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from simulation.marks import MARKS
from simulation.mutants import FOUND_AT, KILLED_BY, MUTANTS
from simulation.mutants.run import recorded
from simulation.workloads import WORKLOADS

PAGE: Final = Path(__file__).parents[2] / "docs" / "simulation-lists.md"
REACHED: Final = Path(__file__).parent / "reached.json"
FOUND: Final = Path(__file__).parent / "found.json"
_HERE: Final = Path(__file__).parent


def page() -> str:
    """Return the page's text."""
    return "\n".join([*_head(), *_workloads(), *_violations(), *_marks(), *_mutants()]) + "\n"


def _head() -> Iterator[str]:
    yield "# What the simulator runs, judges, reaches and finds"
    yield ""
    yield "Written from the code by `make protocols`; a test compares them."
    yield "How all of it works: [the simulation](simulation.md)."
    yield ""


def _workloads() -> Iterator[str]:
    yield f"## Workloads ({len(WORKLOADS)})"
    yield ""
    yield "Each runs in its share of the seeds, from its first one on, where the shape fits."
    yield ""
    yield "| Workload | Share of the seeds | From seed |"
    yield "|---|---|---|"
    for work in WORKLOADS:
        yield f"| {work.name} | {work.share:g} | {work.since} |"
    yield ""


def violations() -> dict[str, list[str]]:
    """Return the names of violations by the module, below this folder, that reports them."""
    found: dict[str, list[str]] = {}
    for path in sorted(_HERE.rglob("*.py")):
        if path.name.startswith("test_") or "mutation" in path.parts:
            continue
        names = sorted(set(_named(ast.parse(path.read_text()))))
        if names:
            found[str(path.relative_to(_HERE))] = names
    return found


def _named(tree: ast.AST) -> Iterator[str]:
    """Return the first arguments of all calls of `violate`, as far as they are constants."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        values = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(function):
            is_one = isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "violate"
            if isinstance(call, ast.Call) and is_one and call.args:
                yield from _constants(call.args[0], values)


def _constants(node: ast.expr, values: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.IfExp):
        yield from _constants(node.body, values)
        yield from _constants(node.orelse, values)
    elif isinstance(node, ast.Name) and node.id in values:
        yield from _constants(values[node.id], {})


def _violations() -> Iterator[str]:
    found = violations()
    yield f"## Violations ({len({name for names in found.values() for name in names})})"
    yield ""
    yield "By the module of `tests/simulation` that reports them."
    yield ""
    yield "| Module | What it says | Violations |"
    yield "|---|---|---|"
    for module, names in found.items():
        said = ast.get_docstring(ast.parse((_HERE / module).read_text())) or ""
        said = said.splitlines()[0].replace("|", "\\|")
        yield f"| `{module}` | {said} | {', '.join(names)} |"
    yield ""


def _marks() -> Iterator[str]:
    known = json.loads(REACHED.read_text())
    later = known["later"]
    yield f"## Marks ({len(MARKS)})"
    yield ""
    yield f"How many of {known['seeds']} seeds came to each rare situation, and how often. Least:"
    yield "how many of 1,000 must come to it; below that `make simulate-reached` fails."
    yield f"Later: how many of {later['seeds']} seeds from {later['first']:,} on did: those that"
    yield "draw all that there is."
    yield ""
    yield "| Situation | Least | Seeds | Times | Later |"
    yield "|---|---|---|---|---|"
    for mark, least in sorted(MARKS.items(), key=lambda item: item[0].lower()):
        seeds, times = known["reached"].get(mark, (0, 0))
        lately, _ = later["reached"].get(mark, (0, 0))
        yield f"| {mark} | {least} | {seeds} | {times} | {lately} |"
    yield ""


def _mutants() -> Iterator[str]:
    yield f"## Planted bugs ({len(MUTANTS)})"
    yield ""
    yield "Bound: within how many of the seeds that can find it at all a search must find it. Found"
    yield "from: a first seed from which a search did find it, or a unit test that kills what no"
    yield "seed comes to."
    yield ""
    found = json.loads(FOUND.read_text())
    firsts = [f"{first:,}" for first in found["firsts"]]
    yield f"Searched: how many of the seeds that can find it a search from {', '.join(firsts)} on"
    yield "took until it was found; `> 40` where it was not among 40, `-` or nothing where nobody"
    yield "searched."
    yield ""
    yield "| Bug | Nodes | Bound | Found from | Searched |"
    yield "|---|---|---|---|---|"
    for mutant in MUTANTS:
        seed = FOUND_AT.get(mutant.name) or KILLED_BY.get(mutant.name, "")
        seed = f"`{seed}`" if "::" in str(seed) else seed
        searched = ", ".join(found["searched"].get(mutant.name, ()))
        yield f"| {mutant.name} | {mutant.nodes} | {mutant.seeds_max} | {seed} | {searched} |"


def take_found(record: Path) -> dict[str, Any]:
    """Return what a record of `simulation.mutants.run` says was found, from each first seed."""
    searches = recorded(record)
    firsts = sorted({each["first"] for each in searches})
    texts: dict[str, dict[int, str]] = {}
    for each in searches:
        is_found = each["seed"] is not None
        text = str(each["searched"]) if is_found else f"> {each['searched']}"
        texts.setdefault(each["name"], {})[each["first"]] = text
    known = [mutant.name for mutant in MUTANTS if mutant.name in texts]
    return {
        "firsts": firsts,
        "searched": {name: [texts[name].get(each, "-") for each in firsts] for name in known},
    }


def take(record: Path) -> dict[str, Any]:
    """Return what a record of `simulation.run` says was reached."""
    by_seeds, times, seeds = Counter[str](), Counter[str](), set[int]()
    for line in record.read_text().splitlines():
        _, outcome = json.loads(line)
        if outcome["seed"] not in seeds:
            seeds.add(outcome["seed"])
            times.update(outcome["reached"])
            by_seeds.update(outcome["reached"].keys())
    return {
        "first": min(seeds),
        "seeds": len(seeds),
        "reached": {mark: [by_seeds[mark], times[mark]] for mark in sorted(MARKS)},
    }


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--take", type=Path, help="a record of `simulation.run`")
    parser.add_argument("--later", type=Path, help="a record of another range")
    parser.add_argument("--found", type=Path, help="a record of `simulation.mutants.run`")
    options = parser.parse_args()
    if options.found is not None:
        FOUND.write_text(json.dumps(take_found(options.found), indent=1) + "\n")
    known = json.loads(REACHED.read_text())
    if options.take is not None:
        known = take(options.take) | {"later": known["later"]}
    if options.later is not None:
        known["later"] = take(options.later)
    REACHED.write_text(json.dumps(known, indent=1) + "\n")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
