"""Dense metrics: brute force over labels, the Hessian of the KL, properties; and the wrong forms
that must differ.
"""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian

ALL = [Gaussian(), Gaussian(0.5), Bernoulli(), Categorical()]
named = pytest.mark.parametrize("likelihood", ALL, ids=repr)


def mlp(sizes=(3, 4, 3), seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).to(dtype)


def batch(n=5, shape=(3,), o=3, seed=1, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=g, dtype=dtype)


def target(likelihood, n=5, o=3, seed=2):
    g = torch.Generator().manual_seed(seed)
    if isinstance(likelihood, Categorical):
        return torch.randint(o, (n,), generator=g)
    return torch.rand(n, o, generator=g, dtype=torch.float64)


def relative(a, b):
    return float((a - b).norm() / b.norm())


class Tied(nn.Module):
    """One weight matrix used twice, once transposed, and once more by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(3, 4, bias=False)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(3, 4, bias=False)
        self.third.weight = self.first.weight

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.second(h)[:, :3] + torch.tanh(h @ self.first.weight) + self.third(x)[:, 1:]


class Recurrent(nn.Module):
    """The last state of a recurrent layer, whose forward pass reads a private list of weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.rnn = nn.LSTM(3, 2, batch_first=True)
        self.out = nn.Linear(2, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def conv(stride=2, padding=1, groups=1, dilation=1, mode="zeros", inplace=False, seed=0):
    torch.manual_seed(seed)
    kwargs = {
        "stride": stride,
        "padding": padding,
        "groups": groups,
        "dilation": dilation,
        "padding_mode": mode,
    }
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, **kwargs), nn.ReLU(inplace=inplace), nn.Flatten(), nn.LazyLinear(3)
    )


def networks():
    """Every kind of network the dense metrics must treat rightly: (name, model, inputs)."""
    frozen = mlp()
    frozen[0].bias.requires_grad_(False)
    norm = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 3)
    )
    torch.manual_seed(0)
    norm(torch.randn(20, 3))  # running statistics away from 0 and 1
    twice = nn.Linear(3, 3)
    models = [
        ("mlp", mlp(), (3,)),
        ("deep", mlp((3, 3, 2, 3)), (3,)),
        ("linear", mlp((3, 3)), (3,)),
        ("frozen", frozen, (3,)),
        ("norm", norm, (3,)),
        ("same layer twice", nn.Sequential(twice, nn.Tanh(), twice), (3,)),
        ("tied", Tied(), (3,)),
        ("no bias", nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3)), (3,)),
        (
            "relu in place",
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)),
            (3,),
        ),
        ("layer norm", nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)), (3,)),
        ("convolution", conv(), (2, 5, 5)),
        ("convolution in place", conv(inplace=True), (2, 5, 5)),
        ("grouped convolution", conv(groups=2, padding="same", stride=1), (2, 4, 4)),
        ("dilated, reflecting", conv(dilation=2, padding=1, mode="reflect", stride=1), (2, 5, 5)),
        (
            "pooled",
            nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
            (2, 5, 5),
        ),
        ("recurrent", Recurrent(), (4, 3)),
        (
            "shared over a sequence",
            nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)),
            (4, 3),
        ),
    ]
    for name, model, shape in models:
        model.double()
        model.eval()
        model(batch(2, shape))
        yield pytest.param(model, batch(4, shape), id=name)


NETWORKS = list(networks())


@named
@pytest.mark.parametrize(("model", "x"), NETWORKS)
def test_fisher_equals_brute_force_over_labels(model, x, likelihood):
    brute = reference.fisher(model, x, likelihood)
    torch.testing.assert_close(metrics.fisher(model, x, likelihood), brute, rtol=1e-11, atol=1e-13)


