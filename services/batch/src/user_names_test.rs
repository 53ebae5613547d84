//! Tests of the checks of permissions.

use super::*;
use crate::change::{FileSize, XattrChange};
use crate::entry::DataFile;
use crate::memory::MemoryEntries;
use quell_vfs::SetXattr;

const NOW: Time = Time { seconds: 5, nanoseconds: 6 };
const OWNER: NewEntry = NewEntry { permissions: 0o755, uid: 1, gid: 1 };
const USER: u32 = 1000;
const GROUP: u32 = 100;
const OTHER_GROUP: u32 = 200;

type Shared = Arc<RwLock<Names<MemoryEntries>>>;

fn user(names: &Shared) -> UserNames<MemoryEntries> {
    user_with(names, ReadAccess::All)
}

fn user_with(names: &Shared, reads: ReadAccess) -> UserNames<MemoryEntries> {
    let caller = BatchCaller { uid: USER, gid: USER, groups: vec![GROUP] };
    UserNames::new(names.clone(), caller, reads, None)
}

fn names() -> Shared {
    Arc::new(RwLock::new(MemoryEntries::new(OWNER, NOW)))
}

fn new(permissions: u32, uid: u32, gid: u32) -> NewEntry {
    NewEntry { permissions, uid, gid }
}

fn make(names: &Shared, dir: u64, name: &[u8], node: NewNode, new: NewEntry) -> Inode {
    names.create(dir, name, node, new, NOW).unwrap().inode
}

fn place(dir: u64, name: &[u8]) -> Place {
    Place::Name { dir, name: name.to_vec() }
}

fn kind<T>(result: Result<T>) -> std::result::Result<(), ErrorKind> {
    result.map(drop).map_err(|error| error.kind)
}

const DENIED: std::result::Result<(), ErrorKind> = Err(ErrorKind::PermissionDenied);
const NOT_PERMITTED: std::result::Result<(), ErrorKind> = Err(ErrorKind::Os(errno::EPERM));

fn change(
    names: &UserNames<MemoryEntries>,
    (inode, place): (&Inode, &Place),
    change: &InodeChange,
) -> std::result::Result<(), ErrorKind> {
    kind(names.change((inode.number, place), change, NOW))
}

fn data(data: DataChange) -> InodeChange {
    InodeChange { data: Some(data), ..InodeChange::default() }
}

fn append() -> InodeChange {
    data(DataChange::Inline { writes: Vec::new(), size_bytes: None, append: b"x".to_vec() })
}

#[test]
fn names_change_only_in_directories_that_the_user_may_write_and_reach() {
    let names = names();
    let user = user(&names);
    let closed = make(&names, ROOT, b"closed", NewNode::Dir, new(0o700, 1, 1)).number;
    let inside = make(&names, closed, b"inside", NewNode::Dir, new(0o777, 1, 1)).number;
    let group = make(&names, ROOT, b"group", NewNode::Dir, new(0o775, 1, GROUP)).number;
    let other = make(&names, ROOT, b"other", NewNode::Dir, new(0o775, 1, OTHER_GROUP)).number;
    let own = new(0o644, USER, USER);
    for dir in [ROOT, closed, inside, other] {
        make(&names, dir, b"old", NewNode::File, own);
        make(&names, dir, b"old-dir", NewNode::Dir, own);
        assert_eq!(kind(user.create(dir, b"new", NewNode::File, own, NOW)), DENIED, "{dir}");
        assert_eq!(kind(user.remove(dir, b"old", NOW)), DENIED);
        assert_eq!(kind(user.remove_dir(dir, b"old-dir", NOW)), DENIED);
        assert_eq!(kind(user.rename((dir, b"old"), (group, b"new"), Rename::Replace, NOW)), DENIED);
        let file = make(&names, group, b"source", NewNode::File, own);
        assert_eq!(kind(user.rename((group, b"source"), (dir, b"new"), Rename::Replace, NOW)), DENIED);
        assert_eq!(kind(user.link((file.number, &place(group, b"source")), dir, b"new", NOW)), DENIED);
        user.remove(group, b"source", NOW).unwrap();
    }
    user.create(group, b"new", NewNode::File, own, NOW).unwrap();
    user.rename((group, b"new"), (group, b"newer"), Rename::Keep, NOW).unwrap();
    user.remove(group, b"newer", NOW).unwrap();
}

