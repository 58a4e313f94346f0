"""NaturalGradient: one step by brute force, damping rules, refusals, resuming, and training to the
end.
"""

import copy
import gc
import itertools
import math
import pickle

import pytest
import torch
from _states import equal
from torch import nn

from natcompanion import reference
from natcompanion.damping import LevenbergMarquardt
from natcompanion.data import mnist
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.optim import TONGA, HessianFree, KrylovSubspaceDescent, NaturalGradient, Newton
from natcompanion.solvers import conjugate_gradient, minres, minres_qlp

LIKELIHOODS = [Gaussian(), Gaussian(0.5), Bernoulli(), Categorical()]
named = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
EXACT = {"rtol": 1e-13, "max_iter": 500}


def mlp(sizes=(3, 4, 3), seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).to(dtype)


def batch(likelihood, n=20, shape=(3,), o=3, seed=1, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=g, dtype=dtype)
    if isinstance(likelihood, Categorical):
        return x, torch.randint(o, (n,), generator=g)
    return x, torch.rand(n, o, generator=g, dtype=dtype)


def vector(model):
    return reference.parameter_vector(model).clone()


def mean_gradient(model, x, t, likelihood):
    return reference.gradients(model, x, t, likelihood).mean(0)


def solved(G, g, damping):
    return torch.linalg.solve(G + damping * torch.eye(len(g), dtype=g.dtype), g)


# ---- One step


@named
@pytest.mark.parametrize("solver", [conjugate_gradient, minres, minres_qlp])
def test_one_step_is_the_natural_gradient(likelihood, solver):
    model, (x, t) = mlp(), batch(likelihood)
    before, g, G = (
        vector(model),
        mean_gradient(model, x, t, likelihood),
        reference.fisher(model, x, likelihood),
    )
    U = reference.empirical_fisher(model, x, t, likelihood)
    loss = NaturalGradient(model, likelihood, 0.3, damping=0.05, solver=solver, **EXACT).step(x, t)
    moved = vector(model) - before
    assert loss == pytest.approx(
        float(likelihood.nll(reference.outputs(model, before, x), t).mean()), rel=1e-12
    )
    torch.testing.assert_close(moved, -0.3 * solved(G, g, 0.05), rtol=1e-9, atol=1e-11)
    for wrong in (
        -0.3 * solved(U, g, 0.05),
        -0.3 * solved(G, g, 0.1),
        -0.3 * g,
    ):  # negative controls
        assert float((moved - wrong).norm() / moved.norm()) > 0.05


@named
def test_metric_inputs_replace_those_of_the_batch(likelihood):
    model, (x, t) = mlp(), batch(likelihood)
    other = batch(likelihood, n=13, seed=9)[0]
    before, g, G = (
        vector(model),
        mean_gradient(model, x, t, likelihood),
        reference.fisher(model, other, likelihood),
    )
    same = reference.fisher(model, x, likelihood)
    NaturalGradient(model, likelihood, 1e-3, damping=0.05, **EXACT).step(x, t, metric_inputs=other)
    moved = vector(model) - before
    torch.testing.assert_close(moved, -1e-3 * solved(G, g, 0.05), rtol=1e-9, atol=1e-13)
    assert float((moved + 1e-3 * solved(same, g, 0.05)).norm() / moved.norm()) > 0.1


def test_algorithm_1_solver_limits_are_handed_on():
    likelihood, short, long = Categorical(), mlp(), mlp()
    x, t = batch(likelihood)
    one = NaturalGradient(short, likelihood, 0.1, damping=1e-6, max_iter=2)
    two = NaturalGradient(long, likelihood, 0.1, damping=1e-6, max_iter=200, rtol=1e-2)
    one.step(x, t)
    two.step(x, t)
    assert one.last.iterations == 2 and one.last.residual > 1e-2
    assert two.last.residual <= 1e-2 and two.last.iterations > 2
    assert not torch.equal(vector(short), vector(long))


