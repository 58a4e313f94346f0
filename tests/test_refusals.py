"""Wrong inputs, each refused in words, beside a valid neighbour that stays accepted."""

from functools import partial

import pytest
import torch
from torch import nn

from natcompanion import (
    boltzmann,
    damping,
    layers,
    metrics,
    optim,
    projections,
    relative,
    whitening,
)
from natcompanion.likelihoods import Bernoulli, Categorical, FromNLL, Gaussian, Weighted
from natcompanion.metrics.model_function import ModelFunction, select
from natcompanion.whitening import Whitener, potter_update, sherman_morrison_update


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 1, 0, 1, 0])


METRICS = {
    "fisher": lambda m, x, likelihood: metrics.fisher(m, x, likelihood),
    "operator": lambda m, x, likelihood: metrics.FisherOperator(m, x, likelihood).dense(),
    "drawn": lambda m, x, likelihood: metrics.MonteCarloOperator(m, x, likelihood).dense(),
    "kronecker": lambda m, x, likelihood: metrics.kronecker_factors(m, x, likelihood),
}
LIKELY = {
    "KFAC": optim.KFAC,
    "NaturalGradient": optim.NaturalGradient,
    "SampleSpaceNaturalGradient": optim.SampleSpaceNaturalGradient,
    "TONGA": optim.TONGA,
    "Newton": optim.Newton,
    "HessianFree": optim.HessianFree,
}
FOLLOWING = {
    **{name: partial(kind, likelihood=Gaussian(), lr=0.1) for name, kind in LIKELY.items()},
    "PRONG": lambda m, **o: optim.PRONG(m, lr=0.1, **o),
    "RNGD": lambda m, **o: optim.RNGD(m, lr=0.1, **o),
}
metric = pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
optimizer = pytest.mark.parametrize("build", FOLLOWING.values(), ids=FOLLOWING)


# ---- Models and likelihoods


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (lambda x: x, "got function; give the model itself"),
        (nn.Linear, r"got the class Linear; call it: Linear\(...\)"),
        ("mlp", "got 'mlp'"),
        (None, "got None"),
        (nn.Parameter(torch.ones(2)), "got Parameter"),
    ],
)
def test_what_is_no_model(model, got):
    wanted = f"model: expected a torch.nn.Module, {got}"
    for measure in METRICS.values():
        with pytest.raises(ValueError, match=wanted):
            measure(model, batch()[0], Gaussian())
    for build in FOLLOWING.values():
        with pytest.raises(ValueError, match=wanted):
            build(model)


@pytest.mark.parametrize(
    ("likelihood", "got"),
    [
        (Categorical, r"the class Categorical; call it: Categorical\(...\)"),
        (FromNLL, "the class FromNLL"),
        ("Categorical", "'Categorical'"),
        (nn.CrossEntropyLoss(), "CrossEntropyLoss"),
        (lambda r, t: r, "function"),
        (None, "None"),
    ],
)
def test_what_is_no_likelihood(likelihood, got):
    wanted = rf"likelihood: expected one such as Categorical\(\).*, got {got}"
    for measure in METRICS.values():
        with pytest.raises(ValueError, match=wanted):
            measure(mlp(), batch()[0], likelihood)
    for kind in LIKELY.values():
        with pytest.raises(ValueError, match=wanted):
            kind(mlp(), likelihood, lr=0.1)
    with pytest.raises(ValueError, match=wanted):
        Weighted(likelihood, torch.ones(6))


def test_a_likelihood_of_ones_own_is_one():
    class Own:
        def nll(self, r, t):
            return 0.5 * (r - t).square().sum(-1)

    x = batch()[0]
    built = optim.NaturalGradient(mlp(), Own(), lr=0.1)
    assert built.step(x, torch.ones(6, 2)) > 0
    assert isinstance(built.likelihood, Own)


# ---- Numbers


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).real


