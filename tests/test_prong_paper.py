"""The prong paper, equation by equation, and where its print is wrong."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from natcompanion import metrics, reference
from natcompanion.layers import (
    WhitenedLinear,
    to_canonical,
    to_whitened,
    whiten_model,
    whitening_pair,
)
from natcompanion.likelihoods import Categorical
from natcompanion.metrics import KroneckerFactors, kronecker_factors
from natcompanion.optim import PRONG, Quadratic, mirror_step

F64 = {"dtype": torch.float64}


def network(sizes=(4, 5, 4, 3), seed=0, activation=nn.Tanh):
    torch.manual_seed(seed)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1]).double()


def data(n=40, d=4, seed=1):
    """Return correlated inputs of different scales, not centred, and labels."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=g, **F64) * torch.logspace(0, -1, d, **F64)
    return torch.randn(n, d, generator=g, **F64) @ mix.mT + 1, torch.randint(3, (n,), generator=g)


def gap(a, b):
    return float((a - b).detach().norm() / b.detach().norm())


def covariance(h):
    return torch.cov(h.mT, correction=0)


def second_moment(h):
    return h.mT @ h / len(h)


def condition(A):
    return float(torch.linalg.cond(A))


# ---- Equations


def test_equation_1_is_least_where_the_model_is_the_data():
    """The expected loss of a model with free class probabilities is least at the frequencies."""
    _, t = data(200)
    frequencies = torch.bincount(t) / len(t)
    best = Categorical().nll(frequencies.log().double().expand(200, 3), t).mean()
    for seed in range(20):
        r = frequencies.log().double() + 0.2 * torch.randn(
            3, generator=torch.Generator().manual_seed(seed), **F64
        )
        assert Categorical().nll(r.expand(200, 3), t).mean() > best


def test_equation_3_is_the_covariance_of_the_models_own_scores():
    model, (x, _) = network(), data(6)
    F, mean = torch.zeros(()), torch.zeros(())
    for x_i in x.split(1):
        r = model(x_i)
        for label, p in reference.labels(Categorical(), r[0].detach()):
            g = reference.gradient(model, Categorical().nll(r, label.unsqueeze(0)).sum())
            F, mean = F + p * torch.outer(g, g) / len(x), mean + p * g / len(x)
    assert gap(metrics.fisher(model, x, Categorical()), F) < 1e-12
    assert float(mean.norm()) < 1e-12  # so the second moment is a covariance


def test_equation_4_is_the_layer_without_whitening():
    """The equation is lost in the text; with U = I and c = 0 equation 6 is h = f(W h + b)."""
    model, (x, _) = network(), data()
    h = x
    for k, layer in enumerate(model[::2]):
        h = h @ layer.weight.mT + layer.bias
        h = h if k == 2 else torch.tanh(h)
    assert gap(model(x), h) < 1e-15 and gap(whiten_model(model)(x), h) < 1e-15


@pytest.mark.parametrize("kind", ["pca", "zca"])
def test_equation_6_by_hand(kind):
    x, _ = data()
    layer = WhitenedLinear(4, 3, kind=kind, **F64)
    before = layer(x)
    layer.rewhiten(x.mean(0), covariance(x), 0.01)
    by_hand = torch.stack([layer.V @ (layer.U @ (h - layer.c)) + layer.d for h in x])
    assert gap(layer(x), by_hand) < 1e-14 and gap(by_hand, before) < 1e-13
    wrong = torch.stack([layer.V @ (layer.U.mT @ (h - layer.c)) + layer.d for h in x])
    assert (
        kind == "zca" or gap(wrong, before) > 0.1
    )  # negative control: the transpose, another matrix for PCA


def test_equation_7_by_hand():
    x, _ = data()
    values, vectors = torch.linalg.eigh(covariance(x))
    U, _ = whitening_pair(covariance(x), 0.01)
    printed = torch.diag((values + 0.01) ** -0.5) @ vectors.mT  # rows up to order and sign
    assert gap((U @ printed.flip(0).mT).abs(), (printed @ printed.mT).flip(0, 1).abs()) < 1e-12
    assert gap(U @ covariance(x) @ U.mT, torch.diag(values / (values + 0.01)).flip(0, 1)) < 1e-12


