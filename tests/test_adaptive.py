"""Adaptive whitening and random projections, against hand-computed cases, laws and wrong forms."""

import math

import pytest
import torch

from natcompanion.projections import (
    debiased_projected_covariance,
    projected_covariance,
    projected_norm_error,
    projected_squared_norm,
    projection,
    sketch_error,
    sketched_covariance,
)
from natcompanion.whitening import (
    EASI,
    Divergence,
    potter_update,
    relative_gradient,
    sherman_morrison_update,
)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def covariance(d, seed, condition=100.0):
    """A random covariance with given condition number."""
    Q, _ = torch.linalg.qr(torch.randn(d, d, generator=rng(seed), dtype=torch.float64))
    return (Q * torch.logspace(0, -math.log10(condition), d, dtype=torch.float64)) @ Q.mT


FORMS = {
    "plain": {"normalized": False},
    "normalised": {"normalized": True},
    "plain_cubic": {"normalized": False, "nonlinearity": lambda y: y**3},
    "normalised_tanh": {"normalized": True, "nonlinearity": torch.tanh},
}


@pytest.mark.parametrize("form", FORMS)
def test_easi_step_equals_the_case(cases, form):
    case = cases("boltzmann")["easi_step"]
    easi = EASI(3, case["inputs"]["lam"], start=tensor(case["inputs"]["B"]), **FORMS[form])
    easi.update(tensor([case["inputs"]["x"]]))
    torch.testing.assert_close(easi.B, tensor(case["expected"][form]), rtol=1e-12, atol=1e-12)
    others = [tensor(case["expected"][other]) for other in FORMS if other != form]
    assert all((easi.B - other).abs().max() > 1e-6 for other in others)


def test_relative_gradient_of_a_batch_is_the_mean_over_rows():
    y = torch.randn(7, 3, generator=rng(), dtype=torch.float64)
    rows = [relative_gradient(row[None], 0.1, torch.tanh) for row in y]
    torch.testing.assert_close(relative_gradient(y, 0.1, torch.tanh), torch.stack(rows).mean(0))


@pytest.mark.parametrize("form", FORMS)
def test_easi_is_equivariant(form):
    """The outputs of 200 steps do not depend on the mixing; with a ridge they do."""
    mixing = torch.randn(4, 4, generator=rng(1), dtype=torch.float64) + 2 * torch.eye(
        4, dtype=torch.float64
    )
    x = torch.randn(200, 5, 4, generator=rng(2), dtype=torch.float64)
    start = torch.linalg.inv(mixing)

    def gap(eps):
        plain, mixed = (
            EASI(4, 0.01, eps=eps, **FORMS[form]),
            EASI(4, 0.01, eps=eps, start=start, **FORMS[form]),
        )
        return max(float((plain.update(b) - mixed.update(b @ mixing.mT)).abs().max()) for b in x)

    assert gap(0.0) < 1e-12
    assert gap(0.1) > 1e-4


def test_easi_whitens_from_fifty_random_starts():
    """Batches whose covariance is exactly C: the plain rule reaches B C B^T = I from any start."""
    C = covariance(4, 3)
    batch = math.sqrt(4) * torch.linalg.cholesky(C).mT
    torch.testing.assert_close(batch.mT @ batch / 4, C)
    for seed in range(50):
        easi = EASI(
            4,
            0.1,
            normalized=False,
            start=torch.randn(4, 4, generator=rng(seed), dtype=torch.float64),
        )
        for _ in range(400):
            easi.update(batch)
        torch.testing.assert_close(
            easi.B @ C @ easi.B.mT, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-8
        )
        assert (
            easi.B.mT @ easi.B @ C - torch.eye(4)
        ).abs().max() < 1e-6  # B^T B is the inverse of C ...
        assert (easi.B @ C - torch.eye(4)).abs().max() > 0.05  # ... and B is not


def test_easi_separates_and_the_sign_matters():
    """tanh with a minus sign separates uniform sources; with the other sign it does not."""
    sources = (torch.rand(4000, 3, generator=rng(4), dtype=torch.float64) - 0.5) * math.sqrt(12)
    mixing = torch.randn(3, 3, generator=rng(5), dtype=torch.float64)

    def crosstalk(g):
        easi = EASI(3, 0.02, g)
        for batch in (sources @ mixing.mT).repeat(6, 1).split(10):
            easi.update(batch)
        total = (easi.B @ mixing).abs()
        return float((total / total.max(1, keepdim=True).values).sum() - 3)

    assert crosstalk(lambda y: -torch.tanh(y)) < 0.6
    assert crosstalk(torch.tanh) > 1.2


