"""Likelihoods: scale pinned by the KL divergence, stable far from zero, clear about bad targets."""

import pytest
import torch

from natcompanion import reference
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian

ALL = [Gaussian(), Gaussian(0.5), Bernoulli(), Categorical()]
named = pytest.mark.parametrize("likelihood", ALL, ids=repr)


def outputs(n=5, o=3, scale=1.0, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, o, generator=g, dtype=dtype)


def dense(likelihood, r):
    root = likelihood.fisher_root(r)
    return root @ root.mT


@named
def test_fisher_is_the_curvature_of_the_kl(likelihood):
    for r in outputs().split(1):

        def divergence(s, r=r):
            return likelihood.kl(r, s).sum()

        hessian = torch.autograd.functional.hessian(divergence, r)[0, :, 0, :]
        torch.testing.assert_close(dense(likelihood, r)[0], hessian, rtol=1e-12, atol=1e-13)


@named
def test_root_and_product_agree(likelihood):
    r, u = outputs(), outputs(seed=1)
    product = (dense(likelihood, r) @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(likelihood.fisher_product(r, u), product, rtol=1e-13, atol=1e-14)


@named
def test_fisher_is_the_mean_outer_product_of_scores(likelihood):
    for r in outputs(n=3):
        total = torch.zeros(3, 3, dtype=torch.float64)
        for label, p in reference.labels(likelihood, r):
            leaf = r.clone().requires_grad_()
            (g,) = torch.autograd.grad(
                likelihood.nll(leaf.unsqueeze(0), label.unsqueeze(0)).sum(), leaf
            )
            total += p * torch.outer(g, g)
        torch.testing.assert_close(
            dense(likelihood, r.unsqueeze(0))[0], total, rtol=1e-12, atol=1e-13
        )


@named
def test_kl_is_the_sum_over_labels(likelihood):
    r, s = outputs(n=1), outputs(n=1, seed=2)
    summed = sum(
        p * (likelihood.nll(s, t.unsqueeze(0)) - likelihood.nll(r, t.unsqueeze(0)))
        for t, p in reference.labels(likelihood, r[0])
    )
    torch.testing.assert_close(likelihood.kl(r, s), summed, rtol=1e-12, atol=1e-13)


def test_nll_is_the_negative_log_of_a_density():
    r = outputs(n=1)
    for likelihood in (Bernoulli(), Categorical()):
        total = sum(
            torch.exp(-likelihood.nll(r, t.unsqueeze(0)))
            for t, _ in reference.labels(likelihood, r[0])
        )
        torch.testing.assert_close(total, torch.ones(1, dtype=torch.float64))
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64).unsqueeze(1)
    density = torch.exp(-Gaussian(0.7).nll(torch.zeros_like(grid) + 0.3, grid))
    assert float(torch.trapezoid(density, grid[:, 0])) == pytest.approx(1, abs=1e-12)


def test_printed_gaussian_scale_is_wrong():
    r = outputs(n=1)
    beta = 0.5
    delta = 1e-3 * outputs(n=1, seed=3)
    kl = float(Gaussian(beta).kl(r, r + delta))
    assert kl == pytest.approx(
        0.5 * float((delta * Gaussian(beta).fisher_product(r, delta)).sum()), rel=1e-9
    )
    printed = 0.5 * beta**2 * float(delta.square().sum())  # revisiting Eq. 9 and 24
    assert printed == pytest.approx(kl / 16, rel=1e-9)


@named
@pytest.mark.parametrize("scale", [18.0, 50.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_confident_outputs_stay_finite(likelihood, scale, dtype):
    r = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]], dtype=dtype) * scale
    s = r.flip(-1)
    t = (
        torch.tensor([1, 0])
        if isinstance(likelihood, Categorical)
        else torch.tensor([[1.0, 0, 1], [0, 1, 0]])
    )
    for value in (
        likelihood.mean(r),
        likelihood.nll(r, t),
        likelihood.kl(r, s),
        likelihood.fisher_root(r),
        likelihood.fisher_product(r, torch.ones_like(r)),
    ):
        assert value.dtype == dtype
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()], ids=repr)
@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("step", [1e-5, 1e-3, 0.1, 1.0])
def test_kl_of_small_steps_keeps_its_digits(likelihood, scale, step):
    r = outputs(200, 5, scale, torch.float32)
    s = r + step * outputs(200, 5, dtype=torch.float32, seed=1)
    kl, exact = likelihood.kl(r, s), likelihood.kl(r.double(), s.double())
    assert bool((kl >= 0).all()) and bool((exact >= 0).all())
    torch.testing.assert_close(kl.double(), exact, rtol=1e-5, atol=1e-33)
    if scale <= 10 and step >= 0.1:  # where the definition keeps its digits in float64, they agree
        R, S = r.double(), s.double()
        labels = [(R, S)] if isinstance(likelihood, Categorical) else [(R, S), (-R, -S)]
        log = (
            torch.log_softmax
            if isinstance(likelihood, Categorical)
            else lambda z, _: z.sigmoid().log()
        )
        defined = sum((log(a, 1).exp() * (log(a, 1) - log(b, 1))).sum(1) for a, b in labels)
        torch.testing.assert_close(exact, defined, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()], ids=repr)
