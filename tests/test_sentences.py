"""Every sentence that claims much has a test or a claim that would fail if it were false."""

from tests import sentences


def test_every_strong_sentence_has_its_evidence():
    assert sentences.faults() == []
