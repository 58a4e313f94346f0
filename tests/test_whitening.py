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
    torch.testing.assert_close(
        pca.flip(0).abs(), expected["PCA_abs_rows_ascending_eigenvalue"], rtol=1e-8, atol=1e-10
    )
    torch.testing.assert_close(cholesky, expected["cholesky"], rtol=1e-8, atol=1e-10)
    for w in (zca, pca, cholesky):
        torch.testing.assert_close(w.mT @ w, expected["W^T_W"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.0, 0.01, 0.5])
def test_whitens_the_regularized_covariance(kind, eps):
    cov, identity = random_covariance(), torch.eye(6, dtype=torch.float64)
    w = whitening_matrix(cov, kind, eps)
    torch.testing.assert_close(w @ (cov + eps * identity) @ w.mT, identity, rtol=0, atol=1e-12)
    # Negative control: the transpose does not whiten unless W is symmetric, nor does W squared.
    assert kind == "zca" or not torch.allclose(
        w.mT @ (cov + eps * identity) @ w, identity, atol=1e-2
    )
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
@pytest.mark.parametrize("seed", range(10))
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
    torch.testing.assert_close(
        whitener.inverse_transform(whitener.transform(x)), x, rtol=1e-10, atol=1e-10
    )


# ---- bad input and edges


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("cov", "message"),
    [
        (torch.eye(3, dtype=torch.float64) * float("nan"), "finite"),
        (torch.full((2, 2), float("inf")), "finite"),
        (torch.zeros(0, 0), "empty"),
        (torch.ones(3), "matrix"),
        (torch.ones(2, 3), "square"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.diag(torch.tensor([1.0, -0.5])), "eigenvalue -0.5"),
        (torch.eye(3, dtype=torch.int64), "int64"),
        ([[1.0]], "list"),
    ],
)
def test_refuses_what_is_no_covariance(cov, message, kind):
    with pytest.raises(ValueError, match=message):
        whitening_matrix(cov, kind, 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_singular_covariance_names_its_rank(kind):
    x = badly_scaled_data(n=4)[:, [0, 1, 1]]
    with pytest.raises(ValueError, match=r"numerical rank 2 of 3; increase eps"):
        whitening_matrix(covariance(x), kind)
    with pytest.raises(ValueError, match=r"numerical rank 0 of 2"):
        whitening_matrix(torch.zeros(2, 2), kind)
    assert bool(whitening_matrix(covariance(x), kind, 1e-6).isfinite().all())
    with pytest.raises(ValueError, match=r"rank 1 of 2"):  # eps is lost in the rounding of the sum
        whitening_matrix(torch.ones(2, 2), kind, 1e-18)


def test_refuses_bad_options():
    with pytest.raises(ValueError, match="eps: expected a finite number >= 0, got -1"):
        whitening_matrix(torch.eye(2), eps=-1.0)
    with pytest.raises(ValueError, match="kind"):
        whitening_matrix(torch.eye(2), "ica")
    with pytest.raises(ValueError, match="kind"):
        Whitener("ica")
    with pytest.raises(ValueError, match="eps"):
        Whitener(eps=float("nan"))


@pytest.mark.parametrize("kind", KINDS)
def test_negative_rounding_counts_as_zero(kind):
    values = torch.tensor([-1.3e-7, 1.0, 5.0], dtype=torch.float64)
    rotation = torch.linalg.qr(random_covariance(3)).Q
    cov = (rotation * values) @ rotation.mT
    w = whitening_matrix(cov, kind, 1e-8)  # (lambda + eps) ** -0.5 as printed would be NaN here
    clamped = (rotation * (values.clamp(min=0) + 1e-8)) @ rotation.mT
    torch.testing.assert_close(
        w @ clamped @ w.mT, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float64(kind, dtype):
    cov = (random_covariance() + torch.eye(6, dtype=torch.float64)).to(dtype)
    w = whitening_matrix(cov, kind, 0.1)
    assert w.dtype == dtype
    torch.testing.assert_close(
        w, whitening_matrix(cov.double(), kind, 0.1).to(dtype), rtol=0, atol=0
    )


def test_the_result_is_detached():
    assert not whitening_matrix(torch.eye(2).requires_grad_()).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_every_eps_changes_the_result(kind):
    small, large = (whitening_matrix(random_covariance(), kind, eps) for eps in (1e-3, 1e-1))
    assert float((small - large).abs().max()) > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_constant_features_stay_zero(kind):
    x = torch.cat([badly_scaled_data(), torch.full((500, 1), 7.0, dtype=torch.float64)], 1)
    with pytest.raises(ValueError, match="rank 5 of 6"):
        Whitener(kind).fit(x)
    y = Whitener(kind, eps=1e-9).fit(x).transform(x)
    assert bool(y.isfinite().all())
    gains = torch.linalg.eigvalsh(covariance(y))
    assert float(gains[0]) < 1e-6
    assert float(gains[1]) > 0.9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3])
