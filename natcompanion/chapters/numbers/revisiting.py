"""The numbers, tables and claims of *Revisiting Natural Gradient*."""
