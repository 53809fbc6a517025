"""A real JupyterLab in a real, headless Chromium, for tests of what a reader sees. Nothing leaves the machine.

def test_slider(lab):                       # fixture of tests/conftest.py
    with lab.open(path_of_notebook) as page:
        page.run_all()
        before = page.figure(0)
        page.move_slider()
        assert page.figure(0) != before
        assert page.left_the_machine == []
"""

import contextlib
import functools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, sync_playwright

from workbench.app.notebooks import forked
from workbench.app.reports.thumbnail import chromium

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--use-gl=angle", "--use-angle=swiftshader"]
FLAGS += ["--enable-unsafe-swiftshader", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {
        "windowingMode": "none"
    },  # keep cells that are off-screen in the document
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},  # as `make lab` does
}
NOTEBOOK = "window.jupyterapp.shell.currentWidget"
IDLE = f"""() => {{ const panel = {NOTEBOOK};
  const busy = panel.content.widgets.some(cell => cell.model.type === 'code'
    && (cell.model.executionState === 'running' || cell.promptNode?.textContent.includes('*')));
  return panel.context.sessionContext.session?.kernel?.status === 'idle' && !busy; }}"""
LOADED = """() => Promise.resolve(globalThis.workbenchPlotly)
  .then(() => new Promise(done => requestIdleCallback(() => done(true))))"""  # plotly's script, and what waits for it
OPEN = f"""async path => {{
  await window.jupyterapp.commands.execute('docmanager:open', {{path}});
  const context = {NOTEBOOK}.context;
  if (context.path !== path) throw new Error(`${{context.path}} is in front of ${{path}}`);
  await context.ready; await context.sessionContext.ready; }}"""
CLOSE = f"async () => {{ const panel = {NOTEBOOK}; await panel.sessionContext.shutdown(); panel.dispose(); }}"
ERRORS = f"""() => {NOTEBOOK}.content.widgets
  .flatMap(cell => cell.model.type === 'code' ? cell.model.outputs.toJSON() : [])
  .filter(output => output.output_type === 'error').map(error => `${{error.ename}}: ${{error.evalue}}`)"""
CHANGE_THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
# What a figure draws, without what merely changes with its size on screen.
FIGURE = """number => { const plot = document.querySelectorAll('.js-plotly-plot')[number];
  return plot && JSON.stringify([plot.data, plot.layout.title, plot.layout.shapes, plot.layout.annotations]); }"""
# Where on the screen the figure has data: the middle point of its first trace, or the middle of the plot.
POINT = """number => { const plot = document.querySelectorAll('.js-plotly-plot')[number];
  const {xaxis: x, yaxis: y} = plot._fullLayout, box = plot.getBoundingClientRect(), points = plot.calcdata[0];
  const middle = points.length > 1 ? points[Math.floor(points.length / 2)] : null;
  return [box.left + x._offset + (middle ? x.c2p(middle.x) : x._length / 2),
          box.top + y._offset + (middle ? y.c2p(middle.y) : y._length / 2)]; }"""


class Reader:
    """One page of the browser: a notebook in JupyterLab, or a page of a report."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.forget()
        page.route("**/*", self._guard)
        page.on("pageerror", lambda error: self.problems.append(f"{error}: {error.stack}"[:1500]))

    def forget(self) -> None:
        """Begin anew with what the page asked for and what went wrong in it."""
        self.left_the_machine: list[str] = []
        self.problems: list[str] = []

    def _guard(self, route: Route) -> None:
        url = route.request.url
        if url.startswith(("data:", "blob:", "file:")) or url.split("/")[2].split(":")[0] == "127.0.0.1":
            route.continue_()
        else:
            self.left_the_machine.append(url)
            route.abort()

    def run_all(self, timeout_s: float = 120) -> None:
        """Run every cell and wait until the kernel is idle."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)")
        self.page.wait_for_function(IDLE, timeout=timeout_s * 1000, polling=200)  # not at every frame

    def run_each(self, timeout_s: float = 120) -> None:
        """Run the cells in turn, each when the page is idle again: anywidget gives a script two seconds to start."""
        for _ in range(self.page.evaluate(f"() => {NOTEBOOK}.content.widgets.length")):
            self.page.evaluate(
                "() => window.jupyterapp.commands.execute('notebook:run-cell-and-select-next').then(() => true)"
            )
            self.page.wait_for_function(IDLE, timeout=timeout_s * 1000, polling=200)
            self.page.evaluate(LOADED)

    def restart(self) -> None:
        """Restart the kernel of the notebook."""
        self.page.evaluate(f"() => {NOTEBOOK}.sessionContext.session.kernel.restart().then(() => true)")

    def wait_for_figures(self, at_least: int = 1, timeout_s: float = 30) -> int:
        """Wait until figures are drawn; returns how many there are."""
        drawn = self.page.locator(".js-plotly-plot:has(.main-svg)")
        until = time.monotonic() + timeout_s
        while (count := drawn.count()) < at_least and time.monotonic() < until:
            self.page.wait_for_timeout(100)
        return count

    def figure(self, number: int = 0) -> str | None:
        """What the figure draws (data, title, shapes, annotations) as JSON text; None if there is no such figure."""
        return self.page.evaluate(FIGURE, number)

    def move_slider(self, number: int = 0, steps: int = 3, key: str = "ArrowRight", settle_s: float = 20) -> bool:
        """Move an ipywidgets slider with the keyboard; whether a figure changed within `settle_s`."""
        everything = f"() => [...document.querySelectorAll('.js-plotly-plot')].map((_, n) => ({FIGURE})(n)).join()"
        before = self.page.evaluate(everything)
        handle = self.page.locator(".widget-slider .noUi-handle").nth(number)
        handle.scroll_into_view_if_needed()
        handle.focus()
        for _ in range(steps):
            self.page.keyboard.press(key)
        until = time.monotonic() + settle_s
        while self.page.evaluate(everything) == before:
            if time.monotonic() > until:
                return False
            self.page.wait_for_timeout(100)
        return True

    def hover(self, number: int = 0, timeout_s: float = 10) -> str:
        """Text that appears when the mouse rests on the figure's data (cartesian axes)."""
        self.page.locator(".js-plotly-plot").nth(number).scroll_into_view_if_needed()
        x, y = self.page.evaluate(POINT, number)
        self.page.mouse.move(x + 5, y + 5)
        self.page.mouse.move(x, y, steps=3)
        text = self.page.locator(".js-plotly-plot").nth(number).locator(".hoverlayer .hovertext").first
        text.wait_for(timeout=timeout_s * 1000)
        return text.text_content() or ""

    def theme(self, dark: bool) -> None:
        """Change JupyterLab's theme, and wait until the picture over the page has gone that covers the change.

        Where another change begins while that picture fades, JupyterLab removes it twice: an error of `removeChild`.
        """
        name = f"JupyterLab {'Dark' if dark else 'Light'}"
        self.page.evaluate(CHANGE_THEME, name)
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def errors(self) -> list[str]:
        """What cells of the notebook that ended in an error say."""
        return self.page.evaluate(ERRORS)

    def screenshot(self, path: Path) -> None:
        self.page.screenshot(path=path, full_page=True)


