"""Training examples from states of a card game: every leaf group of a state a block, several questions over it."""

from random import Random

from transformers import PreTrainedTokenizerBase

from workbench.core.errors import BadInput
from workbench.data import game, layouts
from workbench.data.layouts import Layout
from workbench.experiments import sessions
from workbench.training.tuning.example import Example, Limits, QuestionAnswer

NAME = "game"
MOVES = (game.OPENING, 400)  # before the state: so many that chips have gone far


class Game:
    """States of one table after random numbers of moves; no seed of `game.frames` can spell the names of these games.

    questions   asked of a state, fewer where one is drawn twice
    """

    def __init__(
        self, layout: Layout, tokenizer: PreTrainedTokenizerBase, limits: Limits, seed: int = 0, questions: int = 24
    ):
        if questions < 1:
            raise BadInput(f"questions is {questions}: at least 1 a context is needed")
        self.layout, self.tokenizer, self.limits = layout, tokenizer, limits
        self.seed, self.questions = seed, questions
        self.identity = f"{NAME}, {questions} questions, kinds {' '.join(game.ALL_KINDS)}"
        for i in range(4):  # all are of one length, nearly
            limits.check(self[i])

    def __getitem__(self, i: int) -> Example:
        rng = Random(f"game tune {self.seed} {i}")
        frames = game.moment(rng, rng.randint(*MOVES), self.questions)
        steps = sessions.of_game(frames, self.layout)
        context = layouts.prompts([steps[0].pieces], self.tokenizer, bos=self.layout.bos)[0].context
        asked = layouts.encode([step.pieces[-1] for step in steps], self.tokenizer)
        given = layouts.encode([self.layout.answer.format(answer=step.answers[0]) for step in steps], self.tokenizer)
        questions = [QuestionAnswer(tuple(q), tuple(a)) for q, a in zip(asked, given, strict=True)]
        name = f"game-tune-{self.seed}-{i}"
        return self.limits.check(Example(name, tuple(block.tokens for block in context), tuple(questions)))
