"""Any optimizer in the natural parameter space."""

import copy
import io
import pickle

import pytest
import torch
from _states import equal

from natcompanion.optim import natural_space


def neuron(cases):
    """The logistic neuron of the case: parameter, closure and Fisher matrix."""
    case = cases("whitening")["phi_space_equals_theta_space"]
    Z, y = (torch.tensor(case["inputs"][k], dtype=torch.float64) for k in ("Z", "y"))
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def closure():
        theta.grad = None
        loss = torch.nn.functional.binary_cross_entropy_with_logits(Z @ theta, y)
        loss.backward()
        return loss

    def metric():
        p = torch.sigmoid(Z @ theta.detach())
        return (Z.mT * (p * (1 - p))) @ Z / len(Z)

    return theta, closure, metric, torch.tensor(case["expected"]["path"], dtype=torch.float64)


@pytest.mark.parametrize("root", ["symmetric", "pca", "cholesky"])
def test_case(cases, root):
    theta, closure, metric, path = neuron(cases)
    optimizer = natural_space(
        [theta], metric, lambda p: torch.optim.SGD(p, lr=0.5), period=1, root=root
    )
    for expected in path[1:]:
        optimizer.step(closure)
        torch.testing.assert_close(theta.detach(), expected, rtol=1e-8, atol=1e-10)


def test_lbfgs(cases):
    theta, closure, metric, _ = neuron(cases)
    start = closure().item()
    optimizer = natural_space(
        [theta],
        metric,
        lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"),
        period=2,
        eps=1e-3,
    )
    for _ in range(4):
        optimizer.step(closure)
    assert closure().item() < start
    assert float(theta.grad.norm()) < 1e-3


# ---- the same step as the natural gradient


def quadratic(dtype=torch.float64, shapes=((2, 2), (1,))):
    """Two parameters, a badly conditioned quadratic loss on them, and its metric."""
    generator = torch.Generator().manual_seed(0)
    count = sum(torch.Size(shape).numel() for shape in shapes)
    a = torch.randn(count, count, generator=generator, dtype=torch.float64)
    G = a @ torch.diag(torch.logspace(-2, 1, count, dtype=torch.float64)) @ a.mT
    params = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]

    def closure():
        for p in params:
            p.grad = None
        theta = torch.cat([p.reshape(-1) for p in params])
        loss = 0.5 * theta @ G.to(dtype) @ theta + theta.sum()
        loss.backward()
        return loss

    return params, closure, G


def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params])


def sgd(lr, **options):
    return lambda params: torch.optim.SGD(params, lr=lr, **options)


