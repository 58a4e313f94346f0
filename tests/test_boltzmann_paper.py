"""The equations and the misprints of the Boltzmann paper, each with the printed form beside the
right one.
"""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from natcompanion import boltzmann, reference
from natcompanion.boltzmann import RBM, CovariancePenalty
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments.boltzmann import Thresholds
from natcompanion.data import mnist


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


def test_erratum_probability_of_the_parameters():
    """Section 2: p(x; theta) is a distribution over x for each theta, and none over both."""
    total = [float(machine(3, 2, seed).visible_probabilities().sum()) for seed in range(3)]
    assert total == pytest.approx([1, 1, 1], abs=1e-12)
    assert sum(total) > 2  # of x and theta together, three values of theta alone have the mass 3


def test_erratum_root_of_the_parametrization():
    """Abstract: phi = G^(1/2) theta has the metric I; with the root of the inverse it is G^2."""
    G = machine(3, 2, 18).fisher()
    values, vectors = torch.linalg.eigh(G)
    root = (vectors * values.sqrt()) @ vectors.mT

    def metric_of(A):  # the matrix of the metric in the coordinates A theta
        inverse = torch.linalg.inv(A)
        return inverse.mT @ G @ inverse

    close(metric_of(root), eye(11), 1e-9)
    close(metric_of(torch.linalg.inv(root)), G @ G, 1e-9)
    assert (G @ G - eye(11)).abs().max() > 0.5


def hidden_moments(seed):
    """The states of two hidden units, their probabilities, and E[h h^T]."""
    rbm = machine(3, 2, seed)
    h, p = boltzmann.states(2), rbm.hidden_probabilities()
    return h, p, (p[:, None] * h).mT @ h


def test_erratum_whitening_matrix_is_transposed():
    """Section 2.1: U Sigma^(-1/2) whitens rows; a column h needs Sigma^(-1/2) U^T."""
    _, _, M = hidden_moments(19)
    values, U = torch.linalg.eigh(M)
    printed = U * values.rsqrt()
    close(printed.mT @ M @ printed, eye(2))
    assert (printed @ M @ printed.mT - eye(2)).abs().max() > 0.1


def test_erratum_uncentred_moment_gives_no_unit_variance():
    """Section 2.1: whitened by E[h h^T], the activations have the second moment 1; their variance
    is less.
    """
    h, p, M = hidden_moments(19)
    mean = p @ h
    for moment, white in ((M - torch.outer(mean, mean), True), (M, False)):
        values, U = torch.linalg.eigh(moment)
        z = (h - mean) @ (U * values.rsqrt())
        variance = p @ z.square()
        assert bool((variance - 1).abs().max() < 1e-12) is white
        assert white or variance.min() < 0.7


def test_erratum_uncorrelated_is_not_independent():
    """Sections 2.1 and 4: whitened activations are uncorrelated; their squares show that they
    depend on each other.
    """
    h, p, M = hidden_moments(20)
    mean = p @ h
    values, U = torch.linalg.eigh(M - torch.outer(mean, mean))
    z = (h - mean) @ (U * values.rsqrt())
    close((p[:, None] * z).mT @ z, eye(2), 1e-10)
    assert abs(float(p @ z.square().prod(1)) - 1) > 0.1  # 1, if they were independent


def test_erratum_pairs_of_units():
    """Section 3: Z sums over the configurations of v and h, not over the pairs of a visible and a
    hidden unit.
    """
    rbm = machine(3, 2, 21)
    v, h = boltzmann.states(3), boltzmann.states(2)
    energies = torch.stack([rbm.energy(v, row.expand(8, 2)) for row in h])
    close(torch.exp(-energies).sum().log(), rbm.log_partition())
    pairs = torch.exp(-rbm.energy(eye(3).repeat_interleave(2, 0), eye(2).repeat(3, 1)))
    assert len(pairs) == 6 and abs(float(pairs.sum().log() - rbm.log_partition())) > 0.5


def test_erratum_one_vector_or_the_data():
    """Eq. 1: the gradient for one vector v has E[v_i h_j | v]; the mean over the data belongs to
    the mean of log p.
    """
    rbm, X = machine(3, 2, 22), binary(6, 3, 5)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    printed = X.mT @ rbm.hidden_mean(X) / 6 - (p[:, None] * v).mT @ h
    slopes = []
    for row in X.split(1):
        W = rbm.W.clone().requires_grad_()
        slopes += torch.autograd.grad(reference.rbm_log_likelihood(W, rbm.a, rbm.b, row), W)
    close(torch.stack(slopes).mean(0), printed)
    assert min(float((slope - printed).norm()) for slope in slopes) > 0.1


