"""The covariance penalty, the paper's scheme, whitened learning and the classifiers."""

import itertools
import math

import pytest
import torch

from natcompanion import boltzmann, reference
from natcompanion.boltzmann import (
    RBM,
    CovariancePenalty,
    Moments,
    PaperPenalty,
    StatisticsPenalty,
    ThresholdController,
)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def machine(D, H, seed=0, scale=1.0):
    return RBM.random(D, H, scale=scale, bias_scale=0.7, generator=rng(seed))


def binary(n, D, seed=0):
    return (torch.rand(n, D, generator=rng(seed), dtype=torch.float64) < 0.5).double()


def of_case(case):
    return RBM(
        tensor(case["inputs"]["W"]), tensor(case["inputs"]["a"]), tensor(case["inputs"]["b"])
    )


def moments_of(triple):
    return Moments(tensor(triple["Ev"]), tensor(triple["Eh"]), tensor(triple["Evh"]))


def close(actual, expected, tolerance=1e-12):
    expected = tensor(expected) if not isinstance(expected, torch.Tensor) else expected
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# --- exact penalty ---


def test_penalty_equals_the_cases(cases):
    case = cases("boltzmann")["cov_vh_3x2"]
    close(boltzmann.model_moments(of_case(case)).covariance, case["expected"]["C"])
    close(CovariancePenalty().value(of_case(case)), case["expected"]["penalty"])
    case = cases("boltzmann")["penalty_grad_3x2"]
    close(CovariancePenalty().gradient(of_case(case)), case["expected"]["grad"])
    case = cases("boltzmann")["objective"]
    rbm, X, gamma = of_case(case), tensor(case["inputs"]["X"]), case["inputs"]["gamma"]
    close(CovariancePenalty().objective(rbm, X, gamma), case["expected"]["value"])
    close(CovariancePenalty().objective_gradient(rbm, X, gamma), case["expected"]["grad"])


def check_by_autograd(penalty, rbm, value):
    """Compare value and gradient with a function of the parameters; return its gradient."""
    theta = rbm.vector().requires_grad_()
    close(penalty.value(rbm), value(theta).detach())
    (gradient,) = torch.autograd.grad(value(theta), theta)
    close(penalty.gradient(rbm), gradient)
    assert (penalty.gradient(rbm) - gradient / 2).abs().max() > 1e-3  # the factor 2 is there
    return gradient


@pytest.mark.parametrize("pair", ["vh", "vv", "hh"])
@pytest.mark.parametrize("D,H", [(4, 3), (3, 2)])
def test_penalty_and_gradient_equal_autograd(pair, D, H):
    rbm = machine(D, H, seed=1)

    def value(theta):
        a, b, W = theta.split([D, H, D * H])
        v, h, p, _ = reference.rbm_joint(W.reshape(D, H), a, b)
        left, right = (
            {"v": v - p @ v, "h": h - p @ h}[pair[0]],
            {"v": v - p @ v, "h": h - p @ h}[pair[1]],
        )
        return (((p[:, None] * left).mT @ right) ** 2).sum()

    check_by_autograd(CovariancePenalty(pair), rbm, value)


@pytest.mark.parametrize("pair", ["v,vh", "h,vh", "vh,vh", "full"])
@pytest.mark.parametrize("D,H", [(4, 3), (2, 3)])
def test_penalty_on_all_pairs_of_statistics_equals_autograd(pair, D, H):
    """Of all states, written out; the larger layer may be the hidden one."""
    rbm = machine(D, H, seed=1)

    def value(theta):
        a, b, W = theta.split([D, H, D * H])
        v, h, p, _ = reference.rbm_joint(W.reshape(D, H), a, b)
        parts = {"v": v, "h": h, "vh": (v[:, :, None] * h[:, None, :]).flatten(1)}
        parts["full"] = torch.cat(list(parts.values()), 1)
        left, right = (parts[name] for name in (pair.split(",") * 2)[:2])
        C = (p[:, None] * (left - p @ left)).mT @ (right - p @ right)
        return (C**2).sum()

    penalty = StatisticsPenalty(pair)
    gradient = check_by_autograd(penalty, rbm, value)
    # Negative control: without the visible units' own fluctuations given h it is another vector.
    W, a, b = rbm.double()
    states = boltzmann.states(H)
    m = torch.sigmoid(a + states @ W.mT)
    p = torch.softmax(states @ b + torch.nn.functional.softplus(a + states @ W.mT).sum(1), 0)
    x = boltzmann.conditional_statistics(states, m) - rbm.statistics_mean()
    q = ((x @ penalty._in_place(rbm.fisher(), rbm)) * x).sum(1)
    assert (2 * x.mT @ (p * (q - p @ q)) - gradient).abs().max() > 1e-3