def test_path_does_not_depend_on_a_linear_change_of_parameters():
    """The network x -> W (A x) with weights W A^-1 takes the same path as a function; the plain
    gradient does not.
    """
    likelihood = Categorical()
    x, t = batch(likelihood, n=60)
    A = torch.tensor([[2.0, 0.3, 0.0], [0.0, 0.5, 0.1], [0.4, 0.0, 1.5]], dtype=torch.float64)

    def outputs(make, inputs, weight):
        model = nn.Linear(3, 3).double()
        with torch.no_grad():
            model.weight.copy_(weight)
            model.bias.zero_()
        step = make(model)
        for _ in range(5):
            step(model, inputs, t)
        return model(inputs).detach()

    def natural(model):
        optimizer = NaturalGradient(model, likelihood, 0.5, damping=1e-10, **EXACT)
        return lambda _, inputs, targets: optimizer.step(inputs, targets)

    def plain(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.5)

        def step(_, inputs, targets):
            optimizer.zero_grad()
            likelihood.nll(model(inputs), targets).mean().backward()
            optimizer.step()

        return step

    W = torch.tensor([[0.1, 0.2, 0.3], [0.0, -0.4, 0.2], [0.5, 0.1, -0.3]], dtype=torch.float64)
    for make, invariant in ((natural, True), (plain, False)):
        gap = float(
            (outputs(make, x, W) - outputs(make, x @ A.T, W @ torch.linalg.inv(A))).abs().max()
        )
        assert (gap < 1e-6) is invariant


# ---- Damping


def quadratic():
    """A linear model with Gaussian outputs: its loss is an exact quadratic whose Hessian is the
    Fisher matrix.
    """
    torch.manual_seed(0)
    return nn.Linear(3, 2).double(), batch(Gaussian(), o=2)


@pytest.mark.parametrize("lr", [1.0, 0.5, 0.1, 1.8])
@pytest.mark.parametrize("prediction", ["linear", "quadratic"])
def test_reduction_ratio_on_an_exact_quadratic(lr, prediction):
    """Eq. 30 reads 1 - lr/2, Martens' ratio 1, on a model that is exact."""
    model, (x, t) = quadratic()
    rule = LevenbergMarquardt(1e-8)
    optimizer = NaturalGradient(model, Gaussian(), lr, damping=rule, prediction=prediction, **EXACT)
    optimizer.step(x, t)
    assert optimizer.last.rho == pytest.approx(
        1 - lr / 2 if prediction == "linear" else 1.0, abs=1e-6
    )


def test_the_two_ratios_decide_differently():
    """At lr = 1 on an exact quadratic Martens' rule lowers the damping, Eq. 30 keeps it; at 1.8 Eq.
    30 raises it.
    """
    for lr, prediction, expected in [
        (1.0, "linear", 1e-6),
        (1.0, "quadratic", 2e-6 / 3),
        (1.8, "linear", 1.5e-6),
        (1.8, "quadratic", 2e-6 / 3),
    ]:
        model, (x, t) = quadratic()
        rule = LevenbergMarquardt(1e-6)
        NaturalGradient(model, Gaussian(), lr, damping=rule, prediction=prediction, **EXACT).step(
            x, t
        )
        assert rule.damping == pytest.approx(expected)


@pytest.mark.parametrize("prediction", ["linear", "quadratic"])
def test_an_exact_minimum_makes_no_step_and_keeps_the_damping(prediction):
    model, (x, _) = quadratic()
    t = model(x).detach()  # the gradient is exactly zero
    rule = LevenbergMarquardt(0.7)
    optimizer = NaturalGradient(model, Gaussian(), 1.0, damping=rule, prediction=prediction)
    before = vector(model)
    for _ in range(50):
        optimizer.step(x, t)
    assert torch.equal(vector(model), before) and rule.damping == 0.7
    assert optimizer.last.iterations == 0 and math.isnan(optimizer.last.rho)


def test_near_a_minimum_the_damping_stays_bounded():
    model, (x, t) = quadratic()
    rule = LevenbergMarquardt(1.0, minimum=1e-5, maximum=1e3)
    optimizer = NaturalGradient(
        model, Gaussian(), 1.0, damping=rule, prediction="quadratic", **EXACT
    )
    for _ in range(60):
        optimizer.step(x, t)
    assert 1e-5 <= rule.damping <= 1e3 and bool(torch.isfinite(vector(model)).all())


@pytest.mark.parametrize("prediction", ["linear", "quadratic"])
@pytest.mark.parametrize("likelihood", [Gaussian(), Bernoulli()], ids=repr)
def test_new_targets_are_learnt_after_training_to_the_rounding_of_float32(likelihood, prediction):
    """At a minimum rounding hides every decrease; the damping must not rise to where no step
    changes anything.
    """
    model = mlp((4, 6, 3), dtype=torch.float32)
    x = batch(likelihood, n=30, shape=(4,), dtype=torch.float32)[0]
    t = likelihood.mean(model(x)).detach()
    with torch.no_grad():
        model[0].bias.add_(0.01)
    optimizer = NaturalGradient(
        model, likelihood, 0.5, damping=LevenbergMarquardt(1.0), prediction=prediction
    )
    losses = [optimizer.step(x, t) for _ in range(80)]
    assert all(b <= a for a, b in itertools.pairwise(losses))
    new = t + 1 if isinstance(likelihood, Gaussian) else 1 - t
    excess = [
        optimizer.step(x, new) - losses[-1] for _ in range(50)
    ]  # both targets have the same minimum
    assert excess[-1] < 0.01 * excess[0]


