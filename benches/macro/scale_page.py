"""The page docs/benchmarks/scale.md and its plot, from the results of scale.py."""
import textwrap

import scale_model as model

LINE_CHARACTERS_MAX = 100

TITLES = {"direct": "direct", "index": "index", "boot": "index and boot image", "job": "one reader for the job (`--job`)"}
COLOURS = {"direct": "#d55e00", "index": "#e69f00", "boot": "#0072b2", "job": "#009e73"}


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def seconds(value):
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def wrapped(text):
    """Wrap the paragraphs and lists of a page. Tables, headings and images stay as they are."""
    return "\n\n".join(block if block.startswith(("|", "#", "!")) else wrapped_block(block) for block in text.strip().split("\n\n")) + "\n"


def wrapped_block(block):
    items = block.replace("\n- ", "\n\n- ").split("\n\n")
    return "\n".join(textwrap.fill(" ".join(item.split()), LINE_CHARACTERS_MAX, subsequent_indent="  " if item.startswith("- ") else "",
                                   break_long_words=False, break_on_hyphens=False) for item in items)


def write_page(directory, measured, checked, extrapolated, saturated):
    """Write scale.md and scale.svg to a directory."""
    plot(directory / "scale.svg", measured, checked, extrapolated)
    facts, (service, ways) = measured["facts"], model.inputs(measured)
    growth = max(by_nodes["16"]["nodes_s"] / 16 / by_nodes["1"]["nodes_s"] for by_nodes in measured["runs"].values())
    errors = [abs(simulated / real - 1) for _, _, real, simulated in checked]
    text = f"""# The start of a program on many nodes

This page has the time that the import of six Python packages takes if it starts on up to 100,000 nodes
at the same time. A discrete-event simulation computes it. Nothing was measured on more than one machine.
`make simulate` repeats the simulation and writes this page; `scripts/simulate --measure` (root)
repeats the measurement as well.

![time until the last node has ended, by the number of nodes](scale.svg)

## Measurement

A MooseFS with 16 nodes on one machine ({facts['machine']}; {facts['quell']}, {facts['date']}, load
before it {facts['load']}). The caches of the nodes are empty. The operations and reads are the sums of
the clients' counts on all nodes. The processor time of the nodes is the processor time of the machine
without the servers. Each time ends with the last node. It contains the processor time of all nodes,
because they share the processors.

{table(["", "nodes", "metadata operations", "reads", "time, s", "metadata server, s", "data server, s", "nodes, s"],
       [[TITLES[way], nodes, f"{one['metadata']:,.0f}", f"{one['data']:,.0f}", seconds(one['seconds']), f"{one['master_s']:.2f}",
         f"{one['chunk_s']:.2f}", seconds(one['nodes_s'])] for way, by_nodes in measured["runs"].items() for nodes, one in by_nodes.items()])}

## Model

- The metadata server executes one operation at a time, which takes {service['metadata'] * 1e6:.1f} us: its processor time
  in the direct start on 16 nodes, divided by the operations. A read takes {service['data'] * 1e6:.1f} us of a data server,
  computed in the same way.
- A node needs the operations, reads and processor time of one measured node. The further nodes of a
  job need the measured difference between 16 nodes and one, divided by 15. The nodes start at the
  same time, with the default caches of the client. In [job.txt](job.txt), where they start one after
  the other and the client keeps names for an hour, a further node makes 2 metadata operations.
- A node works in {model.ROUNDS} rounds ({model.FEW_ROUNDS} for {model.MANY_NODES:,} nodes and more): processor, metadata operations, reads. It waits for
  each operation before it sends the next one.
- The servers execute the requests in the order of their arrival, without limits of queues.
- The nodes of a job receive index and boot image ({sum(measured['bytes'].values()) / 1e6:.0f} MB) through a tree with {model.CHILDREN} children for
  each node, in blocks of {model.BLOCK_BYTES >> 10} KiB, which are passed on as they arrive.

The assumed cluster: each node has its own processors and a link of {model.LINK_BYTES_S * 8 / 1e9:.0f} Gbit/s; a round trip takes
{model.ROUND_TRIP_S * 1e3:.1f} ms; there are {model.DATA_SERVERS} data servers with {model.DATA_SERVER_PROCESSORS} processors each, over which the files of the tree are
distributed. Index and boot image are on {model.COPIES} of them. The links of the servers are not modelled.
`benches/macro/scale_model.py` is the model.

## Check

For the measured numbers of nodes, nodes and servers share {facts['processors']} processors in the simulation as well.
The largest difference is {max(errors):.0%}. With 16 nodes, the simulated time is less than the measured one.
One reason is the processor time of a node: if 16 nodes share the processors, it is up to {growth:.1f} times the
processor time of a single node, which the model uses.

{table(["", "nodes", "measured, s", "simulated, s", "difference"],
       [[TITLES[way], nodes, seconds(real), seconds(simulated), f"{simulated / real - 1:+.0%}"] for way, nodes, real, simulated in checked])}

## Results

Time until the last node has ended, in seconds:

{table(["nodes", *TITLES.values()],
       [[f"{nodes:,}", *(seconds(extrapolated[way][index]) for way in TITLES)] for index, nodes in enumerate(model.NODES)])}

The table has the number of nodes whose operations keep the metadata server busy for the whole time that one
node needs alone: with the measured service time, and with {model.PAPER_RATE:,} operations per second, the rate of the
file system in the MetaFS paper. The paper states 66 nodes for the direct start of its program, and computes 5,000 with MetaFS.

{table(["", f"operations of each further node", f"{service['metadata'] * 1e6:.1f} us for each operation", f"{model.PAPER_RATE:,} operations per second"],
       [[TITLES[way], f"{ways[way].further.metadata:,.0f}", *(f"{found:,}" if found else "never" for found in saturated[way])] for way in TITLES])}
"""
    (directory / "scale.md").write_text(wrapped(text))


def plot(path, measured, checked, extrapolated):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scale"
    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for way, title in TITLES.items():
        axes.plot(model.NODES, extrapolated[way], marker="o", color=COLOURS[way], label=title.replace("`", ""))
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="time until the last node has ended, s",
             title="Import of six Python packages, simulated")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