def penalty_on(pair):
    return StatisticsPenalty(pair) if "," in pair else CovariancePenalty(pair)


def test_the_terms_sum_to_the_full_norm():
    """With the counts 1, 1, 2, 2, 2, 1, and so do their gradients."""
    rbm = machine(4, 3, seed=5)
    counts = {"vv": 1, "hh": 1, "vh": 2, "v,vh": 2, "h,vh": 2, "vh,vh": 1}
    full = StatisticsPenalty()
    for of in ("value", "gradient"):
        terms = [n * getattr(penalty_on(pair), of)(rbm) for pair, n in counts.items()]
        close(sum(terms), getattr(full, of)(rbm))
        once = [getattr(penalty_on(pair), of)(rbm) for pair in counts]
        assert (sum(once) - getattr(full, of)(rbm)).abs().max() > 1e-3  # the counts matter


def test_steps_on_the_full_norm_lower_it():
    rbm = machine(4, 3, seed=6)
    penalty = StatisticsPenalty()
    values = []
    for _ in range(20):
        values.append(float(penalty.value(rbm)))
        rbm = rbm.moved(-0.05 * penalty.gradient(rbm))
    assert values == sorted(values, reverse=True) and values[-1] < 0.9 * values[0]


def test_covariances_are_blocks_of_the_fisher():
    rbm = machine(4, 3, seed=2)
    blocks, C = boltzmann.fisher_blocks(rbm.fisher(), 4, 3), boltzmann.covariances(rbm)
    for name in ("vv", "hh", "vh"):
        close(C[name], blocks[f"{name[0]},{name[1]}"])


def test_gradient_is_twice_fisher_times_the_natural_direction():
    rbm = machine(4, 3, seed=3)
    u, gradient = boltzmann.natural_direction(rbm), CovariancePenalty().gradient(rbm)
    close(2 * rbm.fisher() @ u, gradient)
    close(boltzmann.fisher_forms(rbm.fisher()).inverse @ gradient, 2 * u, 1e-8)
    close(u[7:].reshape(4, 3), boltzmann.model_moments(rbm).covariance)
    assert (
        torch.nn.functional.cosine_similarity(gradient, u, dim=0) < 0.99
    )  # not parallel to u itself


def test_four_tensor_of_covariance_derivatives_equals_the_case(cases):
    """dC_kl/dw_ij has four indices; the paper keeps only k, l = i, j."""
    case = cases("boltzmann")["dC_dw_3x2"]
    rbm = of_case(case)
    tensor4 = torch.autograd.functional.jacobian(
        lambda W: reference.rbm_covariance(W, rbm.a, rbm.b), rbm.W
    )
    close(tensor4[:, :, 1, 0], case["expected"]["slice_10"])
    diagonal = torch.einsum("ijij->ij", tensor4)
    close(diagonal, case["expected"]["diagonal"])
    C = boltzmann.model_moments(rbm).covariance
    exact = CovariancePenalty().gradient(rbm)[5:].reshape(3, 2)
    close(2 * torch.einsum("kl,klij->ij", C, tensor4), exact)
    assert (2 * C * diagonal - exact).abs().max() > 1e-3  # without the trace it is another matrix


