"""The linear Gaussian and the Boltzmann machine against brute force."""

import pytest
import torch

from natcompanion import reference
from natcompanion.metrics import energy_metric, gradient_second_moment
from natcompanion.models import BoltzmannMachine, LinearGaussian

M = torch.tensor([[3.0, 1 / 3], [1 / 3, 0.0]], dtype=torch.float64)


def tensor(x) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def close(got, expected) -> None:
    torch.testing.assert_close(got, tensor(expected), rtol=1e-8, atol=1e-10)


def test_linear_gaussian_cases(cases):
    case, model = cases("whitening"), LinearGaussian(M)
    close(model.fisher(), case["g2d_fisher"]["expected"]["G"])
    theta, zero = tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.float64)
    close(
        model.gradient(theta, tensor(case["g2d_gradient"]["inputs"]["mean_x"])),
        case["g2d_gradient"]["expected"]["grad_J"],
    )
    close(model.kl(theta, zero), case["g2d_kl"]["expected"]["kl"])
    close(model.path(theta, zero, lr=0.1, steps=5), case["g2d_sgd_path"]["expected"]["path"])
    inverse = torch.linalg.inv(model.fisher())
    natural = model.path(theta, zero, lr=0.1, steps=5, inverse_metric=inverse)
    close(natural, case["g2d_ng_path"]["expected"]["path"])
    close(model.data_fisher(theta, zero), case["g2d_data_fisher"]["expected"]["G_data"])


def test_fisher_of_section_1_2():
    expected = tensor([[9 + 1 / 9, 1.0], [1.0, 1 / 9]])
    assert float((LinearGaussian(M).fisher() - expected).abs().max()) < 1e-12


def test_boltzmann_cases(cases):
    for name in ("bm_eq33", "bm_mpf"):
        case = cases("whitening")[name]
        model = BoltzmannMachine(3)
        theta, x = tensor(case["inputs"]["theta"]), tensor(case["inputs"]["X"])
        p = model.empirical(x)
        if name == "bm_eq33":
            close(model.energy_metric(p), case["expected"]["G"])
            close(model.energy_metric(p, centred=True), case["expected"]["centred_version"])
            close(energy_metric(model.energy, theta, x), case["expected"]["G"])
            close(
                energy_metric(model.energy, theta, x, centred=True),
                case["expected"]["centred_version"],
            )
        else:
            close(model.mpf(theta, p), case["expected"]["K"])
            close(model.mpf_gradient(theta, p), case["expected"]["grad"])
            close(model.gradient(theta, p), case["expected"]["grad_ml"])


# ---- the linear Gaussian


