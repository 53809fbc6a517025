"""The pictures of docs/guide/notebooks.md: explorers as JupyterLab shows them.

python docs/explorers.py [FOLDER]        writes one PNG file per explorer; needs Chromium and playwright
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from picture import with_palette
from playwright.sync_api import Error, Page, sync_playwright

FOLDER = Path(__file__).parent / "_static" / "tutorial"
ROOT = Path(__file__).resolve().parents[1]
PORT, TOKEN = 8931, "pictures"
BEGIN = """from workbench import data, explore, models

loaded = models.load("lab-full")
(sample,) = data.load("lab", samples=1, passages=4)"""
TRIALS = """from workbench import Trial, sweep

some = Trial("lab-full", samples=40, mode="block")
tried = sweep(some, loaded=loaded, select=["query_guided", "first_k", "random"], ratio=[0.05, 0.15, 0.4])
"""
CELLS = {
    "explore_masks": 'explore.masks(loaded, sample, rule="causal & (same_block | window(8))")',
    "explore_deviation": "explore.deviation(loaded, sample)",
    "explore_tokens": "explore.tokens(loaded, sample)",
    "explore_latency": "explore.latency(loaded, sample)",
    "explore_sparse": "explore.sparse(loaded, sample, tile=16)",
    "explore_tradeoff": TRIALS + "explore.tradeoff(tried)",
    "explore_store": "explore.store(Trial('lab-full', samples=24, mode='block', receipt=True).run(loaded=loaded))",
}
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # renders all cells
    "apputils-extension/notification": {"fetchNews": "false"},
}
OPEN = "localhost:{}/doc/tree/explorers.ipynb?token={}"
SIZE = {"width": 1000, "height": 660}  # maximum px of a picture
READY_S, DRAWN_S = 60, 120


def main(folder: Path = FOLDER) -> None:
    """Write every picture."""
    with tempfile.TemporaryDirectory() as place:
        cells = [new_code_cell(BEGIN), *map(new_code_cell, CELLS.values())]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        nbformat.write(new_notebook(cells=cells, metadata=kernel), Path(place, "explorers.ipynb"))
        command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={PORT}"]
        command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={place}"]
        for name, values in SETTINGS.items():
            (file := Path(place, "settings", "@jupyterlab", f"{name}.jupyterlab-settings")).parent.mkdir(parents=True)
            file.write_text(json.dumps(values))
        environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(Path(place, "settings"))}
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for_server()
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1120, "height": 900})
                page.goto("http://" + OPEN.format(PORT, TOKEN))
                draw(page, folder)
        finally:
            server.terminate()
            server.wait()


def wait_for_server() -> None:
    """Wait until JupyterLab answers."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            urlopen(f"http://localhost:{PORT}/api?token={TOKEN}").close()
            return
        except OSError:
            time.sleep(0.5)
    sys.exit("JupyterLab did not answer")


def draw(page: Page, folder: Path) -> None:
    """Run all cells, and write a picture of each output but the first."""
    page.wait_for_selector(".jp-Cell", timeout=READY_S * 1e3)
    page.wait_for_timeout(3000)
    page.locator(".jp-Cell").first.click()
    page.keyboard.press("Escape")
    if page.locator("#jp-left-stack").is_visible():
        page.keyboard.press("Control+b")  # hides the file browser
        page.wait_for_timeout(1000)
    for _ in range(len(CELLS) + 1):
        page.keyboard.press("Shift+Enter")
    for number, name in enumerate(CELLS, 1):
        cell = page.locator(".jp-CodeCell").nth(number)
        output = cell.locator(".jp-OutputArea-output:has(.main-svg)").first
        try:
            output.wait_for(timeout=DRAWN_S * 1e3)
        except Error:
            sys.exit(f"{name} was not drawn: {cell.inner_text()[:300]}")
        page.wait_for_timeout(2500)
        output.evaluate("output => output.scrollIntoView()")
        page.wait_for_timeout(500)
        box = output.bounding_box()
        assert box is not None
        size = {side: min(most, box[side]) for side, most in SIZE.items()}
        picture = page.screenshot(clip={"x": box["x"], "y": box["y"], **size})
        (folder / f"{name}.png").write_bytes(with_palette(picture))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