@optimizer
def test_complex_parameters_of_optimizers(build):
    with pytest.raises(
        ValueError, match="expected real numbers, got torch.complex64.*view_as_real"
    ):
        build(Complex())
    frozen = nn.Sequential(Complex().requires_grad_(requires_grad=False), nn.Linear(2, 2))
    built = build(frozen)
    frozen[0].requires_grad_()
    frozen(batch()[0]).sum().backward()
    given = (batch()[0], torch.ones(6, 2)) if isinstance(built, optim.NaturalGradient) else ()
    with pytest.raises(ValueError, match="expected real numbers"):
        built.step(*given)


@metric
def test_complex_numbers_of_metrics(measure):
    x = batch()[0]
    for model, inputs in (Complex(), x), (Complex(), x.to(torch.complex64)), (mlp(), x * 1j):
        with pytest.raises(ValueError, match="expected real numbers, got torch.complex64"):
            measure(model, inputs, Gaussian())
    frozen = nn.Sequential(Complex().requires_grad_(requires_grad=False), nn.Linear(2, 2))
    measure(frozen, x, Gaussian())


@metric
def test_numbers_that_are_not_dense(measure):
    x = batch()[0]
    with pytest.raises(ValueError, match=r"x: expected a dense tensor.*sparse_coo.*to_dense\(\)"):
        measure(mlp(), x.to_sparse(), Gaussian())
    with pytest.raises(ValueError, match='on the device "meta"'):
        measure(mlp(), x.to("meta"), Gaussian())
    model = mlp()
    model[0].weight = nn.Parameter(model[0].weight.detach().to_sparse())
    with pytest.raises(ValueError, match="0.weight: expected a dense tensor"):
        measure(model, x, Gaussian())


@optimizer
def test_sparse_parameters(build):
    model = mlp()
    model[0].weight = nn.Parameter(model[0].weight.detach().to_sparse())
    with pytest.raises(ValueError, match="expected a dense tensor, got torch.sparse_coo"):
        build(model)
    nn.Embedding(3, 2, sparse=True)  # its gradients are sparse, its parameters are not
    build(nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2)))


def test_vectors_of_other_kinds():
    A = metrics.FisherOperator(mlp(), batch()[0], Gaussian())
    v = torch.ones(A.shape[0])
    for wrong, words in ((v.to_sparse(), "a dense tensor"), (v * 1j, "real numbers")):
        with pytest.raises(ValueError, match=f"v: expected {words}"):
            A @ wrong
    assert bool((A @ v).isfinite().all())
    for wrong in (torch.ones(3, 2).to_sparse(), torch.ones(3, 2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="x: expected"):
            Whitener(eps=1.0).fit(wrong)


# ---- The choice of parameters


def choices(m):
    """Yield the same choice, the first weight, in every form."""
    yield from ("0.weight", m[0].weight, ["0.weight"], [m[0].weight], {m[0].weight})
    yield from (("0.weight",), [("0.weight", m[0].weight)], iter([m[0].weight]))
    yield from ({"params": m[0].weight}, {"params": "0.weight"}, [{"params": ["0.weight"]}])
    yield [{"params": [("0.weight", m[0].weight)]}]


@optimizer
def test_forms_of_a_choice_in_optimizers(build):
    m = mlp()
    for parameters in choices(m):
        (chosen,) = build(m, parameters=parameters)._leaves()
        assert chosen is m[0].weight
    assert len(build(m, parameters=m.named_parameters())._leaves()) == 4


def test_forms_of_a_choice_in_metrics():
    m, (x, _) = mlp(), batch()
    named = dict(m.named_parameters())
    for parameters in choices(m):
        assert list(select(named, parameters)) == ["0.weight"]
    assert list(select(named, m.named_parameters())) == list(named)
    expected = metrics.fisher(m, x, Gaussian())
    assert torch.equal(metrics.fisher(m, x, Gaussian(), parameters=m.named_parameters()), expected)
    G = metrics.fisher(m, x, Gaussian(), parameters="0.weight")
    assert torch.equal(G, metrics.fisher(m, x, Gaussian(), parameters=[m[0].weight]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "got int"),
        (lambda m: m[0], r"got Linear; of a part of a model take layer.parameters\(\)"),
        (nn.Linear, "got the class Linear"),
        ("0.wei", "of \\['0.weight'"),
        (lambda m: ["0.weight", 3], "of \\['0.weight'"),
        (lambda m: m, "got Sequential"),
    ],
)
def test_what_is_no_choice(wrong, words):
    m, x = mlp(), batch()[0]
    parameters = wrong(m) if type(wrong).__name__ == "function" else wrong
    for build in FOLLOWING.values():
        with pytest.raises(ValueError, match=f"parameters: expected.*{words}"):
            build(m, parameters=parameters)
    with pytest.raises(ValueError, match=f"parameters: expected.*{words}"):
        metrics.fisher(m, x, Gaussian(), parameters=parameters)