def test_block_of_section_2_2():
    """The Fisher block of a layer is the second moment of the rows of delta h^T, over inputs and
    the model's labels.
    """
    model, (x, _) = network(), data(6)
    block = torch.zeros(20, 20, **F64)
    for x_i in x.split(1):
        h = model[:2](x_i)
        a = model[2](h)
        r = model[3:](a)
        for label, p in reference.labels(Categorical(), r[0].detach()):
            loss = Categorical().nll(r, label.unsqueeze(0)).sum()
            (delta,) = torch.autograd.grad(loss, a, retain_graph=True)
            v = torch.outer(delta[0], h[0]).detach().reshape(-1)
            block += p * torch.outer(v, v) / len(x)
    exact = metrics.fisher(model, x, Categorical(), parameters=["2.weight"])
    assert gap(block, exact) < 1e-12
    by_columns = block.view(4, 5, 4, 5).permute(1, 0, 3, 2).reshape(20, 20)
    assert gap(by_columns, exact) > 0.1  # negative control


# ---- Errata


def test_errata_vec_takes_rows_and_delta_comes_first():
    """Section 2.2: with vec by rows the block is delta (x) h; the other order is not even close."""
    model, (x, _) = network(), data()
    exact = metrics.fisher(model, x, Categorical(), parameters=["2.weight"])
    A, B, _ = kronecker_factors(model, x, Categorical(), parameters=["2.weight"])["2"]
    assert gap(torch.kron(B, A), exact) < 0.7 * gap(torch.kron(A, B), exact)


def test_errata_second_moment_with_centred_inputs_is_not_white():
    """Sections 3 and 3.1: Sigma must be the centred covariance if c is the mean."""
    h = torch.sigmoid(2 * data(400)[0])
    c = h.mean(0)
    smallest = {}
    for name, sigma in (("centred", covariance(h)), ("printed", second_moment(h))):
        U, _ = whitening_pair(sigma)
        smallest[name] = float(torch.linalg.eigvalsh(second_moment((h - c) @ U.mT))[0])
    assert smallest["centred"] == pytest.approx(1, abs=1e-9)
    bound = 1 - c @ torch.linalg.solve(second_moment(h), c)
    assert smallest["printed"] == pytest.approx(float(bound), abs=1e-9) and bound < 0.1


def test_errata_identity_second_moment_is_not_enough_with_a_bias():
    """Section 2.2 asks for E[h h^T] = I. The input of weights and bias, [h, 1], is white only if
    its mean is 0 too.
    """
    h = torch.sigmoid(2 * data(400)[0])
    one = torch.ones(len(h), 1, **F64)
    numbers = {}
    for name, sigma, c in (
        ("centred", covariance(h), h.mean(0)),
        ("printed", second_moment(h), h.mean(0)),
        ("uncentred", second_moment(h), torch.zeros(4, **F64)),
    ):
        z = (h - c) @ whitening_pair(sigma)[0].mT
        numbers[name] = condition(second_moment(torch.cat([z, one], 1)))
    numbers["plain"] = condition(second_moment(torch.cat([h, one], 1)))
    assert numbers["centred"] == pytest.approx(1, abs=1e-9)
    assert 10 < numbers["printed"] < numbers["uncentred"] < numbers["plain"]
    z = h @ whitening_pair(second_moment(h))[0].mT
    assert gap(second_moment(z), torch.eye(4, **F64)) < 1e-9  # what the section asks for, and yet
    assert numbers["uncentred"] > 100


def test_errata_identity_by_construction_holds_without_epsilon_only():
    """Section 3.1: the whitened second moment is lambda / (lambda + epsilon)."""
    x, _ = data()
    z = (x - x.mean(0)) @ whitening_pair(covariance(x), 0.1)[0].mT
    values = torch.linalg.eigvalsh(covariance(x))
    assert gap(torch.linalg.eigvalsh(second_moment(z)), values / (values + 0.1)) < 1e-12
    assert float(values[0] / (values[0] + 0.1)) < 0.6
    uncentred = x @ whitening_pair(covariance(x))[0].mT  # U h, as printed, and not U (h - c)
    assert gap(second_moment(uncentred), torch.eye(4, **F64)) > 1


def test_errata_epsilon_is_added_once():
    """Algorithm 1, line 9, decomposes Sigma + epsilon I, and equation 7 adds epsilon to the
    eigenvalues.
    """
    sigma, eps = covariance(data()[0]), 0.1
    identity = torch.eye(4, **F64)
    U, _ = whitening_pair(sigma, eps)
    twice, _ = whitening_pair(sigma + eps * identity, eps)
    assert gap(U.mT @ U, torch.linalg.inv(sigma + eps * identity)) < 1e-12
    assert gap(twice.mT @ twice, torch.linalg.inv(sigma + 2 * eps * identity)) < 1e-12
    assert gap(twice.mT @ twice, U.mT @ U) > 0.1


