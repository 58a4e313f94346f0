"""K-FAC: its factors and blocks by brute force, where they are exact and where not, and the
optimizer on top.
"""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from natcompanion import metrics, reference
from natcompanion._moments import eigenpairs
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian, Weighted
from natcompanion.metrics import KroneckerFactors, kronecker_factors
from natcompanion.optim import KFAC

LIKELIHOODS = [Gaussian(0.5), Bernoulli(), Categorical()]
named = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)


def mlp(sizes=(3, 5, 4, 2), seed=0, dtype=torch.float64, bias=True):
    torch.manual_seed(seed)
    layers = [
        m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias=bias), nn.Tanh())
    ]
    return nn.Sequential(*layers[:-1]).to(dtype)


def convnet(padding_mode="zeros"):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2, padding_mode=padding_mode),
        nn.Tanh(),
        nn.Conv2d(3, 2, 2, dilation=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(18, 2),
    ).double()


def inputs(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(a, b):
    return float((a - b).norm() / b.norm())


def eye(A):
    return torch.eye(len(A), dtype=A.dtype)


def seen(model, layer, x, likelihood):
    """Return, one example and one label after the other, what goes into a layer, what comes back,
    and p(label).
    """
    out = []
    for x_i in x.split(1):
        noted = []
        handle = layer.register_forward_hook(lambda m, a, y, noted=noted: noted.extend((a[0], y)))
        r = model(x_i)
        handle.remove()
        for label, p in reference.labels(likelihood, r[0].detach()):
            loss = likelihood.nll(r, label.unsqueeze(0)).sum()
            (delta,) = torch.autograd.grad(loss, noted[1], retain_graph=True)
            out.append((noted[0][0].detach(), delta[0], p))
    return out


# ---- The factors


@named
def test_factors_are_the_second_moments_of_inputs_and_of_what_comes_back(likelihood):
    model, x = mlp(), inputs(7, 3)
    factors = kronecker_factors(model, x, likelihood)
    assert list(factors) == ["0", "2", "4"]
    for name, (A, B, bias) in factors.items():
        rows = seen(model, model.get_submodule(name), x, likelihood)
        one = torch.ones(1, dtype=torch.float64)
        A_ = sum(
            p * torch.outer(torch.cat([h, one]), torch.cat([h, one])) for h, _, p in rows
        ) / len(x)
        B_ = sum(p * torch.outer(d, d) for _, d, p in rows) / len(x)
        mean = sum(p * d for _, d, p in rows) / len(x)
        assert bias and gap(A, A_) < 1e-13 and gap(B, B_) < 1e-13
        assert float(mean.norm()) < 1e-12  # the model's own labels: the gradient's mean is 0


def test_kronecker_case_of_equation_5(cases):
    case = cases("prong")["003-kronecker"]
    given, expected = (
        {
            k: torch.tensor(v, dtype=torch.float64) if isinstance(v, list) else v
            for k, v in case[key].items()
        }
        for key in ("inputs", "expected")
    )
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        for layer, W, b in ((model[0], "W1", "b1"), (model[2], "W2", "b2")):
            layer.weight.copy_(given[W])
            layer.bias.copy_(given[b])
    model[0].bias.requires_grad_(False)  # the case has the block of the weights alone
    F = metrics.fisher(model, given["X"], Categorical(), parameters=["0.weight"])
    A, B, bias = factors = kronecker_factors(model, given["X"], Categorical())["0"]
    assert not bias
    found = {"F": F, "dd": B, "hh": A, "kron": factors.dense()}
    for key, value in found.items():
        assert gap(value, expected[key]) < case["rtol"], key
    assert gap(factors.dense(), F) > 0.3  # the error of the independence assumption
    assert gap(torch.kron(A, B), F) > 2 * gap(
        factors.dense(), F
    )  # negative control: vec by columns


@named
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_exact_block_where_inputs_and_gradients_are_independent(likelihood, bias):
    """At weights of zero the output is the same for all inputs, and so is the distribution of the
    gradient.
    """
    model, x = nn.Linear(3, 2, bias=bias).double(), inputs(11, 3)
    nn.init.zeros_(model.weight)
    block = kronecker_factors(model, x, likelihood)[""].dense()
    assert gap(block, metrics.fisher(model, x, likelihood)) < 1e-14
    assert gap(block, reference.fisher(model, x, likelihood)) < 1e-13
    if not isinstance(
        likelihood, Gaussian
    ):  # negative control: with weights they depend on each other
        nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(0))
        block = kronecker_factors(model, x, likelihood)[""].dense()
        assert gap(block, metrics.fisher(model, x, likelihood)) > 0.02


def test_is_the_exact_block_of_a_hidden_layer_with_independent_inputs_and_gradients():
    """Half of the inputs feed the layer, the other half the gradient; the batch holds every pair of
    halves.
    """

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3).double()

        def forward(self, x):
            return self.layer(x[:, :2]) * x[:, 2:]

    torch.manual_seed(0)
    h, gain = inputs(4, 2), inputs(5, 3, seed=2)
    pairs = torch.stack([torch.cat(pair) for pair in itertools.product(h, gain)])
    for x, exact in ((pairs, True), (pairs[::3], False)):
        block = kronecker_factors(Product(), x, Gaussian())["layer"].dense()
        difference = gap(block, metrics.fisher(Product(), x, Gaussian()))
        assert difference < 1e-14 if exact else difference > 0.02


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_convolutions_average_over_positions_in_A_and_sum_in_B(padding_mode):
    model, x = convnet(padding_mode), inputs(4, 2, 10, 10)
    for name, (A, B, bias) in kronecker_factors(model, x, Categorical()).items():
        layer = model.get_submodule(name)
        A_, B_ = torch.zeros_like(A), torch.zeros_like(B)
        for h, delta, p in seen(model, layer, x, Categorical()):
            if isinstance(layer, nn.Linear):
                h, delta = h[:, None], delta[:, None]
            else:
                weight = torch.eye(A.shape[0] - bias, dtype=h.dtype).unflatten(
                    1, layer.weight.shape[1:]
                )
                probe = copy.deepcopy(
                    layer
                )  # a convolution whose outputs are the entries of its patches
                probe.weight, probe.bias = nn.Parameter(weight), None
                h, delta = probe(h[None])[0].detach().flatten(1), delta.flatten(1)
            h = torch.cat([h, torch.ones_like(h[:1])]) if bias else h
            A_ += p * h @ h.mT / h.shape[1] / len(x)
            B_ += p * delta @ delta.mT / len(x)
        assert gap(A, A_) < 1e-13 and gap(B, B_) < 1e-13


