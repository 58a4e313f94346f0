"""What came after: one method is another one, to rounding, and where it is not."""

import inspect

import pytest
import torch
from torch import nn

from natcompanion import optim, reference
from natcompanion.likelihoods import Categorical, Gaussian
from natcompanion.metrics import kronecker_factors
from natcompanion.reference import after
from natcompanion.whitening import EASI, whitening_matrix

EXACT = 1e-12


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def spread(rows, columns, seed=0, least=0.5):
    """Return a matrix with singular values from ``least`` to 2."""
    U, _, Vh = torch.linalg.svd(randn(rows, columns, seed=seed), full_matrices=False)
    return U @ torch.linspace(least, 2, len(Vh), dtype=torch.float64).diag() @ Vh


def layer(n=60, inputs=5, outputs=3):
    """Return what a layer receives, correlated and not centred, a 1 last, and what comes back."""
    h = randn(n, inputs) @ spread(inputs, inputs, seed=1) + 0.5
    return torch.cat([h, torch.ones(n, 1, dtype=torch.float64)], 1), randn(n, outputs, seed=2) - 0.3


def apart(found, wanted):
    return float((found - wanted).abs().max())


# ---- What goes in


def test_a_prong_step_is_gradient_descent_on_neurons():
    h, delta = layer()
    assert apart(after.prong(h, delta), after.foof(h, delta)) < EXACT
    A = h.mT @ h / len(h)
    assert apart(after.foof(h, delta), after.gradient(h, delta) @ torch.linalg.inv(A)) < EXACT


def test_the_epsilon_of_prong_is_a_damping_that_spares_the_bias():
    h, delta = layer()
    ridge = 0.3 * torch.eye(6, dtype=torch.float64)
    damped = after.gradient(h, delta) @ torch.linalg.inv(h.mT @ h / len(h) + ridge)
    assert apart(after.foof(h, delta, damping=0.3), damped) < EXACT
    assert apart(after.prong(h, delta, eps=0.3), damped) > 1e-2, "FOOF damps the bias, too"
    ridge[-1, -1] = 0
    damped = after.gradient(h, delta) @ torch.linalg.inv(h.mT @ h / len(h) + ridge)
    assert apart(after.prong(h, delta, eps=0.3), damped) < EXACT


def test_without_centring_a_prong_step_is_another_one():
    """The negative control: whitened by the second moment, and the bias left alone."""
    h, delta = layer()
    x = h[:, :-1]
    G_W = delta.mT @ x / len(x) @ torch.linalg.inv(x.mT @ x / len(x))
    uncentred = torch.cat([G_W, delta.mean(0)[:, None]], 1)
    assert apart(uncentred, after.foof(h, delta)) > 0.1


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def captured(model, x, t):
    """Return what each linear layer receives and what comes back to it, of a batch."""
    seen = []
    for m in model:
        if isinstance(m, nn.Linear):
            m.register_forward_hook(
                lambda m, args, out: (out.retain_grad(), seen.append((args[0], out)))[0]
            )
    model.zero_grad()
    Categorical().nll(model(x), t).sum().backward()
    one = torch.ones(len(x), 1, dtype=x.dtype)
    found = [(torch.cat([h.detach(), one], 1), out.grad) for h, out in seen]
    for m in model:
        m._forward_hooks.clear()
    model.zero_grad()
    return found


def batch():
    x = layer()[0][:, :-1]
    return x, torch.randint(3, (len(x),), generator=torch.Generator().manual_seed(3))


def joined(model):
    """Return the weights of the linear layers, biases last."""
    return [
        torch.cat([m.weight, m.bias[:, None]], 1).detach().clone()
        for m in model
        if isinstance(m, nn.Linear)
    ]


