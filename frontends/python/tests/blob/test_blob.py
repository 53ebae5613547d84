"""Tests quell.blob on the store at QUELL_BLOB_LOCATION, or in a temporary directory. Run by
tests/system/blob_languages.rs, which sets the path of the library; by hand:
LD_LIBRARY_PATH=target/debug PYTHONPATH=frontends/python \\
    python3 -m unittest discover frontends/python/tests/blob"""

import array
import asyncio
import ctypes
import errno
import os
import re
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import quell.blob
from quell.blob import Change, Conflict, Different, Overflow, Retries, Transform, library

try:
    import numpy
except ImportError:
    numpy = None

CHECKOUT = Path(__file__).parents[4]


class InStore(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.location = os.environ.get("QUELL_BLOB_LOCATION", f"dir:{directory.name}/store")
        self.open()

    def open(self):
        self.store = quell.blob.open(self.location)
        self.addCleanup(self.store.close)

    def tearDown(self):
        with self.store.batch() as batch:
            for name, _ in self.store.list():
                batch.delete(name)


class Blobs(InStore):
    def test_bytes_come_back(self):
        store = self.store
        store.create("a")
        self.assertEqual(store.append("a", b"hello"), 0)
        self.assertEqual(store.append("a", memoryview(b"world")), 5)
        self.assertEqual(store.read("a"), b"helloworld")
        self.assertEqual(store.read("a", 3, 4), b"lowo")
        self.assertEqual(store.read("a", 100), b"")
        store.write("a", bytearray(b"J"), 0)
        buffer = bytearray(b"........")
        self.assertEqual(store.readinto("a", memoryview(buffer)[2:5], 0), 3)
        self.assertEqual(buffer, b"..Jel...")
        store.resize("a", 1 << 40)
        self.assertEqual(store.stat("a").size, 1 << 40)
        self.assertGreater(store.stat("a").modified_ns, 0)
        with store.snapshot() as snapshot:
            self.assertEqual(snapshot.next_data("a"), 0)
            self.assertIsNone(snapshot.next_data("a", 1 << 30))
        store.rename("a", "b")
        self.assertTrue(store.exists("b") and not store.exists("a"))
        store.delete("b")
        store.collect()

    def test_errors_are_those_of_files(self):
        self.store.create("a")
        with self.assertRaises(FileExistsError):
            self.store.create("a")
        with self.assertRaisesRegex(FileNotFoundError, "none"):
            self.store.read("none", 0, 1)
        with self.assertRaises(OSError) as caught:
            self.store.create("n" * 1025)
        self.assertEqual(caught.exception.errno, errno.ENAMETOOLONG)
        with self.assertRaises(TypeError):
            self.store.write("a", "text")
        with self.assertRaises((TypeError, BufferError)):
            self.store.readinto("a", b"read-only")
        for offset in (-1, 1 << 64):
            with self.assertRaises(ValueError):
                self.store.write("a", b"x", offset)
        with self.assertRaises(FileNotFoundError):
            quell.blob.open(tempfile.gettempdir() + "/no-such-store", create=False)

    def test_names_have_the_type_of_the_prefix(self):
        for name in ("list/\u00e9", b"list/\xff\0", "other"):
            self.store.create(name)
        names = [name for name, _ in self.store.list(b"list/")]
        self.assertEqual(names, ["list/\u00e9".encode(), b"list/\xff\0"])
        self.assertEqual(self.store.list("list/", limit=1)[0][0], "list/\u00e9")
        self.assertEqual(len(self.store.list("list/", after="list/\u00e9")), 1)

    def test_a_snapshot_is_one_state(self):
        self.store.create("a")
        self.store.append("a", b"before")
        with self.store.snapshot() as snapshot:
            self.store.write("a", b"after.")
            self.assertEqual(snapshot.read("a"), b"before")
            self.assertGreater(snapshot.version, 0)
        with self.assertRaises(ValueError):
            snapshot.read("a")

    def test_arrays_are_read_and_written_in_place(self):
        if numpy is None:
            print("\nSKIPPED: python3-numpy is not installed")
            return
        self.store.create("array")
        numbers = numpy.arange(1000, dtype="f8").reshape(10, 100)
        self.store.write("array", numbers)
        copy = numpy.zeros_like(numbers)
        self.assertEqual(self.store.readinto("array", copy), numbers.nbytes)
        self.assertTrue((numbers == copy).all())
        self.store.transform("array", 0, Transform("add", "f64", numbers))
        self.store.readinto("array", copy)
        self.assertTrue((2 * numbers == copy).all())


class Transactions(InStore):
    def test_changes_take_effect_together(self):
        with self.store.transaction() as t:
            t.create("a", exist_ok=True)
            first = t.append("a", b"12")
            second = t.append("a", b"345")
            add = t.transform("a", 0, Transform("add", "u8", 1, count=2, returns_before=True))
            self.assertEqual(t.read("a"), b"23345")
            self.assertEqual(t.list("a")[0][0], "a")
            self.assertFalse(self.store.exists("a"))
        self.assertEqual(t.committed.results[first], 0)
        self.assertEqual(t.committed.results[second], 2)
        self.assertEqual(t.committed.results[add], (49, 50))
        with self.assertRaises(ZeroDivisionError):
            with self.store.transaction() as t:
                t.delete("a")
                1 // 0
        self.assertEqual(self.store.read("a"), b"23345")
        with self.store.batch() as batch:
            batch.rename("a", "b")
            batch.resize("b", 2)
            with self.assertRaises(OSError):
                batch.read("b")
        self.assertEqual(self.store.read("b"), b"23")
        with self.store.batch() as batch:
            batch.set_attributes("b", file=(0o100640, 7, 8), modified_ns=1_000_000_007)
        self.assertEqual(self.store.stat("b").modified_ns, 1_000_000_007)
        with self.store.batch() as batch:
            batch.set_attributes("b", modified_ns=5)
        self.assertEqual(self.store.stat("b").modified_ns, 5)
        with self.assertRaises(FileNotFoundError):
            with self.store.batch() as batch:
                batch.set_attributes("missing", file=(0o100640, 7, 8))
        for wrong in ((), (0o100640, 7), (0o100640, 7, 8, 9), (0o100640, -1, 8), (0o100640, 7, 1 << 32)):
            with self.assertRaises(ValueError):
                with self.store.batch() as batch:
                    batch.set_attributes("b", file=wrong)

    def test_a_conflict_names_blobs_and_ranges(self):
        self.store.create("a")
        self.store.write("a", b"0123456789")
        with self.assertRaises(Conflict) as caught:
            with self.store.transaction() as t:
                t.read("a", 2, 4)
                t.write("a", b"x", 9)
                self.store.write("a", b"y", 3)
        self.assertEqual(caught.exception.errno, errno.ECANCELED)
        (change,) = caught.exception.changes
        self.assertIsInstance(change, Change)
        self.assertEqual((change.name, change.part, change.read), (b"a", "range", (2, 6)))
        self.assertTrue(change.changed[0] <= 3 < change.changed[1])

    def test_conflicts_are_repeated(self):
        self.store.create("sum")
        self.store.resize("sum", 8)

        def increment(t):
            number = int.from_bytes(t.read("sum", 0, 8), "little")
            t.write("sum", (number + 1).to_bytes(8, "little"))
            return number

        retries = Retries(attempts=10000, delay_max=0.02)
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(self.store.transact, increment, retries=retries) for _ in range(80)]
            self.assertEqual(sorted(future.result() for future in futures), list(range(80)))
        self.assertEqual(self.store.transactional(increment)(), 80)
        attempts = []

        def conflicting(t):
            attempts.append(t.read("sum", 0, 1))
            self.store.write("sum", b"x")
            t.write("sum", b"y")

        with self.assertRaises(Conflict):
            self.store.transact(conflicting, retries=Retries(attempts=3))
        self.assertEqual(len(attempts), 3)

    def test_transforms_of_threads_do_not_conflict(self):
        self.store.create("sum")
        add = Transform("add", "i64", [1, -1])

        def work():
            for _ in range(200):
                self.store.transform("sum", 0, add)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(array.array("q", self.store.read("sum")).tolist(), [1600, -1600])

    def test_every_kind_and_type_is_applied(self):
        self.store.create("n")
        results = {"add": 22, "multiply": 120, "min": 10, "max": 12, "and": 8, "or": 14, "xor": 6}
        for type in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"):
            for kind, expected in results.items():
                if type[0] == "f" and kind in ("and", "or", "xor"):
                    continue
                self.store.transform("n", 0, Transform("multiply", type, 0))
                self.store.transform("n", 0, Transform("add", type, 12))
                applied = Transform(kind, type, 10, overflow="saturate", returns_before=True)
                before = self.store.transform("n", 0, applied)
                after = self.store.transform("n", 0, Transform("add", type, 0, returns_before=True))
                self.assertEqual((type, kind, before, after), (type, kind, (12,), (expected,)))

    def test_transforms_are_refused(self):
        self.store.create("n")
        self.store.write("n", bytes([1, 2, 250]))
        with self.assertRaises(Overflow) as caught:
            self.store.transform("n", 0, Transform("add", "u8", 10, count=3, overflow="check"))
        self.assertEqual((caught.exception.operation, caught.exception.cell), (0, 2))
        with self.assertRaises(Different) as caught:
            self.store.transform("n", 0, Transform("compare-and-set", "u8", 9, expected=7))
        self.assertEqual(caught.exception.found, b"\1")
        self.store.transform("n", 0, Transform("compare-and-set", "u8", 9, expected=1))
        self.assertEqual(self.store.read("n"), bytes([9, 2, 250]))
        for arguments in (("divide", "u8", 1), ("add", "u9", 1), ("add", "u8", array.array("i", [1]))):
            with self.assertRaises(ValueError):
                Transform(*arguments)


