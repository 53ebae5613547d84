//! A check finds each damage of the entries of an image, and its repair makes them a tree in which
//! every inode has a name.

mod stores;

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_batch_service::{
    Content, Entries, Entry, Image, Inode, InodeChange, Key, KeyChange, NameSpace, Primary, ProblemKind,
    ROOT, TableFiles, Usage, check_tables, split,
};
use quell_kv::{Batch, KeyValue, MemoryStore};
use quell_testkit::Random;

use stores::{FILE, LATER, NEW, NOW, USER, make_dir, make_file, tables, usage, write};

/// A store whose image can be changed without the rules of a name space.
struct Store {
    keys: Arc<MemoryStore>,
    directory: tempfile::TempDir,
}

impl Store {
    fn new() -> Store {
        let store = Store { keys: Arc::new(MemoryStore::new()), directory: tempfile::tempdir().unwrap() };
        Image::create(&*store.keys, 7, NEW, NOW).unwrap();
        store
    }

    fn files(&self) -> Arc<dyn TableFiles> {
        Arc::new(tables(&self.directory.path().join("image")))
    }

    fn open(&self) -> Primary {
        Primary::open(self.keys.clone(), self.files()).unwrap()
    }

    /// Changes entries of the image.
    fn change(&self, changes: Vec<KeyChange>) {
        Image::open(self.keys.clone(), self.files()).unwrap().apply(changes).unwrap();
    }

    fn problems(&self, repairs: bool) -> Vec<(ProblemKind, String)> {
        let mut found = Vec::new();
        let checked = self.open().check(repairs, &mut |problem| {
            found.push((problem.kind, problem.detail.clone()));
        });
        checked.unwrap();
        found
    }
}

/// Creates a tree with every kind of entry, and returns the inode numbers of its directories.
fn prepare(names: &dyn NameSpace, random: &mut Random) -> Vec<u64> {
    let mut dirs = vec![ROOT];
    for number in 0..10 + random.below(20) {
        let dir = *random.pick(&dirs);
        match random.below(4) {
            0 | 1 => dirs.push(make_dir(names, dir, &format!("d{number}"))),
            2 => write(names, &make_file(names, dir, &format!("f{number}")), b"content"),
            _ => {
                let file = make_file(names, dir, &format!("l{number}"));
                let other = *random.pick(&dirs);
                let node = (file.inode.number, &file.place);
                names.link(node, other, format!("m{number}").as_bytes(), LATER).unwrap();
            }
        }
    }
    dirs
}

/// Returns the inode numbers of all inodes, and of those that a walk from the root finds.
fn inodes(store: &Store) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let names = store.open().name_space();
    let mut reached = BTreeSet::from([ROOT]);
    let mut left = vec![ROOT];
    while let Some(dir) = left.pop() {
        let mut found = Vec::new();
        let mut visit = |name: &[u8], _, _| {
            found.push(name.to_vec());
            true
        };
        names.list(dir, b"", &mut visit).unwrap();
        for name in found {
            let inode = names.lookup(dir, &name).unwrap().expect("a listed name").inode;
            let is_dir = matches!(inode.content, Content::Parent { .. });
            if reached.insert(inode.number) && is_dir {
                left.push(inode.number);
            }
        }
    }
    let all = entries(store).into_iter().filter_map(|(_, entry)| match entry {
        Entry::Inode(inode) => Some(inode.number),
        _ => None,
    });
    (all.collect(), reached)
}

/// Returns all entries of an image that has no tables.
fn entries(store: &Store) -> Vec<(Vec<u8>, Entry)> {
    let mut found = Vec::new();
    store
        .keys
        .scan(&quell_kv::KeyRange::prefix(b"e"), &mut |key, value| {
            if !value.is_empty() {
                found.push((key[1..].to_vec(), Entry::decode(value).unwrap()));
            }
            true
        })
        .unwrap();
    found
}

fn key_of(bytes: &[u8]) -> Key {
    let (dir, name) = split(bytes).unwrap();
    Key::of_name(dir, name)
}

