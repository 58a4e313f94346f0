"""Metric operators: products, diagonals and dense forms against the dense metrics and brute
force.
"""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.data import DataLoader, TensorDataset

from natcompanion import metrics, reference
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.metrics import CovarianceOperator, FisherOperator, MonteCarloOperator
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.metrics.operators import JacobianProducts
from natcompanion.solvers import conjugate_gradient
from tests.test_metrics import ALL, NETWORKS, batch, mlp, named, target


def matrix_of(operator):
    """Multiply the operator with every unit vector."""
    return operator @ torch.eye(operator.shape[0], dtype=operator.dtype)


def agree(operator, expected):
    torch.testing.assert_close(matrix_of(operator), expected, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(operator.dense(), expected, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(operator.diagonal(), expected.diagonal(), rtol=1e-10, atol=1e-13)


@named
@pytest.mark.parametrize(("model", "x"), NETWORKS)
def test_fisher_products(model, x, likelihood):
    agree(FisherOperator(model, x, likelihood), metrics.fisher(model, x, likelihood))


@named
@pytest.mark.parametrize("centred", [True, False])
def test_covariance_products(likelihood, centred):
    model, x, t = mlp(), batch(), target(likelihood)
    dense = metrics.gradient_covariance if centred else metrics.empirical_fisher
    agree(
        CovarianceOperator(model, x, t, likelihood, centred=centred), dense(model, x, t, likelihood)
    )
    other = metrics.empirical_fisher if centred else metrics.gradient_covariance
    operator = CovarianceOperator(model, x, t, likelihood, centred=centred)
    assert float((operator.dense() - other(model, x, t, likelihood)).norm()) > 1e-3


@named
def test_monte_carlo_products(likelihood):
    model, x = mlp(), batch()
    generator = torch.Generator().manual_seed(3)
    operator = MonteCarloOperator(model, x, likelihood, samples=4, generator=generator)
    same = metrics.monte_carlo_fisher(
        model, x, likelihood, samples=4, generator=torch.Generator().manual_seed(3)
    )
    agree(operator, same)


def test_products_are_the_curvature_of_the_kl():
    model, x = mlp(), batch()
    operator = FisherOperator(model, x, Categorical())
    delta = 1e-4 * torch.randn(
        operator.shape[0], dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    kl = float(reference.kl(model, x, Categorical(), delta))
    assert float(delta @ (operator @ delta)) / 2 == pytest.approx(kl, rel=1e-3)
    assert float(delta @ (FisherOperator(model, x, Gaussian()) @ delta)) / 2 != pytest.approx(
        kl, rel=1e-2
    )


def test_damping_is_added_everywhere_and_can_change():
    model, x = mlp(), batch()
    g = metrics.fisher(model, x, Categorical())
    operator = FisherOperator(model, x, Categorical(), damping=0.5)
    agree(operator, g + 0.5 * torch.eye(len(g)))
    operator.damping = 0.0
    agree(operator, g)
    with pytest.raises(ValueError, match="damping"):
        FisherOperator(model, x, Categorical(), damping=-1.0)


@named
def test_ragged_batches_accumulate_to_the_whole(likelihood):
    model, x, t = mlp(), batch(7), target(likelihood, 7)
    whole = metrics.fisher(model, x, likelihood)
    agree(FisherOperator(model, x.split(3), likelihood), whole)
    loader = DataLoader(TensorDataset(x, t), batch_size=3, shuffle=True)
    agree(FisherOperator(model, loader, likelihood), whole)
    agree(
        CovarianceOperator(model, loader, None, likelihood),
        metrics.gradient_covariance(model, x, t, likelihood),
    )
    once = (b for b in x.split(2))  # a generator is read once and kept
    agree(FisherOperator(model, once, likelihood), whole)
    unweighted = sum(metrics.fisher(model, b, likelihood) for b in x.split(3)) / 3
    assert float((unweighted - whole).norm() / whole.norm()) > 1e-3  # the last batch is smaller


def test_monte_carlo_over_batches_is_one_fixed_matrix():
    model, x = mlp(), batch(7)
    operator = MonteCarloOperator(
        model, x.split(3), Categorical(), samples=2, generator=torch.Generator().manual_seed(0)
    )
    agree(operator, operator.dense())


def test_restricted_parameters():
    model, x = mlp(), batch()
    names = ["0.bias", "2.weight"]
    operator = FisherOperator(model, x, Categorical(), parameters=names)
    agree(operator, metrics.fisher(model, x, Categorical(), parameters=names))
    assert operator.shape == (16, 16)


def test_scipy_form():
    model, x = mlp(), batch()
    operator = FisherOperator(model, x, Bernoulli(), damping=0.1)
    linear = operator.to_scipy()
    dense = operator.dense().numpy()
    assert linear.dtype == np.float64
    np.testing.assert_allclose(linear @ np.eye(len(dense)), dense, atol=1e-13)
    np.testing.assert_allclose(
        linear.rmatvec(np.ones(len(dense))), dense @ np.ones(len(dense)), atol=1e-12
    )


def test_solver_takes_an_operator():
    model, x, t = mlp(), batch(), target(Categorical())
    operator = FisherOperator(model, x, Categorical(), damping=0.1)
    g = metrics.per_example_gradients(model, x, t, Categorical()).mean(0)
    solution = conjugate_gradient(operator, g, rtol=1e-10)
    torch.testing.assert_close(
        solution.x, torch.linalg.solve(operator.dense(), g), rtol=1e-7, atol=1e-9
    )


def test_memory_is_flat_and_the_graph_is_kept():
    model, x = mlp(), batch()
    operator = FisherOperator(model, x, Categorical())
    v = torch.ones(operator.shape[0], dtype=torch.float64)
    operator @ v
    operator @ v
    calls = []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))

    def tensors():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    before = tensors()
    for _ in range(200):
        operator @ v
    assert tensors() <= before + 1
    assert not calls  # the model does not run again
    handle.remove()


def test_nothing_is_left_in_the_model():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)
    ).double()
    before = copy.deepcopy(model.state_dict())
    operator = FisherOperator(model, batch(), Categorical())
    operator @ torch.ones(operator.shape[0], dtype=torch.float64)
    operator.diagonal()
    operator.dense()
    assert all(m.training for m in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.is_leaf for p in model.parameters())
    copy.deepcopy(model)
    alive = weakref.ref(operator)
    del operator
    gc.collect()
    assert alive() is None