def test_a_1x1_convolution_on_one_pixel_and_a_sequence_of_one_are_linear_layers():
    linear, x = nn.Linear(3, 2).double(), inputs(6, 3)
    conv = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten()).double()
    with torch.no_grad():
        conv[0].weight.copy_(linear.weight[:, :, None, None])
        conv[0].bias.copy_(linear.bias)
    (one,) = kronecker_factors(linear, x, Categorical()).values()
    (same,) = kronecker_factors(conv, x[:, :, None, None], Categorical()).values()
    (again,) = kronecker_factors(
        nn.Sequential(linear, nn.Flatten()), x[:, None], Categorical()
    ).values()
    for other in (same, again):
        assert gap(other.A, one.A) < 1e-14 and gap(other.B, one.B) < 1e-14


def test_drawn_labels_estimate_the_same_gradient_factor():
    model, x = mlp((3, 5, 4, 4)), inputs(50, 3)
    exact = kronecker_factors(model, x, Categorical())["2"]
    generator = torch.Generator().manual_seed(0)
    errors = []
    for draws in (1, 400):
        drawn = kronecker_factors(model, x, Categorical(), draws=draws, generator=generator)["2"]
        assert torch.equal(drawn.A, exact.A)
        errors.append(gap(drawn.B, exact.B))
    assert errors[1] < 0.03 < errors[0]


@named
@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.bias"])
def test_frozen_parameters_have_no_part_in_the_block(likelihood, frozen):
    model, x = mlp(), inputs(6, 3)
    whole = kronecker_factors(model, x, likelihood)[frozen[0]]
    model.get_parameter(frozen).requires_grad_(False)
    part = kronecker_factors(model, x, likelihood)[frozen[0]]
    assert gap(part.B, whole.B) < 1e-14
    assert gap(part.A, whole.A[-1:, -1:] if "weight" in frozen else whole.A[:-1, :-1]) < 1e-14


def test_the_batch_may_be_cut_into_parts(monkeypatch):
    model, x = convnet(), inputs(5, 2, 10, 10)
    whole = kronecker_factors(model, x, Categorical())
    monkeypatch.setattr("natcompanion.metrics.kronecker.CHUNK", 100)
    for name, f in kronecker_factors(model, x, Categorical()).items():
        assert gap(f.A, whole[name].A) < 1e-14 and gap(f.B, whole[name].B) < 1e-14


# ---- The inverse


@pytest.mark.parametrize("bias", [True, False])
def test_the_inverse_solves_the_dense_system(bias):
    model, x = mlp(bias=bias), inputs(6, 3)
    f = kronecker_factors(model, x, Categorical())["2"]
    G = inputs(4, 5 + bias)
    flat = torch.cat([G[:, :-1].flatten(), G[:, -1]]) if bias else G.flatten()
    F = f.dense()
    expected = torch.linalg.solve(F + 0.01 * eye(F), flat)
    D = f.inverse(0.01)(G)
    found = torch.cat([D[:, :-1].flatten(), D[:, -1]]) if bias else D.flatten()
    assert gap(found, expected) < 1e-12
    pi = ((f.A.trace() / len(f.A)) / (f.B.trace() / len(f.B))) ** 0.5
    A = f.A + 0.1 * pi * eye(f.A)
    B = f.B + 0.1 / pi * eye(f.B)
    spread = torch.linalg.solve(torch.kron(B, A), G.flatten()).view_as(G)
    assert gap(f.inverse(0.01, factored=True)(G), spread) < 1e-12
    assert gap(spread, D) > 0.05  # negative control: the two are not the same


@pytest.mark.parametrize("samples", [0, 40, 128, 200, 400])
def test_a_large_factor_of_few_samples_has_the_same_inverse(samples):
    """Of 257 rows: whether 0, few, the most that count as few, or enough samples made it."""
    scales = torch.logspace(0, -4, 257, dtype=torch.float64)
    h, d = inputs(samples, 257) * scales, inputs(9, 5)
    f = KroneckerFactors(h.mT @ h / max(samples, 1), d.mT @ d / 9, bias=False)
    values, vectors = eigenpairs(f.A)
    assert values.shape == ((samples,) if samples <= 128 else (257,))
    assert float(((vectors * values) @ vectors.mT - f.A).norm()) <= 1e-12 * float(f.A.norm())
    G, F = inputs(5, 257), f.dense()
    expected = torch.linalg.solve(F + 1e-3 * eye(F), G.flatten()).view_as(G)
    assert gap(f.inverse(1e-3)(G), expected) < 1e-10
    narrow = f.inverse(1e-3, dtype=torch.float32)(G.float())
    assert narrow.dtype == torch.float32 and gap(narrow.double(), expected) < 1e-4
    if samples:  # negative control: without what lies outside the range
        inside = vectors @ (vectors.mT @ expected.mT)
        assert (gap(inside.mT, expected) > 0.1) == (samples <= 128)


