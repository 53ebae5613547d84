//! Indexes a real directory and reads the index back: nothing is lost, the result is deterministic,
//! and bytes that are not an index are refused.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use quell_index::{
    BuildOptions, BuildProgress, Change, Image, IndexFs, InodeNumbers, Listing, OnChange, ROOT, Sampler,
    Tree, Trust, Xattrs, build, compare, encode,
};
use quell_posix::{Dir, PosixDir, Stat};
use quell_vfs::{Context, Cursor, ErrorKind, FileSystem, Kind, NodeId, resolve};

fn tree_of(path: &Path, options: &BuildOptions, threads: usize) -> Tree {
    let root: Arc<dyn Dir> = Arc::new(PosixDir::open(path).unwrap());
    build(root, b"/the/root", options, threads, None, &BuildProgress::default()).unwrap()
}

fn image_of(path: &Path, options: &BuildOptions) -> Image {
    Image::parse(encode(&tree_of(path, options, 4)).unwrap()).unwrap()
}

/// Creates a tree with every kind of entry that needs no privilege.
fn varied_tree() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    for dir in ["bin", "lib/deep/deeper", "empty"] {
        std::fs::create_dir_all(at(dir)).unwrap();
    }
    std::fs::write(at("bin/tool"), b"#!/bin/sh\n").unwrap();
    std::fs::set_permissions(at("bin/tool"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    std::fs::write(at("lib/a"), vec![7; 70_000]).unwrap();
    std::fs::hard_link(at("lib/a"), at("bin/z-link")).unwrap();
    std::fs::hard_link(at("lib/a"), at("lib/deep/deeper/a")).unwrap();
    symlink("../lib/a", at("bin/link")).unwrap();
    let sparse = std::fs::File::create(at("lib/sparse")).unwrap();
    sparse.set_len(1 << 33).unwrap();
    rustix_mkfifo(&at("lib/fifo"));
    for i in 0..600 {
        std::fs::write(at(&format!("lib/deep/f{i}")), format!("{i}")).unwrap();
    }
    temp
}

fn rustix_mkfifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn every_entry_of_the_view_equals_the_tree() {
    let temp = varied_tree();
    let image = image_of(temp.path(), &BuildOptions::default());
    let mut nodes = BTreeMap::new();
    for entry in 0..image.entries() {
        let path = image.path(entry);
        let real = temp.path().join(std::str::from_utf8(&path).unwrap());
        let stat = std::fs::symlink_metadata(&real).unwrap();
        let answer = image.attributes(entry);
        assert_eq!(answer.mode(), stat.mode(), "{real:?}");
        assert_eq!((answer.uid, answer.gid), (stat.uid(), stat.gid()), "{real:?}");
        assert_eq!(u64::from(answer.nlink), stat.nlink(), "{real:?}");
        assert_eq!((answer.size_bytes, answer.blocks), (stat.size(), stat.blocks()), "{real:?}");
        let mtime = (answer.modified.seconds, i64::from(answer.modified.nanoseconds));
        assert_eq!(mtime, (stat.mtime(), stat.mtime_nsec()), "{real:?}");
        let ctime = (answer.changed.seconds, i64::from(answer.changed.nanoseconds));
        assert_eq!(ctime, (stat.ctime(), stat.ctime_nsec()), "{real:?}");
        if answer.kind == Kind::Symlink {
            assert_eq!(image.link_target(entry).unwrap(), b"../lib/a");
        }
        // All names of one file are one node, and no others are.
        let inode = *nodes.entry(answer.node.0).or_insert(stat.ino());
        assert_eq!(inode, stat.ino(), "{real:?}");
        assert_eq!(image.lookup(image.parent(entry), image.name(entry)), (entry != ROOT).then_some(entry));
    }
    assert_eq!(nodes.len() as u64, image.nodes());
    assert_eq!(image.entries(), 1 + 5 + 3 + 4 + 600, "all names and nothing else");
    assert_eq!(image.lookup(ROOT, b"no such name"), None);
    assert_eq!(image.lookup(ROOT, b""), None);
}

#[test]
fn nodes_can_have_the_inode_numbers_of_the_originals() {
    let temp = varied_tree();
    let image = Arc::new(image_of(temp.path(), &BuildOptions::default()));
    let root: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
    let indexed = Arc::new(IndexFs::new(image.clone(), root, OnChange::Serve));
    let fs = InodeNumbers::new(indexed.clone(), image.clone()).unwrap();
    for entry in ROOT + 1..image.entries() {
        let path = image.path(entry);
        let real = temp.path().join(std::str::from_utf8(&path).unwrap());
        let node = resolve(&fs, &Context::OWN, &path).unwrap().node();
        assert_eq!(node.0 + 1, std::fs::symlink_metadata(&real).unwrap().ino(), "{real:?}");
        let inner = resolve(&*indexed, &Context::OWN, &path).unwrap().node();
        assert_eq!((fs.inner_node(node).unwrap(), fs.number_of(inner)), (inner, node));
    }
    assert_eq!((fs.root(), fs.attributes(&Context::OWN, fs.root()).unwrap().node), (NodeId(0), NodeId(0)));
    let unknown = (1..).map(NodeId).find(|node| fs.path(*node).is_err()).unwrap();
    assert_eq!(fs.attributes(&Context::OWN, unknown).unwrap_err().kind, ErrorKind::Stale);

    // Another file with the same name is another node.
    let before = resolve(&fs, &Context::OWN, b"lib/deep/f7").unwrap().node();
    fs.open(&Context::OWN, before).unwrap();
    std::fs::write(temp.path().join("new"), "another file").unwrap();
    std::fs::rename(temp.path().join("new"), temp.path().join("lib/deep/f7")).unwrap();
    assert_eq!(fs.open(&Context::OWN, before).map(drop).unwrap_err().kind, ErrorKind::Stale);
    let after = resolve(&fs, &Context::OWN, b"lib/deep/f7").unwrap().node();
    assert!(after.0 >= 1 << 63, "{after:?}");
    let file = fs.open(&Context::OWN, after).unwrap();
    assert_eq!(file.attributes().unwrap().node, after);
    let mut content = [0; 20];
    assert_eq!(file.read_at(&mut content, 0).unwrap(), 12);
    assert_eq!(&content[..12], b"another file");
}

#[test]
fn inode_numbers_that_do_not_identify_nodes_are_not_used() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("file"), "").unwrap();
    let is_numbered = |root: u64, files: [u64; 2]| {
        let mut tree = tree_of(temp.path(), &BuildOptions::default(), 1);
        let file = *tree.listings[0].record(0);
        let mut listing = Listing::default();
        for (name, inode) in [b"a", b"b"].into_iter().zip(files) {
            listing.push(name, Stat { inode, ..file });
        }
        listing.seal();
        (tree.root.inode, tree.listings[0]) = (root, listing);
        let image = Arc::new(Image::parse(encode(&tree).unwrap()).unwrap());
        let root: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
        let fs = Arc::new(IndexFs::new(image.clone(), root, OnChange::Refuse));
        InodeNumbers::new(fs, image).is_some()
    };
    assert!(is_numbered(7, [9, 8]) && is_numbered(7, [2, (1 << 63) - 1]));
    assert!(!is_numbered(1, [9, 8]), "a file system without persistent numbers");
    assert!(!is_numbered(7, [9, 9]), "files of two file systems");
    assert!(!is_numbered(7, [1, 9]) && !is_numbered(7, [0, 9]) && !is_numbered(7, [9, 1 << 63]));
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let temp = varied_tree();
    let options = BuildOptions::default();
    let one = encode(&tree_of(temp.path(), &options, 1)).unwrap();
    for threads in [2, 7, 32] {
        assert!(one == encode(&tree_of(temp.path(), &options, threads)).unwrap(), "{threads} threads");
    }
}

