"""The numbers, tables and claims of *The Natural Gradient by Analogy to Signal Whitening*."""
