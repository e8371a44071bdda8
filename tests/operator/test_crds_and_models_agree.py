"""The CRDs are the one truth; the typed models must say neither more nor less."""

import types
import typing

import msgspec
import pytest

from headrace_operator.resources import Cluster, ConsumerGroup, Topic
from headrace_operator.validation.schemas import resource_schemas

KINDS = {"Cluster": Cluster, "Topic": Topic, "ConsumerGroup": ConsumerGroup}
PARTS = [(kind, part) for kind in KINDS for part in ("spec", "status")]
#: What a field may be when it is absent from the schema's defaults: empty, or not there.
EMPTY = ({}, [], (), None, 0, "", False)


def part_of(kind, part):
    schema = resource_schemas()["headrace.dev/v1beta1", kind].schema["properties"][part]
    return schema, typing.get_type_hints(KINDS[kind])[part]


def bare(annotation):
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (inner, *others) = [each for each in typing.get_args(annotation) if each is not type(None)]
        return annotation if others else inner
    return annotation


def differences(schema, model, path):
    fields = {field.encode_name: field for field in msgspec.structs.fields(model)}
    for name in set(schema["properties"]) ^ set(fields):
        yield f"{path}.{name} is only in the {'model' if name in fields else 'CRD'}"
    for name in set(schema["properties"]) & set(fields):
        prop, field = schema["properties"][name], fields[name]
        where = f"{path}.{name}"
        if field.required != (name in schema.get("required", ())):
            yield f"{where}: required differs"
        if not field.required:
            yield from default_differences(prop, field, where)
        yield from type_differences(prop, bare(field.type), where)


def default_differences(prop, field, where):
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    default = msgspec.json.decode(msgspec.json.encode(default))
    if "default" not in prop:
        if default not in EMPTY:
            yield f"{where}: default {default!r}, and none in the CRD"
    # Typed, so that {type: None} and {} are the same where None is the type's own default.
    elif msgspec.convert(default, field.type) != msgspec.convert(prop["default"], field.type):
        yield f"{where}: default {default!r}, and {prop['default']!r} in the CRD"


def type_differences(prop, annotation, where):
    if is_struct(annotation):
        yield from differences(prop, annotation, where)
        return
    if typing.get_origin(annotation) is typing.Literal:
        if set(typing.get_args(annotation)) != set(prop.get("enum", ())):
            yield f"{where}: {annotation} and {prop.get('enum')} in the CRD"
        return
    if type_name(annotation) != schema_type(prop):
        yield f"{where}: {annotation} and {schema_type(prop)} in the CRD"
    elif "items" in prop:
        item = bare(typing.get_args(annotation)[0])
        yield from type_differences(prop["items"], item, f"{where}[]")
    elif "additionalProperties" in prop:
        value = bare(typing.get_args(annotation)[1])
        yield from type_differences(prop["additionalProperties"], value, f"{where}{{}}")


def is_struct(annotation):
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def schema_type(prop):
    return "int-or-string" if prop.get("x-kubernetes-int-or-string") else prop.get("type")


def type_name(annotation):
    if isinstance(annotation, types.UnionType) and set(typing.get_args(annotation)) == {str, int}:
        return "int-or-string"
    names = {str: "string", int: "integer", bool: "boolean", dict: "object", tuple: "array"}
    return names.get(typing.get_origin(annotation) or annotation)


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_every_property_is_in_both_with_the_same_type_and_default(kind, part):
    schema, model = part_of(kind, part)
    if part == "status":
        # The seeded conditions are the API server's: a typed status begins empty.
        schema = {key: value for key, value in schema.items() if key != "default"}
    assert list(differences(schema, model, part)) == []


def test_lists_and_texts_are_bounded():
    def unbounded(schema, path):
        if schema.get("type") == "array" and "maxItems" not in schema:
            yield f"{path}: maxItems"
        is_text = schema.get("type") == "string"
        if is_text and not {"maxLength", "enum", "format"} & set(schema):
            yield f"{path}: maxLength"
        additional = schema.get("additionalProperties")
        if isinstance(additional, dict):
            if "maxProperties" not in schema:
                yield f"{path}: maxProperties"
            yield from unbounded(additional, f"{path}{{}}")
        if "items" in schema:
            yield from unbounded(schema["items"], f"{path}[]")
        for name, prop in schema.get("properties", {}).items():
            yield from unbounded(prop, f"{path}.{name}")

    for kind, part in PARTS:
        assert list(unbounded(part_of(kind, part)[0], f"{kind}.{part}")) == []


def test_maps_have_a_default_since_an_applied_one_that_is_emptied_is_null():
    def undefaulted(schema, path):
        for name, prop in schema.get("properties", {}).items():
            # An empty selector would select everything: that one is refused.
            if "maxProperties" in prop and "default" not in prop and name != "matchLabels":
                yield f"{path}.{name}"
            yield from undefaulted(prop, f"{path}.{name}")
            yield from undefaulted(prop.get("items", {}), f"{path}.{name}[]")

    for kind, part in PARTS:
        if part == "spec":
            assert list(undefaulted(part_of(kind, part)[0], kind)) == []
