//! Tests that the check of a whole tree finds every kind of difference from the index, and nothing
//! else.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell_index::{BuildOptions, BuildProgress, Change, Checked, Image, build, check, encode};
use quell_posix::{Dir, PosixDir};

fn open(path: &Path) -> Arc<dyn Dir> {
    Arc::new(PosixDir::open(path).unwrap())
}

fn image_of(path: &Path, options: &BuildOptions) -> Image {
    let tree = build(open(path), b"/the/root", options, 4, None, &BuildProgress::default()).unwrap();
    Image::parse(encode(&tree).unwrap()).unwrap()
}

fn tree() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    for directory in ["lib/deep", "empty", "wide"] {
        fs::create_dir_all(temp.path().join(directory)).unwrap();
    }
    fs::write(temp.path().join("lib/module.py"), "old = 1\n").unwrap();
    fs::write(temp.path().join("lib/deep/data"), "data").unwrap();
    symlink("module.py", temp.path().join("lib/link")).unwrap();
    // Creates more entries than one thread processes at a time.
    for number in 0..700 {
        fs::write(temp.path().join(format!("wide/{number}")), "").unwrap();
    }
    temp
}

fn checked(image: &Image, path: &Path, differences_max: usize) -> Checked {
    check(image, open(path), 4, differences_max, &AtomicBool::new(false)).unwrap()
}

/// Returns the differences as `quell verify` prints them.
fn found(image: &Image, path: &Path) -> Vec<String> {
    let line = |difference: quell_index::Difference| {
        let path = String::from_utf8(difference.path).unwrap();
        match difference.what {
            Change::Added => format!("+ {path}"),
            Change::Removed => format!("- {path}"),
            Change::Changed(what) => format!("~ {path} ({})", what.join(", ")),
        }
    };
    let checked = checked(image, path, 100);
    assert!(checked.complete);
    checked.differences.into_iter().map(line).collect()
}

/// Writes to a file in place until its status change time differs, then restores its modification
/// time.
fn edit_unseen(path: &Path, content: &str) {
    let before = fs::metadata(path).unwrap();
    while (fs::metadata(path).unwrap().ctime(), fs::metadata(path).unwrap().ctime_nsec())
        == (before.ctime(), before.ctime_nsec())
    {
        fs::write(path, content).unwrap();
        File::options().write(true).open(path).unwrap().set_modified(before.modified().unwrap()).unwrap();
    }
}

#[test]
fn a_tree_as_indexed_has_no_difference() {
    let temp = tree();
    let image = image_of(temp.path(), &BuildOptions::default());
    for threads in [1, 2, 16] {
        let checked = check(&image, open(temp.path()), threads, 1, &AtomicBool::new(false)).unwrap();
        let entries = u64::from(image.entries());
        assert_eq!(checked, Checked { differences: Vec::new(), entries, complete: true });
    }
}