def test_easi_start_is_taken_in_its_dtype_and_left_alone():
    start = torch.eye(3).requires_grad_()
    for dtype in (torch.float64, torch.float32):
        easi = EASI(3, start=start, dtype=dtype)
        assert easi.B.dtype == dtype and not easi.B.requires_grad
        easi.B.zero_()
        assert torch.equal(start, torch.eye(3))
    for dim in (0, 2.5, "3"):
        with pytest.raises(ValueError, match="dim: expected an integer >= 1"):
            EASI(dim)


def test_easi_stays_finite_on_mnist():
    from natcompanion.data import mnist

    x = mnist()[0].flatten(1).double()
    x = (x - x.mean(0))[:, ::4]
    assert int((x.std(0) < 1e-12).sum()) > 10  # pixels that never change
    easi = EASI(196, 0.01, eps=0.01)
    for step in range(1000):
        easi.update(x[torch.randint(len(x), (10,), generator=rng(step))])
    assert torch.isfinite(easi.B).all() and float(easi.B.abs().max()) < 20


def test_easi_names_divergence_and_keeps_its_state():
    easi = EASI(3, 0.5, normalized=False)
    x = 10 * torch.randn(100, 3, generator=rng(6), dtype=torch.float64)
    with pytest.raises(Divergence, match=r"EASI has diverged: .* rate 0.5 .*lower the rate"):
        for _ in range(100):
            before = easi.B.clone()
            easi.update(x)
    assert torch.equal(easi.B, before) and torch.isfinite(easi.B).all()
    bounded = EASI(3, 0.5)
    for _ in range(100):
        bounded.update(x)
    assert torch.isfinite(bounded.B).all()


def test_easi_ridge_bounds_a_signal_that_never_changes():
    x = torch.randn(50, 3, generator=rng(7), dtype=torch.float64) * tensor([1.0, 1.0, 0.0])
    free, ridge = EASI(3, 0.1), EASI(3, 0.1, eps=0.01)
    for _ in range(300):
        free.update(x)
        ridge.update(x)
    assert float(ridge.B.abs().max()) < 12
    assert float(free.B.abs().max()) > 1e6


