import re
from pathlib import Path

from headrace_operator.resources import Reason

PAGE = Path(__file__).parents[2] / "docs/conditions.md"


def test_the_page_has_every_reason_and_no_other():
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(map(str, Reason))
