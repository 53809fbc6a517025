"""Normalize a model and a prompt given in any supported form, for explorers and measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from transformers import PreTrainedModel

from workbench import models
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput, kind_of
from workbench.core.utils.annotations import Requirement
from workbench.data import layouts, prompt_view
from workbench.data.prompt_view import PromptView
from workbench.data.sample import Sample
from workbench.models.checkpoints import base_folder
from workbench.models.loading import Loaded
from workbench.models.model_card import layout_of, tokenizer_of
from workbench.models.model_names import folder

MODEL = Requirement("a name, a folder or what models.load returns")
PROMPT = Requirement("a text, a list of at least two texts, a Prompt or a Sample")
Model = Annotated[str | Path | Loaded | PreTrainedModel | tuple[Any, ...], MODEL]
Given = Annotated[str | Sequence[str] | Prompt | Sample | PromptView, PROMPT]


def loaded_of(model: Model) -> Loaded:
    """Return a model with tokenizer and layout.

    `model` is a name, a folder, the result of `models.load`, (model, tokenizer) with or without a layout, or a
    transformers model with the path of its folder. Raises BadInput for other values.
    """
    match model:
        case Loaded():
            return model
        case str() | Path():
            return models.load(model)
        case PreTrainedModel():
            place = folder(str(model.name_or_path))
            tokenizer = tokenizer_of(base_folder(place))
            return Loaded(model, tokenizer, layout_of(place, tokenizer))
        case (PreTrainedModel() as lm, tokenizer):
            return Loaded(lm, tokenizer, layout_of(folder(str(lm.name_or_path)), tokenizer))
        case (PreTrainedModel() as lm, tokenizer, layout):
            return Loaded(lm, tokenizer, layout)
    raise BadInput(f"model is {kind_of(model)}: it must be {MODEL.text}")


def reading_of(loaded: Loaded, prompt: Given, question: str = "") -> PromptView:
    """Return a prompt with the text of its tokens.

    `prompt` is a text (passages separated by blank lines; its last paragraph is the question unless `question` is
    given), a list of block texts (the last one is the question), a `Prompt`, a `Sample` or a `PromptView`. Raises
    BadInput for other values.
    """
    _, tokenizer, layout = loaded
    match prompt:
        case PromptView():
            return prompt
        case Sample():
            return prompt_view.of_sample(prompt, f"sample {prompt.id}", tokenizer, layout)
        case Prompt():
            texts = prompt_view.texts(prompt, tokenizer)
            return PromptView(prompt, texts, "a prompt", str(tokenizer.decode(list(prompt.blocks[-1].tokens))).strip())
        case str():
            text, _, last = (prompt.strip(), "", question) if question else prompt.strip().rpartition("\n\n")
            if not text:
                raise BadInput("the prompt is one paragraph: give passages, a blank line, and the question behind it")
            return prompt_view.of_text(text, last, tokenizer, layout)
    if isinstance(prompt, Sequence) and len(prompt) > 1 and all(isinstance(piece, str) for piece in prompt):
        pieces = tuple(prompt)
        (joined,) = layouts.prompts([list(pieces)], tokenizer, bos=layout.bos)
        return PromptView(joined, prompt_view.texts(joined, tokenizer), "own blocks", pieces[-1].strip(), pieces=pieces)
    raise BadInput(f"prompt is {kind_of(prompt)}: it must be {PROMPT.text}")


def model_and_prompt(model: Model, prompt: Given, question: str = "") -> tuple[PreTrainedModel, Prompt]:
    """Return the transformers model and the prompt, from the forms that `loaded_of` and `reading_of` accept.

    A tokenizer is needed only if the prompt is text.
    """
    if isinstance(prompt, Prompt | PromptView):
        lm = model[0] if isinstance(model, tuple) and model else model
        lm = lm if isinstance(lm, PreTrainedModel) else loaded_of(model).model
        return lm, prompt if isinstance(prompt, Prompt) else prompt.prompt
    loaded = loaded_of(model)
    return loaded.model, reading_of(loaded, prompt, question).prompt
