"""The Boltzmann machine and its Fisher matrix, against full enumeration, autograd and the exact
cases.
"""

import itertools
import math

import pytest
import torch

from natcompanion import boltzmann, reference
from natcompanion.boltzmann import RBM, Divergence, enumeration, training
from natcompanion.solvers import conjugate_gradient, minres

SIZES = [(3, 2), (4, 3), (2, 4), (1, 1), (3, 3)]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def machine(D, H, seed=0, scale=1.0):
    return RBM.random(D, H, scale=scale, bias_scale=0.7, generator=rng(seed))


def binary(n, D, seed=0):
    return (torch.rand(n, D, generator=rng(seed), dtype=torch.float64) < 0.5).double()


def of_case(case):
    return RBM(
        tensor(case["inputs"]["W"]), tensor(case["inputs"]["a"]), tensor(case["inputs"]["b"])
    )


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def close(actual, expected, tolerance=1e-12):
    expected = tensor(expected) if not isinstance(expected, torch.Tensor) else expected
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# --- the exact cases ---


def test_energies_equal_the_cases(cases):
    case = cases("boltzmann")["energy"]
    v, h = tensor(case["inputs"]["v"]), tensor(case["inputs"]["h"])
    close(of_case(case).energy(v, h), case["expected"]["E"])
    close(of_case(case).energy(v[None], h[None]), [case["expected"]["E"]])
    case = cases("boltzmann")["free_energy"]
    close(of_case(case).free_energy(tensor(case["inputs"]["X"])), case["expected"]["F"])


def test_probabilities_equal_the_cases(cases):
    for name in ("logZ_3x2", "logZ_4x3"):
        case = cases("boltzmann")[name]
        close(of_case(case).log_partition(), case["expected"]["logZ"])
    case = cases("boltzmann")["loglik"]
    close(
        of_case(case).log_likelihood(tensor(case["inputs"]["X"])).mean(), case["expected"]["loglik"]
    )
    case = cases("boltzmann")["p_tables"]
    close(of_case(case).visible_probabilities(), case["expected"]["pv"])
    close(of_case(case).hidden_probabilities(), case["expected"]["ph"])


@pytest.mark.parametrize("size", ["3x2", "4x3"])
def test_gradients_equal_the_cases(cases, size):
    case = cases("boltzmann")[f"E_g_{size}"]
    close(of_case(case).statistics_mean(), case["expected"]["E_g"])
    case = cases("boltzmann")[f"ll_grad_{size}"]
    close(of_case(case).gradient(tensor(case["inputs"]["X"])), case["expected"]["grad"])
    case = cases("boltzmann")[f"natural_grad_{size}"]
    close(
        of_case(case).natural_gradient(tensor(case["inputs"]["X"])), case["expected"]["nat"], 1e-9
    )


def test_fisher_equals_the_cases(cases):
    case = cases("boltzmann")["fisher_3x2"]
    G = of_case(case).fisher()
    close(G, case["expected"]["G"])
    invariants = cases("boltzmann")["fisher_invariants_3x2"]["expected"]
    values = torch.linalg.eigvalsh(G)
    found = {
        "trace": G.trace(),
        "logdet": torch.logdet(G),
        "min_eig": values[0],
        "max_eig": values[-1],
        "fro2": (G**2).sum(),
    }
    for name, value in found.items():
        close(value, invariants[name], 1e-9)
    forms, expected = (
        boltzmann.fisher_forms(G),
        cases("boltzmann")["fisher_inverse_3x2"]["expected"],
    )
    close(forms.inverse, expected["Ginv"], 1e-9)
    close(forms.cholesky, expected["chol"], 1e-9)
    close(forms.inverse_root, expected["G_inv_sqrt"], 1e-9)
    close(forms.fisher, G)


def test_conditional_moments_equal_the_case(cases):
    case = cases("boltzmann")["cov_g_given_h"]
    rbm, h = of_case(case), tensor(case["inputs"]["h"])[None]
    m = rbm.visible_mean(h)
    close(boltzmann.conditional_statistics(h, m)[0], case["expected"]["E_g_h"])
    blocks = enumeration_blocks(rbm, h, m)
    names = boltzmann.statistic_names(4, 3)
    for pair, value in case["expected"]["entries"].items():
        i, j = (names.index(name) for name in pair.split(","))
        close(blocks[i, j], value)
    close(blocks.trace(), case["expected"]["trace"])