def test_algorithm_1_of_prong_steps_by_foof_in_every_layer():
    model, (x, t) = network(), batch()
    before, sides = joined(model), captured(model, x, t)
    net = reference.prong.whitened_network([m[:, :-1] for m in before], [m[:, -1] for m in before])
    loss = lambda r, y: Categorical().nll(r, y).mean()
    reference.prong.prong(net, [(x, t)], loss, x, alpha=0.1, eps=0.0, T=1)
    W, b = reference.prong.canonical(net)
    for k, (h, delta) in enumerate(sides):
        moved = torch.cat([W[k], b[k][:, None]], 1)
        assert apart(moved, before[k] - 0.1 * after.foof(h, delta)) < EXACT
        assert apart(moved, before[k] - 0.1 * after.gradient(h, delta)) > 1e-3


def test_the_first_layer_of_rngd_is_foof_and_a_hidden_one_is_not():
    model, (x, t) = network(), batch()
    deep = nn.Sequential(*model[:2], nn.Linear(4, 4).double(), nn.Tanh(), model[2])
    before, sides = joined(deep), captured(deep, x, t)
    found = reference.rngd(
        before,
        [(x, t)],
        lambda r, y: Categorical().nll(r, y).mean(),
        torch.tanh,
        lambda a: 1 - torch.tanh(a) ** 2,
        gamma=0.1,
        lam=0.0,
        eps=0.2,
        T=1,
    )
    gaps = [
        apart(moved, W - 0.1 * after.foof(h, delta, damping=0.2))
        for moved, W, (h, delta) in zip(found, before, sides, strict=True)
    ]
    assert gaps[0] < EXACT and gaps[2] < EXACT, "the first and the last layer count as linear"
    assert gaps[1] > 1e-4, "its neurons weigh the examples, each in its own way"


def test_the_library_s_prong_and_rngd_take_these_steps():
    x, t = batch()
    options = {"sample": x, "eps": 1e-13}, {"eps": 0.2, "period": 1, "decay": 0.0}
    for kind, more, damping in zip((optim.PRONG, optim.RNGD), options, (0.0, 0.2), strict=True):
        model = network()
        before, sides = joined(model), captured(model, x, t)
        optimizer = kind(model, 0.1, **more)
        Categorical().nll(model(x), t).mean().backward()
        optimizer.step()
        h, delta = sides[0]
        wanted = before[0] - 0.1 * after.foof(h, delta, damping)
        assert apart(joined(model)[0], wanted) < 1e-10
        assert apart(joined(model)[0], before[0] - 0.1 * after.gradient(h, delta)) > 1e-3


# ---- Both sides


def test_k_fac_whitens_both_sides_and_is_the_library_s():
    model, (x, t) = network()[:1], batch()
    (h, delta), likelihood = captured(model, x, t)[0], Categorical()
    root = likelihood.fisher_root(model(x).detach())
    B = (root @ root.mT).mean(0)
    B_damped = B + 0.1 * torch.eye(4, dtype=torch.float64)  # that of the softmax is singular
    both = torch.linalg.inv(B_damped) @ after.gradient(h, delta) @ torch.linalg.inv(h.mT @ h / 60)
    assert apart(after.kfac(h, delta, B_damped), both) < EXACT
    assert apart(after.kfac(h, delta, B_damped), after.foof(h, delta)) > 0.1
    assert apart(after.kfac(h, delta, torch.eye(4, dtype=h.dtype)), after.foof(h, delta)) < EXACT
    (factors,) = kronecker_factors(model, x, likelihood).values()
    G = after.gradient(h, delta)
    wanted = torch.cat([G[:, :-1].flatten(), G[:, -1]])  # vec W, then b
    found = torch.linalg.solve(factors.dense() + 0.1 * torch.eye(24, dtype=h.dtype), wanted)
    damped = after.kfac(h, delta, B, damping=0.1)
    assert apart(torch.cat([damped[:, :-1].flatten(), damped[:, -1]]), found) < EXACT


# ---- What comes back


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5)], ids=str)
def test_shampoo_with_one_gradient_is_its_polar_factor(shape):
    G = spread(*shape)
    U = after.polar(G)
    assert apart(after.shampoo([G]), U) < EXACT
    short = U @ U.mT if shape[0] < shape[1] else U.mT @ U
    assert apart(short, torch.eye(len(short), dtype=G.dtype)) < EXACT
    assert apart(after.shampoo([G, G]), U) > 0.1, "a second gradient, and no more"


