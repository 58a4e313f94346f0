"""Sections 5, 8.5 and 8.6: Table 1 on digits, on Fashion-MNIST and for the convolutional
network.
"""

from typing import Any

import numpy as np

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, median, ratio_interval

WHERE = {
    "digits": "revisiting_restricted_mnist.chapter",
    "wide": "revisiting_restricted_mnist.wide",
    "fashion": "revisiting_fashion.chapter",
    "paper": "revisiting_fashion.paper",
    "convolutional": "revisiting_convolutional.chapter",
    "stopped": "revisiting_early_stopping.chapter",
    "stopped fashion": "revisiting_early_stopping.fashion",
}
"""The stored experiments: five folds of digits, a wider search on one fold, Fashion-MNIST, the
same at the paper's size, the network with two convolutions, and digits and Fashion-MNIST with early
stopping.
"""

COLUMNS = {
    "msgd": "minibatch SGD",
    "unlabelled": "KL, unlabelled",
    "added": "KL, batch and unlabelled",
    "different": "KL, different batch",
    "same": "KL, same batch",
    "covariance": "covariance",
}
"""The columns of Table 1, in the paper's order."""

PAPER = {
    "msgd": (0.0523, 5.22),
    "unlabelled": (0.0017, 4.63),
    "different": (0.0012, 4.89),
    "same": (0.0023, 4.91),
    "covariance": (0.0006, 4.74),
}
"""The paper's training losses and test errors on restricted MNIST."""

PAPER_CONVOLUTIONAL = {"different": 0.78, "same": 0.82, "covariance": 1.07}
"""The paper's test errors of the convolutional network."""


def _results(where: str) -> Results:
    return stored(WHERE[where])


def columns(where: str) -> list[str]:
    """Return the stored columns of an experiment, in the paper's order."""
    there = {record.settings["column"] for record in _results(where)}
    return [column for column in COLUMNS if column in there]


def setting(where: str, key: str) -> Any:
    """Return a setting of an experiment."""
    return _results(where).records[0].settings[key]


def tests(where: str, column: str) -> np.ndarray:
    """Return the test error of a column for each seed, in per cent."""
    return _results(where).values("test", column=column)


def mean_test(where: str, column: str) -> Interval:
    """Return the mean test error of a column."""
    return interval(tests(where, column))


def _by_seed(where: str, column: str, key: str) -> dict[int, Any]:
    return {run.seed: run.values[key] for run in _results(where).select(column=column)}


def _paired(where: str, a: str, b: str, key: str) -> np.ndarray:
    """Return a value of two columns, seed by seed; (seeds, 2)."""
    first, second = _by_seed(where, a, key), _by_seed(where, b, key)
    if first.keys() != second.keys():
        raise ValueError(f"{WHERE[where]}: columns {a} and {b} have different seeds")
    return np.array([(first[seed], second[seed]) for seed in sorted(first)])


def differences(where: str, a: str, b: str) -> np.ndarray:
    """Return the test error of column a minus that of b for each seed, in points."""
    first, second = _paired(where, a, b, "test").T
    return first - second


def difference(where: str, a: str, b: str) -> Interval:
    """Return the mean of these differences."""
    return interval(differences(where, a, b))


def loss_decades(where: str, a: str, b: str) -> np.ndarray:
    """Return the training loss of column a over that of b for each seed, in decades."""
    first, second = _paired(where, a, b, "train").T
    return np.log10(first / second)


def final_train(where: str, column: str) -> float:
    """Return the median training loss at the end."""
    return _results(where).median("train", column=column)


def one_digit(value: float) -> str:
    """Return a number to one significant digit."""
    return f"{float(f'{value:.1g}'):g}"


def _row(where: str, column: str) -> list:
    """Return name, median training loss and mean test error of a column."""
    return [
        COLUMNS[column],
        one_digit(final_train(where, column)),
        mean_test(where, column).mean,
    ]


def curve(where: str, column: str, key: str) -> tuple[list[int], np.ndarray]:
    """Return updates, and the median of "train" or "test" over the seeds at each."""
    curves = [run.values["curve"] for run in _results(where).select(column=column)]
    middle = np.median([[point[key] for point in points] for points in curves], axis=0)
    return [point["update"] for point in curves[0]], middle


def final_test(where: str, column: str) -> float:
    """Return the median test error at the end."""
    return median(tests(where, column))


# ---- Restricted MNIST


def count_settings(where: str) -> int:
    """Return how many settings each column may choose from."""
    return len(setting(where, "sgd_rates"))


def rates(where: str) -> str:
    """Return the step sizes of the search as text."""
    return " and ".join(f"{rate:g}" for rate in setting(where, "rates"))


def dampings(where: str) -> str:
    """Return the dampings of the search as text."""
    return ", ".join(
        f"adaptive from {name[:-2]}" if name.endswith("lm") else name
        for name in setting(where, "dampings")
    )


def largest(where: str, key: str) -> float:
    """Return the largest number of a search: of "rates" or "sgd_rates", or constant "dampings"."""
    return max(float(value) for value in setting(where, key) if not str(value).endswith("lm"))


def smallest(where: str, key: str) -> float:
    """Return the smallest."""
    return min(float(value) for value in setting(where, key) if not str(value).endswith("lm"))


