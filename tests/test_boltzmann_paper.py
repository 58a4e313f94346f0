"""The equations and the misprints of the Boltzmann paper, each with the printed form beside the
right one.
"""

import itertools

import pytest
import torch

from natcompanion import boltzmann, reference
from natcompanion.boltzmann import RBM, CovariancePenalty
from natcompanion.chapters import experiments


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def machine(D, H, seed=0, scale=1.0):
    return RBM.random(D, H, scale=scale, bias_scale=0.7, generator=rng(seed))


def binary(n, D, seed=0):
    return (torch.rand(n, D, generator=rng(seed), dtype=torch.float64) < 0.5).double()


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# --- the four equations ---


def test_equation_1():
    """Data minus model expectation of v_i h_j is the derivative of the mean log-likelihood."""
    rbm, X = machine(3, 2), binary(6, 3)
    W = rbm.W.clone().requires_grad_()
    (slope,) = torch.autograd.grad(reference.rbm_log_likelihood(W, rbm.a, rbm.b, X), W)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    close(slope, X.mT @ rbm.hidden_mean(X) / 6 - (p[:, None] * v).mT @ h)
    close(rbm.gradient(X)[5:].reshape(3, 2), slope)


def test_equation_2():
    rbm = machine(3, 2, 1)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    for row in boltzmann.states(3):
        inside = p * (v == row).all(1)
        close(rbm.hidden_mean(row[None])[0], inside @ h / inside.sum())


def test_equation_3():
    rbm = machine(3, 2, 2)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    for row in boltzmann.states(2):
        inside = p * (h == row).all(1)
        close(rbm.visible_mean(row[None])[0], inside @ v / inside.sum())


def test_equation_4():
    """With the product rule put right, the three terms add up to the derivative of cov(v, h) along
    the step.
    """
    rbm, step = machine(3, 2, 3), torch.randn(11, generator=rng(4), dtype=torch.float64)
    before = boltzmann.model_moments(rbm)

    def slopes(t):
        after = boltzmann.model_moments(rbm.moved(t * step))
        return [
            f(before, after) / t
            for f in (boltzmann.product_rule_difference, boltzmann.printed_difference)
        ]

    after = boltzmann.model_moments(rbm.moved(1e-3 * step))
    product, printed = slopes(1e-3)
    close(product, (after.covariance - before.covariance) / 1e-3, 1e-9)
    gap = torch.outer(after.v - before.v, after.h - before.h) / 1e-3
    close(product - printed, gap, 1e-9)  # the third term took E[v] after the step
    assert gap.abs().max() > 1e-6


# --- the misprints ---


def test_erratum_joint_and_marginal_fisher():
    """Section 2 defines G by p(x), x the data; Section 3 computes that of p(v, h). They differ."""
    rbm, X = machine(4, 3, 5), binary(6, 4)
    joint, marginal = rbm.fisher(), boltzmann.marginal_fisher(rbm)
    score = torch.stack([rbm.gradient(row[None]) for row in boltzmann.states(4)])
    close(
        marginal, (rbm.visible_probabilities()[:, None] * score).mT @ score
    )  # the definition of Section 2
    assert float(joint.trace()) > 1.5 * float(marginal.trace())
    assert int(torch.linalg.matrix_rank(marginal, rtol=1e-9)) < len(joint)
    base = rbm.log_likelihood(X).mean()
    step = torch.linalg.pinv(marginal, rtol=1e-9) @ rbm.gradient(X)
    assert float(rbm.moved(0.1 * rbm.natural_gradient(X)).log_likelihood(X).mean() - base) > 0
    assert (
        float(rbm.moved(0.1 * step).log_likelihood(X).mean() - base) < 0
    )  # the marginal one is not usable here


def test_erratum_inverse_fisher_as_curvature():
    """The Fisher matrix is the curvature (of log Z); its inverse is not."""
    rbm = machine(3, 2, 6)

    def log_partition(theta):
        return reference.rbm_joint(theta[5:].reshape(3, 2), theta[:3], theta[3:5])[3]

    curvature = torch.autograd.functional.hessian(log_partition, rbm.vector())
    close(rbm.fisher(), curvature)
    assert (torch.linalg.inv(rbm.fisher()) - curvature).abs().max() > 1