def test_changed_parameters_are_noticed():
    model, x = mlp(), batch()
    for x_ in (x, x.split(2)):
        operator = FisherOperator(model, x_, Categorical())
        v = torch.ones(operator.shape[0], dtype=torch.float64)
        operator @ v
        with torch.no_grad():
            model[0].weight.mul_(1.5)
        for use in (lambda: operator @ v, operator.diagonal, operator.dense):  # noqa: B023
            with pytest.raises(ValueError, match="parameters changed"):
                use()
    operator = FisherOperator(model, x, Categorical())
    nn.utils.vector_to_parameters(
        torch.zeros(operator.shape[0], dtype=torch.float64), model.parameters()
    )
    with pytest.raises(ValueError, match="parameters changed"):
        operator @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    model, x = mlp(dtype=dtype), batch(dtype=dtype)
    for likelihood in ALL:
        operator = FisherOperator(model, x, likelihood)
        v = torch.ones(operator.shape[0], dtype=dtype)
        assert (operator @ v).dtype == dtype
        expected = metrics.fisher(mlp(dtype=dtype).double(), x.double(), likelihood) @ v.double()
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(
            (operator @ v).double(), expected, rtol=tolerance, atol=tolerance
        )


def test_confident_float32_network():
    model = mlp(dtype=torch.float32)
    with torch.no_grad():
        model[2].weight.mul_(1e4)
    operator = FisherOperator(model, batch(dtype=torch.float32), Categorical(), damping=1e-3)
    g = torch.ones(operator.shape[0])
    assert torch.isfinite(operator @ g).all()
    assert torch.isfinite(conjugate_gradient(operator, g).x).all()