def test_uphill_as_predicted_raises_the_damping():
    """At lr = 3 on an exact quadratic the loss rises by what Martens' model predicts: the ratio is
    1, and no success.
    """
    model, (x, t) = quadratic()
    rule = LevenbergMarquardt(1e-6)
    optimizer = NaturalGradient(
        model, Gaussian(), 3.0, damping=rule, prediction="quadratic", **EXACT
    )
    optimizer.step(x, t)
    assert optimizer.last.rho == pytest.approx(1, abs=1e-5) and not optimizer.last.accepted
    assert rule.damping == pytest.approx(1.5e-6)


def test_an_uphill_step_is_refused_to_the_last_bit():
    likelihood, model = Categorical(), mlp()
    x, t = batch(likelihood)
    rule = LevenbergMarquardt(1e-6)
    optimizer = NaturalGradient(model, likelihood, 50.0, damping=rule)
    before = vector(model)
    optimizer.step(x, t)
    assert not optimizer.last.accepted and optimizer.last.loss_after > optimizer.last.loss
    assert torch.equal(vector(model), before) and rule.damping == pytest.approx(1.5e-6)
    constant = NaturalGradient(
        model, likelihood, 50.0, damping=1e-6
    )  # a constant damping takes the step
    constant.step(x, t)
    assert constant.last.accepted and not torch.equal(vector(model), before)


@pytest.mark.parametrize("damping", [1e-3, LevenbergMarquardt(1e-3)], ids=["constant", "adaptive"])
def test_a_step_to_nan_is_refused_to_the_last_bit(damping):
    class Breaks(nn.Module):
        """Gives NaN once its weight has moved."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3).double()
            self.start = self.linear.weight.detach().clone()

        def forward(self, x):
            moved = (self.linear.weight.detach() - self.start).abs().max()
            return self.linear(x) + torch.where(moved > 1e-9, math.nan, 0.0)

    torch.manual_seed(0)
    model, likelihood = Breaks(), Categorical()
    x, t = batch(likelihood)
    before = vector(model)
    optimizer = NaturalGradient(model, likelihood, 1.0, damping=copy.deepcopy(damping))
    optimizer.step(x, t)
    assert not optimizer.last.accepted and math.isnan(optimizer.last.loss_after)
    assert torch.equal(vector(model), before)
    if isinstance(damping, LevenbergMarquardt):
        assert optimizer.damping.damping == pytest.approx(1.5e-3)


# ---- Numbers that are hard to hold


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()], ids=repr)
@pytest.mark.parametrize(
    "damping", [0.0, 1e-3, LevenbergMarquardt(1.0)], ids=["none", "constant", "adaptive"]
)
@pytest.mark.parametrize("right", [True, False])
def test_a_confident_network_makes_finite_steps(likelihood, damping, right):
    """Logits of plus and minus 10,000 in float32."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(1e4 * torch.eye(3))
        model.bias.zero_()
    x = torch.cat([torch.eye(3), -torch.eye(3)])
    y = model(x)
    t = y.argmax(1) if isinstance(likelihood, Categorical) else (y > 0).float()
    if not right:
        t = (t + 1) % 3 if isinstance(likelihood, Categorical) else 1 - t
    optimizer = NaturalGradient(model, likelihood, 0.1, damping=copy.deepcopy(damping))
    for _ in range(3):
        assert math.isfinite(optimizer.step(x, t))
    assert bool(torch.isfinite(vector(model)).all())


