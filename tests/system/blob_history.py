"""A client of a store of blobs, which prints its transactions: they append numbers to lists, write
numbers to registers, and read both. Each is a line of JSON before the transaction, and one after it.

Usage: blob_history.py LOCATION CLIENT LISTS REGISTERS
Ends at the end of its input."""

import errno
import json
import random
import select
import struct
import sys
import time

import quell.blob

location, client, lists, registers = sys.argv[1], *map(int, sys.argv[2:5])
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
    return f"list {number}" if number < lists else f"register {number}"


def numbers(data):
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def number():
    """Returns a number that no other append has."""
    global last
    last += 1
    return client * 1_000_000 + last


def report(**line):
    print(json.dumps(line), flush=True)


def register(data):
    return numbers(data)[0] if data else None


def transaction(reads, appends, gets=(), writes=()):
    done = []
    with store.transaction() as open_transaction:
        for register_number in gets:
            done.append(["get", register_number, register(open_transaction.read(name(register_number)))])
        for register_number, value in writes:
            open_transaction.write(name(register_number), struct.pack("<Q", value))
            done.append(["write", register_number, value])
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


def write_only(register_number, value):
    store.write(name(register_number), struct.pack("<Q", value))
    return [["write", register_number, value]]


def snapshot(reads, gets):
    with store.snapshot() as state:
        done = [["read", list_number, numbers(state.read(name(list_number)))] for list_number in reads]
        return done + [["get", number, register(state.read(name(number)))] for number in gets]


def step():
    kind = choose.randrange(11)
    some = choose.sample(range(lists), 2)
    all_registers = range(lists, lists + registers)
    appends, writes, body = [], [], None
    if kind < 4:
        reads = some[: choose.randrange(3)]
        appends = [(list_number, number()) for list_number in choose.sample(range(lists), choose.randrange(1, 4))]
        body = lambda: transaction(reads, appends)
    elif kind == 4:
        appends = [(some[0], number())]
        body = lambda: append_only(appends)
    elif kind == 5:
        body = lambda: snapshot(range(lists), all_registers)
    elif kind == 6:
        body = lambda: [["read", some[0], numbers(store.read(name(some[0])))]]
    elif kind == 7:
        body = lambda: transaction(some, [], all_registers)
    elif kind == 8:
        gets = choose.sample(all_registers, choose.randrange(registers))
        writes = [(register_number, number()) for register_number in choose.sample(all_registers, choose.randrange(1, 3))]
        appends = [(some[0], number())] if choose.randrange(2) else []
        body = lambda: transaction([], appends, gets, writes)
    elif kind == 9:
        writes = [(choose.choice(all_registers), number())]
        body = lambda: write_only(*writes[0])
    else:
        chosen = choose.choice(all_registers)
        body = lambda: [["get", chosen, register(store.read(name(chosen)))]]
    changes = [["append", *pair] for pair in appends] + [["write", *pair] for pair in writes]
    begun = time.monotonic_ns()
    # A client that is killed has a transaction whose result is not known.
    report(begun=begun, operations=changes)
    try:
        operations, outcome = body(), "committed"
    except quell.blob.Conflict:
        operations, outcome = changes, "refused"
    except OSError as error:
        # On a full disk, nothing has changed. Otherwise the result is not known.
        if error.errno not in (errno.ENOTCONN, errno.ETIMEDOUT, errno.ESTALE, errno.EIO, errno.ENOSPC):
            raise
        operations, outcome = changes, "full" if error.errno == errno.ENOSPC else "unknown"
    report(begun=begun, ended=time.monotonic_ns(), outcome=outcome, operations=operations)


store = open_store()
while not select.select([sys.stdin], [], [], choose.random() * 0.02)[0]:
    step()