def test_easi_bad_input():
    easi = EASI(3)
    for bad, message in (
        (torch.randn(2, 4), r"expected \(n, 3\)"),
        (torch.full((2, 3), math.nan), "finite"),
        (torch.ones(2, 3, dtype=torch.long), "floating-point"),
        (torch.zeros(0, 3), "empty"),
    ):
        with pytest.raises(ValueError, match=message):
            easi.update(bad)
    assert torch.equal(easi.B, torch.eye(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="rate"):
        EASI(3, -1.0)
    with pytest.raises(ValueError, match="start"):
        EASI(3, start=torch.eye(2))


def test_easi_is_importable_from_whitening():
    from natcompanion import whitening

    assert whitening.EASI is EASI


def test_potter_and_sherman_morrison_equal_the_case(cases):
    case = cases("boltzmann")["potter_sherman"]
    C, x, rho = tensor(case["inputs"]["C"]), tensor(case["inputs"]["x"]), case["inputs"]["rho"]
    S1 = potter_update(tensor(case["expected"]["S0"]), x, rho)
    P1 = sherman_morrison_update(torch.linalg.inv(C), x, rho)
    torch.testing.assert_close(S1, tensor(case["expected"]["S1"]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(P1, tensor(case["expected"]["P1"]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(S1 @ S1.mT, P1)
    assert (S1.mT @ S1 - P1).abs().max() > 0.01  # the other product is not the inverse


def test_potter_follows_the_inverse_over_many_samples():
    C, S = torch.eye(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    P = S.clone()
    for x in torch.randn(200, 5, generator=rng(8), dtype=torch.float64):
        C = 0.95 * C + 0.05 * torch.outer(x, x)
        S, P = potter_update(S, x, 0.95), sherman_morrison_update(P, x, 0.95)
    torch.testing.assert_close(S @ S.mT @ C, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(P @ C, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-10)


def test_easi_is_the_first_order_of_potter():
    """S^T after one sample with rho = 1 - 2 lambda and B after one plain EASI step differ by
    O(lambda^2).
    """
    x = tensor([0.3, -1.2, 0.8])

    def gap(rate, rho):
        easi = EASI(3, rate, normalized=False)
        easi.update(x[None])
        return float(
            (easi.B - potter_update(torch.eye(3, dtype=torch.float64), x, rho).mT).abs().max()
        )

    assert gap(1e-3, 1 - 2e-3) < 1e-5
    assert gap(1e-4, 1 - 2e-4) == pytest.approx(gap(1e-3, 1 - 2e-3) / 100, rel=0.05)
    assert gap(1e-3, 1 - 1e-3) > 1e-4  # rho = 1 - lambda is not the match


@pytest.mark.parametrize("rho", [0.0, 1.0, -0.1, math.nan])
def test_forgetting_factor_is_checked(rho):
    with pytest.raises(ValueError, match="rho"):
        potter_update(torch.eye(2), torch.ones(2), rho)
    with pytest.raises(ValueError, match="rho"):
        sherman_morrison_update(torch.eye(2), torch.ones(2), rho)


def test_projected_covariance_equals_the_case(cases):
    case = cases("boltzmann")["rp_debias"]
    R, C = tensor(case["inputs"]["R"]), tensor(case["inputs"]["C"])
    out = debiased_projected_covariance(C, R)
    torch.testing.assert_close(out, tensor(case["expected"]["out"]), rtol=1e-12, atol=1e-12)
    assert (out - projected_covariance(C, R)).abs().max() > 0.01


def test_projection_bias_law():
    """The mean over 20,000 projections is the biased law; debiasing gives C."""
    C, k, n = covariance(4, 9, 10.0), 2, 20_000
    biased, unbiased = (
        torch.zeros(4, 4, dtype=torch.float64),
        torch.zeros(4, 4, dtype=torch.float64),
    )
    generator = rng(10)
    for _ in range(n):
        R = projection(k, 4, generator=generator)
        biased += projected_covariance(C, R) / n
        unbiased += debiased_projected_covariance(C, R) / n
    eye = torch.eye(4, dtype=torch.float64)
    assert (biased - ((1 + 1 / k) * C + C.trace() / k * eye)).abs().max() < 0.06
    assert (unbiased - C).abs().max() < 0.04
    assert (biased - C).abs().max() > 0.5


def test_sketch_error_law():
    x = (
        torch.randn(60, 5, generator=rng(11), dtype=torch.float64)
        @ torch.linalg.cholesky(covariance(5, 12)).mT
    )
    C = torch.cov(x.mT, correction=0)
    generator, k = rng(13), 10
    sketches = torch.stack([sketched_covariance(x, k, generator=generator) for _ in range(3000)])
    error = ((sketches - C) ** 2).sum((1, 2)).mean().sqrt() / torch.linalg.matrix_norm(C)
    assert float(error) == pytest.approx(sketch_error(C, k), rel=0.05)
    assert float(error) != pytest.approx(sketch_error(C, 4 * k), rel=0.3)
    assert (sketches.mean(0) - C).abs().max() < 0.05


def test_projected_squared_norm_and_its_law():
    v, h = (torch.randn(50, d, generator=rng(d), dtype=torch.float64) for d in (6, 4))
    C = (v - v.mean(0)).mT @ (h - h.mean(0)) / 50
    generator, k = rng(14), 5
    values = torch.stack(
        [projected_squared_norm(v, h, k, generator=generator) for _ in range(4000)]
    )
    exact = float((C**2).sum())
    assert float(values.mean()) == pytest.approx(exact, rel=0.03)
    assert float(values.std()) / exact == pytest.approx(projected_norm_error(C, k), rel=0.06)
    assert float(values.std()) / exact != pytest.approx(projected_norm_error(C, 2 * k), rel=0.2)


def test_projection_sizes_are_checked():
    with pytest.raises(ValueError, match="k >= 1"):
        projection(0, 3)


def test_updating_keeps_no_graph():
    """Outputs of a layer carry one, which would grow with every batch."""
    linear, whitening = torch.nn.Linear(4, 4).double(), EASI(4, 0.01)
    for seed in range(3):
        y = whitening.update(linear(torch.randn(6, 4, generator=rng(seed), dtype=torch.float64)))
    assert not whitening.B.requires_grad and not y.requires_grad
