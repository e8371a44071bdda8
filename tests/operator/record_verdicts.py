"""Asks a kube-apiserver about every case of fixtures/cases.yaml and writes fixtures/verdicts.json.

Run with KUBECONFIG at any cluster after `kubectl apply -f crds/`:

    python tests/operator/record_verdicts.py
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

FIXTURES = Path(__file__).parent / "fixtures"
PLURALS = {"Cluster": "clusters", "Topic": "topics", "ConsumerGroup": "consumergroups"}
NAMESPACE = "default"


def main() -> int:
    """Record every verdict; an old object that is refused is a mistake of the case."""
    config.load_kube_config()
    api = client.CustomObjectsApi()
    verdicts = {}
    for index, case in enumerate(yaml.safe_load((FIXTURES / "cases.yaml").read_text())):
        verdicts[case["name"]] = verdict(api, case, f"case-{index}")
    text = json.dumps(verdicts, indent=1, ensure_ascii=False, sort_keys=True)
    (FIXTURES / "verdicts.json").write_text(text + "\n")
    accepted = sum(entry["accepted"] for entry in verdicts.values())
    sys.stdout.write(f"{accepted} of {len(verdicts)} accepted\n")
    return 0


def verdict(api: Any, case: dict[str, Any], name: str) -> dict[str, Any]:
    """Return whether the server takes the object, what it made of it, or which fields it blames."""
    place = ("headrace.dev", "v1beta1", NAMESPACE, PLURALS[case["kind"]])
    body: dict[str, Any] = {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": case["kind"],
        "metadata": {"name": name},
    }
    if "spec" in case:
        body["spec"] = case["spec"]
    strict = {"dry_run": "All", "field_validation": "Strict"}
    created = False
    try:
        if "old" in case:
            old = api.create_namespaced_custom_object(*place, {**body, "spec": case["old"]})
            created = True
            body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            taken = api.replace_namespaced_custom_object(*place, name, body, **strict)
        else:
            taken = api.create_namespaced_custom_object(*place, body, **strict)
    except client.ApiException as error:
        status = json.loads(error.body)
        causes = status.get("details", {}).get("causes", [])
        fields = sorted({cause["field"] for cause in causes if "field" in cause})
        return {"accepted": False, "fields": fields, "message": status["message"]}
    finally:
        if created:
            api.delete_namespaced_custom_object(*place, name)
    return {"accepted": True, "spec": taken["spec"]}


if __name__ == "__main__":
    sys.exit(main())
