"""The terms of the squared norm of the Fisher matrix, what lowering them does, the paper's penalty
matrix beside the true gradient, and projections.
"""

import numpy as np

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.boltzmann.curves import Band, band, by_seed, mean
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, minus, ratio_interval

TERMS = ("v,v", "h,h", "v,h", "v,vh", "h,vh", "vh,vh")
PENALTIES = {
    "first_three": "all three",
    "vv": "cov(v, v)",
    "hh": "cov(h, h)",
    "vh": "cov(v, h)",
}


def term_share(term: str) -> np.ndarray:
    """Return the mean share, in %, of a term of the squared norm of G at each measured step."""
    rows = [record["terms"] for record in by_seed(stored("boltzmann_geometry.paper"))]
    shares = [[100 * point[term] / sum(point.values()) for point in row] for row in rows]
    return band(shares).middle


def least_last_over_first() -> list[float]:
    """Return the least of the last three terms over the largest of the first three, for each start
    where along learning it is least.
    """
    rows = [record["terms"] for record in by_seed(stored("boltzmann_geometry.paper"))]
    first, last = TERMS[:3], TERMS[3:]
    return [
        min(min(point[t] for t in last) / max(point[t] for t in first) for point in row)
        for row in rows
    ]


def terms_table(terms: dict[str, float]) -> Table:
    """Return the size and share of each term of the squared norm of G."""
    total = sum(terms.values())
    return Table(
        ["term, with its count", "size", "share in %"],
        [[name, size, 100 * size / total] for name, size in terms.items()],
        "The machine of Section 3: the six terms add up to tr(G'G).",
    )


def blocks_table(rows: list) -> Table:
    """Return the traces of the four products of Appendix A, block by block."""
    return Table(
        ["block", "A'A", "-A'B", "-B'A", "B'B", "squared covariances"],
        rows,
        "Traces of the four products of Appendix A, block by block: they add up to the squared "
        "covariances with g (to 1e-12).",
    )


# ---- descent on the first three terms


def _change(kind: str, penalty: str) -> np.ndarray:
    return stored("boltzmann_assumption.paper").values(f"{kind}_{penalty}")


def first_terms_ratio(penalty: str) -> Interval:
    """Return the sum of the first three terms after the descent over that before."""
    return ratio_interval(_change("ratio_first", penalty))


def last_terms_ratio(penalty: str) -> Interval:
    """Return the sum of the last three terms after the descent over that before."""
    return ratio_interval(_change("ratio_last", penalty))


def last_terms(penalty: str) -> float:
    """Return the same as one number for the text."""
    return last_terms_ratio(penalty).mean


def nats_gained(penalty: str) -> float:
    """Return the mean change of the log-likelihood over the descent."""
    return mean(_change("gain_likelihood", penalty))


def nats_lost(penalty: str) -> float:
    """Return by how much the log-likelihood falls over the descent."""
    return -nats_gained(penalty)


def cosine_gain(penalty: str) -> Interval:
    """Return the change of the cosine of the plain to the natural gradient."""
    return interval(_change("gain_cosine", penalty))


def cosine_rise(penalty: str) -> float:
    """Return the same as one number for the text."""
    return cosine_gain(penalty).mean


def assumption_table() -> Table:
    """Return what the descent on each penalty changes."""
    return Table(
        ["penalty", "first three, times", "last three, times", "nats", "cosine"],
        [
            [name, first_terms_ratio(key).mean, last_terms(key), nats_gained(key), cosine_rise(key)]
            for key, name in PENALTIES.items()
        ],
        "Change over the descent; ratios are geometric means. Cosine: that of the plain to the "
        "natural gradient, after minus before.",
    )


def descent_steps() -> int:
    """Return the number of steps of the descent."""
    return stored("boltzmann_assumption.paper").records[0].settings["steps"]


def descent_curve(penalty: str, key: str) -> np.ndarray:
    """Return ``"last"``, the last three terms relative to their start, or ``"log_likelihood"``
    along the descent: the mean over the machines.
    """
    rows = [record[penalty][key] for record in by_seed(stored("boltzmann_assumption.paper"))]
    curves = np.array(rows)
    return band(curves / curves[:, :1] if key == "last" else curves).middle


# ---- the paper's matrix


def proxy_runs(frozen: bool = False) -> Results:
    """Return the stored comparison of the paper's matrix with the true gradient: while the machine
    learns, or with frozen weights and binary states.
    """
    return stored("boltzmann_proxy.paper").select(states=frozen, frozen=frozen)


def proxy_cosine(pair: str = "printed_to_gradient") -> Interval:
    """Return the mean cosine over training between two of the matrices."""
    return interval(proxy_runs().values(f"mean_{pair}"))


def proxy_band(pair: str) -> Band:
    """Return mean and range of a cosine over the starts, at each epoch."""
    return band(proxy_runs().values(pair))


def proxy_signs() -> float:
    """Return the share of entries, in %, whose sign is that of the true gradient."""
    return 100 * mean(proxy_runs().values("mean_printed_same_sign"))


def proxy_slope() -> float:
    """Return the mean of the paper's matrix with frozen weights, in units of C."""
    return mean(proxy_runs(frozen=True).values("printed_slope"))


def proxy_bias() -> float:
    """Return what the misprinted third term adds by itself, in units of C."""
    return proxy_runs(frozen=True).records[0]["batch_bias"]


def slopes_table(printed: float, right: float) -> Table:
    """Return the mean of Eq. 4 with frozen weights beside what theory says."""
    return Table(
        ["third term", "theory", "measured"],
        [
            ["E[v] after the step, as printed", "−0.2", minus(f"{printed:.1f}")],
            ["E[v] before the step", "0", f"{abs(right):.1f}"],
        ],
        "Mean of Eq. 4 with dW := 1 and frozen weights, in units of C; 8,000 pairs of batches "
        "of 10.",
    )


# ---- projections


def directions() -> np.ndarray:
    """Return the numbers of random directions."""
    return np.array(stored("boltzmann_projections.paper").records[0]["ks"])


def projection_errors(kind: str) -> np.ndarray:
    """Return the mean relative errors of ``"features"``, ``"sketch"`` or ``"norm"``, or their laws
    (``"sketch_law"``), for each number of directions.
    """
    return band(stored("boltzmann_projections.paper").values(kind)).middle


def projected_norm_error(k: int) -> float:
    """Return the relative error of the squared norm of cov(v, h) from k directions."""
    return float(projection_errors("norm")[directions().tolist().index(k)])


def projections_that_keep() -> list[float]:
    """Return for each start the share of the two projections, of features and of examples, whose
    error with the most directions is less than the matrix itself.
    """
    records = by_seed(stored("boltzmann_projections.paper"))
    return [mean([record[kind][-1] < 1 for kind in ("features", "sketch")]) for record in records]
