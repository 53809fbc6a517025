"""Replace one part of the shipped results with the rows of a results folder.

workbench sweep --plan data/benchmarks/plans/fusion.toml --out runs/fusion
python data/benchmarks/ship.py runs/fusion trial@fusion
"""

import argparse

from workbench.results import merge, read
from workbench.results.reader import FOLDER

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="results folder, as `workbench sweep --out` leaves it")
    parser.add_argument("part", help="of the shipped results: trial@NAME")
    given = parser.parse_args()
    merge(read([given.folder]), FOLDER, given.part)
