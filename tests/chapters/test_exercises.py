"""The exercises of the chapters: a starter is told "not yet", the solution "yes", and a wrong
answer is not let pass.
"""

import io
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
import pytest
import torch

from natcompanion.chapters.exercises import check, foundations, rfim, whitening
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.numbers import foundations as numbers

BOOK = Path(__file__).resolve().parents[2] / "book"
F = numbers.exact()


def said(judge, *answers):
    """Return what the check prints."""
    with redirect_stdout(io.StringIO()) as printed:
        check(judge, *answers)
    return printed.getvalue().strip()


def plain(F, g, lam):
    return torch.linalg.solve(F + lam * torch.eye(2, dtype=F.dtype), g)


def by_diagonal(F, g, lam):
    return torch.linalg.solve(F + lam * torch.diag(F.diagonal()), g)


def undamped(F, g, lam):
    return torch.linalg.solve(F, g)


def symmetric(G):
    lam, Q = torch.linalg.eigh(G)
    return (Q * lam.sqrt()) @ Q.mT


def by_inputs(g, Z, gradient, eps):
    return torch.linalg.solve(g + eps * Z.T @ Z / len(Z), gradient)


def by_trace(g, Z, gradient, eps):
    damping = eps * g.trace() / len(g) * torch.eye(len(g), dtype=g.dtype)
    return torch.linalg.solve(g + damping, gradient)


def by_identity(g, Z, gradient, eps):
    return torch.linalg.solve(g + eps * torch.eye(len(g), dtype=g.dtype), gradient)


def no_metric(g, Z, gradient, eps):
    return torch.linalg.solve(Z.T @ Z / len(Z), gradient)


J = numbers.jacobian()
G = problems.example().fisher()
L = torch.linalg.cholesky(G)
LOW = float(torch.linalg.eigvalsh(G)[0])
RIGHT = [
    (foundations.coin, (1 / 0.21, 0.21)),
    (foundations.gaussian, (J.mT @ J / len(J) / 0.25,)),
    (foundations.multiples, (1, 2)),
    (foundations.damping, (by_diagonal,)),
    (whitening.root, (L.mT,)),
    (whitening.half_rate, (LOW**2,)),
    (whitening.shortening, (lambda kl: 1 / (1 + 2 * kl),)),
    (whitening.flow, (lambda machine, p: machine.energy_metric(p, centred=True),)),
    (rfim.names, (2, 4)),
    (rfim.samples, (7, 7)),
    (rfim.memory, (1379, 135)),
    (rfim.damping, (by_inputs,)),
]
WRONG = [
    (foundations.coin, (1 / 0.21, 1 / 0.21), "by r, half of F δ² is 22.7 times"),
    (foundations.coin, (0.21, 0.21), "by p, half of F δ² is 0.0441 times"),
    (foundations.gaussian, (J.mT @ J / len(J) * 0.25,), "is 0.0625 times the divergence"),
    (foundations.gaussian, (J.mT @ J / len(J),), "is 0.25 times the divergence"),
    (foundations.gaussian, (4.0,), "expected a matrix of shape (2, 2), got ()"),
    (foundations.gaussian, (torch.full((2, 2), torch.nan),), "nan times"),
    (foundations.multiples, (0.5, 2), "a better multiple than 0.5"),
    (foundations.multiples, (1, 1), "does not turn at 1"),
    (foundations.multiples, (1, 0), "does not turn at 0"),
    (foundations.damping, (plain,), "with other units it ends"),
    (foundations.damping, (undamped,), "singular"),
    (foundations.damping, (lambda F, g, lam: torch.linalg.solve(F + lam * F, g),), "singular"),
    (foundations.damping, (lambda F, g, lam: torch.linalg.pinv(F) @ g,), "with other units"),
    (foundations.damping, (lambda F, g, lam: 0 * g,), "does not go down"),
    (foundations.damping, (lambda F, g, lam: -by_diagonal(F, g, lam),), "does not go down"),
    (whitening.root, (L,), "differs from G"),
    (whitening.root, (torch.linalg.inv(L),), "differs from G"),
    (whitening.root, (symmetric(G),), "not upper triangular"),
    (whitening.root, (3.0,), "expected a matrix of shape (2, 2), got ()"),
    (whitening.root, (torch.full((2, 2), torch.nan),), "nan"),
    (whitening.half_rate, (LOW,), "0.00134 of the rate is left"),
    (whitening.half_rate, (LOW**0.5,), "of the rate is left"),
    (whitening.half_rate, (0.0,), "1 of the rate is left"),
    (whitening.shortening, (lambda kl: 1 / (1 + kl),), "it gives 0.217"),
    (whitening.shortening, (lambda kl: 1.0,), "it gives 1"),
    (whitening.shortening, (lambda kl: 1 + 2 * kl,), "it gives 8.22"),
    (whitening.flow, (lambda machine, p: machine.energy_metric(p),), "times what it was"),
    (whitening.flow, (lambda machine, p: torch.eye(21, dtype=p.dtype),), "becomes 1 times"),
    (whitening.flow, (lambda machine, p: torch.zeros(21, 21, dtype=p.dtype),), "positive definite"),
    (whitening.flow, (lambda machine, p: -torch.eye(21, dtype=p.dtype),), "positive definite"),
    (rfim.names, (1, 4), "the same probabilities"),
    (rfim.names, (2, 2), "do not have this ratio"),
    (rfim.samples, (6, 7), "with 6 samples the metric of tanh"),
    (rfim.samples, (8, 7), "fewer than 8 samples are enough for tanh"),
    (rfim.samples, (7, 6), "with 6 samples the metric of relu"),
    (rfim.samples, (7, 8), "fewer than 8 samples are enough for relu"),
    (rfim.memory, (1378, 135), "with λ = 0.995 there is still"),
    (rfim.memory, (1379, 136), "with λ = 0.95 fewer than 136"),
    (rfim.damping, (by_trace,), "saturated"),
    (rfim.damping, (by_identity,), "in other coordinates it ends"),
    (rfim.damping, (no_metric,), "not the natural gradient"),
    (rfim.damping, (lambda *given: -by_inputs(*given),), "does not go down"),
]


