"""The numbers, tables and claims of *Natural Neural Networks*."""