def test_erratum_row_times_column():
    """A row times a column is a number; G needs the column times the row."""
    rbm = machine(3, 2, 7)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    g = reference.rbm_statistics(v, h)
    mean = p @ g
    outer = (p[:, None] * g).mT @ g - torch.outer(mean, mean)
    close(outer, rbm.fisher())
    inner = p @ (g * g).sum(1) - mean @ mean
    assert inner.ndim == 0
    close(inner, rbm.fisher().trace())


def test_erratum_energy_in_rows_and_columns():
    """v W h^T needs row vectors, v h^T needs columns: one convention cannot serve both."""
    rbm, v, h = machine(3, 2, 8), binary(1, 3), binary(1, 2, 1)
    printed = -(v @ rbm.a) - h @ rbm.b - (v @ rbm.W @ h.mT)[0]
    close(rbm.energy(v, h), printed)  # the energy, with rows
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        v @ h.mT  # the statistic, with the same rows
    assert (v.mT @ h).shape == (3, 2)


def test_erratum_squares_of_blocks():
    """cov(v, vh^T)^2 is not a product of matrices: the block is not square. C^T C is meant."""
    rbm = machine(3, 2, 9)
    G = rbm.fisher()
    block = boltzmann.fisher_blocks(G, 3, 2)["v,vh"]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        block @ block
    assert boltzmann.norm_terms(G, 3, 2)["v,vh"] == pytest.approx(
        2 * float((block.mT @ block).trace()), rel=1e-12
    )


def test_erratum_small_norm_for_identity():
    """Lowering the norm of G does not bring it to the identity, which no binary machine can
    reach.
    """
    rbm = machine(3, 2, 10, 0.3)
    saturated = RBM(rbm.W, rbm.a.sign() * 6, rbm.b.sign() * 6)
    G, S = rbm.fisher(), saturated.fisher()
    assert float(S.square().sum()) < 0.01 * float(G.square().sum())
    assert float((S - eye(11)).square().sum()) > float((G - eye(11)).square().sum()) > 9 / 16 * 11
    assert torch.linalg.cond(S) > 10 * torch.linalg.cond(G)


def test_erratum_penalty_as_whitening():
    """cov(v, h) = 0 needs W = 0, so the penalty is a weight decay: its gradient points along W near
    0.
    """
    for seed in range(100):
        rbm = machine(3, 2, seed)
        assert float((rbm.W * boltzmann.model_moments(rbm).covariance).sum()) > 0
    rbm = machine(3, 2, 11, 1e-4)
    slope = CovariancePenalty().gradient(rbm)[5:].reshape(3, 2)
    assert bool((slope.sign() == rbm.W.sign()).all())
    free = RBM(
        torch.zeros_like(rbm.W), rbm.a, rbm.b
    )  # decorrelated to the last digit, and not white
    assert float(CovariancePenalty().value(free)) < 1e-30
    assert float((free.fisher() - eye(11)).abs().max()) > 0.5


def test_erratum_chain_rule():
    """The chain rule with its trace needs a number g(f(X)); for a matrix g the trace would lose all
    but one number.
    """
    rbm = machine(3, 2, 12)
    derivative = torch.autograd.functional.jacobian(
        lambda W: reference.rbm_covariance(W, rbm.a, rbm.b), rbm.W
    )
    C = boltzmann.model_moments(rbm).covariance
    with_trace = torch.einsum("kl,klij->ij", 2 * C, derivative)
    close(with_trace, CovariancePenalty().gradient(rbm)[5:].reshape(3, 2))
    without = 2 * C * torch.einsum("ijij->ij", derivative)  # "remove the trace operator altogether"
    assert float((without - with_trace).norm() / with_trace.norm()) > 0.05


def test_erratum_quotient_of_equation_4():
    """The change of E[v_i h_j] over the change of w_ij is not the partial derivative, however small
    the step.
    """
    rbm, X = machine(4, 3, 13), binary(9, 4)
    before = boltzmann.model_moments(rbm)
    derivative = torch.autograd.functional.jacobian(
        lambda W: reference.rbm_covariance(W, rbm.a, rbm.b) + 0 * W.sum(), rbm.W
    )
    partial = torch.einsum("ijij->ij", derivative)
    step = 1e-6 * rbm.gradient(X)
    after, dW = boltzmann.model_moments(rbm.moved(step)), step[7:].reshape(4, 3)
    quotient = boltzmann.product_rule_difference(before, after) / dW
    assert float((quotient / partial - 1).abs().max()) > 0.5
    one = torch.zeros_like(step)
    one[7] = 1e-6  # right only if no other parameter moves
    after = boltzmann.model_moments(rbm.moved(one))
    alone = boltzmann.product_rule_difference(before, after)[0, 0] / 1e-6
    assert float(alone / partial[0, 0]) == pytest.approx(1, abs=1e-4)


