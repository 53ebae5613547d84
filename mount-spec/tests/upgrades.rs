//! Checks on a real file system that a boot image never serves old bytes of a file that changed
//! between two generations of the index, and that it goes on serving all other files: after every
//! sequence of two changes out of a list.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quell_boot::{BLOCK_BYTES, BootImage, Choice};
use quell_index::{BuildOptions, BuildProgress, Image, OnChange, Rules, Xattrs};
use quell_mount_spec::{Covered, cover};
use quell_posix::PosixDir;
use quell_vfs::{Context, resolve};

const FILES: [&str; 5] = ["a", "b", "d/c", "d/e", "untouched"];
const SIZE_BYTES: usize = 5000;

/// A directory with files of equal size and modification time, and of different content.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        fs::create_dir(tree.at("d")).unwrap();
        for (number, name) in (0..).zip(FILES) {
            tree.write(name, number);
        }
        tree
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and sets the modification time that all files have.
    fn write(&self, name: &str, content: u8) {
        fs::write(self.at(name), vec![content; SIZE_BYTES]).unwrap();
        self.set_time(name, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    }

    fn set_time(&self, name: &str, time: SystemTime) {
        File::options().write(true).open(self.at(name)).unwrap().set_modified(time).unwrap();
    }

    fn index(&self) -> Arc<Image> {
        let options = BuildOptions { exclude: Vec::new(), cross_mounts: false, xattrs: Xattrs::Never };
        let root = Arc::new(PosixDir::open(self.0.path()).unwrap());
        let path = self.0.path().as_os_str().as_encoded_bytes();
        let tree = quell_index::build(root, path, &options, 1, None, &BuildProgress::default()).unwrap();
        Arc::new(Image::parse(quell_index::encode(&tree).unwrap()).unwrap())
    }

    fn covered(&self) -> Covered {
        cover(self.index(), self.0.path(), OnChange::Refuse, Rules::default()).unwrap()
    }

    /// Returns whether a name is a regular file that is reached without a symbolic link.
    fn has_file(&self, name: &str) -> bool {
        let is_dir = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        let path = self.at(name);
        is_dir(path.parent().unwrap()) && fs::symlink_metadata(&path).is_ok_and(|found| found.is_file())
    }

    /// Waits until the file system gives later times than before. An edit within one step of its
    /// clock cannot be recognized.
    fn wait_for_clock(&self) {
        let probe = tempfile::NamedTempFile::new_in(self.0.path().parent().unwrap()).unwrap();
        let now = || {
            probe.as_file().set_permissions(Permissions::from_mode(0o600)).unwrap();
            let found = probe.as_file().metadata().unwrap();
            (found.ctime(), found.ctime_nsec())
        };
        let before = now();
        while now() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Records whole files.
fn record(covered: Covered) -> BootImage {
    let (fs, subject) = (covered.fs.clone(), covered.subject());
    let (recording, recorder) = covered.with_recorder();
    for name in FILES {
        let node = resolve(&*recording.fs, &Context::OWN, name.as_bytes()).unwrap().node();
        let file = recording.fs.open(&Context::OWN, node).unwrap();
        assert_eq!(file.read_at(&mut [0; SIZE_BYTES], 0).unwrap(), SIZE_BYTES);
    }
    BootImage::parse(recorder.pack(&*fs, &subject, &Choice::ALL, 1).unwrap().0).unwrap()
}

struct Change {
    name: &'static str,
    /// The regular files that must exist; without them the change is not made.
    needs: &'static [&'static str],
    make: fn(&Tree),
    /// The files whose blocks become invalid.
    invalid: &'static [&'static str],
}

