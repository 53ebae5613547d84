//! Tests of the rules of a name space.

use quell_vfs::ErrorKind;

use super::*;
use crate::change::{DataChange, XattrChange};
use crate::memory::MemoryEntries;

const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 1, gid: 2 };
const NOW: Time = Time { seconds: 5, nanoseconds: 6 };

fn names() -> Names<MemoryEntries> {
    MemoryEntries::new(NEW, NOW)
}

fn make_dir(names: &mut Names<MemoryEntries>, dir: u64, name: &[u8]) -> u64 {
    names.create(dir, name, NewNode::Dir, NEW, NOW).unwrap().inode.number
}

fn links(names: &Names<MemoryEntries>, dir: u64) -> u32 {
    names.inode(&Place::Dir(dir)).unwrap().links
}

#[test]
fn directories_count_their_subdirectories() {
    let mut names = names();
    let (a, b) = (make_dir(&mut names, ROOT, b"a"), make_dir(&mut names, ROOT, b"b"));
    let sub = make_dir(&mut names, a, b"sub");
    let file = names.create(b, b"file", NewNode::File, NEW, NOW).unwrap();
    assert_eq!([ROOT, a, b, sub].map(|dir| links(&names, dir)), [4, 3, 2, 2]);
    names.rename((a, b"sub"), (b, b"sub"), Rename::Keep, NOW).unwrap();
    assert_eq!([ROOT, a, b, sub].map(|dir| links(&names, dir)), [4, 2, 3, 2]);
    assert_eq!(names.parent(sub).unwrap(), (b, b"sub".to_vec()));
    // A directory and a file exchange their names, in one directory and between two.
    names.rename((b, b"sub"), (b, b"file"), Rename::Exchange, NOW).unwrap();
    assert_eq!(links(&names, b), 3);
    names.create(a, b"file", NewNode::File, NEW, NOW).unwrap();
    names.rename((a, b"file"), (b, b"file"), Rename::Exchange, NOW).unwrap();
    assert_eq!([ROOT, a, b, sub].map(|dir| links(&names, dir)), [4, 3, 2, 2]);
    assert_eq!(names.inode(&Place::Linked(file.inode.number)).unwrap().number, file.inode.number);
    // An empty directory replaces another one.
    names.rename((ROOT, b"b"), (a, b"other"), Rename::Replace, NOW).unwrap();
    assert_eq!([ROOT, a].map(|dir| links(&names, dir)), [3, 4]);
    let empty = make_dir(&mut names, ROOT, b"empty");
    let replaced = names.rename((a, b"file"), (ROOT, b"empty"), Rename::Replace, NOW).unwrap();
    assert_eq!(replaced.replaced.unwrap().inode.number, empty);
    assert_eq!([ROOT, a].map(|dir| links(&names, dir)), [4, 3]);
    names.remove_dir(ROOT, b"empty", NOW).unwrap();
    assert_eq!(links(&names, ROOT), 2 + 1);
}

#[test]
fn a_directory_is_not_moved_below_itself() {
    let mut names = names();
    let a = make_dir(&mut names, ROOT, b"a");
    let b = make_dir(&mut names, a, b"b");
    for mode in [Rename::Keep, Rename::Replace] {
        let refused = names.rename((ROOT, b"a"), (b, b"c"), mode, NOW).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidInput);
    }
    make_dir(&mut names, b, b"c");
    for (from, to) in [((ROOT, &b"a"[..]), (b, &b"c"[..])), ((b, b"c"), (ROOT, b"a"))] {
        let refused = names.rename(from, to, Rename::Exchange, NOW).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidInput);
    }
    assert_eq!(names.parent(b).unwrap(), (a, b"b".to_vec()));
}

#[test]
fn a_file_with_several_names_has_one_inode() {
    let mut names = names();
    let file = names.create(ROOT, b"one", NewNode::File, NEW, NOW).unwrap();
    let number = file.inode.number;
    let linked = names.link((number, &file.place), ROOT, b"two", NOW).unwrap();
    assert_eq!((linked.inode.links, linked.inode.number), (2, file.inode.number));
    let change = InodeChange { permissions: Some(0o600), ..InodeChange::default() };
    // The file is also found with its place before the link.
    names.change((number, &file.place), &change, NOW).unwrap();
    for name in [&b"one"[..], b"two"] {
        let found = names.lookup(ROOT, name).unwrap().unwrap();
        assert_eq!((found.inode.mode & 0o7777, found.place), (0o600, linked.place.clone()));
    }
    // A rename of one name to another of the same file has no effect.
    let renamed = names.rename((ROOT, b"one"), (ROOT, b"two"), Rename::Replace, NOW).unwrap();
    assert_eq!(renamed, Renamed { moved: number, exchanged: None, replaced: None });
    assert!(names.lookup(ROOT, b"one").unwrap().is_some());
    let removed = names.remove(ROOT, b"one", NOW).unwrap();
    assert_eq!((removed.inode.links, removed.place), (1, Some(linked.place.clone())));
    let removed = names.remove(ROOT, b"two", NOW).unwrap();
    assert_eq!((removed.inode.links, removed.place), (0, None));
    assert_eq!(names.inode(&linked.place).unwrap_err().kind, ErrorKind::Stale);
}

#[test]
fn an_entry_is_decoded_as_it_was_encoded_and_nothing_else_is() {
    let mut names = names();
    let file = names.create(ROOT, b"file", NewNode::File, NEW, NOW).unwrap();
    let set = XattrChange::Set(b"user.a".to_vec(), b"b".to_vec(), quell_vfs::SetXattr::Any);
    let data = DataChange::Inline { writes: Vec::new(), size_bytes: None, append: b"bytes".to_vec() };
    let change = InodeChange { data: Some(data), xattr: Some(set), ..InodeChange::default() };
    let inode = names.change((file.inode.number, &file.place), &change, NOW).unwrap();
    let entry = Entry::Inode(inode);
    let bytes = entry.encode();
    assert_eq!(Entry::decode(&bytes).unwrap(), entry);
    for length in 0..bytes.len() {
        assert!(Entry::decode(&bytes[..length]).is_err(), "{length} bytes");
    }
    assert!(Entry::decode(&[&bytes[..], &[0]].concat()).is_err());
}