def test_a_small_part_of_a_large_factor_is_not_missed():
    """129 directions of 257, one far weaker than the others: one more than half of the rows."""
    h = torch.cat([inputs(128, 257), 1e-4 * inputs(1, 257)])
    values, _ = eigenpairs(h.mT @ h)
    assert len(values) == 257
    few, _ = eigenpairs(h[1:].mT @ h[1:])
    assert len(few) == 128


def test_dead_and_constant_units_leave_finite_inverses():
    zero = KroneckerFactors(torch.zeros(3, 3).double(), torch.zeros(2, 2).double(), bias=True)
    for factored in (False, True):
        assert gap(zero.inverse(0.1, factored=factored)(inputs(2, 3)), 10 * inputs(2, 3)) < 1e-12
    with pytest.raises(ValueError, match="damping"):
        zero.inverse(0.0)


# ---- The optimizer


def loss_of(model, x, t):
    return Categorical().nll(model(x), t).mean()


def problem(n=20, dtype=torch.float64):
    x = inputs(n, 3).to(dtype)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def train(model, optimizer, x, t, steps, refresh=5, start=0):
    losses = []
    for step in range(start, start + steps):
        if step % refresh == 0:
            optimizer.refresh(x)
        optimizer.zero_grad()
        loss = loss_of(model, x, t)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def vector(model):
    return reference.parameter_vector(model).clone()


def blocks(model, x, damping):
    """Return the dense damped block-diagonal Kronecker matrix."""
    dense = torch.block_diag(
        *[f.dense() for f in kronecker_factors(model, x, Categorical()).values()]
    )
    return dense + damping * eye(dense)


def test_a_step_solves_the_dense_block_system():
    model, (x, t) = mlp(), problem()
    F, before = blocks(model, x, 0.05), vector(model)
    g = reference.gradient(model, loss_of(model, x, t))
    train(model, KFAC(model, Categorical(), 0.3, damping=0.05), x, t, 1)
    move = vector(model) - before
    assert gap(move, -0.3 * torch.linalg.solve(F, g)) < 1e-11
    G = metrics.fisher(model, x, Categorical()) + 0.05 * eye(F)
    for wrong in (-0.3 * g, -0.3 * torch.linalg.solve(G, g)):  # negative controls
        assert gap(move, wrong) > 0.05


def test_momentum_is_that_of_sgd_on_the_direction_and_decay_is_decoupled():
    model, (x, t) = mlp(), problem()
    optimizer = KFAC(model, Categorical(), 0.1, momentum=0.9, weight_decay=0.02, damping=0.1)
    theta, velocity = vector(model), 0.0
    for _ in range(3):
        F, g = blocks(model, x, 0.1), reference.gradient(model, loss_of(model, x, t))
        velocity = 0.9 * velocity + torch.linalg.solve(F, g)
        theta = (1 - 0.1 * 0.02) * theta - 0.1 * velocity
        train(model, optimizer, x, t, 1, refresh=1)
        assert gap(vector(model), theta) < 1e-12


def test_trains_to_the_end_and_faster_than_plain_gradients():
    x, t = problem(60)
    model = mlp(seed=3)
    plain = copy.deepcopy(model)
    ours = train(model, KFAC(model, Categorical(), 0.3, damping=0.03), x, t, 60, refresh=1)
    sgd = torch.optim.SGD(plain.parameters(), 0.3)
    for _ in range(60):
        sgd.zero_grad()
        loss = loss_of(plain, x, t)
        loss.backward()
        sgd.step()
    assert ours[-1] < 0.05
    assert float(loss.detach()) > 0.3


@pytest.mark.parametrize("factored", [False, True])
def test_resumes_to_the_last_bit(factored):
    x, t = problem(dtype=torch.float32)
    options = {"momentum": 0.5, "damping": 0.01, "factored": factored, "decay": 0.5}
    model = mlp(dtype=torch.float32)
    optimizer = KFAC(model, Categorical(), 0.1, **options)
    train(model, optimizer, x, t, 7)
    other = mlp(seed=9, dtype=torch.float32)
    other.load_state_dict(model.state_dict())
    resumed = KFAC(other, Categorical(), 0.7, **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(model, optimizer, x, t, 6, start=7) == train(other, resumed, x, t, 6, start=7)
    assert torch.equal(vector(model), vector(other))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_as_the_original(copied):
    model, (x, t) = mlp(), problem()
    optimizer = KFAC(model, Categorical(), 0.1, momentum=0.5)
    train(model, optimizer, x, t, 7)
    other, again = copied((model, optimizer))
    assert train(other, again, x, t, 6, start=7) == train(model, optimizer, x, t, 6, start=7)
    assert torch.equal(vector(model), vector(other)) and model[0].weight is not other[0].weight


def test_decay_averages_the_factors():
    model, x, y = mlp(), inputs(9, 3), inputs(9, 3, seed=5)
    optimizer = KFAC(model, Categorical(), 0.1, decay=0.75)
    one, two = (kronecker_factors(model, z, Categorical())["2"] for z in (x, y))
    optimizer.refresh(x)
    optimizer.refresh(y)
    assert gap(optimizer.factors["2"].A, 0.75 * one.A + 0.25 * two.A) < 1e-14
    assert gap(optimizer.factors["2"].B, 0.75 * one.B + 0.25 * two.B) < 1e-14


def test_param_groups_schedulers_closures_and_half_precision():
    model, (x, t) = mlp(dtype=torch.bfloat16), problem(dtype=torch.bfloat16)
    groups = [
        {"params": [model[0].weight, model[2].weight]},
        {"params": [model[0].bias], "lr": 0.0},
    ]
    optimizer = KFAC(model, Categorical(), 0.1, damping=0.1, parameters=groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = copy.deepcopy(model.state_dict())
    optimizer.refresh(x)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, x, t)
        loss.backward()
        return loss

    assert optimizer.step(closure).dtype == torch.bfloat16
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.0]
    after = model.state_dict()
    moved = [name for name in after if not torch.equal(before[name], after[name])]
    assert moved == ["0.weight", "2.weight"]