def test_the_polar_factor_whitens_the_rows():
    G = spread(4, 7)
    assert apart(after.power(G @ G.mT, -0.5) @ G, after.polar(G)) < EXACT
    assert apart(after.power(G @ G.mT, -0.25) @ G, after.polar(G)) > 0.1


def test_shampoo_with_one_gradient_is_steepest_descent_under_the_spectral_norm():
    """Of all matrices of spectral norm 1 its step, the polar factor, has the largest inner product
    with the gradient: the sum of the singular values. The gradient itself, normalised, has less.
    """
    G = spread(4, 4)
    s = torch.linalg.svdvals(G)
    step = after.polar(G)
    assert apart(after.shampoo([G]), step) < EXACT

    def gain(X):
        return float((X / torch.linalg.matrix_norm(X, 2) * G).sum())

    assert gain(step) == pytest.approx(float(s.sum()), rel=1e-12)
    assert max(gain(step + 0.1 * randn(4, 4, seed=seed)) for seed in range(200)) < gain(step)
    assert gain(G) < 0.9 * gain(step)


def test_the_polar_factor_is_the_nearest_one():
    G = spread(4, 4)
    distance = float((after.polar(G) - G).norm())
    for seed in range(20):
        other, _ = torch.linalg.qr(randn(4, 4, seed=seed))
        assert float((other - G).norm()) > 1.01 * distance


# ---- By an iteration


def test_newton_schulz_acts_on_singular_values():
    X = spread(4, 6) / 3
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    for a, b, c in (after.CUBIC, after.MUON):
        wanted = U @ (a * s + b * s**3 + c * s**5).diag() @ Vh
        found = after.newton_schulz(X, 1, (a, b, c))
        assert apart(found, wanted) < EXACT
        assert apart(found, U @ (a * s + c * s**3 + b * s**5).diag() @ Vh) > 1e-2


def test_the_cubic_iteration_ends_at_the_polar_factor_and_muon_s_does_not():
    M = spread(5, 8)
    assert apart(after.muon(M, 60, after.CUBIC), after.polar(M)) < EXACT
    assert apart(after.muon(M, 60), after.polar(M)) > 0.05


def test_the_coefficients_are_torch_s():
    defaults = inspect.signature(torch.optim.Muon).parameters
    assert defaults["ns_coefficients"].default == after.MUON
    assert defaults["ns_steps"].default == inspect.signature(after.muon).parameters["steps"].default


@pytest.mark.parametrize("shape", [(4, 7), (7, 4)], ids=str)
def test_a_step_of_torch_s_muon_is_ours_to_the_precision_of_bfloat16(shape):
    weight, G = nn.Parameter(torch.zeros(shape)), spread(*shape, least=0.1).float()
    weight.grad = G
    options = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    torch.optim.Muon([weight], lr=1.0, **options).step()
    found = -weight.detach() / max(1, shape[0] / shape[1]) ** 0.5

    def gap(ours):
        return float((found - ours).norm() / found.norm())

    assert gap(after.muon(G)) < 0.08, "1/256 in every product, and five steps"
    for other in (after.muon(G, 4), after.muon(G, 6), after.muon(G, 5, after.CUBIC)):
        assert gap(other) > 0.08


def test_singular_values_end_between_a_half_and_three_halves_unless_they_are_small():
    """In units of the norm of all entries: five steps lift to a half what is above 0.0011, and no
    more; what is above 0.0025 ends between 0.68 and 1.21.
    """
    start = torch.logspace(-4, 0, 40001, dtype=torch.float64)
    s, (a, b, c) = start, after.MUON
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    assert ((s > 0.5) == (start > float(start[s <= 0.5].max()))).all()
    assert 1.05e-3 < float(start[s <= 0.5].max()) < 1.15e-3
    end = s[start > 2.5e-3]
    assert 0.675 < float(end.min()) < 0.685 and 1.2 < float(end.max()) < 1.215


# ---- Learned whitening


def covariance():
    M = spread(4, 4)
    return M @ M.mT / 2