def test_fewer_samples_than_features(kind, n):
    x = badly_scaled_data(n=n)
    with pytest.raises(ValueError, match=f"rank {n - 1} of 5"):
        Whitener(kind).fit(x)
    whitener = Whitener(kind, eps=0.5).fit(x)
    y = whitener.transform(x)
    eigenvalues = torch.linalg.eigvalsh(covariance(x)).clamp(min=0)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(covariance(y)),
        eigenvalues / (eigenvalues + 0.5),
        rtol=1e-8,
        atol=1e-10,
    )
    torch.testing.assert_close(whitener.inverse_transform(y), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_whitener_keeps_the_dtype_of_the_data(dtype):
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    whitener = Whitener().fit(x)
    y = whitener.transform(x)
    assert y.dtype == whitener.inverse_transform(y).dtype == dtype
    assert whitener.matrix.dtype == torch.float64
    slack = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        covariance(y.double()), torch.eye(3, dtype=torch.float64), rtol=0, atol=slack
    )


@pytest.mark.parametrize(
    "x",
    [
        torch.full((4, 2), float("nan")),
        torch.zeros(0, 2),
        torch.ones(4),
        torch.ones(4, 2, dtype=torch.int64),
    ],
)
def test_a_bad_batch_leaves_the_whitener_as_it_was(x):
    good = badly_scaled_data()
    whitener = Whitener().fit(good)
    before = whitener.transform(good)
    with pytest.raises(ValueError, match="x: expected"):
        whitener.fit(x)
    with pytest.raises(ValueError, match="expected"):
        whitener.fit(torch.ones(4, 2))
    with pytest.raises(ValueError, match="x: expected"):
        whitener.transform(x)
    with pytest.raises(ValueError, match="y: expected"):
        whitener.inverse_transform(x)
    torch.testing.assert_close(whitener.transform(good), before, rtol=0, atol=0)


def test_whitener_refuses_the_wrong_width_and_use_before_fit():
    with pytest.raises(ValueError, match="call .fit"):
        Whitener().transform(torch.ones(2, 2))
    with pytest.raises(ValueError, match="expected 5 columns"):
        Whitener().fit(badly_scaled_data()).transform(torch.ones(2, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scales", [(1, 1e-8), (1e-12, 1, 1e6, 1e-4, 1e-8)])
def test_units_are_not_rank(kind, scales):
    """Independent features are whitened in any units; mixed ones too."""
    g = torch.Generator().manual_seed(0)
    d = len(scales)
    mix = torch.eye(d).double() + 0.3 * torch.randn(d, d, generator=g, dtype=torch.float64)
    noise = torch.randn(500, d, generator=g, dtype=torch.float64)
    for x in (noise * torch.tensor(scales), noise @ mix * torch.tensor(scales)):
        y = Whitener(kind).fit(x).transform(x)
        torch.testing.assert_close(
            covariance(y), torch.eye(d, dtype=torch.float64), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_constant_and_repeated_features_are_refused_in_any_units(kind, scale):
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    repeated, constant = x.clone(), x.clone()
    repeated[:, 2] = scale * x[:, 0]
    constant[:, 2] = 0.1 * scale  # its mean is not exactly 0.1: the rest is rounding
    for bad in (repeated, constant):
        with pytest.raises(ValueError, match="numerical rank 2 of 3"):
            Whitener(kind).fit(bad)


def test_truncated_whitening_keeps_the_leading_directions():
    """By the singular values of the data; with all components it is the whole."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=g).double() @ torch.randn(6, 6, generator=g).double() + 3
    for k in (1, 3, 6):
        whitener = Whitener("pca", components=k).fit(x)
        y = whitener.transform(x)
        assert whitener.matrix.shape == (k, 6) and y.shape == (40, k)
        torch.testing.assert_close(y.mT @ y / 40, torch.eye(k).double())
        U, s, Vh = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        nearest = (U[:, :k] * s[:k]) @ Vh[:k] + x.mean(0)  # of all matrices of this rank
        torch.testing.assert_close(whitener.inverse_transform(y), nearest)
    torch.testing.assert_close(whitener.matrix, Whitener("pca").fit(x).matrix)
    cov = Whitener("pca").fit(x).covariance
    damped = whitening_matrix(cov, "pca", eps=0.5, components=2)
    torch.testing.assert_close(damped, whitening_matrix(cov, "pca", eps=0.5)[:2])


def test_truncated_whitening_of_few_samples():
    """The directions that are left out may have no variance."""
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).double()
    with pytest.raises(ValueError, match="full rank"):
        Whitener("pca").fit(x)
    y = Whitener("pca", components=3).fit(x).transform(x)
    torch.testing.assert_close(y.mT @ y / 4, torch.eye(3).double())
    with pytest.raises(ValueError, match=r"components: expected at most 3.*got 4; keep fewer"):
        Whitener("pca", components=4).fit(x)
    assert Whitener("pca", eps=0.1, components=4).fit(x).matrix.shape == (4, 9)


def test_components_that_will_not_do():
    for kind in ("zca", "cholesky"):
        with pytest.raises(ValueError, match=r'components: expected kind="pca"'):
            Whitener(kind, components=2)
        with pytest.raises(ValueError, match=r'components: expected kind="pca"'):
            whitening_matrix(torch.eye(3), kind, components=2)
    for wrong in (0, 4, 1.5):
        with pytest.raises(ValueError, match="components: expected an integer from 1 to 3"):
            whitening_matrix(torch.eye(3), "pca", components=wrong)
    whitener = Whitener("pca", components=2).fit(torch.randn(9, 3))
    with pytest.raises(ValueError, match="y: expected 2 columns"):
        whitener.inverse_transform(torch.ones(1, 3))