@pytest.mark.parametrize(
    "kind", [NaturalGradient, TONGA, Newton, HessianFree, KrylovSubspaceDescent]
)
def test_autocast_changes_nothing(kind):
    def trained(autocast):
        model, (x, t) = mlp(dtype=torch.float32), batch(Categorical(), dtype=torch.float32)
        optimizer = (
            kind(model, Categorical())
            if kind in (HessianFree, KrylovSubspaceDescent)
            else kind(model, Categorical(), 0.5)
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            losses = [optimizer.step(x, t) for _ in range(3)]
            narrow = model(x).dtype  # the user's own passes are as asked for
        return losses, vector(model), narrow

    (losses, theta, _), (cast_losses, cast_theta, narrow) = trained(False), trained(True)
    assert cast_losses == losses and torch.equal(cast_theta, theta) and narrow == torch.bfloat16


def test_half_precision_is_computed_in_float32():
    likelihood, wide = Categorical(), mlp(dtype=torch.float32)
    narrow = copy.deepcopy(wide).bfloat16()
    x, t = batch(likelihood, dtype=torch.float32)
    wide.load_state_dict({k: v.float() for k, v in narrow.state_dict().items()})
    for model, inputs in ((wide, x.bfloat16().float()), (narrow, x.bfloat16())):
        NaturalGradient(model, likelihood, 0.3, damping=0.1).step(inputs, t)
    assert torch.equal(vector(narrow), vector(wide).bfloat16())


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_solver_starts_at_a_multiple_of_its_last_answer(momentum):
    likelihood, starts, answers = Gaussian(), [], []

    def solver(A, g, *, x0, **options):
        starts.append(x0)
        answers.append(conjugate_gradient(A, g, x0=x0, **options))
        return answers[-1]

    options = {"damping": 0.1, "warm_start": 0.9, "max_iter": 3, "momentum": momentum}
    optimizer = NaturalGradient(mlp(), likelihood, 0.3, solver=solver, **options)
    for seed in range(4):
        optimizer.step(*batch(likelihood, seed=seed))
    assert starts[0] is None or not starts[0].any()
    for answer, start in zip(answers, starts[1:], strict=False):
        assert start.any() and torch.allclose(start, 0.9 * answer.x, rtol=1e-12)


# ---- A torch optimizer


def trajectory(optimizer, model, likelihood, seeds):
    for seed in seeds:
        optimizer.step(*batch(likelihood, seed=seed, dtype=torch.float32))
    return vector(model)


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("adaptive", [True, False])
def test_resumes_bit_for_bit(tmp_path, stop, adaptive):
    likelihood = Categorical()

    def make(seed):
        model = mlp(seed=seed, dtype=torch.float32)
        damping = LevenbergMarquardt(0.5) if adaptive else 0.1
        return model, NaturalGradient(
            model, likelihood, 0.7, damping=damping, warm_start=0.9, max_iter=3
        )

    model, optimizer = make(0)
    end = trajectory(optimizer, model, likelihood, range(6))
    model, optimizer = make(0)
    trajectory(optimizer, model, likelihood, range(stop))
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt"
    )
    saved = torch.load(tmp_path / "saved.pt")
    model, optimizer = make(5)
    model.load_state_dict(saved["model"])
    fresh = trajectory(
        optimizer, model, likelihood, range(stop, 6)
    )  # without the optimizer's state
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(trajectory(optimizer, model, likelihood, range(stop, 6)), end)
    assert not torch.equal(fresh, end)


def bad_states(good):
    group = good["param_groups"][0]

    def changed(**options):
        return {**good, "param_groups": [{**group, **options}]}

    without = {**good, "param_groups": [{k: v for k, v in group.items() if k != "damping"}]}
    narrow = {0: {"direction": torch.zeros(2, 2)}}
    return {
        "expected one of NaturalGradient on this model.*no option 'damping'": without,
        "damping: expected a finite number >=? 0, got nan": changed(damping=math.nan),
        "damping: expected a finite number >=? 0, got -5.0": changed(damping=-5.0),
        "lr: expected a finite number >= 0, got -1": changed(lr=-1.0),
        "lr: expected a number, got None": changed(lr=None),
        "different number of parameter groups": {**good, "param_groups": [group, group]},
        r"direction of shape \(2, 2\) for \(4, 3\)": {**good, "state": narrow},
    }


@pytest.mark.parametrize("adaptive", [True, False])
def test_states_that_do_not_fit_are_refused_and_change_nothing(adaptive):
    def make(lr):
        return NaturalGradient(
            mlp(),
            Categorical(),
            lr,
            damping=LevenbergMarquardt(0.5) if adaptive else 0.5,
            warm_start=0.9,
        )

    optimizer = make(0.3)
    optimizer.step(*batch(Categorical()))
    before = copy.deepcopy(optimizer.state_dict())
    for message, state in bad_states(make(0.7).state_dict()).items():
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
        assert equal(optimizer.state_dict(), before)