#[test]
fn excluded_names_and_paths_are_absent() {
    let temp = varied_tree();
    let exclude = ["f1*", "lib/*", "/empty/"].map(String::from).to_vec();
    let image = image_of(temp.path(), &BuildOptions { exclude: exclude.clone(), ..Default::default() });
    let names: Vec<_> = (0..image.entries()).map(|e| String::from_utf8(image.path(e)).unwrap()).collect();
    // `empty/` has slashes only at its ends, so it is a name.
    assert_eq!(names, ["", "bin", "lib", "bin/link", "bin/tool", "bin/z-link"]);
    assert_eq!(BuildOptions::from_image(&image).unwrap().exclude, exclude);
}

#[test]
fn changed_attributes_are_found_when_the_sample_has_the_file() {
    let temp = tempfile::tempdir().unwrap();
    for i in 0..50 {
        std::fs::write(temp.path().join(format!("f{i:02}")), b"x").unwrap();
    }
    for (name, value) in [("f00", "first"), ("f49", "last")] {
        let status = std::process::Command::new("setfattr")
            .args(["-n", "user.note", "-v", value])
            .arg(temp.path().join(name))
            .status();
        match status {
            Ok(status) if status.success() => {}
            _ => return println!("SKIPPED: setfattr is not installed or not supported here"),
        }
    }
    let image = image_of(temp.path(), &BuildOptions::default());
    let last = image.lookup(ROOT, b"f49").unwrap();
    assert_eq!(image.xattrs(last).collect::<Vec<_>>(), [(&b"user.note"[..], &b"last"[..])]);
    let never = BuildOptions { xattrs: Xattrs::Never, ..Default::default() };
    let image = image_of(temp.path(), &never);
    assert_eq!(image.xattrs(image.lookup(ROOT, b"f49").unwrap()).count(), 0);
    assert!(image.has_flag(quell_index::format::FLAG_XATTRS_SKIPPED));
}