#[test]
fn every_kind_of_change_is_found() {
    type Edit = fn(&Path);
    let cases: [(&[&str], Edit); 9] = [
        (&["~ lib/module.py (size, mtime)"], |root| fs::write(root.join("lib/module.py"), "new").unwrap()),
        (&["~ lib/module.py (mtime)"], |root| fs::write(root.join("lib/module.py"), "new = 2\n").unwrap()),
        (&["~ lib/module.py (ctime)"], |root| edit_unseen(&root.join("lib/module.py"), "new = 2\n")),
        (&["~ lib/module.py (mode)"], |root| {
            fs::set_permissions(root.join("lib/module.py"), fs::Permissions::from_mode(0o600)).unwrap();
        }),
        (&["~ lib/deep (mtime)", "+ lib/deep/module.py"], |root| {
            fs::write(root.join("lib/deep/module.py"), "shadow").unwrap();
        }),
        (&["~ wide (mtime)", "- wide/699"], |root| fs::remove_file(root.join("wide/699")).unwrap()),
        (&["- empty", "~ . (mtime)"], |root| fs::remove_dir(root.join("empty")).unwrap()),
        (&["~ lib (mtime)", "~ lib/deep (kind)"], |root| {
            fs::remove_dir_all(root.join("lib/deep")).unwrap();
            fs::write(root.join("lib/deep"), "").unwrap();
        }),
        (&["~ wide/512 (size, mtime)"], |root| {
            use std::io::Write;
            let mut file = File::options().append(true).open(root.join("wide/512")).unwrap();
            file.write_all(b"more").unwrap();
        }),
    ];
    for (expected, edit) in cases {
        let temp = tree();
        let image = image_of(temp.path(), &BuildOptions::default());
        edit(temp.path());
        let mut found: Vec<String> = found(&image, temp.path());
        for line in &mut found {
            *line = line.replace("~  (", "~ . (");
        }
        found.sort();
        let mut expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_copy_is_no_difference_although_status_change_times_differ() {
    let temp = tree();
    let image = image_of(temp.path(), &BuildOptions::default());
    let copy = tempfile::tempdir().unwrap();
    let target = copy.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").args([temp.path(), &target]).status().unwrap();
    assert!(copied.success());
    assert_eq!(found(&image, &target), [""; 0]);
}

#[test]
fn excluded_and_unreadable_names_are_not_reported_as_added() {
    let temp = tree();
    let options = BuildOptions { exclude: vec!["*.pyc".into(), "lib/tmp".into()], ..Default::default() };
    fs::create_dir(temp.path().join("lib/tmp")).unwrap();
    fs::write(temp.path().join("lib/a.pyc"), "").unwrap();
    let image = image_of(temp.path(), &options);
    assert_eq!(found(&image, temp.path()), [""; 0]);
    fs::write(temp.path().join("lib/deep/b.pyc"), "").unwrap();
    assert_eq!(found(&image, temp.path()), ["~ lib/deep (mtime)"]);
}

#[test]
fn a_check_ends_at_the_limit_of_differences_and_when_stopped() {
    let temp = tree();
    let image = image_of(temp.path(), &BuildOptions::default());
    for number in 0..700 {
        fs::write(temp.path().join(format!("wide/{number}")), "changed").unwrap();
    }
    let few = checked(&image, temp.path(), 3);
    assert_eq!((few.differences.len(), few.complete), (3, false));
    let stopped = check(&image, open(temp.path()), 4, 100, &AtomicBool::new(true)).unwrap();
    assert_eq!((stopped.differences.len(), stopped.complete), (0, false));
}

#[test]
fn an_unlistable_directory_is_no_difference() {
    let temp = tree();
    let image = image_of(temp.path(), &BuildOptions::default());
    // A root that gives the same replies as another one, but refuses to open one directory.
    struct Closed(Arc<dyn Dir>);
    impl Dir for Closed {
        fn stat_self(&self) -> quell_vfs::Result<quell_posix::Stat> {
            self.0.stat_self()
        }
        fn names(&self) -> quell_vfs::Result<Vec<Vec<u8>>> {
            self.0.names()
        }
        fn stat(&self, name: &[u8]) -> quell_vfs::Result<quell_posix::Stat> {
            self.0.stat(name)
        }
        fn read_link(&self, name: &[u8]) -> quell_vfs::Result<Vec<u8>> {
            self.0.read_link(name)
        }
        fn xattrs(&self, name: &[u8]) -> quell_vfs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
            self.0.xattrs(name)
        }
        fn open_dir(&self, name: &[u8]) -> quell_vfs::Result<Arc<dyn Dir>> {
            if OsStr::from_bytes(name) == "lib" {
                return Err(quell_vfs::Error::new(quell_vfs::ErrorKind::PermissionDenied, "open", name));
            }
            self.0.open_dir(name)
        }
        fn enter(&self, name: &[u8]) -> quell_vfs::Result<Arc<dyn Dir>> {
            self.0.enter(name)
        }
        fn open_file(&self, name: &[u8]) -> quell_vfs::Result<Box<dyn quell_posix::OpenFile>> {
            self.0.open_file(name)
        }
    }
    fs::write(temp.path().join("wide/5"), "changed").unwrap();
    let root = Arc::new(Closed(open(temp.path())));
    let checked = check(&image, root, 4, 100, &AtomicBool::new(false)).unwrap();
    let [only] = &checked.differences[..] else { panic!("{checked:?}") };
    assert_eq!(only.path, b"wide/5");
}

#[test]
fn a_root_that_cannot_be_listed_is_an_error() {
    let temp = tree();
    let image = image_of(temp.path(), &BuildOptions::default());
    // A directory opened only as a starting point for lookups cannot be listed.
    let root: Arc<dyn Dir> = Arc::new(PosixDir::start(temp.path()).unwrap());
    assert!(check(&image, root, 4, 100, &AtomicBool::new(false)).is_err());
}