class Asynchronous(InStore):
    def test_thousands_of_operations_are_in_flight(self):
        store = self.store
        store.create("log")

        async def append():
            batch = store.batch()
            batch.append("log", b"x")
            committed = await batch.commit_async()
            return committed.results[0]

        async def work():
            offsets = await asyncio.gather(*(append() for _ in range(4000)))
            self.assertEqual(sorted(offsets), list(range(4000)))
            reads = await asyncio.gather(*(store.read_async("log", at, 1) for at in range(4000)))
            self.assertEqual(b"".join(reads), b"x" * 4000)
            with self.assertRaises(FileNotFoundError):
                await store.read_async("none", 0, 1)
            batch = store.batch()
            batch.write("log", bytes(100_000))
            await batch.commit_async()
            buffer = bytearray(10)
            self.assertEqual(await store.readinto_async("log", buffer, 99_995), 5)

        asyncio.run(work())

    def test_conflicts_are_raised_by_await(self):
        self.store.create("a")

        async def work():
            t = self.store.transaction()
            t.read("a", 0, 1)
            t.append("a", b"x")
            self.store.append("a", b"y")
            with self.assertRaises(Conflict) as caught:
                await t.commit_async()
            self.assertEqual(caught.exception.changes[0].name, b"a")
            t.close()

        asyncio.run(work())

    def test_futures_have_results(self):
        self.store.create("log")
        futures = []
        for _ in range(4000):
            batch = self.store.batch()
            batch.append("log", b"x")
            futures.append(batch.submit())
            batch.close()
        offsets = sorted(future.result().results[0] for future in futures)
        self.assertEqual(offsets, list(range(4000)))
        buffer = bytearray(4)
        self.assertEqual(self.store.submit_read("log", buffer, 3998).result(), 2)
        buffer.append(0)  # the buffer is free again

    def test_a_closed_store_has_called_all_callbacks(self):
        self.store.create("log")
        batch = self.store.batch()
        batch.append("log", b"x")
        future = batch.submit()
        batch.close()
        self.store.close()
        self.assertTrue(future.done())
        with self.assertRaises(ValueError):
            self.store.read("log")
        self.open()
        self.assertEqual(self.store.read("log"), b"x")

    def test_a_child_cannot_use_the_store(self):
        child = os.fork()
        if child == 0:
            try:
                self.store.create("child")
            except OSError as error:
                os._exit(0 if error.errno == errno.EBADF else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Module(unittest.TestCase):
    header = (CHECKOUT / "frontends/blob-capi/include/quell_blob.h").read_text()

    def test_the_functions_are_those_of_the_header(self):
        functions = re.findall(r"^(int64_t|int) (quell_blob_\w+)\(", self.header, re.M)
        self.assertEqual({name for kind, name in functions if kind == "int64_t"}, library.LONG)
        # A loop of Python repeats transactions.
        declared = {name for _, name in functions} - {"quell_blob_transact"}
        self.assertEqual(declared, set(library.FUNCTIONS))

    def test_the_structures_are_those_of_the_header(self):
        sizes = {"uint8_t": 8, "uint32_t": 4, "int": 4, "uint64_t": 8, "int64_t": 8, "size_t": 8}
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\}", self.header, re.S):
            if name == "quell_blob_retries":
                continue
            fields = re.findall(r"^  (?:const )?(?:struct )?(\w+) (\*?)(\w+)(?:\[8\])?;", body, re.M)
            given = library.STRUCTURES[name]._fields_
            self.assertEqual([field for _, _, field in fields], [field for field, _ in given])
            for (kind, star, field), (_, type) in zip(fields, given):
                if star or kind in sizes:
                    self.assertEqual(ctypes.sizeof(type), 8 if star else sizes[kind], f"{name}.{field}")

    def test_the_example_of_the_guide_works(self):
        guide = (CHECKOUT / "docs/guides/blobs.md").read_text()
        example = re.search(r"```python\n(.*?)```", guide, re.S).group(1)
        with tempfile.TemporaryDirectory() as directory:
            exec(compile(example, "blobs.md", "exec"), {"location": f"dir:{directory}/results"})


if __name__ == "__main__":
    unittest.main()