@optimizer
def test_groups_without_parameters(build):
    m = mlp()
    with pytest.raises(ValueError, match=r"expected a dict with .params.*, got \['lr'\]"):
        build(m, parameters=[{"lr": 0.1}])
    built = build(m, parameters=["0.weight"])
    for wrong in ({"lr": 0.1}, 3, "0.bias"):
        with pytest.raises(ValueError, match='param_group: expected a dict with "params"'):
            built.add_param_group(wrong)
    built.add_param_group({"params": "0.bias"})
    assert len(built.param_groups) == 2


# ---- Inputs that the model refuses


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, a, b):
        return self.layer(a + b)


@metric
def test_inputs_that_the_model_refuses(measure):
    x = batch()[0]
    for inputs, call, error in (
        (x, r"model\(torch.float32 \(\d, 4\)\)", TypeError),
        ({"a": x}, r"model\(a=torch.float32 \(\d, 4\)\)", TypeError),
        ({"a": x, "c": x}, "model.a=.*c=.*unexpected keyword argument 'c'", TypeError),
        ({"a": x, "b": x[:, :3]}, "must match the size", RuntimeError),
    ):
        with pytest.raises(ValueError, match=rf"(?s)tuple as model\(\*x\).*{call}") as caught:
            measure(Two(), inputs, Gaussian())
        assert isinstance(caught.value.__cause__, error)
        assert str(caught.value.__cause__) in str(caught.value)
    measure(Two(), {"a": x, "b": x}, Gaussian())
    for wrong in (x[:, :3], x.long()):
        with pytest.raises(ValueError, match="model: expected inputs that it takes"):
            measure(mlp(), wrong, Gaussian())


def test_a_fault_of_the_model_keeps_its_words():
    class Faulty(nn.Linear):
        def forward(self, x):
            raise KeyError("a fault of my own")

    with pytest.raises(ValueError, match="KeyError: 'a fault of my own'") as caught:
        metrics.fisher(Faulty(4, 2), batch()[0], Gaussian())
    assert isinstance(caught.value.__cause__, KeyError)

    class Stopped(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        metrics.fisher(Stopped(4, 2), batch()[0], Gaussian())


def test_a_fault_in_a_line_search_is_no_far_point():
    """A loss that is not finite is a far point of the search; a model that fails is a fault."""

    class Tired(nn.Linear):
        calls, last = 0, 0

        def forward(self, x):
            self.calls += 1
            if self.calls > self.last:
                raise RuntimeError("tired")
            return super().forward(x)

    def calls(last):
        torch.manual_seed(0)
        model = Tired(4, 2)
        model.last = last
        optim.KrylovSubspaceDescent(model, Categorical(), dimension=2).step(*batch())
        return model.calls

    enough = calls(10**9)
    calls(enough)
    with pytest.raises(ValueError, match="RuntimeError: tired"):
        calls(enough - 2)  # the last call after the search is that of the loss


def test_outputs_that_cannot_be_selected():
    x = batch()[0]
    for wrong, words in (
        ("logits", "output: expected a function, got 'logits'"),
        (lambda r: r["logits"], "output: expected to select from Tensor"),
        (lambda r: r.logits, "no attribute 'logits'"),
    ):
        with pytest.raises(ValueError, match=words):
            metrics.fisher(mlp(), x, Gaussian(), output=wrong)
    assert metrics.fisher(mlp(), x, Gaussian(), output=lambda r: r[:, :1]).shape == (23, 23)


def test_layers_that_vmap_cannot_batch_still_go_one_by_one():
    """A refusal is a RuntimeError too, so that other ways are tried: the control is that vmap
    fails.
    """

    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if bool(x.sum() > 0) else 1.0)

    x = batch()[0]
    model = Branch(4, 2)
    with pytest.raises(RuntimeError, match="data-dependent"):
        torch.vmap(lambda a: nn.Linear.forward(model, a) * (2.0 if bool(a.sum() > 0) else 1.0))(x)
    assert ModelFunction(model).rows(x[:1], torch.eye(2)[None]).shape == (1, 2, 10)