def enumeration_blocks(rbm, h, m):
    from natcompanion.boltzmann import fisher

    index, P = fisher.pixel_blocks(rbm.visible, rbm.hidden), len(rbm.vector())
    out = torch.zeros(P, P, dtype=torch.float64)
    out[index[:, :, None], index[:, None, :]] = fisher.conditional_blocks(
        torch.ones(1, dtype=torch.float64), h, m
    )
    return out


def test_hessian_equals_the_case(cases):
    case = cases("boltzmann")["hessian_loglik_3x2"]
    hessian = boltzmann.log_likelihood_hessian(of_case(case), tensor(case["inputs"]["X"]))
    close(hessian.diagonal(), case["expected"]["hessian_diag"])
    close(torch.linalg.eigvalsh(hessian)[-1], case["expected"]["max_eig"], 1e-9)
    assert (
        float(torch.linalg.eigvalsh(-of_case(case).fisher())[-1]) < 0
    )  # -G would be the wrong Hessian


def test_fisher_at_zero_weights_equals_the_case(cases):
    case = cases("boltzmann")["fisher_W0"]
    rbm = of_case(case)
    G = RBM(torch.zeros_like(rbm.W), rbm.a, rbm.b).fisher()
    names = boltzmann.statistic_names(3, 2)
    for pair, value in case["expected"].items():
        i, j = (names.index(name) for name in pair.split("_"))
        close(G[i, j], value)


def test_gibbs_kernel_and_cd_equal_the_cases(cases):
    case = cases("boltzmann")["transition"]
    rbm, v = of_case(case), tensor(case["inputs"]["v"])[None]
    q, rows = rbm.hidden_mean(v)[0], 0.0
    for h in itertools.product([0.0, 1.0], repeat=2):
        h = tensor(h)
        m = rbm.visible_mean(h)
        weight = (h * q + (1 - h) * (1 - q)).prod()
        rows = rows + weight * torch.stack(
            [(x * m + (1 - x) * (1 - m)).prod() for x in boltzmann.states(3)]
        )
    close(rows, case["expected"]["row"])
    case = cases("boltzmann")["cd1_given_uniforms"]
    rbm, X = of_case(case), tensor(case["inputs"]["X"])
    h, v_negative = rbm.sweep(X, tensor(case["inputs"]["u_h"]), tensor(case["inputs"]["u_v"]))
    close(h, case["expected"]["h"])
    close(v_negative, case["expected"]["v_neg"])
    close(rbm.contrast(X, v_negative), case["expected"]["update"])


# --- full enumeration ---


@pytest.mark.parametrize("D,H", SIZES)
def test_everything_equals_full_enumeration(D, H):
    rbm = machine(D, H, seed=10 * D + H)
    v, h, p, log_Z = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    g = reference.rbm_statistics(v, h)
    close(rbm.log_partition(), log_Z)
    close(rbm.statistics_mean(), p @ g)
    close(rbm.fisher(), reference.rbm_fisher(rbm.W, rbm.a, rbm.b))
    close(rbm.hidden_probabilities(), p.reshape(2**D, 2**H).sum(0))
    close(rbm.visible_probabilities(), p.reshape(2**D, 2**H).sum(1))
    close(-rbm.energy(v, h) - log_Z, p.log())
    close(rbm.log_likelihood(boltzmann.states(D)).exp(), p.reshape(2**D, 2**H).sum(1))
    X = binary(9, D, seed=3)
    close(rbm.log_likelihood(X).mean(), reference.rbm_log_likelihood(rbm.W, rbm.a, rbm.b, X))


def test_the_marginal_of_h_does_not_factorize():
    """The paper's weight p(h) = prod p(h_j | v) belongs to one v; the marginal is not a product."""
    rbm = machine(3, 2, scale=2.0)
    p = rbm.hidden_probabilities()
    mean = rbm.statistics_mean()[3:5]
    product = torch.stack([(h * mean + (1 - h) * (1 - mean)).prod() for h in boltzmann.states(2)])
    close(p.sum(), torch.ones((), dtype=torch.float64))
    assert (p - product).abs().max() > 0.01