def gauss_hermite(mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights that average polynomials up to degree 5 exactly over N(mean, I), in 2-D."""
    node, weight = tensor([-(3**0.5), 0.0, 3**0.5]), tensor([1 / 6, 2 / 3, 1 / 6])
    return torch.cartesian_prod(node, node) + mean, torch.outer(weight, weight).reshape(-1)


def test_linear_gaussian_against_quadrature():
    model, theta, mean = LinearGaussian(M), tensor([0.7, -1.2]), tensor([0.3, 0.4])
    x, weight = gauss_hermite(mean)

    def scores(nodes):
        return torch.func.vmap(torch.func.grad(model.log_prob), (None, 0))(theta, nodes)

    torch.testing.assert_close(model.nll(theta, mean), -(weight * model.log_prob(theta, x)).sum())
    torch.testing.assert_close(model.gradient(theta, mean), -(weight @ scores(x)))
    s = scores(x)
    torch.testing.assert_close(model.data_fisher(theta, mean), (s.mT * weight) @ s)
    own, own_weight = gauss_hermite(M @ theta)
    s = scores(own)
    torch.testing.assert_close(model.fisher(), (s.mT * own_weight) @ s)
    entropy = -(weight * LinearGaussian(torch.eye(2, dtype=torch.float64)).log_prob(mean, x)).sum()
    torch.testing.assert_close(model.kl(theta, mean), model.nll(theta, mean) - entropy)
    # Negative control: M M^T has the right shape and is not the Fisher matrix.
    assert not torch.allclose(
        LinearGaussian(tensor([[1.0, 2.0], [0.0, 1.0]])).fisher(), tensor([[5.0, 2.0], [2.0, 1.0]])
    )


def test_linear_gaussian_takes_batches_of_parameters():
    model, mean = LinearGaussian(M), tensor([0.3, 0.4])
    grid = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for method in (model.nll, model.kl, model.gradient, model.data_fisher):
        torch.testing.assert_close(method(grid, mean)[2, 1], method(grid[2, 1], mean))
    path = model.path(grid, mean, lr=0.1, steps=3, inverse_metric=torch.linalg.inv(model.fisher()))
    assert path.shape == (4, 4, 3, 2)
    single = model.path(
        grid[2, 1], mean, lr=0.1, steps=3, inverse_metric=torch.linalg.inv(model.fisher())
    )
    torch.testing.assert_close(path[:, 2, 1], single)


def test_linear_gaussian_refuses_bad_input():
    for bad in (
        torch.ones(2),
        torch.full((2, 2), float("nan")),
        torch.zeros(0, 2),
        torch.ones(2, 2).long(),
    ):
        with pytest.raises(ValueError, match="M: expected"):
            LinearGaussian(bad)
    model, good = LinearGaussian(M), torch.zeros(2, dtype=torch.float64)
    for bad in (
        torch.ones(3),
        torch.tensor([1.0, float("nan")]),
        torch.ones(0),
        torch.ones(2).long(),
    ):
        for method in (model.nll, model.kl, model.gradient, model.data_fisher):
            with pytest.raises(ValueError, match="theta: expected"):
                method(bad, good)
            with pytest.raises(ValueError, match="mean: expected"):
                method(good, bad)
    with pytest.raises(ValueError, match="x: expected"):
        model.log_prob(good, torch.ones(3))
    assert bool(model.log_prob(good, torch.full((2,), float("nan"))).isnan())
    for options in ({"lr": -1.0, "steps": 2}, {"lr": 0.1, "steps": -1}, {"lr": 0.1, "steps": 1.5}):
        with pytest.raises(ValueError, match="(lr|steps): expected"):
            model.path(good, good, **options)
    with pytest.raises(ValueError, match="inverse_metric: expected"):
        model.path(good, good, lr=0.1, steps=1, inverse_metric=torch.eye(3))


# ---- the Boltzmann machine


@pytest.fixture(params=["01", "pm1"])
def machine(request):
    """A machine of four units, random parameters, and a data distribution."""
    generator = torch.Generator().manual_seed(3)
    model = BoltzmannMachine(4, request.param)
    theta = torch.randn(10, generator=generator, dtype=torch.float64)
    x = model.states[torch.randint(16, (30,), generator=generator)]
    return model, theta, x, model.empirical(x)


def values(model) -> tuple[float, float]:
    return (0.0, 1.0) if model.units == "01" else (-1.0, 1.0)


def test_states_features_and_energy(machine):
    model, theta, x, p = machine
    assert torch.equal(model.states, reference.all_states(4, values(model)))
    assert model.parameters == 10
    x0 = model.states[11]
    a, b, c, d = x0.tolist()
    assert model.features(x0).tolist() == [a * b, a * c, a * d, b * c, b * d, c * d, a, b, c, d]
    torch.testing.assert_close(model.energy(theta, x[0]), reference.pair_energy(theta, x[0]))
    counts = [(x == s).all(1).sum().item() / 30 for s in model.states]
    torch.testing.assert_close(p, tensor(counts))


def test_distribution_and_likelihood(machine):
    model, theta, x, p = machine
    q = reference.boltzmann_probabilities(theta, model.states)
    torch.testing.assert_close(model.distribution(theta), q)
    torch.testing.assert_close(model.log_prob(theta, model.states), q.log())
    Z = sum(torch.exp(-reference.pair_energy(theta, s)) for s in model.states)
    torch.testing.assert_close(model.log_partition(theta), Z.log())
    torch.testing.assert_close(model.nll(theta, p), -model.log_prob(theta, x).mean())
    kl = sum(p_s * (p_s / q_s).log() for p_s, q_s in zip(p, q, strict=True) if p_s > 0)
    torch.testing.assert_close(model.kl(theta, p), kl)
    assert float(model.kl(theta, q)) == pytest.approx(0, abs=1e-12)


def test_gradients_against_autograd(machine):
    model, theta, x, p = machine
    ml = torch.func.grad(model.nll)(theta, p)
    torch.testing.assert_close(model.gradient(theta, p), ml)
    torch.testing.assert_close(
        model.mpf(theta, p), reference.minimum_probability_flow(theta, x, values(model))
    )
    mpf = torch.func.grad(model.mpf)(theta, p)
    torch.testing.assert_close(model.mpf_gradient(theta, p), mpf)
    assert not torch.allclose(ml, mpf, rtol=0.1)


def test_contrastive_divergence_against_the_transition_matrix(machine):
    model, theta, _, p = machine
    T = reference.gibbs_matrix(theta, model.states)
    torch.testing.assert_close(model.gibbs(theta, p), p @ T)
    q = model.distribution(theta)
    torch.testing.assert_close(model.gibbs(theta, q), q)  # the model is stationary
    features = model.features(model.states)
    for k in (1, 3):
        expected = (p @ torch.linalg.matrix_power(T, k) - p) @ features
        torch.testing.assert_close(model.cd_gradient(theta, p, k), expected)
    torch.testing.assert_close(
        model.cd_gradient(theta, p, 200), model.gradient(theta, p), rtol=1e-3, atol=1e-3
    )
    assert not torch.allclose(p @ T.mT, p @ T, rtol=1e-2)


def test_metrics_against_sums_over_states(machine):
    model, theta, x, p = machine
    q = model.distribution(theta)
    scores = torch.func.vmap(torch.func.grad(model.log_prob), (None, 0))(theta, model.states)
    fisher = sum(q_s * torch.outer(g, g) for q_s, g in zip(q, scores, strict=True))
    torch.testing.assert_close(model.fisher(theta), fisher)
    torch.testing.assert_close(
        model.fisher(theta), torch.autograd.functional.hessian(model.log_partition, theta)
    )
    data_fisher = sum(p_s * torch.outer(g, g) for p_s, g in zip(p, scores, strict=True))
    torch.testing.assert_close(model.data_fisher(theta, p), data_fisher)
    torch.testing.assert_close(
        model.data_fisher(theta, p), gradient_second_moment(model.log_prob, theta, x)
    )
    torch.testing.assert_close(model.energy_metric(p), energy_metric(model.energy, theta, x))
    centred = energy_metric(model.energy, theta, x, centred=True)
    torch.testing.assert_close(model.energy_metric(p, centred=True), centred)
    # The scale: KL to a neighbour is half the squared length of the step.
    step = 1e-4 * torch.linspace(-1, 1, 10, dtype=torch.float64)
    assert float(model.kl(theta + step, q)) == pytest.approx(
        0.5 * float(step @ fisher @ step), rel=1e-3
    )
    # The four metrics differ.
    metrics = [fisher, data_fisher, model.energy_metric(p), centred]
    assert all(
        not torch.allclose(a, b, rtol=1e-2) for i, a in enumerate(metrics) for b in metrics[:i]
    )


def test_batches_of_parameters_and_distributions(machine):
    model, theta, _, p = machine
    thetas = torch.stack([theta, 0.5 * theta, -theta])
    ps = torch.stack([p, model.distribution(theta), torch.full_like(p, 1 / 16)])
    for method in (
        model.nll,
        model.kl,
        model.gradient,
        model.mpf,
        model.mpf_gradient,
        model.gibbs,
        model.cd_gradient,
        model.data_fisher,
    ):
        for batch, single in (
            (method(thetas, ps)[1], method(thetas[1], ps[1])),
            (method(thetas, p)[2], method(thetas[2], p)),
        ):
            torch.testing.assert_close(batch, single)
    torch.testing.assert_close(model.fisher(thetas)[2], model.fisher(thetas[2]))
    torch.testing.assert_close(
        model.energy_metric(ps, centred=True)[1], model.energy_metric(ps[1], centred=True)
    )


def test_sampling(machine):
    model, theta, _, _ = machine
    x = model.sample(theta, 20_000, generator=torch.Generator().manual_seed(0))
    again = model.sample(theta, 20_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(x, again)
    assert float((model.empirical(x) - model.distribution(theta)).abs().max()) < 0.02


def test_strong_couplings_do_not_overflow():
    model = BoltzmannMachine(3, dtype=torch.float32)
    theta = 1e4 * torch.ones(6)
    p = model.distribution(theta)
    assert p.dtype == torch.float32
    for result in (
        p,
        model.nll(theta, p),
        model.gradient(theta, p),
        model.fisher(theta),
        model.cd_gradient(theta, p),
    ):
        assert bool(result.isfinite().all())


def test_sixteen_units_are_the_most():
    for n in (0, -1, 17, 40, 2.0):
        with pytest.raises(ValueError, match="n: expected 1 to 16 units"):
            BoltzmannMachine(n)
    with pytest.raises(ValueError, match="units: expected"):
        BoltzmannMachine(3, "ising")
    model = BoltzmannMachine(1)
    assert model.fisher(torch.zeros(1, dtype=torch.float64)).item() == 0.25


def test_boltzmann_machine_refuses_bad_input():
    model = BoltzmannMachine(2)
    theta, p = torch.zeros(3, dtype=torch.float64), torch.full((4,), 0.25, dtype=torch.float64)
    methods = (
        model.nll,
        model.kl,
        model.gradient,
        model.mpf,
        model.mpf_gradient,
        model.gibbs,
        model.cd_gradient,
        model.data_fisher,
    )
    for method in methods:
        for bad in (
            torch.zeros(4),
            torch.tensor([0.0, 0.0, float("nan")]),
            torch.zeros(0),
            torch.zeros(3).long(),
        ):
            with pytest.raises(ValueError, match="theta: expected"):
                method(bad, p)
        for bad in (
            torch.ones(4),
            torch.tensor([2.0, -1.0, 0.0, 0.0]),
            torch.full((4,), float("nan")),
            torch.ones(3) / 3,
        ):
            with pytest.raises(ValueError, match="p: expected"):
                method(theta, bad)
    for bad in (
        torch.ones(2),
        torch.ones(2, 3),
        torch.ones(0, 2),
        torch.ones(2, 2).long(),
        torch.full((2, 2), float("nan")),
    ):
        with pytest.raises(ValueError, match="x: expected"):
            model.empirical(bad)
    with pytest.raises(ValueError, match="x: expected only 0 and 1 .* got values from 0 to 255"):
        model.empirical(torch.tensor([[0.0, 255.0]]))
    with pytest.raises(ValueError, match="x: expected only -1 and 1"):
        BoltzmannMachine(2, "pm1").empirical(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="x: expected"):
        model.features(torch.ones(3))
    with pytest.raises(ValueError, match="k: expected"):
        model.cd_gradient(theta, p, 0)
    assert bool(model.energy(theta, torch.full((2,), float("nan"), dtype=torch.float64)).isnan())
