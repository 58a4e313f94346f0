"""Whitening matrices and the whitener."""

import pytest
import torch

from natcompanion.whitening import Whitener, whitening_matrix

KINDS = ["zca", "pca", "cholesky"]


def random_covariance(dim: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(dim, 3 * dim, generator=generator, dtype=torch.float64)
    return a @ a.mT / (3 * dim)


def badly_scaled_data(n: int = 500, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    scale = torch.tensor([1e-2, 1.0, 1e2, 3.0, 0.1], dtype=torch.float64)
    return torch.randn(n, 5, generator=generator, dtype=torch.float64) @ mixing * scale + 1e3


def covariance(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(0)
    return centred.mT @ centred / len(x)


def test_case(cases):
    case = cases("whitening")["whitening"]
    sigma = torch.tensor(case["inputs"]["Sigma"], dtype=torch.float64)
    expected = {k: torch.tensor(v, dtype=torch.float64) for k, v in case["expected"].items()}
    zca, pca, cholesky = (whitening_matrix(sigma, kind) for kind in KINDS)
    torch.testing.assert_close(zca, expected["ZCA"], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(pca.flip(0).abs(), expected["PCA_abs_rows_ascending_eigenvalue"], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(cholesky, expected["cholesky"], rtol=1e-8, atol=1e-10)
    for w in (zca, pca, cholesky):
        torch.testing.assert_close(w.mT @ w, expected["W^T_W"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.0, 0.01, 0.5])
def test_whitens_the_regularized_covariance(kind, eps):
    cov, identity = random_covariance(), torch.eye(6, dtype=torch.float64)
    w = whitening_matrix(cov, kind, eps)
    torch.testing.assert_close(w @ (cov + eps * identity) @ w.mT, identity, rtol=0, atol=1e-12)
    # Negative control: the transpose does not whiten unless W is symmetric, nor does W without the square root.
    assert kind == "zca" or not torch.allclose(w.mT @ (cov + eps * identity) @ w, identity, atol=1e-2)
    assert not torch.allclose(w @ w @ (cov + eps * identity) @ (w @ w).mT, identity, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_transposed_inverse_is_a_root_of_the_metric(kind):
    G = random_covariance(seed=1)
    root = torch.linalg.inv(whitening_matrix(G, kind)).mT
    torch.testing.assert_close(root.mT @ root, G, rtol=1e-12, atol=1e-12)


def test_kinds_have_their_defining_form():
    cov = random_covariance()
    zca, pca, cholesky = (whitening_matrix(cov, kind) for kind in KINDS)
    torch.testing.assert_close(zca, zca.mT)
    norms = pca.norm(dim=1)  # each is one over the root of an eigenvalue
    assert bool((norms.diff() > 0).all())
    assert bool((pca.gather(1, pca.abs().argmax(1, keepdim=True)) > 0).all())
    torch.testing.assert_close(cholesky, cholesky.tril())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_whitened_data_have_mean_zero_and_identity_covariance(kind, seed):
    x = badly_scaled_data(seed=seed)
    y = Whitener(kind).fit(x).transform(x)
    assert float(y.mean(0).abs().max()) < 1e-8
    assert float((covariance(y) - torch.eye(5, dtype=torch.float64)).abs().max()) < 1e-8
    # Negative control: without taking the mean out, the data are not white.
    raw = x @ whitening_matrix(covariance(x), kind).mT
    assert float(raw.mean(0).abs().max()) > 1
    # Negative control: the divisor is n, not n - 1.
    assert float((torch.cov(y.mT) - torch.eye(5, dtype=torch.float64)).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_inverse_transform(kind):
    x = badly_scaled_data()
    whitener = Whitener(kind, eps=1e-3).fit(x)
    torch.testing.assert_close(whitener.inverse_transform(whitener.transform(x)), x, rtol=1e-10, atol=1e-10)
