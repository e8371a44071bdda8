"""Leaves what may be a secret out of objects and texts. Pure.

It goes by names and forms, and rather leaves out too much. A secret in none of these forms stays:
whoever sends a bundle has to look through it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["HIDDEN", "redacted", "redacted_text"]

HIDDEN = "(left out)"

#: In a name: its value may be a secret. In texts, where `key=` and `pass=` are everyday words, only
#: names that are meant for secrets count.
_NAME = re.compile(
    r"pass|pwd|secret|token|credential|key|authorization|cookie|jaas|signature|private|dsn",
    re.IGNORECASE,
)
_WORDS = (
    r"passw(?:or)?d|passphrase|(?<=[_.\-])pass|pwd|secret|token|credential|authorization|cookie|jaas"
    r"|signature|\bsig|(?:api|access|account|private|shared|signing|encryption|storage)[_.\-]?key"
)
#: Fields of Kubernetes that are named like secrets and have none.
_HARMLESS = frozenset({"key", "topologyKey", "secretName", "matchLabelKeys", "mismatchLabelKeys"})
#: Maps whose keys are somebody's own.
_FREE = frozenset(
    {"annotations", "config", "data", "envVars", "hadoopConf", "labels", "sparkConf", "stringData"}
)
#: Whole objects as they were applied, some of them compressed.
_COPIES = re.compile(r"last-applied|last-handled|objectset\.rio\.cattle\.io/applied")

_VALUE = r"""(?:\\"[^"]*?\\"|"(?:[^"\\]|\\.)*"|(?:'[^']*')+|\S+)"""
_FORMS = (
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
        HIDDEN,
    ),
    # Users and passwords of URLs, and without a scheme. Not the digests of images.
    (re.compile(r"://[^\s\"'<>]{0,1000}@(?!sha256:)"), f"://{HIDDEN}@"),
    (
        re.compile(r"(?<![^\s:/@\"'=])[^\s:/@\"'=]{1,100}:[^\s@\"']{1,500}@(?!sha256:)(?=[\w\[])"),
        f"{HIDDEN}@",
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=\-]{6,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[\w\-]{8,}\.[\w\-]+\.[\w\-]*"), HIDDEN),
    (
        re.compile(
            rf"((?:{_WORDS})[\w.\-\]]{{0,100}}(?:\\?[\"'])?\s*(?:[=:]|=>)\s*){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(
            rf"((?<![\w\-])--?[\w.\-]{{0,60}}?(?:{_WORDS})[\w.\-]{{0,60}}\s+)(?!--){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)
_FLAG = re.compile(r"--?[\w.\-]+")
_ASSIGNMENT = re.compile(r"(-{0,2}[\w.\-\[\]/]+)=(.+)", re.DOTALL)
#: A line of a properties, INI, YAML or environment file.
_LINE = re.compile(
    r"""(\s*(?:export\s+|[\-#;!]+\s*)?["']?([\w.\-\[\]/]+)["']?(?:\s*[=:]\s*|\s+))(.*)"""
)


def redacted(value: Any) -> Any:
    """Return an object without possible secrets and without irrelevant fields."""
    return _redacted(value, is_free=False)


def redacted_text(text: str) -> str:
    """Return a log, or another text for people, without what looks like a secret."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def _redacted(value: Any, *, is_free: bool, is_document: bool = False) -> Any:
    """`is_free`: a map's keys are not Kubernetes' own. `is_document`: nor are those inside."""
    if isinstance(value, dict):
        return _map(value, is_free=is_free, is_document=is_document)
    if isinstance(value, list):
        return _list(value, is_document=is_document)
    return _string(value) if isinstance(value, str) else value


def _map(value: Mapping[Any, Any], *, is_free: bool, is_document: bool) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    for key, each in value.items():
        name = str(key)
        if name == "managedFields" or _COPIES.search(name):
            continue
        if name == "binaryData" and isinstance(each, dict):
            kept[key] = dict.fromkeys(each, HIDDEN)
        elif _NAME.search(name) and (is_free or is_document or name not in _HARMLESS):
            kept[key] = _hidden(each, is_document=is_document)
        else:
            is_own = is_document or name in _FREE
            kept[key] = _redacted(each, is_free=is_own, is_document=is_document)
    # An entry of a list of variables or headers.
    title = next((kept[each] for each in ("name", "key") if isinstance(kept.get(each), str)), "")
    if "value" in kept and _NAME.search(title):
        kept["value"] = HIDDEN
    return kept


def _hidden(value: Any, *, is_document: bool) -> Any:
    """Leave out the value of a name that sounds like a secret.

    Objects below it are Kubernetes' own (a secretKeyRef), unless it is somebody's document.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict) and not is_document:
        return _redacted(value, is_free=False)
    if isinstance(value, list) and not is_document:
        return [_hidden(each, is_document=False) for each in value]
    return HIDDEN


def _list(values: Sequence[Any], *, is_document: bool) -> list[Any]:
    """Redact a list; after an argument that sounds like a secret comes its value."""
    kept: list[Any] = []
    before = ""
    for each in values:
        text = each if isinstance(each, str) else ""
        is_value = _FLAG.fullmatch(before) and _NAME.search(before) and not text.startswith("--")
        kept.append(HIDDEN if text and is_value else _element(each, is_document=is_document))
        before = text
    return kept


def _element(value: Any, *, is_document: bool) -> Any:
    found = _ASSIGNMENT.fullmatch(value) if isinstance(value, str) else None
    if found is not None and _NAME.search(found[1]):
        return f"{found[1]}={HIDDEN}"
    return _redacted(value, is_free=is_document, is_document=is_document)


def _string(text: str) -> str:
    """Redact a string of an object, which may be a document itself: JSON, YAML, properties."""
    is_json = text.lstrip().startswith(("{", "["))
    if not is_json and "\n" not in text.strip():
        return redacted_text(text)
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        document = None
    if not isinstance(document, dict | list):
        return _lines(redacted_text(text))
    found = _redacted(document, is_free=True, is_document=True)
    if is_json:
        return json.dumps(found, default=str)
    return yaml.safe_dump(found, sort_keys=False)


def _lines(text: str) -> str:
    """Leave out the values of names that sound like secrets, with the lines that they go on in."""
    kept: list[str] = []
    is_going_on, depth = False, -1
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if is_going_on or (depth >= 0 and line.strip() and indent > depth):
            is_going_on = line.endswith("\\")
            continue
        depth = -1
        found = _LINE.fullmatch(line)
        if found is None or not _NAME.search(found[2]):
            kept.append(line)
            continue
        kept.append(f"{found[1]}{HIDDEN}")
        is_going_on = line.endswith("\\")
        depth = indent
    return "\n".join([*kept, ""])
