"""Figure 7a of FusionRAG: shares stand beside the printed ones, and the sentence turns with them."""

import together

from workbench.data.sample import Passage, Sample


def test_a_share_counts_passages_with_another_of_their_question():
    words = (("red apple pie", "red apple cake"), ("green sea wave", "blue sky cloud"))
    samples = [
        Sample(str(i), "?", ("A",), tuple(Passage(f"p{i}{j}", text) for j, text in enumerate(texts)))
        for i, texts in enumerate(words)
    ]
    assert together.shares(samples, "tfidf", 3) == [1.0, 1.0]
    assert together.shares(samples, "tfidf", 1)[0] == 1.0
