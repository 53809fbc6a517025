"""Vectors that were saved are an embedder of their own."""

import numpy as np
import pytest

from workbench.core.errors import BadInput
from workbench.data import embedders
from workbench.data.retrieval_corpus import nearest

TEXTS = ("the cat sat on the mat", "a cat on a mat", "stocks fell on Monday", "stocks rose on Friday")


def test_saved_vectors_find_the_same_neighbours_in_any_order_of_the_texts(tmp_path):
    path = tmp_path / "vectors.npz"
    embedders.save(path, TEXTS, "tfidf")
    for texts in (TEXTS, TEXTS[::-1], TEXTS[:3]):
        saved = embedders.embed(texts, str(path))
        np.testing.assert_allclose(saved, embedders.embed(TEXTS, "tfidf")[[TEXTS.index(t) for t in texts]], atol=1e-3)
    np.testing.assert_array_equal(nearest(TEXTS, 1, str(path), "exact"), nearest(TEXTS, 1, "tfidf", "exact"))


def test_files_of_vectors_that_do_not_fit_are_refused_in_one_sentence(tmp_path):
    path, broken = tmp_path / "vectors.npz", tmp_path / "broken.npz"
    embedders.save(path, TEXTS[:2], "tfidf")
    broken.write_bytes(path.read_bytes()[:90])
    with pytest.raises(BadInput, match=r"no vector of 2 of 4 texts, first 'stocks fell"):
        embedders.embed(TEXTS, str(path))
    with pytest.raises(BadInput, match="not a file of vectors, or is not whole"):
        embedders.embed(TEXTS, str(broken))
    with pytest.raises(BadInput, match="no such file of vectors"):
        embedders.check(str(tmp_path / "missing.npz"))
    with pytest.raises(BadInput, match=r"ends in \.npz"):
        embedders.save(tmp_path / "vectors.npy", TEXTS, "tfidf")
    assert not (tmp_path / "vectors.npy").exists()
