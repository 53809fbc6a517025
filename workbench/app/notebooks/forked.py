"""Fork processes from one that has imported the workbench already, as the import takes five seconds.

    with served(environment, [...modules]) as python:   # `environment`: what the modules find when they are imported
        subprocess.run([*python, "workbench", "tune"])  # `python -m workbench tune`, in this environment and folder

The command asks the serving process for a fork that runs the module, and ends with its exit code; neither outlives the
other. Only Linux forks safely what has been imported, and no fork may use a GPU that its parent has looked for:
elsewhere, and where there is a GPU, the command is `python -m` itself.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PLAIN = [sys.executable, "-m"]
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
# Neither ipywidgets nor plotly.io's renderers: they look for their kernel when they are imported.
NOTEBOOK = (
    "workbench.models",
    "workbench.experiments.trials.trial",
    "workbench.app.notebooks.notebook",
    "sklearn",
    "ipykernel.kernelapp",
    "nbformat",
    "sklearn.feature_extraction.text",
    "pyarrow.parquet",
    "transformers.models.llama.modeling_llama",
    "workbench.plots.marks.styles",
    "workbench.plots.marks.bars",
    "workbench.app.notebooks.execution",
)


@contextlib.contextmanager
def served(environment: Mapping[str, str], modules: Sequence[str]) -> Iterator[list[str]]:
    """Serve processes until the block ends; gives the command that stands for `python -m`."""
    if not sys.platform.startswith("linux") or any(map(os.path.exists, GPUS)):
        yield PLAIN
        return
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "socket")
        command = [sys.executable, "-P", __file__, "serve", str(address), *modules]
        # In a session of its own: Ctrl-C is for whoever waits for the processes.
        process = subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            while not address.exists() and process.poll() is None:
                time.sleep(0.05)
            yield [sys.executable, "-S", "-P", __file__, "ask", str(address)] if process.poll() is None else PLAIN
        finally:
            process.kill()
            process.wait()


def kernel_in(folder: Path, python: Sequence[str]) -> str:
    """Name the kernel "python3" that `python` runs; return the JUPYTER_PATH where it is found."""
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [*python, "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"display_name": "Python 3", "language": "python", "argv": command}))
    return str(folder)


def serve(address: str, modules: Sequence[str]) -> None:
    """Import `modules`, then fork for everyone who asks, as long as the parent process lives."""
    parent, own = os.getppid(), os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(20)
        os.rename(f"{address}.new", address)  # who finds it is heard
        for name in modules:
            importlib.import_module(name)
        assert threading.active_count() == 1, "a fork of threads may wait for a lock that none of them gives back"
        gc.freeze()  # a fork does not go through, and so copy, what is there already
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        listener.settimeout(5)
        while os.getppid() == parent:
            try:
                asker, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                sys.exit(become(asker, own))
            asker.close()


def become(asker: socket.socket, server: int) -> int:
    """Run what the other side asks for, as long as it and the serving process live; returns the exit code."""
    _, outputs, *_ = socket.recv_fds(asker, 1, 2)
    asked = json.loads(asker.makefile().readline())
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for number, (name, output) in enumerate(zip(("stdout", "stderr"), outputs, strict=True), 1):
        os.dup2(output, number)
        os.close(output)
        before = getattr(sys, name)  # of the serving process, where it may be a file: that a pipe is none is found anew
        setattr(sys, name, os.fdopen(number, "w", 1, before.encoding, before.errors, closefd=False))
    threading.Thread(target=_end_with, args=(asker, server), daemon=True).start()
    code = 0
    sys.argv = asked["words"]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()  # whoever asked goes when it knows the code, and this process with it
    sys.stderr.flush()
    asker.send(bytes([code]))
    return code


def _end_with(asker: socket.socket, server: int) -> None:
    """End this process when the other side hangs up, or the serving process is gone."""
    asker.settimeout(1)
    while os.getppid() == server:
        with contextlib.suppress(TimeoutError):
            asker.recv(1)  # nothing is ever sent: it hung up
            break
    os._exit(1)


def ask(address: str, words: Sequence[str]) -> int:
    """Ask for a fork that runs `words`, a module and its arguments, with these outputs; return its exit code."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"."], [1, 2])
        asked = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
        server.sendall(json.dumps(asked).encode() + b"\n")
        server.settimeout(1)
        while True:
            try:
                answer = server.recv(1)
                break
            except TimeoutError:
                if os.getppid() != parent:  # who waits for this process is gone: the fork has to end, too
                    return 1
    if not answer:  # it was killed: so is who asked for it
        os.kill(os.getpid(), signal.SIGKILL)
    return answer[0]


if __name__ == "__main__":
    _, action, address, *words = sys.argv
    if action == "ask":
        sys.exit(ask(address, words))
    serve(address, words)