def test_the_rule_of_the_damping_comes_with_the_state():
    constant = NaturalGradient(mlp(), Categorical(), 0.3, damping=0.0)
    adaptive = NaturalGradient(mlp(), Categorical(), 0.3, damping=LevenbergMarquardt(1.0))
    rule = LevenbergMarquardt(1.5, maximum=2.0)
    narrow = NaturalGradient(mlp(), Categorical(), 0.3, damping=rule)
    state = narrow.state_dict()
    state["param_groups"][0]["damping"] = 5.0
    for optimizer in (constant, adaptive, narrow):
        with pytest.raises(ValueError, match="damping: expected 1e-08 to 2.0, got 5"):
            optimizer.load_state_dict(state)
    assert (constant.damping, adaptive.damping.damping, rule.damping) == (0.0, 1.0, 1.5)
    constant.load_state_dict(narrow.state_dict())
    adaptive.load_state_dict(narrow.state_dict())
    assert constant.damping == adaptive.damping == LevenbergMarquardt(1.5, maximum=2.0)
    narrow.load_state_dict(NaturalGradient(mlp(), Categorical(), 0.3, damping=0.25).state_dict())
    assert narrow.damping == 0.25


@pytest.mark.parametrize(
    "kind", [NaturalGradient, TONGA, Newton, HessianFree, KrylovSubspaceDescent]
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_of_model_and_optimizer_goes_on_as_they_do(kind, copied):
    likelihood, model = Categorical(), mlp()
    x, t = batch(likelihood)
    optimizer = kind(model, likelihood, **({} if kind is KrylovSubspaceDescent else {"lr": 0.5}))
    optimizer.step(x, t)
    other, resumed = copied((model, optimizer))
    before = vector(model)
    optimizer.step(x, t)
    assert torch.equal(vector(other), before) and not torch.equal(vector(model), before)
    resumed.step(x, t)
    assert torch.equal(vector(other), vector(model)) and resumed.last == optimizer.last


def test_no_step_at_step_size_zero_and_schedulers_work():
    likelihood, model = Categorical(), mlp()
    x, t = batch(likelihood)
    before = vector(model)
    for damping in (0.1, LevenbergMarquardt(0.1)):
        optimizer = NaturalGradient(model, likelihood, 0.0, damping=damping)
        optimizer.step(x, t)
        assert torch.equal(vector(model), before) and optimizer.param_groups[0]["damping"] == 0.1
    optimizer = NaturalGradient(model, likelihood, 0.4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step(x, t)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.2
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())  # the step does not touch .grad


def test_parameter_groups_have_their_own_step_size():
    likelihood, model = Categorical(), mlp()
    x, t = batch(likelihood)
    whole = copy.deepcopy(model)
    NaturalGradient(whole, likelihood, 0.2, **EXACT).step(x, t)
    first, second = model[0], model[2]
    before = [p.detach().clone() for p in model.parameters()]
    groups = [
        {"params": list(second.parameters())},
        {"params": list(first.parameters()), "lr": 0.0},
    ]
    NaturalGradient(model, likelihood, 0.2, parameters=groups, **EXACT).step(x, t)
    for p, old in zip(first.parameters(), before[:2], strict=True):
        assert torch.equal(p, old)
    for p, q in zip(second.parameters(), whole[2].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_restricted_frozen_and_tied_parameters():
    likelihood, model = Categorical(), mlp()
    x, t = batch(likelihood)
    frozen = copy.deepcopy(model)
    for p in frozen[0].parameters():
        p.requires_grad_(False)
    NaturalGradient(model, likelihood, 0.2, parameters=["2.weight", "2.bias"], **EXACT).step(x, t)
    NaturalGradient(frozen, likelihood, 0.2, **EXACT).step(x, t)
    assert torch.equal(model[0].weight, frozen[0].weight) and torch.equal(
        model[2].weight, frozen[2].weight
    )

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))

        def forward(self, x):
            return torch.tanh(x @ self.weight.T) @ self.weight

    tied = Tied()
    before, g, G = (
        vector(tied),
        mean_gradient(tied, x, t, likelihood),
        reference.fisher(tied, x, likelihood),
    )
    NaturalGradient(tied, likelihood, 0.1, damping=0.05, **EXACT).step(x, t)
    torch.testing.assert_close(
        vector(tied) - before, -0.1 * solved(G, g, 0.05), rtol=1e-9, atol=1e-12
    )


