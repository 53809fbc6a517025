"""A corpus encoded by Dask workers, in processes of their own: the result equals one process's, also where one dies."""

import os
import signal

import pytest
import torch

from workbench.core.errors import BadInput
from workbench.core.utils import dask_cluster
from workbench.methods.preprocessing.precompute import Preparation
from workbench.store import FolderStore

distributed = pytest.importorskip("distributed")
ASKED = {"samples": 8, "passages": 3, "prepare": "after_system", "shard": 1}


@pytest.mark.weekly  # three processes that import torch
def test_two_workers_one_of_which_is_killed_make_what_one_process_makes(folder, loaded, tmp_path, monkeypatch):
    alone = Preparation(str(folder), tmp_path / "alone", **ASKED).run(loaded=loaded)
    killed = []

    def kill_one(done, total):
        if not killed:
            victim = min(clients[-1].run(os.getpid).values())
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    clients = []

    class Client(distributed.Client):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            clients.append(self)

    monkeypatch.setattr(distributed, "Client", Client)
    found = Preparation(str(folder), tmp_path / "many", workers=2, cluster="local", **ASKED).run(kill_one, loaded)
    assert killed and found.made == alone.made and (tmp_path / "many" / "_SUCCESS").exists()
    one, many = FolderStore(alone.folder), FolderStore(found.folder)
    assert set(one) == set(many) and len(one) == alone.passages + 1
    for key in one:
        a, b = one.get(key), many.get(key)
        assert a.start == b.start and all(map(torch.equal, a.tensors(), b.tensors()))
    assert not list((tmp_path / "many").glob(".*"))


def test_a_cluster_that_does_not_answer_is_one_sentence(folder, loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_cluster, "ANSWER", 0.5)
    with pytest.raises(BadInput, match=r"no Dask scheduler answers at .tcp://127\.0\.0\.1:9"):
        Preparation(str(folder), tmp_path / "a", cluster="tcp://127.0.0.1:9", **ASKED).run(loaded=loaded)
    with pytest.raises(BadInput, match="no Dask scheduler answers at 'nonsense://x'"):
        Preparation(str(folder), tmp_path / "a", cluster="nonsense://x", **ASKED).run(loaded=loaded)