@pytest.mark.parametrize("root", ["symmetric", "pca", "cholesky"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_one_step_is_a_natural_gradient_step(root, eps):
    params, closure, G = quadratic()
    theta = flat(params)
    gradient = G @ theta + 1
    natural_space(params, G, sgd(0.3), root=root, eps=eps).step(closure)
    identity = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(
        flat(params), theta - 0.3 * torch.linalg.solve(G + eps * identity, gradient)
    )
    assert not torch.allclose(flat(params), theta - 0.3 * gradient, rtol=1e-2)
    # Negative control: L with L L^T = G is no root; with W = L the step is another one.
    L = torch.linalg.cholesky(G + eps * identity)
    wrong = theta - 0.3 * torch.linalg.solve(L.mT @ L, gradient)
    assert not torch.allclose(flat(params), wrong, rtol=1e-2)


def test_without_a_closure_the_step_is_the_same():
    (params, closure, G), (others, other_closure, _) = quadratic(), quadratic()
    one, two = natural_space(params, G, sgd(0.3)), natural_space(others, G, sgd(0.3))
    for _ in range(3):
        loss = one.step(closure)
        two.zero_grad()
        other_loss = other_closure()
        two.step()
        assert loss.item() == other_loss.item()
        assert torch.equal(flat(params), flat(others))


def test_momentum_runs_in_the_natural_parameters():
    params, closure, G = quadratic()
    theta, velocity = flat(params), torch.zeros(5, dtype=torch.float64)
    optimizer = natural_space(params, G, sgd(0.1, momentum=0.9))
    for _ in range(5):
        velocity = 0.9 * velocity + torch.linalg.solve(
            G, G @ theta + 1
        )  # W^-1 of the momentum of phi
        theta = theta - 0.1 * velocity
        optimizer.step(closure)
    torch.testing.assert_close(flat(params), theta)


def test_lbfgs_sees_the_true_gradient_and_beats_theta_space():
    def steps(make, tolerance=1e-10):
        params, closure, G = quadratic()
        optimum = -torch.linalg.solve(G, torch.ones(5, dtype=torch.float64))
        best = 0.5 * optimum @ G @ optimum + optimum.sum()
        calls = 0

        def counted():
            nonlocal calls
            calls += 1
            return closure()

        optimizer = make(params, G)
        for _ in range(50):
            optimizer.step(counted)
            if closure().item() - best.item() < tolerance:
                return calls
        raise AssertionError("did not converge")

    def lbfgs(params):
        return torch.optim.LBFGS(params, max_iter=2, line_search_fn="strong_wolfe")

    natural = steps(lambda params, G: natural_space(params, G, lbfgs))
    assert natural < steps(lambda params, G: lbfgs(params))
    assert natural <= 6


def test_the_metric_is_renewed_each_period():
    params, closure, G = quadratic()
    seen = []

    def metric():
        seen.append(flat(params))
        return G

    optimizer = natural_space(params, metric, sgd(0.1), period=3)
    path = []
    for _ in range(7):
        path.append(flat(params))
        optimizer.step(closure)
    assert len(seen) == 3
    assert all(torch.equal(a, b) for a, b in zip(seen, path[::3], strict=True))
    once = natural_space(params, metric, sgd(0.1))
    for _ in range(4):
        once.step(closure)
    assert len(seen) == 4


def test_renewal_drops_the_inner_state_and_keeps_the_rate():
    params, closure, G = quadratic()
    optimizer = natural_space(params, G, sgd(0.1, momentum=0.9), period=2)
    theta, velocity = flat(params), torch.zeros(5, dtype=torch.float64)
    for step in range(6):
        natural = torch.linalg.solve(G, G @ theta + 1)
        velocity = natural if step % 2 == 0 else 0.9 * velocity + natural
        theta = theta - 0.1 * velocity
        optimizer.step(closure)
    torch.testing.assert_close(flat(params), theta)


def test_schedulers_drive_the_inner_optimizer():
    params, closure, G = quadratic()
    optimizer = natural_space(params, G, sgd(0.4), period=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    theta = flat(params)
    for rate in (0.4, 0.2, 0.1):
        theta = theta - rate * torch.linalg.solve(G, G @ theta + 1)
        optimizer.step(closure)
        scheduler.step()
    torch.testing.assert_close(flat(params), theta)


def test_a_step_size_set_on_the_inner_optimizer_is_refused():
    params, closure, G = quadratic()
    optimizer = natural_space(params, G, sgd(0.4))
    optimizer.step(closure)
    before = flat(params)
    optimizer.inner.param_groups[0]["lr"] = 0.1
    with pytest.raises(ValueError, match=r"inner: expected the step size 0.4 .* got 0.1"):
        optimizer.step(closure)
    assert torch.equal(flat(params), before)


def test_groups_have_step_sizes_momentum_and_decay_of_their_own():
    """In closed form: the metric joins them, the options do not."""
    (first, second), closure, G = quadratic()
    groups = [
        {"params": [first], "lr": 0.1, "momentum": 0.9},
        {"params": [second], "weight_decay": 0.5},
    ]
    optimizer = natural_space(groups, G, sgd(0.05))
    lr = torch.tensor([0.1] * 4 + [0.05], dtype=torch.float64)
    mu = torch.tensor([0.9] * 4 + [0.0], dtype=torch.float64)
    decay = torch.tensor([0.0] * 4 + [0.5], dtype=torch.float64)
    theta, velocity = flat((first, second)), torch.zeros(5, dtype=torch.float64)
    for _ in range(4):
        velocity = mu * velocity + torch.linalg.solve(G, G @ theta + 1)
        theta = (1 - lr * decay) * theta - lr * velocity
        optimizer.step(closure)
        torch.testing.assert_close(flat((first, second)), theta)
        W = torch.linalg.inv(optimizer.state[first]["whitener"]).mT
        torch.testing.assert_close(optimizer.state[first]["phi"], W @ theta)


def test_what_is_frozen_or_has_no_gradient_stays_within_a_line_search_too():
    params, closure, G = quadratic()
    for still in (0, 1):
        params[still].requires_grad_(False)
        params[still].grad = None
        before, start = params[still].detach().clone(), closure().item()
        natural_space(params, G, lbfgs).step(closure)
        assert torch.equal(params[still], before) and closure().item() < start - 1e-6
        params[still].requires_grad_(True)


def test_no_more_parameters_than_the_metric_has():
    params, closure, G = quadratic()
    optimizer = natural_space(params, G, sgd(0.1))
    with pytest.raises(ValueError, match="params: expected all parameters when"):
        optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})
    optimizer.step(closure)


@pytest.mark.parametrize("root", ["symmetric", "pca", "cholesky"])
def test_a_zero_step_changes_nothing(root):
    params, closure, G = quadratic()
    before = flat(params)
    natural_space(params, G, sgd(0.0), root=root).step(closure)
    assert torch.equal(flat(params), before)


def lbfgs(params):
    return torch.optim.LBFGS(params, max_iter=3, line_search_fn="strong_wolfe")


@pytest.mark.parametrize(
    "make", [sgd(0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.1), lbfgs]
)
@pytest.mark.parametrize("period", [None, 4])
def test_saved_and_loaded_it_goes_on_to_the_last_bit(make, period):
    params, closure, G = quadratic()
    optimizer = natural_space(params, lambda: G, make, period=period)
    for _ in range(3):
        optimizer.step(closure)
    buffer = io.BytesIO()
    torch.save(
        {"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, buffer
    )
    others, other_closure, _ = quadratic()
    other = natural_space(others, lambda: G, make, period=period)
    buffer.seek(0)
    saved = torch.load(buffer)
    for p, value in zip(others, saved["params"], strict=True):
        p.data.copy_(value)
    other.load_state_dict(saved["optimizer"])
    for _ in range(3):
        optimizer.step(closure)
        other.step(other_closure)
        assert torch.equal(flat(params), flat(others))


def test_a_fresh_state_can_be_loaded():
    params, closure, G = quadratic()
    fresh = natural_space(params, G, sgd(0.1)).state_dict()
    optimizer = natural_space(params, G, sgd(0.1))
    optimizer.load_state_dict(fresh)
    optimizer.step(closure)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_parameters_keep_their_dtype(dtype):
    params, closure, G = quadratic(dtype)
    theta = flat(params).double()
    optimizer = natural_space(params, G + torch.eye(5, dtype=torch.float64), sgd(0.3))
    optimizer.step(closure)
    assert {p.dtype for p in params} == {dtype}
    gradient = torch.cat([p.grad.double().reshape(-1) for p in params])
    expected = theta - 0.3 * torch.linalg.solve(G + torch.eye(5, dtype=torch.float64), gradient)
    torch.testing.assert_close(
        flat(params).double(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps
    )


def test_non_contiguous_and_unused_parameters():
    base = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    used, unused = (
        base.mT.clone(memory_format=torch.preserve_format).requires_grad_(),
        torch.ones(2, requires_grad=True),
    )
    assert not used.is_contiguous()
    before = used.detach().clone()
    optimizer = natural_space([used, unused], torch.eye(8), sgd(0.5))
    optimizer.zero_grad()
    (used * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(
        used.detach(), before - 0.5 * torch.tensor([[1.0], [2.0], [3.0]]).double()
    )
    assert unused.tolist() == [1.0, 1.0]


# ---- bad input


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (torch.full((5, 5), float("nan")), "finite"),
        (torch.ones(5), "matrix"),
        (torch.eye(4), r"metric: expected shape \(5, 5\), got \(4, 4\)"),
        (torch.eye(5).long(), "floating-point"),
        (torch.triu(torch.ones(5, 5)), "symmetric"),
        (-torch.eye(5), "eigenvalue -1"),
        (torch.ones(5, 5), "numerical rank 1 of 5; increase eps"),
    ],
)
def test_a_bad_metric_changes_nothing(metric, message):
    params, closure, _ = quadratic()
    before = flat(params)
    optimizer = natural_space(params, metric, sgd(0.1))
    with pytest.raises(ValueError, match=message):
        optimizer.step(closure)
    assert torch.equal(flat(params), before)


def test_a_singular_metric_works_with_eps():
    params, closure, _ = quadratic()
    natural_space(params, torch.ones(5, 5), sgd(0.1), eps=0.1).step(closure)
    assert bool(flat(params).isfinite().all())


def test_a_step_to_infinity_or_a_failing_closure_restores_the_parameters():
    params, closure, G = quadratic()
    optimizer = natural_space(params, G, sgd(0.1, momentum=0.9))
    optimizer.step(closure)
    before = flat(params)

    def poisoned():
        loss = closure()
        params[0].grad[0, 0] = float("nan")
        return loss

    def broken():
        raise RuntimeError("no data")

    optimizer.param_groups[0]["lr"] = 1e308
    with pytest.raises(ValueError, match="natural parameters after the step: expected finite"):
        for _ in range(3):
            before = flat(params)
            optimizer.step(closure)
    assert torch.equal(flat(params), before)
    poisoned()
    with pytest.raises(ValueError, match="gradient: expected finite"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="no data"):
        optimizer.step(broken)
    assert torch.equal(flat(params), before)


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


FAILURES = {
    "NaN": (lambda *given: poison(*given, float("nan")), "gradient: expected finite"),
    "overflow": (
        lambda *given: poison(*given, 1.7e308),
        "natural parameters after the step: expected finite",
    ),
    "first call": (lambda params, closure: breakdown(closure, 0), "no data"),
    "second call": (lambda params, closure: breakdown(closure, 1), "no data"),
}


@pytest.mark.parametrize(
    ("make", "failure"),
    [
        *[
            (make, failure)
            for make in (sgd(0.1, momentum=0.9), adam)
            for failure in ("NaN", "overflow", "first call")
        ],
        *[
            (torch.optim.Rprop, "NaN"),
            (lbfgs, "NaN"),
            (lbfgs, "first call"),
            (lbfgs, "second call"),
        ],
    ],
)
def test_after_a_failed_step_it_goes_on_as_if_that_had_not_been(make, failure):
    bad, message = FAILURES[failure]
    ends = []
    for failing in (False, True):
        params, closure, G = quadratic()
        optimizer = natural_space(params, G, make)
        optimizer.step(closure)
        if failing:
            with pytest.raises((ValueError, RuntimeError), match=message):
                optimizer.step(bad(params, closure))
        for _ in range(3):
            optimizer.step(closure)
        ends.append(flat(params))
    assert torch.equal(*ends)


def poison(params, closure, value):
    """A closure that leaves this value in the gradient."""

    def poisoned():
        loss = closure()
        params[0].grad[0, 0] = value
        return loss

    return poisoned


def breakdown(closure, calls):
    """A closure that fails after so many calls."""
    left = iter(range(calls))

    def broken():
        if next(left, None) is None:
            raise RuntimeError("no data")
        return closure()

    return broken


def test_a_line_search_may_try_points_out_of_bounds():
    theta, tried = torch.tensor([3.0], dtype=torch.float64, requires_grad=True), []

    def closure():
        theta.grad = None
        loss = (theta**2 / (theta > -20)).sum()
        loss.backward()
        tried.append(loss.item())
        return loss

    natural_space(
        [theta], torch.eye(1), lambda p: torch.optim.LBFGS(p, lr=50, line_search_fn="strong_wolfe")
    ).step(closure)
    assert float("inf") in tried and abs(theta.item()) < 1e-6


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    params, closure, G = quadratic()
    optimizer = natural_space(params, G, sgd(0.1, momentum=0.9))
    optimizer.step(closure)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(
        ValueError,
        match="expected one of NaturalSpace on this model, got another",
    ):
        optimizer.load_state_dict(torch.optim.SGD(params, 0.7).state_dict())
    others, other_closure, H = quadratic(shapes=((2, 3), (1,)))
    other = natural_space(others, H, sgd(0.7, momentum=0.9))
    other.step(other_closure)
    with pytest.raises(
        ValueError, match=r"expected one of NaturalSpace on this model, got another .*5.*7"
    ):
        optimizer.load_state_dict(other.state_dict())
    assert equal(optimizer.state_dict(), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_goes_on_as_the_original(copied):
    params, _, G = quadratic()
    optimizer = natural_space(params, G, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))

    def descend(params, optimizer):
        gradient = G @ flat(params)
        for p, part in zip(params, gradient.split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p)
        optimizer.step()

    descend(params, optimizer)
    others, other = copied((params, optimizer))
    before = flat(params)
    descend(params, optimizer)
    assert torch.equal(flat(others), before) and not torch.equal(flat(params), before)
    descend(others, other)
    assert torch.equal(flat(others), flat(params))


def test_refuses_bad_options():
    params, _, G = quadratic()
    for period in (0, -1, 1.5):
        with pytest.raises(ValueError, match="period: expected"):
            natural_space(params, G, sgd(0.1), period=period)
    with pytest.raises(ValueError, match="root: expected"):
        natural_space(params, G, sgd(0.1), root="zca")
    with pytest.raises(ValueError, match="eps: expected"):
        natural_space(params, G, sgd(0.1), eps=-0.1)
    with pytest.raises(ValueError, match="at least one parameter"):
        natural_space([], G, sgd(0.1))
    assert isinstance(natural_space(params, G, sgd(0.1)), torch.optim.Optimizer)