def test_batches_of_another_kind():
    for wrong in (None, 3, len):
        with pytest.raises(ValueError, match="x: expected a tensor, or batches of inputs, got"):
            metrics.FisherOperator(mlp(), wrong, Gaussian())


def test_half_a_batch():
    x, t = batch()
    built = optim.NaturalGradient(mlp(), Categorical(), lr=0.1)
    for given in ((x,), (None, t)):
        with pytest.raises(ValueError, match="expected a batch of inputs and targets"):
            built.step(*given)
    assert built.step() is None
    assert built.step(x, t) > 0


# ---- Targets, outputs, random numbers


def test_the_class_number_of_padding():
    r, t = torch.zeros(3, 2), torch.tensor([0, -100, 1])
    with pytest.raises(ValueError, match=r"got -100 to 1; Categorical\(ignore_index=-100\)"):
        Categorical().nll(r, t)
    assert Categorical(ignore_index=-100).nll(r, t)[1] == 0
    with pytest.raises(ValueError) as caught:
        Categorical().nll(r, torch.tensor([0, 2, 1]))
    assert "ignore_index" not in str(caught.value)
    with pytest.raises(ValueError, match="ignore_index: expected an integer"):
        Categorical(ignore_index="pad")


@pytest.mark.parametrize("likelihood", [Gaussian(), Bernoulli(), Categorical()])
def test_outputs_are_numbers(likelihood):
    t = torch.tensor([0, 1]) if isinstance(likelihood, Categorical) else torch.ones(2, 3)
    for wrong in (torch.zeros(2, 3, dtype=torch.int64), [[0.0] * 3] * 2):
        with pytest.raises(ValueError, match="r: expected a"):
            likelihood.nll(wrong, t)
    for wrong in (torch.ones(2, 3).to_sparse(), torch.ones(2, 3) * 1j):
        with pytest.raises(ValueError, match="t: expected"):
            likelihood.nll(torch.zeros(2, 3), wrong)
    assert likelihood.nll(torch.zeros(2, 3), t).shape == (2,)


def test_a_seed_is_no_generator():
    x = batch()[0]
    for call in (
        lambda g: metrics.monte_carlo_fisher(mlp(), x, Categorical(), generator=g),
        lambda g: metrics.kronecker_factors(mlp(), x, Categorical(), draws=1, generator=g),
        lambda g: metrics.estimate_trace(torch.eye(2), generator=g),
    ):
        with pytest.raises(ValueError, match=r"generator: expected a torch.Generator, got 3"):
            call(3)
        call(torch.Generator())


# ---- Memory


def test_covariances_beyond_memory():
    """The covariance of 200,000 features would take 300 GiB; nothing is allocated."""
    with pytest.raises(ValueError, match=r"Whitener: 200000 features need.*pca_lowrank"):
        Whitener(eps=1.0).fit(torch.zeros(1, 200_000))
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    with metrics.dense_limit(1e-7):
        with pytest.raises(ValueError, match="Whitener: 4 features"):
            Whitener().fit(x)
        Whitener().fit(x[:, :2])


