//! Random sequences of batches and synchronous operations have the result that the reference model
//! has: nothing of an honest batch is refused, and nothing is lost.

mod stores;

use std::collections::{HashMap, HashSet};
use std::sync::RwLock;

use quell_batch_service::{
    BatchState, InodeChange, MemoryEntries, NameSpace, NewNode, ROOT, Timestamp, XattrChange,
};
use quell_testkit::Random;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result, SetXattr};

use stores::{FILE, Fixture, LATER, NEW, NOW, content, tree};

/// The number of random sequences, or that of the variable `QUELL_HISTORIES`.
fn sequences() -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(60, |text| text.parse().expect("a number"))
}

/// One operation, by paths.
#[derive(Debug, Clone)]
enum Operation {
    Create(String, NewNode),
    Link(String, String),
    Remove(String),
    RemoveDir(String),
    Rename(String, String, Rename),
    Change(String, InodeChange),
}

fn at<'a>(names: &dyn NameSpace, path: &'a str) -> Result<(u64, &'a [u8])> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut dir = ROOT;
    for part in above.split('/').filter(|part| !part.is_empty()) {
        let found = names.lookup(dir, part.as_bytes())?;
        let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))?.inode;
        if found.kind()? != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "look up", path));
        }
        dir = found.number;
    }
    Ok((dir, name.as_bytes()))
}

impl Operation {
    fn run(&self, names: &dyn NameSpace) -> Result<()> {
        let node = |path: &str| {
            let (dir, name) = at(names, path)?;
            let found = names.lookup(dir, name)?;
            found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))
        };
        match self {
            Operation::Create(path, new) => {
                let (dir, name) = at(names, path)?;
                let attributes = if *new == NewNode::Dir { NEW } else { FILE };
                names.create(dir, name, new.clone(), attributes, NOW).map(drop)
            }
            Operation::Link(from, to) => {
                let (dir, name) = at(names, to)?;
                let found = node(from)?;
                names.link((found.inode.number, &found.place), dir, name, LATER).map(drop)
            }
            Operation::Remove(path) => {
                let (dir, name) = at(names, path)?;
                names.remove(dir, name, LATER).map(drop)
            }
            Operation::RemoveDir(path) => {
                let (dir, name) = at(names, path)?;
                names.remove_dir(dir, name, LATER).map(drop)
            }
            Operation::Rename(from, to, mode) => {
                names.rename(at(names, from)?, at(names, to)?, *mode, LATER).map(drop)
            }
            Operation::Change(path, change) => {
                let found = node(path)?;
                names.change((found.inode.number, &found.place), change, LATER).map(drop)
            }
        }
    }
}

/// Returns a path of at most three names.
fn path(random: &mut Random) -> String {
    let names = ["a", "b", "c"];
    let depth = *random.pick(&[1, 1, 1, 2, 2, 3]);
    (0..depth).map(|_| *random.pick(&names)).collect::<Vec<_>>().join("/")
}

fn operation(random: &mut Random) -> Operation {
    let modes = [Rename::Replace, Rename::Replace, Rename::Keep, Rename::Exchange];
    match random.below(16) {
        0..=3 => Operation::Create(path(random), NewNode::Dir),
        4..=6 => Operation::Create(path(random), NewNode::File),
        7 => Operation::Create(path(random), NewNode::Symlink(b"target".to_vec())),
        8 => Operation::Link(path(random), path(random)),
        9 => Operation::Remove(path(random)),
        10 => Operation::RemoveDir(path(random)),
        11..=13 => Operation::Rename(path(random), path(random), *random.pick(&modes)),
        _ => {
            let number = random.below(100) as u8;
            let default = InodeChange::default();
            let change = match random.below(4) {
                0 => InodeChange { permissions: Some(0o700 | u32::from(number % 8)), ..default },
                1 => InodeChange { modified: Some(Timestamp(number.into(), 0)), ..default },
                2 => {
                    let set = XattrChange::Set(b"user.x".to_vec(), vec![number], SetXattr::Any);
                    InodeChange { xattr: Some(set), ..default }
                }
                _ => content(format!("content {number}").as_bytes()),
            };
            Operation::Change(path(random), change)
        }
    }
}

