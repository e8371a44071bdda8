"""Evaluates `x-kubernetes-validations`: the CEL rules of a schema, transition rules included.

A rule that reads `oldSelf` is evaluated only if the old object has the same value: by key in
objects and in map lists; values in other lists cannot be matched (Kubernetes, "Transition rules").
A rule that cannot be evaluated counts as broken, as in the API server.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cel

from headrace_operator.resources.quantities import parse_quantity
from headrace_operator.validation.problems import SchemaProblem
from headrace_operator.validation.structure import list_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_operator.resources.documents import KeyPath

#: The old value if there is none to compare with.
_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One compiled rule."""

    program: cel.Program
    message: str
    field_path: KeyPath
    is_transition: bool


def check_rules(value: Any, old: Any | None, schema: dict[str, Any]) -> Iterator[SchemaProblem]:
    """Yield the broken rules of `value` (defaults applied, structure sound).

    `old` is the object as it was before, with defaults, or None when it is new.
    """
    yield from _check(value, _ABSENT if old is None else old, schema, ())


def _check(value: Any, old: Any, schema: dict[str, Any], path: KeyPath) -> Iterator[SchemaProblem]:
    for definition in schema.get("x-kubernetes-validations", ()):
        rule = compile_rule(
            definition["rule"], definition.get("message", ""), definition.get("fieldPath", "")
        )
        if rule.is_transition and old is _ABSENT:
            continue
        problem, is_evaluated = _evaluate(rule, value, old)
        if problem:
            # A rule that failed to run is reported at its value, as by the API server.
            blamed = (*path, *rule.field_path) if is_evaluated else path
            yield SchemaProblem(path=blamed, reason=problem)
    if isinstance(value, dict):
        yield from _check_object(value, old, schema, path)
    elif isinstance(value, list) and "items" in schema:
        yield from _check_list(value, old, schema, path)


def _check_object(
    value: dict[str, Any], old: Any, schema: dict[str, Any], path: KeyPath
) -> Iterator[SchemaProblem]:
    properties = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    for key, item in value.items():
        item_schema = properties.get(key, additional)
        if isinstance(item_schema, dict):
            before = old.get(key, _ABSENT) if isinstance(old, dict) else _ABSENT
            yield from _check(item, before, item_schema, (*path, key))


def _check_list(
    value: list[Any], old: Any, schema: dict[str, Any], path: KeyPath
) -> Iterator[SchemaProblem]:
    before: dict[str, Any] = {}
    if isinstance(old, list) and schema.get("x-kubernetes-list-type") == "map":
        before = {list_identity(item, schema) or "": item for item in old}
    for index, item in enumerate(value):
        match = before.get(list_identity(item, schema) or "", _ABSENT)
        yield from _check(item, match, schema["items"], (*path, index))


@functools.cache
def compile_rule(rule: str, message: str, field_path: str) -> Rule:
    """Compile a rule once. Raises ValueError if it is not CEL."""
    program = cel.compile(rule)
    return Rule(
        program=program,
        message=message or f"failed rule: {rule}",
        field_path=tuple(part for part in field_path.split(".") if part),
        is_transition="oldSelf" in program.variables(),
    )


def _evaluate(rule: Rule, value: Any, old: Any) -> tuple[str, bool]:
    variables = {"self": value}
    if old is not _ABSENT:
        variables["oldSelf"] = old
    context = cel.Context(variables=variables, functions=_FUNCTIONS)
    try:
        return "" if rule.program.execute(context) is True else rule.message, True
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        # int('many') in a rule: the value is wrong, so report the rule's message first.
        return f"{rule.message} ({str(error).split('. Check', maxsplit=1)[0]})", False


def _quantity(text: str) -> float:
    return float(parse_quantity(text))


def _compare_to(left: float, right: float) -> int:
    return (left > right) - (left < right)


def _sum(values: list[Any]) -> Any:
    return sum(values)


#: What Kubernetes' CEL has beyond the language's standard library, as far as the rules use it.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "compareTo": _compare_to,
    "sum": _sum,
}
