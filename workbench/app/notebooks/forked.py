"""Fork processes from one that has already imported the workbench, which takes five seconds.

    with served(environment, [...modules]) as python:   # `environment`: what the modules find when they are imported
        subprocess.run([*python, "workbench", "tune"])  # `python -m workbench tune`, in this environment and folder

The command asks the serving process for a fork that runs the module, and exits with its code; neither outlives the
other. Only Linux forks safely after these imports, and a fork cannot use a GPU that its parent has initialised:
elsewhere, and on machines with a GPU, the command is `python -m` itself.
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
# Neither ipywidgets nor plotly.io's renderers: they detect their kernel on import.
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
def serve_forks(environment: Mapping[str, str], modules: Sequence[str]) -> Iterator[list[str]]:
    """Serve forks until the block ends; yield the command to use instead of `python -m`."""
    if not sys.platform.startswith("linux") or any(map(os.path.exists, GPUS)):
        yield PLAIN
        return
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "socket")
        command = [sys.executable, "-P", __file__, "serve", str(address), *modules]
        # A new session, so that Ctrl-C reaches only the caller.
        process = subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            while not address.exists() and process.poll() is None:
                time.sleep(0.05)
            yield [sys.executable, "-S", "-P", __file__, "ask", str(address)] if process.poll() is None else PLAIN
        finally:
            process.kill()
            process.wait()


def kernel_in(folder: Path, python: Sequence[str]) -> str:
    """Register the kernel "python3" that runs under `python`; return its JUPYTER_PATH."""
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [*python, "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"display_name": "Python 3", "language": "python", "argv": command}))
    return str(folder)


def serve(address: str, modules: Sequence[str]) -> None:
    """Import `modules`, then fork for every request while the parent process lives."""
    parent, own = os.getppid(), os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(20)
        os.rename(f"{address}.new", address)  # visible only once it listens
        for name in modules:
            importlib.import_module(name)
        assert threading.active_count() == 1, "a fork of threads may wait for a lock that none of them gives back"
        gc.freeze()  # forks do not scan, and so copy, existing objects
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
                sys.exit(run_requested_module(asker, own))
            asker.close()


def run_requested_module(asker: socket.socket, server: int) -> int:
    """Run the requested module while the requester and the serving process live; return the exit code."""
    _, outputs, *_ = socket.recv_fds(asker, 1, 2)
    asked = json.loads(asker.makefile().readline())
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for number, (name, output) in enumerate(zip(("stdout", "stderr"), outputs, strict=True), 1):
        os.dup2(output, number)
        os.close(output)
        before = getattr(sys, name)  # the serving process's stream, perhaps a file; reopened for what it is here
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
    sys.stdout.flush()  # the requester exits when it gets the code, and this process with it
    sys.stderr.flush()
    asker.send(bytes([code]))
    return code


def _end_with(asker: socket.socket, server: int) -> None:
    """End this process when the requester hangs up or the serving process is gone."""
    asker.settimeout(1)
    while os.getppid() == server:
        with contextlib.suppress(TimeoutError):
            asker.recv(1)  # nothing is sent: it hung up
            break
    os._exit(1)


def ask(address: str, words: Sequence[str]) -> int:
    """Request a fork that runs `words` (module and arguments) with this process's streams; return its exit code."""
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
                if os.getppid() != parent:  # this process's parent is gone: end the fork too
                    return 1
    if not answer:  # the fork was killed: end the same way
        os.kill(os.getpid(), signal.SIGKILL)
    return answer[0]


if __name__ == "__main__":
    _, action, address, *words = sys.argv
    if action == "ask":
        sys.exit(ask(address, words))
    serve(address, words)