def test_a_layer_without_a_gradient_stands_still():
    model, (x, t) = mlp(), problem()
    optimizer = KFAC(model, Categorical(), 0.1, momentum=0.9, weight_decay=0.1)
    train(model, optimizer, x, t, 2)
    before = vector(model[0])
    optimizer.zero_grad()
    torch.autograd.backward(loss_of(model, x, t), inputs=list(model[2:].parameters()))
    optimizer.step()
    assert torch.equal(vector(model[0]), before)


def test_a_parameter_without_a_gradient_does_not_decay_and_moves_no_other():
    x, t = problem()
    ends = []
    for bias in (0.0, 100.0):
        model = mlp((3, 2))
        optimizer = KFAC(model, Categorical(), 0.1, weight_decay=0.1)
        optimizer.refresh(x)
        loss_of(model, x, t).backward()
        model[0].bias.grad = None
        with torch.no_grad():
            model[0].bias.fill_(bias)
        optimizer.step()
        assert bool((model[0].bias == bias).all())
        ends.append(model[0].weight.detach())
    assert torch.equal(*ends)


def test_factors_keep_their_precision_when_they_are_loaded():
    """torch casts what it loads to the dtype of the parameters, here float32."""
    model, (x, t) = mlp().float(), problem()
    optimizer = KFAC(model, Categorical(), 0.1)
    train(model, optimizer, x.float(), t, 1)
    fresh = KFAC(copy.deepcopy(model), Categorical(), 0.1)
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for name, factors in optimizer.factors.items():
        assert fresh.factors[name].A.dtype == torch.float64
        assert torch.equal(fresh.factors[name].A, factors.A)