@pytest.mark.parametrize("step", [1e-4, 1.0, 200.0])
def test_kl_has_the_right_gradients(likelihood, step):
    r = outputs(20, 4, scale=3.0).requires_grad_()
    s = (r.detach() + step * outputs(20, 4, seed=1)).requires_grad_()
    by_r, by_s = torch.autograd.grad(likelihood.kl(r, s).sum(), (r, s))
    torch.testing.assert_close(by_s, likelihood.mean(s) - likelihood.mean(r), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(by_r, likelihood.fisher_product(r, r - s), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()], ids=repr)
def test_kl_of_opposite_certainties_is_finite(likelihood):
    r = torch.tensor([[1e4, -1e4, 0.0, 5.0], [-1e4, -1e4, 1e4, 1e4]], requires_grad=True)
    kl = likelihood.kl(r, -r)
    assert bool(torch.isfinite(kl).all()) and bool((kl > 9e3).all())
    assert bool(torch.isfinite(torch.autograd.grad(kl.sum(), r)[0]).all())
    assert not bool(likelihood.kl(r, r).any())


def test_dividing_by_the_output_is_not_stable():
    r = torch.tensor([[18.0]])
    y = torch.sigmoid(r)
    assert not torch.isfinite(1 / (y * (1 - y))).all()  # revisiting Eq. 10 taken literally
    exact = torch.sigmoid(r.double()) * torch.sigmoid(-r.double())
    assert float(Bernoulli().fisher_product(r, torch.ones_like(r))) == pytest.approx(
        float(exact), rel=1e-6
    )


def test_confident_softmax_keeps_its_digits():
    r32, u32 = torch.tensor([[30.0, 0.0, -3.0]]), torch.tensor([[2.0, -1.0, 4.0]])
    r, u = r32.double(), u32.double()
    y = torch.softmax(r, 1)
    others = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]]).double()
    exact = torch.stack(
        [(y[0, k] * y[0] * (u[0, k] - u[0]) * (1 - others[k])).sum() for k in range(3)]
    )
    torch.testing.assert_close(
        Categorical().fisher_product(r32, u32)[0].double(), exact, rtol=1e-5, atol=0
    )
    y32 = torch.softmax(r32, 1)
    naive = y32 * (u32 - (y32 * u32).sum())
    assert abs(float(naive[0, 0]) / float(exact[0]) - 1) > 0.5
    root = Categorical().fisher_root(r32)
    product = (root @ (root.mT @ u32.unsqueeze(-1))).squeeze()
    assert float(root[0, 0, 0]) == pytest.approx(float(1 - y[0, 0]), rel=1e-5)
    assert torch.isfinite(product).all()


@named
def test_samples_have_the_mean_and_fisher_of_the_model(likelihood):
    r = outputs(n=1).expand(40000, -1)
    t = likelihood.sample(r, generator=torch.Generator().manual_seed(0))
    onehot = (
        torch.nn.functional.one_hot(t, 3).double() if isinstance(likelihood, Categorical) else t
    )
    torch.testing.assert_close(onehot.mean(0), likelihood.mean(r[0]), rtol=0, atol=0.03)
    again = likelihood.sample(r, generator=torch.Generator().manual_seed(0))
    assert torch.equal(t, again)


def test_bad_targets_are_named():
    r = outputs(n=2)
    with pytest.raises(ValueError, match="class numbers from 0 to 2, got 0 to 3"):
        Categorical().nll(r, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="integer tensor of shape"):
        Categorical().nll(r, torch.zeros(2))
    with pytest.raises(ValueError, match="integer tensor of shape"):
        Categorical().nll(r, torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"numbers in \[0, 1\]"):
        Bernoulli().nll(r, torch.full((2, 3), 2.0))
    for likelihood in (Gaussian(), Bernoulli()):
        with pytest.raises(ValueError, match=r"shape of the model's output \(2, 3\), got \(2,\)"):
            likelihood.nll(r, torch.zeros(2))
    for beta in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="beta"):
            Gaussian(beta)
