"""Rules of thumb for epsilon and the period, beside brute force and values computed by hand."""

import math

import pytest
import torch

from natcompanion.whitening import staleness, suggest_eps, suggest_period, whitening_matrix

F64 = {"dtype": torch.float64}


def covariance(d: int, seed: int) -> torch.Tensor:
    a = torch.randn(d, 3 * d, generator=torch.Generator().manual_seed(seed), **F64)
    return a @ a.mT / (3 * d)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_eps_is_the_first_eigenvalue_that_completes_the_share(share, scale):
    sigma = covariance(12, 0) * scale
    eigenvalues = sorted(torch.linalg.eigvalsh(sigma).tolist(), reverse=True)
    held, total = 0.0, sum(eigenvalues)
    for value in eigenvalues:
        held += value
        if held >= share * total:
            break
    assert suggest_eps(sigma, share) == pytest.approx(value, rel=1e-9)


def test_eps_by_hand():
    sigma = torch.diag(torch.tensor([1.0, 6.0, 3.0], **F64))  # shares .6, .9, 1
    for share, expected in ((0.5, 6.0), (0.6, 6.0), (0.75, 3.0), (0.9, 3.0), (0.95, 1.0)):
        assert suggest_eps(sigma, share) == pytest.approx(expected)
    singular = torch.diag(torch.tensor([4.0, 0.0], **F64))
    assert suggest_eps(singular, 0.999) == 4.0, "a direction without variance holds no share"
    assert suggest_eps(torch.eye(3), 0.9) == 1.0


def stale(old: torch.Tensor, new: torch.Tensor, eps: float) -> float:
    """Return the largest eigenvalue of the new covariance in the old white coordinates."""
    U, eye = whitening_matrix(old, eps=eps), torch.eye(len(old), **F64)
    return float(torch.linalg.eigvalsh(U @ (new + eps * eye) @ U.mT)[-1])


@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_the_period_ends_where_the_old_coordinates_fail(eps):
    old, new = covariance(6, 1), covariance(6, 2)
    path = {3 + 2 * k: old + k / 10 * (new - old) for k in range(11)}
    for limit in (1.2, 1.5, 2.0):
        inside = [stale(old, sigma, eps) <= limit for sigma in path.values()]
        expected = 2 * (inside.index(False) - 1) if False in inside else 20
        assert suggest_period(dict(reversed(path.items())), eps, limit) == expected
        # with nothing but the trace in sight it would be another number
        assert limit != 1.2 or expected < 20


@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_the_largest_variance_is_that_in_the_old_white_coordinates(eps):
    measured = {step: covariance(6, step) for step in (4, 2, 9)}
    found = staleness(measured, eps)
    assert list(found) == [2, 4, 9] and found[2] == pytest.approx(1.0, rel=1e-9)
    for step in (4, 9):
        assert found[step] == pytest.approx(stale(measured[2], measured[step], eps), rel=1e-9)
        assert found[step] != pytest.approx(stale(measured[4], measured[step], eps), rel=1e-3)


def test_the_period_by_hand():
    measured = {0: torch.eye(2), 10: torch.diag(torch.tensor([1.0, 2.0])), 20: 3 * torch.eye(2)}
    assert suggest_period(measured, eps=1e-9) == 10
    assert suggest_period(measured, eps=1e-9, limit=1.9) == 0
    assert suggest_period(measured, eps=1e-9, limit=4) == 20
    assert suggest_period(measured, eps=10.0) == 20, "what is damped away cannot grow stale"
    back = {0: torch.eye(1), 1: 3 * torch.eye(1), 2: torch.eye(1)}
    assert suggest_period(back, eps=1e-9) == 0, "what comes back was away"


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan, True])
def test_shares_out_of_range_are_refused(share):
    with pytest.raises(ValueError, match="share"):
        suggest_eps(torch.eye(2), share)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="positive trace"):
        suggest_eps(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="matrix"):
        suggest_eps(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="at least 2"):
        suggest_period({0: torch.eye(2)}, eps=1.0)
    with pytest.raises(ValueError, match=r"covariances\[5\]: expected shape \(2, 2\)"):
        suggest_period({0: torch.eye(2), 5: torch.eye(3)}, eps=1.0)
    with pytest.raises(ValueError, match="limit"):
        suggest_period({0: torch.eye(2), 5: torch.eye(2)}, eps=1.0, limit=1.0)
    with pytest.raises(ValueError, match="eps"):
        suggest_period({0: torch.eye(2), 5: torch.eye(2)}, eps=0.0)
