"""The naive twins: each fast function of the library written out in a few lines anyone can check by eye."""

