#!/usr/bin/env python3
"""Measure the processor time that daemons need for the creation of a file, and compute rates of
creation on many nodes from it: the numbers of docs/benchmarks/pool-scale.md.

    pool_scale.py [--files N] [--json]      $QUELL is the quell binary; no privileges are needed
"""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(HERE.parent.parent / "testbed"))
from measure import Failed, median, processor_s, run, stop_on_signals, text_of

RANKS = 4
REPEATS = 3
MEASURED = (1, 2, 4, 8)
COMPUTED = (1, 2, 4, 8, 64, 512)


def measure(quell, program, scratch, daemons, files):
    """Return the processor time of a creation in microseconds: of the first daemon, to which all
    ranks are connected, and of all other daemons together."""
    mount = scratch / "mount"
    mount.mkdir(exist_ok=True)
    pool = [quell, "run", "--quiet", "--pool", f"scale={mount}", "--"]
    run([quell, "pool", "up", "scale", "--quiet", "--local", daemons, "--dir", scratch])
    try:
        started = json.loads(text_of([quell, "pool", "status", "scale", "--json"]))["daemons"]
        run([*pool, "mkdir", mount / "dir"])
        before = [processor_s(daemon["pid"]) for daemon in started]
        run([*pool, program, "create", files // RANKS, *[mount / "dir"] * RANKS])
        used = [(processor_s(daemon["pid"]) - begin) / files * 1e6 for daemon, begin in zip(started, before)]
    finally:
        run([quell, "pool", "down", "scale", "--discard", "--quiet"])
    return used[0], sum(used[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40000, help="files for each measurement (default: 40000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    quell = os.environ.get("QUELL") or str(HERE.parent.parent / "target/dist/quell")
    measured = {}
    with tempfile.TemporaryDirectory(prefix="quell-scale.", dir="/var/tmp") as scratch:
        scratch = Path(scratch)
        program = scratch / "pool_work"
        run(["cc", "-O2", "-Wall", "-o", program, HERE / "pool_work.c"])
        for daemons in MEASURED:
            runs = [measure(quell, program, scratch, daemons, options.files) for _ in range(REPEATS)]
            measured[daemons] = (median(first for first, _ in runs), median(others for _, others in runs))
    # A creation on the own node costs `own`. With two daemons, half of the creations are forwarded:
    # the first daemon spends `own` on one half and `forward` on the other, the second one `serve`.
    own = measured[1][0]
    forward = 2 * measured[2][0] - own
    serve = 2 * measured[2][1]
    rows = []
    for nodes in COMPUTED:
        away = (nodes - 1) / nodes
        cost = (1 - away) * own + away * (forward + serve)
        found = sum(measured[nodes]) if nodes in measured else None
        rows.append({"nodes": nodes, "computed_us": cost, "measured_us": found, "creates_per_s": nodes / cost * 1e6})
    if options.json:
        print(json.dumps({"own_us": own, "forward_us": forward, "serve_us": serve, "rows": rows}, indent=2))
        return
    print(f"own {own:.1f} us, forward {forward:.1f} us, serve {serve:.1f} us")
    print("nodes  computed us  measured us   creates/s, one processor for each daemon")
    for row in rows:
        found = "-" if row["measured_us"] is None else f"{row['measured_us']:.1f}"
        print(f"{row['nodes']:5}  {row['computed_us']:11.1f}  {found:>11}  {row['creates_per_s']:12,.0f}")


if __name__ == "__main__":
    stop_on_signals()
    try:
        main()
    except Failed as error:
        sys.exit(f"pool_scale: {error}")