def test_the_model_is_left_alone_by_refresh():
    model = nn.Sequential(mlp(), nn.Dropout(0.5))
    model.train()
    before = vector(model)
    KFAC(model, Categorical(), 0.1).refresh(inputs(5, 3))
    assert model.training and model[1].training and torch.equal(vector(model), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()

    def forward(self, x):
        return self.layer(self.layer(x))


def tied():
    model = mlp((3, 3, 3))
    model[2].weight = model[0].weight
    return model


def normed():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()


def test_refusals_name_what_to_do():
    x = inputs(5, 3)
    with pytest.raises(ValueError, match=r"'1', a BatchNorm1d, has no factors; freeze it"):
        kronecker_factors(normed(), x, Categorical())
    grouped = nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.Flatten()).double()
    with pytest.raises(ValueError, match="'0', a Conv2d with groups"):
        kronecker_factors(grouped, inputs(5, 2, 1, 1), Categorical())
    with pytest.raises(ValueError, match="tied"):
        kronecker_factors(tied(), x, Categorical())
    with pytest.raises(ValueError, match="called 2 times"):
        kronecker_factors(Twice(), x, Categorical())
    with pytest.raises(ValueError, match="sharing"):
        kronecker_factors(mlp(), x, Categorical(), sharing="both")
    with pytest.raises(ValueError, match="sharing"):
        KFAC(mlp(), Categorical(), 0.1, sharing="both")
    for option in ({"decay": 1.0}, {"damping": 0.0}, {"momentum": -1.0}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            KFAC(mlp(), Categorical(), 0.1, **option)
    with pytest.raises(ValueError, match="lr"):
        KFAC(mlp(), Categorical(), -0.1)


def test_a_bad_gradient_or_batch_changes_nothing():
    model, (x, t) = mlp(), problem()
    optimizer = KFAC(model, Categorical(), 0.1, momentum=0.9)
    loss_of(model, x, t).backward()
    with pytest.raises(ValueError, match="refresh"):
        optimizer.step()
    train(model, optimizer, x, t, 1)
    before, factors = vector(model), optimizer.factors
    model[4].bias.grad[0] = torch.nan
    with pytest.raises(ValueError, match="finite gradients"):
        optimizer.step()
    with pytest.raises(ValueError, match="finite"):
        optimizer.refresh(x * torch.inf)
    assert torch.equal(vector(model), before)
    assert all(torch.equal(f.A, factors[name].A) for name, f in optimizer.factors.items())


# ---- Odd models and loops


class Keyword(nn.Module):
    """Calls its layers by keyword, on embedded words."""

    def __init__(self, keyword):
        super().__init__()
        self.words, self.a, self.b = (
            nn.Embedding(7, 3),
            nn.Linear(3, 4, bias=False),
            nn.Linear(4, 2),
        )
        self.words.requires_grad_(False)
        self.keyword = keyword

    def forward(self, words):
        h = self.words(words)
        h = self.a(input=h) if self.keyword else self.a(h)
        return self.b(torch.tanh(h).mean(1))


def test_layers_called_by_keyword_and_integer_inputs():
    words, found = torch.arange(12).view(4, 3) % 7, []
    for keyword in (False, True):
        torch.manual_seed(0)
        model = Keyword(keyword).double()
        found.append(kronecker_factors(model, words, Categorical()))
        torch.testing.assert_close(
            metrics.fisher(model, words, Categorical()),
            metrics.fisher(
                model, words, Categorical(), parameters=["a.weight", "b.weight", "b.bias"]
            ),
        )
    assert list(found[1]) == ["a", "b"] and not found[1]["a"].bias
    assert all(
        torch.equal(found[0][name].A, found[1][name].A)
        and torch.equal(found[0][name].B, found[1][name].B)
        for name in "ab"
    )


def test_hooks_of_the_user_that_change_outputs():
    model, x = mlp(), inputs(9, 3)
    plain = kronecker_factors(model, x, Categorical())
    model[0].register_forward_hook(lambda module, args, output: output * 3)
    hooked = kronecker_factors(model, x, Categorical())
    layer = copy.deepcopy(model)
    layer[0]._forward_hooks.clear()
    with torch.no_grad():
        layer[0].weight *= 3
        layer[0].bias *= 3
    scaled = kronecker_factors(layer, x, Categorical())
    assert (
        gap(hooked["0"].B, 9 * scaled["0"].B) < 1e-12 and gap(hooked["2"].A, scaled["2"].A) < 1e-12
    )
    assert gap(hooked["0"].B, plain["0"].B) > 0.1


def test_groups_that_are_added_later():
    x, t = problem()
    for first, later in (([0], [2, 4]), ([], [0])):
        model = mlp()
        start = [p for k in first for p in model[k].parameters()] or [model[0].weight]
        added = [p for k in later for p in model[k].parameters() if not any(p is q for q in start)]
        optimizer = KFAC(model, Categorical(), 0.1, decay=0.5, parameters=start)
        train(model, optimizer, x, t, 2, refresh=1)
        optimizer.add_param_group({"params": added})
        before = vector(model)
        with pytest.raises(ValueError, match=rf"layer '{later[0]}' trains now; call refresh"):
            optimizer.step()
        assert torch.equal(vector(model), before)
        train(model, optimizer, x, t, 1)
        assert optimizer.factors[str(later[0])].bias and not torch.equal(vector(model), before)


def test_groups_of_parameters_of_others_are_not_added():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    optimizer = KFAC(model, Categorical(), 0.1, parameters=list(model[0].parameters()))
    with pytest.raises(ValueError, match="expected parameters of the model"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert len(optimizer.param_groups) == 1 and optimizer.plain == {}
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert list(optimizer.plain) == ["1"]
    optimizer.refresh(inputs(5, 3))


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    x, t = problem()
    model, other = mlp(), mlp((3, 6, 4, 2))
    optimizer, another = KFAC(model, Categorical(), 0.1), KFAC(other, Categorical(), 0.7)
    train(model, optimizer, x, t, 1)
    train(other, another, x, t, 1)
    factors = optimizer.factors
    with pytest.raises(
        ValueError,
        match="factors of layer '0' of another shape",
    ):
        optimizer.load_state_dict(another.state_dict())
    with pytest.raises(ValueError, match="expected one of KFAC"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), 0.7).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert all(torch.equal(f.A, factors[name].A) for name, f in optimizer.factors.items())
    fresh = KFAC(mlp(), Categorical(), 0.1)
    fresh.load_state_dict(
        KFAC(mlp(), Categorical(), 0.3).state_dict()
    )  # saved before the first refresh
    assert fresh.param_groups[0]["lr"] == 0.3 and not fresh.factors


def test_autocast_does_not_reach_the_factors():
    x, t = problem(dtype=torch.float32)
    model, found = mlp(dtype=torch.float32), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append(kronecker_factors(model, x, Categorical()))
    assert all(
        torch.equal(a.A, b.A) and torch.equal(a.B, b.B)
        for a, b in zip(*(f.values() for f in found), strict=True)
    )
    ends = []
    for enabled in (False, True):
        twin = copy.deepcopy(model)
        optimizer = KFAC(twin, Categorical(), 0.1)
        optimizer.refresh(x)
        loss_of(twin, x, t).backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            optimizer.step()
        ends.append(vector(twin))
    assert torch.equal(*ends)


def test_options_of_another_kind():
    for make in (
        lambda **o: kronecker_factors(mlp(), inputs(5, 3), **o),
        lambda **o: KFAC(mlp(), lr=0.1, **o).refresh(inputs(5, 3)),
    ):
        with pytest.raises(ValueError, match="likelihood: expected one such as"):
            make(likelihood="categorical")
        with pytest.raises(ValueError, match="draws: expected an integer >= 1"):
            make(likelihood=Categorical(), draws=0)


def block_steps(model, x, t, optimizer, params, factors):
    """Take a step, and compare the move of ``params`` with the dense damped block."""
    before = [p.detach().clone() for p in params]
    optimizer.zero_grad()
    loss_of(model, x, t).backward()
    gradient = torch.cat([p.grad.flatten() for p in params])
    optimizer.step()
    moved = torch.cat([(b - p.detach()).flatten() for b, p in zip(before, params, strict=True)])
    block = factors.dense()
    return gap(moved, 0.1 * torch.linalg.solve(block + 1e-2 * eye(block), gradient))


def test_a_trained_bias_with_a_frozen_weight_sees_ones():
    model, (x, t) = mlp(), problem()
    factors = kronecker_factors(model, x, Categorical(), parameters=["0.bias"])
    both = kronecker_factors(model, x, Categorical())
    assert torch.equal(factors["0"].A, torch.ones(1, 1, dtype=torch.float64))
    assert gap(factors["0"].B, both["0"].B) < 1e-14
    optimizer = KFAC(model, Categorical(), 0.1, damping=1e-2, parameters=["0.bias"])
    optimizer.refresh(x)
    assert block_steps(model, x, t, optimizer, [model[0].bias], factors["0"]) < 1e-12


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_freezing_after_a_refresh_takes_the_part_of_the_block(frozen):
    model, (x, t) = mlp(), problem()
    optimizer = KFAC(model, Categorical(), 0.1, damping=1e-2)
    optimizer.refresh(x)
    whole = optimizer.factors["0"]
    getattr(model[0], frozen).requires_grad_(False)
    stays = getattr(model[0], frozen).detach().clone()
    other = getattr(model[0], {"weight": "bias", "bias": "weight"}[frozen])
    exact = kronecker_factors(model, x, Categorical())["0"]
    assert block_steps(model, x, t, optimizer, [other], exact) < 1e-12
    assert torch.equal(getattr(model[0], frozen), stays)
    # the block of both is another one, so that the part of its inverse would not do
    inverses = [(f.dense() + 1e-2 * eye(f.dense())).inverse() for f in (whole, exact)]
    corner = slice(-5, None) if frozen == "weight" else slice(0, 15)
    assert gap(inverses[0][corner, corner], inverses[1]) > 1e-4
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    optimizer.refresh(x)
    getattr(model[0], frozen).requires_grad_(True)
    with pytest.raises(ValueError, match=r"layer '0' trains now; call refresh\(x\)"):
        train(model, optimizer, x, t, 1, refresh=10, start=1)
    optimizer.refresh(x)
    train(model, optimizer, x, t, 1, refresh=10, start=1)
    assert not torch.equal(getattr(model[0], frozen), stays)


def test_groups_of_single_tensors_move_as_one_group():
    x, t = problem()
    ends = []
    for split in (False, True):
        model = mlp()
        groups = [{"params": [p]} for p in model.parameters()][::-1] if split else None
        optimizer = KFAC(model, Categorical(), 0.1, parameters=groups)
        train(model, optimizer, x, t, 4)
        ends.append(vector(model))
    assert gap(*ends) < 1e-12
    model = mlp()
    optimizer = KFAC(model, Categorical(), 0.1, parameters=[model[0].weight])
    optimizer.refresh(x)
    optimizer.add_param_group({"params": [model[0].bias], "lr": 0.0})
    optimizer.refresh(x)
    before = [p.detach().clone() for p in model[0].parameters()]
    train(model, optimizer, x, t, 1, refresh=10, start=1)
    assert torch.equal(model[0].bias, before[1]) and not torch.equal(model[0].weight, before[0])


# ---- Weights that are used at several positions, other layers, and what is left plain


class Positions(nn.Module):
    """A linear network over a sequence (n, T, d): outputs of every position, or their mean."""

    def __init__(self, layer, reduce):
        super().__init__()
        self.layer, self.reduce = layer, reduce

    def forward(self, x):
        y = self.layer(x)
        return y.mean(1) if self.reduce else y.flatten(1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduce", [False, True])
def test_expand_and_reduce_are_exact_in_their_settings_and_not_in_the_other(bias, reduce):
    torch.manual_seed(0)
    model, x = Positions(nn.Linear(3, 2, bias=bias).double(), reduce), inputs(6, 4, 3)
    exact = reference.fisher(model, x, Gaussian())
    mine, other = ("reduce", "expand") if reduce else ("expand", "reduce")
    assert (
        gap(kronecker_factors(model, x, Gaussian(), sharing=mine)["layer"].dense(), exact) < 1e-13
    )
    wrong = kronecker_factors(model, x, Gaussian(), sharing=other)["layer"].dense()
    assert gap(wrong, exact) > 0.1  # negative control


def test_reduce_of_a_convolution_is_that_of_its_patches():
    torch.manual_seed(0)
    convolution, x = nn.Conv2d(2, 3, 2).double(), inputs(5, 2, 3, 3)
    model = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    exact = reference.fisher(model, x, Gaussian())
    found = kronecker_factors(model, x, Gaussian(), sharing="reduce")["0"].dense()
    assert gap(found, exact) < 1e-13
    assert gap(kronecker_factors(model, x, Gaussian())["0"].dense(), exact) > 0.1


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("options", [{}, {"padding": 2, "stride": 2, "dilation": 2}])
def test_conv1d_is_a_conv2d_of_height_one(sharing, options):
    torch.manual_seed(0)
    one = nn.Conv1d(2, 3, 3, **options).double()
    wide = {key: (0 if key == "padding" else 1, value) for key, value in options.items()}
    two = nn.Conv2d(2, 3, (1, 3), **wide).double()
    with torch.no_grad():
        two.weight.copy_(one.weight.unsqueeze(2))
        two.bias.copy_(one.bias)
    x = inputs(5, 2, 9)
    rest = [nn.Tanh(), nn.Flatten()]
    found = kronecker_factors(nn.Sequential(one, *rest), x, Bernoulli(), sharing=sharing)["0"]
    same = nn.Sequential(two, *rest)
    expected = kronecker_factors(same, x.unsqueeze(2), Bernoulli(), sharing=sharing)["0"]
    assert gap(found.A, expected.A) < 1e-14 and gap(found.B, expected.B) < 1e-14


class Words(nn.Module):
    """Entries of a table, or the same by products with one-hot vectors."""

    def __init__(self, table, one_hot, padding_idx=None):
        super().__init__()
        self.one_hot = one_hot
        self.table = (
            nn.Linear(7, 3, bias=False) if one_hot else nn.Embedding(7, 3, padding_idx=padding_idx)
        ).double()
        with torch.no_grad():
            self.table.weight.copy_(table.mT if one_hot else table)
        self.head = nn.Linear(12, 2).double()
        nn.init.constant_(self.head.weight, 0.3)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids):
        x = nn.functional.one_hot(ids, 7).double() if self.one_hot else ids
        return self.head(torch.tanh(self.table(x)).flatten(1))


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("factored", [False, True])
def test_an_embedding_is_a_linear_layer_of_one_hot_inputs(sharing, factored):
    table, g = inputs(7, 3), torch.Generator().manual_seed(0)
    ids, t = torch.randint(7, (8, 4), generator=g), torch.randint(2, (8,), generator=g)
    ends = []
    for one_hot in (False, True):
        model = Words(table, one_hot)
        options = {"sharing": sharing, "factored": factored, "damping": 0.1}
        optimizer = KFAC(model, Categorical(), 0.5, **options)
        for _ in range(3):
            optimizer.refresh(ids)
            optimizer.zero_grad()
            loss_of(model, ids, t).backward()
            optimizer.step()
        weight = model.table.weight.detach()
        ends.append((weight.mT if one_hot else weight, optimizer.factors["table"].dense()))
    assert gap(ends[0][0], ends[1][0]) < 1e-12 and gap(ends[0][1], ends[1][1]) < 1e-12
    assert gap(ends[0][0], table) > 1e-3


def test_padding_is_not_seen():
    ids = torch.tensor([[0, 1, 2, 2], [0, 0, 3, 4], [5, 6, 0, 1]])
    model = Words(inputs(7, 3), False, padding_idx=0)
    factors = kronecker_factors(model, ids, Categorical())["table"]
    assert factors.A.shape == (7,) and float(factors.A[0]) == 0.0
    assert float(factors.A.sum()) == pytest.approx(8 / 12)


def test_a_large_vocabulary_needs_the_expand_setting():
    model = nn.Sequential(nn.Embedding(40000, 2), nn.Flatten())
    ids = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(ValueError, match='sharing="expand"'):
        kronecker_factors(model, ids, Gaussian(), sharing="reduce")
    assert kronecker_factors(model, ids, Gaussian())["0"].A.shape == (40000,)


class Conv1D(nn.Module):
    """As in transformers: a linear layer with the transposed weight."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(inputs(nx, nf))
        self.bias = nn.Parameter(inputs(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_the_transposed_layer_of_transformers_is_linear():
    x, t = problem()
    model, same = nn.Sequential(Conv1D(2, 3)), nn.Sequential(nn.Linear(3, 2)).double()
    with torch.no_grad():
        same[0].weight.copy_(model[0].weight.mT)
        same[0].bias.copy_(model[0].bias)
    for m in (model, same):
        train(m, KFAC(m, Categorical(), 0.1), x, t, 3)
    assert gap(model[0].weight.detach().mT, same[0].weight.detach()) < 1e-13
    assert gap(model[0].weight.detach(), inputs(3, 2)) > 1e-3
    optimizer = KFAC(model, Categorical(), 0.1)
    optimizer.refresh(x)
    optimizer.load_state_dict(optimizer.state_dict())


def test_what_has_no_factors_takes_plain_steps():
    x, t = problem()
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    optimizer = KFAC(model, Categorical(), 0.1)
    assert list(optimizer.plain) == ["1"] and "LayerNorm" in optimizer.plain["1"]
    optimizer.refresh(x)
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, x, t).backward()
    optimizer.step()
    for name, p in model[1].named_parameters():
        expected = before[2 if name == "weight" else 3] - 0.1 * p.grad
        torch.testing.assert_close(p.detach(), expected, rtol=1e-14, atol=1e-14)
    assert gap(model[0].weight.detach(), before[0] - 0.1 * model[0].weight.grad) > 1e-3
    assert list(optimizer.factors) == ["0", "2"]


class Elsewhere(nn.Module):
    """A weight that is used outside of its layer too, and an embedding of positions."""

    def __init__(self):
        super().__init__()
        self.place, self.layer, self.head = nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(12, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        x = x + self.place(torch.arange(4))
        x = nn.functional.linear(torch.tanh(self.layer(x)), self.layer.weight)
        return self.head(x.flatten(1))


def test_what_a_pass_shows_to_have_no_factors_is_left_plain_and_stays_so_when_resumed():
    model, x, t = Elsewhere().double(), inputs(5, 4, 3), torch.tensor([0, 1, 1, 0, 1])
    optimizer = KFAC(model, Categorical(), 0.1)
    assert optimizer.plain == {}
    with pytest.warns(UserWarning, match="KFAC: 54% .*module 'place', which sees"):
        optimizer.refresh(x)
    optimizer.refresh(x)  # no second warning
    reasons = {"place": "sees", "layer": "used elsewhere", "unused": "called 0 times"}
    assert optimizer.plain.keys() == reasons.keys()
    assert all(reasons[name] in why for name, why in optimizer.plain.items())
    loss_of(model, x, t).backward()
    before = model.layer.weight.detach().clone()
    again = copy.deepcopy(model)
    resumed = KFAC(again, Categorical(), 0.1)
    resumed.load_state_dict(optimizer.state_dict())
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        p.grad = None if q.grad is None else q.grad.clone()
    for o in (optimizer, resumed):
        o.step()
    torch.testing.assert_close(model.layer.weight, before - 0.1 * model.layer.weight.grad)
    assert torch.equal(vector(again), vector(model)) and resumed.plain == optimizer.plain


def test_one_warning_if_most_of_the_model_is_plain():
    model = nn.Sequential(nn.LayerNorm(500), nn.Linear(500, 1, bias=False))
    with pytest.warns(UserWarning, match=r"KFAC: 67% .*module '0', a LayerNorm") as found:
        KFAC(model, Categorical(), 0.1)
    assert len(found) == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("factored", [False, True])
def test_the_inverse_takes_vectors_and_has_a_determinant(bias, factored):
    model, x = mlp((3, 4, 2), bias=bias), inputs(9, 3)
    for f in kronecker_factors(model, x, Categorical()).values():
        block, damping = f.dense(), 0.1
        if factored:
            a, b = float(f.A.diagonal().mean()), float(f.B.diagonal().mean())
            pi = (a / b) ** 0.5
            A = f.A + damping**0.5 * pi * eye(f.A)
            damped = KroneckerFactors(A, f.B + damping**0.5 / pi * eye(f.B), f.bias).dense()
        else:
            damped = block + damping * eye(block)
            assert f.logdet(damping) == pytest.approx(float(torch.logdet(damped)), rel=1e-12)
            assert f.logdet(2 * damping) > f.logdet(damping) + 1e-2
        v = inputs(len(block))
        assert gap(f.solve(v, damping, factored=factored), torch.linalg.solve(damped, v)) < 1e-11
        with pytest.raises(ValueError, match="v: expected shape"):
            f.solve(v[1:], damping)


def test_factors_and_inverses_may_have_periods_of_their_own():
    model, (x, t) = mlp(), problem()
    optimizer = KFAC(model, Categorical(), 0.1, decay=0.5)
    optimizer.refresh(x)
    first = optimizer.factors["0"]
    inverses = dict(optimizer._inverses)
    train(model, optimizer, x, t, 1, refresh=10, start=1)
    optimizer.refresh(x, invert=False)
    second = optimizer.factors["0"]
    assert gap(second.B, first.B) > 1e-6 and optimizer._inverses == inverses
    again = copy.deepcopy(model)
    resumed = KFAC(again, Categorical(), 0.1, decay=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    for m, o in ((model, optimizer), (again, resumed)):
        train(m, o, x, t, 2, refresh=10, start=1)
    assert torch.equal(vector(model), vector(again))
    optimizer.refresh(x)
    new = kronecker_factors(model, x, Categorical())["0"]
    assert gap(optimizer.factors["0"].B, 0.5 * second.B + 0.5 * new.B) < 1e-13
    assert optimizer._inverses.keys() == inverses.keys()
    assert all(optimizer._inverses[key] is not inverses[key] for key in inverses)


def test_layers_whose_factors_would_be_too_large_take_plain_steps():
    """Inputs or outputs; the many entries of an Embedding have a diagonal factor."""
    x, t = torch.arange(6).view(2, 3), torch.tensor([0, 1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 7), nn.Linear(7, 4))
    with pytest.warns(UserWarning, match=r"more than max_features=5.*raise max_features"):
        optimizer = KFAC(model.double(), Categorical(), 0.1, max_features=5)
    assert list(optimizer.plain) == ["2", "3"]
    assert "would have 7 rows" in optimizer.plain["2"]
    twin, start = copy.deepcopy(model), model[2].weight.detach().clone()
    usual = KFAC(twin, Categorical(), 0.1)
    assert usual.plain == {}
    for one, made in ((model, optimizer), (twin, usual)):
        made.refresh(x)
        Categorical().nll(one(x), t).mean().backward()
        made.step()
    assert list(optimizer.factors) == ["0"] and list(usual.factors) == ["0", "2", "3"]
    torch.testing.assert_close(model[0].weight, twin[0].weight)
    torch.testing.assert_close(model[2].weight, start - 0.1 * model[2].weight.grad)
    assert (model[2].weight - twin[2].weight).abs().max() > 1e-3
    with pytest.raises(ValueError, match="max_features"):
        KFAC(model, Categorical(), 0.1, max_features=0)


# ---- Over a loader


@pytest.mark.parametrize("pairs", [False, True])
def test_factors_over_a_loader_are_those_of_all_examples(pairs):
    model, x = mlp(), inputs(10, 3)
    data = TensorDataset(x, torch.zeros(10, 2)) if pairs else x
    whole = kronecker_factors(model, x, Categorical())
    found = kronecker_factors(model, DataLoader(data, batch_size=4), Categorical())
    unweighted = [kronecker_factors(model, part, Categorical()) for part in x.split(4)]
    assert found.keys() == whole.keys()
    for name, f in whole.items():
        assert gap(found[name].A, f.A) < 1e-14 and gap(found[name].B, f.B) < 1e-14
        mean = sum(part[name].A for part in unweighted) / 3  # the control: the last batch is short
        assert gap(mean, f.A) > 1e-3


def test_an_empty_loader_and_a_pair_are_refused():
    model, x = mlp(), inputs(10, 3)
    with pytest.raises(ValueError, match="at least one batch"):
        kronecker_factors(model, iter([]), Categorical())
    with pytest.raises(ValueError, match="list of two tensors"):
        kronecker_factors(model, [x, torch.zeros(10, 2)], Categorical())


@pytest.mark.parametrize("joined", [False, True])
def test_both_ways_to_refresh_over_a_loader(joined):
    model, x = mlp(), inputs(12, 3)
    loader = DataLoader(TensorDataset(x, torch.zeros(12, 2)), batch_size=4)
    optimizer = KFAC(model, Categorical(), lr=0.1)
    if joined:
        optimizer.refresh(torch.cat([part for part, _ in loader]))
    else:
        for k, (part, _) in enumerate(loader, start=1):
            optimizer.param_groups[0]["decay"] = 1 - 1 / k
            optimizer.refresh(part, invert=k == len(loader))
    whole, twin = kronecker_factors(model, x, Categorical()), copy.deepcopy(model)
    for name, f in whole.items():
        assert gap(optimizer.factors[name].A, f.A) < 1e-14
        assert gap(optimizer.factors[name].B, f.B) < 1e-14
    other = KFAC(twin, Categorical(), lr=0.1)
    other.refresh(x)
    for m, o in ((model, optimizer), (twin, other)):
        m(x).square().sum().backward()
        o.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("draws", [None, 3])
def test_weights_of_examples_reach_the_parts_of_a_batch(draws):
    """Weights belong to examples; the model runs on parts of the batch."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).double(), torch.randn(12, 4).double()
    w = torch.rand(12).double()

    def backward(weights):
        generator = torch.Generator().manual_seed(1)
        known = Weighted(Categorical(), weights)
        return kronecker_factors(model, x, known, draws=draws, generator=generator)[""].B

    alone = [backward(w * (torch.arange(12) == i)) for i in range(12)]
    torch.testing.assert_close(backward(w), sum(alone))
    assert not torch.allclose(backward(w), backward(w.flip(0)), rtol=1e-2)
    with pytest.raises(ValueError, match="weights: expected shape"):
        backward(torch.ones(13))
