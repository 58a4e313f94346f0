"""The W^T W rule."""

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
    torch.testing.assert_close(natural_relative_gradient(W.grad, W.detach()), expected["natural"], rtol=1e-8, atol=1e-10)
    got = descend(inputs["W"], objective, case["inputs"]["lr"], 5)
    torch.testing.assert_close(got, expected["W_after_5"], rtol=1e-8, atol=1e-10)


def test_separation_case(cases):
    case = cases("whitening")["wtw_ica"]
    inputs, expected = tensors(case["inputs"]), tensors(case["expected"])

    def objective(x):
        return lambda W: -torch.linalg.slogdet(W).logabsdet + (x @ W.mT).cosh().log().sum(1).mean()

    got = descend(inputs["W"], objective(inputs["X"]), case["inputs"]["lr"], 5)
    torch.testing.assert_close(got, expected["W_after_5"], rtol=1e-8, atol=1e-10)
    mixed = descend(inputs["W"] @ torch.linalg.inv(inputs["A"]), objective(inputs["X"] @ inputs["A"].mT), 0.1, 5)
    torch.testing.assert_close(mixed @ inputs["A"], expected["W_after_5"], rtol=1e-8, atol=1e-10)