#[test]
fn new_entries_belong_to_the_user_and_to_a_group_of_the_user() {
    let names = names();
    let user = user(&names);
    let open = make(&names, ROOT, b"open", NewNode::Dir, new(0o777, 1, 1)).number;
    let inherits = make(&names, ROOT, b"inherits", NewNode::Dir, new(0o2777, 1, OTHER_GROUP)).number;
    for refused in [new(0o644, 1, USER), new(0o644, 0, USER), new(0o644, USER, OTHER_GROUP)] {
        let created = user.create(open, b"file", NewNode::File, refused, NOW);
        assert_eq!(kind(created), NOT_PERMITTED, "{refused:?}");
    }
    let created = |dir, name: &[u8], node, new| user.create(dir, name, node, new, NOW).unwrap().inode;
    let file = created(open, b"file", NewNode::File, new(0o6755, USER, GROUP));
    assert_eq!((file.uid, file.gid, file.mode & 0o7777), (USER, GROUP, 0o6755));
    // A new file gets the group of the directory, but no set-group-ID bit.
    let file = created(inherits, b"file", NewNode::File, new(0o6755, USER, USER));
    assert_eq!((file.uid, file.gid, file.mode & 0o7777), (USER, OTHER_GROUP, 0o4755));
    let dir = created(inherits, b"dir", NewNode::Dir, new(0o755, USER, USER));
    assert_eq!((dir.uid, dir.gid, dir.mode & 0o7777), (USER, OTHER_GROUP, 0o2755));
}

#[test]
fn the_sticky_bit_keeps_entries_of_others() {
    let names = names();
    let user = user(&names);
    let sticky = make(&names, ROOT, b"sticky", NewNode::Dir, new(0o1777, 1, 1)).number;
    let open = make(&names, ROOT, b"open", NewNode::Dir, new(0o777, 1, 1)).number;
    make(&names, sticky, b"theirs", NewNode::File, new(0o666, 1, 1));
    make(&names, sticky, b"their-dir", NewNode::Dir, new(0o777, 1, 1));
    make(&names, sticky, b"mine", NewNode::File, new(0o600, USER, USER));
    make(&names, open, b"file", NewNode::File, new(0o600, USER, USER));
    assert_eq!(kind(user.remove(sticky, b"theirs", NOW)), NOT_PERMITTED);
    assert_eq!(kind(user.remove_dir(sticky, b"their-dir", NOW)), NOT_PERMITTED);
    for (from, to, mode) in [
        ((sticky, &b"theirs"[..]), (open, &b"stolen"[..]), Rename::Replace),
        ((open, b"file"), (sticky, b"theirs"), Rename::Replace),
        ((sticky, b"mine"), (sticky, b"theirs"), Rename::Exchange),
    ] {
        assert_eq!(kind(user.rename(from, to, mode, NOW)), NOT_PERMITTED);
    }
    // A directory of another user can be moved only by users who may write to it.
    make(&names, open, b"dir", NewNode::Dir, new(0o755, 1, 1));
    assert_eq!(kind(user.rename((open, b"dir"), (sticky, b"dir"), Rename::Keep, NOW)), DENIED);
    user.rename((open, b"dir"), (open, b"renamed"), Rename::Keep, NOW).unwrap();
    user.rename((sticky, b"mine"), (open, b"mine"), Rename::Keep, NOW).unwrap();
    user.remove(open, b"mine", NOW).unwrap();
}