@named
def test_fisher_is_the_hessian_of_the_kl(likelihood):
    model, x = mlp(), batch()
    g = metrics.fisher(model, x, likelihood)
    assert relative(g, reference.kl_hessian(model, x, likelihood)) < 1e-12
    delta = 1e-4 * torch.randn(
        len(g), dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    assert float(reference.kl(model, x, likelihood, delta)) == pytest.approx(
        float(delta @ g @ delta) / 2, rel=1e-3
    )


def test_printed_gaussian_scale_fails():
    model, x = mlp(), batch()
    for beta in (0.5, 2.0):
        true = metrics.fisher(model, x, Gaussian(beta))
        jj = metrics.fisher(model, x, Gaussian())
        assert relative(jj / beta**2, true) < 1e-14
        assert relative(beta**2 * jj, true) > 0.9  # revisiting Eq. 9 and 24 as printed


@named
def test_gauss_newton_equals_fisher(likelihood):
    model, x, t = mlp(), batch(), target(likelihood)
    g = metrics.fisher(model, x, likelihood)
    assert relative(metrics.gauss_newton(model, x, t, likelihood), g) < 1e-12
    assert (
        relative(reference.loss_hessian(model, x, t, likelihood), g) > 1e-3
    )  # the Hessian itself does not


@named
def test_metrics_are_symmetric_to_the_last_bit(likelihood):
    """What an eigendecomposition reads of one triangle holds of the other: to the last bit where
    two different factors are multiplied, to rounding where the product is a Gram matrix.
    """
    model, x, t = mlp((7, 6, 5)), batch(30, (7,)), target(likelihood, 30, 5)
    G = metrics.gauss_newton(model, x, t, likelihood)
    assert torch.equal(G, G.mT)
    for G in (
        metrics.fisher(model, x, likelihood),
        metrics.empirical_fisher(model, x, t, likelihood),
        metrics.gradient_covariance(model, x, t, likelihood),
    ):
        assert relative(G, G.mT) < 1e-13


def test_gauss_newton_equals_the_hessian_of_a_linear_model():
    model, x = mlp((3, 3)), batch()
    for likelihood in ALL:
        t = target(likelihood)
        hessian = reference.loss_hessian(model, x, t, likelihood)
        assert relative(metrics.gauss_newton(model, x, t, likelihood), hessian) < 1e-12


@named
@pytest.mark.parametrize(("model", "x"), NETWORKS)
def test_gradient_covariances_equal_loops(model, x, likelihood):
    t = target(likelihood, len(x))
    u = metrics.empirical_fisher(model, x, t, likelihood)
    c = metrics.gradient_covariance(model, x, t, likelihood)
    torch.testing.assert_close(
        u, reference.empirical_fisher(model, x, t, likelihood), rtol=1e-11, atol=1e-13
    )
    torch.testing.assert_close(
        c, reference.gradient_covariance(model, x, t, likelihood), rtol=1e-11, atol=1e-13
    )


@named
def test_covariances_differ_by_the_mean_gradient(likelihood):
    model, x, t = mlp(), batch(), target(likelihood)
    u = metrics.empirical_fisher(model, x, t, likelihood)
    c = metrics.gradient_covariance(model, x, t, likelihood)
    g = metrics.per_example_gradients(model, x, t, likelihood).mean(0)
    torch.testing.assert_close(u, c + torch.outer(g, g), rtol=1e-12, atol=1e-14)


def test_wrong_fishers_differ():
    model, x, likelihood = mlp(), batch(), Categorical()
    g = metrics.fisher(model, x, likelihood)
    t = target(likelihood)
    mean_gradient = metrics.per_example_gradients(model, x, t, likelihood).mean(0)
    assert (
        relative(torch.outer(mean_gradient, mean_gradient), g) > 0.3
    )  # square of the mean gradient
    assert (
        relative(metrics.empirical_fisher(model, x, model(x).argmax(1), likelihood), g) > 0.3
    )  # likeliest labels
    assert relative(metrics.empirical_fisher(model, x, t, likelihood), g) > 0.3  # given labels
    assert relative(g / len(x), g) > 0.3  # divided by n twice
    assert relative(g / 3, g) > 0.3  # mean over the outputs


def test_transposed_kronecker_order_differs():
    model, x = mlp((3, 3)), batch()
    g = metrics.fisher(model, x, Categorical(), parameters=["0.weight"])
    wrong = (
        g.reshape(3, 3, 3, 3).permute(1, 0, 3, 2).reshape(9, 9)
    )  # (input, output) instead of (output, input)
    brute = reference.fisher(model, x, Categorical())[:9, :9]
    assert relative(g, brute) < 1e-12
    assert relative(wrong, brute) > 0.3


@named
def test_monte_carlo_is_unbiased(likelihood):
    model, x = mlp((3, 2, 3)), batch(3)
    g = metrics.fisher(model, x, likelihood)
    generator = torch.Generator().manual_seed(0)
    few = metrics.monte_carlo_fisher(model, x, likelihood, samples=2, generator=generator)
    many = metrics.monte_carlo_fisher(model, x, likelihood, samples=4000, generator=generator)
    assert relative(many, g) < 0.06
    assert relative(few, g) > 0.1
    seeded = [
        metrics.monte_carlo_fisher(
            model, x, likelihood, samples=2, generator=torch.Generator().manual_seed(7)
        )
        for _ in range(2)
    ]
    assert torch.equal(*seeded)


def test_batch_size_and_repetition_do_not_change_the_scale():
    model, x = mlp(), batch()
    g = metrics.fisher(model, x, Categorical())
    torch.testing.assert_close(metrics.fisher(model, x.repeat(3, 1), Categorical()), g)
    singles = sum(metrics.fisher(model, x_i, Categorical()) for x_i in x.split(1)) / len(x)
    torch.testing.assert_close(singles, g)


def test_chunks_change_nothing(monkeypatch):
    model, x = mlp(), batch(7)
    whole = metrics.fisher(model, x, Bernoulli())
    covariance = metrics.gradient_covariance(model, x, target(Bernoulli(), 7), Bernoulli())
    monkeypatch.setattr("natcompanion.metrics.model_function.CHUNK", 200)
    torch.testing.assert_close(metrics.fisher(model, x, Bernoulli()), whole)
    torch.testing.assert_close(
        metrics.gradient_covariance(model, x, target(Bernoulli(), 7), Bernoulli()), covariance
    )


def every_metric(model, x, likelihood, t, **kwargs):
    yield metrics.fisher(model, x, likelihood, **kwargs)
    yield metrics.gauss_newton(model, x, t, likelihood, **kwargs)
    yield metrics.empirical_fisher(model, x, t, likelihood, **kwargs)
    yield metrics.gradient_covariance(model, x, t, likelihood, **kwargs)
    yield metrics.monte_carlo_fisher(model, x, likelihood, **kwargs)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)
    ).double()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    x, t = batch(), target(Categorical())
    for g in every_metric(model, x, Categorical(), t):
        assert not g.requires_grad
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    pickle.loads(pickle.dumps(model))
    with pytest.raises(ValueError, match="x: expected finite"):
        metrics.fisher(model, x / 0, Categorical())
    with pytest.raises(RuntimeError):
        metrics.fisher(model, batch(5, (7,)), Categorical())
    assert [m.training for m in model.modules()] == modes


