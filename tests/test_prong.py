"""PRONG: the exact step, both forms, a torch optimizer in every respect, and statistics that are
hard to hold.
"""

import copy
import gc
import io
import itertools
import pickle

import pytest
import torch
from _states import equal
from torch import nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from natcompanion import layers, metrics
from natcompanion._moments import Moments, damped_inverse, gram
from natcompanion.data import mnist
from natcompanion.likelihoods import Categorical
from natcompanion.optim import PRONG, PRONGPlus
from natcompanion.whitening import whitening_matrix

MOMENTUM = pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}],
    ids=["plain", "momentum", "nesterov and decay"],
)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def mlp(sizes=(5, 7, 6, 3), dtype=torch.float64, bias=True):
    torch.manual_seed(0)
    modules = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias), nn.Tanh())]
    return nn.Sequential(*modules[:-1]).to(dtype)


def conv_net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, (3, 2), stride=2, padding=(0, 1), dilation=(1, 2)),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(18, 3),
    ).to(dtype)


SHAPES = {mlp: (5,), conv_net: (2, 5, 6)}
NETS = pytest.mark.parametrize("make", [mlp, conv_net], ids=["linear", "convolution"])


def data(n=60, shape=(5,), dtype=torch.float64, seed=1):
    """Off-mean, correlated inputs and labels."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=g, dtype=torch.float64).cumsum(-1) * 0.4 + 0.7
    return x.to(dtype), torch.randint(3, (n,), generator=g)


def kept(optimizer, name, key="inverse"):
    """Return an entry of the state of a layer."""
    return optimizer.state[optimizer.layers[name].weight].get(key)


def parameters(model):
    return torch.cat([p.detach().flatten() for p in layers.canonical_model(model).parameters()])


def train(model, optimizer, x, t, steps, start=0, batch=10):
    for i in range(start, start + steps):
        chosen = (torch.arange(batch) + batch * i) % len(x)
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), t[chosen]).backward()
        optimizer.step()


# ---- The step


@pytest.mark.parametrize("form", ["plain", "whitened"])
def test_case_one_step(cases, form):
    case = cases("prong")["003-sgd-step-is-preconditioned"]
    want, given = case["expected"], case["inputs"]
    h, labels = tensor(given["h"]), torch.tensor(given["labels"])
    model = mlp((3, 2))
    with torch.no_grad():
        model[0].weight.copy_(tensor(given["W"]))
        model[0].bias.copy_(tensor(given["b"]))
    if form == "whitened":
        model = layers.whiten_model(model, "zca")
    optimizer = PRONG(model, given["lr"], eps=given["eps"], sample=h)
    loss = cross_entropy(model(h), labels)
    assert float(loss.detach()) == pytest.approx(want["loss"], rel=case["rtol"])
    loss.backward()
    if form == "whitened":
        torch.testing.assert_close(model[0].V.grad, tensor(want["grad_V"]), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(model[0].d.grad, tensor(want["grad_d"]), rtol=1e-8, atol=1e-10)
    optimizer.step()
    after = layers.canonical_model(model)[0]
    torch.testing.assert_close(
        after.weight.detach(), tensor(want["W_after"]), rtol=1e-9, atol=1e-11
    )
    torch.testing.assert_close(after.bias.detach(), tensor(want["b_after"]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("batch", [2, 50])  # both orders of the products
def test_step_is_the_augmented_inverse_second_moment(batch):
    """[W b] -= lr [G_W g_b] (E[h~ h~^T] + eps diag(1, .., 1, 0))^-1, exactly."""
    (x, _), eps, lr = data(), 0.03, 0.2
    inputs, labels = data(batch, seed=7)
    model = mlp()
    plain = copy.deepcopy(model)
    optimizer = PRONG(model, lr, eps=eps, sample=x)
    train(model, optimizer, inputs, labels, 1, batch=batch)
    cross_entropy(plain(inputs), labels).backward()
    h = x
    for i in range(0, 5, 2):
        G = torch.cat((plain[i].weight.grad, plain[i].bias.grad[:, None]), 1)
        old = torch.cat((plain[i].weight, plain[i].bias[:, None]), 1)
        new = torch.cat((model[i].weight, model[i].bias[:, None]), 1)
        moved = ((new - old) / -lr).detach()
        augmented = torch.cat((h, torch.ones_like(h[:, :1])), 1)
        E = augmented.T @ augmented / len(h)
        damping = torch.diag(tensor([eps] * h.shape[1] + [0.0]))
        torch.testing.assert_close(moved, G @ torch.linalg.inv(E + damping), rtol=1e-9, atol=1e-11)
        moments = Moments.of(h)
        U, _ = layers.whitening_pair(moments.covariance(), eps)
        P, c = U.T @ U, moments.mean
        uncentred = damped_inverse(moments.second_moment(), eps)
        for wrong in (
            uncentred,
            torch.linalg.inv(P),
            U @ U.T,
        ):  # Sigma = E[hh^T] with c = mu, U^-T for U, U^T for U
            W = (G[:, :-1] - torch.outer(G[:, -1], c)) @ wrong
            bad = torch.cat((W, (G[:, -1] - W @ c)[:, None]), 1)
            assert float((bad - moved).norm() / moved.norm()) > 0.05
        h = torch.tanh(plain[i](h)).detach()


def test_layer_without_bias_uses_the_second_moment():
    x, t = data()
    model = mlp((5, 3), bias=False)
    before = model[0].weight.detach().clone()
    plain = copy.deepcopy(model)
    train(model, PRONG(model, 0.2, eps=0.03, sample=x), x, t, 1)
    cross_entropy(plain(x[:10]), t[:10]).backward()
    want = before - 0.2 * plain[0].weight.grad @ damped_inverse(x.T @ x / len(x), 0.03)
    torch.testing.assert_close(model[0].weight.detach(), want)
    frozen = mlp((5, 3))  # a bias that is not trained cannot take up the centring either
    frozen[0].bias.requires_grad_(False)
    with torch.no_grad():
        frozen[0].weight.copy_(before)
        frozen[0].bias.zero_()
    train(frozen, PRONG(frozen, 0.2, eps=0.03, sample=x), x, t, 1)
    torch.testing.assert_close(frozen[0].weight.detach(), want)


# ---- Both forms take the same steps


@NETS
@MOMENTUM
@pytest.mark.parametrize("statistics", ["sample", "part of the sample", "batches"])
def test_both_forms_take_the_same_steps(make, options, statistics):
    x, t = data(shape=SHAPES[make])
    how = {
        "sample": {"sample": x},
        "part of the sample": {"sample": x, "sample_size": 30},
        "batches": {"decay": 0.8},
    }
    ends = []
    for form in ("plain", "pca", "zca"):
        model = make() if form == "plain" else layers.whiten_model(make(), form)
        train(model, PRONG(model, 0.01, eps=0.1, period=3, **options, **how[statistics]), x, t, 10)
        ends.append(parameters(model))
    start = parameters(make())
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-8, atol=1e-10)
    assert float((ends[0] - start).norm()) > 0.01


@pytest.mark.parametrize("kept", [False, True])
def test_velocity_left_in_old_coordinates_is_caught(kept):
    """In whitened layers the momentum buffer has to change with the coordinates."""
    x, t = data()
    model, other = mlp(), layers.whiten_model(mlp(), "zca")
    train(model, PRONG(model, 0.05, 0.9, eps=0.03, period=3, sample=x), x, t, 7)
    optimizer = PRONG(other, 0.05, 0.9, eps=0.03, period=3, sample=x)
    for i in range(7):
        buffers = {p: state["momentum_buffer"].clone() for p, state in optimizer.state.items()}
        if i % 3 == 0:
            optimizer.refresh()
            for p, buffer in buffers.items() if kept else ():
                optimizer.state[p]["momentum_buffer"].copy_(buffer)
        train(other, optimizer, x, t, 1, start=i)
    difference = float((parameters(other) - parameters(model)).norm())
    assert difference > 1e-3 if kept else difference < 1e-8


@MOMENTUM
def test_a_white_input_and_no_statistics_leave_plain_gradient_descent(options):
    """With covariance I and mean 0, eps -> 0, the step is that of torch.optim.SGD."""
    g = torch.Generator().manual_seed(0)
    x, t = (
        torch.randn(40, 5, generator=g, dtype=torch.float64),
        torch.randint(3, (40,), generator=g),
    )
    centred = x - x.mean(0)
    U, _ = layers.whitening_pair(gram(centred) / 40)
    white = centred @ U.T
    ours, theirs = mlp((5, 3)), mlp((5, 3))
    train(ours, PRONG(ours, 0.1, eps=1e-12, sample=white, **options), white, t, 6)
    decay = options.get("weight_decay", 0.0)
    options = {**options, "weight_decay": 0.0}
    sgd = torch.optim.SGD(theirs.parameters(), 0.1, **options)

    def shrink(*_):  # decoupled, as in AdamW
        for p in theirs.parameters():
            p.data.mul_(1 - 0.1 * decay)

    sgd.register_step_pre_hook(shrink)
    train(theirs, sgd, white, t, 6)
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=1e-9, atol=1e-10)


def test_statistics_are_renewed_every_period():
    x, t = data()
    drawn = []

    def sample():
        drawn.append(optimizer.steps)
        return x

    model = mlp()
    optimizer = PRONG(model, 0.1, period=3, sample=sample)
    assert drawn == []
    model(x)
    with torch.no_grad():
        model(x)
    train(model, optimizer, x, t, 7)
    assert drawn == [0, 3, 6]
    ends = []
    for period in (1, 2, 100):
        model = mlp()
        train(model, PRONG(model, 0.1, period=period, sample=x), x, t, 5)
        ends.append(parameters(model))
    assert float((ends[0] - ends[1]).norm()) > 1e-6 and float((ends[1] - ends[2]).norm()) > 1e-6


@pytest.mark.parametrize("kind", ["tensor", "tuple", "batches"])
def test_kinds_of_samples(kind):
    x, t = data()
    model, reference = mlp(), mlp()
    sample = {
        "tensor": lambda: x,
        "tuple": lambda: (x,),
        "batches": lambda: (part for part in x.split(17)),
    }[kind]
    train(model, PRONG(model, 0.1, sample=sample), x, t, 3)
    optimizer = PRONG(reference, 0.1)
    optimizer.refresh(x)
    assert kept(optimizer, "0", "renewed") == 0
    reference = mlp()
    train(reference, PRONG(reference, 0.1, sample=x), x, t, 3)
    torch.testing.assert_close(parameters(model), parameters(reference), rtol=1e-10, atol=1e-12)


def test_constant_inputs_are_measured_once():
    x, t = data()
    model = mlp()
    optimizer = PRONG(model, 0.1, period=2, sample=x, sample_size=20, constant_inputs=["0"])
    train(model, optimizer, x, t, 1)
    first, other = (kept(optimizer, name) for name in ("0", "2"))
    train(model, optimizer, x, t, 4, start=1)
    assert torch.equal(kept(optimizer, "0"), first) and not torch.equal(kept(optimizer, "2"), other)
    whole = [mlp(), mlp()]
    for one, names in zip(whole, ([], ["0"]), strict=True):
        train(one, PRONG(one, 0.1, period=2, sample=x, constant_inputs=names), x, t, 5)
    assert torch.equal(parameters(whole[0]), parameters(whole[1]))


# ---- Whitening of back-propagated gradients (footnote 4)


def test_footnote_4_is_a_step_in_the_coordinates_of_both_whitenings():
    """W = R^T V U: a step in V and in d, with b = R^T d - W c, mapped back."""
    (x, t), lr, eps, delta_eps = data(), 0.1, 0.03, 1e-3
    model = mlp((5, 3))
    W, b = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    c, sigma = x.mean(0), torch.cov(x.T, correction=0)
    U, U_inverse = layers.whitening_pair(sigma, eps)
    r = (x @ W.T + b).requires_grad_()
    delta = torch.autograd.grad(cross_entropy(r, t, reduction="sum"), r)[0]
    R, R_inverse = layers.whitening_pair(delta.T @ delta / len(x), delta_eps)
    V = (R_inverse.T @ W @ U_inverse).requires_grad_()
    d = (R_inverse.T @ (b + W @ c)).requires_grad_()
    cross_entropy(((x - c) @ U.T @ V.T + d) @ R, t).backward()
    W_new = R.T @ (V - lr * V.grad) @ U
    b_new = R.T @ (d - lr * d.grad) - W_new @ c
    train(model, PRONG(model, lr, eps=eps, sample=x, backward_eps=delta_eps), x, t, 1, batch=60)
    torch.testing.assert_close(model[0].weight, W_new, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(model[0].bias, b_new, rtol=1e-8, atol=1e-10)
    plain = mlp((5, 3))
    train(plain, PRONG(plain, lr, eps=eps, sample=x), x, t, 1, batch=60)
    assert float((plain[0].weight - W_new).detach().norm()) > 0.1


@NETS
def test_footnote_4_renews_with_the_statistics(make):
    x, t = data(shape=SHAPES[make])
    model = make()
    optimizer = PRONG(model, 0.003, eps=0.1, period=3, sample=x, backward_eps=0.1)
    train(model, optimizer, x, t, 2)
    before = kept(optimizer, "0", "backward_inverse")
    train(model, optimizer, x, t, 1, start=2)
    assert kept(optimizer, "0", "backward_inverse") is before
    train(model, optimizer, x, t, 1, start=3)
    assert kept(optimizer, "0", "backward_inverse") is not before
    assert torch.isfinite(parameters(model)).all()


# ---- A torch optimizer


def setting(name, x):
    """Return a model and its optimizer."""
    model = layers.whiten_model(mlp()) if name == "whitened" else mlp()
    more = {
        "sample": {"sample": x, "sample_size": 30},
        "whitened": {"sample": x, "sample_size": 30},
        "batches": {"decay": 0.7},
        "footnote 4": {"sample": x, "backward_eps": 0.1},
    }[name]
    return model, PRONG(model, 0.02, 0.9, eps=0.05, period=3, **more)


NAMES = pytest.mark.parametrize("name", ["sample", "whitened", "batches", "footnote 4"])


@NAMES
def test_resume_bit_for_bit_at_any_step(name):
    x, t = data()
    model, optimizer = setting(name, x)
    path, kept = [], []
    for i in range(8):
        kept.append(io.BytesIO())
        torch.save((model.state_dict(), optimizer.state_dict()), kept[-1])
        train(model, optimizer, x, t, 1, start=i)
        path.append(parameters(model))
    for i, file in enumerate(kept):
        other, again = setting(name, x)
        file.seek(0)
        state, moments = torch.load(file, weights_only=True)
        other.load_state_dict(state)
        again.load_state_dict(moments)
        train(other, again, x, t, 8 - i, start=i)
        assert torch.equal(parameters(other), path[-1]), i


@NAMES
@pytest.mark.parametrize("way", ["converted", "loaded"])
def test_statistics_follow_the_model_to_another_precision(name, way):
    x, t = data()
    whole, reference = setting(name, x)
    train(whole, reference, x, t, 9)
    model, optimizer = setting(name, x.float())
    train(model.float(), optimizer, x.float(), t, 5)
    if way == "loaded":
        state = model.state_dict(), optimizer.state_dict()
        model, optimizer = setting(name, x)
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    else:
        model.double()
        optimizer.sample = None if name == "batches" else x
    train(model, optimizer, x, t, 4, start=5)
    torch.testing.assert_close(parameters(model), parameters(whole), rtol=1e-4, atol=1e-5)
    assert name == "whitened" or kept(optimizer, "0").dtype == torch.float64


@NAMES
def test_deep_copy_and_pickle_go_on_alike(name):
    x, t = data()
    model, optimizer = setting(name, x)
    train(model, optimizer, x, t, 4)
    pairs = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    train(model, optimizer, x, t, 4, start=4)
    for other, again in pairs:
        assert again.model is other
        train(other, again, x, t, 4, start=4)
        assert torch.equal(parameters(other), parameters(model))


def test_copied_model_is_a_plain_model():
    x, t = data()
    model = mlp()
    optimizer = PRONG(model, 0.1, sample=x)
    train(model, optimizer, x, t, 2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        other.zero_grad()
        cross_entropy(other(x), t).backward()
        free = mlp()
        free.load_state_dict(other.state_dict())
        cross_entropy(free(x), t).backward()
        for p, q in zip(other.parameters(), free.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    optimizer.zero_grad()
    cross_entropy(model(x), t).backward()
    free.zero_grad()
    cross_entropy(free(x), t).backward()
    torch.testing.assert_close(model[0].weight.grad, free[0].weight.grad)


def test_hooks_go_with_the_optimizer():
    x, t = data()
    model = mlp()

    def hooks():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    optimizer = PRONG(model, 0.1, sample=x)
    assert hooks() == 3
    again = PRONG(model, 0.1, sample=x)  # the newest one wins
    assert hooks() == 3
    train(model, again, x, t, 1)
    del optimizer
    gc.collect()
    assert hooks() == 3
    again.close()
    assert hooks() == 0
    again = PRONG(model, 0.1, sample=x)
    del again
    gc.collect()
    assert hooks() == 0


def test_a_failing_sample_leaves_no_trace():
    x, t = data()
    model = mlp()
    optimizer = PRONG(model, 0.1, sample=lambda: x[:, :3])
    before = parameters(model)
    with pytest.raises(ValueError, match="shape"):
        train(model, optimizer, x, t, 1)
    assert optimizer._measured is None and kept(optimizer, "0") is None
    assert torch.equal(parameters(model), before) and optimizer.steps == 0
    optimizer.sample = x
    train(model, optimizer, x, t, 1)


def test_param_groups_schedulers_and_no_step():
    x, t = data()
    model = mlp()
    before = copy.deepcopy(model)
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "eps": 10.0},
        {"params": model[4].parameters()},
    ]
    optimizer = PRONG(model, 0.1, 0.5, eps=0.01, sample=x, parameters=groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    train(model, optimizer, x, t, 1)
    assert torch.equal(model[0].weight, before[0].weight)
    whole = mlp()
    train(whole, PRONG(whole, 0.1, 0.5, eps=0.01, sample=x), x, t, 1)
    assert torch.equal(model[4].weight, whole[4].weight)
    small = (model[2].weight - before[2].weight).detach().norm()
    assert float(small) < 0.2 * float((whole[2].weight - before[2].weight).detach().norm())
    scheduler.step()
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.0, 0.01, 0.01])
    assert pickle.loads(pickle.dumps(optimizer)).param_groups[1]["lr"] == pytest.approx(0.01)


def test_a_group_added_later():
    x, t = data()
    whole, grown = mlp(), mlp()
    train(whole, PRONG(whole, 0.1, sample=x, parameters=whole[2:].parameters()), x, t, 1)
    optimizer = PRONG(grown, 0.1, sample=x, parameters=grown[2:].parameters())
    train(grown, optimizer, x, t, 1)
    assert torch.equal(parameters(grown), parameters(whole))
    metric = kept(optimizer, "2")
    optimizer.add_param_group({"params": grown[0].parameters(), "lr": 0.5})
    assert list(optimizer.layers) == ["0", "2", "4"] and kept(optimizer, "2") is metric
    with pytest.raises(ValueError, match="parameters of the model"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert len(optimizer.param_groups) == 2
    optimizer.refresh()
    before = grown[0].weight.detach().clone()
    train(grown, optimizer, x, t, 1)
    assert float((grown[0].weight - before).detach().norm()) > 0
    assert len(grown[2]._forward_hooks) == 1


def test_weight_decay_shrinks_the_weights_themselves():
    x, t = data()
    ends = []
    for decay in (0.0, 0.1):
        model = mlp()
        train(model, PRONG(model, 0.1, sample=x, weight_decay=decay), x, t, 1)
        ends.append(parameters(model))
    torch.testing.assert_close(ends[1], ends[0] - 0.1 * 0.1 * parameters(mlp()))


def test_the_rest_gets_plain_steps_by_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared, self.again = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
            self.again.weight = self.shared.weight
            self.norm, self.frozen, self.last = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.frozen.requires_grad_(False)
            self.grouped = nn.Conv1d(6, 6, 1)

        def forward(self, x):
            h = self.again(torch.tanh(self.shared(torch.tanh(self.first(x)))))
            return self.last(self.norm(self.grouped(self.frozen(h)[:, :, None])[:, :, 0]))

    torch.manual_seed(0)
    (x, t), model = data(), Net().double()
    plain = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="of the parameters take plain gradient steps"):
        optimizer = PRONG(model, 0.1, sample=x)
    assert sorted(optimizer.layers) == ["first", "frozen", "last"]
    assert sorted(optimizer.plain) == ["again", "grouped", "norm", "shared"]
    assert "shares" in optimizer.plain["shared"] and "LayerNorm" in optimizer.plain["norm"]
    train(model, optimizer, x, t, 1)
    train(plain, torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], 0.1), x, t, 1)
    same = {
        n
        for n, p in model.named_parameters()
        if torch.allclose(p, dict(plain.named_parameters())[n])
    }
    assert same == {n for n, _ in model.named_parameters()} - {
        "first.weight",
        "first.bias",
        "last.weight",
        "last.bias",
    }
    subset = PRONG(model, 0.1, sample=x, parameters=model.last.parameters())
    assert list(subset.layers) == ["last"] and not subset.plain


def test_convolutions_with_other_padding_get_plain_steps():
    model = nn.Sequential(
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.Conv2d(2, 2, 3, padding="same")
    )
    with pytest.warns(UserWarning, match="100% of the parameters"):
        assert sorted(PRONG(model, 0.1).plain) == ["0", "1"]


@NETS
def test_accumulated_gradients(make):
    x, t = data(shape=SHAPES[make])
    whole, parts = make(), make()
    for model, sizes in ((whole, [60]), (parts, [10, 20, 30])):
        optimizer = PRONG(model, 0.1, sample=x)
        for a, b in zip(x.split(sizes), t.split(sizes), strict=True):
            (cross_entropy(model(a), b) * len(a) / 60).backward()
        optimizer.step()
    torch.testing.assert_close(parameters(whole), parameters(parts), rtol=1e-9, atol=1e-11)


@NETS
def test_gradients_from_elsewhere_are_preconditioned_in_the_step(make):
    x, t = data(shape=SHAPES[make])
    usual, func = make(), make()
    optimizer = PRONG(usual, 0.1, sample=x)
    train(usual, optimizer, x, t, 2)
    optimizer = PRONG(func, 0.1, sample=x)
    for i in range(2):
        chosen = torch.arange(10) + 10 * i
        named = {name: p.detach() for name, p in func.named_parameters()}

        def loss(theta, x=x[chosen], t=t[chosen]):
            return cross_entropy(functional_call(func, theta, (x,)), t)

        raw = grad(loss)(named)
        for name, p in func.named_parameters():
            p.grad = raw[name]
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(parameters(usual), parameters(func), rtol=1e-9, atol=1e-11)


def test_inputs_by_keyword_and_single_images():
    class Named(nn.Module):
        def __init__(self, keyword):
            super().__init__()
            self.net, self.keyword = conv_net(), keyword

        def forward(self, x):
            first, *rest = self.net
            h = first(input=x) if self.keyword else first(x)
            for layer in rest:
                h = layer(h)
            return h

    x, t = data(shape=(2, 5, 6))
    usual, named = Named(False), Named(True)
    for model in (usual, named):
        train(model, PRONG(model, 0.1, sample=x), x, t, 3)
    assert torch.equal(parameters(usual), parameters(named))
    one, many = (nn.Sequential(nn.Conv2d(2, 3, 2)).double() for _ in range(2))
    many.load_state_dict(one.state_dict())
    for model, image in ((one, x[0]), (many, x[:1])):
        optimizer = PRONG(model, 0.1, sample=x)
        model(image).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(parameters(one), parameters(many), rtol=1e-9, atol=1e-11)


def test_a_second_step_with_the_same_gradient_repeats_the_first():
    x, t = data()
    model = mlp()
    optimizer = PRONG(model, 0.1, sample=x)
    start = parameters(model)
    train(model, optimizer, x, t, 1)
    first = parameters(model) - start
    optimizer.step()
    torch.testing.assert_close(parameters(model) - start, 2 * first)


def test_metrics_of_a_model_in_training_are_the_plain_ones():
    x, t = data(20)
    model, free = mlp(), mlp()
    optimizer = PRONG(model, 0.1, sample=x)
    train(model, optimizer, x, t, 2)
    free.load_state_dict(model.state_dict())
    steps = optimizer.steps
    for metric in (metrics.fisher, lambda m, x, lk: metrics.FisherOperator(m, x, lk).dense()):
        torch.testing.assert_close(metric(model, x, Categorical()), metric(free, x, Categorical()))
    assert optimizer.steps == steps


def test_sequences_and_layers_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.last = nn.Linear(5, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            h = torch.tanh(self.layer(torch.tanh(self.layer(x))))
            return self.last(h).mean(1)

    x, t = data(20, (4, 5))
    form_a, form_b = layers.whiten_model(Twice()), Twice()
    for model in (form_a, form_b):
        train(model, PRONG(model, 0.1, 0.9, eps=0.1, period=2, sample=x), x, t, 5)
    torch.testing.assert_close(parameters(form_a), parameters(form_b), rtol=1e-9, atol=1e-11)


def test_statistics_leave_buffers_alone_and_see_the_mode_of_the_model():
    x, t = data()
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    before = copy.deepcopy(model)
    optimizer = PRONG(model, 0.1, sample=x)
    optimizer.refresh()
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before.buffers(), strict=True))
    h = copy.deepcopy(before)[:3](x)  # with the statistics of the batch, as in training
    torch.testing.assert_close(kept(optimizer, "3", "mean"), h.mean(0).detach())
    plain = copy.deepcopy(before)
    optimizer.zero_grad()
    train(model, optimizer, x, t, 1)
    train(plain, torch.optim.SGD(plain.parameters(), 0.1), x, t, 1)
    torch.testing.assert_close(model[1].running_mean, plain[1].running_mean)
    assert int(model[1].num_batches_tracked) == 1 + int(before[1].num_batches_tracked)


# ---- Numbers that are hard to hold


@pytest.mark.parametrize("form", ["plain", "whitened"])
@pytest.mark.parametrize("case", ["constant", "dead", "few samples", "batch of one", "one by one"])
def test_degenerate_statistics(form, case):
    x, t = data(dtype=torch.float32)
    x = torch.cat((x[:, :3], torch.full_like(x[:, :2], 7.3)), 1)  # constant features
    model = mlp(dtype=torch.float32)
    if case == "dead":
        with torch.no_grad():
            model[0].weight.zero_()
    if form == "whitened":
        model = layers.whiten_model(model)
    sample = {"few samples": x[:3], "batch of one": x, "one by one": None}.get(case, x)
    eps = 1e-8 if case in ("constant", "dead") else 1e-2
    batch = 1 if case in ("batch of one", "one by one") else 10
    optimizer = PRONG(model, 1e-3, 0.9, eps=eps, period=2, sample=sample)
    start = parameters(model)
    train(model, optimizer, x, t, 20, batch=batch)
    assert torch.isfinite(parameters(model)).all() and float((parameters(model) - start).norm()) > 0
    first = (
        layers.canonical_model(model)[0].weight
        - layers.canonical_model(mlp(dtype=torch.float32))[0].weight
    )
    if case == "constant":  # nothing is learnt about a feature that never varies
        assert float(first[:, 3:].detach().abs().max()) < (1e-9 if form == "plain" else 1e-5)


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_raw_digits_with_constant_pixels(eps):
    x, t = mnist()[:2]
    x, t = x[:1000].flatten(1).float(), t[:1000]
    assert int((x.std(0) == 0).sum()) > 100
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 20), nn.Sigmoid(), nn.Linear(20, 10))
    before = float(cross_entropy(model(x), t).detach())
    train(model, PRONG(model, 1e-2, eps=eps, period=10, sample=x), x, t, 20, batch=50)
    assert torch.isfinite(parameters(model)).all()
    assert float(cross_entropy(model(x), t).detach()) < before - 0.01


def test_half_precision_is_computed_in_float32():
    x, t = data(dtype=torch.float32)
    narrow, wide = mlp(dtype=torch.bfloat16), mlp(dtype=torch.float32)
    x = x.bfloat16()
    train(narrow, PRONG(narrow, 0.1, sample=x), x, t, 3)
    train(wide, PRONG(wide, 0.1, sample=x.float()), x.float(), t, 3)
    assert parameters(narrow).dtype == torch.bfloat16
    assert float((parameters(narrow).float() - parameters(wide)).abs().max()) < 0.05


@pytest.mark.parametrize("sampled", [True, False])
def test_bad_numbers_do_not_poison_the_statistics(sampled):
    x, t = data()
    bad = x.clone()
    bad[3, 1] = torch.nan
    model = mlp()
    optimizer = PRONG(
        model,
        0.1,
        period=2,
        sample=(lambda: bad if optimizer.steps == 2 else x) if sampled else None,
    )
    train(model, optimizer, x, t, 2)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="finite"):
        train(model, optimizer, x if sampled else bad, t, 1)
    assert equal(optimizer.state_dict(), before)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_bad_backward_pass_does_not_poison_the_statistics(first):
    """Whether the second moment of the back-propagated gradients is renewed in that step, or
    not.
    """
    x, t = data()
    ends = []
    for bad in (False, True):
        model = mlp()
        optimizer = PRONG(model, 0.02, eps=0.05, period=3, sample=x, backward_eps=0.1)
        train(model, optimizer, x, t, first)
        if bad:
            (cross_entropy(model(x), t) * torch.nan).backward()
            with pytest.raises(ValueError, match="finite"):
                optimizer.step()
        train(model, optimizer, x, t, 5, start=first)
        ends.append(parameters(model))
    assert torch.equal(*ends)


def test_eigenvalues_that_rounding_made_negative():
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e6
    sigma = torch.cov(x.T, correction=0)
    P = damped_inverse(sigma, 1e-8)
    assert torch.isfinite(P).all() and float(torch.linalg.eigvalsh(P)[0]) > -1e-6
    assert float(torch.linalg.eigvalsh(P)[-1]) == pytest.approx(1e8, rel=0.1)


@pytest.mark.parametrize("d", [3, 255, 256, 301])
def test_gram(d):
    x = torch.randn(7, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(gram(x), x.T @ x)


@pytest.mark.parametrize("name", ["batches", "whitened"])
def test_memory_is_flat(name):
    x, t = data()
    model, optimizer = setting(name, x)

    def tensors():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    train(model, optimizer, x, t, 10)
    before = tensors()
    train(model, optimizer, x, t, 201, start=10)  # ends as far from a renewal as it began
    assert tensors() <= before  # less, if what other tests left is collected meanwhile


# ---- Bad input


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lr": -1.0}, "lr"),
        ({"momentum": 1.5}, "momentum"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1.0}, "eps"),
        ({"period": 0}, "period"),
        ({"period": 2.5}, "period"),
        ({"sample_size": 0}, "sample_size"),
        ({"decay": 2.0}, "decay"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"backward_eps": 0.0}, "backward_eps"),
        ({"constant_inputs": ["7"]}, "constant_inputs"),
        ({"max_features": 0}, "max_features"),
        ({"in_backward": True}, "in_backward"),
    ],
)
def test_bad_arguments_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        PRONG(mlp(), **{"lr": 0.1, **options})


def test_bad_calls_are_refused():
    with pytest.raises(ValueError, match="sample"):
        PRONG(mlp(), 0.1).refresh()


@pytest.mark.parametrize("form", ["plain", "whitened"])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(form):
    x, t = data()

    def trained(sizes=(5, 7, 6, 3), form=form, make=PRONG, **options):
        model = mlp(sizes) if form == "plain" else layers.whiten_model(mlp(sizes))
        optimizer = make(model, 0.02, **options)
        train(model, optimizer, x, t, 2)
        return optimizer

    optimizer = trained(momentum=0.9)
    kept_before = copy.deepcopy(optimizer.state_dict())
    diagonal = {"make": PRONGPlus, "normalization": "diagonal", "form": "plain"}
    others = [
        (trained((5, 3)), "size of optimizer's group"),
        (trained((5, 8, 6, 3)), "of the layer '0'|of the layer '2'"),
        (trained((5, 8, 6, 3), momentum=0.9, sample=x), "a momentum of shape"),
        (trained(form="whitened" if form == "plain" else "plain"), "'inverse' of the layer '0'"),
        (torch.optim.SGD(mlp().parameters(), 0.1), "expected one of PRONG on this model"),
    ]
    if form == "plain":
        others.append((trained(**diagonal), "'whitening' of the layer '0'"))
    for other, message in others:
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(other.state_dict())
        assert equal(optimizer.state_dict(), kept_before)
    with pytest.raises(ValueError, match="no option"):
        trained(**diagonal).load_state_dict(trained(form="plain").state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": [(torch.zeros(4, 5),)]}, "sample: expected a tensor of inputs .* got list"),
        ({"sample": torch.zeros(0, 5)}, "sample: expected a tensor of inputs .* got shape"),
        ({"sample": torch.tensor(1.0)}, "sample: expected a tensor of inputs .* got shape"),
        ({"sample_size": 3}, "sample_size: expected a tensor as the sample .* got no sample"),
        (
            {"sample": lambda: None, "sample_size": 3},
            "sample_size: expected a tensor as the sample .* got a function",
        ),
    ],
)
def test_what_is_no_sample_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PRONG(mlp(), 0.1, **options)


@pytest.mark.parametrize(
    "drawn", [None, ["x"], [list(data())]], ids=["nothing", "a name", "inputs and labels"]
)
def test_a_function_that_returns_no_sample_is_refused(drawn):
    model = mlp()
    optimizer = PRONG(model, 0.1, sample=lambda: drawn)
    with pytest.raises(
        ValueError, match="sample: expected a tensor, a tuple .* got a batch of type"
    ):
        train(model, optimizer, *data(), 1)
    assert optimizer._measured is None and kept(optimizer, "0") is None


class ByName(nn.Module):
    """A model that takes its input by name, and returns more than its outputs."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, *, features):
        return {"logits": self.net(features), "loss": None}


