"""The figure of *In your own code*."""

from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import BLUE, ORANGE, VERMILLION, figure, label
from natcompanion.chapters.numbers import use as numbers
from natcompanion.chapters.show import digits

COLORS = dict(zip(numbers.PLACES, (VERMILLION, BLUE, ORANGE), strict=True))


def draw_spectrum(share: float) -> Figure:
    """Three spectra with what they suggest, and how fast a whitening grows stale."""
    drawing, (left, right) = figure(6.2, 2, height_ratios=[1.2, 1])
    for place, color in COLORS.items():
        values = numbers.spectrum(place).clamp_min(1e-9)
        left.loglog(range(1, len(values) + 1), values, color=color, linewidth=2, label=place)
        left.plot(
            [numbers.kept(place, share)],
            [numbers.eps(place, share)],
            "o",
            color=color,
            markersize=8,
        )
    left.set(ylim=(1e-6, 10), xlim=(1, 1000))
    label(left, "Eigenvalues; a dot where the share is reached", "rank", "", legend="lower left")
    steps, largest = zip(*numbers.stale_variances(share), strict=True)
    right.plot(steps, largest, color=BLUE, linewidth=2)
    right.axhline(2, color="0.5", linestyle=":")
    right.axvline(numbers.period(share), color="0.5", linestyle="--")
    right.set(ylim=(0, 8), xlim=(0, steps[-1]))
    label(right, "Largest variance in the coordinates of step 0", "steps since whitening", "")
    return drawing


def describe_spectrum(share: float) -> str:
    """Say what is suggested."""
    found = {place: digits(numbers.eps(place, share)) for place in numbers.PLACES}
    steps, last = numbers.period(share), numbers.stale_variances(share)[-1][0]
    until = "until a variance doubles: a period T" if steps < last else "as long as was measured"
    return (
        f"The larger eigenvalues hold {100 * share:g} % of the trace down to {found['pixels']} for "
        f"the pixels, {found['hidden layer']} for the hidden layer and {found['Fisher matrix']} "
        f"for the Fisher matrix: ε for two layers, and a damping. Below: with that ε, coordinates "
        f"in which the hidden layer is white stay good for {steps} steps, {until}."
    )


SPECTRUM = Drawing(
    draw_spectrum,
    describe_spectrum,
    grid={"share": list(numbers.SHARES)},
    start={"share": 0.99},
    labels={"share": "share of the trace"},
)