def test_dropout_and_batchnorm_are_in_evaluation_mode():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)
    ).double()
    in_training = metrics.fisher(model, batch(), Categorical())
    assert torch.equal(in_training, metrics.fisher(model.eval(), batch(), Categorical()))
    without = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
    ).double()
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm1d\) has no running statistics"):
        metrics.fisher(without, batch(), Categorical())


def test_restricted_parameters_are_a_block():
    model, x, t = mlp(), batch(), target(Categorical())
    whole = list(every_metric(model, x, Categorical(), t))
    chosen = list(every_metric(model, x, Categorical(), t, parameters=["2.weight", model[0].bias]))
    index = torch.cat(
        [torch.arange(12, 16), torch.arange(16, 28)]
    )  # in the order of model.parameters()
    for g, part in list(zip(whole, chosen, strict=True))[:4]:
        torch.testing.assert_close(part, g[index][:, index], rtol=1e-10, atol=1e-14)
    with pytest.raises(ValueError, match="1 of the 2 given"):
        metrics.fisher(model, x, Categorical(), parameters=["2.weight", "nothing"])


def test_confident_float32_network_is_finite():
    model = mlp(dtype=torch.float32)
    with torch.no_grad():
        model[2].weight.mul_(1e4)
    x, t = batch(dtype=torch.float32), target(Categorical())
    for likelihood, labels in ((Categorical(), t), (Bernoulli(), target(Bernoulli()).float())):
        for g in every_metric(model, x, likelihood, labels):
            assert g.dtype == torch.float32
            assert torch.isfinite(g).all()