@pytest.mark.parametrize("likelihood", [Gaussian(), Bernoulli(), Categorical()])
def test_roots_beyond_memory(likelihood):
    r = torch.zeros(1, 1).expand(64, 20_000)
    with pytest.raises(ValueError, match=r"64 exact expectations over 20000 outputs.*draws=1"):
        likelihood.fisher_root(r)
    x = torch.randn(8, 4)
    with metrics.dense_limit(8 * 2 * 2 * 4 / 2**30):
        likelihood.fisher_root(torch.zeros(8, 2))
        metrics.kronecker_factors(mlp(), x, likelihood)
        with pytest.raises(ValueError, match="fisher_root"):
            likelihood.fisher_root(torch.zeros(9, 2))
        with pytest.raises(ValueError, match="fisher_root"):
            metrics.kronecker_factors(mlp(), torch.randn(9, 4), likelihood)
        metrics.kronecker_factors(mlp(), torch.randn(9, 4), likelihood, draws=1)


def test_roots_of_positions_are_larger():
    """The root of an example holds all its positions: T^2 blocks."""
    x = torch.randn(2, 5, 4)
    with metrics.dense_limit(2 * (5 * 2) ** 2 * 4 / 2**30):
        metrics.FisherOperator(mlp(), x, Categorical()).diagonal()
        with pytest.raises(ValueError, match="2 exact expectations over 12 outputs"):
            metrics.FisherOperator(mlp(), torch.randn(2, 6, 4), Categorical()).diagonal()


# ---- Whitening one sample at a time


@pytest.mark.parametrize("update", [potter_update, sherman_morrison_update])
def test_samples_of_another_size(update):
    for x in (torch.ones(2), torch.ones(1, 3)):
        with pytest.raises(ValueError, match=r"x: expected a tensor of shape \(3,\)"):
            update(torch.eye(3), x, 0.5)
    with pytest.raises(ValueError, match="rho: expected"):
        update(torch.eye(3), torch.ones(3), "half")
    assert update(torch.eye(3), torch.ones(3), 0.5).shape == (3, 3)


# ---- Layers


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.inner(x, x, x)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.inner(x)[0][:, -1])


def around(layer):
    return nn.Sequential(nn.Linear(4, 3), layer, nn.Linear(3, 2))


LAYERS = {
    "Hardsigmoid": (lambda: around(nn.Hardsigmoid()), (5, 4)),
    "Hardswish": (lambda: around(nn.Hardswish()), (5, 4)),
    "PReLU": (lambda: around(nn.PReLU(3)), (5, 4)),
    "Embedding": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2)), None),
    "LSTM": (Recurrent, (5, 6, 4)),
    "MultiheadAttention": (Attention, (5, 6, 4)),
}


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_layers_by_brute_force(make, shape):
    """The Fisher matrix and its products, against a backward pass of every example and output."""
    torch.manual_seed(0)
    model = make().double()
    x = torch.randint(7, (5, 2)) if shape is None else 2 * torch.randn(shape, dtype=torch.float64)
    leaves, expected = list(model.parameters()), 0
    for row in x:
        r = model(row[None])[0]
        pieces = [torch.autograd.grad(c, leaves, retain_graph=True) for c in r]
        J = torch.stack([torch.cat([g.flatten() for g in piece]) for piece in pieces])
        y = r.detach().softmax(0)
        expected = expected + J.mT @ (y.diag() - y.outer(y)) @ J / len(x)
    v = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    assert torch.allclose(metrics.fisher(model, x, Categorical()), expected, rtol=1e-9, atol=1e-12)
    A = metrics.FisherOperator(model, x, Categorical())
    for _ in range(2):  # the second product has what the first one kept
        assert torch.allclose(A @ v, expected @ v, rtol=1e-9, atol=1e-12)
    other = metrics.FisherOperator(model, x[:4], Categorical())
    assert not torch.allclose(other @ v, expected @ v, rtol=1e-3)


# ---- A wrong argument of each function: what is refused, and the call that is not


def machine():
    return boltzmann.RBM(*(torch.zeros(shape).double() for shape in ((3, 2), (3,), (2,))))


