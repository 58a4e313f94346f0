"""The numbers, tables and claims of Foundations."""
