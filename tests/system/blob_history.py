"""A client of a store of blobs, which prints its transactions: they append numbers to lists, and read
lists. Each is a line of JSON before the transaction, and one after it.

Usage: blob_history.py LOCATION CLIENT LISTS
Ends at the end of its input."""

import errno
import json
import random
import select
import struct
import sys
import time

import quell.blob

location, client, lists = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
choose = random.Random(client)
last = 0


def open_store():
    """Waits for a server and for the cluster: a process of it may have been killed."""
    while True:
        try:
            return quell.blob.open(location)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ETIMEDOUT):
                raise
        time.sleep(0.1)


def name(number):
    return f"list {number}"


def numbers(data):
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def number():
    """Returns a number that no other append has."""
    global last
    last += 1
    return client * 1_000_000 + last


def report(**line):
    print(json.dumps(line), flush=True)


def transaction(reads, appends):
    done = []
    with store.transaction() as open_transaction:
        for list_number in reads:
            done.append(["read", list_number, numbers(open_transaction.read(name(list_number)))])
        for list_number, value in appends:
            open_transaction.append(name(list_number), struct.pack("<Q", value))
            done.append(["append", list_number, value])
        # Its own appends are visible to a transaction.
        if reads and appends:
            done.append(["read", reads[0], numbers(open_transaction.read(name(reads[0])))])
    return done


def append_only(appends):
    for list_number, value in appends:
        store.append(name(list_number), struct.pack("<Q", value))
    return [["append", *pair] for pair in appends]


def snapshot(reads):
    with store.snapshot() as state:
        return [["read", list_number, numbers(state.read(name(list_number)))] for list_number in reads]


def step():
    kind = choose.randrange(8)
    some = choose.sample(range(lists), 2)
    appends, body = [], None
    if kind < 4:
        reads = some[: choose.randrange(3)]
        appends = [(list_number, number()) for list_number in choose.sample(range(lists), choose.randrange(1, 4))]
        body = lambda: transaction(reads, appends)
    elif kind == 4:
        appends = [(some[0], number())]
        body = lambda: append_only(appends)
    elif kind == 5:
        body = lambda: snapshot(range(lists))
    elif kind == 6:
        body = lambda: [["read", some[0], numbers(store.read(name(some[0])))]]
    else:
        body = lambda: transaction(some, [])
    begun = time.monotonic_ns()
    # A client that is killed has a transaction whose result is not known.
    report(begun=begun, operations=[["append", *pair] for pair in appends])
    try:
        operations, outcome = body(), "committed"
    except quell.blob.Conflict:
        operations, outcome = [["append", *pair] for pair in appends], "refused"
    except OSError as error:
        # Nothing was sent, or the result is not known.
        if error.errno not in (errno.ENOTCONN, errno.ETIMEDOUT, errno.ESTALE, errno.EIO):
            raise
        operations, outcome = [["append", *pair] for pair in appends], "unknown"
    report(begun=begun, ended=time.monotonic_ns(), outcome=outcome, operations=operations)


store = open_store()
while not select.select([sys.stdin], [], [], choose.random() * 0.02)[0]:
    step()
