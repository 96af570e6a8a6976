"""Writes docs/claims.md, its figures and the README's table of results from docs/claims/*.json.

scripts/claims_docs                              # writes them
scripts/claims_docs --publish outputs/claims     # copies the results of registered claims to docs/claims first
"""

from __future__ import annotations

import argparse
from pathlib import Path

import claim_documents

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/claims_docs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--publish", metavar="FOLDER", type=Path, help="of claims that were run, such as outputs/claims"
    )
    given = parser.parse_args()
    if given.publish is not None:
        for name in claim_documents.publish(given.publish, ROOT):
            print(f"published {name}")
    for path in claim_documents.write_documents(ROOT):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