#[test]
fn attributes_are_changed_by_owners_and_contents_by_writers() {
    let names = names();
    let user = user(&names);
    let file = |name: &[u8], new| (make(&names, ROOT, name, NewNode::File, new), place(ROOT, name));
    let (theirs, at) = file(b"theirs", new(0o664, 1, OTHER_GROUP));
    let node = (&theirs, &at);
    let permissions = |permissions| InodeChange { permissions: Some(permissions), ..Default::default() };
    let uid = |uid| InodeChange { uid: Some(uid), ..Default::default() };
    let gid = |gid| InodeChange { gid: Some(gid), ..Default::default() };
    let modified = InodeChange { modified: Some(NOW.into()), ..Default::default() };
    let xattr = XattrChange::Set(b"user.a".to_vec(), b"b".to_vec(), SetXattr::Any);
    let xattr = InodeChange { xattr: Some(xattr), ..Default::default() };
    assert_eq!(change(&user, node, &permissions(0o777)), NOT_PERMITTED);
    assert_eq!(change(&user, node, &uid(USER)), NOT_PERMITTED);
    assert_eq!(change(&user, node, &gid(GROUP)), NOT_PERMITTED);
    for refused in [&modified, &xattr, &append()] {
        assert_eq!(change(&user, node, refused), DENIED, "{refused:?}");
    }
    assert_eq!(kind(user.check_write((theirs.number, &at))), DENIED);
    // Only the owner sets another time than the present one, and attributes of a sticky directory.
    let (writable, at) = file(b"writable", new(0o664, 1, GROUP));
    let at_time = |seconds| InodeChange {
        modified: Some(Time { seconds, nanoseconds: 0 }.into()),
        ..Default::default()
    };
    for seconds in [i64::MIN, NOW.seconds - 61, NOW.seconds + 61, i64::MAX] {
        assert_eq!(change(&user, (&writable, &at), &at_time(seconds)), NOT_PERMITTED, "{seconds}");
    }
    assert_eq!(kind(user.check_write((writable.number, &at))), Ok(()));
    let modified_of = |place: &Place| names.find(writable.number, place).unwrap().inode.modified;
    let late = InodeChange { modified: at_time(77).modified, ..append() };
    for permitted in [&modified, &at_time(NOW.seconds - 60), &late] {
        assert_eq!(change(&user, (&writable, &at), permitted), Ok(()), "{permitted:?}");
        assert_eq!(modified_of(&at), NOW.into());
    }
    assert_eq!(change(&user, (&writable, &at), &xattr), Ok(()));
    for (mode, result) in [(0o777, Ok(())), (0o1777, NOT_PERMITTED)] {
        let dir = make(&names, ROOT, format!("{mode:o}").as_bytes(), NewNode::Dir, new(mode, 1, GROUP));
        assert_eq!(change(&user, (&dir, &Place::Dir(dir.number)), &xattr), result);
        let after = Inode {
            xattrs: vec![crate::entry::Xattr { name: b"user.a".to_vec(), value: Vec::new() }],
            ..dir.clone()
        };
        assert_eq!(user.caller.may_change(&dir, &after), result.is_ok());
    }
    // A write to a file of others removes the set-id bits, whether the client wants it or not.
    let (shared, at) = file(b"shared", new(0o6775, 1, GROUP));
    assert_eq!(change(&user, (&shared, &at), &permissions(0o777)), NOT_PERMITTED);
    assert_eq!(change(&user, (&shared, &at), &append()), Ok(()));
    assert_eq!(names.find(shared.number, &at).unwrap().inode.mode & 0o7777, 0o775);
    let (mine, at) = file(b"mine", new(0o644, USER, USER));
    let node = (&mine, &at);
    for refused in [uid(1), uid(0), gid(OTHER_GROUP)] {
        assert_eq!(change(&user, node, &refused), NOT_PERMITTED, "{refused:?}");
    }
    for permitted in [&gid(GROUP), &permissions(0o6755), &modified, &xattr, &append()] {
        assert_eq!(change(&user, node, permitted), Ok(()), "{permitted:?}");
    }
    // The set-group-ID bit needs the group.
    let (foreign, at) = file(b"foreign", new(0o644, USER, OTHER_GROUP));
    assert_eq!(change(&user, (&foreign, &at), &permissions(0o6755)), Ok(()));
    assert_eq!(names.find(foreign.number, &at).unwrap().inode.mode & 0o7777, 0o4755);
}

#[test]
fn data_files_are_those_of_the_user_and_of_the_inode() {
    let names = names();
    let user = user(&names);
    let mine = make(&names, ROOT, b"mine", NewNode::File, new(0o644, USER, USER));
    let at = place(ROOT, b"mine");
    let own = DataFile { batch: FILES_OF_USERS + u64::from(USER), inode: mine.number, version: 0 };
    let replace = |file| {
        let (expected, new) = (Content::Empty, Content::File(file));
        data(DataChange::Replace { expected, new, size: FileSize::Exactly(9) })
    };
    for refused in [
        DataFile { batch: 0, ..own },
        DataFile { batch: 3, ..own },
        DataFile { batch: own.batch + 1, ..own },
        DataFile { inode: own.inode + 1, ..own },
    ] {
        assert_eq!(change(&user, (&mine, &at), &replace(refused)), DENIED, "{refused:?}");
    }
    assert_eq!(change(&user, (&mine, &at), &replace(own)), Ok(()));
    assert_eq!(change(&user, (&mine, &at), &data(DataChange::File(own, FileSize::LongerBy(1)))), Ok(()));
}

