#!/usr/bin/env python3
"""Draw the chart of the README from the kept results: docs/benchmarks/headline.svg. Needs matplotlib (python3-matplotlib).

The numbers are from docs/benchmarks/latest.json and log.json; nothing is measured here.
"""
import json
from pathlib import Path

import matplotlib
from matplotlib import pyplot

KEPT = Path(__file__).resolve().parent.parent.parent / "docs/benchmarks"
START = "import of six packages, cold node"
# Of each panel: its title, and for each bar the file, the row of the result and the column.
PANELS = [
    ("Metadata requests of a Python start,\ncold node", [
        ("direct", "latest", f"{START}, index alone: metadata operations", "direct"),
        ("index", "latest", f"{START}, index alone: metadata operations", "covered"),
        ("boot image", "latest", f"{START}, boot image: metadata operations", "covered")]),
    ("Wall time of that start, s", [
        ("direct", "latest", f"{START}: wall", "direct"),
        ("index", "latest", f"{START}: wall", "covered"),
        ("boot image", "latest", f"{START}, boot image: wall", "covered")]),
    ("ls -lR of 78,625 entries,\ncold node, s", [
        ("direct", "latest", "ls -lR of the synthetic tree, cold node: wall", "direct"),
        ("index", "latest", "ls -lR of the synthetic tree, cold node: wall", "covered")]),
    ("One file written by four nodes,\nMB/s (CephFS)", [
        ("direct", "log", "CephFS, one file, strided: write", "direct"),
        ("log mount", "log", "CephFS, one file, strided: write", "covered")]),
]
COLOURS = {"direct": "#999999"}
QUELL = "#0072b2"


def rows_of(name):
    results = json.loads((KEPT / f"{name}.json").read_text())["results"]
    return {row["work"].strip(): row for rows in results.values() for row in rows}


def main():
    # Text stays text, and the file is the same each time.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "quell", "font.family": "sans-serif", "font.size": 9})
    rows = {name: rows_of(name) for name in ("latest", "log")}
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(10, 2.6), layout="constrained")
    for axis, (title, bars) in zip(axes, PANELS):
        names = [name for name, *_ in bars]
        values = [rows[file][row][column] for _, file, row, column in bars]
        drawn = axis.bar(names, values, color=[COLOURS.get(name, QUELL) for name in names], width=0.6)
        axis.bar_label(drawn, labels=[f"{value:,.0f}" if value >= 10 else f"{value:.1f}" for value in values], padding=2)
        axis.set_title(title, fontsize=9)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_yticks([])
        axis.margins(y=0.15)
    figure.savefig(KEPT / "headline.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
