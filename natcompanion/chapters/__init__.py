"""The book's wing: experiments, their stored results, the numbers and figures drawn from them, the
ledgers.

It needs the extra ``natcompanion[book]``; the library beside it needs torch, numpy and scipy alone.
"""