def test_erratum_gradient_of_the_cost():
    """Section 4.1: the gradient of the cost, -log p, is minus Eq. 1."""
    rbm, X = machine(3, 2, 23), binary(6, 3, 6)
    cost = lambda step: -float(rbm.moved(step).log_likelihood(X).mean())
    equation_1 = rbm.gradient(X)
    here = cost(0 * equation_1)
    assert cost(-1e-2 * equation_1) > here > cost(1e-2 * equation_1)


def one_gibbs_step(W, a, b):
    """The probabilities p(v' | v) of one step v -> h -> v', summed over h; rows are v."""
    v, h = boltzmann.states(len(a)), boltzmann.states(len(b))

    def products(logits, states):  # p(states | row) for independent units
        on, off = torch.sigmoid(logits)[:, None], torch.sigmoid(-logits)[:, None]
        return torch.where(states == 1, on, off).prod(2)

    return products(v @ W + b, h) @ products(h @ W.mT + a, v)


def test_erratum_what_contrastive_divergence_approximates():
    """Section 3: the update is near the slope of a difference of two divergences, not near their
    difference, which is one number.
    """
    rbm, p_0 = machine(3, 2, 24), torch.rand(8, generator=rng(25), dtype=torch.float64)
    p_0, v = p_0 / p_0.sum(), boltzmann.states(3)

    def difference(W):
        p_1, here = p_0 @ one_gibbs_step(W, rbm.a, rbm.b), RBM(W, rbm.a, rbm.b)
        log_p = here.visible_probabilities().log()
        return p_0 @ (p_0.log() - log_p) - p_1 @ (p_1.log() - log_p)

    p_1 = p_0 @ one_gibbs_step(rbm.W, rbm.a, rbm.b)
    update = ((p_0 - p_1)[:, None] * v).mT @ rbm.hidden_mean(v)
    W = rbm.W.clone().requires_grad_()
    (slope,) = torch.autograd.grad(difference(W), W)
    cosine = torch.nn.functional.cosine_similarity(update.reshape(-1), -slope.reshape(-1), dim=0)
    assert 0.9 < float(cosine) < 1 - 1e-6  # an approximation, and a good one here
    value = float(difference(rbm.W))
    assert value > 0 > value - 1 and float((update - value).norm() / update.norm()) > 0.5


def test_erratum_gibbs_sampling_is_unbiased_in_the_limit():
    """Section 3: after any finite number of Gibbs steps from random states the samples have a
    bias; it falls to 0 with the number.
    """
    rbm = machine(3, 2, 26, 2.0)
    step, p = one_gibbs_step(rbm.W, rbm.a, rbm.b), torch.full((8,), 1 / 8, dtype=torch.float64)
    bias = []
    for _ in range(200):
        p = p @ step
        bias.append(float((p - rbm.visible_probabilities()).abs().sum()))
    assert bias[0] > 0.05 and bias[9] > 1e-9 and bias[-1] < 1e-12
    assert bias[:20] == sorted(bias[:20], reverse=True)


def test_erratum_section_3_computes_no_inverse():
    """Section 3 and Figure 1: the sums over h give the Fisher matrix; its inverse is a further
    step, cubic in the number of statistics, which is not that of the units.
    """
    rbm = machine(3, 2, 27)
    h, p = boltzmann.states(2), rbm.hidden_probabilities()
    m = rbm.visible_mean(h)
    within = torch.zeros(11, 11, dtype=torch.float64)
    for weight, row, mean in zip(p, h, m, strict=True):
        g = reference.rbm_statistics(boltzmann.states(3), row.expand(8, 2))
        q = torch.where(boltzmann.states(3) == 1, mean, 1 - mean).prod(1)
        centred = g - q @ g
        within += weight * (q[:, None] * centred).mT @ centred
    means = boltzmann.conditional_statistics(h, m)
    G = within + (p[:, None] * means).mT @ means - torch.outer(p @ means, p @ means)
    close(G, rbm.fisher())
    assert (G - torch.linalg.inv(rbm.fisher())).abs().max() > 1
    assert len(G) == 3 + 2 + 3 * 2 > 3 + 2


