"""Tests the Python module on a store in a temporary directory. Run by frontends/capi/tests/python.rs,
which sets the path of the library; by hand:
LD_LIBRARY_PATH=target/debug/deps PYTHONPATH=frontends/python \\
    python3 -m unittest discover frontends/python/tests"""

import ctypes
import errno
import io
import os
import pickle
import re
import stat
import tempfile
import threading
import unittest
import zipfile
from multiprocessing import get_context
from pathlib import Path

import quell
from quell import library

try:
    import numpy
except ImportError:
    numpy = None
try:
    import h5py
except ImportError:
    h5py = None


def needs(module, package):
    """Runs a test if the module is installed, and reports that it is not otherwise."""

    def decorate(test):
        def run(self):
            if module is None:
                print(f"\nSKIPPED: {package} is not installed")
                return
            test(self)

        return run

    return decorate


class InStore(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def open(self, path, mode="rb"):
        file = quell.open(self.directory, path, mode)
        self.addCleanup(file.close)
        return file


class Files(InStore):
    def test_bytes_come_back(self):
        with self.open("file", "xb+") as file:
            self.assertEqual(file.write(b"hello world"), 11)
            self.assertEqual(file.tell(), 11)
            self.assertEqual(file.seek(-5, os.SEEK_END), 6)
            self.assertEqual(file.read(), b"world")
            self.assertEqual(file.read(1), b"")
            self.assertEqual(file.pread(100, 4), b"o world")
            self.assertEqual(file.pwrite(bytearray(b"W"), 6), 1)
            self.assertEqual(file.append(b"!"), 11)
            self.assertEqual(file.stat().st_size, 12)
            self.assertEqual(file.truncate(5), 5)
            file.sync()
        self.assertEqual(self.open("file").readall(), b"hello")
        with self.assertRaises(FileExistsError):
            self.open("file", "xb")

    def test_modes_are_those_of_open(self):
        with self.assertRaises(FileNotFoundError) as raised:
            self.open("none")
        self.assertEqual(raised.exception.filename, "none")
        self.open("file", "wb").write(b"12345")
        with self.open("file", "ab") as file:
            self.assertEqual(file.tell(), 5)
            file.seek(0)
            file.write(b"67")
            self.assertEqual(file.tell(), 7)
        with self.open("file", "r+") as file:
            self.assertTrue(file.readable() and file.writable() and file.seekable())
            file.write(b"A")
        self.assertEqual(self.open("file").read(), b"A234567")
        self.open("file", "w").close()
        self.assertEqual(self.open("file").read(), b"")
        for mode in ["", "b", "rw", "rt", "r++", "U"]:
            with self.assertRaises(ValueError, msg=mode):
                self.open("file", mode)

    def test_what_is_not_allowed_is_said(self):
        file = self.open("file", "wb")
        for refused in [lambda: file.read(1), lambda: file.pread(1, 0), lambda: file.read_pieces([(0, 1)])]:
            self.assertRaises(io.UnsupportedOperation, refused)
        self.assertRaises(io.UnsupportedOperation, file.fileno)
        self.assertRaises(ValueError, file.seek, -1)
        self.assertRaises(ValueError, file.pwrite, b"x", -1)
        self.assertRaises(BufferError, self.open("file", "rb+").preadinto, b"read only", 0)
        self.assertRaises(TypeError, file.write, "text")
        file.close()
        file.close()
        for closed in [lambda: file.write(b"x"), file.tell, file.flush, file.stat, file.sync]:
            self.assertRaises(ValueError, closed)

    def test_pieces_go_in_one_call(self):
        file = self.open("file", "wb+")
        self.assertEqual(file.write_pieces([(0, b"aaaa"), (10, memoryview(b"bbbb")), (2, bytearray(b"cccc"))]), 12)
        self.assertEqual(file.read_pieces([(0, 6), (12, 100), (6, 4), (99, 1)]), [b"aacccc", b"bb", bytes(4), b""])
        into = [bytearray(3), bytearray(9)]
        self.assertEqual(file.read_pieces_into([(1, into[0]), (10, into[1])]), [3, 4])
        self.assertEqual(into, [bytearray(b"acc"), bytearray(b"bbbb" + bytes(5))])
        self.assertEqual((file.write_pieces([]), file.read_pieces([])), (0, []))

    def test_a_file_is_seen_by_others_once_it_is_flushed(self):
        writer = self.open("file", "wb")
        writer.write(b"published")
        with quell.Store(self.directory) as other:
            with other.open("file") as file:
                self.assertEqual(file.read(), b"")
            writer.flush()
            with other.open("file") as file:
                self.assertEqual(file.read(), b"published")
        # Within one process writes are visible immediately.
        writer.write(b"!")
        self.assertEqual(self.open("file").read(), b"published!")

    def test_a_stat_is_what_the_system_would_say(self):
        old = os.umask(0o027)
        try:
            with quell.Store(self.directory) as store:
                with store.open("file", "xb", 0o666) as file:
                    file.write(bytes(1000))
                    self.assertEqual(file.stat().st_size, 1000)
                found = store.stat("file")
                self.assertTrue(stat.S_ISREG(found.st_mode))
                self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid, found.st_nlink), (0o640, os.geteuid(), 1))
                self.assertAlmostEqual(found.st_mtime, found.st_mtime_ns / 1e9)
                self.assertLess(abs(found.st_mtime - os.stat(self.directory).st_mtime), 60)
        finally:
            os.umask(old)

    def test_names_are_a_tree(self):
        with quell.Store(self.directory) as store:
            store.mkdir("dir")
            store.open(Path("dir") / "file", "x").close()
            store.open("dir/n\xe4me \u2603", "x").close()
            self.assertEqual(sorted(store.listdir("dir")), ["file", "n\xe4me \u2603"])
            self.assertEqual([(e.name, e.is_dir(), e.is_file()) for e in store.scandir()], [("dir", True, False)])
            store.rename("dir/file", "moved")
            store.truncate("moved", 7)
            self.assertEqual(store.stat("moved").st_size, 7)
            self.assertRaises(IsADirectoryError, store.remove, "dir")
            with self.assertRaises(OSError) as raised:
                store.rmdir("dir")
            self.assertEqual(raised.exception.errno, errno.ENOTEMPTY)
            store.remove("dir/n\xe4me \u2603")
            store.rmdir("dir")
            self.assertFalse(store.exists("dir"))
            self.assertTrue(store.exists("moved"))
            self.assertRaises(ValueError, store.stat, "mo\0ved")
        self.assertRaises(ValueError, store.stat, "moved")
        self.assertRaises(FileNotFoundError, quell.Store, "/nowhere/at/all")

    def test_an_index_is_flattened_when_asked_and_by_the_last_writer(self):
        def flat_indices():
            return [path.name for path in Path(self.directory, "file.container").glob("flat-*")]

        for writer in (b"one", b"two"):
            with quell.Store(self.directory) as store, store.open("file", "ab") as file:
                file.write(writer)
        self.assertEqual(flat_indices(), [])
        with quell.Store(self.directory) as store:
            self.assertGreater(store.flatten("file"), 0)
            self.assertRaises(FileNotFoundError, store.flatten, "none")
        (first,) = flat_indices()
        with quell.Store(self.directory, flatten_bytes=1 << 20) as store:
            with store.open("file", "ab") as file:
                file.write(b"three")
        (second,) = flat_indices()
        self.assertNotEqual(first, second)
        self.assertEqual(self.open("file").read(), b"onetwothree")

    def test_the_results_of_functions_are_as_wide_as_in_the_header(self):
        header = (Path(__file__).parents[2] / "capi/include/quell.h").read_text()
        wide = set(re.findall(r"^int64_t (quell_\w+)\(", header, re.M))
        self.assertEqual(wide, library.LONG)

    def test_threads_share_a_file_and_one_may_close_it(self):
        file = self.open("file", "wb+")
        wrong = []

        def write(number):
            mine = bytes([number]) * 1000
            for i in range(200):
                offset = (i * 4 + number) * 1000
                try:
                    file.pwrite(mine, offset)
                    if file.pread(1000, offset) != mine:
                        wrong.append(offset)
                except ValueError:
                    return  # the file was closed

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        threads[0].join()
        file.close()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_child_opens_its_own(self):
        file = self.open("file", "wb+")
        file.write(b"parent")

        def in_child(answer):
            try:
                file.pread(1, 0)
            except OSError as error:
                answer.send(error.errno)
            file.close()
            with quell.open(self.directory, "file", "rb+") as own:
                own.pwrite(b"child", 10)
            answer.send("written")

        here, there = get_context("fork").Pipe()
        child = get_context("fork").Process(target=in_child, args=(there,))
        child.start()
        child.join()
        self.assertEqual((here.recv(), here.recv(), child.exitcode), (errno.EBADF, "written", 0))
        file.sync()
        self.assertEqual(file.pread(20, 0), b"parent" + bytes(4) + b"child")

    def test_the_structures_are_those_of_the_header(self):
        header = (Path(__file__).parents[2] / "capi/include/quell.h").read_text()
        declared = set(re.findall(r"\b(quell_\w+)\(", header)) - {"quell_last_error"}
        self.assertEqual(declared, set(library.FUNCTIONS))
        kinds = {"uint64_t": 8, "int64_t": 8, "uint32_t": 4, "int": 4, "size_t": ctypes.sizeof(ctypes.c_size_t)}
        ours = {
            "quell_batch_options": library.BatchOptions,
            "quell_batch_result": library.BatchResult,
            "quell_choices": library.Choices,
            "quell_attributes": library.Attributes,
            "quell_read_piece": library.ReadPiece,
            "quell_write_piece": library.WritePiece,
            "quell_bytes": library.ShareBytes,
            "quell_entry": library.EntryOfDirectory,
        }
        structures = re.findall(r"typedef struct (\w+) \{(.*?)\n\}", header, re.S)
        self.assertEqual({name for name, _ in structures}, set(ours))
        for name, body in structures:
            fields = re.findall(r"^  (?:const )?(\w+) (\*?)(\w+);", body, re.M)
            wanted = [ctypes.sizeof(ctypes.c_void_p) if star else kinds[kind] for kind, star, _ in fields]
            self.assertEqual([ctypes.sizeof(kind) for _, kind in ours[name]._fields_], wanted, name)