def test_sampled_gradient_equals_the_case(cases):
    case = cases("boltzmann")["penalty_grad_from_samples"]
    v, h = tensor(case["inputs"]["v"]), tensor(case["inputs"]["h"])
    close(boltzmann.sampled_penalty_gradient(v, h), case["expected"]["grad"])
    close((boltzmann.sample_moments(v, h).covariance ** 2).sum(), case["expected"]["C_hat2"])


def test_independence_means_zero_weights():
    """sum w_ij C_ij > 0 for every W but 0: the penalty on cov(v, h) is a kind of weight decay."""
    for seed in range(200):
        rbm = machine(3, 2, seed=seed)
        assert float((rbm.W * boltzmann.model_moments(rbm).covariance).sum()) > 0
    free = RBM(torch.zeros(3, 2, dtype=torch.float64), rbm.a, rbm.b)
    assert float(CovariancePenalty().value(free)) < 1e-30
    assert (
        float((boltzmann.covariances(free)["vv"] ** 2).sum()) > 0.01
    )  # cov(v, v) is not zero there


@pytest.mark.parametrize("seed", range(5))
def test_weights_times_covariance_is_the_sum_of_two_divergences(seed):
    """sum w C = KL(p, p_v p_h) + KL(p_v p_h, p), so that it is positive unless W = 0; one of them
    alone is not it.
    """
    rbm = RBM.random(4, 3, scale=1.0, bias_scale=0.7, generator=rng(seed))
    _, _, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    p = p.reshape(16, 8)
    q = torch.outer(p.sum(1), p.sum(0))
    forward, backward = (p * (p / q).log()).sum(), (q * (q / p).log()).sum()
    close((rbm.W * boltzmann.model_moments(rbm).covariance).sum(), forward + backward)
    assert abs(float(forward - backward)) > 1e-6 and float(forward) > 1e-3


def test_near_zero_the_penalty_is_a_quadratic_weight_decay():
    rbm = machine(3, 2, seed=4, scale=1e-4)
    s, t = (torch.sigmoid(x) * torch.sigmoid(-x) for x in (rbm.a, rbm.b))
    expected = 2 * torch.outer(s**2, t**2) * rbm.W
    torch.testing.assert_close(
        CovariancePenalty().gradient(rbm)[5:].reshape(3, 2), expected, rtol=1e-3, atol=0
    )
    assert ((2 * torch.outer(s, t) * rbm.W) / expected).min() > 3


def test_a_small_norm_of_g_is_not_whitening():
    """Saturating every unit sends the norm of G to 0 while its condition number grows and G leaves
    the identity.
    """
    rbm = machine(3, 2, seed=5, scale=0.3)
    saturated = RBM(rbm.W, rbm.a.sign() * 6, rbm.b.sign() * 6)
    G, S = rbm.fisher(), saturated.fisher()
    assert float((S**2).sum()) < 0.01 * float((G**2).sum())
    assert torch.linalg.cond(S) > 10 * torch.linalg.cond(G)
    assert float(((S - eye(11)) ** 2).sum()) > float(((G - eye(11)) ** 2).sum())
    for seed in range(50):
        assert (
            float(machine(3, 2, seed=seed).fisher().diagonal().max()) <= 0.25
        )  # so G = I is impossible


@pytest.mark.parametrize("gamma", [math.nan, 3.0, -0.1])
def test_a_weight_of_the_objective_outside_zero_one_is_named(gamma):
    penalty = CovariancePenalty()
    for method in (penalty.objective, penalty.objective_gradient):
        with pytest.raises(ValueError, match="gamma: expected a"):
            method(machine(3, 2), binary(4, 3), gamma)


def test_unknown_pair_is_named():
    with pytest.raises(ValueError, match='"vh", "vv" or "hh"'):
        CovariancePenalty("gh")
    with pytest.raises(ValueError, match="CovariancePenalty has vh, vv and hh"):
        StatisticsPenalty("vh")


# --- the paper's scheme ---


