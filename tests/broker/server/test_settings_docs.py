from pathlib import Path

from headrace_broker.server.config.settings_docs import render


def test_the_configuration_page_is_what_the_tables_say() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text() == render()