#[test]
fn batches_and_synchronous_operations_match_the_model() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..sequences() {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        // Some private name spaces write a table after a few changes.
        fixture.memory_bytes = if random.one_in(2) { 2000 } else { 1 << 20 };
        let master = fixture.master();
        let model = RwLock::new(MemoryEntries::new(NEW, NOW));
        for round in 0..8 {
            let open = random.one_in(2).then(|| fixture.begin());
            let names: &dyn NameSpace = open.as_ref().map_or(&*master, |open| &open.names);
            for _ in 0..random.below(100) {
                let operation = operation(&mut random);
                let (found, expected) = (operation.run(names), operation.run(&model));
                let kind = |result: Result<()>| result.map_err(|error| error.kind);
                let count = if expected.is_ok() { &mut done } else { &mut refused };
                *count += 1;
                assert_eq!(kind(found), kind(expected), "seed {seed}, {operation:?}");
            }
            if let Some(open) = &open {
                assert_eq!(tree(names), tree(&model), "seed {seed}, round {round}, before the commit");
                let conflicts = fixture.conflicts(open);
                assert_eq!(conflicts, [], "seed {seed}, round {round}");
            }
            assert_eq!(tree(&*master), tree(&model), "seed {seed}, round {round}");
        }
    }
    assert!(done > refused / 5, "{done} done, {refused} refused");
}

/// Checks that directories have the right number of links, that files have as many names as they
/// state, and that every directory is found once. Returns the inode numbers.
fn check(names: &dyn NameSpace, text: &str) -> HashSet<u64> {
    let mut files: HashMap<u64, (u32, u32)> = HashMap::new();
    let mut dirs = vec![ROOT];
    let mut seen = HashSet::new();
    while let Some(dir) = dirs.pop() {
        assert!(seen.insert(dir), "{text}: directory {dir} has two names");
        let mut found = Vec::new();
        names
            .list(dir, b"", &mut |name, _, _| {
                found.push(name.to_vec());
                true
            })
            .unwrap();
        let mut subdirs = 0;
        for name in found {
            let node = names.lookup(dir, &name).unwrap().expect("a listed name");
            if node.inode.kind().unwrap() == Kind::Dir {
                subdirs += 1;
                assert_eq!(names.parent(node.inode.number).unwrap(), (dir, name), "{text}");
                dirs.push(node.inode.number);
            } else {
                let (stated, found) = files.entry(node.inode.number).or_default();
                (*stated, *found) = (node.inode.links, *found + 1);
            }
        }
        let links = names.find(dir, &quell_batch_service::Place::Dir(dir)).unwrap().inode.links;
        assert_eq!(links, 2 + subdirs, "{text}: links of directory {dir}");
    }
    for (number, (stated, found)) in files {
        assert_eq!(stated, found, "{text}: names of file {number}");
        seen.insert(number);
    }
    seen
}

#[test]
fn batches_beside_changes_of_others_leave_a_whole_tree() {
    let (mut conflicts, mut batches) = (0, 0);
    for seed in 0..sequences() {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        fixture.memory_bytes = if random.one_in(2) { 2000 } else { 1 << 20 };
        let master = fixture.master();
        for round in 0..8 {
            let open = fixture.begin();
            for _ in 0..random.below(60) {
                let by_batch = random.one_in(2);
                let names: &dyn NameSpace = if by_batch { &open.names } else { &*master };
                // The operation may be refused.
                let _ = operation(&mut random).run(names);
            }
            let text = format!("seed {seed}, round {round}");
            let of_batch = check(&open.names, &text);
            check(&*master, &text);
            match fixture.commit(&open) {
                Ok(record) => {
                    batches += 1;
                    if let BatchState::Committed { conflicts: found, .. } = record.state {
                        conflicts += found.len();
                    }
                }
                Err(error) => panic!("{text}: {error}"),
            }
            // Everything that the batch has created is somewhere.
            let found = check(&*master, &text);
            let new = of_batch.iter().filter(|number| open.record.inodes.contains(number));
            let lost: Vec<_> = new.filter(|number| !found.contains(number)).collect();
            assert!(lost.is_empty(), "{text}: {lost:?} are lost");
        }
    }
    assert!(conflicts > batches / 4, "{conflicts} conflicts in {batches} batches");
}