#[test]
fn differences_are_named() {
    let temp = varied_tree();
    let old = image_of(temp.path(), &BuildOptions::default());
    std::fs::remove_file(temp.path().join("lib/deep/f5")).unwrap();
    std::fs::write(temp.path().join("bin/new"), b"").unwrap();
    std::fs::write(temp.path().join("bin/tool"), b"longer than it was").unwrap();
    let new = image_of(temp.path(), &BuildOptions::default());
    let mut found = BTreeMap::new();
    compare(&old, &new, &mut |d| found.insert(String::from_utf8(d.path).unwrap(), d.what).is_none());
    assert_eq!(found["lib/deep/f5"], Change::Removed);
    assert_eq!(found["bin/new"], Change::Added);
    assert_eq!(found["bin/tool"], Change::Changed(vec!["size", "mtime"]));
    assert_eq!(found["bin"], Change::Changed(vec!["mtime"]));
    assert_eq!(found.len(), 5, "{found:?}");
}

#[test]
fn an_update_by_directory_times_equals_a_build_from_nothing() {
    let temp = varied_tree();
    let options = BuildOptions::default();
    let old = image_of(temp.path(), &options);
    // A file replaced by a rename, as installers do it, and a new directory.
    std::fs::write(temp.path().join("lib/deep/.new"), b"replaced").unwrap();
    std::fs::rename(temp.path().join("lib/deep/.new"), temp.path().join("lib/deep/f7")).unwrap();
    std::fs::create_dir(temp.path().join("lib/deep/added")).unwrap();
    std::fs::write(temp.path().join("lib/deep/added/x"), b"x").unwrap();
    let fresh = encode(&tree_of(temp.path(), &options, 4)).unwrap();
    let before = quell_vfs::Time { seconds: i64::MAX / 2_000_000_000, nanoseconds: 0 };
    let root: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
    let trust = Some(Trust { image: &old, before });
    let updated = build(root, b"/the/root", &options, 4, trust, &BuildProgress::default()).unwrap();
    assert!(encode(&updated).unwrap() == fresh);
}

#[test]
fn an_update_reads_directories_whose_times_are_too_young_to_trust() {
    let temp = varied_tree();
    let options = BuildOptions::default();
    let old = image_of(temp.path(), &options);
    let file = temp.path().join("lib/deep/f7");
    std::fs::write(&file, b"changed in place: no directory's time tells").unwrap();
    let fresh = image_of(temp.path(), &options);
    for (before, seen) in [(0, true), (i64::MAX / 2_000_000_000, false)] {
        let root: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
        let before = quell_vfs::Time { seconds: before, nanoseconds: 0 };
        let trust = Some(Trust { image: &old, before });
        let updated = build(root, b"/the/root", &options, 4, trust, &BuildProgress::default()).unwrap();
        assert_eq!(encode(&updated).unwrap() == fresh.bytes(), seen);
    }
}

#[test]
fn a_sample_of_a_changed_directory_finds_the_change() {
    let temp = varied_tree();
    let image = Arc::new(image_of(temp.path(), &BuildOptions::default()));
    let source: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
    let mut sampler = Sampler::new(image.clone(), source.clone(), 1);
    for _ in 0..100 {
        assert_eq!(sampler.step().unwrap(), None);
    }
    // The directory with the most entries is on the path that is compared first.
    std::fs::write(temp.path().join("lib/deep/new"), b"").unwrap();
    let mut sampler = Sampler::new(image, source, 1);
    let found: Vec<_> = (0..4).filter_map(|_| sampler.step().unwrap()).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, b"lib/deep");
}