def test_equation_4_equals_the_case(cases):
    case = cases("boltzmann")["eq4"]
    before, after, dW = (
        moments_of(case["inputs"]["t"]),
        moments_of(case["inputs"]["t1"]),
        tensor(case["inputs"]["dW"]),
    )
    printed = boltzmann.printed_difference(before, after)
    close(printed, case["expected"]["printed_dW1"])
    close(printed / dW, case["expected"]["printed_dW"])
    close(boltzmann.product_rule_difference(before, after), case["expected"]["exact_rule_dW1"])
    assert (printed - boltzmann.product_rule_difference(before, after)).abs().max() > 1e-3


def test_moving_average_equals_the_case(cases):
    case = cases("boltzmann")["moving_penalty"]
    triples = [moments_of(triple) for triple in case["inputs"]["triples"]]
    for rule, key in (("printed", "printed"), ("product", "exact_rule")):
        penalty = PaperPenalty(case["inputs"]["window"], rule=rule)
        for triple in triples:
            out = penalty.update(triple)
        close(out, case["expected"][key])
    close(
        out, (triples[-1].covariance - triples[-4].covariance) / 3
    )  # the corrected rule telescopes


def test_paper_penalty_first_step_division_and_checks():
    case_like = Moments(tensor([0.5]), tensor([0.5]), tensor([[0.3]]))
    assert PaperPenalty().update(case_like).tolist() == [[0.0]]
    other = Moments(tensor([0.6]), tensor([0.4]), tensor([[0.35]]))
    one, half = PaperPenalty(), PaperPenalty()
    one.update(case_like), half.update(case_like)
    close(half.update(other, dW=tensor([[2.0]])), one.update(other) / 2)
    for window in (0, 2.5):
        with pytest.raises(ValueError, match="window: expected an integer >= 1"):
            PaperPenalty(window)
    with pytest.raises(ValueError, match="rule"):
        PaperPenalty(rule="other")
    with pytest.raises(ValueError, match="finite"):
        one.update(Moments(tensor([math.nan]), tensor([0.4]), tensor([[0.35]])))


def test_printed_rule_has_the_bias_minus_two_c_over_batch():
    """With frozen weights the true derivative is 0; Eq. 4 as printed gives -2 C / B on average."""
    rbm, batch = machine(3, 2, seed=6, scale=2.0), 10
    v, h, p, _ = reference.rbm_joint(rbm.W, rbm.a, rbm.b)
    C = boltzmann.model_moments(rbm).covariance
    generator, printed, product, n = (
        rng(7),
        torch.zeros(3, 2).double(),
        torch.zeros(3, 2).double(),
        8_000,
    )
    rows = torch.multinomial(p, batch * (n + 1), replacement=True, generator=generator).split(batch)
    moments = [boltzmann.sample_moments(v[r], h[r]) for r in rows]
    for before, after in itertools.pairwise(moments):
        printed += boltzmann.printed_difference(before, after) / n
        product += boltzmann.product_rule_difference(before, after) / n
    slope = float((printed * C).sum() / (C * C).sum())
    assert slope == pytest.approx(-2 / batch, rel=0.15)
    assert float((product * C).sum() / (C * C).sum()) == pytest.approx(0.0, abs=0.02)


def test_dropping_the_covariance_factor_is_another_objective():
    """Descending without the factor C lowers the sum of the covariances, not their squares."""
    rbm = machine(3, 2, seed=8, scale=0.5)
    with_factor = without = rbm
    for _ in range(150):
        with_factor = with_factor.moved(-1.0 * CovariancePenalty().gradient(with_factor))
        theta = without.W.clone().requires_grad_()
        (slope,) = torch.autograd.grad(
            reference.rbm_covariance(theta, without.a, without.b).sum(), theta
        )
        without = RBM(without.W - 1.0 * slope, without.a, without.b)
    start = float(CovariancePenalty().value(rbm))
    assert float(CovariancePenalty().value(with_factor)) < 0.8 * start
    assert float(CovariancePenalty().value(without)) > 2 * start
    assert float(boltzmann.model_moments(without).covariance.sum()) < 0


