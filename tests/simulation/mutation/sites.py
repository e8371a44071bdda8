"""Where a module can be mutated, and what it looks like then. Knows the syntax tree alone."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SAID_ONLY = {"debug", "info", "warning", "error", "exception"}


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One mutant: its place, what is changed there, and the whole module's source."""

    line: int
    what: str
    source: str
    tree: ast.Module


def count_mutations(source: str) -> int:
    """Return how many mutants a module has."""
    return sum(1 for _ in _changes(ast.parse(source)))


def mutate(source: str, number: int) -> Mutation:
    """Return a module's mutant of that number, from 0 on; raises IndexError."""
    tree = ast.parse(source)
    for place, (node, what, apply) in enumerate(_changes(tree)):
        if place == number:
            apply()
            return Mutation(line=node.lineno, what=what, source=ast.unparse(tree), tree=tree)
    raise IndexError(number)


def _changes(tree: ast.Module) -> Iterator[tuple]:  # type: ignore[type-arg]  # node, words, action
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in _run_when_called(node):
                if getattr(child, "_seen", False):
                    continue
                child._seen = True  # type: ignore[attr-defined]  # a mark of ours
                yield from _of_node(child)


def _run_when_called(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The function and its statements; decorators, defaults and annotations run elsewhere."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop(0)
        yield node
        match node:
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                waiting += body
            case ast.AnnAssign(target=target, value=value):
                waiting += [target] if value is None else [target, value]
            case _:
                waiting += ast.iter_child_nodes(node)


def _of_node(node: ast.AST) -> Iterator[tuple]:  # type: ignore[type-arg]  # as above
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            other = _COMPARISONS[type(operator)]
            words = f"{type(operator).__name__} becomes {other.__name__}"
            yield node, words, lambda: setattr(node, "ops", [other()])
        case ast.BoolOp(op=operator):
            swapped = ast.Or if isinstance(operator, ast.And) else ast.And
            words = f"{type(operator).__name__} becomes {swapped.__name__}"
            yield node, words, lambda: setattr(node, "op", swapped())
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            turned = _ARITHMETIC[type(operator)]
            words = f"{type(operator).__name__} becomes {turned.__name__}"
            yield node, words, lambda: setattr(node, "op", turned())
        case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
            called = node.func
            words = f"{name} becomes {_EXTREMES[name]}"
            yield node, words, lambda: setattr(called, "id", _EXTREMES[name])
        case ast.Constant(value=bool(value)):
            yield node, f"{value} becomes {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield node, f"{value} becomes {value + 1}", lambda: setattr(node, "value", value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            negated = ast.UnaryOp(op=ast.Not(), operand=test)
            words = f"the condition is turned: {ast.unparse(test)[:40]}"
            yield node, words, lambda: setattr(node, "test", ast.fix_missing_locations(negated))
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            yield from _of_body(body)
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if isinstance(block, list) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_body(block)


def _of_body(body: list[ast.stmt]) -> Iterator[tuple]:  # type: ignore[type-arg]  # as above
    """Statements that are left out: calls for their effect, assignments to attributes, raises."""
    for place, statement in enumerate(body):
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _SAID_ONLY:
                continue
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign():
                pass
            case ast.Assign(targets=[ast.Attribute()]):
                pass
            case _:
                continue
        words = f"left out: {ast.unparse(statement)[:60]}"
        left_out = ast.copy_location(ast.Pass(), statement)
        yield statement, words, _replacing(body, place, left_out)


def _replacing(body: list[ast.stmt], place: int, statement: ast.stmt):
    return lambda: body.__setitem__(place, statement)