class Guide(InStore):
    def test_the_program_of_the_guide_works_twice(self):
        guide = (Path(__file__).parents[3] / "docs/guides/library.md").read_text()
        (program,) = re.findall(r"```python\n(.*?)```", guide, re.S)
        for _ in range(2):
            exec(program, {"store": self.directory})


class Programs(InStore):
    """Functions that accept a file accept these files."""

    def test_buffers_of_python(self):
        lines = [f"line {i}\n".encode() for i in range(10_000)]
        with io.BufferedWriter(self.open("lines", "wb")) as file:
            for line in lines:
                file.write(line)
        with io.BufferedReader(self.open("lines")) as file:
            self.assertEqual(file.readlines(), lines)
        with io.TextIOWrapper(io.BufferedReader(self.open("lines"))) as file:
            self.assertEqual(sum(1 for _ in file), len(lines))
        with io.BufferedRandom(self.open("lines", "rb+")) as file:
            file.seek(5)
            file.write(b"X")
            file.seek(0)
            self.assertEqual(file.readline(), b"line X\n")

    def test_shares_of_an_index(self):
        for number in range(3):
            if (child := os.fork()) == 0:
                try:
                    with quell.Store(self.directory) as store, store.open("shared", "ab") as file:
                        file.pwrite(bytes([number]) * 10, 10 * number)
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        with quell.Store(self.directory) as store:
            self.assertEqual(store.index_logs("shared"), 3)
            shares = [store.read_share("shared", number, 2) for number in range(2)]
            with store.open("shared", shares=shares) as file:
                self.assertEqual(file.read(), bytes(10) + b"\1" * 10 + b"\2" * 10)
            self.assertRaises(OSError, store.open, "shared", "rb", shares=[shares[0][:-1]])
            self.assertGreater(store.flatten_shares("shared", shares), 0)
            self.assertEqual(store.index_logs("shared"), 1)

    def test_pickle(self):
        thing = {"numbers": list(range(1000)), "bytes": bytes(100_000)}
        with self.open("thing", "wb") as file:
            pickle.dump(thing, file, protocol=5)
        with io.BufferedReader(self.open("thing")) as file:
            self.assertEqual(pickle.load(file), thing)

    def test_zip(self):
        with zipfile.ZipFile(self.open("a.zip", "wb+"), "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("one", b"1" * 100_000)
            archive.writestr("two", b"2")
        with zipfile.ZipFile(self.open("a.zip", "rb+"), "a") as archive:
            archive.writestr("three", b"3")
        with zipfile.ZipFile(self.open("a.zip")) as archive:
            self.assertIsNone(archive.testzip())
            self.assertEqual(archive.namelist(), ["one", "two", "three"])
            self.assertEqual(archive.read("one"), b"1" * 100_000)

    @needs(numpy, "python3-numpy")
    def test_numpy(self):
        array = numpy.arange(300_000, dtype="f8").reshape(300, 1000)
        with self.open("array.npy", "wb") as file:
            numpy.save(file, array)
        with self.open("array.npy") as file:
            self.assertTrue((numpy.load(file) == array).all())
        with self.open("arrays.npz", "wb") as file:
            numpy.savez(file, array=array, other=array.T)
        with self.open("arrays.npz") as file:
            self.assertTrue((numpy.load(file)["other"] == array.T).all())
        # Arrays are buffers, so no data is copied.
        file = self.open("raw", "wb+")
        file.write_pieces([(row * 8000, array[row]) for row in range(299, -1, -1)])
        back = numpy.empty_like(array)
        self.assertEqual(file.preadinto(back, 0), array.nbytes)
        self.assertTrue((back == array).all())
        self.assertRaises((BufferError, ValueError), file.pwrite, array[:, 0], 0)

    @needs(h5py, "python3-h5py")
    def test_hdf5(self):
        with self.open("data.h5", "wb+") as file:
            with h5py.File(file, "w") as h5:
                h5["small"] = 42
                h5.create_dataset("large", data=range(100_000), chunks=(1000,), compression="gzip")
                h5.flush()
                h5["group/text"] = "words"
        with self.open("data.h5", "rb+") as file:
            with h5py.File(file, "a") as h5:
                h5["large"][500] = -1
                h5["small"].attrs["unit"] = "K"
        with self.open("data.h5") as file:
            with h5py.File(file, "r") as h5:
                self.assertEqual((h5["small"][()], h5["small"].attrs["unit"]), (42, "K"))
                self.assertEqual((h5["large"][500], h5["large"][501], h5["large"][-1]), (-1, 501, 99_999))
                self.assertEqual(h5["group/text"].asstr()[()], "words")


if __name__ == "__main__":
    unittest.main()