#[test]
fn a_file_is_changed_only_by_a_name_that_the_user_can_reach() {
    let names = names();
    let user = user(&names);
    let closed = make(&names, ROOT, b"closed", NewNode::Dir, new(0o700, 1, 1)).number;
    let hidden = make(&names, closed, b"hidden", NewNode::File, new(0o666, 1, 1));
    let hidden_dir = make(&names, closed, b"dir", NewNode::Dir, new(0o777, 1, 1));
    let xattr = XattrChange::Set(b"user.a".to_vec(), b"b".to_vec(), SetXattr::Any);
    let xattr = InodeChange { xattr: Some(xattr), ..Default::default() };
    assert_eq!(change(&user, (&hidden, &place(closed, b"hidden")), &append()), DENIED);
    assert_eq!(change(&user, (&hidden_dir, &Place::Dir(hidden_dir.number)), &xattr), DENIED);
    // A file with several names has its inode in no directory.
    names.link((hidden.number, &place(closed, b"hidden")), closed, b"second", NOW).unwrap();
    let visible = make(&names, ROOT, b"visible", NewNode::File, new(0o666, 1, 1));
    for at in
        [Place::Linked(hidden.number), place(ROOT, b"visible"), place(ROOT, b"missing"), Place::Dir(ROOT)]
    {
        let changed = change(&user, (&hidden, &at), &append());
        assert!(matches!(changed, Err(ErrorKind::Stale | ErrorKind::PermissionDenied)), "{at:?} {changed:?}");
        let linked = user.link((hidden.number, &at), ROOT, b"stolen", NOW);
        assert!(linked.is_err(), "{at:?}");
    }
    names.link((visible.number, &place(ROOT, b"visible")), closed, b"of-visible", NOW).unwrap();
    assert_eq!(change(&user, (&visible, &place(ROOT, b"visible")), &append()), Ok(()));
    assert_eq!(change(&user, (&visible, &place(closed, b"of-visible")), &append()), DENIED);
}

#[test]
fn another_name_for_a_file_of_others_needs_the_right_to_read_and_write_it() {
    let names = names();
    let user = user(&names);
    let open = make(&names, ROOT, b"open", NewNode::Dir, new(0o777, 1, 1)).number;
    for (name, entry, expected) in [
        (&b"readable"[..], new(0o644, 1, 1), NOT_PERMITTED),
        (b"set-id", new(0o4777, 1, 1), NOT_PERMITTED),
        (b"open", new(0o666, 1, 1), Ok(())),
        (b"mine", new(0o400, USER, USER), Ok(())),
    ] {
        let inode = make(&names, open, name, NewNode::File, entry);
        let linked = user.link((inode.number, &place(open, name)), open, &[name, b"2"].concat(), NOW);
        assert_eq!(kind(linked), expected, "{}", name.escape_ascii());
    }
    let link = make(&names, open, b"link", NewNode::Symlink(b"t".to_vec()), new(0o777, 1, 1));
    let linked = user.link((link.number, &place(open, b"link")), open, b"link2", NOW);
    assert_eq!(kind(linked), NOT_PERMITTED);
}

#[test]
fn a_write_of_the_owner_removes_the_set_group_id_bit_of_a_group_without_the_owner() {
    let names = names();
    let user = user(&names);
    let dir = make(&names, ROOT, b"dir", NewNode::Dir, new(0o777, 1, 1)).number;
    for (gid, left) in [(OTHER_GROUP, 0o755), (GROUP, 0o6755)] {
        let name = gid.to_string().into_bytes();
        let file = make(&names, dir, &name, NewNode::File, new(0o6755, USER, gid));
        let at = place(dir, &name);
        assert_eq!(change(&user, (&file, &at), &append()), Ok(()));
        assert_eq!(names.find(file.number, &at).unwrap().inode.mode & 0o7777, left, "{gid}");
    }
}

