"""The restricted Boltzmann machine: exact sums where one layer is small, Gibbs sampling
elsewhere.
"""

from typing import Any

import torch

from natcompanion import _checks
from natcompanion.boltzmann.blocks import restrict, solve
from natcompanion.boltzmann.enumeration import (
    ENUMERATION_LIMIT,
    check_enumerable,
    hidden_log_weights,
    softplus,
)
from natcompanion.boltzmann.sums import covariance_of_statistics, mean_statistics
from natcompanion.whitening import Divergence


class RBM:
    r"""A restricted Boltzmann machine with binary units.

    .. math:: p(v, h) = e^{-E(v, h)} / Z, \qquad E(v, h) = -a^T v - b^T h - v^T W h

    Its sufficient statistics are g = (v, h, vec(v h^T)), with vec row-major, and every parameter
    vector and every gradient has the order (a, b, vec W), P = D + H + D H numbers. A machine is
    never changed: ``moved`` returns a new one.

    Parameters
    ----------
    W
        Weights (visible, hidden) = (D, H).
    a
        Visible biases (D,).
    b
        Hidden biases (H,).

    Raises
    ------
    ValueError
        If the shapes or dtypes do not fit together, or a number is not finite.

    Notes
    -----
    Exact sums run in double precision over the states of the smaller layer and are cast back.
    Sampling runs in the dtype of ``W`` (half precision: in float32). Source: boltzmann Sec. 3, Eq.
    1 to 3.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> rbm.log_partition()
    tensor(1.3863)
    >>> rbm.gradient(torch.tensor([[1.0]]))  # of the mean log-likelihood
    tensor([0.5000, 0.0000, 0.2500])
    """

    def __init__(self, W: torch.Tensor, a: torch.Tensor, b: torch.Tensor):
        _checks.matrix(W, "W"), _checks.floating(a, "a"), _checks.floating(b, "b")
        if a.shape != W.shape[:1] or b.shape != W.shape[1:]:
            raise ValueError(
                f"RBM: expected W (D, H), a (D,), b (H,), got {tuple(W.shape)}, "
                f"{tuple(a.shape)}, {tuple(b.shape)}; "
                "W has one row per visible unit"
            )
        if not (W.dtype == a.dtype == b.dtype):
            raise ValueError(
                f"RBM: expected one dtype, got {W.dtype}, {a.dtype}, {b.dtype}; convert them first"
            )
        self.W, self.a, self.b = W, a, b

    @classmethod
    def random(
        cls,
        visible: int,
        hidden: int,
        *,
        scale: float = 0.01,
        bias_scale: float = 0.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> "RBM":
        """Return a machine with Gaussian weights of standard deviation ``scale`` and biases of
        ``bias_scale``, drawn where the generator is (CPU without one) and moved to ``device``.
        """
        _checks.generator(generator)
        source = "cpu" if generator is None else generator.device
        like: dict[str, Any] = {"generator": generator, "dtype": dtype, "device": source}
        W = torch.randn(visible, hidden, **like) * scale
        a, b = (torch.randn(size, **like) * bias_scale for size in (visible, hidden))
        machine = cls(W, a, b)
        return machine if device is None else machine.to(device)

    @classmethod
    def check(cls, rbm: Any) -> "RBM":
        """Return ``rbm`` if it is a machine.

        Raises
        ------
        ValueError
            If it is none.
        """
        if not isinstance(rbm, cls):
            raise ValueError(f"rbm: expected an RBM, got {_checks.got(rbm)}")
        return rbm

    def to(self, *args: Any, **options: Any) -> "RBM":
        """Return the machine on another device or in another dtype; arguments as for
        ``torch.Tensor.to``.
        """
        return RBM(*(p.to(*args, **options) for p in (self.W, self.a, self.b)))

    @classmethod
    def from_vector(cls, theta: torch.Tensor, visible: int, hidden: int) -> "RBM":
        """Return the machine whose parameter vector (a, b, vec W) is ``theta`` (P,)."""
        P = visible + hidden + visible * hidden
        if theta.shape != (P,):
            raise ValueError(
                f"theta: expected shape ({P},) for {visible} x {hidden} units, got "
                f"{tuple(theta.shape)}"
            )
        a, b, W = theta.split([visible, hidden, visible * hidden])
        return cls(W.reshape(visible, hidden), a, b)

    def vector(self) -> torch.Tensor:
        """Return the parameters (a, b, vec W) as one vector (P,)."""
        return torch.cat([self.a, self.b, self.W.reshape(-1)])

    def moved(self, step: torch.Tensor) -> "RBM":
        """Return the machine at ``vector() + step``.

        Raises
        ------
        Divergence
            If a parameter is no longer finite.
        """
        theta = self.vector() + step
        if not bool(torch.isfinite(theta).all()):
            raise Divergence(
                f"parameters of the RBM are no longer finite (largest weight before the step "
                f"{float(self.W.abs().max()):.3g}, largest step "
                f"{float(step.abs().max()):.3g}); lower the learning rate"
            )
        return RBM.from_vector(theta, self.visible, self.hidden)

    def transpose(self) -> "RBM":
        """Return the same machine with the layers' roles exchanged."""
        return RBM(self.W.mT, self.b, self.a)

    @property
    def visible(self) -> int:
        """Number of visible units D."""
        return self.W.shape[0]

    @property
    def hidden(self) -> int:
        """Number of hidden units H."""
        return self.W.shape[1]

    def double(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (W, a, b) in double precision."""
        return self.W.double(), self.a.double(), self.b.double()

    def _sampling(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        half = self.W.dtype in (torch.float16, torch.bfloat16)
        return (
            (self.W.float(), self.a.float(), self.b.float()) if half else (self.W, self.a, self.b)
        )

    def _units(self, x: torch.Tensor, name: str) -> torch.Tensor:
        size = self.visible if name == "v" else self.hidden
        if (
            isinstance(x, torch.Tensor)
            and x.is_floating_point()
            and x.numel()
            and x.shape[-1:] == (size,)
        ):
            low, high = torch.aminmax(x)  # NaN comes through, so this one pass accepts good input
            if low >= 0 and high <= 1:
                return x
        _checks.floating(x, name)
        if x.shape[-1:] != (size,):
            raise ValueError(
                f"{name}: expected (n, {size}) for {size} units, got shape {tuple(x.shape)}"
            )
        return _checks.unit(x, name)

    def check_visible(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``v`` if it is a finite matrix (n, D) with values in [0, 1]; else ValueError says
        what is wrong.
        """
        if self._units(v, "v").ndim != 2:
            raise ValueError(
                f"v: expected a matrix (n, {self.visible}), got shape {tuple(v.shape)}"
            )
        return v

    # Energies and conditionals

    def energy(self, v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """Return E(v, h) of each pair; ``v`` (n, D) or (D,), ``h`` (n, H) or (H,), result (n,) or
        ().

        Notes
        -----
        Source: boltzmann Sec. 3.
        """
        W, a, b = self.double()
        v, h = self._units(v, "v").double(), self._units(h, "h").double()
        return (-(v @ a) - h @ b - ((v @ W) * h).sum(-1)).to(self.W.dtype)

    def hidden_mean(self, v: torch.Tensor) -> torch.Tensor:
        """Return p(h_j = 1 | v), (n, H). Source: boltzmann Eq. 2."""
        W, _, b = self._sampling()
        return torch.sigmoid(self._units(v, "v").to(W.dtype) @ W + b).to(self.W.dtype)

    def visible_mean(self, h: torch.Tensor) -> torch.Tensor:
        """Return p(v_i = 1 | h), (n, D). Source: boltzmann Eq. 3."""
        W, a, _ = self._sampling()
        return torch.sigmoid(self._units(h, "h").to(W.dtype) @ W.mT + a).to(self.W.dtype)

    def free_energy(self, v: torch.Tensor) -> torch.Tensor:
        r"""Return the free energy of each row of ``v``, (n,) or ().

        .. math:: F(v) = -\log \sum_h e^{-E(v, h)} = -a^T v - \sum_j \log\left(1 +
                  e^{b_j + v^T W_{\cdot j}}\right)
        """
        W, a, b = self.double()
        v = self._units(v, "v").double()
        return (-(v @ a) - softplus(v @ W + b).sum(-1)).to(self.W.dtype)

    # Exact sums over the smaller layer

    def log_weights(self, *, limit: int = ENUMERATION_LIMIT) -> torch.Tensor:
        """Return log p* of every state of the smaller layer (the hidden one if equal), (2**K,),
        double precision.

        Raises
        ------
        ValueError
            If the smaller layer has more than ``limit`` units; the message estimates time and
            memory.
        """
        small, large = sorted((self.visible, self.hidden))
        check_enumerable(small, large, limit)
        W, a, b = self.double()
        return (
            hidden_log_weights(W, a, b)
            if self.hidden <= self.visible
            else hidden_log_weights(W.mT, b, a)
        )

    def log_partition(self, *, limit: int = ENUMERATION_LIMIT) -> torch.Tensor:
        """Return log Z by summing over the states of the smaller layer. Source: boltzmann Sec.
        3.
        """
        return torch.logsumexp(self.log_weights(limit=limit), 0).to(self.W.dtype)

    def log_likelihood(self, v: torch.Tensor) -> torch.Tensor:
        """Return log p(v) of each row of ``v``, (n,)."""
        free = self.free_energy(self._units(v, "v").double())
        return (-free.double() - torch.logsumexp(self.log_weights(), 0)).to(self.W.dtype)

    def hidden_probabilities(self) -> torch.Tensor:
        """Return the marginal p(h) of all hidden states, (2**H,); it does not factorize."""
        check_enumerable(self.hidden, self.visible)
        return torch.softmax(hidden_log_weights(*self.double()), 0).to(self.W.dtype)

    def visible_probabilities(self) -> torch.Tensor:
        """Return p(v) of all visible states, (2**D,)."""
        return self.transpose().hidden_probabilities()

    def statistics_mean(self) -> torch.Tensor:
        """Return the model expectation E[g], (P,). Source: boltzmann Sec. 3."""
        return mean_statistics(*self.double()).to(self.W.dtype)

    def data_statistics(self, v: torch.Tensor) -> torch.Tensor:
        """Return E[g] with v from the rows of ``v`` and h from p(h|v), averaged over the rows,
        (P,).
        """
        v, q = self.check_visible(v), self.hidden_mean(v)
        return torch.cat([v.mean(0), q.mean(0), (v.to(q.dtype).mT @ q / len(v)).reshape(-1)])

    def gradient(self, v: torch.Tensor) -> torch.Tensor:
        """Return the exact gradient of the mean log-likelihood of the rows of ``v`` (ascent), (P,).

        Notes
        -----
        Source: boltzmann Eq. 1.
        """
        exact = RBM(*self.double())
        return (exact.data_statistics(self.check_visible(v).double()) - exact.statistics_mean()).to(
            self.W.dtype
        )

    # The metric

    def fisher(self) -> torch.Tensor:
        """Return the Fisher matrix of the joint p(v, h), the covariance of g, (P, P). See
        `exact_fisher`.
        """
        return covariance_of_statistics(*self.double()).to(self.W.dtype)

    def natural_gradient(
        self, v: torch.Tensor, damping: float = 0.0, *, structure: str = "full"
    ) -> torch.Tensor:
        """Return (G + damping I)^-1 times the exact gradient (ascent), (P,).

        Parameters
        ----------
        v
            Data (n, D).
        damping
            Added to the diagonal of G. Dead pixels make G singular: use 1e-4 or more there.
        structure
            ``"full"``, ``"block"`` (the blocks of v, h and vh) or ``"diagonal"``.

        Raises
        ------
        ValueError
            If G + damping I is singular to working precision.

        Notes
        -----
        Source: boltzmann Sec. 2.
        """
        exact = RBM(*self.double())
        G = restrict(exact.fisher(), self.visible, self.hidden, structure)
        return solve(G, exact.gradient(self.check_visible(v).double()), damping).to(self.W.dtype)

    # Sampling

    def sweep(
        self, v: torch.Tensor, u_hidden: torch.Tensor, u_visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do one Gibbs sweep v -> h -> v' with given uniform numbers: a unit is on if its number is
        below p.

        Parameters
        ----------
        v, u_hidden, u_visible
            (n, D), (n, H), (n, D)

        Returns
        -------
        tuple
            ``h`` (n, H) and the new ``v`` (n, D), binary.
        """
        h = (u_hidden < self.hidden_mean(v)).to(self.W.dtype)
        return h, (u_visible < self.visible_mean(h)).to(self.W.dtype)

    def gibbs(
        self, v: torch.Tensor, steps: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(v, h)`` after ``steps`` sweeps from ``v`` (n, D); ``h`` is the one that ``v``
        was drawn from.
        """
        dtype = self._sampling()[0].dtype
        for _ in range(_checks.whole(steps, "steps")):
            u = torch.rand(
                len(v),
                self.hidden + self.visible,
                generator=generator,
                dtype=dtype,
                device=v.device,
            )
            h, v = self.sweep(v, u[:, : self.hidden], u[:, self.hidden :])
        return v, h

    def contrast(self, v: torch.Tensor, v_model: torch.Tensor) -> torch.Tensor:
        """Return the data statistics of ``v`` minus those of ``v_model``, hidden units by their
        probabilities, (P,).
        """
        return self.data_statistics(v) - self.data_statistics(v_model)

    def cd_gradient(
        self, v: torch.Tensor, k: int = 1, *, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return the contrastive-divergence estimate of ``gradient``: chains of ``k`` sweeps start
        at the data, (P,).

        Notes
        -----
        Source: boltzmann Sec. 3 (one step, after Hinton 2002).
        """
        return self.contrast(v, self.gibbs(self.check_visible(v), k, generator=generator)[0])
