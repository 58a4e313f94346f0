"""The fast path: used where it may be, equal to the plain one, refused where it would be wrong."""

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.likelihoods import Categorical
from natcompanion.metrics import fast
from natcompanion.metrics.model_function import ModelFunction
from tests.test_metrics import NETWORKS, Tied, batch, mlp

FAST = {
    "mlp",
    "deep",
    "linear",
    "frozen",
    "no bias",
    "relu in place",
    "convolution",
    "convolution in place",
    "grouped convolution",
    "dilated, reflecting",
    "pooled",
    "shared over a sequence",
}


def fast_gram(model, x, **kwargs):
    f = ModelFunction(model, **kwargs)
    return fast.gram(f, x, Categorical().fisher_root(f.output(x)).mT)


@pytest.mark.parametrize(("model", "x"), NETWORKS)
def test_equals_the_plain_rows_where_it_applies(model, x, request):
    total = fast_gram(model, x)
    assert (total is not None) == (request.node.callspec.id in FAST)
    if total is not None:
        f = ModelFunction(model)
        rows = f.rows(x, Categorical().fisher_root(f.output(x)).mT).flatten(0, 1)
        torch.testing.assert_close(total, rows.mT @ rows, rtol=1e-12, atol=1e-13)


def test_the_network_of_the_benchmark_to_twelve_digits():
    model, x = mlp((100, 20, 20, 10)), batch(40, (100,))
    f = ModelFunction(model)
    rows = f.rows(x, Categorical().fisher_root(f.output(x)).mT).flatten(0, 1)
    expected = rows.mT @ rows / len(x)
    assert (
        float((metrics.fisher(model, x, Categorical()) - expected).norm() / expected.norm()) < 1e-12
    )


@pytest.mark.parametrize("names", [["0.weight"], ["0.bias"], ["2.weight", "0.bias"], ["2.bias"]])
def test_restricted_parameters(names):
    model, x = mlp(), batch()
    whole, part = fast_gram(model, x), fast_gram(model, x, parameters=names)
    places = {"0.weight": (0, 12), "0.bias": (12, 16), "2.weight": (16, 28), "2.bias": (28, 31)}
    index = torch.cat([torch.arange(*places[name]) for name in sorted(names)])
    torch.testing.assert_close(part, whole[index][:, index])


def test_restricted_convolution():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3)).double()
    x = batch(4, (1, 3, 3))
    whole = fast_gram(model, x)
    index = torch.cat([torch.arange(8, 10), torch.arange(10, 34)])
    part = fast_gram(model, x, parameters=["0.bias", "2.weight"])
    torch.testing.assert_close(part, whole[index][:, index])


def test_transposed_kronecker_factors_would_be_caught():
    model, x = mlp((3, 3)), batch()
    total = fast_gram(model, x, parameters=["0.weight"])
    swapped = total.reshape(3, 3, 3, 3).permute(1, 0, 3, 2).reshape(9, 9)
    assert float((swapped - total).norm() / total.norm()) > 0.3


def test_chunks_change_nothing(monkeypatch):
    model, x = mlp(), batch(7)
    whole = fast_gram(model, x)
    monkeypatch.setattr("natcompanion.metrics.fast.CHUNK", 100)
    torch.testing.assert_close(fast_gram(model, x), whole)


class Outside(nn.Module):
    """A linear layer whose weight is used once more, outside of it: invisible to its hook."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) + torch.tanh(x @ self.layer.weight)


class Doubled(nn.Linear):
    """A subclass may compute anything."""

    def forward(self, x):
        return 2 * super().forward(x)


class Twice(nn.Module):
    """A layer called twice in one pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


@pytest.mark.parametrize(
    "model",
    [
        Outside(),
        Tied(),
        Twice(),
        nn.Sequential(Doubled(3, 3)),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
        nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 3)),
    ],
    ids=[
        "weight used outside",
        "tied",
        "called twice",
        "subclass",
        "parametrized",
        "other parameters",
    ],
)
def test_refused_and_right_by_the_plain_path(model):
    model, x = model.double(), batch()
    assert fast_gram(model, x) is None
    torch.testing.assert_close(
        metrics.fisher(model, x, Categorical()), reference.fisher(model, x, Categorical())
    )


def test_a_layer_that_is_not_called():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    model, x = Idle().double(), batch()
    g = metrics.fisher(model, x, Categorical())
    assert not g[12:].any()
    torch.testing.assert_close(g, reference.fisher(model, x, Categorical()))


def test_skip_connections_are_left_to_autograd():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)) + x) * torch.sigmoid(x)

    model, x = Residual().double(), batch()
    assert fast_gram(model, x) is not None
    torch.testing.assert_close(
        metrics.fisher(model, x, Categorical()), reference.fisher(model, x, Categorical())
    )


def test_hooks_are_removed_even_after_an_error():
    model = mlp()
    fast_gram(model, batch())
    with pytest.raises(RuntimeError):
        fast.gram(ModelFunction(model), batch(5, (4,)), torch.ones(5, 3, 3).double())
    assert not any(m._forward_hooks for m in model.modules())