def test_erratum_third_term_is_biased_to_minus_covariance():
    """With frozen weights the printed average tends to -2 C / batch; subtracting it raises the
    penalty.
    """
    rbm, batch = machine(3, 2, 14, 2.0), 10
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    C = boltzmann.model_moments(rbm).covariance
    rows = torch.multinomial(p, batch * 8001, replacement=True, generator=rng(15)).split(batch)
    moments = [boltzmann.sample_moments(v[r], h[r]) for r in rows]
    pairs = list(itertools.pairwise(moments))
    for difference, slope in (
        (boltzmann.printed_difference, -2 / batch),
        (boltzmann.product_rule_difference, 0.0),
    ):
        mean = sum(difference(*pair) for pair in pairs) / len(pairs)
        assert float((mean * C).sum() / C.square().sum()) == pytest.approx(slope, abs=0.03)
    start = CovariancePenalty().value(rbm)
    up, down = (
        torch.cat([torch.zeros(5).double(), sign * C.reshape(-1)]) for sign in (0.05, -0.05)
    )
    assert (
        CovariancePenalty().value(rbm.moved(up))
        > start
        > CovariancePenalty().value(rbm.moved(down))
    )


def test_erratum_unit_steps_lose_the_derivative():
    """With dW := 1 and the product rule the average is (C_t - C_{t-15}) / 15: it does not depend on
    the step at all.
    """
    machines = [machine(3, 2, seed, 0.5) for seed in range(16)]
    penalty = boltzmann.PaperPenalty(15, rule="product")
    for rbm in machines:
        out = penalty.update(boltzmann.model_moments(rbm))
    first, last = (boltzmann.model_moments(rbm).covariance for rbm in (machines[0], machines[-1]))
    close(out, (last - first) / 15)
    slope = CovariancePenalty().gradient(machines[-1])[5:].reshape(3, 2)
    assert (
        abs(float(torch.nn.functional.cosine_similarity(out.reshape(-1), slope.reshape(-1), dim=0)))
        < 0.98
    )


def test_erratum_no_covariance_factor():
    """Without the factor 2 cov(v, h) the descent is on the sum of the covariances, not on their
    squares.
    """
    rbm = machine(3, 2, 16, 0.5)
    start, with_factor, without = CovariancePenalty().value(rbm), rbm, rbm
    for _ in range(100):
        with_factor = with_factor.moved(-CovariancePenalty().gradient(with_factor))
        W = without.W.clone().requires_grad_()
        (slope,) = torch.autograd.grad(reference.rbm_covariance(W, without.a, without.b).sum(), W)
        without = RBM(without.W - slope, without.a, without.b)
    assert CovariancePenalty().value(with_factor) < start < CovariancePenalty().value(without) / 2


def test_erratum_incrementally_updated_matrix():
    """The learned matrix is an inverse square root of the covariance, not its inverse."""
    C = boltzmann.covariances(machine(4, 3, 17))["vv"]
    A = eye(4)
    for _ in range(600):
        A = boltzmann.equivariant_step(A, C, 0.2, 0.0)
    close(A.mT @ A, torch.linalg.inv(C), 1e-8)
    assert (A - torch.linalg.inv(C)).abs().max() > 1


def test_erratum_accuracy_is_error():
    """The minimum over epochs of an accuracy is chance, at the start, in every cell: the paper's
    numbers are errors.
    """
    results = experiments.load("boltzmann_thresholds", "paper").select(rule="none", grey=False)
    for record in results:
        accuracy = [[1 - error for error in curve] for curve in record["test_error"]]
        assert max(min(curve) for curve in accuracy) < 0.15
        assert min(1 - error for error in record["best_test"]) > 0.6


def test_the_covariance_costs_nothing_extra():
    """ "The actual covariance is quite expensive": it is one outer product beside E[v h^T], which
    every step needs.
    """
    v, h = binary(50, 4), binary(50, 3, 1)
    moments = boltzmann.sample_moments(v, h)
    joint = torch.cov(torch.cat([v, h], 1).mT, correction=0)
    close(moments.covariance, joint[:4, 4:])
    assert (moments.vh - joint[:4, 4:]).abs().max() > 0.1