def test_samples_are_dictionaries_too():
    x, t = data()
    model, twin = ByName(), mlp()
    one = PRONG(model, 0.1, sample=lambda: ({"features": part} for part in x.split(7)))
    other = PRONG(twin, 0.1, sample=x)
    for _ in range(2):
        for optimizer, found in ((one, model(features=x)["logits"]), (other, twin(x))):
            optimizer.zero_grad()
            cross_entropy(found, t).backward()
            optimizer.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_a_sample_that_the_model_refuses_is_named():
    x, t = data()
    model = mlp()
    optimizer = PRONG(model, 0.1, sample=x.bfloat16())
    before = parameters(model)
    with pytest.raises(ValueError, match="sample: expected inputs that the model takes.*dtype"):
        train(model, optimizer, x, t, 1)
    assert torch.equal(parameters(model), before) and optimizer._measured is None


@pytest.mark.parametrize("eps", [1e-8, 1e-4, 1e-1])
def test_an_inverse_for_float32_has_its_digits_whatever_the_condition(eps):
    g = torch.Generator().manual_seed(0)
    scales = torch.logspace(-5, 1, 40, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(40, 40, generator=g, dtype=torch.float64)).Q
    x = torch.randn(300, 40, generator=g, dtype=torch.float64) * scales @ turn
    sigma = x.T @ x / 300
    exact, single = damped_inverse(sigma, eps), damped_inverse(sigma, eps, torch.float32)
    careless = torch.linalg.inv(sigma.float() + eps * torch.eye(40))
    wrong, error = ((inverse - exact).norm() / exact.norm() for inverse in (careless, single))
    assert single.dtype == torch.float32 and error < 5e-3
    assert eps > 1e-6 or wrong > 0.05


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_step_on_gradients_that_are_not_finite_is_refused(value):
    x, t = data()
    model = mlp()
    optimizer = PRONG(model, 0.1, momentum=0.9, sample=x)
    train(model, optimizer, x, t, 2)
    before, steps = [p.detach().clone() for p in model.parameters()], optimizer.steps
    optimizer.zero_grad()
    cross_entropy(model(x), t).backward()
    next(iter(model.parameters())).grad[0, 0] = value
    with pytest.raises(ValueError, match="finite gradients"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert optimizer.steps == steps


def test_a_diagonal_covariance_gives_the_numbers_of_batch_normalization_and_not_its_gradient():
    """Section 3.4: of the same inputs. Batch normalization sends gradients through its statistics;
    PRONG holds them. With the full covariance the numbers are others.
    """
    draw = torch.Generator().manual_seed(0)
    x, mixing = (
        torch.randn(n, 3, generator=draw, dtype=torch.float64, requires_grad=n > 3)
        for n in (200, 3)
    )
    h = x @ mixing + 1
    centred = h.detach() - h.detach().mean(0)
    C = centred.mT @ centred / len(h)

    def whitened(covariance):
        U = whitening_matrix(covariance, kind="zca", eps=0.0)
        return (h - h.detach().mean(0)) @ U.mT

    normal = nn.BatchNorm1d(3, eps=1e-15, affine=False).double()(h)
    diagonal = whitened(C.diagonal().diag())
    assert torch.allclose(diagonal, normal, atol=1e-10)
    assert float((whitened(C) - normal).detach().abs().max()) > 0.1
    gradients = [
        torch.autograd.grad(y.pow(3).sum(), h, retain_graph=True)[0] for y in (diagonal, normal)
    ]
    assert float((gradients[0] - gradients[1]).abs().max()) > 0.1