def test_controller_equals_the_case(cases):
    case = cases("boltzmann")["controller"]
    inputs = case["inputs"]
    for name, expected in case["expected"].items():
        v, p = (float(part.split("=")[1]) for part in name.split(","))
        for kind, signed in (("abs", False), ("signed", True)):
            controller = ThresholdController(
                v, p, gamma=inputs["gamma"], up=inputs["up"], down=inputs["down"], signed=signed
            )
            assert controller.exceeding(tensor(inputs["P"])) == pytest.approx(
                expected[f"fraction_{kind}"]
            )
            assert controller.update(tensor(inputs["P"])) == pytest.approx(
                expected[f"gamma_{kind}"]
            )


def test_controller_trims_and_checks():
    controller = ThresholdController(0.1, 0.5)
    for _ in range(300):
        high = controller.update(torch.ones(2, 2))
    for _ in range(300):
        low = controller.update(torch.zeros(2, 2))
    assert (high, low) == (1.0, 1e-5)
    assert len(boltzmann.THRESHOLDS) == 5 and len(boltzmann.FRACTIONS) == 7
    for bad in (
        {"fraction": 1.5},
        {"threshold": -1.0},
        {"up": 0.9},
        {"gamma": 0.0},
        {"gamma": 5.0},
        {"gamma": 1e-6},
        {"bounds": (1.0, 0.1)},
        {"bounds": (-1.0, 1.0)},
        {"bounds": (1e-5, math.inf)},
    ):
        with pytest.raises(ValueError):
            ThresholdController(**{"threshold": 0.1, "fraction": 0.5, **bad})
    with pytest.raises(ValueError, match="finite"):
        controller.update(torch.full((2, 2), math.nan))


# --- learned whitening ---


def test_whitened_direction_equals_the_case(cases):
    case = cases("boltzmann")["whitened_direction_4x3"]
    rbm, gradient = of_case(case), of_case(case).gradient(tensor(case["inputs"]["X"]))
    C, expected = boltzmann.covariances(rbm), case["expected"]
    close(C["vv"], expected["Cov_v"])
    close(C["hh"], expected["Cov_h"])
    direction = boltzmann.exact_whitened_direction(rbm, gradient, case["inputs"]["eps"])
    da, db, dW = direction.split([4, 3, 12])
    close(da, expected["da"], 1e-9)
    close(db, expected["db"], 1e-9)
    close(dW.reshape(4, 3), expected["dW"], 1e-9)
    natural = boltzmann.fisher_forms(rbm.fisher()).inverse @ gradient
    G = rbm.fisher()
    assert boltzmann.metric_cosine(G, direction, natural) == pytest.approx(
        expected["cos_G"], abs=1e-8
    )
    assert boltzmann.metric_cosine(G, gradient, natural) == pytest.approx(
        expected["cos_G_euclidean"], abs=1e-8
    )


def test_at_zero_weights_whitening_is_the_natural_gradient():
    rbm = machine(4, 3, seed=9)
    free, X = RBM(torch.zeros_like(rbm.W), rbm.a, rbm.b), binary(8, 4)
    natural = free.natural_gradient(X)
    close(boltzmann.exact_whitened_direction(free, free.gradient(X), 1e-12), natural, 1e-8)
    assert (boltzmann.centred_direction(free, free.gradient(X)) - natural).abs().max() > 0.1
    coupled = rbm.natural_gradient(X)
    assert (
        boltzmann.exact_whitened_direction(rbm, rbm.gradient(X), 1e-12) - coupled
    ).abs().max() > 0.01