@pytest.mark.parametrize("judge, answers", RIGHT)
def test_a_right_answer_is_told_yes_and_a_missing_one_not_yet(judge, answers):
    assert said(judge, *answers) == "Yes."
    assert said(judge, *(... for _ in answers)).startswith("Not yet: put your answer")


@pytest.mark.parametrize("judge, answers, words", WRONG)
def test_a_wrong_answer_is_told_what_is_off(judge, answers, words):
    answer = said(judge, *answers)
    assert answer.startswith("Not yet") and words in answer


def test_only_a_change_of_units_leaves_the_diagonal_rule_alone():
    g = numbers.gradients()[0]
    shear = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    assert foundations.rescaled_gap(by_diagonal, shear, F, g) > 1e-3
    assert foundations.rescaled_gap(undamped, shear, F, g) < 1e-9


def runs(chapter):
    """Return what each code cell of a chapter prints, by its id, when they run one after another;
    figures are left out.
    """
    scope, printed = {}, {}
    for cell in nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4).cells:
        if cell.cell_type == "code" and not cell.source.startswith("figures."):
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(cell.source, cell.id, "exec"), scope)  # noqa: S102
            printed[cell.id] = out.getvalue().strip().splitlines()
    return printed


@pytest.fixture
def float32_again():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("chapter", ["foundations", "rfim", "whitening"])
def test_starters_are_told_not_yet_and_solutions_yes(chapter, float32_again):
    printed = runs(chapter)
    starters = [name for name in printed if name.startswith("exercise-")]
    assert len(starters) == 4
    for name in starters:
        assert printed[name][-1].startswith("Not yet"), name
        assert printed[name.replace("exercise-", "ex") + "-solution"][-1] == "Yes.", name
