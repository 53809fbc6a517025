"""The lab model's tokenizer: byte-level BPE trained on the lab corpus.

Any text round-trips, and every word of the lab world is a single token.
"""

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workbench.data import segment
from workbench.data.lab_corpus.world import World, passages_of
from workbench.data.layouts import LAB, Layout

SPECIALS = ("<pad>", "<s>", "</s>")


def _texts(worlds: int, layout: Layout) -> Iterator[str]:
    for index in range(worlds):
        world = World(Random(f"lab tokenizer {index}"), 10)
        context = world.context(10)
        yield layout.system
        yield from segment.passages(passages_of(context), layout.passage)
        for kind, subjects in world.questions(context).items():
            for about in world.rng.sample(subjects, min(len(subjects), 8)):
                question = world.ask(kind, about)
                yield layout.question.format(question=question.text) + layout.answer.format(answer=question.answers[0])


def train_tokenizer(vocab_size: int = 2048, worlds: int = 4000, layout: Layout = LAB) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` tokens on so many worlds.

    The same arguments give the same tokenizer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(worlds, layout), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=2560,
        clean_up_tokenization_spaces=False,
    )
