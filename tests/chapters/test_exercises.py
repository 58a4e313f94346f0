"""The exercises of the chapters: a starter is told "not yet", the solution "yes", and a wrong
answer is not let pass.
"""

import io
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
import pytest
import torch

from natcompanion import boltzmann as rbms
from natcompanion.chapters.exercises import (
    boltzmann,
    check,
    foundations,
    prong,
    revisiting,
    rfim,
    whitening,
)
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.numbers import foundations as numbers
from natcompanion.reference.after import polar

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


def unit(t):
    return torch.eye(3, dtype=torch.float64)[t]


def by_y(y, t):
    return -unit(t) / y


def by_r(y, t):
    return y - unit(t)


def second_moment(Z):
    return Z.mT @ Z / len(Z)


def plug_in(v, h):
    return rbms.sample_moments(v, h).covariance.square().sum()


def halves(v, h, less=1):
    C = []
    for a, b in zip(v.chunk(2), h.chunk(2), strict=True):
        C.append((a - a.mean(0)).mT @ (b - b.mean(0)) / (len(a) - less))
    return (C[0] * C[1]).sum()


def without_variances(v, h):
    return plug_in(v, h) - torch.outer(v.var(0), h.var(0)).sum() / len(v)


def wired(*units):
    """Return the weights (4, 3) of pixels wired to one hidden unit each."""
    return torch.stack([2 * unit(j) for j in units])


def unit_rows(G):
    return G / G.norm(dim=1, keepdim=True)


def uncentred_steps(G_W, g_b, c, S, eps):
    return G_W @ (S + eps * torch.eye(len(S), dtype=S.dtype)).inverse(), g_b


def centred_steps(G_W, g_b, c, S, eps):
    step, _ = uncentred_steps(G_W - torch.outer(g_b, c), g_b, c, S, eps)
    return step, g_b - step @ c


def only_weights_centred(G_W, g_b, c, S, eps):
    return centred_steps(G_W, g_b, c, S, eps)[0], g_b


def damped_bias(G_W, g_b, c, S, eps):
    A = torch.cat([torch.cat([S + torch.outer(c, c), c[:, None]], 1), torch.ones(1, len(c) + 1)])
    A[-1, :-1] = c
    A += eps * torch.eye(len(A))
    step = torch.cat([G_W, g_b[:, None]], 1) @ A.inverse()
    return step[:, :-1], step[:, -1]


