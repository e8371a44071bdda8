"""A side that fails a scenario takes nobody else's figures with it, and the page says so."""

from dataclasses import replace

import pytest

from benchmark.main import parse_arguments, write_page
from benchmark.measure import Measure, Scenario, run_scenario
from benchmark.report import page, table
from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KafkaPeer


class Side:
    """A broker that counts its rounds, and how often it was started again."""

    def __init__(self, name, fails_in_round=None):
        self.name = name
        self.fails_in_round = fails_in_round
        self.rounds = self.restarts = 0

    def kill(self):
        pass

    def restart(self):
        self.restarts += 1

    def measure(self):
        self.rounds += 1
        if self.rounds == self.fails_in_round:
            raise TimeoutError("no controller\nwithin 120 s")
        return {"p50": 100.0 * self.rounds}


def outcome_of(ours, theirs, rounds=3, prepare=None):
    scenario = Scenario(
        key="example",
        title="An example",
        command="do it",
        measures=(Measure(key="p50", title="p50", unit="µs"),),
        run=Side.measure,
        prepare=prepare,
    )
    return run_scenario(scenario, [ours, theirs], rounds, print)


@pytest.mark.parametrize("failing_round", [1, 2])
def test_the_other_side_is_measured_to_the_end(failing_round):
    ours, theirs = Side(HeadraceBroker.name), Side(KafkaPeer.name, failing_round)
    outcome = outcome_of(ours, theirs)
    assert ours.rounds == 3
    assert outcome.median(ours.name, "p50") == 200
    assert (theirs.rounds, theirs.restarts) == (failing_round, 1)
    assert outcome.failures == {theirs.name: "TimeoutError: no controller within 120 s"}


def test_the_table_and_the_page_say_which_side_failed_and_why():
    outcome = outcome_of(Side(HeadraceBroker.name), Side(KafkaPeer.name, 1))
    shown = table(outcome)
    assert "| p50, µs | 200 | failed | - |" in shown
    assert "Apache Kafka failed here: `TimeoutError: no controller within 120 s`" in shown
    assert shown in page([outcome], "run", 0.0)


def test_a_side_that_fails_its_warm_up_is_not_measured():
    def prepare(side):
        if side.name == KafkaPeer.name:
            raise ConnectionError("refused")

    ours, theirs = Side(HeadraceBroker.name), Side(KafkaPeer.name)
    outcome = outcome_of(ours, theirs, prepare=prepare)
    assert (ours.rounds, theirs.rounds) == (3, 0)
    assert outcome.failures[theirs.name] == "ConnectionError: refused"


def test_the_page_is_written_where_it_was_asked_for(tmp_path, monkeypatch):
    target = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["run.py", "--cluster", "--write", str(target)])
    write_page(parse_arguments(), [outcome_of(Side(HeadraceBroker.name), Side("k", 1))], 0.0)
    assert "An example" in target.read_text()


def test_the_machine_is_put_into_the_same_state_before_each_round_of_each_side():
    order = []

    class Watched(Side):
        def measure(self):
            order.append(self.name)
            return super().measure()

    scenario = outcome_of(Side("a"), Side("b")).scenario
    sides = [Watched("a"), Watched("b")]
    run_scenario(replace(scenario, run=Watched.measure), sides, 2, print, lambda: order.append(""))
    assert order == ["", "a", "", "b", "", "b", "", "a"]
