"""Whitened layers: the function is preserved, the statistics are white, and wrong formulas are
caught.
"""

import copy
import itertools

import pytest
import torch
from torch import nn

from natcompanion import layers, reference
from natcompanion._moments import Moments, rows
from natcompanion.layers import WhitenedConv2d, WhitenedLinear

KINDS = pytest.mark.parametrize("kind", ["pca", "zca"])


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def mlp(sizes=(5, 7, 6, 3), dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    modules = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*modules[:-1]).to(dtype)


def conv_net(dtype=torch.float64, padding=1, **options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=padding, **options),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, (3, 2), stride=2),
    ).to(dtype)


def inputs(n=40, shape=(5,), dtype=torch.float64, seed=1):
    """Off-mean, correlated, unevenly scaled inputs."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=g, dtype=torch.float64)
    return (x.cumsum(1) * 2 + 3).to(dtype)


def rewhiten_all(model, x, eps):
    """Rewhiten every whitened layer from the statistics of one forward pass."""
    found = {}
    hooks = [
        m.register_forward_pre_hook(lambda m, args: found.update({m: Moments.of(rows(m, args[0]))}))
        for m in model.modules()
        if hasattr(m, "V")
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    for m, moments in found.items():
        m.rewhiten(moments.mean, moments.covariance(), eps)
    return found


# ---- The exact cases


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_case_whitening(cases, dtype):
    case = cases("prong")["003-whitening-eps0.001"]
    want, h, eps = case["expected"], tensor(case["inputs"]["h"]), case["inputs"]["eps"]
    moments = Moments.of(h.to(dtype))
    tolerance = (
        {"rtol": case["rtol"], "atol": 1e-10}
        if dtype == torch.float64
        else {"rtol": 1e-4, "atol": 1e-4}
    )
    torch.testing.assert_close(moments.mean, tensor(want["c"]), **tolerance)
    torch.testing.assert_close(moments.covariance(), tensor(want["Sigma"]), **tolerance)
    for kind in ("pca", "zca"):
        U, inverse = layers.whitening_pair(moments.covariance(), eps, kind)
        torch.testing.assert_close(U.T @ U, tensor(want["UtU"]), **tolerance)
        torch.testing.assert_close(U @ inverse, torch.eye(3, dtype=torch.float64))
        white = (h - moments.mean) @ U.T
        eigenvalues = torch.linalg.eigvalsh(white.T @ white / len(h))
        torch.testing.assert_close(
            eigenvalues, tensor(want["whitened_second_moment_eigs"]), **tolerance
        )
    torch.testing.assert_close(U, tensor(want["U_zca"]), **tolerance)
    values = tensor(want["eigenvalues"])
    torch.testing.assert_close(eigenvalues, values / (values + eps), **tolerance)
    assert float((U.T @ U - U @ U @ U @ U).norm()) > 1  # a wrong power is caught
    torch.testing.assert_close(U, U.T)


def test_case_uncentred_covariance_with_centred_inputs_is_not_white(cases):
    case = cases("prong")["003-uncentred-as-printed"]
    want, h, eps = case["expected"], tensor(case["inputs"]["h"]), case["inputs"]["eps"]
    moments = Moments.of(h)
    torch.testing.assert_close(moments.second_moment(), tensor(want["Sigma_uncentred"]))
    U, _ = layers.whitening_pair(moments.second_moment(), eps)
    white = (h - moments.mean) @ U.T
    eigenvalues = torch.linalg.eigvalsh(white.T @ white / len(h))
    torch.testing.assert_close(eigenvalues, tensor(want["eigs"]), rtol=case["rtol"], atol=0)
    gap = 1 - moments.mean @ torch.linalg.solve(moments.second_moment(), moments.mean)
    assert float(gap) == pytest.approx(want["one_minus_mu_Sinv_mu"], rel=case["rtol"])
    assert float(eigenvalues[0]) == pytest.approx(float(gap), rel=0.01) and float(gap) < 0.1


@KINDS
def test_case_reparametrised_layer(cases, kind):
    case = cases("prong")["003-reparametrise-layer"]
    want, given = case["expected"], case["inputs"]
    h = tensor(given["h"])
    layer = WhitenedLinear(3, 2, kind=kind, dtype=torch.float64)
    with torch.no_grad():
        layer.V.copy_(tensor(given["W"]))
        layer.d.copy_(tensor(given["b"]))
    moments = Moments.of(h)
    layer.rewhiten(moments.mean, moments.covariance(), given["eps"])
    V, d = layer.V.detach(), layer.d.detach()
    torch.testing.assert_close(V @ V.T, tensor(want["VVt"]), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(d, tensor(want["d"]), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        layer(h).detach(), tensor(want["preactivations"]), rtol=1e-9, atol=1e-11
    )
    if kind == "zca":
        torch.testing.assert_close(V, tensor(want["V_zca"]), rtol=1e-9, atol=1e-11)


def literal_algorithm(W, b, X, eps, printed):
    """Lines 6 to 11 of Algorithm 1 on a tanh network, as printed or with i - 1 in lines 8 and 9."""
    net = reference.prong.whitened_network(W, b)
    reference.prong.reparametrize(
        net, X, eps, printed=printed, whiten=lambda *given: layers.whitening_pair(*given, "zca")[0]
    )
    return reference.prong.activations(net, X)[len(W)]


def test_case_algorithm_as_printed_changes_the_function(cases):
    case = cases("prong")["003-literal-algorithm1"]
    want, given = case["expected"], case["inputs"]
    W, b, X = [tensor(w) for w in given["W"]], [tensor(x) for x in given["b"]], tensor(given["X"])
    sizes = (2, 4, 3, 2)
    model = layers.whiten_model(mlp(sizes), given["kind"])
    with torch.no_grad():
        for layer, w, x in zip(model[::2], W, b, strict=True):
            layer.V.copy_(w)
            layer.d.copy_(x)
        before = model(X)
    torch.testing.assert_close(before, tensor(want["output_before"]), rtol=1e-8, atol=1e-9)
    printed, corrected = (literal_algorithm(W, b, X, given["eps"], flag) for flag in (True, False))
    torch.testing.assert_close(printed, tensor(want["output_after"]), rtol=1e-8, atol=1e-9)
    assert float((printed - before).abs().max()) == pytest.approx(want["max_change"], rel=1e-8)
    torch.testing.assert_close(corrected, before, rtol=1e-12, atol=1e-12)
    rewhiten_all(model, X, given["eps"])
    torch.testing.assert_close(model(X).detach(), before, rtol=1e-12, atol=1e-12)


# ---- The function is preserved


@KINDS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("eps", [1e-8, 1e-2])
@pytest.mark.parametrize("make", [mlp, conv_net], ids=["linear", "convolution"])
def test_rewhiten_preserves_the_function(kind, dtype, tolerance, eps, make):
    if kind == "zca" and dtype == torch.float32:
        eps = max(eps, 1e-2)  # ZCA loses sqrt(largest eigenvalue / eps) in digits, PCA none
    x = inputs(shape=(5,) if make is mlp else (2, 5, 6), dtype=dtype)
    plain = make(dtype=dtype)
    before = plain(x).detach()
    model = layers.whiten_model(plain, kind)
    for part in (x[:30], x[10:], x[:7]):
        rewhiten_all(model, part, eps)
        assert float((model(x).detach() - before).abs().max()) < tolerance * float(
            before.abs().max()
        )
    back = layers.canonical_model(model)
    assert {type(m) for m in back} == {type(m) for m in plain}
    other = make(dtype=dtype)
    other.load_state_dict(back.state_dict())
    assert float((other(x) - before).detach().abs().max()) < tolerance * float(before.abs().max())


def test_transposed_whitening_matrix_is_caught():
    x = inputs()
    moments = Moments.of(x)
    U, _ = layers.whitening_pair(moments.covariance(), 1e-3, "pca")
    good, bad = ((x - moments.mean) @ u.T for u in (U, U.T))
    identity = torch.eye(5, dtype=torch.float64)
    assert float((good.T @ good / len(x) - identity).abs().max()) < 0.01
    assert float((bad.T @ bad / len(x) - identity).abs().max()) > 1


@KINDS
def test_layer_sees_white_inputs(kind):
    x = inputs()
    model = layers.whiten_model(mlp(), kind)
    rewhiten_all(model, x, 1e-9)
    for layer, h in ((model[0], x), (model[2], model[:2](x)), (model[4], model[:4](x))):
        white = ((h - layer.c) @ layer.U.T).detach()
        torch.testing.assert_close(white.mean(0), torch.zeros_like(white[0]), rtol=0, atol=1e-7)
        torch.testing.assert_close(
            white.T @ white / len(x), torch.eye(h.shape[1], dtype=torch.float64), rtol=0, atol=1e-4
        )


def test_a_covariance_needs_more_samples_than_variances():
    """Section 3.2: 64 independent units. A mini-batch of 100 gives their variances to within a
    factor 2, and a whitening that leaves the population far from white; 10,000 samples do not.
    """
    units, generator = 64, torch.Generator().manual_seed(0)
    left = {}
    for n in (100, 10_000):
        h = torch.randn(n, units, generator=generator, dtype=torch.float64)
        moments = Moments.of(h)
        cov = moments.covariance()
        U, _ = layers.whitening_pair(cov, 1e-9, "pca")
        lam = torch.linalg.eigvalsh(U @ U.T)  # the covariance of all is the identity
        variances = cov.diagonal()
        left[n] = float(variances.max() / variances.min()), float(lam[-1] / lam[0])
    assert left[100][0] < 4 and left[100][1] > 30
    assert left[10_000][0] < 1.2 and left[10_000][1] < 1.5


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular", "replicate"])
@pytest.mark.parametrize("padding", [1, (2, 0), "same", "valid"])
def test_borders_stay_right(mode, padding):
    if padding == (2, 0) and mode != "zeros":
        padding = (1, 0)
    plain = nn.Conv2d(2, 3, 3, padding=padding, padding_mode=mode).double()
    x = inputs(10, (2, 5, 6))
    layer = WhitenedConv2d.from_plain(plain)
    moments = Moments.of(rows(plain, x))
    layer.rewhiten(moments.mean, moments.covariance(), 1e-3)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.plain()(x), plain(x), rtol=1e-12, atol=1e-12)
    if (
        mode == "zeros" and padding == 1
    ):  # padding the whitened map instead is right inside, wrong at the border
        white = torch.einsum("ij,njhw->nihw", layer.U, x - layer.c[:, None, None])
        wrong = (nn.functional.conv2d(white, layer.V, layer.d, padding=1) - plain(x)).detach().abs()
        assert float(wrong[:, :, 1:-1, 1:-1].max()) < 1e-10
        assert float(wrong.max()) > 0.1


def test_convolution_whitens_over_maps():
    x = inputs(10, (3, 4, 4))
    layer = WhitenedConv2d(3, 2, 3, dtype=torch.float64)
    moments = Moments.of(rows(layer, x))
    pixels = x.permute(0, 2, 3, 1).reshape(-1, 3)
    torch.testing.assert_close(moments.covariance(), torch.cov(pixels.T, correction=0))
    layer.rewhiten(moments.mean, moments.covariance(), 1e-9)
    white = (pixels - layer.c) @ layer.U.T
    torch.testing.assert_close(
        white.T @ white / len(pixels), torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-6
    )


@KINDS
def test_layer_without_bias_whitens_the_second_moment(kind):
    x = inputs()
    plain = nn.Linear(5, 4, bias=False).double()
    layer = WhitenedLinear.from_plain(plain, kind)
    moments = Moments.of(x)
    layer.rewhiten(moments.mean, moments.covariance(), 1e-9)
    assert layer.d is None and not layer.c.any() and layer.canonical()[1] is None
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-11, atol=1e-11)
    white = x @ layer.U.T
    torch.testing.assert_close(
        white.T @ white / len(x), torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-5
    )


def test_gradient_in_whitened_coordinates():
    """G_V = (G_W - g_b c^T) U^T; U^-T in place of U fails."""
    x = inputs()
    plain = mlp((5, 3))
    layer = layers.whiten_model(plain)[0]
    moments = Moments.of(x)
    layer.rewhiten(moments.mean, moments.covariance(), 0.1)
    plain(x).square().mean().backward()
    layer(x).square().mean().backward()
    W, b = plain[0].weight.grad, plain[0].bias.grad
    centred = W - torch.outer(b, layer.c)
    torch.testing.assert_close(layer.V.grad, centred @ layer.U.T, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(layer.d.grad, b)
    wrong = centred @ torch.linalg.inv(layer.U)
    assert float((layer.V.grad - wrong).norm() / layer.V.grad.norm()) > 0.5


def test_velocities_go_along():
    x = inputs()
    layer = layers.whiten_model(mlp((5, 3)))[0]
    first, second = Moments.of(x[:20]), Moments.of(x[20:])
    layer.rewhiten(first.mean, first.covariance(), 0.1)
    velocity = (torch.randn_like(layer.V), torch.randn_like(layer.d))
    before = layers.to_canonical(*velocity, layer.U, layer.c)
    layer.rewhiten(second.mean, second.covariance(), 0.1, along=[velocity])
    after = layers.to_canonical(*velocity, layer.U, layer.c)
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-11, atol=1e-12)


# ---- Degenerate statistics


@KINDS
@pytest.mark.parametrize("case", ["constant", "all equal", "one row", "fewer samples", "dead"])
def test_degenerate_inputs(kind, case):
    x = inputs(dtype=torch.float32)
    x = {
        "constant": torch.cat((x[:, :3], torch.full_like(x[:, :2], 7.3)), 1),
        "all equal": x[:1].expand(40, 5),
        "one row": x[:1],
        "fewer samples": x[:3],
        "dead": torch.zeros_like(x),
    }[case]
    plain = mlp((5, 4), dtype=torch.float32)
    model = layers.whiten_model(plain, kind)
    found = rewhiten_all(model, x, 1e-8)
    assert torch.isfinite(model[0].U).all() and torch.isfinite(model[0].V).all()
    if case == "constant":
        covariance = found[model[0]].covariance()
        assert not covariance[3:].any()  # exactly
    for h in (x, inputs(dtype=torch.float32)):
        gap = (model(h) - plain(h)).detach().abs()
        assert (gap <= rounding(model[0], plain[0], h)).all()


def rounding(layer, plain, h):
    """The most that the rounding of V (U (h - c)) + d and W h + b may make, in any order of sums.

    Each of the two products of 5 terms loses at most 5 units of rounding of the product of the
    absolute values, each stored number one more, and each sum with d, c or b another.
    """
    V, U, c, d, W, b = (
        tensor.detach().abs()
        for tensor in (layer.V, layer.U, layer.c, layer.d, plain.weight, plain.bias)
    )
    size = (h.abs() + c) @ U.mT @ V.mT + d + h.abs() @ W.mT + b
    return 16 * torch.finfo(h.dtype).eps / 2 * size


@KINDS
def test_the_rounding_that_is_allowed_hides_no_wrong_formula(kind):
    """In float64, with the loss of the worst case: U^-1 without epsilon, or another mean."""
    x, plain = inputs()[:3], mlp((5, 4))
    layer = layers.whiten_model(plain, kind)[0]
    moments = Moments.of(x)
    layer.rewhiten(moments.mean, moments.covariance(), 1e-8)
    gap = (layer(x) - plain(x)).detach().abs()
    allowed = rounding(layer, plain[0], x)
    assert (gap <= allowed).all() and float(allowed.max()) < 1e-8
    with torch.no_grad():
        layer.c.mul_(1.01)
    assert ((layer(x) - plain(x)).detach().abs() > 1e3 * allowed).any()


def test_moments_of_scaled_off_mean_data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(1000, 3, generator=g, dtype=torch.float64) * tensor(
        [1e-3, 1.0, 100.0]
    ) + tensor([1e3, -5.0, 1e4])
    whole = Moments.of(x)
    torch.testing.assert_close(
        whole.covariance(), torch.cov(x.T, correction=0), rtol=1e-9, atol=1e-12
    )
    parts = Moments.of(x[:1]).merged(Moments.of(x[1:300])).merged(Moments.of(x[300:]))
    torch.testing.assert_close(parts.covariance(), whole.covariance(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(whole.second_moment(), x.T @ x / len(x))
    naive = (
        x.float().T @ x.float() / len(x) - torch.outer(x.float().mean(0), x.float().mean(0))
    ).double()
    assert (
        float((naive - whole.covariance())[0, 0].abs() / whole.covariance()[0, 0]) > 0.5
    )  # negative control


def test_decay_weights_old_samples():
    x = inputs(30)
    mixed = Moments.of(x[:10]).merged(Moments.of(x[10:20]), 0.5).merged(Moments.of(x[20:]), 0.5)
    weights = torch.cat([torch.full((10,), w, dtype=torch.float64) for w in (0.25, 0.5, 1.0)])
    mean = (weights @ x) / weights.sum()
    torch.testing.assert_close(mixed.mean, mean)
    torch.testing.assert_close(
        mixed.covariance(), ((x - mean).T * weights) @ (x - mean) / weights.sum()
    )


# ---- Models


def test_whiten_model_leaves_the_rest_alone():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(3, 4),
            "twice": shared,
            "again": nn.Linear(4, 4),
            "grouped": nn.Conv2d(4, 4, 1, groups=2),
            "norm": nn.BatchNorm1d(4),
            "embedding": nn.Embedding(3, 2),
        }
    )
    model["again"].weight = shared.weight
    model["linear"].weight.requires_grad_(False)
    new = layers.whiten_model(model)
    assert type(new["linear"]) is WhitenedLinear and not new["linear"].V.requires_grad
    assert [type(new[k]) for k in ("twice", "again", "grouped")] == [
        nn.Linear,
        nn.Linear,
        nn.Conv2d,
    ]
    assert new["again"].weight is new["twice"].weight is not shared.weight
    assert type(model["linear"]) is nn.Linear


def test_layers_copy_pickle_and_train():
    import pickle

    x = inputs()
    model = layers.whiten_model(mlp())
    rewhiten_all(model, x, 0.1)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
    assert [n for n, _ in model[0].named_parameters()] == ["V", "d"]
    assert [n for n, _ in model[0].named_buffers()] == ["U", "c"]
    model(x).sum().backward()
    assert not model[0].U.requires_grad and model[0].V.grad is not None


# ---- Whitened initialization


@KINDS
def test_whitened_initialization(kind):
    x = inputs(200)
    plain = mlp((5, 8, 6, 3))
    fresh = copy.deepcopy(plain)
    assert layers.whitened_initialization(plain, x, 0.01, kind) is plain
    h = x
    for old, new in zip(fresh[::2], plain[::2], strict=True):
        U, _ = layers.whitening_pair(torch.cov(h.T, correction=0), 0.01, kind)
        W, b = layers.to_canonical(old.weight, old.bias, U, h.mean(0))
        torch.testing.assert_close(new.weight, W, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(new.bias, b, rtol=1e-8, atol=1e-10)
        h = torch.tanh(new(h)).detach()
    whitened = layers.whitened_initialization(layers.whiten_model(fresh, kind), x, 0.01)
    torch.testing.assert_close(whitened(x), plain(x), rtol=1e-9, atol=1e-10)
    assert torch.equal(whitened[0].V, fresh[0].weight)
    wide = copy.deepcopy(
        fresh
    )  # the scale of the inputs no longer matters, as it does for "fan-in"
    layers.whitened_initialization(wide, 100 * x, 1e-9, kind)
    layers.whitened_initialization(fresh, x, 1e-9, kind)
    torch.testing.assert_close(wide(100 * x), fresh(x), rtol=1e-3, atol=1e-4)
    assert float((plain(100 * x) - plain(x)).detach().abs().max()) > 0.1


def test_whitened_initialization_of_a_convolution_keeps_batch_norm_buffers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3)
    ).double()
    before = copy.deepcopy(model)
    layers.whitened_initialization(model, inputs(20, (2, 6, 6)), 0.01)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before.buffers(), strict=True))
    assert not torch.equal(model[3].weight, before[3].weight)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_buffers_are_preserved_in_whichever_way_they_change():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("replaced", "filled"):
                self.register_buffer(name, torch.zeros(3))
            self.register_buffer("late", None)

        def forward(self, x):
            self.replaced = 0.9 * self.replaced + 0.1 * x.mean(0)
            self.filled.add_(x.mean(0))
            self.late = self.filled.clone()
            return x

    model = Running()
    before = dict(model.named_buffers())
    with layers.preserved_buffers(model):
        model(torch.ones(4, 3))
        assert float(model.replaced.sum()) > 0
    after = dict(model.named_buffers())
    assert model.late is None and after.keys() == before.keys()
    assert all(after[name] is before[name] and not bool(after[name].any()) for name in before)


# ---- Bad input


def test_bad_input_is_refused_and_changes_nothing():
    layer = WhitenedLinear(3, 2, dtype=torch.float64)
    before = copy.deepcopy(layer.state_dict())
    eye, zero = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for mean, cov, eps, word in [
        (zero[:2], eye, 0.1, "3 features"),
        (zero, eye[:2], 0.1, "square"),
        (zero * torch.nan, eye, 0.1, "finite"),
        (zero, eye * torch.inf, 0.1, "finite"),
        (zero, -eye, 0.1, "semi-definite"),
        (zero, 0 * eye, 0.0, "full rank"),
        (zero, eye, -1.0, "eps"),
        (zero, eye.triu() + eye.roll(1, 0), 0.1, "symmetric"),
    ]:
        with pytest.raises(ValueError, match=word):
            layer.rewhiten(mean, cov, eps)
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), layer.state_dict().values(), strict=True)
    )
    with pytest.raises(ValueError, match="kind"):
        WhitenedLinear(3, 2, kind="cholesky")
    with pytest.raises(ValueError, match="groups"):
        WhitenedConv2d.from_plain(nn.Conv2d(4, 4, 1, groups=2))