/// Sizes and modification times stay the same, except where the name of the change says something
/// else.
const CHANGES: [Change; 17] = [
    Change { name: "nothing", needs: &[], make: |_| (), invalid: &[] },
    Change {
        name: "add",
        needs: &[],
        make: |tree| fs::write(tree.at("added"), "added").unwrap(),
        invalid: &[],
    },
    Change { name: "write in place", needs: &["a"], make: |tree| tree.write("a", 100), invalid: &["a"] },
    Change {
        name: "write in place, with a new time",
        needs: &["a"],
        make: |tree| fs::write(tree.at("a"), [101; SIZE_BYTES]).unwrap(),
        invalid: &["a"],
    },
    Change {
        name: "touch",
        needs: &["b"],
        make: |tree| tree.set_time("b", SystemTime::now()),
        invalid: &["b"],
    },
    Change {
        name: "replace by rename",
        needs: &["a"],
        make: |tree| {
            tree.write("new", 102);
            fs::rename(tree.at("new"), tree.at("a")).unwrap();
        },
        invalid: &["a"],
    },
    Change {
        // The file system may use the inode number again.
        name: "remove and create",
        needs: &["a"],
        make: |tree| {
            fs::remove_file(tree.at("a")).unwrap();
            tree.write("a", 103);
        },
        invalid: &["a"],
    },
    Change {
        name: "remove",
        needs: &["d/c"],
        make: |tree| fs::remove_file(tree.at("d/c")).unwrap(),
        invalid: &["d/c"],
    },
    Change {
        name: "exchange two files",
        needs: &["a", "b"],
        make: |tree| {
            for (from, to) in [("a", "x"), ("b", "a"), ("x", "b")] {
                fs::rename(tree.at(from), tree.at(to)).unwrap();
            }
        },
        invalid: &["a", "b"],
    },
    Change {
        name: "rename and back",
        needs: &["a"],
        make: |tree| {
            for (from, to) in [("a", "x"), ("x", "a")] {
                fs::rename(tree.at(from), tree.at(to)).unwrap();
            }
        },
        invalid: &["a"],
    },
    Change {
        name: "replace a directory",
        needs: &["d/e"],
        make: |tree| {
            fs::rename(tree.at("d"), tree.at("old")).unwrap();
            fs::create_dir(tree.at("d")).unwrap();
            tree.write("d/c", 104);
            fs::remove_dir_all(tree.at("old")).unwrap();
        },
        invalid: &["d/c", "d/e"],
    },
    Change {
        name: "replace a directory by a link to it",
        needs: &["d/e"],
        make: |tree| {
            fs::rename(tree.at("d"), tree.at("real")).unwrap();
            symlink("real", tree.at("d")).unwrap();
        },
        invalid: &["d/c", "d/e"],
    },
    Change {
        name: "chmod and back",
        needs: &["a"],
        make: |tree| {
            let mode = fs::metadata(tree.at("a")).unwrap().permissions();
            fs::set_permissions(tree.at("a"), Permissions::from_mode(0o600)).unwrap();
            fs::set_permissions(tree.at("a"), mode).unwrap();
        },
        invalid: &["a"],
    },
    Change {
        name: "link",
        needs: &["b"],
        make: |tree| {
            if !tree.has_file("link") {
                fs::hard_link(tree.at("b"), tree.at("link")).unwrap();
            }
        },
        invalid: &["b"],
    },
    Change {
        // If the file system uses the inode number again, only the link count and the status change
        // time differ.
        name: "remove, create and link",
        needs: &["a"],
        make: |tree| {
            fs::remove_file(tree.at("a")).unwrap();
            tree.write("cached", 106);
            fs::hard_link(tree.at("cached"), tree.at("a")).unwrap();
        },
        invalid: &["a"],
    },
    Change {
        name: "write through a link, with a new time",
        needs: &["a"],
        make: |tree| {
            fs::hard_link(tree.at("a"), tree.at("other")).unwrap();
            fs::write(tree.at("other"), [105; SIZE_BYTES]).unwrap();
            fs::remove_file(tree.at("other")).unwrap();
        },
        invalid: &["a"],
    },
    Change {
        name: "replace a file by a directory",
        needs: &["b"],
        make: |tree| {
            fs::remove_file(tree.at("b")).unwrap();
            fs::create_dir(tree.at("b")).unwrap();
        },
        invalid: &["b"],
    },
];

/// Returns the names of the files that an image serves, and checks that their blocks in memory are
/// equal to the blocks in the tree.
fn served_files(tree: &Tree, image: BootImage) -> BTreeSet<&'static str> {
    let covered = tree.covered();
    let validity = covered.validity(&image);
    let fs = covered.fs.clone();
    let recorded = covered.with_boot_image(image).recorded.unwrap().decode(1).unwrap();
    let mut served = BTreeSet::new();
    for name in FILES {
        let Ok(node) = resolve(&*fs, &Context::OWN, name.as_bytes()).map(|found| found.node()) else {
            continue;
        };
        if !recorded.has(node) {
            continue;
        }
        let mut bytes = vec![0; SIZE_BYTES];
        recorded
            .pieces_of(node, &mut |offset, piece| {
                bytes[offset as usize..][..piece.len()].copy_from_slice(piece);
                Ok(())
            })
            .unwrap();
        assert!(bytes == fs::read(tree.at(name)).unwrap(), "old blocks of {name} are served");
        served.insert(name);
    }
    let blocks = SIZE_BYTES.div_ceil(BLOCK_BYTES) as u64;
    assert_eq!((validity.files as usize, validity.valid_files as usize), (FILES.len(), served.len()));
    let valid_blocks = blocks * served.len() as u64;
    assert_eq!((validity.blocks, validity.valid_blocks), (blocks * FILES.len() as u64, valid_blocks));
    served
}

#[test]
fn after_any_two_changes_exactly_the_unchanged_files_are_served() {
    for one in &CHANGES {
        for two in &CHANGES {
            let tree = Tree::new();
            let image = record(tree.covered());
            tree.wait_for_clock();
            let mut expected = BTreeSet::from(FILES);
            for change in [one, two] {
                if change.needs.iter().all(|name| tree.has_file(name)) {
                    (change.make)(&tree);
                    expected.retain(|name| !change.invalid.contains(name));
                }
            }
            assert_eq!(served_files(&tree, image), expected, "{}, then {}", one.name, two.name);
        }
    }
}

#[test]
fn an_image_that_was_recorded_on_a_copy_is_valid_only_with_the_same_generation() {
    let (tree, copy) = (Tree::new(), Tree::new());
    let image = tree.index();
    // The copy has the sizes, permissions and times of the original, and other files.
    for name in ["", "d"] {
        let time = fs::metadata(tree.at(name)).unwrap().modified().unwrap();
        File::open(copy.at(name)).unwrap().set_modified(time).unwrap();
    }
    let on_copy = cover(image.clone(), copy.0.path(), OnChange::Refuse, Rules::default()).unwrap();
    let recorded = record(on_copy);
    let same = cover(image, tree.0.path(), OnChange::Refuse, Rules::default()).unwrap();
    assert_eq!(same.validity(&recorded).valid_files, 5);
    tree.wait_for_clock();
    fs::write(tree.at("added"), "").unwrap();
    assert_eq!(tree.covered().validity(&recorded).valid_files, 0);
}