def test_leaves_no_trace_in_the_model():
    likelihood = Categorical()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)
    )
    x, t = batch(likelihood, dtype=torch.float32)
    model(x)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    modes = [m.training for m in model.modules()]
    optimizer = NaturalGradient(model, likelihood, 0.1)
    optimizer.step(x, t)
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert modes == [m.training for m in model.modules()]
    assert all(not m._forward_hooks for m in model.modules())
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert torch.equal(vector(again), vector(model))


def test_memory_does_not_grow():
    likelihood, model = Categorical(), mlp()
    x, t = batch(likelihood)
    optimizer = NaturalGradient(model, likelihood, 0.1, warm_start=0.9, max_iter=3)

    def alive():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    optimizer.step(x, t)
    before = alive()
    for _ in range(20):
        optimizer.step(x, t)
    assert alive() <= before  # less, if what other tests left is collected meanwhile


# ---- Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr: expected a finite number >= 0"),
        ({"lr": math.nan}, "lr"),
        ({"damping": -1.0}, "damping: expected a finite number >= 0"),
        ({"rtol": -1.0}, "rtol"),
        ({"warm_start": -1.0}, "warm_start"),
        ({"prediction": "cubic"}, 'prediction: expected "linear" or "quadratic", got \'cubic\''),
        ({"parameters": ["nothing"]}, "parameters: expected parameters of the model"),
        ({"parameters": []}, "parameters"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        NaturalGradient(mlp(), Categorical(), **{"lr": 0.1, **arguments})


def bad_batches():
    x, t = batch(Categorical())
    return {
        "empty": (x[:0], t[:0]),
        "label": (x, t + 3),
        "float labels": (x, t.double()),
        "fewer labels": (x, t[:-1]),
        "width": (x[:, :2], t),
        "nan": (x.clone().fill_(math.nan), t),
        "dtype": (x.float(), t),
        "list": (x.tolist(), t),
    }


@pytest.mark.parametrize("kind", bad_batches())
def test_a_bad_batch_is_refused_and_changes_nothing(kind):
    model, rule = mlp(), LevenbergMarquardt(0.5)
    optimizer = NaturalGradient(model, Categorical(), 0.1, damping=rule, warm_start=0.9)
    before = vector(model)
    with pytest.raises((ValueError, RuntimeError) if kind == "width" else ValueError):
        optimizer.step(*bad_batches()[kind])
    assert torch.equal(vector(model), before) and rule.damping == 0.5
    assert not optimizer.state and optimizer.last is None


def test_bad_metric_inputs_change_nothing():
    model, (x, t) = mlp(), batch(Categorical())
    before = vector(model)
    with pytest.raises(ValueError, match="x: expected finite numbers"):
        NaturalGradient(model, Categorical(), 0.1).step(x, t, torch.full_like(x, math.nan))
    assert torch.equal(vector(model), before)


def test_parameters_that_are_not_finite_are_named():
    model, (x, t) = mlp(), batch(Categorical())
    optimizer = NaturalGradient(model, Categorical(), 0.1)
    with torch.no_grad():
        model[0].bias[0] = math.inf
    with pytest.raises(ValueError, match=r"finite parameters.*0\.bias"):
        optimizer.step(x, t)


# ---- Training


def test_trains_digits_without_an_error():
    """The 784-200-10 network on digits, to 0 training errors; the plain gradient is far from it
    after as many steps.
    """
    x, t = mnist(400)
    x, likelihood = x.flatten(1), Categorical()
    natural, plain = (
        mlp((784, 200, 10), dtype=torch.float32),
        mlp((784, 200, 10), dtype=torch.float32),
    )
    optimizer = NaturalGradient(
        natural, likelihood, 1.0, damping=LevenbergMarquardt(0.1), max_iter=5
    )
    sgd = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(20):
        optimizer.step(x, t)
        sgd.zero_grad()
        likelihood.nll(plain(x), t).mean().backward()
        sgd.step()
    errors = [int((model(x).argmax(1) != t).sum()) for model in (natural, plain)]
    assert errors[0] == 0 and errors[1] > 30


def test_newton_is_the_same_machine_with_another_matrix():
    assert issubclass(Newton, NaturalGradient)


def test_sparse_embeddings_move_as_dense_ones():
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4, sparse=sparse), nn.Flatten(), nn.Linear(8, 3))
        optimizer = NaturalGradient(model.double(), Categorical(), 0.5)
        words, t = torch.arange(10).view(5, 2) % 7, torch.arange(5) % 3
        for _ in range(3):
            optimizer.step(words, t)
        assert model[0].sparse is sparse
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)
