"""The page of APIs is the broker's own table, and names tests that use what it says."""

from pathlib import Path

from headrace_broker.protocol.apis import API_TABLE, BROKER
from headrace_broker.server.api.dispatch import load_api_table
from support.api_page import CLIENTS, PAGE, TESTED, page

TESTS = Path(__file__).parent


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text() == page(), "run `make protocols`"


def test_what_is_served_of_an_api_is_what_kafka_serves():
    for key, entry in load_api_table().items():
        known = API_TABLE[entry.key]
        assert (entry.min_version, entry.max_version) == (known.min_version, known.max_version), key


def test_every_client_that_the_page_names_is_in_the_test_that_it_stands_for():
    for key, tested in TESTED.items():
        assert key in load_api_table(), f"{key.name} is not served"
        assert BROKER in API_TABLE[key].listeners
        for client, file in tested.items():
            text = (TESTS / file).read_text()
            assert any(sign in text for sign in CLIENTS[client]), f"{key.name}: {client} in {file}"