/// Damages one entry. Inodes of files are not removed, because a repair could not create them
/// again.
fn damage(store: &Store, random: &mut Random) {
    let entries = entries(store);
    let (key, entry) = random.pick(&entries).clone();
    let dirs: Vec<u64> =
        entries.iter().filter(|(key, _)| key.len() == 8).map(|(key, _)| split(key).unwrap().0).collect();
    let changed = match entry {
        Entry::Inode(inode) if matches!(inode.content, Content::Parent { .. }) => match random.below(3) {
            0 => None,
            1 => Some(Entry::Inode(Inode { links: random.below(9) as u32, ..inode })),
            _ => {
                let content = Content::Parent { dir: *random.pick(&dirs), name: b"other".to_vec() };
                Some(Entry::Inode(Inode { content, ..inode }))
            }
        },
        Entry::Inode(inode) => Some(Entry::Inode(Inode { links: random.below(9) as u32, ..inode })),
        Entry::Dir { .. } => match random.below(3) {
            0 => None,
            // A second name of this or of another directory, perhaps in a directory below it.
            1 => {
                let second = Key::of_name(*random.pick(&dirs), b"second");
                let inode = dirs.iter().copied().rfind(|dir| *dir != ROOT);
                let Some(inode) = inode else { return };
                return store.change(vec![(second, Some(Entry::Dir { inode }))]);
            }
            _ => {
                // The directory is moved into another one, perhaps below itself.
                let moved = Key::of_name(*random.pick(&dirs), b"moved");
                return store.change(vec![(key_of(&key), None), (moved, Some(entry))]);
            }
        },
        Entry::Link { .. } => None,
    };
    store.change(vec![(key_of(&key), changed)]);
}

#[test]
fn a_whole_image_has_no_problems() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let store = Store::new();
        prepare(&*store.open().name_space(), &mut random);
        assert_eq!(store.problems(false), [], "seed {seed}");
    }
}

#[test]
fn damaged_entries_are_found_and_repaired_without_the_loss_of_an_inode() {
    let mut kinds = BTreeSet::new();
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let store = Store::new();
        prepare(&*store.open().name_space(), &mut random);
        for _ in 0..1 + random.below(4) {
            damage(&store, &mut random);
        }
        let before: BTreeSet<u64> = inodes_of_entries(&store);
        let damaged = store.problems(false);
        assert_eq!(store.problems(true), damaged, "seed {seed}: a check has changed the image");
        kinds.extend(damaged.iter().map(|(kind, _)| *kind));
        assert_eq!(store.problems(false), [], "seed {seed}, after the repair of {damaged:?}");
        let (after, reached) = inodes(&store);
        assert_eq!(after, reached, "seed {seed}: inodes without a name, after {damaged:?}");
        assert!(before.is_subset(&after), "seed {seed}: inodes are lost after {damaged:?}");
    }
    let expected = [
        ProblemKind::MissingInode,
        ProblemKind::NoName,
        ProblemKind::SecondName,
        ProblemKind::Cycle,
        ProblemKind::WrongParent,
        ProblemKind::WrongLinks,
    ];
    assert_eq!(kinds, BTreeSet::from(expected));
}

fn inodes_of_entries(store: &Store) -> BTreeSet<u64> {
    let inode = |(_, entry)| match entry {
        Entry::Inode(Inode { number, .. }) => Some(number),
        _ => None,
    };
    entries(store).into_iter().filter_map(inode).collect()
}

#[test]
fn names_without_a_file_and_numbers_that_are_not_given_are_repaired() {
    let store = Store::new();
    let d = make_dir(&*store.open().name_space(), ROOT, "d");
    let mut file = make_file(&*store.open().name_space(), d, "file").inode;
    file.number = 1 << 50;
    let link = Entry::Link { inode: 77, type_bits: 0o100_000 };
    store.change(vec![
        (Key::of_name(d, b"gone"), Some(link)),
        (Key::of_name(d, b"far"), Some(Entry::Inode(file.clone()))),
    ]);
    let kinds = |repairs| store.problems(repairs).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(kinds(true), [ProblemKind::InodeNumber, ProblemKind::MissingFile]);
    assert_eq!(kinds(false), []);
    let names = store.open().name_space();
    assert!(names.lookup(d, b"gone").unwrap().is_none());
    assert!(make_file(&*names, d, "new").inode.number > 1 << 50);
    // Two inodes with one number, and a value that is not an inode although its key requires one,
    // are listed and kept.
    store.change(vec![
        (Key::of_name(d, b"twice"), Some(Entry::Inode(file))),
        (Key::of_name(d, b""), Some(Entry::Dir { inode: d })),
    ]);
    let found = kinds(false);
    assert!(found.contains(&ProblemKind::InodeTwice) && found.contains(&ProblemKind::BadEntry), "{found:?}");
}