#[test]
fn reads_of_a_private_store_need_permissions() {
    let names = names();
    let user = user_with(&names, ReadAccess::Permitted);
    let dirs = [(0o755, true, true), (0o711, true, false), (0o744, false, true), (0o700, false, false)];
    for (number, (permissions, may_search, may_list)) in dirs.into_iter().enumerate() {
        let name = number.to_string().into_bytes();
        let dir = make(&names, ROOT, &name, NewNode::Dir, new(permissions, 1, 1)).number;
        let below = make(&names, dir, b"below", NewNode::Dir, new(0o777, 1, 1)).number;
        let file = make(&names, dir, b"file", NewNode::File, new(0o644, 1, 1)).number;
        let deep = make(&names, below, b"deep", NewNode::File, new(0o644, 1, 1)).number;
        let searched = if may_search { Ok(()) } else { DENIED };
        assert_eq!(kind(user.lookup(dir, b"file")), searched, "{permissions:o}");
        assert_eq!(kind(user.lookup(dir, b"missing")), searched);
        assert_eq!(kind(user.lookup(below, b"deep")), searched);
        assert_eq!(kind(user.find(file, &place(dir, b"file"))), searched);
        assert_eq!(kind(user.find(deep, &place(below, b"deep"))), searched);
        assert_eq!(kind(user.find(below, &Place::Dir(below))), searched);
        assert_eq!(kind(user.parent(below)), searched);
        assert_eq!(kind(user.list(below, b"", &mut |_, _, _| true)), searched);
        assert_eq!(kind(user.list(dir, b"", &mut |_, _, _| true)), if may_list { Ok(()) } else { DENIED });
        // The attributes of the directory itself need no permission for it.
        user.find(dir, &Place::Dir(dir)).unwrap();
        // A client that knows only the number of a file with two names cannot find it.
        names.link((file, &place(dir, b"file")), dir, b"second", NOW).unwrap();
        assert_eq!(kind(user.find(file, &Place::Linked(file))), Err(ErrorKind::Stale));
        assert_eq!(kind(user.find(file, &place(dir, b"second"))), searched);
    }
}

#[test]
fn replies_of_a_private_store_have_no_bytes_that_the_user_may_not_read() {
    let names = names();
    let user = user_with(&names, ReadAccess::Permitted);
    let dir = make(&names, ROOT, b"dir", NewNode::Dir, new(0o777, 1, 1)).number;
    let modes =
        [(0o644, 1, 1, true), (0o600, 1, 1, false), (0o640, 1, GROUP, true), (0o604, 1, GROUP, false)];
    let own = (0o200, USER, USER, true);
    for (permissions, uid, gid, is_shown) in modes.into_iter().chain([own]) {
        let number = make(&names, dir, b"file", NewNode::File, new(permissions, uid, gid)).number;
        let at = place(dir, b"file");
        names.change((number, &at), &append(), NOW).unwrap();
        let set = XattrChange::Set(b"user.a".to_vec(), b"b".to_vec(), SetXattr::Any);
        let set = InodeChange { xattr: Some(set), ..InodeChange::default() };
        names.change((number, &at), &set, NOW).unwrap();
        let check = |inode: &Inode| {
            let shown = (inode.content == Content::Inline(b"x".to_vec()), !inode.xattrs.is_empty());
            assert_eq!(shown, (is_shown, is_shown), "{permissions:o}");
            assert_eq!(inode.content == Content::Hidden, !is_shown);
            assert_eq!(inode.size_bytes, 1);
        };
        check(&user.lookup(dir, b"file").unwrap().unwrap().inode);
        check(&user.find(number, &at).unwrap().inode);
        make(&names, dir, b"other", NewNode::File, new(0o644, 1, 1));
        let renamed = user.rename((dir, b"other"), (dir, b"file"), Rename::Replace, NOW).unwrap();
        check(&renamed.replaced.unwrap().inode);
        user.remove(dir, b"file", NOW).unwrap();
    }
    // The extended attributes of a directory.
    let closed = make(&names, dir, b"closed", NewNode::Dir, new(0o700, 1, 1)).number;
    let set = XattrChange::Set(b"user.a".to_vec(), b"b".to_vec(), SetXattr::Any);
    let set = InodeChange { xattr: Some(set), ..InodeChange::default() };
    names.change((closed, &Place::Dir(closed)), &set, NOW).unwrap();
    assert_eq!(user.lookup(dir, b"closed").unwrap().unwrap().inode.xattrs, []);
    assert_eq!(user.remove_dir(dir, b"closed", NOW).unwrap().inode.xattrs, []);
    // A user who may write to a file, and may not read it.
    let number = make(&names, dir, b"inbox", NewNode::File, new(0o622, 1, 1)).number;
    let at = place(dir, b"inbox");
    names.change((number, &at), &append(), NOW).unwrap();
    let changed = user.change((number, &at), &append(), NOW).unwrap();
    assert_eq!((changed.content, changed.size_bytes), (Content::Hidden, 2));
    let stored = names.find(number, &at).unwrap().inode;
    assert_eq!(stored.content, Content::Inline(b"xx".to_vec()));
    assert_eq!(user.remove(dir, b"inbox", NOW).unwrap().inode.content, Content::Hidden);
}
