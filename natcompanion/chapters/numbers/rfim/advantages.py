"""Section 4: reliability, ranks, memory and balance of the metrics of parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.rfim.neuron import difference, or_none
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, ratio_interval

LAYERS = ("first", "second", "last")
SCALES = (0.1, 1.0, 10.0)

# ---- A part against a block


def reliability() -> Interval:
    """Error of the RFIM from 50 samples over that of the block, geometric mean of hidden layers."""
    runs = stored("rfim_reliability.quick")
    ratios = runs.values("error_rfim")[:, :2] / runs.values("error_fisher")[:, :2]
    return ratio_interval(np.exp(np.log(ratios).mean(1)))


def outside_blocks() -> np.ndarray:
    """Share of the Fisher matrix's norm outside its blocks, for each network."""
    return stored("rfim_reliability.quick").values("outside")


Metrics = tuple[Sequence[Tensor], Sequence[Tensor]]


def block_table(before: Metrics, after: Metrics) -> Table:
    """RFIMs and blocks of each layer, before and after a change of the last layer's weights."""
    rows = []
    for layer, rfim, block, new_rfim, new_block in zip(LAYERS, *before, *after, strict=True):
        moved = difference(new_rfim, rfim), difference(new_block, block)
        rows.append([layer, or_none(difference(rfim, block)), *map(or_none, moved)])
    return Table(
        ["layer", "RFIM – block", "RFIM moves by", "block moves by"],
        rows,
        "Difference between the RFIM of a layer and its block of the Fisher matrix, and the change"
        " of both when the weights of the last layer change, in units of the block or of the metric"
        " before (Frobenius).",
    )


# ---- Rank


@dataclass(frozen=True)
class Ranks:
    """Ranks of one layer's RFIM and block in one network, with the bounds, by number of samples."""

    n: list[int]
    rfim: list[int]
    block: list[int]
    neurons: int
    inputs: int

    @property
    def parameters(self) -> int:
        """Number of parameters of the layer."""
        return self.neurons * self.inputs

    @property
    def rfim_bound(self) -> list[int]:
        """n D_h, or all parameters."""
        return [min(n * self.neurons, self.parameters) for n in self.n]

    @property
    def block_bound(self) -> list[int]:
        """n, or all parameters."""
        return [min(n, self.parameters) for n in self.n]


def ranks(layer: str, activation: str) -> Ranks:
    """Ranks of one layer of the first stored network."""
    record = stored("rfim_rank.quick").select(activation=activation).records[0]
    row = LAYERS.index(layer)
    own, block = ([step[row] for step in record[key]] for key in ("rfim", "fisher_blocks"))
    return Ranks(list(record["n"]), own, block, *record["shapes"][row])


def _rank(key: str, **settings: Any) -> np.ndarray:
    return stored("rfim_rank.quick").values(key, **settings)


def block_rank_low(kind: str) -> np.ndarray:
    """Share of the layers and n where the block's rank is at most n / 2, for each network: of the
    "narrow" blocks, with at most n / 2 parameters, or of the "wide" ones, with more.
    """
    n = _rank("n")[:, :, None]
    narrow = 2 * np.prod(_rank("shapes"), axis=2)[:, None, :] <= n
    low = 2 * _rank("fisher_blocks") <= n
    chosen = narrow if kind == "narrow" else ~narrow
    return (low & chosen).sum((1, 2)) / chosen.sum((1, 2))


def kinds_of_low_rank() -> np.ndarray:
    """The shares of both kinds of block together, at most 2, for each network."""
    return block_rank_low("narrow") + block_rank_low("wide")


def rfim_rank_full(activation: str = "tanh") -> np.ndarray:
    """Whether the RFIM of both hidden layers has rank n D_h at all n up to 7, for each network."""
    n = _rank("n", activation=activation)[:, :, None]
    neurons = _rank("shapes", activation=activation)[:, None, :2, 0]
    full = _rank("rfim", activation=activation)[:, :, :2] == n * neurons
    return (full | (n > 7)).all((1, 2))