@pytest.mark.parametrize("D,H", [(3, 2), (2, 3)])
def test_fisher_is_the_hessian_of_log_partition(D, H):
    rbm = machine(D, H, seed=5)

    def log_partition(theta):
        a, b, W = theta.split([D, H, D * H])
        return reference.rbm_joint(W.reshape(D, H), a, b)[3]

    hessian = torch.autograd.functional.hessian(log_partition, rbm.vector())
    close(rbm.fisher(), hessian)
    wrong_order = hessian.clone()
    wrong_order[D + H :] = hessian[D + H :].reshape(D, H, -1).transpose(0, 1).reshape(D * H, -1)
    assert (rbm.fisher() - wrong_order).abs().max() > 0.01


def test_gradient_and_hessian_equal_autograd():
    rbm, X = machine(3, 2, seed=6), binary(7, 3, seed=6)

    def objective(theta):
        a, b, W = theta.split([3, 2, 6])
        return reference.rbm_log_likelihood(W.reshape(3, 2), a, b, X)

    theta = rbm.vector().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(theta), theta)
    close(rbm.gradient(X), gradient)
    close(
        boltzmann.log_likelihood_hessian(rbm, X),
        torch.autograd.functional.hessian(objective, rbm.vector()),
    )


def test_small_moves_agree_with_the_fisher_metric():
    """KL(p || p') = d^T G d / 2 pins the absolute scale of G (joint) and of the marginal Fisher
    matrix.
    """
    rbm = machine(3, 2, seed=7)
    d = 1e-4 * torch.randn(11, generator=rng(8), dtype=torch.float64)
    other = rbm.moved(d)
    p = reference.rbm_joint(rbm.W, rbm.a, rbm.b)[2]
    q = reference.rbm_joint(other.W, other.a, other.b)[2]
    assert float((p * (p / q).log()).sum()) == pytest.approx(
        float(d @ rbm.fisher() @ d) / 2, rel=1e-3
    )
    p, q = rbm.visible_probabilities(), other.visible_probabilities()
    marginal = boltzmann.marginal_fisher(rbm)
    kl = float((p * (p / q).log()).sum())
    assert kl == pytest.approx(float(d @ marginal @ d) / 2, rel=1e-3)
    assert kl != pytest.approx(float(d @ rbm.fisher() @ d) / 2, rel=0.1)
    assert int(torch.linalg.matrix_rank(marginal, rtol=1e-9)) <= 2**3 - 1


def test_one_sample_per_hidden_state_is_not_the_fisher():
    """The paper's procedure in its words (one v sampled per h) misses Cov(g|h) and is far from
    G.
    """
    rbm = machine(4, 3, seed=9)
    h, p = boltzmann.states(3), rbm.hidden_probabilities()
    m = rbm.visible_mean(h)
    sampled = reference.rbm_statistics(
        (torch.rand(8, 4, generator=rng(1), dtype=torch.float64) < m).double(), h
    )
    exact = boltzmann.conditional_statistics(h, m)
    G = rbm.fisher()

    def covariance(g):
        centred = g - p @ g
        return (p[:, None] * centred).mT @ centred

    def error(matrix):
        return float(torch.linalg.matrix_norm(matrix - G) / torch.linalg.matrix_norm(G))

    assert error(covariance(sampled)) > 0.3
    assert error(covariance(exact)) > 0.3  # right means, but Cov(g|h) dropped
    index = boltzmann.fisher.pixel_blocks(4, 3)
    full = covariance(exact)
    full[index[:, :, None], index[:, None, :]] += boltzmann.fisher.conditional_blocks(p, h, m)
    assert error(full) < 1e-14


def test_fisher_blocks_and_norm(cases):
    case = cases("boltzmann")["trace_identity_4x3"]
    G = of_case(case).fisher()
    blocks = boltzmann.fisher_blocks(G, 4, 3)
    for name, value in case["expected"]["blocks"].items():
        close((blocks[name] ** 2).sum(), value)
    assert blocks["v,vh"].shape == (4, 12) and blocks["h,vh"].shape == (3, 12)
    terms = boltzmann.norm_terms(G, 4, 3)
    assert sum(terms.values()) == pytest.approx(case["expected"]["total"], rel=1e-12)
    assert sum(terms.values()) == pytest.approx(float((G @ G).trace()), rel=1e-12)
    once = sum(float((C**2).sum()) for C in blocks.values())
    assert once != pytest.approx(
        case["expected"]["total"], rel=0.1
    )  # the counts 1, 1, 2, 2, 2, 1 matter


