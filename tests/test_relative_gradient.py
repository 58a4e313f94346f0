"""The W^T W rule."""

import copy

import pytest
import torch

from natcompanion.optim import RelativeGradient, natural_relative_gradient


def descend(W, objective, lr, steps, **options):
    W = W.clone().requires_grad_()
    optimizer = RelativeGradient([W], lr=lr, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(W).backward()
        optimizer.step()
    return W.detach()


def tensors(inputs):
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in inputs.items() if k != "lr"}


def test_gaussian_case(cases):
    case = cases("whitening")["wtw_gauss"]
    inputs, expected = tensors(case["inputs"]), tensors(case["expected"])

    def objective(W):
        return -torch.linalg.slogdet(W).logabsdet + (W @ inputs["Sigma"] @ W.mT).trace() / 2

    W = inputs["W"].clone().requires_grad_()
    J = objective(W)
    J.backward()
    torch.testing.assert_close(J.detach(), expected["J"], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(W.grad, expected["grad"], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        natural_relative_gradient(W.grad, W.detach()), expected["natural"], rtol=1e-8, atol=1e-10
    )
    got = descend(inputs["W"], objective, case["inputs"]["lr"], 5)
    torch.testing.assert_close(got, expected["W_after_5"], rtol=1e-8, atol=1e-10)


def test_separation_case(cases):
    case = cases("whitening")["wtw_ica"]
    inputs, expected = tensors(case["inputs"]), tensors(case["expected"])

    def objective(x):
        return lambda W: -torch.linalg.slogdet(W).logabsdet + (x @ W.mT).cosh().log().sum(1).mean()

    got = descend(inputs["W"], objective(inputs["X"]), case["inputs"]["lr"], 5)
    torch.testing.assert_close(got, expected["W_after_5"], rtol=1e-8, atol=1e-10)
    mixed = descend(
        inputs["W"] @ torch.linalg.inv(inputs["A"]), objective(inputs["X"] @ inputs["A"].mT), 0.1, 5
    )
    torch.testing.assert_close(mixed @ inputs["A"], expected["W_after_5"], rtol=1e-8, atol=1e-10)


def separation(seed=0, dim=3, n=50):
    """A start, data, and the separation objective as a function of the data."""
    generator = torch.Generator().manual_seed(seed)
    W, A = (
        torch.eye(dim, dtype=torch.float64)
        + 0.3 * torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        for _ in "WA"
    )
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64) ** 3

    def objective(x):
        return lambda W: -torch.linalg.slogdet(W).logabsdet + (x @ W.mT).cosh().log().sum(1).mean()

    return W, A, x, objective


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_path_is_equivariant(momentum):
    W, A, x, objective = separation()
    plain = descend(W, objective(x), 0.05, 20, momentum=momentum)
    mixed = descend(W @ torch.linalg.inv(A), objective(x @ A.mT), 0.05, 20, momentum=momentum)
    torch.testing.assert_close(mixed @ A, plain, rtol=1e-10, atol=1e-10)


def test_other_orders_are_not_equivariant():
    W, A, x, objective = separation()

    def one_step(rule, W, x):
        W = W.clone().requires_grad_()
        objective(x)(W).backward()
        return (W - 0.05 * rule(W.grad, W)).detach()

    for rule in (lambda g, W: g, lambda g, W: W @ W.mT @ g, lambda g, W: g @ W @ W.mT):
        mixed = one_step(rule, W @ torch.linalg.inv(A), x @ A.mT)
        assert not torch.allclose(mixed @ A, one_step(rule, W, x), rtol=1e-2)


def test_it_is_the_inverse_of_the_invariant_metric():
    """G of |dW|^2 = |dW W^-1|_F^2, as an n^2 by n^2 matrix; its inverse times the gradient is the
    rule.
    """
    W, _, x, objective = separation()
    inverse = torch.linalg.inv(W)
    G = torch.kron(torch.eye(3, dtype=torch.float64), inverse @ inverse.mT)  # row-major vec
    dW = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(dW.reshape(-1) @ G @ dW.reshape(-1), (dW @ inverse).square().sum())
    gradient = torch.func.grad(objective(x))(W)
    expected = torch.linalg.solve(G, gradient.reshape(-1)).reshape(3, 3)
    torch.testing.assert_close(natural_relative_gradient(gradient, W), expected)