def rank_ratios(n: int = 5, **settings: Any) -> np.ndarray:
    """Rank of the RFIM over that of the block at n samples, geometric mean of hidden layers, for
    each network.
    """
    at = _rank("n", **settings)[0].tolist().index(n)
    ratios = _rank("rfim", **settings)[:, at, :2] / _rank("fisher_blocks", **settings)[:, at, :2]
    return np.exp(np.log(ratios).mean(1))


def rank_ratio(activation: str) -> Interval:
    """The rank ratio at five samples, geometric mean over the networks of one activation."""
    return ratio_interval(rank_ratios(activation=activation))


def rank_times(activation: str) -> float:
    """The same without its interval: of tanh networks, which all have one ratio."""
    return rank_ratio(activation).mean


def blocks_of_rank_n(activation: str) -> float:
    """Share of all layers and n up to the number of parameters where the block has rank n."""
    n = _rank("n", activation=activation)[:, :, None]
    few = n <= np.prod(_rank("shapes", activation=activation), axis=2)[:, None, :]
    return float((_rank("fisher_blocks", activation=activation) == n)[few].mean())


def rank_table() -> Table:
    """Bounds and ranks for both activations."""
    rows = []
    for name in ("tanh", "relu"):
        n = _rank("n", activation=name)[:, :, None]
        neurons = _rank("shapes", activation=name)[:, None, :, 0]
        whole = (_rank("fisher", activation=name) <= n[:, :, 0]).all()
        own = (_rank("rfim", activation=name) <= n * neurons).all()
        share = f"{100 * blocks_of_rank_n(name):.0f} %"
        rows.append([name, bool(whole), bool(own), share, rank_times(name)])
    return Table(
        ["activation", "Fisher ≤ n", "RFIM ≤ n D_h", "block = n", "RFIM / block, n = 5"],
        rows,
        "Ten random 6-8-8-1 networks for each activation, n from 1 to 60: both bounds, how often"
        " the block of a layer reaches rank n (where it has as many parameters), and the ratio of"
        " the ranks of hidden layers (geometric mean).",
    )


def memory_table(whole: int, blocks: int, parts: int) -> Table:
    """What three metrics have to store."""
    names = ("Fisher matrix", "a block for each layer", "a block for each neuron")
    sizes = zip(names, (whole, blocks, parts), strict=True)
    return Table(
        ["metric", "numbers", "GiB in float32"],
        [[name, float(count), 4 * count / 2**30] for name, count in sizes],
        "What each metric of the network of Section 5.2 has to store.",
    )


# ---- Balance


def balance_radius() -> str:
    """Length of the random steps."""
    return f"{stored('rfim_balance.quick').records[0].settings['radius']:g}"


def balance_networks() -> int:
    """Number of networks, each with inputs of three scales."""
    return len({record.seed for record in stored("rfim_balance.quick")})


def _balance(key: str) -> np.ndarray:
    """Return a value by network and scale of the inputs, (networks, 3)."""
    runs = stored("rfim_balance.quick")
    return np.stack([runs.values(key, scale=scale) for scale in SCALES], 1)


def balance_similar() -> np.ndarray:
    """Whether both balanced layers change within a factor 2, at all scales, for each network."""
    ratio = _balance("first_balanced") / _balance("second_balanced")
    return (np.abs(np.log2(ratio)) < 1).all(1)


def balance_steady() -> np.ndarray:
    """Whether balancing takes a tenth off the second metric's change where the inputs are ten times
    larger than usual, for each network.
    """
    large = SCALES.index(10.0)
    return _balance("change_balanced")[:, large] < 0.9 * _balance("change_raw")[:, large]


def balance_table() -> Table:
    """What steps of one length do, in raw and balanced coordinates, at three scales."""
    rows = []
    for i, scale in enumerate(SCALES):
        for name in ("raw", "balanced"):
            first, second = (_balance(f"{key}_{name}")[:, i].mean() for key in ("first", "second"))
            largest = _balance(f"largest_{name}")[:, i].max()
            moved = f"{100 * _balance(f'change_{name}')[:, i].mean():.1f} %"
            rows.append([f"{scale:g}, {name}", first, second, largest, moved])
    return Table(
        ["input scale, coordinates", "first layer", "second layer", "largest", "metric moves by"],
        rows,
        "Change of the responses in the metric by steps of one length, mean and largest, and change"
        " of the second layer's metric.",
    )