def leaf():
    return torch.nn.Parameter(torch.ones(2))


ONES = [torch.ones(n).double() for n in range(12)]
G3, V, H = torch.eye(3).double(), torch.eye(5, 3).double(), torch.eye(5, 2).double()
QUADRATIC = optim.Quadratic(torch.eye(2))
ARGUMENTS = {
    # Boltzmann machines
    "exact_fisher": (boltzmann.exact_fisher, (machine(),), ("rbm",), "rbm: expected an RBM"),
    "operator of": (boltzmann.ExactFisherOperator, (machine(),), (boltzmann.RBM,), "the class RBM"),
    "moments of": (boltzmann.model_moments, (machine(),), (G3,), "rbm: expected an RBM"),
    "covariances": (boltzmann.covariances, (machine(),), (None,), "rbm: expected an RBM"),
    "epoch": (boltzmann.cd_epoch, (machine(), V), (boltzmann.RBM, V), "rbm: expected an RBM"),
    "operator": (
        boltzmann.ExactFisherOperator(machine()).__matmul__, (ONES[11],), (ONES[3],), "u: expected",
    ),
    "sampled": (boltzmann.SampledFisherOperator(V, H).__matmul__, (ONES[11],), (ONES[2],), "u:"),
    "weights": (
        boltzmann.conditional_covariance, (machine(), V, ONES[5] / 5), (machine(), V, ONES[3]),
        r"weights: expected a tensor of shape \(5,\), got shape \(3,\)",
    ),
    "states": (boltzmann.states, (3,), (60,), "states: they need 5.2e.11 GiB"),
    "units": (boltzmann.states, (0,), (-1,), "units: expected an integer"),
    "names": (boltzmann.statistic_names, (3, 2), ("3", 2), "visible: expected an integer"),
    "blocks": (boltzmann.fisher_blocks, (torch.eye(11), 3, 2), (torch.eye(3), 3, 2), "G: expected"),
    "samples": (boltzmann.sample_moments, (V, H), (V, H[:2]), "expected one row per sample"),
    "pairs": (boltzmann.sampled_penalty_gradient, (V, H), (V, H[:2]), "one row per sample"),
    "centred": (
        boltzmann.centred_direction, (machine(), ONES[11]), (machine(), ONES[3]), "gradient:",
    ),
    "cosine": (boltzmann.metric_cosine, (G3, ONES[3], V[0]), (G3, ONES[2], V[0]), "first:"),
    "serial": (
        boltzmann.equivariant_step, (G3, G3, 0.1, 0.1), (G3, G3[:2], 0.1, 0.1), "covariance:",
    ),
    "learned": (boltzmann.LearnedWhitening, (3, 2), (0, 2), "visible: expected an integer"),
    "hidden": (
        boltzmann.hidden_covariance_penalty, (mlp(), batch()[0], [("0", "2")]),
        (mlp(), batch()[0][:, :2], [("0", "2")]), "model: expected inputs that it takes",
    ),
    "hidden of": (
        boltzmann.hidden_covariance_penalty, (mlp(), batch()[0], [("0", "2")]),
        (torch.tanh, batch()[0], [("0", "2")]), "model: expected a torch.nn.Module",
    ),
    # layers and projections
    "whiten": (layers.whiten_model, (mlp(),), (nn.Linear,), "model: expected a torch.nn.Module"),
    "canonical": (layers.canonical_model, (mlp(),), ("m",), "model: expected a torch.nn.Module"),
    "batch norm": (layers.with_batch_norm, (mlp(),), (nn.Linear,), "model: expected a"),
    "start": (
        layers.whitened_initialization, (mlp(), batch()[0], 0.1), (Two(), batch()[0], 0.1),
        "model: expected inputs that it takes.*missing 1 required",
    ),
    "to plain": (
        layers.to_canonical, (V, ONES[5], G3, ONES[3]), (V, ONES[5], G3[:2], ONES[3]), "U: expect",
    ),
    "to whitened": (
        layers.to_whitened, (V, ONES[5], G3, ONES[3]), (V, ONES[5], G3, ONES[2]), "c: expected",
    ),
    "projected": (projections.projected_covariance, (G3, V), (G3, H), "R: expected"),
    "projection": (projections.projected_norm_error, (G3, 1), (G3, 0), "k: expected an integer"),
    # steps
    "decrease": (damping.linear_decrease, (ONES[3], V[0]), (ONES[2], V[0]), "step: expected"),
    "mirror": (
        optim.mirror_step, (QUADRATIC, ONES[2], ONES[2], 0.1),
        (optim.Quadratic, ONES[2], ONES[2], 0.1), "psi: expected a mirror.*the class Quadratic",
    ),
    "mirror of": (
        optim.mirror_step, (QUADRATIC, ONES[2], ONES[2], 0.1), (QUADRATIC, ONES[2], ONES[3], 0.1),
        "gradient: expected a tensor of shape",
    ),
    "Bregman": (
        optim.bregman_divergence, (QUADRATIC, ONES[2], ONES[2]), ("q", ONES[2], ONES[2]), "psi:",
    ),
    "descent": (
        optim.MirrorDescent, ([leaf()], QUADRATIC, 0.1), ([leaf()], optim.Quadratic, 0.1),
        "psi: expected a mirror, a metric",
    ),
    "space": (
        optim.NaturalSpace, ([leaf()], torch.eye(2), torch.optim.SGD),
        ([leaf()], torch.eye(2), "SGD"), "metric, optimizer: expected.*'SGD'",
    ),
    "tensors": (
        optim.RelativeGradient, ([nn.Parameter(torch.eye(2))], 0.1), ([3], 0.1),
        "params: expected tensors, got int",
    ),
    "closure": (optim.RNGD(mlp(), lr=0.1).step, (None,), (3,), "closure: expected a function"),
    "state": (
        optim.RNGD(mlp(), lr=0.1).load_state_dict, (optim.RNGD(mlp(), lr=0.1).state_dict(),),
        ({},), "state_dict: expected one of RNGD",
    ),
    "no state": (
        optim.RNGD(mlp(), lr=0.1).load_state_dict, (optim.RNGD(mlp(), lr=0.1).state_dict(),),
        (None,), "state_dict: expected one of RNGD.*got None",
    ),
    # metrics of functions, spectra, forms
    "energy": (
        metrics.energy_metric, (lambda p, x: p @ x, torch.ones(4), batch()[0]),
        (lambda p, x: p @ x, torch.ones(3), batch()[0]), r"params, torch.float32 \(4,\)",
    ),
    "number": (
        metrics.energy_metric, (lambda p, x: p @ x, torch.ones(4), batch()[0]),
        (lambda p, x: p * x, torch.ones(4), batch()[0]), "function: expected a number of function",
    ),
    "params": (
        metrics.energy_metric, (lambda p, x: p @ x, torch.ones(4), batch()[0]),
        (lambda p, x: p @ x, 3, batch()[0]), "params: expected a tensor, or a dict",
    ),
    "trace": (metrics.estimate_trace, (G3,), ("A",), "A: expected a square matrix"),
    "sizes": (metrics.block_diagonal, (G3, [1, 2]), (G3, 3), "sizes: expected a list"),
    "staleness": (
        whitening.staleness, ({0: G3, 1: G3}, 0.1), ([G3, G3], 0.1), "expected a dictionary",
    ),
    "order": (relative.neuron_order, (nn.Linear(2, 2),), (nn.ReLU(),), "linear: expected"),
    "augmented": (relative.augment, (ONES[3],), ([1.0],), "x: expected a tensor of shape"),
    "targets": (
        lambda t: FromNLL(lambda r, t: r[:, 0], targets=t), (ONES[3],), (torch.tensor(1.0),),
        "targets: expected a tensor of the values",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "right", "wrong", "words"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(call, right, wrong, words):
    with pytest.raises(ValueError, match=words):
        call(*wrong)
    call(*right)