class Attention(nn.Module):
    """Fused attention has no second derivative of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["attention", "encoder", "lstm", "gru"])
def test_modules_of_every_kind(kind, dtype):
    torch.manual_seed(2)
    model = {
        "attention": Attention,
        "encoder": lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), nn.Flatten(), nn.Linear(20, 3)
        ),
        "lstm": lambda: Last(nn.LSTM(4, 3, batch_first=True)),
        "gru": lambda: Last(nn.GRU(4, 3, batch_first=True)),
    }[kind]().to(dtype)
    x = batch(2, (5, 4), dtype=dtype)
    operator = FisherOperator(model, x, Categorical())
    v = torch.linspace(-1, 1, operator.shape[0], dtype=dtype)
    expected = reference.fisher(model.eval(), x, Categorical()) @ v
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(operator @ v, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(operator.dense() @ v, expected, rtol=tolerance, atol=tolerance)


class Last(nn.Module):
    """The last state of a recurrent layer."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


def test_bad_input_is_named():
    model, x, t = mlp(), batch(), target(Categorical())
    operator = FisherOperator(model, x, Categorical())
    for v in (torch.ones(3), torch.ones(1, operator.shape[0]), [1.0]):
        with pytest.raises(ValueError, match=r"v: expected a tensor of shape \(31,\)"):
            operator @ v
    with pytest.raises(ValueError, match="at least one batch"):
        FisherOperator(model, [], Categorical())
    P = FisherOperator(model, x, Categorical()).shape[0]
    for v, message in (
        (torch.ones(P, dtype=torch.long), "v: expected a floating-point tensor, got torch.int64"),
        (torch.ones(P, 0), "v: expected a tensor of shape"),
        (torch.ones(P - 1), "v: expected a tensor of shape"),
        ([1.0] * P, "got list"),
    ):
        with pytest.raises(ValueError, match=message):
            FisherOperator(model, x, Categorical()) @ v
    with pytest.raises(ValueError, match="t: expected targets"):
        CovarianceOperator(model, x, None, Categorical())
    with pytest.raises(ValueError, match="t: expected targets"):
        CovarianceOperator(model, [(x, t)], t, Categorical())
    with pytest.raises(ValueError, match="finite numbers"):
        FisherOperator(model, [x, x[1:] * float("inf")], Categorical())


def test_two_tensors_are_not_taken_for_two_batches():
    """To most people they are a batch with its targets, and the matrix would be the mean over
    both; a DataLoader gives them in a list.
    """
    model = nn.Linear(5, 5).double()
    x, t = torch.randn(8, 5, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)
    for pair in ((x, t), [x, t], [x, t[:, 0].long()]):
        kind = type(pair).__name__
        with pytest.raises(ValueError, match=f"{kind} of two tensors.*torch.cat"):
            FisherOperator(model, pair, Gaussian())
        with pytest.raises(ValueError, match=f"{kind} of two tensors"):
            CovarianceOperator(model, pair, None, Gaussian())
    alone = FisherOperator(model, x, Gaussian()).dense()
    torch.testing.assert_close(FisherOperator(model, [(x, t)], Gaussian()).dense(), alone)
    both = FisherOperator(model, torch.cat([x, t]), Gaussian()).dense()
    torch.testing.assert_close(FisherOperator(model, [x, t[:3], t[3:]], Gaussian()).dense(), both)
    torch.testing.assert_close(
        FisherOperator(model, [x, t[:3]], Gaussian()).dense(),
        FisherOperator(model, torch.cat([x, t[:3]]), Gaussian()).dense(),
    )
    assert (both - alone).abs().max() > 1e-3


def test_batches_without_targets_are_named():
    """A loader of dictionaries does not say which of them are the targets."""
    model, x, t = mlp(), batch(), target(Categorical())
    batches = [{"input": x, "labels": t}]
    with pytest.raises(ValueError, match=r"batches \(inputs, targets\), got a dict; make pairs"):
        CovarianceOperator(model, batches, None, Categorical())
    pairs = (({"input": b["input"]}, b["labels"]) for b in batches)
    found = CovarianceOperator(model, pairs, None, Categorical()).dense()
    expected = CovarianceOperator(model, x, t, Categorical()).dense()
    torch.testing.assert_close(found, expected)


