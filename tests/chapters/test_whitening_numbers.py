"""The numbers of the whitening chapter, on records made by hand and values computed by hand."""

import math

import numpy as np
import pytest
import torch

from natcompanion.chapters import ledger, numbers
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.experiments import store as records
from natcompanion.chapters.numbers import whitening
from natcompanion.chapters.numbers.whitening import _read
from natcompanion.chapters.numbers.whitening import rivals as whitening_rivals
from natcompanion.chapters.statistics import interval, share_of_pairs
from natcompanion.data import mnist


def put(folder, name, preset, seed, settings, values):
    """Store a record made by hand."""
    record = records.Result(
        experiment=f"whitening_{name}",
        preset=preset,
        seed=seed,
        settings=settings,
        values=values,
        device="cpu",
        threads=1,
        seconds=1.0,
        commit=None,
        versions={},
    )
    records.merge(record, folder)


@pytest.fixture
def store(tmp_path):
    """Read hand-made records: ``store(name, values, **settings)`` adds one, with the next seed."""
    seeds = {}

    def add(name, values, **settings):
        key = (name, str(settings))
        seed = seeds[key] = seeds.get(key, -1) + 1
        put(tmp_path, name, "quick", seed, settings, values)

    with numbers.results(tmp_path):
        yield add


def cells(table):
    """Return the rows of a table, each without its first cell, by that cell."""
    return {row[0]: row[1:] for row in table.rows}


# ---- reading


def test_a_setting_is_shown_as_decimals_and_must_be_shared(store):
    store("digit_pairs", {}, ridge=1e-5, target=0.01, n=6)
    store("digit_pairs", {}, ridge=1e-3, target=0.01, n=6)
    assert whitening.setting("digit_pairs", "target") == "0.01"
    assert whitening.setting("digit_pairs", "n") == 6
    with pytest.raises(ValueError, match="ridge has the values"):
        whitening.setting("digit_pairs", "ridge")
    assert whitening.count("digit_pairs") == 2
    assert whitening.count("digit_pairs", ridge=1e-3) == 1
    assert (whitening.ridge("weak"), whitening.ridge("strong")) == ("0.00001", "0.001")


def test_the_step_sizes_are_four_a_decade_from_a_thousandth_to_a_hundred():
    assert (whitening.lowest_rate(), whitening.highest_rate()) == ("0.001", "100")
    assert whitening.rates() == 4 * 5 + 1


def test_small_helpers():
    assert _read.positional(1000.0) == "1000" and _read.positional(3) == 3
    assert _read.whole(3.0) == 3 and isinstance(_read.whole(3.0), int)
    assert _read.whole(2.5) == 2.5 and _read.whole(None) is None
    assert _read.percent(0.285) == "28 %"


# ---- Sections 1.1 to 1.4