def test_appendix_a_term_by_term():
    """tr(A'A - A'B - B'A + B'B) of each diagonal block is the sum of squared norms of the
    covariances with g.
    """
    rbm = machine(3, 2, seed=11)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    g = reference.rbm_statistics(v, h)
    A, mean = (p[:, None] * g).mT @ g, p @ g
    B, G = torch.outer(mean, mean), rbm.fisher()
    close(A - B, G)
    for part in (slice(0, 3), slice(3, 5), slice(5, 11)):
        column = slice(None), part
        four = [
            A[column].mT @ A[column],
            A[column].mT @ B[column],
            B[column].mT @ A[column],
            B[column].mT @ B[column],
        ]
        total = (four[0] - four[1] - four[2] + four[3]).trace()
        close(total, (G[column] ** 2).sum())
        assert (
            abs(float(total - four[0].trace() + four[3].trace())) > 1e-3
        )  # tr(A'A) - tr(B'B) is not it


@pytest.mark.parametrize("structure", ["full", "block", "diagonal"])
def test_natural_gradient_solves_the_restricted_system(structure):
    rbm, X = machine(4, 3, seed=12), binary(8, 4)
    G = rbm.fisher()
    mask = {
        "full": torch.ones(19, 19),
        "block": torch.block_diag(torch.ones(4, 4), torch.ones(3, 3), torch.ones(12, 12)),
        "diagonal": eye(19),
    }[structure]
    step = rbm.natural_gradient(X, damping=0.1, structure=structure)
    close((G * mask + 0.1 * eye(19)) @ step, rbm.gradient(X), 1e-10)
    assert (step - rbm.natural_gradient(X, damping=0.2, structure=structure)).abs().max() > 1e-3


def test_a_singular_fisher_is_named():
    """A pixel that is always on makes G singular to working precision: an error without damping, a
    step with it.
    """
    rbm = machine(4, 3, seed=13)
    dead = RBM(rbm.W * tensor([0.0, 1, 1, 1])[:, None], rbm.a + tensor([40.0, 0, 0, 0]), rbm.b)
    with pytest.raises(ValueError, match="singular to working precision.*damping"):
        dead.natural_gradient(binary(5, 4))
    assert torch.isfinite(dead.natural_gradient(binary(5, 4), damping=1e-4)).all()
    with pytest.raises(ValueError, match="structure"):
        rbm.natural_gradient(binary(5, 4), structure="kfac")


# --- operators ---


@pytest.mark.parametrize("D,H", [(4, 3), (3, 4)])
def test_exact_operator_equals_the_matrix(D, H):
    rbm = machine(D, H, seed=14)
    operator = boltzmann.ExactFisherOperator(rbm, damping=0.3)
    dense = rbm.fisher() + 0.3 * eye(len(rbm.vector()))
    u = torch.randn(len(dense), generator=rng(15), dtype=torch.float64)
    close(operator @ u, dense @ u)
    close(operator.diagonal(), dense.diagonal())
    close(operator.dense(), dense)
    assert operator.shape == dense.shape
    assert (operator @ u - rbm.fisher() @ u).abs().max() > 0.01


def test_sampled_operator_equals_the_sample_covariance():
    v, h = binary(40, 4, seed=1), binary(40, 3, seed=2)
    operator = boltzmann.SampledFisherOperator(v, h, damping=0.2)
    g = reference.rbm_statistics(v, h)
    dense = torch.cov(g.mT, correction=0) + 0.2 * eye(19)
    u = torch.randn(19, generator=rng(16), dtype=torch.float64)
    close(operator @ u, dense @ u)
    close(operator.diagonal(), dense.diagonal())
    close(operator.dense(), dense)
    assert (
        operator @ u - (g.mT @ g / 40 + 0.2 * eye(19)) @ u
    ).abs().max() > 0.01  # uncentred is wrong
    with pytest.raises(ValueError, match="one row per sample"):
        boltzmann.SampledFisherOperator(v, h[:5])


