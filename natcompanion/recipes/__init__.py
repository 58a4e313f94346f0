"""Training at scale: programs to copy and change, and the arithmetic of what they cost.

``python -m natcompanion.recipes.imagefolder --help`` shows the program for a folder of images.
"""

from natcompanion.recipes.cost import Cost, Work, training_cost, work_per_image
from natcompanion.recipes.example import example_folder
from natcompanion.recipes.images import Images
from natcompanion.recipes.inception import Inception
from natcompanion.recipes.training import Settings, train

__all__ = [
    "Cost",
    "Images",
    "Inception",
    "Settings",
    "Work",
    "example_folder",
    "train",
    "training_cost",
    "work_per_image",
]