def test_the_first_steps_turn_along_the_valley():
    path, angle, length = whitening.first_steps()
    model = problems.example()
    expected, theta = [], torch.tensor([1.0, -1.0], dtype=torch.float64)
    for _ in range(6):
        expected.append(theta)
        theta = theta - 0.1 * model.gradient(theta, torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(path, torch.stack(expected))
    step = expected[2] - expected[1]
    assert float(length[1]) == pytest.approx(math.hypot(*step.tolist()))
    to_goal, moved = -expected[1].numpy(), step.numpy()
    cosine = to_goal @ moved / np.linalg.norm(to_goal) / np.linalg.norm(moved)
    assert float(angle[1]) == pytest.approx(math.degrees(math.acos(cosine)))
    assert whitening.steepest_angle() == float(angle.max()) > 85
    assert whitening.step_length(5) == float(length[5]) < float(length[0])
    table = cells(whitening.descent_table(path[:, 0], angle, length))
    assert list(table) == ["0", "1", "2", "3", "5"] and table["0"][0] == "1.00"


def figure1(store):
    rows = [
        {"rate": 0.1, "overtakes": 40, "plain 0.001": 2, "natural 0.001": 39}
        | {"plain 0.0001": 7833, "natural 0.0001": 50},
        {"rate": 0.2, "overtakes": 1, "plain 0.001": 29, "natural 0.001": 29}
        | {"plain 0.0001": 3917, "natural 0.0001": 24},
    ]
    for shift in (0, 10):
        values = {
            f"speedup_{n}": [2.0, 1.0 + shift, 0.5 + shift]
            for n in ("fisher", "data_fisher", "diagonal")
        }
        store("figure1", {"equal_rates": rows, **values})


def test_equal_steps(store):
    figure1(store)
    assert whitening.equal_steps("plain", 1e-4) == 7833
    assert whitening.equal_steps("natural", 1e-3, rate=0.2) == 29
    assert (whitening.overtakes(), whitening.overtakes(0.2)) == (40, 1)
    # behind, ahead; a tie is not ahead; ahead
    assert whitening.natural_first() == 2
    assert cells(whitening.equal_rates_table()) == {
        "0.1": ["2", "39", "7833", "50", "40"],
        "0.2": ["29", "29", "3917", "24", "1"],
    }


def test_the_start_of_the_paper_counts_once_and_a_tie_is_not_faster(store):
    figure1(store)
    assert whitening.example_speedups("fisher").tolist() == [2.0, 1.0, 0.5, 11.0, 10.5]
    assert whitening.example_faster("fisher").tolist() == [True, False, False, True, True]
    row = cells(whitening.example_table())["Fisher, Eq. 30"]
    assert row == ["2.00", "0.500", "11.0", "60 %"]
    assert "and 4 random" in whitening.example_table().caption


@pytest.mark.parametrize(
    "curve, text",
    [
        ([1.0, 1e-4, 9e-5, 0.0], "2 steps"),
        ([1.0, 0.5, 0.2], "never (in 2 steps)"),
        ([1.0, 1e-5, 2.0], "never, it diverges"),
        ([1.0, 0.5, 1.0], "never, it diverges"),
    ],
)
def test_steps_in_words(curve, text):
    assert whitening.steps_to(torch.tensor(curve, dtype=torch.float64)) == text


def test_closed_paths_are_those_of_the_loop():
    model, start = problems.example(), torch.tensor([1.0, -1.0], dtype=torch.float64)
    G, goal = model.fisher(), torch.zeros(2, dtype=torch.float64)
    paths = whitening.gaussian_paths(0.1, 0.3, start, torch.arange(4, dtype=torch.float64))
    inverses = {
        "steepest": torch.eye(2).double(),
        "natural": torch.linalg.inv(G),
        "eq35": torch.linalg.inv(G.mT @ G + 0.3 * torch.eye(2).double()) @ G.mT,
    }
    assert paths.keys() == inverses.keys()
    for name, inverse in inverses.items():
        loop = model.path(start, goal, lr=0.1, steps=3, inverse_metric=inverse)
        assert torch.allclose(paths[name], loop), name
    assert float(whitening.example_kl(start)) == pytest.approx(
        float(start @ G @ start) / 2  # the divergence is half the squared length under G
    )
    steps = whitening.example_steps(0.1, 0.01, start)
    assert (steps["steepest"], steps["natural"]) == ("7833 steps", "50 steps")
    assert whitening.example_steps(0.23, 0.01, start)["steepest"] == "never, it diverges"


def test_the_spectrum_of_the_example():
    table = cells(whitening.spectrum_table(torch.diag(torch.tensor([0.5, 4.0]).double())))
    assert [row[0] for row in table.values()] == ["0.500", "4.00", "8.00", "0.500"]


def test_samples_before_and_after():
    x, y = whitening.whitened("pca", 0.6)
    assert x.shape == (400, 2) and x.mean(0).abs().max() < 1e-12
    raw = torch.randn(400, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    second = 0.6 * raw[:, 0] + 0.8 * raw[:, 1]
    made = torch.stack([3 * raw[:, 0], second], 1)
    assert torch.allclose(x, made - made.mean(0))
    std = x.square().mean(0).sqrt()
    assert std[0] == pytest.approx(3, abs=0.2) and std[1] == pytest.approx(1, abs=0.1)
    assert float((x[:, 0] * x[:, 1]).mean() / std.prod()) == pytest.approx(0.6, abs=0.1)
    assert torch.allclose(whitening.covariance(y), torch.eye(2).double())
    gaps = np.linalg.norm((x - y).numpy(), axis=1)
    assert whitening.moved("pca", 0.6) == pytest.approx(math.sqrt((gaps**2).mean()))
    assert whitening.moved("zca", 0.6) < whitening.moved("pca", 0.6)


def test_covariance_has_the_divisor_n():
    x = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert whitening.covariance(x).tolist() == [[1.0, 2.0], [2.0, 4.0]]


def test_arrows_in_phi_point_at_the_goal_and_those_in_theta_do_not():
    theta, phi = whitening.grid_angles("theta"), whitening.grid_angles("phi")
    assert len(theta) == len(phi) == 120
    assert float(phi.max()) < 1e-10
    grid, fields = whitening.arrows()
    assert len(grid) == 121 and float(grid.abs().max()) == 1
    lengths = torch.stack([field.norm(dim=1) for field in fields.values()])
    assert torch.allclose(lengths, (grid.norm(dim=1) > 0).double().expand(2, -1))
    assert 44 < float(theta.median()) < 46 and 80 < float(theta.max()) <= 90
    # at (1, 0), the arrow is the first column of G
    G = problems.example().fisher()
    at_one = math.degrees(math.atan2(float(G[1, 0]), float(G[0, 0])))
    assert min(abs(float(angle) - at_one) for angle in theta) < 1e-9


def test_roots_are_named_and_judged_at_1e_12():
    table = cells(whitening.roots_table({"zca": 1e-13, "pca": 1e-12, "cholesky": 0.5}))
    assert table == {"symmetric": ["yes"], "principal components": ["no"], "Cholesky": ["no"]}


# ---- Section 2.6


def test_gains():
    lam = torch.tensor([2.0], dtype=torch.float64)
    assert float(whitening.regularized_gain(lam, 1.0)) == pytest.approx(2 / 5)
    assert float(whitening.damped_gain(lam, 1.0)) == pytest.approx(1 / 3)
    gains = whitening.example_gains(0.01)
    low, high = gains["eigenvalue"]
    assert low < high and gains["exact"] == pytest.approx([1 / low, 1 / high])
    assert gains["eq35"] == pytest.approx([low / (low**2 + 0.01), high / (high**2 + 0.01)])
    assert gains["damping"] == pytest.approx([1 / (low + 0.01), 1 / (high + 0.01)])


@pytest.mark.parametrize("eps", [1e-4, 0.01, 1.0])
def test_the_gain_of_eq_35_is_largest_at_the_root_of_eps(eps):
    lam = torch.logspace(-4, 2, 10_001, dtype=torch.float64)
    assert whitening.largest_gain(eps) == pytest.approx(
        float(whitening.regularized_gain(lam, eps).max()), rel=1e-5
    )


def test_solutions_are_named():
    solutions = [torch.tensor([k, 0.5]) for k in (1.0, 2.0, 3.0)]
    table = cells(whitening.solutions_table(*solutions))
    assert table == {
        "Eq. 35": ["1.00", "0.500"],
        "ridge on Eq. 36": ["2.00", "0.500"],
        "damping": ["3.00", "0.500"],
    }


def test_regularization(store):
    losses = [
        # unregularized explodes; Eq. 35 wins, ties, and wins where nothing explodes
        {"loss_plain": 0.1, "loss_inverse": 1e3, "loss_eq35": 1e-9, "loss_damping": 1e-8},
        {"loss_plain": 0.1, "loss_inverse": 1e5, "loss_eq35": 0.1, "loss_damping": 1.0},
        {"loss_plain": 0.1, "loss_inverse": 1.0, "loss_eq35": 1e-7, "loss_damping": 1e-7},
    ]
    for loss in losses:
        steps = [{"eps": 1e-5, "eq35": 7, "damping": 1}, {"eps": 0.01, "eq35": None, "damping": 9}]
        store(
            "regularization",
            {"steps": steps, "largest_gain_inverse": 1e5, **loss},
            eps=[1e-5, 0.01],
        )
    assert whitening.regularized_steps("damping") == 9
    assert whitening.regularized_steps("eq35") is None
    assert whitening.regularized_steps("eq35", 1e-5) == 7
    assert whitening.regularization_values() == 2
    assert cells(whitening.regularization_table()) == {"0.00001": ["7", "1"], "0.01": ["–", "9"]}
    assert whitening.eq35_tames().tolist() == [True, False, False]
    assert whitening.inverse_decades() == pytest.approx([5.0, 5.0, 5.0])
    assert cells(whitening.noisy_table()) == {
        "none": ["1e-1", "0"],
        "unregularized": ["1e5", "2"],
        "Eq. 35": ["1e-1", "0"],
        "damping": ["1e0", "0"],
    }
    assert "of 3 runs" in whitening.noisy_table().caption


def test_plain_tables():
    assert cells(whitening.one_step_table({0.5: 0.25, 2.1: 1.21})) == {
        "0.5": ["0.250"],
        "2.1": ["1.21"],
    }
    assert cells(whitening.conditions_table({"none": 20.0})) == {"none": ["20.0"]}


# ---- Boltzmann machines


def test_invariance(store):
    for scale in (1.0, 2.0, 4.0, 8.0):
        store(
            "invariance",
            {"linear_plain": 0.5 * scale, "linear_natural": 1e-16 * scale}
            | {"curved": [scale, 0.1 * scale, 0.01 * scale**2]},
            rates=[0.1, 0.01, 0.001],
        )
    assert (whitening.curved_gap(0.1), whitening.curved_gap(0.001)) == (1.0, 0.01)
    assert whitening.plain_gap() == 50
    assert whitening.linear_residuals() == pytest.approx([1e-16, 2e-16, 4e-16, 8e-16])
    # ratios .01, .02, .04, .08: their geometric mean is .01 * 2 ** 1.5
    assert whitening.curved_shrink().mean == pytest.approx(0.01 * 2**1.5)
    run = numbers.stored("whitening_invariance.quick").select(seed=0).records[0]
    assert cells(whitening.invariance_table(run)) == {
        "steepest descent, linear map": ["0.500"],
        "natural, θ = sinh ψ, step 0.1": ["1.00"],
        "natural, θ = sinh ψ, step 0.01": ["0.100"],
        "natural, θ = sinh ψ, step 0.001": ["0.0100"],
    }


def machines(store):
    """Four machines; the speed-up is base + machine in the first case, 1 (a tie) in all others
    but two.
    """
    for units, rule in CASES:
        for machine in range(4):
            values = {f"speedup_{name}": 1.0 for name in GUIDES}
            if (units, rule) == ("01", "ml"):
                values |= {"speedup_energy": 0.5 + machine, "speedup_block_diagonal": 1.5}
            if (units, rule) == ("pm1", "mpf"):
                values |= {"speedup_energy": 3.0 if machine == 3 else 0.25}
            curves = {name: [10.0 ** (machine - 1 - (k > 0)) for k in range(19)] for name in GUIDES}
            values["curves"] = {**curves, "plain": [1e-9] * 19}
            store("boltzmann", values, n=6, units=units, rule=rule, target=0.001)


CASES = [(units, rule) for units in ("01", "pm1") for rule in ("ml", "cd", "mpf")]
GUIDES = ("fisher", "data_fisher", "energy", "centred_energy", "diagonal", "block_diagonal")


def test_machines_by_case(store):
    machines(store)
    assert whitening.machines() == 4
    assert (whitening.machine_parameters(), whitening.machine_states()) == (21, 64)
    assert whitening.machine_speedup("energy", "01", "ml") == 2.0  # of .5, 1.5, 2.5, 3.5
    assert whitening.machine_range("energy", "01", "ml") == (0.5, 3.5)
    median = cells(whitening.machine_table())
    wins = cells(whitening.machine_wins_table())
    assert list(median) == list(wins) and len(median) == 6
    assert median["energy, Eq. 33"] == ["2.00", "1.00", "1.00", "1.00", "1.00", "0.250"]
    assert wins["energy, Eq. 33"] == ["3/4", "0/4", "0/4", "0/4", "0/4", "1/4"]
    assert whitening.machine_table().columns[1:4] == [
        "0/1 likelihood",
        "0/1 contrastive",
        "0/1 flow",
    ]
    assert whitening.machine_wins_table().columns[-1] == "±1 flow"


def test_a_machine_is_one_unit(store):
    machines(store)
    sixth = 1 / 6
    assert whitening.machines_accelerated("energy") == pytest.approx([0, sixth, sixth, 2 * sixth])
    likelihoods = whitening.machines_accelerated("energy", ("ml", "cd"))
    assert likelihoods == pytest.approx([0, 1 / 4] + [1 / 4] * 2)
    assert whitening.machines_accelerated("energy", ("mpf",)) == pytest.approx([0, 0, 0, 1 / 2])
    # threefold counts equality: 3.5 and 3 on the last machine only
    assert whitening.machines_threefold("energy") == pytest.approx([0, 0, 0, 2 * sixth])
    assert whitening.blocks_win() == pytest.approx([sixth] * 4)


def test_curves_are_geometric_means_with_a_floor(store):
    machines(store)
    first, second = whitening.curves("fisher", "01", "ml")[:2]
    assert (first.mean, first.n) == (pytest.approx(10**0.5), 4)  # of .1, 1, 10, 100
    assert second.mean == pytest.approx(10**-0.5)
    half = math.log(first.high / first.mean)
    deviation = math.log(10) * math.sqrt(5 / 3)  # of the logarithms
    assert half == pytest.approx(3.182446 * deviation / 2, rel=1e-6)
    floor = whitening.curves("plain", "01", "ml")
    assert floor[0].mean == pytest.approx(1e-3) and len(floor) == 19


# ---- digits


def test_spectra_of_the_digits():
    x, mean, cov = numbers.whitening.digit_covariance()
    assert x.untyped_storage().nbytes() == x.nbytes  # no view of all 5,000
    assert x.shape == (6, 784) and cov.shape == (784, 784)
    pixels = mnist(split="all", dtype=torch.float64)[0].flatten(1).numpy()
    assert np.allclose(cov, np.cov(pixels.T, bias=True)) and np.allclose(mean, pixels.mean(0))
    lam = whitening.digit_spectrum()
    assert float(lam.sum()) == pytest.approx(float(cov.trace())) and lam[0] > lam[100] > lam[200]
    y, after = whitening.whitened_digits("zca", 0.01)
    assert torch.allclose(after, (lam / (lam + 0.01)), atol=1e-8)
    assert abs(float(y.abs().max())) > float((x - mean).abs().max())
    counts = whitening.spectrum_counts("zca", 0.01)
    assert counts["above"] == int((lam > 0.01).sum()) == counts["white"]
    assert counts["zero"] == int((after < 1e-6).sum()) < int((after < 1e-2).sum())


def stale(store, speeds):
    """Speed-ups of a metric kept for 0 and 10 steps, and fresh, by problem; None never arrives."""
    for k, (never, ten) in enumerate(speeds):
        values = {f"{p}_speedup_hold_{h}": 1.0 for p in ("digits", "boltzmann") for h in (2, 5, 20)}
        values |= {"digits_speedup_hold_0": never, "boltzmann_speedup_hold_0": 7.0}
        values |= {"digits_speedup_hold_10": ten, "boltzmann_speedup_hold_10": 2.0}
        values |= {"digits_speedup_hold_1": 8.0, "boltzmann_speedup_hold_1": 5.0}
        values["digits_steps"] = {"hold_1": 4 + k, "plain": None if k else 30}
        store("stale_metric", values, target=1e-4, steps=2000)


def test_a_kept_metric(store):
    stale(store, [(0.5, 1.0), (1.0, 4.0), (2.0, 6.0), (4.0, 6.0)])
    assert whitening.held_speedup("digits", 0) == 1.5
    assert whitening.held_left("digits") == pytest.approx(100 * 5 / 8)
    assert whitening.held_left("boltzmann") == pytest.approx(40)
    # a tie is not a win: three pairs of digits and four machines
    assert whitening.held_faster(10) == [False, True, True, True] + [True] * 4
    assert whitening.held_wins() == "7 of the 8"
    # of four pairs one is slower, a tie is not
    assert whitening.held_slower() == 25
    assert whitening.held_half_as_fast() == [False, True, True, True] + [False] * 4
    assert whitening.fresh_steps() == 5.5  # of 4, 5, 6, 7
    assert whitening.held_missed() == "3 of the 4"
    table = cells(whitening.stale_table())
    assert list(table) == ["1", "2", "5", "10", "20", "all"]
    assert table["all"] == ["1.50", "7.00"] and table["10"] == ["5.00", "2.00"]


def test_coordinates(store):
    runs = [
        {"plain": 100, "rescaled": None, "whitened": None, "standardized": 40, "fisher": 3},
        {"plain": 300, "rescaled": None, "whitened": 200, "standardized": 20, "fisher": 4},
    ]
    for run in runs:
        speeds = {f"speedup_{n}": run["plain"] / (s or 5000) for n, s in run.items()}
        store("coordinates", {"steps": run, **speeds}, steps=5000)
    assert whitening.coordinate_steps("plain") == [100, 300]
    assert whitening.coordinate_steps("whitened") == [200, 5000]
    assert whitening.coordinate_middle("plain") == "200"
    assert whitening.coordinate_middle("fisher") == "3.5"
    # half of the runs never arrive: no median below the limit
    assert whitening.coordinate_middle("whitened") == "more than 5000"
    assert (whitening.coordinate_missed("whitened"), whitening.coordinate_missed("plain")) == (1, 0)
    assert whitening.coordinate_speedup("standardized") == pytest.approx((2.5 + 15) / 2)
    # geometric mean of .02 and .06; Student's t with one degree of freedom on logarithms
    middle, half = math.sqrt(0.02 * 0.06), 12.7062 * math.log(3) / 2
    low, high = (f"{middle * math.exp(sign * half):#.3g}" for sign in (-1, 1))
    assert whitening.coordinate_gain("rescaled").mean == pytest.approx(middle)
    # 100 / 5000 and 300 / 200: a mean of the ratios themselves would be 0.76
    assert whitening.coordinate_gain("whitened").mean == pytest.approx(math.sqrt(0.02 * 1.5))
    shown = whitening.coordinate_range("rescaled").split(" to ")
    assert [float(x) for x in shown] == pytest.approx([float(low), float(high)], rel=2e-2)
    table = cells(whitening.coordinate_table())
    assert "raw pixels" not in table and table["standardized"] == ["8.75"] and len(table) == 4


def test_pairs(store):
    pairs = [[0, 1], [0, 2], [1, 2], [3, 4]]
    for ridge, speeds in ((1e-5, [0.5, 1.0, 3.0, 4.0]), (1e-3, [0.5, 2.0, 1.0, 5.0])):
        for pair, speed in zip(pairs, speeds, strict=True):
            store(
                "digit_pairs",
                {"speedup_diagonal": speed, "speedup_fisher": 10 * speed, "pair": pair},
                ridge=ridge,
                target=0.01,
            )
    assert whitening.pairs() == 4 and whitening.pairs_target() == "1"
    assert whitening.pairs_improved("weak") == 2 and whitening.pairs_improved("strong") == 2
    assert cells(whitening.pairs_table()) == {
        "0.00001": ["2.00", "2/4", "20.0"],
        "0.001": ["1.50", "2/4", "15.0"],
    }
    # 0, 1/2, 1/2 and 1 of the ridges; five digits
    found = whitening.pairs_share("diagonal")
    assert found == share_of_pairs([0, 0.5, 0.5, 1], pairs) and (found.mean, found.n) == (0.5, 5)
    assert whitening.pairs_always("diagonal").tolist() == [False, False, False, True]
    assert whitening.pairs_always("fisher").tolist() == [True] * 4


def test_an_interval_over_digits_covers_the_share_and_one_over_pairs_does_not():
    """Ten digits with a random trait each; a pair is one of those that hold if its traits add to
    more than 0, which half of all pairs do.
    """
    pairs = [(a, b) for a in range(10) for b in range(a + 1, 10)]
    rng, covered = np.random.default_rng(0), np.zeros(2)
    for _ in range(300):
        trait = rng.standard_normal(10)
        holds = np.array([trait[a] + trait[b] > 0 for a, b in pairs])
        found = share_of_pairs(holds, pairs), interval(holds)
        covered += [each.low <= 0.5 <= each.high for each in found]
    assert covered[0] > 0.9 * 300 and covered[1] < 0.75 * 300


def test_lbfgs(store):
    evaluations = {
        1e-5: [(40, 50, None), (20, 30, None), (30, 30, 90)],
        1e-3: [(20, 10, 5), (20, 30, 7), (20, 20, 6)],
    }
    for ridge, runs in evaluations.items():
        for k, (theta, blind, scipy) in enumerate(runs):
            steps = {"theta": theta, "phi": theta, "renewed": 20, "blind": blind}
            steps |= {"theta_scipy": theta, "blind_scipy": scipy}
            values = {f"speedup_{w}": theta / (s or 1200) for w, s in steps.items()}
            values |= {f"reached_{w}": s is not None for w, s in steps.items()}
            excess = {"blind_scipy": 0.01 * (k + 1)}
            values["pair"] = [2 * k, 2 * k + 1]
            store("lbfgs", {"evaluations": steps, "excess": excess, **values}, ridge=ridge)
        store("digit_pairs", {"speedup_diagonal": 1.0}, ridge=ridge)
    assert whitening.lbfgs_evaluations("theta") == 30
    assert whitening.lbfgs_evaluations("blind_scipy") is None  # one of three arrives
    assert whitening.lbfgs_evaluations("blind_scipy", "strong") == 6
    assert whitening.lbfgs_reached("blind_scipy") == "1/3"
    assert whitening.lbfgs_reached("blind_scipy", "strong") == "3/3"
    assert whitening.blind_stops() == pytest.approx(2)
    # slower, slower, a tie; faster, slower, a tie
    assert whitening.blind_slower("weak").tolist() == [True, True, False]
    assert whitening.blind_slower("strong").tolist() == [False, True, False]
    assert whitening.blind_slower_pairs() == "1 of 3"
    assert whitening.blind_share("weak").mean == pytest.approx(2 / 3)
    assert whitening.lbfgs_faster("blind", "strong").tolist() == [True, False, False]
    assert whitening.blind_fails().tolist() == [True, True, False]
    # with the weak ridge 40, 20, 30 against 20 (a tie in the second); with the strong one ties
    assert whitening.lbfgs_faster("renewed", "weak").tolist() == [True, False, True]
    assert whitening.renewed_share().mean == pytest.approx(1 / 3)
    table = cells(whitening.lbfgs_table())
    assert table["passed blindly, scipy"] == ["1/3", "–", "3/3", "6"]
    assert table["in θ"] == ["3/3", "30", "3/3", "20"]
    assert whitening.lbfgs_table().columns[3] == "reached, ridge 0.001"


def test_all_distributions_of_the_inputs_must_help(store):
    for speeds in ((2, 3, 4), (2, 1, 4), (2, 3, 0.5), (1, 2, 2)):
        names = ("fisher", "gaussian", "isotropic")
        store("input_distribution", {f"speedup_{n}": s for n, s in zip(names, speeds, strict=True)})
    assert whitening.inputs_always().tolist() == [True, False, False, False]


# ---- other recipes


def test_fits(store):
    for noise, runs in ((0.0, [(10, None), (20, 5)]), (0.1, [(None, 4), (30, 30)])):
        for plain, eq41 in runs:
            steps = {"plain": plain, "eq39": None, "eq41": eq41}
            capped = {n: s or 2000 for n, s in steps.items()}
            values = {f"speedup_{n}": capped["plain"] / capped[n] for n in steps}
            store("curve_fit", {"steps": steps, **values}, noise=noise, n=50, steps=2000)
    assert whitening.fits() == 2
    assert whitening.fit_reached("eq41", 0.0) == "1/2" and whitening.fit_steps("eq41", 0.0) is None
    assert whitening.fit_reached("eq41", 0.1) == "2/2" and whitening.fit_steps("eq41", 0.1) == 17
    assert whitening.fits_accelerated("eq41").tolist() == [0.5, 0.5]  # 500 times; 4 times, a tie
    assert whitening.fits_accelerated("eq39").tolist() == [0, 0]
    # 10 steps against never, 20 against 5; never against 4, 30 against 30
    assert whitening.fits_faster("eq41", 0.0).tolist() == [False, True]
    assert whitening.fits_faster("eq41", 0.1).tolist() == [True, False]
    table = cells(whitening.curve_fit_table())
    assert table["Eq. 39"] == ["0/2", "–", "0/2", "–"]
    assert table["steepest descent"] == ["2/2", "15", "1/2", "–"]


def separations(store):
    for condition, runs in (
        (1.0, [(9, 9)] * 2),
        (10.0, [(90, 30), (80, 4)]),
        (100.0, [(None, 500), (None, 10)]),
    ):
        for plain, relative in runs:
            residual = 1e-12 if condition == 10 else 1e-10
            store(
                "separation",
                {
                    "steps": {"plain": plain, "relative": relative},
                    "speedup_relative": (plain or 1000) / relative,
                    "equivariance_plain": 4e-16 if condition == 1 else 0.25,
                    "equivariance_relative": residual,
                },
                condition=condition,
                steps=1000,
            )


def test_separation(store):
    separations(store)
    assert whitening.separated(100.0, "plain") == "0/2"
    assert whitening.separated(100.0, "relative") == "2/2"
    # threefold exactly, twentyfold; twofold, a hundredfold
    assert whitening.threefold(10.0).tolist() == [True, True]
    assert whitening.threefold(10.0, 100.0).tolist() == [False, True]
    assert whitening.threefold(1.0).tolist() == [False, False]
    assert whitening.separation_residuals().tolist() == [1e-10, 1e-10]
    assert cells(whitening.separation_table()) == {
        "1": ["2/2", "2/2", "1.00", "0", "no"],
        "10": ["2/2", "2/2", "11.5", "0.250", "yes"],
        "100": ["0/2", "2/2", "51.0", "0.250", "no"],
    }
    assert "1000 steps" in whitening.separation_table().caption


def test_photographs_are_separated_at_the_best_step_size_of_the_grid():
    mixed, recovered, error, rate = whitening.unmixed(10.0, True)
    assert mixed.shape == recovered.shape == (3, 48 * 48)
    assert mixed.mean(1).abs().max() < 1e-4 > recovered.mean(1).abs().max()  # grey is in the middle
    assert error < 0.01 < whitening.unmixed(10.0, False)[2]
    assert 0.01 <= rate <= 2 and error < whitening.unmixed(10.0, True, steps=3)[2]
    images = problems.photographs(48).flatten(1)
    correlation = np.corrcoef(np.vstack([images, recovered]))[:3, 3:]
    assert (correlation.max(1) > 0.99).all()  # each photograph, with its sign


def guesses(store):
    for first in (0.5, 1.0):
        speeds = {f"speedup_{n}": [first, 2.0, 20.0] for n in GUESSES}
        store("wrong_metric", {**speeds, "downhill": [True, first == 1.0]}, problems=3)


GUESSES = (
    *("exact", "noise_001", "noise_01", "noise_03", "noise_1"),
    *("samples_80", "samples_16", "diagonal", "random"),
)


def test_guesses(store):
    guesses(store)
    assert whitening.quadratics() == 6
    assert whitening.guess_middle("random") == 2.0
    assert whitening.guess_slower("random").sum() == 1  # a tie is neither
    assert whitening.guess_faster("random").sum() == 4
    assert whitening.guess_worse("random") == pytest.approx(100 / 6)
    assert whitening.downhill().tolist() == [True, False, True, True]
    assert whitening.downhill_cases() == "3 of the 4"
    table = cells(whitening.guesses_table())
    assert len(table) == 9 and table["random matrix"] == ["2.00", "17 %"]


def test_tenfold_counts_ten(store):
    store("wrong_metric", {"speedup_random": [9.9, 10.0, 10.1]})
    assert whitening.guess_tenfold("random").tolist() == [False, True, True]


# ---- what names them


def test_every_claim_names_a_function_here_and_keeps_its_verdict():
    claims = [c for c in ledger.load("claims", "whitening") if c.experiment]
    assert len(claims) > 30
    for claim in claims:
        assert callable(getattr(whitening, numbers.call(claim.measure)[0])), claim.id
        assert ledger.verdict(claim) == claim.verdict, claim.id


# ---- today's rivals


def races(store, tmp_path, late=None):
    """Store searches and reports of which the arithmetic is seen at a glance."""
    scale = {"natural": 10, "whitened": 0.5, "adamw": 2}
    for problem in whitening_rivals.PROBLEMS:
        for method in whitening_rivals._methods(problem):
            for (lr, momentum), tuned in {
                (0.1, 0.9): [40, 10],
                (0.1, 0.0): [16, 36],
                (1.0, 0.9): [2, None],
            }.items():
                for preset, steps in (("tuning", tuned), ("chapter", [60, 30, None])):
                    if preset == "chapter" and tuned[0] != 40:  # only the chosen is reported
                        continue
                    for seed, arrival in enumerate(steps):
                        settings = {"problem": problem, "method": method}
                        arrival = None if preset == "chapter" and method == late else arrival
                        by = scale.get(method, 1)
                        point = settings | {"lr": lr, "momentum": momentum}
                        values = {
                            "steps_to_target": arrival and arrival / by,
                            "seconds_to_target": arrival and arrival * by,
                        }
                        put(tmp_path, "rivals", preset, seed, point, values)


def test_the_search_decides_and_momentum_is_everybodys(store, tmp_path):
    races(store, tmp_path)
    found = whitening.chosen("digits", "sgd")  # sqrt(40 * 10) = 20 is less than sqrt(16 * 36) = 24
    assert found.settings == {"lr": 0.1, "momentum": 0.9} and found.searched == 3
    assert whitening.first_order("digits") == "adamw"
    assert whitening.first_order("digits", "seconds_to_target") == "sgd"
    assert whitening.rival_median("machine", "natural") == 6.0  # of 6, 3 and never
    assert whitening.ahead("digits", "natural").tolist() == [True, True, False]
    assert whitening.ahead("digits", "whitened").tolist() == [False, False, False]
    assert whitening.ahead_of("separation", "natural") == "2 of 3"
    assert whitening.rival_times("digits", "natural") == "5"  # AdamW's 30 by 6
    table = whitening.rivals_table()
    assert "3 seeds" in table.caption and "best of 3 pairs" in table.caption
    assert whitening_rivals.search_seeds("digits") == 2 and "on 2 other seeds" in table.caption
    rows = [row for row in table.rows if row[0] == "three photographs"]
    assert [row[1] for row in rows] == [
        "SGD with momentum",
        "AdamW",
        "Muon",
        "relative gradient",
    ]
    assert rows[0][2:] == ["0.1", "0.9", "2 of 3", "60", "60.0"]
    assert len(table.rows) == 12


def test_a_method_that_never_arrives_has_no_ratio(store, tmp_path):
    races(store, tmp_path, late="natural")
    with pytest.raises(ValueError, match="half of the runs never arrive"):
        whitening.rival_times("digits", "natural")
    assert whitening.ahead("digits", "natural").tolist() == [False, False, False]
