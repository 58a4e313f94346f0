"""The numbers, tables and claims of *Natural Boltzmann Machines*."""