def test_half_precision_is_computed_in_float32():
    model, x = mlp(dtype=torch.bfloat16), batch(dtype=torch.bfloat16)
    g = metrics.fisher(model, x, Categorical())
    assert g.dtype == torch.bfloat16
    wide = metrics.fisher(mlp(dtype=torch.bfloat16).float(), x.float(), Categorical())
    torch.testing.assert_close(g, wide.bfloat16())


def test_non_contiguous_inputs_and_parameters():
    model, x = mlp(), batch(10)
    plain = metrics.fisher(model, x[::2].contiguous(), Categorical())
    torch.testing.assert_close(metrics.fisher(model, x[::2], Categorical()), plain)
    model[0].weight = nn.Parameter(model[0].weight.detach().T.contiguous().T)
    torch.testing.assert_close(metrics.fisher(model, x[::2], Categorical()), plain)


def test_integer_inputs_reach_an_embedding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3)).double()
    x = torch.tensor([[0, 1], [4, 4], [2, 0]])
    torch.testing.assert_close(
        metrics.fisher(model, x, Categorical()), reference.fisher(model, x, Categorical())
    )


def test_layers_that_vmap_cannot_batch():
    class Branch(nn.Linear):
        def forward(self, x):
            r = super().forward(x)
            return r if bool(x.sum() > 0) else 2 * r

    torch.manual_seed(0)
    model = nn.Sequential(Branch(3, 3)).double()
    x = batch(1)
    torch.testing.assert_close(
        metrics.fisher(model, x, Categorical()), reference.fisher(model, x, Categorical())
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, x: (m, x[:0]), "non-empty batch"),
        (lambda m, x: (m, [x]), "non-empty batch"),
        (lambda m, x: (m, x.to(torch.complex128)), "real numbers, got torch.complex128"),
        (lambda m, x: (m, x.float()), "torch.float64 like the model's parameters"),
        (lambda m, x: (m, x * float("nan")), "finite numbers, got 15"),
        (lambda m, x: (nn.Sequential(m, nn.Flatten(0)), x), r"outputs of shape \(5, \.\.\., o\)"),
        (lambda m, x: (m.requires_grad_(False), x), "at least one parameter"),
    ],
)
def test_bad_input_is_named(change, message):
    model, x = change(mlp(), batch())
    with pytest.raises(ValueError, match=message):
        metrics.fisher(model, x, Categorical())


def test_bad_targets_and_parameters_are_named():
    model, x = mlp(), batch()
    with pytest.raises(ValueError, match="class numbers from 0 to 2"):
        metrics.empirical_fisher(model, x, torch.full((5,), 7), Categorical())
    with pytest.raises(ValueError, match="integer tensor of shape"):
        metrics.gauss_newton(model, x, torch.zeros(4, dtype=torch.long), Categorical())
    for likelihood, t in ((Categorical(), [0] * 5), (Gaussian(), None)):
        with pytest.raises(ValueError, match="t: expected .* got (list|NoneType)"):
            metrics.empirical_fisher(model, x, t, likelihood)
    for bad in (float("nan"), float("inf")):
        for metric in (
            metrics.empirical_fisher,
            metrics.gradient_covariance,
            metrics.per_example_gradients,
        ):
            with pytest.raises(ValueError, match="targets with finite gradients"):
                metric(model, x, torch.full((5, 3), bad, dtype=torch.float64), Gaussian())
    for samples in (0, 1.0, True):
        with pytest.raises(ValueError, match="samples"):
            metrics.monte_carlo_fisher(model, x, Categorical(), samples=samples)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite numbers in 0.weight"):
        metrics.fisher(model, x, Categorical())