def test_erratum_first_three_terms_do_not_fix_the_last():
    """Section 4.1: with W = 0 and b of either sign the first three terms are the same, and the
    last three are not.
    """
    low, high = (
        RBM(torch.zeros(3, 2).double(), torch.zeros(3).double(), torch.full((2,), b).double())
        for b in (-2.0, 2.0)
    )
    first, second = (list(boltzmann.norm_terms(m.fisher(), 3, 2).values()) for m in (low, high))
    assert first[:3] == pytest.approx(second[:3], rel=1e-12)
    assert sum(second[3:]) > 10 * sum(first[3:])


def test_erratum_division_is_in_the_quotients():
    """Section 5: Eq. 4 divides by nothing; the quotients after it grow with 1 / dW from the same
    noise.
    """
    rbm = machine(3, 2, 28)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    rows = torch.multinomial(p, 200, replacement=True, generator=rng(29)).split(100)
    before, after = (boltzmann.sample_moments(v[r], h[r]) for r in rows)
    noise = boltzmann.product_rule_difference(before, after)
    derivative = torch.autograd.functional.jacobian(
        lambda W: reference.rbm_covariance(W, rbm.a, rbm.b), rbm.W
    )
    quotients = [float((noise / dW).norm() / derivative.norm()) for dW in (1e-1, 1e-3, 1e-5)]
    assert quotients[0] > 0.1 and quotients[2] > 1e3
    assert float(derivative.norm()) < 1  # Eq. 4 itself, for any dW


def decisions(controller, penalties):
    """True where the controller raises gamma."""
    found = []
    for penalty in penalties:
        before = controller.gamma
        found.append(controller.update(penalty) > before)
    return found


def test_erratum_percent():
    """Section 5: the values of p are fractions. As percentages of the 490 weights of a 7 x 7 image
    and 10 hidden units, four of the seven would be less than one weight, and the same rule.
    """
    penalties = torch.randn(40, 49, 10, generator=rng(30), dtype=torch.float64) * torch.linspace(
        0.2, 1.2, 40, dtype=torch.float64
    ).reshape(40, 1, 1)

    def found(scale):
        return [
            decisions(boltzmann.ThresholdController(2.5, scale * p), penalties)
            for p in boltzmann.FRACTIONS[:4]
        ]

    percent, fraction = found(0.01), found(1.0)
    assert percent[0] == percent[1] == percent[2] == percent[3] and any(percent[0])
    assert fraction[0] != fraction[1] != fraction[2]


def test_erratum_bigger_in_absolute_value():
    """Section 5: a penalty of large negative covariances is large; "bigger than v" as printed would
    lower its weight.
    """
    penalty = torch.full((3, 2), -0.5, dtype=torch.float64)
    right, printed = (
        boltzmann.ThresholdController(0.1, 0.5, signed=signed).update(penalty)
        for signed in (False, True)
    )
    assert right > 0.01 > printed