#[test]
fn a_covered_tree_reads_as_the_tree_and_refuses_changed_files() {
    let temp = varied_tree();
    let image = Arc::new(image_of(temp.path(), &BuildOptions::default()));
    let source: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
    let fs = IndexFs::new(image.clone(), source.clone(), OnChange::Refuse);
    let a = resolve(&fs, &Context::OWN, b"lib/deep/../a").unwrap();
    let mut buffer = vec![0; 100_000];
    assert_eq!(fs.open(&Context::OWN, a.node).unwrap().read_at(&mut buffer, 10).unwrap(), 69_990);
    assert!(buffer[..69_990].iter().all(|b| *b == 7));

    let mut names = Vec::new();
    let mut cursor = Cursor::START;
    loop {
        let before = names.len();
        let dir = resolve(&fs, &Context::OWN, b"lib/deep").unwrap().node;
        fs.list(&Context::OWN, dir, cursor, &mut |entry| {
            names.push(entry.name.to_vec());
            cursor = entry.next;
            names.len() - before < 100
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    assert_eq!(names.len(), 601);
    assert!(names.is_sorted());

    let tool = resolve(&fs, &Context::OWN, b"bin/tool").unwrap();
    std::fs::write(temp.path().join("bin/tool"), b"another one").unwrap();
    assert_eq!(fs.open(&Context::OWN, tool.node).err().unwrap().errno(), quell_vfs::errno::ESTALE);
    std::fs::remove_file(temp.path().join("bin/tool")).unwrap();
    assert_eq!(fs.open(&Context::OWN, tool.node).err().unwrap().errno(), quell_vfs::errno::ESTALE);
    std::fs::write(temp.path().join("bin/tool"), b"another one").unwrap();
    let serving = IndexFs::new(image, source, OnChange::Serve);
    assert!(serving.open(&Context::OWN, tool.node).is_ok());
    assert_eq!(fs.attributes(&Context::OWN, NodeId(1 << 40)).unwrap_err().errno(), quell_vfs::errno::ESTALE);
}

#[test]
fn bytes_that_are_not_an_index_are_refused_with_an_offset() {
    let temp = varied_tree();
    let good = image_of(temp.path(), &BuildOptions::default()).bytes().to_vec();
    let refuse = |bytes: Vec<u8>| Image::parse(bytes).expect_err("damaged bytes were accepted").to_string();
    assert_eq!(refuse(Vec::new()), "file at byte 0: the file is empty");
    assert!(refuse(b"PK\x03\x04 this is a zip file".to_vec()).contains("not an index file"));
    let mut newer = good.clone();
    newer[8] = 3;
    assert!(refuse(newer).contains("format version 3, but this program reads versions 1 to 2"));
    for cut in [10, 100, 695, 696, 735, 736, good.len() / 2, good.len() - 1] {
        refuse(good[..cut].to_vec());
    }
    let mut longer = good.clone();
    longer.push(0);
    refuse(longer);
    // A flipped bit is detected everywhere, except in the zeros between sections, which are never
    // read.
    let image = Image::parse(good.clone()).unwrap();
    let mut refused = 0;
    for at in (0..good.len()).step_by(13) {
        let mut flipped = good.clone();
        flipped[at] ^= 0x10;
        match Image::parse(flipped) {
            Err(_) => refused += 1,
            Ok(again) => assert!((0..image.entries()).all(|e| again.path(e) == image.path(e))),
        }
    }
    assert!(refused > good.len() / 14);
}

#[test]
fn a_tree_that_cannot_be_read_is_listed() {
    let temp = varied_tree();
    let closed = temp.path().join("lib/closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(closed.join("x"), b"").unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read_dir(&closed).is_ok() {
        return println!("SKIPPED: this user may read everything");
    }
    let image = image_of(temp.path(), &BuildOptions::default());
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let problems: Vec<_> = image.problems().collect();
    assert_eq!(problems.len(), 1);
    assert_eq!((problems[0].path.as_slice(), problems[0].errno), (&b"lib/closed"[..], 13));
    let source: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
    let fs = IndexFs::new(Arc::new(image), source, OnChange::Refuse);
    // Unknown content is not the same as missing content.
    assert_eq!(resolve(&fs, &Context::OWN, b"lib/closed/x").unwrap_err().errno(), quell_vfs::errno::EACCES);
}

#[test]
fn a_file_replaced_by_another_kind_is_stale() {
    let temp = varied_tree();
    let image = Arc::new(image_of(temp.path(), &BuildOptions::default()));
    let source: Arc<dyn Dir> = Arc::new(PosixDir::open(temp.path()).unwrap());
    let fs = IndexFs::new(image, source, OnChange::Serve);
    let tool = resolve(&fs, &Context::OWN, b"bin/tool").unwrap();
    let path = temp.path().join("bin/tool");
    let is_stale =
        || assert_eq!(fs.open(&Context::OWN, tool.node).err().unwrap().errno(), quell_vfs::errno::ESTALE);
    std::fs::remove_file(&path).unwrap();
    is_stale();
    symlink("z-link", &path).unwrap();
    is_stale();
    std::fs::remove_file(&path).unwrap();
    rustix_mkfifo(&path);
    is_stale();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    is_stale();
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::net::UnixListener::bind(&path).unwrap();
    is_stale();
}
