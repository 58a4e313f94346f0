"""A pytest plugin that notes how near to its bound every numerical comparison came.

``pytest -p tests.margins -o enable_assertion_pass_hook=true --margins FILE tests`` writes one line
of JSON for each comparison: test, line, value and bound. It sees ``torch.testing.assert_close``,
``numpy.testing.assert_allclose``, ``pytest.approx``, and asserts with two numbers and ``<`` or
``>`` between them. ``tools/margins.py`` runs it over instruction sets and says which comparisons
are near their bounds and move with the processor.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

NUMBER = r"-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf)"
COMPARISON = re.compile(rf"(?<![\w.])({NUMBER}) (<=?|>=?) (?=({NUMBER})(?![\w.]))")


def distances(
    actual: Any, expected: Any, rtol: float | None, atol: float | None
) -> Iterator[float]:
    """Yield the largest error of each pair of tensors, in units of what is allowed."""
    if isinstance(actual, Mapping):
        for key in actual:
            yield from distances(actual[key], expected[key], rtol, atol)
    elif isinstance(actual, Sequence):
        for a, b in zip(actual, expected, strict=True):
            yield from distances(a, b, rtol, atol)
    else:
        if actual is None:
            return
        a, b = torch.as_tensor(actual), torch.as_tensor(expected)
        if not (a.is_floating_point() or a.is_complex()) or not a.numel() or a.is_sparse:
            return
        kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
        dtype = min((x.dtype for x in (a, b) if x.dtype in kinds), key=kinds.index, default=None)
        default = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}
        loose = default.get(dtype, (1.3e-6, 1e-5) if dtype is torch.float32 else (1e-7, 1e-7))
        rtol, atol = (
            given if given is not None else usual
            for given, usual in zip((rtol, atol), loose, strict=True)
        )
        a, b = a.detach().double(), b.detach().double()
        gap = (a - b).abs()
        ratio = gap / (atol + rtol * b.abs())
        yield float(torch.where(gap == 0, 0.0, ratio).nan_to_num(0.0).max())


def pairs(explanation: str) -> Iterator[tuple[float, float]]:
    """Yield (smaller, larger) of every comparison of two numbers in an assertion's explanation."""
    for left, sign, right in COMPARISON.findall(explanation.partition("\n")[0]):
        if re.search(r"[.e]", left + right):
            yield (float(left), float(right))[:: 1 if sign[0] == "<" else -1]


class Margins:
    """Where the comparisons of a session are collected."""

    def __init__(self, path: str) -> None:
        self.path, self.test, self.seen = Path(path), "", {}

    def note(self, kind: str, line: int | None, value: float, bound: float, text: str = "") -> None:
        """Keep the nearest of what one line of one test compared."""
        key = (self.test, kind, line if line is not None else self.line(), text)
        ratio = value / bound if bound else math.inf
        if 0 <= value and math.isfinite(ratio) and ratio >= self.seen.get(key, (-1.0,))[0]:
            self.seen[key] = (ratio, value, bound)

    def line(self) -> int:
        """Return the line of the test file that is at work, or 0."""
        frame = sys._getframe(1)
        while frame and not Path(frame.f_code.co_filename).name.startswith("test_"):
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid

    def pytest_assertion_pass(self, item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
        for value, bound in pairs(expl):
            self.note("assert", lineno, value, bound, orig)

    def pytest_sessionfinish(self) -> None:
        rows = [
            {"test": t, "kind": k, "line": n, "text": o, "ratio": r, "value": v, "bound": b}
            for (t, k, n, o), (r, v, b) in self.seen.items()
        ]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def watch(margins: Margins) -> None:
    """Put the comparison helpers of torch, NumPy and pytest under watch."""
    close, allclose = torch.testing.assert_close, np.testing.assert_allclose

    def assert_close(actual: Any, expected: Any, **options: Any) -> None:
        close(actual, expected, **options)
        for ratio in distances(actual, expected, options.get("rtol"), options.get("atol")):
            margins.note("close", None, ratio, 1.0)

    def assert_allclose(
        actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0.0, **options: Any
    ) -> None:
        allclose(actual, desired, rtol, atol, **options)
        for ratio in distances(np.asarray(actual), np.asarray(desired), rtol, atol):
            margins.note("close", None, ratio, 1.0)

    torch.testing.assert_close, np.testing.assert_allclose = assert_close, assert_allclose
    scalar = type(pytest.approx(1.0))
    equal = scalar.__eq__

    def approximately(self: Any, actual: Any) -> bool:
        same = equal(self, actual)
        if same and isinstance(actual, float | np.floating) and actual != self.expected:
            margins.note("approx", None, abs(float(actual) - self.expected), self.tolerance)
        return same

    scalar.__eq__ = approximately


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", metavar="FILE", help="note how near comparisons come to bounds")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--margins")
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    if path and (worker or not getattr(config.option, "numprocesses", None)):
        margins = Margins(f"{path}{'.' + worker if worker else ''}")
        config.pluginmanager.register(margins)
        watch(margins)