def test_erratum_under_or_over_the_threshold():
    """Section 5 settles on a percentage under the threshold, and its rule counts those over it:
    they agree for p and 1 - p.
    """
    penalty = torch.tensor([[0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    for p in (0.3, 0.8):
        rule = boltzmann.ThresholdController(0.1, p).update(penalty) > 0.01
        under = float((penalty.abs() <= 0.1).double().mean())
        assert rule is not (under < p)  # p of them wanted under the threshold
        assert rule is (under < 1 - p)


def test_erratum_third_block_of_appendix_a():
    """Appendix A: with v, h and g as rows, v^T h is a matrix that g cannot follow; vec(v h^T) is
    meant.
    """
    rbm = machine(3, 2, 31)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    g = reference.rbm_statistics(v, h)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        v[:1].mT @ h[:1] @ g[:1]
    products = torch.einsum("ni,nj->nij", v, h).reshape(len(v), -1)
    block = (p[:, None] * products).mT @ g - torch.outer(p @ products, p @ g)
    close(block, rbm.fisher()[5:])
    terms = boltzmann.norm_terms(rbm.fisher(), 3, 2)
    assert float(block.square().sum()) == pytest.approx(
        terms["v,vh"] / 2 + terms["h,vh"] / 2 + terms["vh,vh"], rel=1e-12
    )


@pytest.mark.parametrize("block", [slice(0, 3), slice(3, 5)], ids=["first", "second"])
def test_erratum_first_and_second_blocks_of_appendix_a(block):
    """Appendix A: E[v^T g] E[g^T v] is a block of A^T A if v and g are rows. For columns, as in
    E[g g^T] of Section 3, v^T g is no product, and the block is E[v g^T] E[g v^T].
    """
    rbm = machine(3, 2, 31)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    g = reference.rbm_statistics(v, h)
    A = (p[:, None] * g).mT @ g
    x = g[:, block]  # one state is a column of these
    state, statistics = x[0][:, None], g[0][:, None]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        state.mT @ statistics
    moments = torch.einsum("n,ni,nj->ij", p, x, g)  # E[v g^T], of columns
    close(moments @ moments.mT, (A.mT @ A)[block, block])
    mean = p @ g
    close(moments @ torch.outer(mean, mean[block]), (A.mT @ torch.outer(mean, mean))[block, block])


def test_erratum_brackets_of_equation_4():
    """Each of the last two terms is one half of the derivative of the product; read as the whole of
    it, the second holds the third too.
    """
    rbm = machine(3, 2, 32)

    def means(w):  # E[v], E[h] and E[v h^T] as functions of one weight
        W = rbm.W.clone()
        W[0, 0] = w
        v, h, p, _ = reference.rbm_joint(W, rbm.a, rbm.b)
        return p @ v, p @ h, (p[:, None] * v).mT @ h

    w, eps = float(rbm.W[0, 0]), 1e-5
    (v, h, _), (v_0, h_0, vh_0), (v_1, h_1, vh_1) = (means(w + d) for d in (0, -eps, eps))
    slope = lambda high, low: (high - low) / (2 * eps)
    covariance = slope(vh_1 - torch.outer(v_1, h_1), vh_0 - torch.outer(v_0, h_0))
    first, third = slope(vh_1, vh_0), torch.outer(v, slope(h_1, h_0))
    close(first - torch.outer(slope(v_1, v_0), h) - third, covariance, 1e-8)
    whole = slope(torch.outer(v_1, h_1), torch.outer(v_0, h_0))
    assert float((first - whole - third - covariance).norm() / covariance.norm()) > 0.05


def test_erratum_resolution_of_the_digits():
    """Section 5: an image that keeps its resolution has 28 x 28 visible units; a subsampled one, as
    in our runs, has not.
    """
    visible = [mnist(2, size=size)[0][0].numel() for size in (28, Thresholds().size)]
    assert visible == [784, 49]


def multiplications(function):
    """Return the operations that torch counts in the matrix products of a function."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def test_the_covariance_costs_nothing_extra():
    """ "The actual covariance is quite expensive to compute (squared in the dimensionality and
    linear in the number of samples)": so it is, and so is E[v h^T], which every step needs. Beside
    it the covariance has one outer product of means, one multiplication for each entry.
    """
    v, h = binary(50, 4), binary(50, 3, 1)
    moments = boltzmann.sample_moments(v, h)
    joint = torch.cov(torch.cat([v, h], 1).mT, correction=0)
    close(moments.covariance, joint[:4, 4:])
    assert (moments.vh - joint[:4, 4:]).abs().max() > 0.1

    def counts(n, D, H):
        v, h = binary(n, D), binary(n, H, 1)
        learning = multiplications(lambda: v.mT @ h / n)
        extra = multiplications(lambda: v.mean(0)[:, None] @ h.mean(0)[None])  # as a product
        return learning, multiplications(lambda: boltzmann.sample_moments(v, h).covariance), extra

    learning, covariance, extra = counts(50, 8, 6)
    assert learning == 2 * 50 * 8 * 6 and extra == 2 * 8 * 6
    assert learning <= covariance <= learning + extra
    assert counts(100, 8, 6)[1] == 2 * covariance  # linear in the samples
    assert counts(50, 16, 12)[1] == 4 * covariance  # quadratic in the dimension
    assert counts(50, 16, 6)[1] == 2 * covariance  # of one layer alone it would be linear


def test_a_decomposition_is_cubic_in_the_number_of_parameters():
    """Introduction: multiplications of a Cholesky decomposition, counted; a product is square."""

    def decomposed(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
        L, count, n = torch.zeros_like(matrix), 0, len(matrix)
        for j in range(n):
            column = matrix[j:, j] - L[j:, :j] @ L[j, :j]
            L[j:, j] = column / column[0].sqrt()
            count += (n - j) * (j + 1)
        return L, count

    counts = []
    for n in (60, 120):
        root = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        matrix = root @ root.mT + torch.eye(n, dtype=torch.float64)
        L, count = decomposed(matrix)
        assert torch.allclose(L @ L.mT, matrix, atol=1e-9)
        counts.append(count)
    assert 7.5 < counts[1] / counts[0] < 8 and 120**2 / 60**2 == 4
