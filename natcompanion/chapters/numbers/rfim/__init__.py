"""The numbers of the chapter on relative Fisher metrics, by section of the paper."""

from natcompanion.chapters.numbers.rfim.advantages import *
from natcompanion.chapters.numbers.rfim.digits import *
from natcompanion.chapters.numbers.rfim.light import *
from natcompanion.chapters.numbers.rfim.neuron import *
from natcompanion.chapters.numbers.rfim.parts import *
from natcompanion.chapters.numbers.rfim.rivals import *
from natcompanion.chapters.numbers.rfim.training import *
