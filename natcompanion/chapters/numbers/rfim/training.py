"""Section 5.2: RNGD against SGD, Adam and batch normalization (Figure 5), and what it costs."""

import math
from collections.abc import Sequence

import numpy as np

from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.searching import Choice, choice
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, best, interval, ratio_interval

TRAINERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "sgd_bna": "SGD, BNA",
    "sgd_bnb": "SGD, BNB",
    "adam_bna": "Adam, BNA",
    "adam_bnb": "Adam, BNB",
    "rngd": "RNGD",
    "fast": "RNGD, T = 20",
}
"""The methods of Figure 5, by the names that they have in the records."""

PLAIN = ("sgd", "adam")
NORMALIZED = ("sgd_bna", "sgd_bnb", "adam_bna", "adam_bnb")

# ---- Runs at the chosen step sizes


def chosen(data: str, method: str) -> Choice:
    """The step size with the least mean cost over the last tenth of the training, found on the
    tuning seeds; of ties the least. One that diverges there is not chosen.
    """
    return choice(stored(f"rfim_figure5.{data}_tuning"), method, _finite_end, ("rate",))


def _finite_end(record: Result) -> float | None:
    end = record["sharp_mean"][_last_tenth(record)]
    return end if math.isfinite(end) else None


def _last_tenth(record: Result) -> int:
    """Return the place of the last tenth, the largest share, in a record's sharp ratios."""
    shares = record.settings["taus"]
    return shares.index(max(shares))


def trained(data: str, method: str) -> Results:
    """The reported runs of a method, at the step size that the search chose."""
    runs = stored(f"rfim_figure5.{data}")
    return runs.select(method=method, **chosen(data, method).settings)


def methods(data: str, among: Sequence[str] = tuple(TRAINERS)) -> list[str]:
    """The methods that were trained on these data, in the order of the tables."""
    present = {record.settings["method"] for record in stored(f"rfim_figure5.{data}")}
    return [name for name in among if name in present]


def rate(data: str, method: str) -> float:
    """The step size that the search chose."""
    return chosen(data, method).settings["rate"]


def searched(data: str) -> int:
    """Number of step sizes that every method tried."""
    (count,) = {chosen(data, method).searched for method in methods(data)}
    return count


def tuning_seeds(data: str) -> int:
    """Number of seeds on which every step size was tried."""
    return len({record.seed for record in stored(f"rfim_figure5.{data}_tuning")})


def at_an_edge(data: str) -> str:
    """The methods whose chosen step size is the least or the greatest that was tried."""
    found = [TRAINERS[name] for name in methods(data) if chosen(data, name).edges]
    return ", ".join(found) or "none"


def sharp(data: str, method: str, key: str = "mean") -> np.ndarray:
    """Mean or std of the mini-batch costs over the last tenth of the training, for each seed."""
    runs = trained(data, method)
    return runs.values(f"sharp_{key}")[:, _last_tenth(runs.records[0])]


def test_error(data: str, method: str) -> float:
    """Percentage of errors on the test images at the end, mean of the seeds."""
    return float(trained(data, method).values("test_error")[:, -1].mean())


def sharp_table(data: str) -> Table:
    """Step size, sharp ratio and test error of each method."""
    rows = []
    for name in methods(data):
        mean, std = (float(sharp(data, name, key).mean()) for key in ("mean", "std"))
        error = f"{test_error(data, name):.1f} %"
        rows.append([TRAINERS[name], f"{rate(data, name):g}", mean, std, error])
    caption = {
        "digits": "4,000 digits: mean and standard deviation of the mini-batch cost over the last"
        " tenth of the training (the paper's τ-sharp ratio, τ = 0.1), and test error at the end;"
        " means over the seeds.",
        "fashion": "The same for the 55,000 images of Fashion-MNIST, four epochs.",
    }
    return Table(["method", "step size", "mean", "std", "test error"], rows, caption[data])


# ---- Curves


def iterations(data: str, method: str) -> np.ndarray:
    """The iteration at which each point of a method's curve ends."""
    record = trained(data, method).records[0]
    return record.settings["smooth"] * (np.arange(len(record["curve"])) + 1)


