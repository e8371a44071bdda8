"""The store finds objects by their labels without looking at all, and finds the same ones."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace_operator.kubernetes.api.cache import CLUSTER_LABEL, INDEXED_LABELS, Store

KINDS, NAMESPACES, NAMES, VALUES = ("Pod", "Service"), ("n", "m"), ("x", "y", "z"), ("a", "b")
LABELS = st.dictionaries(st.sampled_from([*INDEXED_LABELS, "team"]), st.sampled_from(VALUES))


@st.composite
def changes(draw: st.DrawFn) -> tuple[bool, dict[str, Any]]:
    kind, namespace, name = (draw(st.sampled_from(each)) for each in (KINDS, NAMESPACES, NAMES))
    labels = draw(st.none() | LABELS)
    metadata = {"namespace": namespace, "name": name, "labels": labels}
    return draw(st.booleans()), {"kind": kind, "metadata": metadata}


@given(st.lists(changes(), max_size=30), LABELS, st.sampled_from([None, *NAMESPACES]))
def test_what_is_found_by_labels_is_what_has_them(
    written: list[tuple[bool, dict[str, Any]]], labels: dict[str, str], namespace: str | None
) -> None:
    store = Store()
    there: dict[tuple[str, str, str], dict[str, Any]] = {}
    for is_gone, obj in written:
        metadata = obj["metadata"]
        key = (obj["kind"], metadata["namespace"], metadata["name"])
        if is_gone:
            assert store.remove(obj) is there.pop(key, None)
        else:
            assert store.upsert(obj) is there.get(key)
            there[key] = obj
    for kind in KINDS:
        wanted = [
            obj
            for key, obj in sorted(there.items())
            if key[0] == kind
            and namespace in (None, key[1])
            and labels.items() <= (obj["metadata"]["labels"] or {}).items()
        ]
        assert store.list(kind, namespace, labels) == wanted


def test_others_clusters_are_not_looked_at() -> None:
    class Other(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise AssertionError("it was looked at")

    def obj(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
        metadata.update(namespace="n", name=name)
        return {"kind": "Pod", "metadata": metadata}

    store = Store()
    mine = obj("mine", {"labels": {CLUSTER_LABEL: "c"}})
    store.upsert(mine)
    for number in range(3):
        other = obj(f"other{number}", {"labels": {CLUSTER_LABEL: "d"}})
        store.upsert(other)
        other["metadata"] = Other(other["metadata"])
    assert store.list("Pod", "n", {CLUSTER_LABEL: "c"}) == [mine]