def by_spread(first, now):
    return now.trace() / first.trace()


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
    (prong.first_light, (lambda eps: 1 / eps,)),
    (prong.any_root, (unit_rows,)),
    (prong.any_root, (polar,)),
    (prong.ordinary_steps, (centred_steps,)),
    (prong.length, (by_spread,)),
    (prong.length, (lambda first, now: now.norm() / first.norm(),)),
    (revisiting.scores, (by_y, by_r)),
    (revisiting.shortening, (lambda s: 1 + s,)),
    (revisiting.labels, (12, 480)),
    (revisiting.truncation, (second_moment,)),
    (revisiting.truncation, (lambda Z: (Z.mT @ Z).mT.contiguous().mT,)),
    (boltzmann.weak, (lambda s, t, w: 2 * s**2 * t**2 * w,)),
    (boltzmann.bound, (lambda n: 9 * n / 16,)),
    (boltzmann.wiring, (wired(0, 1, 2, 0),)),
    (boltzmann.unbiased, (halves,)),
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
    (prong.first_light, (lambda eps: eps**-0.5,), "with ε = 0.5 the step is not 1.41 times"),
    (prong.first_light, (lambda eps: 2.0,), "with ε = 0.1 the step is not 2 times as long"),
    (prong.any_root, (torch.sign,), "with another root it ends"),
    (
        prong.any_root,
        (lambda G: G,),
        "the step of one unit is 63.2 times as long as that of another",
    ),
    (prong.any_root, (lambda G: G / G.norm(),), "the step of one unit is 63.2 times"),
    (prong.any_root, (lambda G: -unit_rows(G),), "the step of a unit does not go down"),
    (prong.any_root, (lambda G: 0 * G,), "the step of a unit does not go down"),
    (prong.any_root, (lambda G: G.norm(dim=1),), "expected a matrix of shape (3, 5), got (3,)"),
    (prong.ordinary_steps, (uncentred_steps,), "the step of W is off by"),
    (prong.ordinary_steps, (only_weights_centred,), "the step of b is off by"),
    (prong.ordinary_steps, (damped_bias,), "the step of W is off by"),
    (
        prong.ordinary_steps,
        (lambda W, b, *_: (W.mT, b),),
        "a step of W of shape (3, 5), got (5, 3)",
    ),
    (prong.length, (lambda first, now: 1.0,), "whitening once at"),
    (prong.length, (lambda first, now: 5.0,), "where the covariance has not changed it is 5"),
    (prong.length, (lambda first, now: by_spread(now, first),), "whitening once at"),
    (prong.length, (lambda first, now: by_spread(first, now) ** 0.5,), "whitening once at"),
    (prong.length, (lambda first, now: by_spread(first, now) ** 9,), "the run diverges"),
    (revisiting.scores, (lambda y, t: -by_y(y, t), by_r), "by y, it says -1 times"),
    (revisiting.scores, (lambda y, t: -1 / y, by_r), "by y, it says"),
    (revisiting.scores, (by_y, lambda y, t: unit(t) - y), "by r, it says -1 times"),
    (revisiting.scores, (by_y, by_y), "by r, it says"),
    (revisiting.scores, (lambda y, t: -1 / y[t], by_r), "by y, expected a vector of 3, got"),
    (revisiting.shortening, (lambda s: 1 / (1 + s),), "s is 0.941, and it gives 0.515"),
    (revisiting.shortening, (lambda s: (1 + s) ** 0.5,), "it gives 1.39"),
    (revisiting.shortening, (lambda s: 1.0,), "it gives 1"),
    (revisiting.labels, (100, 4000), "with 100 labels for each of the 40 inputs the error is 3.47"),
    (revisiting.labels, (3, 120), "the error is 20 %"),
    (revisiting.labels, (12, 40), "with one label for each of 40 inputs the error is 34.7 %"),
    (revisiting.labels, (0, 480), "must be positive"),
    (revisiting.truncation, (lambda Z: torch.eye(4),), "in other coordinates it ends"),
    (revisiting.truncation, (lambda Z: second_moment(Z).diag().diag(),), "in other coordinates"),
    (revisiting.truncation, (lambda Z: second_moment(Z).inverse(),), "in other coordinates"),
    (revisiting.truncation, (lambda Z: Z.mT.cov(),), "positive definite"),
    (revisiting.truncation, (lambda Z: -second_moment(Z),), "positive definite"),
    (revisiting.truncation, (lambda Z: Z,), "expected a matrix of shape (4, 4), got (40, 4)"),
    (boltzmann.weak, (lambda s, t, w: s**2 * t**2 * w,), "it is 0.5 times the gradient"),
    (boltzmann.weak, (lambda s, t, w: 2 * s * t * w,), "it is 18.5 times the gradient"),
    (boltzmann.weak, (lambda s, t, w: -2 * s**2 * t**2 * w,), "it is -1 times the gradient"),
    (boltzmann.bound, (lambda n: n,), "comes as close as 1.827"),
    (boltzmann.bound, (lambda n: 3 * n / 4,), "comes as close as 1.827"),
    (boltzmann.bound, (lambda n: n / 16,), "a larger bound than 0.1875 holds"),
    (boltzmann.bound, (lambda n: torch.nan,), "comes as close as"),
    (boltzmann.wiring, (torch.ones(4, 3),), "away from the product"),
    (boltzmann.wiring, (torch.diag(torch.ones(4))[:, :3],), "more weights"),
    (boltzmann.wiring, (wired(0, 0, 0, 0),), "a hidden unit has no weight"),
    (boltzmann.wiring, (torch.ones(3, 4),), "expected a matrix of shape (4, 3), got (3, 4)"),
    (boltzmann.unbiased, (plug_in,), "over batches of 4 is 0.0247, where 0.00717 is right"),
    (boltzmann.unbiased, (lambda v, h: plug_in(v, h) * (len(v) / (len(v) - 1)) ** 2,), "is 0.0438"),
    (boltzmann.unbiased, (lambda v, h: halves(v, h, 0),), "is 0.00179"),
    (boltzmann.unbiased, (without_variances,), "where 0.00717 is right"),
    (boltzmann.unbiased, (lambda v, h: halves(v, h) * 16 / len(v) ** 2,), "over batches of 6"),
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


SHOWN = ("figures.", "knobs.", "numbers.")


def runs(chapter):
    """Return what each code cell of a chapter prints, by its id, when they run one after another;
    those that only show a figure or a table are left out.
    """
    scope, printed = {}, {}
    for cell in nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4).cells:
        if cell.cell_type == "code" and not cell.source.startswith(SHOWN):
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(cell.source, cell.id, "exec"), scope)  # noqa: S102
            printed[cell.id] = out.getvalue().strip().splitlines()
    return printed


@pytest.fixture
def float32_again():
    yield
    torch.set_default_dtype(torch.float32)


CHAPTERS = ["boltzmann", "foundations", "prong", "revisiting", "rfim", "whitening"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_starters_are_told_not_yet_and_solutions_yes(chapter, float32_again):
    printed = runs(chapter)
    starters = [name for name in printed if name.startswith("exercise-")]
    assert len(starters) == 4
    for name in starters:
        assert printed[name][-1].startswith("Not yet"), name
        assert printed[name.replace("exercise-", "ex") + "-solution"][-1] == "Yes.", name