#[test]
fn missing_and_damaged_tables_are_found() {
    let store = Store::new();
    let primary = store.open();
    let d = make_dir(&*primary.name_space(), ROOT, "d");
    for number in 0..100 {
        make_file(&*primary.name_space(), d, &number.to_string());
    }
    let caller = quell_batch_service::BatchCaller { uid: FILE.uid, gid: FILE.gid, groups: Vec::new() };
    let new = quell_batch_service::NewBatch { name: "job".into(), caller, subtree: ROOT, is_atomic: false };
    let snapshot = primary.begin(new).unwrap().snapshot;
    drop(primary);
    let found = || {
        let mut found = Vec::new();
        check_tables(&*store.keys, &*store.files(), &mut |problem| found.push(problem.kind)).unwrap();
        found
    };
    assert_eq!(found(), []);
    let path = store.directory.path().join(format!("image/{:016x}.table", snapshot[0].number));
    let whole = std::fs::read(&path).unwrap();
    let mut random = Random::new(3);
    for _ in 0..200 {
        let mut bytes = whole.clone();
        let at = random.below(bytes.len());
        // The number of entries in the trailer, which nothing reads.
        if (8..16).contains(&(bytes.len() - 1 - at)) {
            continue;
        }
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(found(), [ProblemKind::DamagedTable], "byte {at}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(found(), [ProblemKind::MissingTable]);
}

/// The keys of the key-value store that have the use of users.
const COUNTED: &[u8] = b"c";
const USE_OF_USER: [u8; 5] = [b'u', 0, 0, 3, 232];

#[test]
fn wrong_counts_are_found_and_corrected() {
    for seed in 0..20 {
        let store = Store::new();
        prepare(&*store.open().name_space(), &mut Random::new(seed));
        let right = usage(&store.open());
        assert_eq!(right.iter().map(|(uid, _)| *uid).collect::<Vec<_>>(), [USER], "seed {seed}");
        let mut commit = Batch::new();
        match seed % 2 {
            0 => commit.delete(&USE_OF_USER),
            // One inode without bytes.
            _ => commit.put(&USE_OF_USER, &[1, 0]),
        }
        store.keys.commit(commit).unwrap();
        assert_ne!(usage(&store.open()), right, "seed {seed}");
        let found = store.problems(true);
        assert!(matches!(found[..], [(ProblemKind::WrongUsage, _)]), "seed {seed}: {found:?}");
        assert_eq!(store.problems(false), [], "seed {seed}");
        assert_eq!(usage(&store.open()), right, "seed {seed}");
    }
}

#[test]
fn a_store_without_counts_is_counted_at_its_first_open() {
    let store = Store::new();
    prepare(&*store.open().name_space(), &mut Random::new(1));
    let right = usage(&store.open());
    let mut commit = Batch::new();
    commit.delete(COUNTED);
    commit.delete(&USE_OF_USER);
    store.keys.commit(commit).unwrap();
    assert_eq!(usage(&store.open()), right);
    assert!(store.keys.get(COUNTED).unwrap().is_some());
    assert_eq!(store.problems(false), []);
}

#[test]
fn the_sizes_of_files_and_the_number_of_inodes_are_counted() {
    let store = Store::new();
    let primary = store.open();
    let names = primary.name_space();
    let file = make_file(&*names, ROOT, "file");
    let dir = make_dir(&*names, ROOT, "dir");
    write(&*names, &file, b"seven b");
    // The root directory, the file and the directory.
    assert_eq!(usage(&primary), [(USER, Usage { inodes: 3, bytes: 7 })]);
    let linked = names.link((file.inode.number, &file.place), dir, b"link", LATER).unwrap();
    assert_eq!(usage(&primary), [(USER, Usage { inodes: 3, bytes: 7 })]);
    let change = InodeChange { uid: Some(USER + 1), ..InodeChange::default() };
    names.change((linked.inode.number, &linked.place), &change, LATER).unwrap();
    let (own, other) = (Usage { inodes: 2, bytes: 0 }, Usage { inodes: 1, bytes: 7 });
    assert_eq!(usage(&primary), [(USER, own), (USER + 1, other)]);
    names.remove(ROOT, b"file", LATER).unwrap();
    assert_eq!(usage(&primary), [(USER, own), (USER + 1, other)]);
    names.remove(dir, b"link", LATER).unwrap();
    assert_eq!(usage(&primary), [(USER, own)]);
}
