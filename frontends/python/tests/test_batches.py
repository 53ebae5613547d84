"""Tests batches of the Python module. Run by frontends/capi/tests/python.rs, which creates the store
at QUELL_TEST_BATCH_STORE; by hand: as test_files.py, with a new store of `quell batch init`."""

import errno
import os
import pickle
import unittest

import quell

STORE = os.environ.get("QUELL_TEST_BATCH_STORE")


class Batches(unittest.TestCase):
    def setUp(self):
        if STORE is None:
            self.fail("QUELL_TEST_BATCH_STORE is not set")

    def write(self, batch, path, content=b"content"):
        with batch.open(path, "xb") as file:
            file.write(content)

    def listed(self, directory=""):
        with quell.Batch(STORE) as batch:
            return sorted(batch.listdir(directory))

    def test_a_batch_publishes_all_changes_at_its_end(self):
        large = os.urandom(300_000)
        with quell.Batch(STORE, name="a test") as batch:
            batch.mkdir("published")
            self.write(batch, "published/small")
            self.write(batch, "published/large", large)
            batch.rename("published/small", "published/renamed")
            self.assertEqual(batch.stat("published/renamed").st_size, 7)
            self.assertGreater(batch.number, 0)
        self.assertEqual(self.listed("published"), ["large", "renamed"])
        with quell.Batch(STORE, "published") as batch:
            with batch.open("large") as file:
                self.assertEqual(file.readall(), large)
            with batch.open("large", "ab") as file:
                file.write(b"appended")
            batch.remove("renamed")
            result = batch.commit()
            self.assertEqual((result.entries, result.conflicts), (0, 0))
            with self.assertRaises(OSError) as raised:
                batch.mkdir("late")
            self.assertEqual(raised.exception.errno, errno.EBADF)
        self.assertEqual(self.listed("published"), ["large"])
        with quell.Batch(STORE, "published") as batch, batch.open("large") as file:
            self.assertEqual(file.readall(), large + b"appended")

    def test_an_exception_aborts_the_batch(self):
        with self.assertRaises(ZeroDivisionError), quell.Batch(STORE) as batch:
            batch.mkdir("discarded")
            raise ZeroDivisionError
        self.assertNotIn("discarded", self.listed())
        batch = quell.Batch(STORE)
        self.write(batch, "also discarded")
        batch.close()
        self.assertNotIn("also discarded", self.listed())
        self.assertRaises(ValueError, batch.commit)

    def test_an_open_file_delays_the_commit(self):
        with quell.Batch(STORE) as batch:
            batch.mkdir("delayed")
            file = batch.open("delayed/file", "xb")
            with self.assertRaises(OSError) as raised:
                batch.commit()
            self.assertEqual(raised.exception.errno, errno.EBUSY)
            file.write(b"later")
            # The end of the block closes the file.
        with quell.Batch(STORE, "delayed") as batch, batch.open("file") as file:
            self.assertEqual(file.readall(), b"later")
            with self.assertRaises(OSError) as raised:
                quell.Batch(STORE, "delayed")
            self.assertEqual(raised.exception.errno, errno.EBUSY)

    def test_a_store_that_cannot_be_opened_keeps_the_changes(self):
        batch = quell.Batch(STORE)
        batch.mkdir("kept")
        os.rename(os.path.join(STORE, "format"), os.path.join(STORE, "hidden"))
        try:
            self.assertRaises(OSError, batch.commit)
            self.assertRaises(OSError, batch.mkdir, "late")
        finally:
            os.rename(os.path.join(STORE, "hidden"), os.path.join(STORE, "format"))
        batch.commit()
        batch.close()
        self.assertIn("kept", self.listed())

    def test_a_batch_is_not_committed_after_an_abort(self):
        with quell.Batch(STORE) as batch:
            batch.mkdir("aborted")
            os.rename(os.path.join(STORE, "format"), os.path.join(STORE, "hidden"))
            try:
                self.assertRaises(OSError, batch.abort)
            finally:
                os.rename(os.path.join(STORE, "hidden"), os.path.join(STORE, "format"))
            with self.assertRaises(OSError) as raised:
                batch.commit()
            self.assertEqual(raised.exception.errno, errno.EBADF)
        # The close has aborted the batch: its tree is free.
        self.assertNotIn("aborted", self.listed())

    def test_conflicts_can_be_pickled(self):
        error = pickle.loads(pickle.dumps(quell.ConflictsError(quell.CommitResult(3, 1, 2))))
        self.assertEqual((error.result.conflicts, str(error)), (2, "batch 3: 2 operations were not published"))

    def test_what_is_not_possible_is_said(self):
        self.assertRaises(FileNotFoundError, quell.Batch, STORE, "no directory")
        self.assertRaises(FileNotFoundError, quell.Batch, os.path.join(STORE, "no store"))
        self.assertRaises(ValueError, quell.Batch, STORE, "nul\0")
        with quell.Batch(STORE) as batch:
            with self.assertRaises(OSError) as raised:
                batch.flatten("file")
            self.assertEqual(raised.exception.errno, errno.EOPNOTSUPP)
            batch.abort()
            self.assertRaises(OSError, batch.listdir)


if __name__ == "__main__":
    unittest.main()
