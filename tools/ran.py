"""A plugin of pytest: which tests ran, for how long, and which lines each of them runs.

``pytest -p ran --ran FILE`` writes a line of JSON when a test starts and one when it ends, at once,
so that the last line names a test that never ended. Under ``coverage run``, each line of code that
runs is noted with the node id of its test.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

FILE = Path("ran.jsonl")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--ran``."""
    parser.addoption("--ran", help="the file for the lines")


def pytest_configure(config: pytest.Config) -> None:
    """Begin an empty file."""
    global FILE  # a report knows no configuration
    FILE = Path(config.getoption("--ran"))
    FILE.write_text("")


def note(test: str, outcome: str, seconds: float = 0.0) -> None:
    """Append a line."""
    with FILE.open("a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "seconds": seconds}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the start of a test, and that what runs now runs for it."""
    note(item.nodeid, "started")
    if (coverage := Coverage.current()) is not None:
        coverage.switch_context(item.nodeid)
        forget()
    return (yield)


def forget() -> None:
    """Empty the package's caches: a line that gave a cached value runs for later tests as well."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "natcompanion":
            for value in vars(module).values():
                getattr(value, "cache_clear", bool)()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test, its preparation or its end came out."""
    note(report.nodeid, report.outcome, report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        note(report.nodeid, "failed")