def table1() -> Table:
    """Table 1, restricted MNIST, beside the paper's."""
    rows = [
        [
            *_row("digits", column),
            "" if column == "msgd" else str(difference("digits", column, "msgd")),
            *[f"{value:g}" for value in PAPER[column]],
        ]
        for column in columns("digits")
    ]
    return Table(
        ["column", "train", "test, %", "difference to SGD, [95 %]", "paper: train", "test, %"],
        rows,
        "Median training loss and mean test error at the chosen settings, and the paired "
        "difference of test errors to SGD (mean and 95 % interval); beside them the paper's "
        "numbers.",
    )


def train_factor() -> Interval:
    """Return how many times higher the training loss of SGD ends than that of the same batch."""
    return ratio_interval(10 ** -loss_decades("digits", "same", "msgd"))


def _searched(column: str) -> np.ndarray:
    """Return the final training loss of every fold at every setting; (folds, settings)."""
    runs = _by_seed("digits", column, "search")
    return np.array([[run["train"] for run in runs[seed]] for seed in sorted(runs)])


def _slower() -> np.ndarray:
    """Return the training loss with unlabelled data over that of the same batch, in decades."""
    return np.log10(_searched("unlabelled") / _searched("same"))


def share_slower() -> np.ndarray:
    """Return for each fold at which share of the settings unlabelled data end with more loss."""
    return (_slower() > 0).mean(1)


def settings_slower() -> int:
    """Return at how many settings they do on the mean of the folds."""
    return int((_slower().mean(0) > 0).sum())


def _at(run: dict, rate: float, damping: float) -> dict:
    """Return what a run's search found at a step size and a constant damping."""
    return next(
        tried
        for tried in run["search"]
        if (tried["rate"], tried["damping"], tried["adaptive"]) == (rate, damping, False)
    )


def damping_effect() -> list[float]:
    """Return for each fold the test error at damping 0.01 minus that at 0.001, step size 0.5."""
    runs = [run.values for run in _results("digits").select(column="same")]
    return [_at(run, 0.5, 0.01)["test"] - _at(run, 0.5, 0.001)["test"] for run in runs]


# ---- Early stopping

TO_THE_END = {"stopped": "digits", "stopped fashion": "fashion"}
"""The search without stopping, on the same data and from the same networks."""


def stopped_updates(where: str, column: str) -> list[int]:
    """Return after how many updates each seed stopped."""
    return [run.values["update"] for run in _results(where).select(column=column)]


def stopping_gain(where: str, column: str) -> Interval:
    """Return the test error where a column is stopped minus that at the end of the search without
    stopping, in points.
    """
    end, stopped = _by_seed(TO_THE_END[where], column, "test"), _by_seed(where, column, "test")
    return interval([stopped[seed] - end[seed] for seed in sorted(stopped)])


def stopping_table(where: str) -> Table:
    """Test errors with early stopping and without."""
    rows = [
        [
            COLUMNS[column],
            mean_test(TO_THE_END[where], column).mean,
            mean_test(where, column).mean,
            str(stopping_gain(where, column)),
            f"{median(stopped_updates(where, column)):g}",
        ]
        for column in columns(where)
    ]
    return Table(
        ["column", "test at the end, %", "stopped, %", "difference, [95 %]", "median update"],
        rows,
        f"Test error after all {setting(where, 'updates')} updates and where the validation error "
        "was least, each at the settings that its search chose; the paired difference (mean and "
        "95 % interval), and when the middle run was stopped.",
    )


# ---- A wider search, on the first fold


def _first(where: str, column: str) -> dict:
    return _results(where).select(column=column, seed=0).records[0].values


def chosen(run: dict, column: str) -> str:
    """Return the step size and damping that a run chose, as text."""
    if column == "msgd":
        return f"{run['rate']:g}"
    return f"{run['rate']:g}, {run['damping']:g}{' adaptive' if run['adaptive'] else ''}"


def wide_gain() -> float:
    """Return how many points the wider search gains on validation at most."""
    return max(
        _first("digits", column)["validation"] - _first("wide", column)["validation"]
        for column in columns("wide")
    )


def wide_images() -> int:
    """Return how many images of the validation set that is."""
    return round(wide_gain() * setting("wide", "validation") / 100)


def covariance_as_printed(key: str) -> float:
    """Return "train" or "test" of the covariance at the paper's step size 5 and damping 0.1."""
    return _at(_first("wide", "covariance"), 5.0, 0.1)[key]


def wide_table() -> Table:
    """What the short and the long search chose."""
    rows = [
        [
            COLUMNS[column],
            *[
                cell
                for run in (_first("digits", column), _first("wide", column))
                for cell in (chosen(run, column), run["validation"], run["test"])
            ],
        ]
        for column in columns("wide")
    ]
    return Table(
        [
            "column",
            "six settings",
            "validation, %",
            "test, %",
            "fifteen",
            "validation, %",
            "test, %",
        ],
        rows,
        "Chosen step size and damping, and validation and test error on the first fold, for the "
        "search above and for the wider one.",
    )


# ---- Fashion-MNIST and the convolutional network


def fashion_table() -> Table:
    """The columns on Fashion-MNIST."""
    return Table(
        ["column", "train", "test, %"],
        [_row("fashion", column) for column in columns("fashion")],
        "Median training loss and mean test error at the chosen settings.",
    )


def convolutional_table() -> Table:
    """The columns of the convolutional network, beside the paper's."""
    rows = [
        [*_row("convolutional", column), f"{PAPER_CONVOLUTIONAL[column]:g}"]
        for column in columns("convolutional")
    ]
    return Table(
        ["column", "train", "test, %", "paper: test, %"],
        rows,
        "Median training loss and mean test error at the chosen settings, five folds.",
    )
