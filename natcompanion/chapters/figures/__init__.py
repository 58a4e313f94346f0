"""Drawing, kept out of the chapters' sight: one module per chapter, and what they share.

Each figure is a pair of plain functions of the slider values: ``draw_<name>`` returns a
`matplotlib.figure.Figure`, ``describe_<name>`` the sentence with its numbers that is alternative
text and caption.
"""

from natcompanion.chapters.show import Picture, Table, digits

__all__ = ["Picture", "Table", "digits"]
