"""A sample of the book's own records, run again: seconds, on data that packages ship."""

from natcompanion.chapters.experiments import verifying


def test_a_sample_of_stored_records_comes_out_again():
    """Values and verdicts of ten files; ``natcompanion verify`` runs any others."""
    checks = list(verifying.verify(sample=10, seed=1, budget=10, packaged=True))
    assert len({(check.old.experiment, check.old.preset) for check in checks}) == 10
    wrong = [f"{check.old}: {check}" for check in checks if not check.agrees or check.skipped]
    assert not wrong, "\n".join(wrong)
