"""Any optimizer in the natural parameter space."""

import pytest
import torch

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
    optimizer = natural_space([theta], metric, lambda p: torch.optim.SGD(p, lr=0.5), period=1, root=root)
    for expected in path[1:]:
        optimizer.step(closure)
        torch.testing.assert_close(theta.detach(), expected, rtol=1e-8, atol=1e-10)


def test_lbfgs(cases):
    theta, closure, metric, _ = neuron(cases)
    start = closure().item()
    optimizer = natural_space(
        [theta], metric, lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"), period=2, eps=1e-3
    )
    for _ in range(4):
        optimizer.step(closure)
    assert closure().item() < start
    assert float(theta.grad.norm()) < 1e-3