def test_errata_line_3_leaves_V_and_d_open():
    """Algorithm 1, line 3: with V = W and d = b the first line 7 gives back the initial
    parameters.
    """
    model, (x, _) = network(), data()
    whitened = whiten_model(model)
    for plain, layer in zip(model[::2], whitened[::2], strict=True):
        assert torch.equal(layer.V, plain.weight) and torch.equal(layer.d, plain.bias)
        assert torch.equal(layer.U, torch.eye(len(layer.U), **F64)) and not layer.c.any()
        W, b = layer.canonical()
        assert torch.equal(W, plain.weight) and torch.equal(b, plain.bias)
    assert gap(whitened(x), model(x)) < 1e-15


def test_errata_projections_are_invertible_maps():
    """Section 3.3: the maps between theta and Omega are linear, but no projections: twice is not
    once.
    """
    x, _ = data()
    W, b, c = torch.randn(3, 4, **F64), torch.randn(3, **F64), x.mean(0)
    U, inverse = whitening_pair(covariance(x), 0.01)
    V, d = to_whitened(W, b, inverse, c)
    back = to_canonical(V, d, U, c)
    assert gap(back[0], W) < 1e-12 and gap(back[1], b) < 1e-12
    assert gap(to_whitened(V, d, inverse, c)[0], V) > 0.1
    V2, d2 = to_whitened(2 * W, 2 * b, inverse, c)
    assert gap(V2, 2 * V) < 1e-14 and gap(d2, 2 * d) < 1e-14


def test_errata_equation_10_takes_the_gradient_by_its_own_dual_parameters():
    """The left side prints the gradient by Omega; by the Omega of equation 8 it would be F^-1 g,
    and no natural step.
    """
    g = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=g, **F64)
    F, theta, grad = root @ root.mT + torch.eye(4, **F64), *torch.randn(2, 4, generator=g, **F64)
    psi = Quadratic(F)
    tilde = psi.root()
    natural = theta - 0.3 * torch.linalg.solve(F, grad)
    assert gap(mirror_step(tilde, theta, grad, 0.3, dual=True), natural) < 1e-14
    by_omega = torch.linalg.solve(F, grad)
    printed = tilde.conjugate_gradient(tilde.gradient(theta) - 0.3 * by_omega)
    assert gap(printed, natural) > 0.01


def test_errata_equation_10_multiplies_the_column_from_the_left():
    """Its right side prints E[dl/dtheta F^-1/2], a row; the last line has F^-1 E[dl/dtheta], a
    column.
    """
    g = torch.Generator().manual_seed(0)
    grads = torch.randn(10, 4, generator=g, **F64)  # one row for each example
    M = torch.randn(
        4, 4, generator=g, **F64
    )  # for a symmetric matrix the numbers agree, for others they do not
    S = Quadratic(M @ M.mT + torch.eye(4, **F64)).root()
    row, column = (grads @ torch.linalg.inv(S.metric)).mean(0), S.conjugate_gradient(grads.mean(0))
    assert row.shape == column.shape and gap(row, column) < 1e-12
    assert gap((grads @ M).mean(0), M @ grads.mean(0)) > 0.1


def test_errata_a_step_is_kfac_with_an_identity_for_the_gradients():
    """Sections 3.1 and 3.3: what PRONG's step is exactly, layer by layer, and what it is not."""
    model, (x, t), eps = network(), data(), 0.02
    factors = kronecker_factors(model, x, Categorical())
    before = [p.detach().clone() for p in model.parameters()]
    gradients = torch.autograd.grad(cross_entropy(model(x), t), list(model.parameters()))
    optimizer = PRONG(model, 0.1, eps=eps, sample=x)
    cross_entropy(model(x), t).backward()
    optimizer.step()
    moves = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
    for k, (A, B, bias) in enumerate(factors.values()):
        G = torch.cat([gradients[2 * k], gradients[2 * k + 1][:, None]], 1)
        move = torch.cat([moves[2 * k], moves[2 * k + 1][:, None]], 1)
        damped = A + eps * torch.diag(torch.tensor([1.0] * (len(A) - 1) + [0.0], **F64))
        identity = KroneckerFactors(damped, torch.eye(len(B), **F64), bias).inverse(1e-300)
        assert gap(move, -0.1 * identity(G)) < 1e-10
        assert (
            gap(move, -0.1 * KroneckerFactors(damped, B, bias).inverse(1e-12)(G)) > 0.5
        )  # K-FAC itself


def test_errata_block_is_that_of_one_layer():
    """After Eq. 5: with W_j of another layer, the entries form a block that is not square, and no
    product of the moments of layer i.
    """
    model, (x, _) = network(), data(6)
    sizes = [p.numel() for p in model.parameters()]
    F = metrics.fisher(model, x, Categorical())
    start = [sum(sizes[:k]) for k in range(len(sizes))]
    rows = slice(start[2], start[2] + sizes[2])  # W_2
    product = kronecker_factors(model, x, Categorical(), parameters=["2.weight"])["2"].dense()
    for j, own in ((2, True), (4, False)):  # W_2 and W_3
        block = F[rows, start[j] : start[j] + sizes[j]]
        assert (block.shape == product.shape) is own and float(block.norm()) > 0


