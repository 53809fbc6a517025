"""Look up the blocks of a data set in a store and explain the misses; nothing is computed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench import data, models
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.data import layouts
from workbench.data.retrieval_corpus import Corpus
from workbench.methods import prepare
from workbench.methods.preprocessing.fields import LookupFields
from workbench.methods.preprocessing.precompute import kind_of
from workbench.methods.registry import find_policy, is_whole
from workbench.models.loading import Loaded
from workbench.models.spec import attach
from workbench.store import Miss
from workbench.store.files import manifest
from workbench.store.misses import identity_of
from workbench.store.urls import Where, opened


@dataclass(frozen=True)
class ExplainedMiss:
    """Result of looking up a data set, each block once; `differs` tells how the folder's kind differs, if it does."""

    folder: str
    prepare: str
    hits: int
    misses: tuple[tuple[Miss, str], ...]  #: with the label of the block
    differs: str = ""

    @property
    def reasons(self) -> dict[str, int]:
        """Misses by reason, the most frequent first."""
        return dict(Counter[str](miss.reason for miss, _ in self.misses).most_common())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        misses = [{"block": label} | vars(miss) | {"key": str(miss.key)} for miss, label in self.misses]
        counts = {"hits": self.hits, "misses": len(misses), "reasons": self.reasons}
        return {"folder": self.folder, "prepare": self.prepare, **counts, "missed": misses, "differs": self.differs}


@dataclass(frozen=True)
class Lookups(LookupFields):
    """The look-ups that a trial with these options would make in `folder`.

    Raises BadInput for unknown names and damaged files, as a trial does. A folder of another model or preprocessing
    gives misses instead of an error.
    """

    def run(self, loaded: Loaded | None = None) -> ExplainedMiss:
        """Look up every block in the folder; `loaded` is the model, if it is already in memory."""
        layouts.check(self.layout)
        if not is_whole(self.samples, 1):
            raise BadInput(f"samples is {self.samples!r}: a whole number of at least 1 is needed")
        store = opened(self.folder)
        spec = self.prepare or str(store.kind.get("preparation", "independent"))
        policy_class, _ = find_policy(prepare.__name__, spec, ("corpus",))
        samples = data.load(self.data, self.samples, self.seed, self.passages, answered=False)
        loaded = Loaded(*(loaded or models.load(self.model, self.device, self.dtype, self.layout)))
        model, tokenizer, layout = loaded.with_layout(self.layout)
        attach(model)
        given: dict[str, Any] = {}
        if hasattr(policy_class, "neighbours"):
            texts = data.corpus(self.data, self.samples, self.seed, self.passages)
            given["corpus"] = Corpus.of(texts, layout, tokenizer)
        prompts = layout.prompts(samples, tokenizer)
        policy = prepare.from_spec(spec, **given)
        probe = KeyProbe(loaded.spec.empty(1))
        policy(model, prompts, probe)
        labels = {block.content: block.label for prompt in prompts for block in prompt.context}
        expected = {name: value for name, value in kind_of(model, policy, tokenizer).items() if name in store.kind}
        words = expected.get(manifest.TOKENIZER) != store.kind.get(manifest.TOKENIZER)
        misses = []
        for key in probe.keys:
            if store.get(key) is None:
                identity = identity_of(key)
                miss = _of_model(store.miss_reason(key)) if words else store.miss_reason(key)
                misses.append((miss, labels.get(identity.block, "") if identity else ""))
        differs = _difference(self.folder, store.kind, expected)
        return ExplainedMiss(str(self.folder), spec, len(probe.keys) - len(misses), tuple(misses), differs)


def _of_model(miss: Miss) -> Miss:
    """Return the miss of a model that splits texts into other tokens: no stored block can have the tokens asked for."""
    return Miss(miss.key, "other model", "it has another tokenizer") if miss.reason == "never seen" else miss


def _difference(place: Where, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return how the kind of the stored blocks differs from the expected one; "" if it does not."""
    try:
        manifest.check_kind(place, dict(stored), {**stored, **expected})
    except BadInput as problem:
        return str(problem)
    return ""


class KeyProbe:
    """A store that records requested keys and returns a dummy KV, so nothing is encoded."""

    def __init__(self, kv: KV):
        self.kv = kv
        self.keys: dict[str, KV] = {}

    def get(self, key: str) -> KV:
        """Record the key, and return a dummy KV."""
        if key not in self.keys:
            self.keys[key] = KV(self.kv.keys, self.kv.values, self.kv.start, read_only=True)
        return self.keys[key]

    def put(self, key: str, kv: KV) -> None:
        """Do nothing."""
