"""The page about the protocols says what the code's tables say, and names what is there."""

import re
from pathlib import Path

from support.protocols import PAGE, page

ROOT = Path(__file__).parent.parent
BROKER = ROOT / "broker" / "headrace_broker"


def test_the_state_diagrams_are_those_of_the_tables():
    assert PAGE.read_text() == page(), "run `make protocols`"


def test_every_file_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE.read_text()))
    named |= set(re.findall(r"\((\w+\.py)\)", PAGE.read_text()))
    assert len(named) >= 4
    for name in named:
        assert list(BROKER.rglob(name)), f"{name} is not there"


def test_every_name_that_the_diagrams_use_is_in_the_code():
    code = "\n".join(path.read_text() for path in BROKER.rglob("*.py"))
    diagrams = "".join(re.findall(r"sequenceDiagram(.*?)```", PAGE.read_text(), re.DOTALL))
    names = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", diagrams))
    names |= set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", diagrams))
    assert len(names) > 15
    missing = sorted(name for name in names if name not in code)
    assert not missing