def test_errata_T_is_a_period():
    """Algorithm 1: a larger T renews the coefficients less often; T is no frequency."""
    renewals = {}
    for period in (2, 4):
        model, (x, t), drawn = network(), data(), []
        optimizer = PRONG(
            model, 0.1, period=period, sample=lambda x=x, drawn=drawn: drawn.append(x) or x
        )
        for _ in range(12):
            optimizer.zero_grad()
            cross_entropy(model(x), t).backward()
            optimizer.step()
        renewals[period] = len(drawn)
    assert renewals == {2: 6, 4: 3}


def test_errata_maps_with_a_potential():
    """After Eq. 10: the map from theta to Omega is the gradient of a function only if its Jacobian
    is symmetric: for the symmetric root and a mean of 0, not for the whitening of Eq. 7.
    """
    x, _ = data()

    def asymmetry(kind, c):
        _, inverse = whitening_pair(covariance(x), 0.01, kind)

        def to_omega(theta):
            V, d = to_whitened(theta[:12].reshape(3, 4), theta[12:], inverse, c)
            return torch.cat([V.reshape(-1), d])

        J = torch.func.jacrev(to_omega)(torch.zeros(15, **F64))
        return float((J - J.mT).norm() / J.norm())

    zero = torch.zeros(4, **F64)
    assert asymmetry("zca", zero) < 1e-12
    assert asymmetry("pca", zero) > 0.1  # Eq. 7
    assert asymmetry("zca", x.mean(0)) > 0.1


@pytest.mark.parametrize(("kind", "same"), [("SGD", True), ("RMSprop", False)])
def test_errata_choice_of_the_root(kind, same):
    """Plain gradient steps on V move the network in the same way for every U with the same U^T U;
    steps coordinate by coordinate do not.
    """
    (x, t), found = data(), []
    for root in ("pca", "zca"):
        U, inverse = whitening_pair(covariance(x), 0.01, root)
        V = (network((4, 3))[0].weight.detach() @ inverse).requires_grad_()
        optimizer = getattr(torch.optim, kind)([V], lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            cross_entropy((x - x.mean(0)) @ (V @ U).mT, t).backward()
            optimizer.step()
        found.append((V @ U).detach())
    assert (gap(*found) < 1e-12) is same and (same or gap(*found) > 0.01)


def test_errata_order_of_the_whitened_units():
    """Section 5: after whitening all units have the variance 1, so that their order is not seen in
    U h; it is that of the eigenvalues, which the rotated units have.
    """
    x, _ = data()
    U, _ = whitening_pair(covariance(x))
    values, Q = torch.linalg.eigh(covariance(x))
    assert gap((x @ U.mT).var(0, correction=0), torch.ones(4, **F64)) < 1e-9
    assert gap((x @ Q).var(0, correction=0), values) < 1e-9 and float(values[-1] / values[0]) > 10


def test_errata_operations_of_rmsprop():
    """Section 4.2: an update of RMSprop takes some ten operations a weight, beside four to six for
    each of the 128 examples of a gradient; by operations it cannot cost nine times SGD.
    """
    model, x = network((20, 30, 30, 3)), torch.randn(128, 20, **F64)
    weights = sum(layer.weight.numel() for layer in model[::2])
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    gradient = counter.get_total_flops()
    assert gradient > 4 * 128 * weights
    assert (gradient + 10 * weights) / gradient < 1.02


def test_errata_reduction_of_the_condition_number_depends_on_its_definition():
    """Section 4.1 gives a percentage without saying how a nearly singular matrix is measured."""
    model, (x, _) = network((4, 6, 6, 3), activation=nn.Sigmoid), data(200)
    whitened = whiten_model(model)
    h = x
    for layer, activation in itertools.zip_longest(whitened[::2], whitened[1::2]):
        layer.rewhiten(h.mean(0), covariance(h), 1e-6)
        h = layer(h).detach() if activation is None else activation(layer(h)).detach()
    before = metrics.fisher(model, x, Categorical(), parameters=["2.weight"])
    after = metrics.fisher(whitened, x, Categorical(), parameters=["2.V"])
    identity = torch.eye(len(before), **F64)

    def reduction(measure):
        return 1 - measure(after) / measure(before)

    tail = lambda F: float(torch.linalg.eigvalsh(F)[-1] / torch.linalg.eigvalsh(F)[len(F) // 10])
    damped = lambda F: condition(F + 1e-3 * identity)
    assert reduction(tail) > 0.95
    assert reduction(damped) < 0.5