def curve(data: str, method: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Geometric mean, least and largest cost over the seeds, each mean of 10 mini-batches."""
    costs = np.clip(trained(data, method).values("curve").astype(float), 1e-6, 10)
    return np.exp(np.log(costs).mean(0)), costs.min(0), costs.max(0)


def steps(data: str) -> int:
    """Number of iterations of a run."""
    return int(iterations(data, "sgd")[-1])


def seeds(data: str) -> int:
    """Number of seeds of a method."""
    return len(trained(data, "rngd"))


def cost(data: str, method: str, iteration: float = math.inf) -> float:
    """Geometric mean over the seeds of the last point of the curve that ends by an iteration."""
    done = int((iterations(data, method) <= iteration).sum())
    return float(curve(data, method)[0][max(done, 1) - 1])


def normalized(data: str) -> str:
    """The batch normalization with the least cost at the end."""
    return best((name, cost(data, name)) for name in methods(data, NORMALIZED))


def normalized_cost(data: str, iteration: float = math.inf) -> float:
    """Cost of the best batch normalization."""
    return cost(data, normalized(data), iteration)


# ---- Time


def milliseconds(data: str, method: str) -> float:
    """Processor time of an iteration: the least over the seeds, because other work on the machine
    only adds.
    """
    return float(trained(data, method).values("milliseconds").min())


def time_ratio(data: str, method: str) -> float:
    """Processor time of an iteration in the training runs, in units of SGD's."""
    return milliseconds(data, method) / milliseconds(data, "sgd")


def reached(data: str, method: str) -> int:
    """Iterations that a method has done when SGD has done all of its."""
    return int(steps(data) / time_ratio(data, method))


def budget_cost(data: str, method: str) -> float:
    """Cost when SGD has done all its iterations."""
    return cost(data, method, steps(data) / time_ratio(data, method))


def normalized_budget_cost(data: str) -> float:
    """Cost of the best batch normalization when SGD has done all its iterations."""
    return budget_cost(data, normalized(data))


STEPS = {
    "sgd": "SGD",
    "adam": "Adam",
    "sgd_bna": "SGD, BNA",
    "sgd_bnb": "SGD, BNB",
    "rngd": "RNGD, T = 100",
    "rngd_every_batch": "the same, statistics of every batch",
    "rngd_each_step": "RNGD, T = 1",
}


def _step_ratios(way: str) -> np.ndarray:
    runs = stored("rfim_step_time.quick")
    return runs.values(way) / runs.values("sgd")


def step_time_interval(way: str) -> Interval:
    """Processor time of an iteration in units of SGD's, geometric mean of the repetitions with its
    interval.
    """
    return ratio_interval(_step_ratios(way))


def step_time(way: str) -> float:
    """The same without the interval."""
    return step_time_interval(way).mean


def step_table() -> Table:
    """Processor time of an iteration by way of training."""
    return Table(
        ["way of training", "times SGD"],
        [[text, step_time(way)] for way, text in STEPS.items()],
        "Processor time of an iteration, in units of that of SGD: one thread, batch 100, amortized"
        " over a period; geometric means.",
    )


def epoch_seconds(way: str) -> Interval:
    """Seconds of 550 iterations by a way of training."""
    return interval(550 * stored("rfim_step_time.quick").values(way) / 1000)


# ---- Claims


def cost_ratio(data: str, method: str, rivals: Sequence[str]) -> Interval:
    """A method's mean cost over the last tenth, over the least of the rivals' in each seed."""
    least = np.min([sharp(data, rival) for rival in rivals], axis=0)
    return ratio_interval(sharp(data, method) / least)


def against_sgd() -> Interval:
    """RNGD against plain SGD on digits."""
    return cost_ratio("digits", "rngd", ("sgd",))


def against_adam() -> Interval:
    """RNGD against plain Adam on digits."""
    return cost_ratio("digits", "rngd", ("adam",))


def against_normalized() -> Interval:
    """RNGD against batch normalization on digits."""
    return cost_ratio("digits", "rngd", NORMALIZED)


def fast_against_all() -> Interval:
    """RNGD with the shorter memory against all six others on digits."""
    return cost_ratio("digits", "fast", (*PLAIN, *NORMALIZED))


def fashion_against_all() -> Interval:
    """RNGD against all others on Fashion-MNIST."""
    return cost_ratio("fashion", "rngd", methods("fashion", (*PLAIN, *NORMALIZED)))


def sharp_wins() -> np.ndarray:
    """Share of the comparisons of mean and std with six methods that RNGD wins, for each seed."""
    rivals = (*PLAIN, *NORMALIZED)
    won = [
        sharp("digits", "rngd", key) < sharp("digits", rival, key)
        for key in ("mean", "std")
        for rival in rivals
    ]
    return np.mean(won, axis=0)


def variation(data: str, method: str) -> np.ndarray:
    """Standard deviation of the last costs over their mean, for each seed."""
    return sharp(data, method, "std") / sharp(data, method)


def variation_ratio(data: str) -> Interval:
    """RNGD's relative variation over the largest of the others in each seed."""
    others = [variation(data, name) for name in methods(data, (*PLAIN, *NORMALIZED))]
    return ratio_interval(variation(data, "rngd") / np.max(others, axis=0))


def overfitting(data: str) -> Interval:
    """Cost of RNGD on images that it has not seen, at the end over that at half of the training."""
    costs = trained(data, "rngd").values("test_cost")
    return ratio_interval(costs[:, -1] / costs[:, costs.shape[1] // 2 - 1])


def without_nu(method: str) -> Interval:
    """Cost with nu = 1 over that with nu, for RNGD with the paper's memory ("rngd") or with the
    shorter one ("fast").
    """
    return ratio_interval(sharp("digits", f"{method}_linear") / sharp("digits", method))


def at_equal_seconds(data: str, rivals: Sequence[str]) -> Interval:
    """RNGD's cost over the least of the rivals' in each seed, when SGD has done all its iterations
    and every other method as many as fit into that time.
    """
    own, *others = (_within_budget(data, name) for name in ("rngd", *rivals))
    return ratio_interval(own / np.min(others, axis=0))


def _within_budget(data: str, method: str) -> np.ndarray:
    """Cost of every seed at the last point of its curve that fits into the time of SGD."""
    done = int((iterations(data, method) <= steps(data) / time_ratio(data, method)).sum())
    return trained(data, method).values("curve").astype(float)[:, max(done, 1) - 1]


def sgd_at_equal_seconds() -> Interval:
    """RNGD against plain SGD on digits, in equal processor time."""
    return at_equal_seconds("digits", ("sgd",))


def normalized_at_equal_seconds() -> Interval:
    """RNGD against batch normalization on digits, in equal processor time."""
    return at_equal_seconds("digits", NORMALIZED)


# ---- The settings of RNGD


def setting(eps: float, period: int, decay: float) -> Result:
    """The stored run of one choice of RNGD's three settings."""
    runs = stored("rfim_figure5.sliders").select(eps=eps, period=period, decay=decay)
    return runs.records[0]


def start_curve(record: Result) -> tuple[np.ndarray, np.ndarray]:
    """Iterations and costs of a run, the costs kept between 1e-6 and 10."""
    costs = np.clip(np.array(record["curve"], dtype=float), 1e-6, 10)
    return record.settings["smooth"] * (np.arange(len(costs)) + 1), costs


def diverges(record: Result) -> bool:
    """Whether a run's cost is no longer finite."""
    return not np.isfinite(np.array(record["curve"], dtype=float)).all()


def settings_drawn() -> int:
    """Number of choices of RNGD's settings."""
    return len(stored("rfim_figure5.sliders"))


def settings_diverge() -> int:
    """How many of these diverge."""
    return sum(diverges(record) for record in stored("rfim_figure5.sliders"))


def identity_left(decay: float, iteration: int) -> float:
    """Percentage of the metric that is still the identity it started from."""
    return 100 * decay**iteration