def test_whitened_direction_is_the_gradient_of_the_reparametrized_energy():
    """Autograd through E = -a'x - b'y - x'W'y with x = A(v - mu), y = B(h - lambda), mapped back to
    (a, b, W).
    """
    rbm, X = machine(3, 2, seed=10), binary(8, 3)
    A = torch.randn(3, 3, generator=rng(1), dtype=torch.float64)
    B = torch.randn(2, 2, generator=rng(2), dtype=torch.float64)
    mu, lam = tensor([0.3, 0.6, 0.5]), tensor([0.4, 0.7])

    def canonical(white):
        a, b, W = white[:3], white[3:5], white[5:].reshape(3, 2)
        outer = A.mT @ W @ B
        return torch.cat([A.mT @ a - outer @ lam, B.mT @ b - outer.mT @ mu, outer.reshape(-1)])

    jacobian = torch.autograd.functional.jacobian(canonical, torch.zeros(11, dtype=torch.float64))
    expected = jacobian @ jacobian.mT @ rbm.gradient(X)
    close(
        boltzmann.whitened_direction(rbm.gradient(X), mu, lam, A.mT @ A, B.mT @ B), expected, 1e-10
    )
    uncentred = boltzmann.whitened_direction(rbm.gradient(X), 0 * mu, 0 * lam, A.mT @ A, B.mT @ B)
    assert (uncentred - expected).abs().max() > 0.01


def test_equivariant_steps_reach_the_ridge_inverse():
    C, eps = boltzmann.covariances(machine(5, 3, seed=11))["vv"], 0.01
    A = eye(5)
    for _ in range(1000):
        A = boltzmann.equivariant_step(A, C, 0.1, eps)
    close(A @ (C + eps * eye(5)) @ A.mT, eye(5), 1e-8)
    close(A.mT @ A, boltzmann.ridge_inverse(C, eps), 1e-6)
    assert (A.mT @ A - boltzmann.ridge_inverse(C, 2 * eps)).abs().max() > 0.1


@pytest.mark.parametrize(("scale", "rate"), [(1e-3, 0.5), (1.0, 0.5), (1e6, 0.5), (1e6, 50.0)])
def test_an_equivariant_step_is_divided_by_the_size_of_what_it_removes(scale, rate):
    sizes = scale * torch.tensor([1.0, 4.0], dtype=torch.float64)
    after = boltzmann.equivariant_step(eye(2), torch.diag(sizes), rate, 0.0)
    moved = rate * (sizes - 1) / (1 + rate * sizes[1])
    close(after.diagonal(), 1 - moved, 1e-6)
    assert (after.diagonal() > -1).all()  # however large the covariance


def test_learned_whitening_follows_samples_and_exact_moments():
    rbm, X = machine(4, 3, seed=12, scale=0.3), binary(8, 4)
    learned = boltzmann.LearnedWhitening(4, 3, rate=0.02)
    exact = boltzmann.LearnedWhitening(4, 3, rate=0.1)
    C, moments = boltzmann.covariances(rbm), boltzmann.model_moments(rbm)
    v = binary(400, 4, seed=1)
    for _ in range(1500):
        v, h = rbm.gibbs(v, 1, generator=rng(_))
        learned.update(v, h)
        exact.update_exact(moments, C["vv"], C["hh"])
    target = boltzmann.exact_whitened_direction(rbm, rbm.gradient(X), 0.01)
    close(exact.direction(rbm.gradient(X)), target, 1e-6)
    G = rbm.fisher()
    assert boltzmann.metric_cosine(G, learned.direction(rbm.gradient(X)), target) > 0.99
    assert boltzmann.metric_cosine(G, rbm.gradient(X), target) < 0.95


def test_whitening_stays_finite_where_a_unit_never_changes():
    learned = boltzmann.LearnedWhitening(3, 2, rate=0.1, eps=0.01)
    v, h = binary(100, 3) * tensor([1.0, 1.0, 0.0]), binary(100, 2, seed=1)
    for _ in range(2000):
        learned.update(v, h)
    assert torch.isfinite(learned.A).all() and float(learned.A.abs().max()) < 12


# --- classifiers ---


def test_classification_rbm_equals_the_case(cases):
    case = cases("boltzmann")["class_rbm"]
    W, U, b, d = (tensor(case["inputs"][key]) for key in ("W", "U", "b", "d"))
    classifier = boltzmann.ClassificationRBM(W, U, torch.zeros(3, dtype=torch.float64), b, d)
    X = tensor(case["inputs"]["X"])
    close(classifier.probabilities(X), case["expected"]["p"])
    assert torch.equal(classifier.predict(X), tensor(case["expected"]["p"]).argmax(1))
    assert classifier.error(X, classifier.predict(X)) == 0.0


