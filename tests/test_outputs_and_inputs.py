"""What models give and take: outputs of any shape through one selector, inputs in several parts,
masks, weights, soft labels; each against the same written with plain rows.
"""

import math
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from natcompanion.likelihoods import Bernoulli, Categorical, FromNLL, Gaussian, Weighted
from natcompanion.metrics import (
    CovarianceOperator,
    FisherOperator,
    MonteCarloOperator,
    empirical_fisher,
    fisher,
    gauss_newton,
    gradient_covariance,
    kronecker_factors,
    monte_carlo_fisher,
    per_example_gradients,
)
from natcompanion.optim import (
    KFAC,
    TONGA,
    HessianFree,
    KrylovSubspaceDescent,
    NaturalGradient,
    Newton,
    SampleSpaceNaturalGradient,
)

N, T, D, O = 3, 4, 2, 3


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def labels(*shape, seed=1):
    return torch.randint(O, shape, generator=rng(seed))


def language_model():
    """From (n, T, D) to (n, T, o): positions do not see one another."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, O)).double()


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


class Named(NamedTuple):
    loss: None
    logits: torch.Tensor


class Wrapped(nn.Module):
    """A model that returns its outputs in some other form."""

    def __init__(self, form):
        super().__init__()
        self.net, self.form = language_model(), form

    def forward(self, x):
        return self.form(self.net(x))


FORMS = {
    "tuple": (lambda r: (r, 0.0), lambda found: found[0]),
    "dictionary": (lambda r: {"logits": r}, lambda found: found["logits"]),
    "object": (lambda r: Named(None, r), lambda found: found.logits),
    "channels first": (lambda r: r.movedim(-1, 1), lambda found: found.movedim(1, -1)),
    "images, channels first": (
        lambda r: r.unflatten(1, (2, 2)).movedim(-1, 1),
        lambda found: found.movedim(1, -1).flatten(1, 2),
    ),
}


# ---- Outputs


def test_positions_are_summed_within_an_example():
    """An example of T positions has T times the metric of one position; of rows alone, the mean."""
    x, t, model = rows(N, T, D), labels(N, T), language_model()
    flat = (model, x.flatten(0, 1))
    for likelihood in (Categorical(), Bernoulli(), Gaussian(0.5)):
        whole = fisher(model, x, likelihood)
        close(whole, T * fisher(*flat, likelihood))
        close(FisherOperator(model, x, likelihood).dense(), whole)
        v = rows(len(whole), seed=3)
        close(FisherOperator(model, x, likelihood) @ v, whole @ v)
        close(FisherOperator(model, x, likelihood).diagonal(), whole.diagonal())
    likelihood = Categorical()
    close(gauss_newton(model, x, t, likelihood), fisher(model, x, likelihood))
    g = per_example_gradients(model, *flat[1:], t.flatten(), likelihood).unflatten(0, (N, T))
    close(per_example_gradients(model, x, t, likelihood), g.sum(1))
    U = empirical_fisher(model, x, t, likelihood)
    close(U, g.sum(1).mT @ g.sum(1) / N)
    assert (U - g.flatten(0, 1).mT @ g.flatten(0, 1) / N).abs().max() > 1e-3  # sums come first
    close(
        CovarianceOperator(model, x, t, likelihood).dense(),
        gradient_covariance(model, x, t, likelihood),
    )
    drawn = monte_carlo_fisher(model, x, likelihood, samples=4000, generator=rng(4))
    assert (drawn - fisher(model, x, likelihood)).norm() < 0.1 * drawn.norm()


@pytest.mark.parametrize("form", FORMS)
def test_a_selector_finds_the_outputs(form):
    make, output = FORMS[form]
    x, t, model = rows(N, T, D), labels(N, T), Wrapped(make)
    expected = fisher(model.net, x, Categorical())
    close(fisher(model, x, Categorical(), output=output), expected)
    close(FisherOperator(model, x, Categorical(), output=output).dense(), expected)
    close(gauss_newton(model, x, t, Categorical(), output=output), expected)
    U = empirical_fisher(model.net, x, t, Categorical())
    close(empirical_fisher(model, x, t, Categorical(), output=output), U)
    operator = CovarianceOperator(model, x, t, Categorical(), centred=False, output=output)
    close(operator.dense(), U)
    ours = kronecker_factors(model, x, Categorical(), output=output)
    for name, factors in kronecker_factors(model.net, x, Categorical()).items():
        close(ours[f"net.{name}"].A, factors.A)
        close(ours[f"net.{name}"].B, factors.B)


@pytest.mark.parametrize("form", ["tuple", "dictionary", "object"])
def test_without_it_the_message_names_it(form):
    with pytest.raises(ValueError, match="output=lambda found"):
        fisher(Wrapped(FORMS[form][0]), rows(N, T, D), Categorical())


def test_images_ask_where_the_classes_are():
    """Nothing tells (n, o, h, w) from (n, h, w, o); where it does not matter nothing is asked."""
    model, x = Wrapped(FORMS["images, channels first"][0]), rows(N, T, D)
    with pytest.raises(ValueError, match="channels first"):
        fisher(model, x, Categorical())
    wrong = fisher(model, x, Categorical(), output=lambda r: r)
    right = fisher(model, x, Categorical(), output=lambda r: r.movedim(1, -1))
    close(right, fisher(model.net, x, Categorical()))
    assert (wrong - right).abs().max() > 1e-3
    close(fisher(model, x, Bernoulli()), fisher(model.net, x, Bernoulli()))


def test_outputs_without_a_dimension():
    model = nn.Sequential(nn.Linear(D, 1), nn.Flatten(0)).double()
    x, t = rows(N, D), rows(N, seed=2)
    assert model(x).shape == (N,)
    for likelihood, target in ((Gaussian(), t), (Bernoulli(), (t > 0).double())):
        close(fisher(model, x, likelihood), fisher(model[0], x, likelihood))
        for y in (target, target[:, None]):
            close(
                empirical_fisher(model, x, y, likelihood),
                empirical_fisher(model[0], x, target[:, None], likelihood),
            )


# ---- Inputs


class Masked(nn.Module):
    """Takes several inputs."""

    def __init__(self):
        super().__init__()
        self.net = language_model()

    def forward(self, x, mask, scale=1.0):
        return self.net(x) * mask.unsqueeze(-1) * scale


def masked():
    mask = (rows(N, T, seed=6) > -0.3).double()
    return Masked(), rows(N, T, D), mask, labels(N, T)


def test_tuples_and_dictionaries_are_the_arguments_of_the_model():
    model, x, mask, t = masked()

    class Bound(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, joined):
            return self.inner(joined[..., :D], joined[..., D], 2.0)

    plain, joined = Bound(), torch.cat([x, mask.unsqueeze(-1)], -1)
    expected = fisher(plain, joined, Categorical())
    named = {"mask": mask, "x": x, "scale": 2.0}
    for given in (named, (x, mask, 2.0)):
        close(fisher(model, given, Categorical()), expected)
        close(
            per_example_gradients(model, given, t, Categorical()),
            per_example_gradients(plain, joined, t, Categorical()),
        )
        factors = kronecker_factors(model, given, Categorical())
        for name, other in kronecker_factors(plain, joined, Categorical()).items():
            close(factors[name.removeprefix("inner.")].B, other.B)
    close(FisherOperator(model, named, Categorical()).dense(), expected)
    drawn = [
        MonteCarloOperator(m, z, Categorical(), generator=rng(3)).dense()
        for m, z in ((model, named), (plain, joined))
    ]
    close(*drawn)
    assert (fisher(model, {**named, "scale": 1.0}, Categorical()) - expected).abs().max() > 1e-3


def test_a_loader_of_inputs_and_targets():
    model, x, mask, t = masked()
    whole = FisherOperator(model, {"x": x, "mask": mask}, Categorical()).dense()
    pairs = [((x[:1], mask[:1]), t[:1]), ({"x": x[1:], "mask": mask[1:]}, t[1:])]
    close(FisherOperator(model, pairs, Categorical()).dense(), whole)
    C = CovarianceOperator(model, pairs, None, Categorical()).dense()
    close(C, gradient_covariance(model, (x, mask), t, Categorical()))
    nested = DataLoader([((a, b), c) for a, b, c in zip(x, mask, t, strict=True)], 2)
    close(FisherOperator(model, nested, Categorical()).dense(), whole)
    loader = DataLoader(TensorDataset(x, t), 2)
    close(
        FisherOperator(model.net, loader, Categorical()).dense(),
        fisher(model.net, x, Categorical()),
    )
    dictionaries = [{"x": x[:2], "mask": mask[:2]}, {"x": x[2:], "mask": mask[2:]}]
    close(FisherOperator(model, dictionaries, Categorical()).dense(), whole)


def test_inputs_that_will_not_do():
    model, x, mask, _ = masked()
    with pytest.raises(ValueError, match=r"tuple of two tensors.*dictionary"):
        FisherOperator(model, (x, mask), Categorical())
    with pytest.raises(ValueError, match="same number of examples"):
        fisher(model, (x, mask[:2]), Categorical())
    with pytest.raises(ValueError, match="finite numbers"):
        fisher(model, (x, mask * torch.nan), Categorical())
    with pytest.raises(ValueError, match="same number of examples"):
        fisher(model, {}, Categorical())


# ---- Masks, weights, soft labels


def test_ignored_positions_are_left_out():
    x, t, model = rows(N, T, D), labels(N, T), language_model()
    ignored = torch.zeros(N, T, dtype=torch.bool)
    ignored[0, 1:], ignored[2, 0] = True, True
    likelihood, keep = Categorical(ignore_index=-100), ~ignored
    masked = t.masked_fill(ignored, -100)
    r = model(x).detach()
    loss = likelihood.nll(r, masked)
    close(loss[1], Categorical().nll(r[1], t[1]).sum())
    close(loss.sum(), Categorical().nll(r[keep], t[keep]).sum())
    close(loss.sum() / keep.sum(), F.cross_entropy(r.movedim(-1, 1), masked))
    alone = per_example_gradients(model, x[keep], t[keep], Categorical())
    close(per_example_gradients(model, x, masked, likelihood).sum(0), alone.sum(0))
    G = gauss_newton(model, x, masked, likelihood)
    close(G, fisher(model, x[keep], Categorical()) * keep.sum() / N)
    for metric in (
        fisher(model, x, Weighted(Categorical(), keep.double())),
        FisherOperator(model, x, Weighted(Categorical(), keep.double())).dense(),
    ):
        close(metric, G)
    assert (fisher(model, x, likelihood) - G).abs().max() > 1e-3  # a metric reads no target
    with pytest.raises(ValueError, match="class numbers"):
        Categorical().nll(r, masked)


def test_weights_count_examples_several_times():
    x, t, model = rows(N, T, D), labels(N, T), language_model()
    w = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    twice = torch.tensor([0, 1, 1])
    for own, target in (
        (Categorical(), t),
        (Gaussian(), rows(N, T, O, seed=7)),
        (Bernoulli(), (rows(N, T, O, seed=7) > 0).double()),
    ):
        likelihood = Weighted(own, w)
        close(fisher(model, x, likelihood), fisher(model, x[twice], own))
        close(
            FisherOperator(model, x, likelihood) @ torch.ones(27).double(),
            FisherOperator(model, x[twice], own) @ torch.ones(27).double(),
        )
        r = model(x).detach()
        close(likelihood.nll(r, target).sum(), own.nll(r[twice], target[twice]).sum())
        close(likelihood.kl(r, 2 * r).sum(), own.kl(r[twice], 2 * r[twice]).sum())
        close(
            gauss_newton(model, x, target, likelihood),
            gauss_newton(model, x[twice], target[twice], own),
        )
    likelihood = Weighted(Categorical(), w)
    drawn = monte_carlo_fisher(model, x, likelihood, samples=4000, generator=rng(4))
    exact = fisher(model, x, likelihood)
    assert (drawn - exact).norm() < 0.1 * exact.norm()
    squared = fisher(model, x, Weighted(Categorical(), w**2))
    assert (drawn - squared).norm() > 0.3 * exact.norm()  # negative control
    for wrong in (torch.ones(2), torch.ones(N, 2), -w):
        with pytest.raises(ValueError, match="weights: expected"):
            fisher(model, x, Weighted(Categorical(), wrong))


def test_soft_labels():
    x, t, model = rows(N, T, D), labels(N, T), language_model()
    soft = torch.softmax(rows(N, T, O, seed=8), -1)
    r = model(x).detach()
    close(
        Categorical().nll(r, soft).sum(),
        F.cross_entropy(r.movedim(-1, 1), soft.movedim(-1, 1), reduction="sum"),
    )
    hard = F.one_hot(t, O).double()
    close(Categorical().nll(r, hard), Categorical().nll(r, t))
    mixed = sum(
        soft.flatten(0, 1)[:, c, None]
        * per_example_gradients(model, x.flatten(0, 1), torch.full((N * T,), c), Categorical())
        for c in range(O)
    )
    found = per_example_gradients(model, x.flatten(0, 1), soft.flatten(0, 1), Categorical())
    close(found, mixed)
    close(gauss_newton(model, x, soft, Categorical()), fisher(model, x, Categorical()))
    with pytest.raises(ValueError, match="sum to 1"):
        Categorical().nll(r, 2 * soft)


# ---- Likelihoods of one's own


def test_nll_alone_at_positions():
    """The Poisson and the Bernoulli model from nll alone: the same as by brute force."""

    class OwnBernoulli:
        def nll(self, r, t):
            return (F.softplus(r) - t * r).sum(-1)

    x, model = rows(N, T, D), language_model()
    t = (rows(N, T, O, seed=9) > 0).double()
    close(fisher(model, x, OwnBernoulli()), fisher(model, x, Bernoulli()))
    close(FisherOperator(model, x, OwnBernoulli()).dense(), fisher(model, x, Bernoulli()))
    close(empirical_fisher(model, x, t, OwnBernoulli()), empirical_fisher(model, x, t, Bernoulli()))
    own = FromNLL(OwnBernoulli().nll, sample=Bernoulli().sample, draws=4000)
    r = model(x).detach()
    gap = own.fisher(r) - torch.diag_embed(Bernoulli().fisher_product(r, torch.ones_like(r)))
    assert gap.abs().max() < 0.05
    canonical = FromNLL(OwnBernoulli().nll)
    close(canonical.kl(r, 2 * r), Bernoulli().kl(r, 2 * r))
    close(canonical.mean(r), Bernoulli().mean(r))
    close(fisher(model, x, Weighted(canonical, torch.ones(N, T))), fisher(model, x, Bernoulli()))


# ---- Scales


def test_the_table_of_scales():
    """Every row of the table in the docstring of the module."""
    r, t = rows(N, T, O), labels(N, T)
    y, b = rows(N, T, O, seed=5), (rows(N, T, O, seed=5) > 0).double()
    second, w = r.movedim(-1, 1), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    own = Categorical()
    close(nn.CrossEntropyLoss()(second, t), own.nll(r, t).mean() / T)
    close(nn.CrossEntropyLoss(reduction="sum")(second, t), own.nll(r, t).sum())
    close(
        nn.CrossEntropyLoss(ignore_index=1)(second, t),
        Categorical(ignore_index=1).nll(r, t).sum() / (t != 1).sum(),
    )
    smooth = 0.9 * F.one_hot(t, O).double() + 0.1 / O
    close(nn.CrossEntropyLoss(label_smoothing=0.1)(second, t), own.nll(r, smooth).mean() / T)
    close(
        nn.CrossEntropyLoss(weight=w)(second, t), Weighted(own, w[t]).nll(r, t).sum() / w[t].sum()
    )
    log = math.log(2 * math.pi)
    close(nn.MSELoss()(r, y), 2 / (T * O) * Gaussian().nll(r, y).mean() - log)
    close(nn.MSELoss(reduction="sum")(r, y), 2 * Gaussian().nll(r, y).sum() - r.numel() * log)
    close(nn.BCEWithLogitsLoss()(r, b), Bernoulli().nll(r, b).mean() / (T * O))
    close(nn.BCEWithLogitsLoss(reduction="sum")(r, b), Bernoulli().nll(r, b).sum())
    model, x = language_model(), rows(N, T, D)
    J = torch.func.jacrev(lambda theta: torch.func.functional_call(model, theta, (x,)).flatten())(
        {k: p.detach() for k, p in model.named_parameters()}
    )
    J = torch.cat([j.flatten(1) for j in J.values()], 1)
    close(2 / (T * O) * fisher(model, x, Gaussian()), 2 * J.mT @ J / (N * T * O))  # of MSELoss


# ---- Optimizers


@pytest.mark.parametrize(
    "make",
    [
        lambda m, **o: NaturalGradient(m, Categorical(), 0.1, **o),
        lambda m, **o: TONGA(m, Categorical(), 0.1, damping=0.1, **o),
        lambda m, **o: Newton(m, Categorical(), 0.1, damping=1.0, **o),
        lambda m, **o: HessianFree(m, Categorical(), 0.1, **o),
        lambda m, **o: KrylovSubspaceDescent(m, Categorical(), **o),
        lambda m, **o: SampleSpaceNaturalGradient(m, Categorical(), 0.1, damping=0.1, **o),
    ],
    ids=["NaturalGradient", "TONGA", "Newton", "HessianFree", "Krylov", "SampleSpace"],
)
def test_steps_on_several_inputs_and_selected_outputs(make):
    """Equal to those on one tensor in and rows out."""
    x, t = rows(N, T, D), labels(N, T)
    mask = torch.ones(N, T, dtype=torch.float64)

    class Tuple(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Masked()

        def forward(self, x, mask):
            return self.net(x, mask), None

    ends = []
    for given in (x, {"x": x, "mask": mask}, (x, mask)):
        several = given is not x
        model = Tuple() if several else language_model()
        optimizer = make(model, **({"output": lambda found: found[0]} if several else {}))
        for _ in range(2):
            loss = optimizer.step(given, t)
        assert loss == pytest.approx(float(optimizer.last.loss))
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    close(ends[1], ends[0], 1e-8)
    close(ends[2], ends[0], 1e-8)
    start = torch.cat([p.detach().flatten() for p in language_model().parameters()])
    assert (ends[0] - start).abs().max() > 1e-4


def test_factors_of_several_inputs():
    model, x, mask, t = masked()
    optimizer = KFAC(model, Categorical(), 0.1, damping=0.1)
    optimizer.refresh({"x": x, "mask": mask})
    Categorical().nll(model(x, mask), t).mean().backward()
    optimizer.step()
    expected = kronecker_factors(Masked(), {"x": x, "mask": mask}, Categorical())
    for name, factors in expected.items():
        close(optimizer.factors[name].A, factors.A)


# ---- Derivatives inside


def test_models_that_differentiate_inside():
    """A residual of a differential equation, u'' - u: its Jacobian by autograd, row by row."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.u = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()

        def forward(self, x):
            x = x.detach().requires_grad_()
            u = self.u(x)
            (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            return torch.autograd.grad(du.sum(), x, create_graph=True)[0] - u

    model, x = Residual(), rows(5, 1)
    leaves = list(model.parameters())
    J = torch.stack(
        [
            torch.cat(
                [
                    g.flatten()
                    for g in torch.autograd.grad(
                        r, leaves, retain_graph=True, materialize_grads=True
                    )
                ]
            )
            for r in model(x)[:, 0]
        ]
    )
    close(fisher(model, x, Gaussian()), J.mT @ J / 5)
    operator = FisherOperator(model, x, Gaussian())
    v = rows(len(J.mT), seed=2)
    close(operator @ v, J.mT @ (J @ v) / 5)
    close(operator.diagonal(), J.square().mean(0))
    t = torch.zeros(5, 1, dtype=torch.float64)
    close(gauss_newton(model, x, t, Gaussian()), J.mT @ J / 5)
    before = Gaussian().nll(model(x), t).mean()
    optimizer = SampleSpaceNaturalGradient(model, Gaussian(), 1.0, damping=1e-3)
    optimizer.step(x, t)
    assert optimizer.last.loss_after < float(before.detach()) - 1e-3
    other = NaturalGradient(model, Gaussian(), 0.5, damping=1e-2)
    other.step(x, t)
    assert other.last.loss_after < other.last.loss
