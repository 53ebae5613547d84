//! Random sequences of batches and synchronous operations have the same result as the reference
//! model: no operation of an honest batch is refused, and no change is lost.

mod stores;

use std::collections::{HashMap, HashSet};
use std::sync::RwLock;

use quell_batch_service::{BatchState, MemoryEntries, NameSpace, ROOT};
use quell_testkit::Random;
use quell_vfs::{Kind, Result};

use stores::operations::operation;
use stores::{Fixture, NEW, NOW, tree};

/// The number of random sequences: the value of the variable `QUELL_HISTORIES`, or 60.
fn sequences() -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(60, |text| text.parse().expect("a number"))
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
            // The counted use of the users is compared with all entries, too.
            fixture.check(&format!("seed {seed}, round {round}"));
        }
    }
    assert!(done > refused / 5, "{done} done, {refused} refused");
}

/// Checks that directories have the right number of links, that files have as many names as they
/// state, and that every directory is found exactly once. Returns the inode numbers.
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
                        conflicts += found.count;
                    }
                }
                Err(error) => panic!("{text}: {error}"),
            }
            fixture.check(&text);
            // Every inode that the batch has created is found.
            let found = check(&*master, &text);
            let new = of_batch.iter().filter(|number| open.record.inodes.contains(number));
            let lost: Vec<_> = new.filter(|number| !found.contains(number)).collect();
            assert!(lost.is_empty(), "{text}: {lost:?} are lost");
        }
    }
    assert!(conflicts > batches / 4, "{conflicts} conflicts in {batches} batches");
}