class Centred(nn.Linear):
    """A layer that subtracts the mean of the batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


def test_examples_that_influence_one_another_are_refused():
    model = nn.Sequential(Centred(3, 3)).double()
    with pytest.raises(ValueError, match="do not influence one another"):
        metrics.fisher(model, batch(), Categorical())
    metrics.fisher(model, batch(1), Categorical())


@pytest.mark.parametrize("n", [3, 4, 5, 20])
@pytest.mark.parametrize("backward", [False, True])
def test_influence_from_earlier_or_later_examples_alone_is_refused(n, backward):
    class Cumulative(nn.Linear):
        """A layer whose first output, or last one, needs its own example only."""

        def forward(self, x):
            r = super().forward(x)
            return r.flip(0).cumsum(0).flip(0) if backward else r.cumsum(0)

    with pytest.raises(ValueError, match="do not influence one another"):
        metrics.fisher(Cumulative(3, 3).double(), batch(n), Categorical())


class Detached(nn.Linear):
    """A layer whose output autograd cannot follow."""

    def forward(self, x):
        return super().forward(x).detach()


def test_outputs_without_a_graph_are_refused():
    model, x = nn.Sequential(Detached(3, 3)).double(), batch()
    for use in (lambda: metrics.FisherOperator(model, x, Categorical()) @ torch.ones(12),):
        with pytest.raises(ValueError, match="outputs that depend on the parameters"):
            use()
    plain, x = nn.Sequential(nn.Linear(3, 3), nn.Identity()).double(), batch()
    plain[1].register_forward_hook(lambda module, args, output: output.detach())
    with pytest.raises(ValueError, match="outputs that depend on the parameters"):
        metrics.fisher(plain, x, Categorical())


def test_inference_mode_is_refused():
    model, x = mlp(), batch()
    with torch.inference_mode(), pytest.raises(ValueError, match=r"use torch.no_grad"):
        metrics.fisher(model, x, Categorical())


def test_the_callers_grad_mode_does_not_matter():
    model, x = mlp(), batch().requires_grad_()
    g = metrics.fisher(model, x, Categorical())
    with torch.no_grad():
        assert torch.equal(metrics.fisher(model, x, Categorical()), g)
        operator = metrics.FisherOperator(model, x, Categorical())
        product = operator @ torch.ones(len(g), dtype=torch.float64)
        torch.testing.assert_close(product, g.sum(1))
    assert not product.requires_grad
    assert x.grad is None


LARGE = nn.Linear(784, 784)  # 615,440 parameters: a matrix of 1,411 GiB in float32
DENSE = {
    "fisher": lambda m, x, t: metrics.fisher(m, x, Categorical()),
    "gauss_newton": lambda m, x, t: metrics.gauss_newton(m, x, t, Categorical()),
    "empirical_fisher": lambda m, x, t: metrics.empirical_fisher(m, x, t, Categorical()),
    "gradient_covariance": lambda m, x, t: metrics.gradient_covariance(m, x, t, Categorical()),
    "monte_carlo_fisher": lambda m, x, t: metrics.monte_carlo_fisher(m, x, Categorical()),
    "FisherOperator.dense": lambda m, x, t: metrics.FisherOperator(m, x, Categorical()).dense(),
    "CovarianceOperator.dense": lambda m, x, t: metrics.CovarianceOperator(
        m, x, t, Categorical()
    ).dense(),
    "KroneckerFactors.dense": lambda m, x, t: metrics.kronecker_factors(
        m, x, Categorical(), draws=1
    )[""].dense(),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_matrix_that_does_not_fit_is_refused_with_its_size_and_a_remedy(name):
    x, t = torch.zeros(2, 784), torch.zeros(2, dtype=torch.long)
    size = r"1\.4e\+03" if "Kronecker" not in name else r"2\.8e\+03"  # factors are float64
    with pytest.raises(ValueError, match=rf"^{name}: 615440 parameters .* {size} GiB.*; use .*"):
        DENSE[name](LARGE, x, t)
    small, x = nn.Linear(4, 3), torch.ones(2, 4)
    bytes_needed = 15**2 * (8 if "Kronecker" in name else 4)
    with metrics.dense_limit(bytes_needed / 2**30):
        assert DENSE[name](small, x, t).shape == (15, 15)
    with (
        metrics.dense_limit((bytes_needed - 1) / 2**30),
        pytest.raises(ValueError, match="dense_limit"),
    ):
        DENSE[name](small, x, t)
    assert DENSE[name](small, x, t).shape == (15, 15)  # the limit of the block is gone


class Residual(nn.Module):
    """The residual u'' + u of a network, by derivatives of its own output by its inputs."""

    def __init__(self, in_place=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.in_place = nn.Linear(1, 4), nn.Linear(4, 1), in_place

    def forward(self, x):
        x = x.requires_grad_() if self.in_place else x.clone().requires_grad_()
        u = self.b(torch.tanh(self.a(x)))
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return torch.autograd.grad(slope.sum(), x, create_graph=True)[0] + u


class ByHand(Residual):
    """The same in closed form."""

    def forward(self, x):
        h, w = torch.tanh(self.a(x)), self.a.weight.squeeze(1)
        return self.b(h) + (-2 * h * (1 - h**2) * w**2) @ self.b.weight.mT


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_differentiates_by_its_inputs(in_place):
    model, twin, x = Residual(in_place).double(), ByHand().double(), batch(shape=(1,))
    t = batch(shape=(1,), seed=3)
    expected = reference.fisher(twin, x, Gaussian())
    plain = nn.Sequential(model.a, nn.Tanh(), model.b)  # negative control: u alone
    assert relative(reference.fisher(plain, x, Gaussian()), expected) > 0.1
    v = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    for _ in range(2):  # the first call leaves nothing in x
        for found in (
            metrics.fisher(model, x, Gaussian()),
            metrics.FisherOperator(model, x, Gaussian()).dense(),
            metrics.gauss_newton(model, x, t, Gaussian()),
        ):
            assert relative(found, expected) < 1e-12
        found = metrics.FisherOperator(model, [x[:2], x[2:]], Gaussian()) @ v
        assert relative(found, expected @ v) < 1e-12
        assert not x.requires_grad
    assert (
        relative(
            metrics.gradient_covariance(model, x, t, Gaussian()),
            metrics.gradient_covariance(twin, x, t, Gaussian()),
        )
        < 1e-12
    )


def tokens(**options):
    torch.manual_seed(0)
    embedding = nn.Embedding(7, 4, **options)
    embedding.weight.data *= 3
    return nn.Sequential(embedding, nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()


def test_metrics_do_not_renormalize_an_embedding():
    x = torch.randint(7, (5, 4), generator=torch.Generator().manual_seed(1))
    model, norm = tokens(max_norm=1.0), tokens()
    w = model[0].weight
    before, version = w.detach().clone(), w._version
    found = metrics.fisher(model, x, Categorical())
    operator = metrics.FisherOperator(model, x, Categorical())
    assert relative(operator @ torch.eye(len(found), dtype=torch.float64), found) < 1e-12
    assert torch.equal(w, before)
    assert w._version == version
    norm[0].weight.data /= norm[0].weight.data.norm(dim=1, keepdim=True).clamp(min=1) + 1e-7
    assert relative(found, reference.fisher(norm, x, Categorical())) < 1e-5
    assert relative(found, reference.fisher(tokens(), x, Categorical())) > 0.1  # the control
    model(x)
    assert not torch.equal(w, before)  # as a pass of training does


def test_derivatives_of_an_embedding_are_not_scaled_by_frequency():
    x = torch.tensor([[0, 0, 1, 2], [3, 3, 3, 1], [4, 5, 6, 6]])
    scaled, plain = tokens(scale_grad_by_freq=True), tokens()
    expected = metrics.fisher(plain, x, Categorical())
    found = metrics.fisher(scaled, x, Categorical())
    assert relative(found, expected) < 1e-14
    products = metrics.FisherOperator(scaled, x, Categorical())
    assert relative(products @ torch.eye(len(found), dtype=torch.float64), expected) < 1e-12
    assert scaled[0].scale_grad_by_freq
    slopes = [
        torch.autograd.grad(model(x).square().sum(), model[0].weight)[0]
        for model in (scaled, plain)
    ]
    assert relative(*slopes) > 0.1  # the control: torch's gradient of the first is no derivative