class Twice(nn.Module):
    """One layer that is called twice: its closed form would be wrong."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


def conv_net(groups=1):
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=groups), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 3)).double()


def frozen_weight():
    model = mlp()
    next(model.parameters()).requires_grad_(False)
    return model


@named
@pytest.mark.parametrize(
    ("model", "x", "closed"),
    [
        (mlp(), batch(), True),
        (frozen_weight(), batch(), True),
        (conv_net(), torch.randn(5, 2, 4, 4).double(), True),
        (conv_net(2), torch.randn(5, 2, 4, 4).double(), True),
        (Twice(), torch.randn(5, 3).double(), False),
    ],
)
def test_the_diagonal_in_closed_form(model, x, closed, likelihood, monkeypatch):
    operator = FisherOperator(model, x, likelihood, damping=0.3)
    expected = operator.dense().diagonal()
    rows = []
    f, true = operator._f, operator._f.rows
    monkeypatch.setattr(f, "rows", lambda *args: rows.append(1) or true(*args))
    for numbers in (2**24, 1):  # all at once, and one example at a time
        monkeypatch.setattr(metrics.fast, "CHUNK", numbers)
        torch.testing.assert_close(operator.diagonal(), expected, rtol=1e-11, atol=1e-14)
    assert bool(rows) is not closed


def test_the_diagonal_of_a_wide_softmax_takes_no_rows(monkeypatch):
    model, x = nn.Linear(64, 1000).double(), torch.randn(4, 64).double()
    operator = FisherOperator(model, x, Categorical())

    def refuse(*_args):
        raise AssertionError("explicit rows: 4,000 times 65,000 numbers")

    monkeypatch.setattr(operator._f, "rows", refuse)
    y = torch.softmax(model(x), -1).detach()
    weight = (y * (1 - y)).mT @ x.square() / 4
    expected = torch.cat([weight.flatten(), (y * (1 - y)).mean(0)])
    torch.testing.assert_close(operator.diagonal(), expected, rtol=1e-10, atol=1e-16)


class Cube(torch.autograd.Function):
    """A function of one's own that torch can differentiate once."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


class Detached(Cube):
    """The same with a backward pass from which torch learns nothing."""

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g.detach()


class Own(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a):
        return self.function.apply(a)


ONCE = {
    "hardsigmoid": (nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 3)), batch()),
    "bags": (
        nn.Sequential(nn.EmbeddingBag(7, 4, mode="sum"), nn.Tanh(), nn.Linear(4, 3)),
        torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(0)),
    ),
    "once": (nn.Sequential(nn.Linear(3, 4), Own(Cube), nn.Linear(4, 3)), batch()),
    "detached": (nn.Sequential(nn.Linear(3, 4), Own(Detached), nn.Linear(4, 3)), batch()),
}


@pytest.mark.parametrize(("model", "x"), ONCE.values(), ids=ONCE)
def test_layers_without_a_second_derivative(model, x):
    """Products do not need it, though reverse mode twice does, which fails or is wrong: the
    control.
    """
    model = model.double()
    expected = metrics.fisher(model, x, Categorical())
    agree(FisherOperator(model, x, Categorical()), expected)
    t = target(Categorical())
    agree(
        CovarianceOperator(model, x, t, Categorical()),
        metrics.gradient_covariance(model, x, t, Categorical()),
    )
    jacobian = JacobianProducts(ModelFunction(model), x)
    v = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    pieces = [q.view_as(p) for q, p in zip(v.split(jacobian.sizes), jacobian.leaves, strict=True)]
    right = jacobian.push(v)
    try:
        wrong = jacobian._push_in_reverse(pieces)
    except RuntimeError:
        return
    assert float((wrong - right).norm() / right.norm()) > 0.1