def test_easi_in_expectation_is_newton_schulz():
    C = covariance()
    root, W = after.power(C, 0.5), torch.eye(4, dtype=torch.float64)
    assert apart(after.easi(W, C, 0.4) @ root, after.newton_schulz(W @ root, 1)) > 1e-2
    X = W @ root
    for _ in range(60):
        W, X = after.easi(W, C, 0.5), after.newton_schulz(X, 1)
        assert apart(W @ root, X) < EXACT


def test_its_limit_is_zca_from_the_identity_and_a_rotation_of_it_from_elsewhere():
    C = covariance()

    def limit(W):
        for _ in range(60):
            W = after.easi(W, C, 0.5)
        return W

    zca = whitening_matrix(C, kind="zca", eps=0.0)
    assert apart(limit(torch.eye(4, dtype=C.dtype)), zca) < EXACT
    assert apart(zca, after.power(C, -0.5)) < EXACT
    elsewhere = limit(spread(4, 4, seed=5) / 2)
    assert apart(elsewhere @ C @ elsewhere.mT, torch.eye(4, dtype=C.dtype)) < EXACT
    assert apart(elsewhere, zca) > 0.1


def test_the_library_s_easi_takes_this_step_on_a_whole_batch():
    x = layer(400, 4)[0][:, :-1]
    x = (x - x.mean(0)) / 2
    learner, C = EASI(4, rate=0.5, normalized=False), torch.cov(x.mT, correction=0)
    W = torch.eye(4, dtype=torch.float64)
    for _ in range(5):
        learner.update(x)
        W = after.easi(W, C, 0.5)
    assert apart(learner.B, W) < EXACT
    assert apart(W, torch.eye(4, dtype=torch.float64)) > 0.05


# ---- In the space of samples


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), Categorical()], ids=["gauss", "softmax"])
def test_the_damped_step_in_sample_space_is_the_dense_one_and_the_library_s(likelihood):
    x, labels = (part[:8] for part in batch())
    t = labels if isinstance(likelihood, Categorical) else randn(8, 3, seed=4)
    model = network()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    leaf = model(x).detach().requires_grad_()
    (s,) = torch.autograd.grad(likelihood.nll(leaf, t).sum(), leaf)
    root, J = likelihood.fisher_root(leaf.detach()), reference.jacobian(model, x)
    J = J.view(8, 3, -1)
    H = root @ root.mT
    found, dense = after.sample_step(J, H, s, 0.1), after.dense_step(J, H, s, 0.1)
    assert apart(found, dense) < EXACT
    for wrong in (after.sample_step(J, H, s, 0.8), after.sample_step(J, H.mT * 2, s, 0.1)):
        assert apart(wrong, dense) > 1e-3
    optimizer = optim.SampleSpaceNaturalGradient(model, likelihood, 1.0, damping=0.1)
    optimizer.step(x, t)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert apart(moved, before - dense) < EXACT


@pytest.mark.parametrize(("largest", "ends"), [(2.9, 1.0), (3.5, -1.0), (5.5, None)])
def test_from_the_identity_it_ends_at_zca_if_no_eigenvalue_is_3_or_more(largest, ends):
    """Step size 1/2: with a largest eigenvalue of 3.5 a sign is turned, with 5.5 it runs away."""
    Q, _ = torch.linalg.qr(randn(3, 3))
    lam = torch.tensor([0.5, 1.0, largest], dtype=torch.float64)
    C, W = (Q * lam) @ Q.mT, torch.eye(3, dtype=torch.float64)
    root = after.power(C, 0.5)
    assert apart(after.easi(W, C, 0.5) @ root, after.newton_schulz(root, 1)) < 1e-10
    for _ in range(60):
        W = after.easi(W, C, 0.5)
    if ends is None:
        assert not bool(torch.isfinite(W).all())
    else:
        signs = torch.tensor([1.0, 1.0, ends], dtype=torch.float64)
        assert apart(W, (Q * (signs * lam**-0.5)) @ Q.mT) < EXACT
        assert (apart(W, whitening_matrix(C, kind="zca", eps=0.0)) < EXACT) == (ends > 0)