def test_classification_rbm_equals_the_joint_machine():
    """p(y|x) by the free energy of (x, one-hot y); the pixel biases do not matter."""
    rbm, X = machine(6, 3, seed=13), binary(5, 4)
    classifier = boltzmann.ClassificationRBM.from_machine(rbm, 2)
    free = torch.stack(
        [rbm.free_energy(torch.cat([X, eye(2)[y].expand(5, 2)], 1)) for y in (0, 1)], 1
    )
    close(classifier.probabilities(X), torch.softmax(-free, 1))
    assert (classifier.probabilities(X) - torch.softmax(free, 1)).abs().max() > 0.05


def test_classification_rbm_learns():
    X, y = binary(200, 6, seed=2), torch.arange(200) % 3
    X[:, :3] = eye(3)[y]
    rbm = RBM.random(9, 8, generator=rng(3))
    for step in range(600):
        classifier = boltzmann.ClassificationRBM.from_machine(rbm, 3)
        rows = torch.randint(200, (50,), generator=rng(step))
        rbm = rbm.moved(0.2 * classifier.cd_gradient(X[rows], y[rows], generator=rng(1000 + step)))
    assert boltzmann.ClassificationRBM.from_machine(rbm, 3).error(X, y) < 0.1


def test_softmax_on_hidden_is_the_minimum():
    features, labels = (
        torch.rand(60, 4, generator=rng(4), dtype=torch.float64),
        torch.arange(60) % 3,
    )
    weights, bias = boltzmann.fit_softmax(features, labels, 3, l2=0.1)

    def gradient_norm(weights):
        probabilities = torch.softmax(features @ weights + bias, 1) - boltzmann.one_hot(labels, 3)
        return float((features.mT @ probabilities / 60 + 0.1 * weights).abs().max())

    assert gradient_norm(weights) < 1e-5 < gradient_norm(0.5 * weights)
    other, _ = boltzmann.fit_softmax(features, labels, 3, l2=1e-3)
    assert (other - weights).abs().max() > 0.01


def test_bad_labels_are_named():
    with pytest.raises(ValueError, match="minimum 0 and maximum 3"):
        boltzmann.one_hot(torch.tensor([0, 3]), 3)
    with pytest.raises(ValueError, match="integers"):
        boltzmann.one_hot(torch.tensor([0.0, 1.0]), 3)
    with pytest.raises(ValueError, match=r"expected \(n, 4\)"):
        boltzmann.ClassificationRBM.from_machine(machine(6, 3), 2).logits(binary(2, 5))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(5, 1, dtype=torch.long), r"integers \(5,\).*got torch.int64 \(5, 1\)"),
        (torch.zeros(4, dtype=torch.long), r"integers \(5,\).*got torch.int64 \(4,\)"),
        (torch.zeros(1, dtype=torch.long), r"integers \(5,\)"),
        (torch.zeros(5), "integers.*got torch.float32"),
        ([0, 1, 0, 1, 0], "a tensor of integers.*got list"),
        (torch.arange(5), "expected 0 to 1, got minimum 0 and maximum 4"),
    ],
)
def test_labels_that_do_not_fit_the_rows_are_named(labels, message):
    X, classifier = binary(5, 4), boltzmann.ClassificationRBM.from_machine(machine(6, 3), 2)
    for call in (
        classifier.error,
        classifier.cd_gradient,
        lambda x, y: boltzmann.fit_softmax(x, y, 2),
    ):
        with pytest.raises(ValueError, match=f"labels: expected .*{message}|labels: {message}"):
            call(X, labels)


@pytest.mark.parametrize("classes", [0, 6, 7, 2.0])
def test_a_number_of_classes_that_leaves_no_pixel_is_named(classes):
    with pytest.raises(ValueError, match="classes: expected an integer from 1 to 5"):
        boltzmann.ClassificationRBM.from_machine(machine(6, 4), classes)
