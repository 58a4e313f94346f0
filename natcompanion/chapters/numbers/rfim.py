"""The numbers, tables and claims of *Relative Natural Gradient*."""