class JupyterLab:
    """JupyterLab on the loopback address, which starts when its address is first asked for, and ends with `stack`.

    Its kernels are run by the command that `python` gives, in place of `python -m`.
    """

    def __init__(self, folder: Path, python: Callable[[], Sequence[str]], stack: contextlib.ExitStack) -> None:
        self.folder, self.root, self.python, self.stack = folder, folder / "root", python, stack

    @functools.cached_property
    def address(self) -> str:
        self.root.mkdir(parents=True)
        kernels = forked.kernel_in(self.folder / "kernels", self.python())
        return self.stack.enter_context(_server(self.folder, self.root, kernels))


class Lab:
    """A browser, beside JupyterLab."""

    def __init__(self, browser: Browser, jupyterlab: JupyterLab) -> None:
        self.browser, self.jupyterlab = browser, jupyterlab
        self.stack = contextlib.ExitStack()

    @functools.cached_property
    def reader(self) -> Reader:
        """JupyterLab, loaded once for all notebooks."""
        address = self.jupyterlab.address
        reader = self.stack.enter_context(self._reader())
        reader.page.goto(address)
        reader.page.wait_for_function("() => window.jupyterapp", timeout=60_000)
        reader.page.evaluate("() => window.jupyterapp.restored.then(() => window.jupyterapp.shell.collapseLeft())")
        return reader

    @contextlib.contextmanager
    def open(self, notebook: Path) -> Iterator[Reader]:
        """A copy of `notebook` in JupyterLab, not trusted, its kernel ready."""
        reader = self.reader
        shutil.copy(notebook, self.jupyterlab.root)
        reader.forget()
        reader.page.evaluate(OPEN, notebook.name)
        try:
            yield reader
        finally:
            reader.page.evaluate(CLOSE)

    @contextlib.contextmanager
    def page(self, file: Path) -> Iterator[Reader]:
        """An HTML file, opened from disk."""
        with self._reader() as reader:
            reader.page.goto(file.resolve().as_uri())
            yield reader

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Reader]:
        context = self.browser.new_context(viewport={"width": 1400, "height": 1800})
        try:
            yield Reader(context.new_page())
        finally:
            context.close()


@contextlib.contextmanager
def lab(jupyterlab: JupyterLab) -> Iterator[Lab]:
    """Start the browser."""
    with (
        sync_playwright() as playwright,
        contextlib.closing(playwright.chromium.launch(executable_path=chromium(), args=FLAGS)) as browser,
    ):
        running = Lab(browser, jupyterlab)
        with running.stack:
            yield running


@contextlib.contextmanager
def _server(folder: Path, root: Path, kernels: str) -> Iterator[str]:
    """Start JupyterLab over the notebooks of `root`; `folder` is scratch space. Gives the address of its first page."""
    for name, settings in SETTINGS.items():
        path = folder / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(settings))
    own: dict[str, Any] = {"JUPYTER_PREFER_ENV_PATH": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    own["JUPYTER_PATH"] = kernels
    for variable, name in [
        ("JUPYTER_CONFIG_DIR", "config"),
        ("JUPYTER_DATA_DIR", "data"),
        ("JUPYTER_RUNTIME_DIR", "runtime"),
        ("JUPYTERLAB_SETTINGS_DIR", "settings"),
        ("JUPYTERLAB_WORKSPACES_DIR", "workspaces"),
    ]:
        own[variable] = str(folder / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, log = secrets.token_hex(16), folder / "jupyterlab.log"
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0", "--allow-root"]
    options += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"]
    options += ["--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly", "--LabApp.news_url="]
    options += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with log.open("wb") as output:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, env=os.environ | own, stdout=output, stderr=output)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(server, f"{address}/api/status?token={token}", log)
        yield f"{address}/lab?reset&token={token}"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_for(server: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
