r"""Relative Fisher metrics: the Fisher matrix of one part of a network, given the rest.

A subsystem with parameters :math:`\theta` answers its inputs with a response :math:`h` drawn from
:math:`p(h \mid \theta, \theta_f)`; everything else in the network, :math:`\theta_f`, is given. Its
relative Fisher metric is

.. math:: g^h(\theta \mid \theta_f) = \mathrm E_{p(h \mid \theta, \theta_f)}
          \left[\nabla_\theta \log p(h)\, \nabla_\theta \log p(h)^\top\right].

Here it is in closed form for a neuron, a layer, a softmax layer and two layers, as the mean over
the examples (divisor n). ``W`` has shape (m, D + 1): one row a neuron, the bias in the last column,
and parameters are ordered neuron by neuron, ``W.reshape(-1)``. :math:`\tilde x = (x, 1)`, and
:math:`f` is the activation.

Neurons with the activation tanh answer with -1 or 1, those with sigmoid with 0 or 1; all others
answer with a Gaussian of standard deviation ``sigma`` around :math:`f(w^\top \tilde x)`.

Source: rfim Eq. 9 and Section 3.
"""

from natcompanion.relative.activations import activate, nu, slope
from natcompanion.relative.descent import neuron_step, relative_damping, sharp_ratio
from natcompanion.relative.network import (
    activation_of,
    fisher_blocks,
    network_rfim,
    neuron_order,
    rank,
)
from natcompanion.relative.subsystems import (
    augment,
    layer_rfim,
    linear_rfim,
    neuron_rfim,
    principal_inputs,
    softmax_rfim,
    two_layer_rfim,
)

__all__ = [
    "activate",
    "activation_of",
    "augment",
    "fisher_blocks",
    "layer_rfim",
    "linear_rfim",
    "network_rfim",
    "neuron_order",
    "neuron_rfim",
    "neuron_step",
    "nu",
    "principal_inputs",
    "rank",
    "relative_damping",
    "sharp_ratio",
    "slope",
    "softmax_rfim",
    "two_layer_rfim",
]
