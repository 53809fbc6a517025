"""The interactive prompt editor as a widget: the browser sends requests, and a thread answers the latest one.

Call `prompt(model, prompt)`. The state of the widget is in its traits: `wanted` (the user's choices), `text`,
`answers`, `bill` and `heat` (results, each with the `revision` of the request that it answers).
"""

import threading
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

import anywidget
import traitlets

from workbench.app.explore.debounce import Debounced, Superseded
from workbench.app.explore.editor.answers import TURNS, PromptAnswers
from workbench.app.explore.editor.choices import EditorRequest
from workbench.app.explore.editor.grid import about_left, answered_page, first_request
from workbench.app.explore.editor.html import HERE, PARTS, script, summary
from workbench.app.explore.editor.stored import PromptPage
from workbench.app.explore.keeping import StillView
from workbench.app.explore.live import WITHOUT, Selection, selection_of
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.utils.stages import stage
from workbench.core.utils.watched import progress_shown
from workbench.models.given import Given, Model

RESULTS = ("text", "answers", "bill", "heat")
TICK = 1.0  # seconds between estimates of the time left


class PromptWidget(anywidget.AnyWidget):
    """Blocks of a prompt as text that can be moved, edited, removed and added, with answers side by side.

    token    position of the marked token, or None; `hovered` follows the mouse
    asked    {token, layer} whose attention per head is requested; `looked` is the answer
    problem  why the request cannot be answered, or ""
    """

    _esm = script(*PARTS)
    _css = (HERE / "prompt_widget.css").read_text(encoding="utf-8")
    options = traitlets.Dict().tag(sync=True)
    wanted = traitlets.Dict().tag(sync=True)
    text = traitlets.Dict().tag(sync=True)
    answers = traitlets.Dict().tag(sync=True)
    bill = traitlets.Dict().tag(sync=True)
    heat = traitlets.Dict().tag(sync=True)
    busy = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)
    token = traitlets.Int(None, allow_none=True).tag(sync=True)
    hovered = traitlets.Int(None, allow_none=True).tag(sync=True)
    asked = traitlets.Dict().tag(sync=True)
    looked = traitlets.Dict().tag(sync=True)

    def __init__(self, work: PromptAnswers, wanted: EditorRequest, options: dict[str, Any]):
        self._sending = threading.RLock()  # serialises incoming requests and outgoing answers
        self._work, self._newest = work, Debounced(self._answer)
        self._selection: Selection | None = None
        self._timed_since = 0.0
        self._said = ""  # the last complete answer, for readers without widgets
        self._kept = StillView(lambda: self._said)
        super().__init__(options=options, wanted=wanted.to_json())
        # Requests arrive while a cell runs: otherwise ipykernel would hold them for the thread that sent last.
        self.comm._reply_subshell_for = lambda data, subshell: subshell
        self.observe(self._ask, "wanted")
        self.observe(self._mark_elsewhere, ["token", "hovered"])
        self.observe(self._look, "asked")
        self._ask(None)

    def __repr__(self) -> str:
        return WITHOUT

    def change(self, **fields: Any) -> "PromptWidget":
        """Change the request by fields of a saved state; return self.

        Fields: `blocks`, `prepare`, `select`, `ratio`, `positions`, `sparse`; `beside`, a list of the last five for
        every compared method; `place`, how many of these are shown left of the chosen one.
        """
        if unknown := set(fields) - set(self.wanted):
            raise BadInput(f"{sorted(unknown)[0]!r} cannot be changed: there are {', '.join(self.wanted)}")
        values = {**self.wanted, **fields, "revision": self.wanted["revision"] + 1}
        EditorRequest.of(values)
        self.wanted = values
        return self

    def wait(self, timeout: float | None = None) -> "PromptWidget":
        """Wait up to `timeout` seconds for the latest request to be answered; return self."""
        self._newest.wait(timeout)
        return self

    @property
    def record(self) -> dict[str, Any]:
        """The latest answered request: {wanted, text, answers, bill, heat, problem}."""
        return {name: getattr(self, name) for name in ("wanted", *RESULTS, "problem")}

    def save(self, path: str | PathLike[str], **grid: Any) -> Path:
        """Write a page that needs no kernel: the same prompt over a grid of orders, selectors and ratios.

        `grid`: arguments of `answered_page`. The page is self-contained and works offline.
        """
        return self.page(**grid).write(path)

    def page(self, **grid: Any) -> PromptPage:
        """Answer the prompt over a grid and return the page; `grid`: arguments of `answered_page`.

        An interactive session shows what is computed, and an estimate of the time left.
        """
        with progress_shown("answers", grid.pop("progress", None)) as progress:
            seconds = 0.0
            while not self._newest.wait(seconds):
                doing = f" ({self.busy[:1].lower()}{self.busy[1:]})" if self.busy else ""
                stage(f"waiting for the editor above{doing}{about_left(self._timing_left())}")
                seconds = TICK
            answered = {"progress": progress, "expected_seconds": self._turn() / (1 + len(self.wanted["beside"]))}
            work, wanted = self._work.with_empty_caches(), EditorRequest.of(self.wanted)
            return answered_page(work, wanted, self.options, **answered | grid)

    def _turn(self) -> float:
        """Return the seconds to the first token of all columns: measured, or by the operations of the chosen method."""
        if not self.bill:
            return 0.0
        chosen, flops = self.bill["seconds"]["method"], self.bill["flops"]
        beside = [one["seconds"]["method"] if one else chosen for one in self.bill["beside"]]
        full = self.answers.get("seconds_full") or chosen * flops["full"] / flops["method"]
        return float(full + chosen + sum(beside))

    def _timing_left(self) -> float:
        """Return the estimated seconds until all columns are timed again; 0 before the first answer."""
        timed = perf_counter() - self._timed_since if self.busy == TIMING else -self._turn()
        return max(1.0, TURNS * self._turn() - timed) if self.bill else 0.0

    def set_state(self, sync_data: dict[str, Any]) -> None:
        with self._sending:
            super().set_state(sync_data)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None and self._said:
            data["text/html"] = self._said
        return bundle

    def _ipython_display_(self, **kwargs: Any) -> None:
        self._kept.display(self._repr_mimebundle_(**kwargs))

    def _look(self, _: Any) -> None:
        token, layer = self.asked.get("token"), self.asked.get("layer")
        if isinstance(token, int) and isinstance(layer, int):
            self.looked = self._work.attention_from(token, layer) or {}

    def _ask(self, _: Any) -> None:
        self._newest.ask(self.wanted)

    def _answer(self, values: dict[str, Any], alive: Callable[[], None]) -> None:
        """Answer one request, in the thread; a refusal is stored in `problem`."""
        problem, cold = "", not self.answers
        try:
            wanted = EditorRequest.of(values)
            for name, result in self._work.stages(wanted, alive, cold):
                if name == "text":
                    self._follow(result.pop("prompt"))
                self._show(busy=BUSY[name], **{name: {**result, "revision": values["revision"]}})
            self._keep(wanted)
            self._timed_since = perf_counter()
            self._show(busy=TIMING)
            for name, result in self._work.timed_again(alive):
                self._show(**{name: {**result, "revision": values["revision"]}})
            self._keep(wanted)
        except BadInput as error:
            problem = str(error)
        except Superseded:
            raise
        except Exception as error:  # would go unseen in a thread
            problem = f"{type(error).__name__}: {error}"
        self._show(busy="", problem=problem)

    def _keep(self, wanted: EditorRequest) -> None:
        """Keep the complete answer for readers without widgets."""
        self._said = summary(self.record, wanted.names)
        self._kept.update()

    def _follow(self, prompt: Prompt) -> None:
        """Share the marked token with the explorers of this prompt."""
        if self._selection is not None:
            self._selection.unobserve(self._mark_here, "token")
        self._selection = selection_of(prompt)
        self._selection.observe(self._mark_here, "token")

    def _mark_here(self, change: dict[str, Any]) -> None:
        self.unobserve(self._mark_elsewhere, ["token", "hovered"])  # the change came from there
        self.token = None if change["new"] < 0 else change["new"]
        self.observe(self._mark_elsewhere, ["token", "hovered"])

    def _mark_elsewhere(self, _: Any) -> None:
        marked = self.token if self.hovered is None else self.hovered
        if self._selection is not None:
            self._selection.unobserve(self._mark_here, "token")  # the change came from here
            self._selection.token = -1 if marked is None else marked
            self._selection.observe(self._mark_here, "token")

    def _show(self, **traits: Any) -> None:
        with self._sending, self.hold_sync():
            for name, value in traits.items():
                setattr(self, name, value)


BUSY = {
    "text": "Caching and recomputing",
    "bill": "Answering with the chosen method",
    "answers": "Answering",
    "heat": "",
}
TIMING = "Timing all columns in turns"


def prompt(model: Model, prompt: Given, question: str = "", **chosen: Any) -> PromptWidget:
    """Show the prompt editor: move, edit, remove and add blocks; see all answers and every token's values.

    model     a name or folder, or what `models.load` returns
    prompt    a text (its last paragraph is the question, unless `question` is given), the texts of the blocks (the
              question last), a `Prompt` or a `Sample`
    chosen    initial choices: `select` ("query_guided"), `ratio` (0.15), `prepare` ("after_system",
              "independent"), `positions` ("re-encoded", "naive"), `sparse` ("none"); `beside`, a list of these for
              every further method (plain reuse), and `place`, how many of them are shown left; `max_new_tokens` (24);
              `answers`, the correct ones (of a `Sample`: its own)

    Raises BadInput for an invalid model, prompt or method.
    """
    with progress_shown("prompt"):
        work, wanted, options = first_request(model, prompt, question, **chosen)
        return PromptWidget(work, wanted, options)