def test_sampled_operator_approaches_the_fisher():
    """Weighting every pair of states by its probability times 10^5 copies gives G up to rounding of
    the counts.
    """
    rbm = machine(3, 2, seed=17, scale=0.5)
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    copies = (p * 1e5).round().long()
    operator = boltzmann.SampledFisherOperator(
        v.repeat_interleave(copies, 0), h.repeat_interleave(copies, 0)
    )
    torch.testing.assert_close(operator.dense(), rbm.fisher(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("solver", [conjugate_gradient, minres])
def test_sampled_natural_gradient_with_a_matrix_free_solver(solver):
    rbm, X = machine(6, 30, seed=18, scale=0.3), binary(50, 6)
    v, h = rbm.gibbs(binary(300, 6, seed=4), 20, generator=rng(5))
    operator = boltzmann.SampledFisherOperator(v, h, damping=0.1)
    solution = solver(operator, rbm.gradient(X), rtol=1e-10, max_iter=500)
    assert solution.converged
    close(solution.x, torch.linalg.solve(operator.dense(), rbm.gradient(X)), 1e-7)


# --- sampling ---


def test_gibbs_leaves_the_model_distribution_in_place():
    """From exact samples of p(v), one sweep keeps p(v); a sweep of another machine does not."""
    rbm = machine(3, 2, seed=19)
    states = boltzmann.states(3)
    start = states[
        torch.multinomial(rbm.visible_probabilities(), 40_000, replacement=True, generator=rng(1))
    ]
    place = tensor([4.0, 2.0, 1.0])

    def frequencies(sampler):
        v, _ = sampler.gibbs(start, 1, generator=rng(2))
        return torch.bincount((v @ place).long(), minlength=8) / len(v)

    assert (frequencies(rbm) - rbm.visible_probabilities()).abs().max() < 0.012
    assert (frequencies(machine(3, 2, seed=20)) - rbm.visible_probabilities()).abs().max() > 0.05


def test_cd_gradient_has_the_expectation_of_the_transition_matrix():
    """The mean of CD-1 over many draws is the data statistics minus those after one exact
    transition.
    """
    rbm, x = machine(3, 2, seed=21), tensor([[1.0, 0.0, 1.0]])
    q = rbm.hidden_mean(x)[0]
    after = torch.zeros(8, dtype=torch.float64)
    for h in boltzmann.states(2):
        m = rbm.visible_mean(h)
        weight = (h * q + (1 - h) * (1 - q)).prod()
        after += weight * (boltzmann.states(3) * m + (1 - boltzmann.states(3)) * (1 - m)).prod(1)
    statistics = torch.stack([rbm.data_statistics(v[None]) for v in boltzmann.states(3)])
    expected = rbm.data_statistics(x) - after @ statistics
    many = rbm.cd_gradient(x.repeat(40_000, 1), 1, generator=rng(3))
    assert (many - expected).abs().max() < 0.015
    assert (rbm.gradient(x) - expected).abs().max() > 0.03  # CD-1 is biased
    fifty = rbm.cd_gradient(x.repeat(40_000, 1), 50, generator=rng(3))
    assert (fifty - rbm.gradient(x)).abs().max() < 0.015  # CD-50 is nearly not


@pytest.mark.parametrize("seed", range(10))
def test_more_gibbs_steps_bring_contrastive_divergence_nearer_to_the_gradient(seed):
    """Section 3: the expectation of CD-k, by powers of the transition matrix."""
    rbm, x = machine(4, 3, seed=seed), binary(6, 4, seed=seed + 50)
    states, hidden = boltzmann.states(4), boltzmann.states(3)

    def probabilities(mean, values):  # (n, m) of m vectors of independent bits
        return torch.exp(
            (
                values[None] * mean.log()[:, None] + (1 - values[None]) * (1 - mean).log()[:, None]
            ).sum(2)
        )

    sweep = probabilities(rbm.hidden_mean(states), hidden) @ probabilities(
        rbm.visible_mean(hidden), states
    )
    close(rbm.visible_probabilities() @ sweep, rbm.visible_probabilities(), 1e-12)
    statistics = torch.stack([rbm.data_statistics(v[None]) for v in states])
    data = (x[:, None] == states[None]).all(2).double().mean(0)
    bias = [
        float(((rbm.visible_probabilities() - data @ sweep.matrix_power(k)) @ statistics).norm())
        for k in (1, 5, 25)
    ]
    assert bias[1] < 0.8 * bias[0] and bias[2] < 0.8 * bias[1]


def test_persistent_chains_go_on_and_notice_when_they_are_stuck():
    rbm = machine(4, 3, seed=22)
    chains = boltzmann.PersistentChains(binary(2000, 4), generator=rng(1))
    for _ in range(20):
        gradient = chains.gradient(rbm, binary(9, 4))
    close(gradient, rbm.gradient(binary(9, 4)), 0.05)
    assert not chains.stuck
    frozen = RBM(rbm.W, torch.full_like(rbm.a, 60.0), rbm.b)
    chains = boltzmann.PersistentChains(torch.ones(50, 4, dtype=torch.float64), generator=rng(1))
    with pytest.raises(Divergence, match="stuck.*restart them"):
        chains.gradient(frozen, binary(9, 4))


class Half:
    """In place of the coins: a unit is on if its probability is above one half."""

    def __init__(self, units, generator):
        pass

    def toss(self, p, *, out=None):
        return torch.gt(p, 0.5, out=torch.empty_like(p) if out is None else out)


@pytest.mark.parametrize("mean_field", [False, True])
def test_cd_epoch_is_a_chain_of_cd_steps(monkeypatch, mean_field):
    """Two batches of 7 and 3 rows, with units that are on above one half, equal the updates written
    out.
    """
    monkeypatch.setattr(training, "_Coins", Half)
    rbm, X = machine(4, 3, seed=26), binary(10, 4)
    other = rbm
    for v in X[torch.randperm(10, generator=rng(4))].split(7):
        model = v
        for _ in range(2):
            model = other.visible_mean((other.hidden_mean(model) > 0.5).double())
            model = model if mean_field else (model > 0.5).double()
        other = other.moved(0.3 * other.contrast(v, model))
    options = {"lr": 0.3, "batch_size": 7, "mean_field": mean_field}
    epoch = boltzmann.cd_epoch(rbm, X, k=2, generator=rng(4), **options)
    close(epoch.vector(), other.vector())
    assert (
        boltzmann.cd_epoch(rbm, X, k=1, generator=rng(4), **options).vector() - other.vector()
    ).abs().max() > 1e-3
    for bad in ({"k": 0}, {"k": 1.5}, {"batch_size": 2.5}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}: expected an integer >= 1"):
            boltzmann.cd_epoch(rbm, X, **bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coins_fall_with_their_probabilities(dtype):
    """Means and covariances of many tosses."""
    p = torch.tensor([0.0, 1e-6, 0.003, 0.25, 0.5, 0.7, 1.0], dtype=dtype)
    coins = training._Coins(torch.empty(1000, 7, dtype=dtype), rng(5))
    tosses = torch.cat([coins.toss(p.expand(1000, 7)).clone() for _ in range(2000)]).double()
    mean = tosses.mean(0)
    assert mean[0] == 0 and mean[6] == 1
    deviation = (p.double() * (1 - p.double()) / len(tosses)).sqrt()
    assert ((mean - p.double()).abs()[1:6] < 4 * deviation[1:6]).all()
    C = torch.cov(tosses[:, 3:6].mT)
    assert (C - torch.diag(C.diagonal())).abs().max() < 1e-3
    x = torch.full((3, 5), 0.5, dtype=dtype)
    assert training._Coins(x, rng(6)).toss(x, out=x) is x and set(x.unique().tolist()) <= {0.0, 1.0}


def test_cd_epoch_with_momentum():
    """The gradients of two epochs of one batch, from epochs without momentum, by hand."""
    rbm, X, lr, mu = machine(4, 3), binary(10, 4), 0.1, 0.7
    u = [torch.zeros_like(p) for p in (rbm.W, rbm.a, rbm.b)]

    def epoch(start, seed, **options):
        size = {"batch_size": len(X), "lr": lr, "generator": rng(seed)}
        return boltzmann.cd_epoch(start, X, **size, **options)

    one = epoch(rbm, 1, momentum=mu, velocity=u)
    first = (epoch(rbm, 1).vector() - rbm.vector()) / lr
    torch.testing.assert_close(one.vector(), rbm.vector() + lr * first)
    two = epoch(one, 2, momentum=mu, velocity=u)
    second = (epoch(one, 2).vector() - one.vector()) / lr
    velocity = mu * first + second
    torch.testing.assert_close(two.vector(), one.vector() + lr * velocity)
    torch.testing.assert_close(u[0].flatten(), velocity[7:])
    anew = epoch(one, 2, momentum=mu)  # without the velocity it starts from rest
    torch.testing.assert_close(anew.vector(), one.vector() + lr * second)
    assert (anew.vector() - two.vector()).abs().max() > 1e-3
    decayed = epoch(one, 2, momentum=mu, weight_decay=0.5)  # the decay is no part of the velocity
    torch.testing.assert_close(decayed.W, one.W * (1 - lr * 0.5) + anew.W - one.W)
    for bad in ({"momentum": 1.0}, {"momentum": -0.1}, {"velocity": u[:2]}, {"velocity": u[::-1]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            epoch(rbm, 1, **bad)


def test_the_reconstruction_error_by_hand():
    rbm, X = machine(4, 3), binary(10, 4)
    found = boltzmann.reconstruction_error(rbm, X)
    for v, error in zip(X, found, strict=True):
        h = 1 / (1 + (-(v @ rbm.W) - rbm.b).exp())
        again = 1 / (1 + (-(rbm.W @ h) - rbm.a).exp())
        torch.testing.assert_close(error, (v - again).square().sum())
    copying = boltzmann.RBM(60 * torch.eye(4).double(), *torch.full((2, 4), -30.0).double())
    assert boltzmann.reconstruction_error(copying, (X > 0.5).double()).max() < 1e-6
    with pytest.raises(ValueError, match="v: expected"):
        boltzmann.reconstruction_error(rbm, X[:, :2])


def test_cd_epoch_raises_the_exact_likelihood():
    X = binary(4, 6, seed=1).repeat(50, 1)
    rbm = RBM.random(6, 4, generator=rng(1))
    trained = rbm
    for _ in range(30):
        trained = boltzmann.cd_epoch(trained, X, lr=0.1, batch_size=20, generator=rng(2))
    assert float(trained.log_likelihood(X).mean() - rbm.log_likelihood(X).mean()) > 1.0
    before = rbm.vector()
    same = boltzmann.cd_epoch(rbm, X, lr=0.0, generator=rng(2))
    assert torch.equal(same.vector(), before) and torch.equal(rbm.vector(), before)
    tracked = RBM(*(x.clone().requires_grad_() for x in (rbm.W, rbm.a, rbm.b)))
    again = boltzmann.cd_epoch(tracked, X, lr=0.1, generator=rng(3))
    assert not again.W.requires_grad and torch.equal(tracked.vector(), before)
    decayed = boltzmann.cd_epoch(rbm, X, lr=0.1, weight_decay=1.0, generator=rng(3))
    plain = boltzmann.cd_epoch(rbm, X, lr=0.1, generator=rng(3))
    assert (decayed.W - plain.W).abs().max() > 1e-4
    assert torch.equal(again.vector(), plain.vector())


# --- bad input ---


def test_values_outside_zero_one_are_named():
    rbm = machine(3, 2)
    raw = tensor([[0.0, 128.0, 255.0]])
    classifier = boltzmann.ClassificationRBM.from_machine(machine(5, 2), 2)
    calls = (
        rbm.free_energy,
        rbm.gradient,
        rbm.natural_gradient,
        rbm.cd_gradient,
        rbm.log_likelihood,
        rbm.hidden_mean,
        lambda v: boltzmann.cd_epoch(rbm, v),
        boltzmann.PersistentChains,
        classifier.predict,
        lambda v: rbm.energy(v, v[:, :2] / 255),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"minimum 0 and maximum 255.*divide by 255"):
            call(raw)


@pytest.mark.parametrize(
    "bad,message",
    [
        (torch.zeros(2, 4, dtype=torch.float64), r"expected \(n, 3\)"),
        (torch.full((2, 3), math.nan, dtype=torch.float64), "finite"),
        (torch.zeros(0, 3, dtype=torch.float64), "empty"),
        (torch.ones(2, 3, dtype=torch.long), "floating-point"),
        (torch.zeros(3, dtype=torch.float64), "matrix"),
    ],
)
def test_bad_batches_are_named(bad, message):
    for call in (machine(3, 2).gradient, lambda v: boltzmann.cd_epoch(machine(3, 2), v)):
        with pytest.raises(ValueError, match=message):
            call(bad)


def test_bad_parameters_are_named():
    W, a, b = torch.zeros(3, 2), torch.zeros(3), torch.zeros(2)
    with pytest.raises(ValueError, match=r"expected W \(D, H\)"):
        RBM(W.mT, a, b)
    with pytest.raises(ValueError, match="one dtype"):
        RBM(W.double(), a, b)
    with pytest.raises(ValueError, match="finite"):
        RBM(W, a / 0, b)
    with pytest.raises(ValueError, match="theta"):
        RBM.from_vector(torch.zeros(5), 3, 2)
    for steps in (0, 1.5):
        with pytest.raises(ValueError, match="steps: expected an integer >= 1"):
            RBM(W, a, b).gibbs(torch.zeros(1, 3), steps)


def test_all_zero_batches_and_large_weights_stay_finite():
    rbm = machine(5, 4, scale=300.0)
    X = torch.zeros(6, 5, dtype=torch.float64)
    for value in (
        rbm.log_partition(),
        rbm.log_likelihood(X),
        rbm.gradient(X),
        rbm.fisher(),
        rbm.cd_gradient(X),
    ):
        assert torch.isfinite(value).all()
    trained = boltzmann.cd_epoch(machine(5, 4), X, lr=1.0, generator=rng(1))
    assert torch.isfinite(trained.vector()).all() and (trained.a < machine(5, 4).a).all()


def test_exploding_weights_are_named():
    rbm, X = machine(3, 2), binary(20, 3)
    with pytest.raises(Divergence, match="no longer finite.*lower the learning rate"):
        rbm.moved(torch.full((11,), math.inf, dtype=torch.float64))
    with pytest.raises(Divergence, match="run away.*lower the learning rate"):
        boltzmann.cd_epoch(rbm, X, lr=1e5, batch_size=2, generator=rng(1))


def test_too_many_units_are_refused_with_an_estimate():
    with pytest.raises(
        ValueError, match=r"at most 20 units.*2\*\*25 states of 30 units.*seconds.*GiB"
    ):
        machine(30, 25, scale=0.1).log_partition()
    with pytest.raises(ValueError, match="at most 5"):
        machine(8, 6).log_partition(limit=5)
    with pytest.raises(ValueError, match="dense matrix of .* GiB.*Operator"):
        machine(1500, 10, scale=0.1).fisher()


# --- numbers and types ---


def test_softplus_is_exact_where_torch_cuts_off():
    x = tensor([-800.0, -30.0, 0.0, 21.0, 49.0, 51.0, 800.0])
    exact = tensor([math.log1p(math.exp(-abs(t))) + max(t, 0.0) for t in x.tolist()])
    close(enumeration.softplus(x), exact, 1e-15)
    assert (torch.nn.functional.softplus(x) - exact).abs().max() > 1e-10


def test_chunks_cover_all_states(monkeypatch):
    rbm = machine(7, 5, seed=23)
    whole = (rbm.log_partition(), rbm.statistics_mean(), rbm.fisher())
    monkeypatch.setattr(enumeration, "_CHUNK_NUMBERS", 40)
    assert len(list(enumeration.chunks(5, 7))) > 3
    for one, many in zip(
        whole, (rbm.log_partition(), rbm.statistics_mean(), rbm.fisher()), strict=True
    ):
        close(many, one)


def test_states_count_in_base_two():
    assert boltzmann.states(2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert torch.equal(boltzmann.states(4, 5, 9), boltzmann.states(4)[5:9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_kept_and_sums_run_in_double(dtype):
    exact = machine(4, 3, seed=24)
    rbm = RBM(exact.W.to(dtype), exact.a.to(dtype), exact.b.to(dtype))
    X = binary(6, 4).to(dtype)
    wide = RBM(*rbm.double())
    for one, other in itertools.product(
        (rbm, wide), (X, X.double())
    ):  # data of another dtype than the machine's
        energy = one.energy(other, other[:, :3])
        assert torch.equal(energy, wide.energy(X.double(), X.double()[:, :3]).to(one.W.dtype))
    for name in ("log_partition", "fisher", "statistics_mean"):
        assert torch.equal(getattr(rbm, name)(), getattr(wide, name)().to(dtype))
    for value in (
        rbm.gradient(X),
        rbm.cd_gradient(X, generator=rng()),
        rbm.hidden_mean(X),
        rbm.natural_gradient(X, 0.1),
    ):
        assert value.dtype == dtype and torch.isfinite(value).all()


def test_vector_round_trip_and_transpose():
    rbm = machine(4, 3, seed=25)
    again = RBM.from_vector(rbm.vector(), 4, 3)
    assert (
        torch.equal(again.W, rbm.W) and torch.equal(again.a, rbm.a) and torch.equal(again.b, rbm.b)
    )
    close(rbm.transpose().log_partition(), rbm.log_partition())
    order = boltzmann.fisher.transpose_order(4, 3)
    close(rbm.transpose().vector()[order], rbm.vector())
    assert not torch.equal(rbm.transpose().vector(), rbm.vector())