def test_momentum_groups_schedulers_and_zero_rate():
    W, _, x, objective = separation()
    parts = [W.clone().requires_grad_() for _ in range(3)]
    optimizer = RelativeGradient(
        [
            {"params": parts[:1]},
            {"params": parts[1:2], "lr": 0.02, "momentum": 0.5},
            {"params": parts[2:], "lr": 0.0},
        ],
        lr=0.1,
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    expected, momentum = [W.clone(), W.clone()], torch.zeros_like(W)
    for step in range(3):
        optimizer.zero_grad()
        loss = sum(objective(x)(part) for part in parts)
        loss.backward()
        optimizer.step()
        scheduler.step()
        g = [torch.func.grad(objective(x))(e) for e in expected]
        momentum = 0.5 * momentum + g[1] @ expected[1].mT @ expected[1]
        expected = [
            expected[0] - 0.1 * 0.5**step * g[0] @ expected[0].mT @ expected[0],
            expected[1] - 0.02 * 0.5**step * momentum,
        ]
    for part, value in zip(parts, [*expected, W], strict=True):
        torch.testing.assert_close(part.detach(), value)
    assert torch.equal(parts[2].detach(), W)


def test_saved_and_loaded_it_goes_on_to_the_last_bit():
    W, _, x, objective = separation()

    def run(W, optimizer, steps):
        for _ in range(steps):
            optimizer.step(
                lambda: (optimizer.zero_grad(), loss := objective(x)(W), loss.backward())[1]
            )

    W = W.requires_grad_()
    optimizer = RelativeGradient([W], lr=0.05, momentum=0.9)
    run(W, optimizer, 3)
    V = W.detach().clone().requires_grad_()
    other = RelativeGradient([V], lr=0.7)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(W, optimizer, 3)
    run(V, other, 3)
    assert torch.equal(W, V)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_keeps_its_dtype(dtype):
    W, _, x, objective = separation()
    gradient = torch.func.grad(objective(x))(W).to(dtype)
    got = natural_relative_gradient(gradient, W.to(dtype))
    assert got.dtype == dtype
    expected = natural_relative_gradient(gradient.double(), W.to(dtype).double())
    torch.testing.assert_close(
        got.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )
    part = W.to(dtype).requires_grad_()
    part.grad = gradient
    RelativeGradient([part], lr=0.1, momentum=0.5).step()
    assert part.dtype == dtype


def test_refuses_bad_input():
    for bad in (
        torch.ones(2, 3),
        torch.ones(3),
        torch.zeros(0, 0),
        torch.full((2, 2), float("nan")),
    ):
        with pytest.raises(ValueError, match="params: expected"):
            RelativeGradient([bad.requires_grad_()], lr=0.1)
        with pytest.raises(ValueError, match="W: expected"):
            natural_relative_gradient(torch.ones(2, 2), bad)
        with pytest.raises(ValueError, match="gradient: expected"):
            natural_relative_gradient(bad, torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"gradient: expected shape \(2, 2\) like W"):
        natural_relative_gradient(torch.ones(3, 3), torch.ones(2, 2))
    for options in (
        {"lr": -0.1},
        {"lr": float("nan")},
        {"lr": 0.1, "momentum": 1.0},
        {"lr": 0.1, "momentum": -0.5},
    ):
        with pytest.raises(ValueError, match="(lr|momentum): expected"):
            RelativeGradient([torch.eye(2).requires_grad_()], **options)


def test_a_bad_gradient_changes_no_parameter():
    parts = [torch.eye(2).requires_grad_() for _ in range(2)]
    optimizer = RelativeGradient(parts, lr=0.1)
    parts[0].grad, parts[1].grad = torch.ones(2, 2), torch.full((2, 2), float("nan"))
    with pytest.raises(ValueError, match="expected finite gradients"):
        optimizer.step()
    assert all(torch.equal(part, torch.eye(2)) for part in parts)
    with pytest.raises(ValueError, match="params: expected a square"):
        optimizer.add_param_group({"params": [torch.ones(2, 3, requires_grad=True)]})
    assert len(optimizer.param_groups) == 1
