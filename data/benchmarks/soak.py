"""Thousands of mixed requests over one pool, with blocks coming and going, checked as they pass.

    python data/benchmarks/soak.py --device cuda
    python data/benchmarks/soak.py --device cpu --requests 200 --out /tmp/soak.json

writes soak.json after every wave of requests: what was asked for, pages lost, checksums of shared pages that changed,
answers that were compared with the contiguous engine, and what process and device held. Exit status 1 where something
is wrong.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from workbench import data, models
from workbench.core.blocks import Block
from workbench.experiments import results
from workbench.experiments.record import device_name, versions
from workbench.experiments.soak import Soak, sound
from workbench.methods import engines

OUT = Path(__file__).with_name("soak.json")


def main() -> None:
    """Run the soak, and write as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-block")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=100, help="of the lab, whose passages are drawn")
    parser.add_argument("--store-mib", type=int, default=32, help="of blocks that are kept; the others are dropped")
    parser.add_argument("--pool", type=int, default=8192, help="tokens of the pool, which does not hold all blocks")
    parser.add_argument("--beside", default="nothing", help="what else the GPUs did meanwhile, for readers")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    engines.TOKENS = given.pool
    loaded = models.load(given.model, given.device, given.dtype)
    prompts = loaded.layout.prompts(data.load("lab", given.questions, 0), loaded.tokenizer)
    texts: dict[Block, None] = dict.fromkeys(block for prompt in prompts for block in prompt.context)
    soak = Soak(loaded, list(texts), [prompt.blocks[-1] for prompt in prompts], given.store_mib << 20)
    about = {"command": "python data/benchmarks/soak.py", "model": given.model, "dtype": str(loaded.model.dtype)[6:]}
    about |= {"device": device_name(loaded.model.device), "versions": versions(), "blocks": len(texts)}
    about |= {"beside": given.beside, "store_mib": given.store_mib}

    def tell(report: dict[str, Any]) -> None:
        results.write_json(given.out, {**about, **report, "sound": sound(report)})
        counts = report["counts"]
        if counts["waves"] % 10 == 0 or counts["waves"] < 5:
            print(f"{counts['requests']:,} requests, {report['seconds']:.0f} s, sound: {sound(report)}", flush=True)

    report = soak.run(given.requests, tell)
    print(report["counts"])
    sys.exit(0 if sound(report) else 1)


if __name__ == "__main__":
    main()
