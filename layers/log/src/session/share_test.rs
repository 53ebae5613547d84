//! Tests that a file has the same content whether its index is read at once, is read in shares, or
//! does not fit into memory.

use crate::container::Container;
use crate::format::{FileOffset, FlatLog, PayloadOffset, Piece, Summary};
use crate::fs::LogFs;
use crate::session::extent_map::{ExtentMap, Torn};
use crate::session::flatten::{flatten, read_share};
use crate::session::share::Share;
use crate::test_stores::{
    GONE, again, container, container_with, content, make, mount, mount_later, pattern,
};

use quell_testkit::{MemoryStore, Random};
use quell_vfs::{Change, Context, ErrorKind, FileSystem, NodeId, OpenMode, Writable};

/// A range of the file, and the writer and payload offset of its bytes.
type SourcedRange = (FileOffset, FileOffset, u64, PayloadOffset);

/// Returns the whole content of an extent map: the size of the file, the source of each byte, and
/// the known part of each log.
fn content_of(map: &ExtentMap) -> (u64, Vec<SourcedRange>, Vec<FlatLog>) {
    let mut pieces: Vec<SourcedRange> = Vec::new();
    map.pieces(FileOffset::ZERO, FileOffset(map.size()), &mut |piece| {
        let Piece::Data(extent) = piece else { return };
        let writer = map.logs()[extent.log as usize].writer;
        let (start, end, payload) = (extent.start, extent.end(), extent.payload);
        match pieces.last_mut() {
            Some((from, to, owner, at)) if (*to, *owner, *at + (*to - *from)) == (start, writer, payload) => {
                *to = end;
            }
            _ => pieces.push((start, end, writer, payload)),
        }
    })
    .unwrap();
    let mut logs: Vec<FlatLog> = map.logs().iter().map(|log| log.to_flat()).collect();
    logs.sort_by_key(|log| log.writer);
    (map.size(), pieces, logs)
}

fn read_all(container: &Container, shares: usize) -> Vec<Vec<u8>> {
    (0..shares).map(|number| read_share(container, number, shares, 2).unwrap()).collect()
}

fn decode(container: &Container, shares: Vec<Vec<u8>>) -> Vec<Share> {
    shares.into_iter().map(|bytes| Share::decode(bytes, container.head()).unwrap()).collect()
}

fn merged(container: &Container, summary: &Summary, shares: &[Share]) -> ExtentMap {
    ExtentMap::merge(container, summary, &|_| None, 2, shares).unwrap()
}

fn built(container: &Container, summary: &Summary) -> ExtentMap {
    ExtentMap::build(container, summary, &|_| None, 1, Torn::new()).unwrap()
}

/// Adds new data to an extent map, as a reader does.
fn follow(map: &mut ExtentMap, container: &Container, summary: &Summary) {
    while let Some(update) = map.update_to(container, summary, &|_| None) {
        let update = update.read(container).unwrap();
        let is_all = map.apply(update, summary);
        map.shrink(container).unwrap();
        if is_all {
            return;
        }
    }
    *map = built(container, summary);
}

fn resize(fs: &LogFs, node: NodeId, size: u64) {
    fs.change(&Context::OWN, node, &Change { size_bytes: Some(size), ..Change::default() }).unwrap();
}

/// Creates a file that processes of three nodes have written. One of them died, and some still have
/// it open.
fn history(seed: u64, check: impl Fn(&MemoryStore, &mut Random)) {
    let mut random = Random::new(seed);
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let nodes: Vec<_> =
        [1, 2, GONE].into_iter().map(|pid| mount(stores, seed * 3 + u64::from(pid), pid)).collect();
    make(&nodes[0], "f", 1).sync().unwrap();
    let mut open = Vec::new();
    for step in 0..20 + random.below(60) {
        let fs = random.pick(&nodes);
        match random.below(12) {
            0 => drop(open.pop()),
            1..=3 => open.push(again(fs, "f", step as u32)),
            4 => {
                let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
                resize(fs, node, random.below(80_000) as u64);
            }
            _ if open.is_empty() => {}
            5 => random.pick(&open).sync().unwrap(),
            6 | 7 => random.pick(&open).publish().unwrap(),
            _ => {
                let length = *random.pick(&[1, 100, 5000, 60_000]);
                let bytes = pattern(1 + random.below(length), step as u64);
                random.pick(&open).write_at(&bytes, random.below(100_000) as u64).unwrap();
            }
        }
    }
    check(&store, &mut random);
}

#[test]
fn shares_of_any_number_of_ranks_have_the_content_of_all_logs() {
    for seed in 0..60 {
        history(seed, |store, random| {
            // The store is also checked after a power failure, with logs that are torn, missing or
            // without batches.
            let crashed = store.crash(seed);
            for store in [store, &crashed] {
                let container = container(std::slice::from_ref(store), "f");
                let summary = container.summary().unwrap();
                let expected = content_of(&built(&container, &summary));
                for ranks in [1, 2, 3, 1 + random.below(20)] {
                    let mut shares = decode(&container, read_all(&container, ranks));
                    let by = random.below(ranks);
                    shares.rotate_left(by);
                    assert_eq!(
                        content_of(&merged(&container, &summary, &shares)),
                        expected,
                        "{seed}, {ranks} ranks"
                    );
                    shares.pop();
                    assert_eq!(content_of(&merged(&container, &summary, &shares)), expected, "without one");
                }
            }
        });
    }
}

#[test]
fn an_index_that_does_not_fit_into_memory_has_the_same_content() {
    for seed in 200..260 {
        history(seed, |store, random| {
            let crashed = store.crash(seed);
            for store in [store, &crashed] {
                let stores = std::slice::from_ref(store);
                let whole = container(stores, "f");
                let summary = whole.summary().unwrap();
                let expected = content_of(&built(&whole, &summary));
                for extents_max in [1, 2, 7, 1 + random.below(100)] {
                    let small = container_with(stores, "f", extents_max);
                    for threads in [1, 3] {
                        let map =
                            ExtentMap::build(&small, &summary, &|_| None, threads, Torn::new()).unwrap();
                        assert_eq!(content_of(&map), expected, "{seed}, {extents_max} extents");
                    }
                    let shares = decode(&small, read_all(&small, 3));
                    assert_eq!(content_of(&merged(&small, &summary, &shares)), expected, "{seed}, shares");
                    let flattened = flatten(&small, 2).unwrap();
                    assert_eq!(flattened.logs, expected.2.len() as u64);
                    let flat = ExtentMap::open(&small, &summary, &|_| None, 2).unwrap();
                    assert_eq!(content_of(&flat), expected, "{seed}, flattened");
                    small.remove_flats().unwrap();
                }
            }
        });
    }
}

#[test]
fn an_extent_map_that_grows_beyond_memory_follows_the_logs() {
    for seed in 0..60 {
        let store = MemoryStore::new();
        let stores = std::slice::from_ref(&store);
        let mut random = Random::new(seed);
        let nodes = [mount(stores, 2 * seed + 1, 1), mount(stores, 2 * seed + 2, 2)];
        make(&nodes[0], "f", 1).sync().unwrap();
        let small = container_with(stores, "f", 1 + random.below(20));
        let mut map = built(&small, &small.summary().unwrap());
        let mut open = [again(&nodes[0], "f", 1), again(&nodes[1], "f", 2)];
        for step in 0..60 {
            let node_index = random.below(2);
            match random.below(10) {
                0 => open[node_index] = again(&nodes[node_index], "f", step + 3),
                1 => {
                    let node = nodes[node_index]
                        .lookup(&Context::OWN, nodes[node_index].root(), b"f")
                        .unwrap()
                        .unwrap()
                        .into_attributes()
                        .node;
                    resize(&nodes[node_index], node, random.below(20_000) as u64);
                }
                2 => open[node_index].sync().unwrap(),
                3 | 4 => {
                    let summary = small.summary().unwrap();
                    follow(&mut map, &small, &summary);
                    let whole = container(stores, "f");
                    let (followed, expected) = (content_of(&map), content_of(&built(&whole, &summary)));
                    assert_eq!((followed.0, followed.1), (expected.0, expected.1), "{seed}, step {step}");
                }
                _ => {
                    let bytes = pattern(1 + random.below(3000), step.into());
                    open[node_index].write_at(&bytes, random.below(20_000) as u64).unwrap();
                    open[node_index].publish().unwrap();
                }
            }
        }
    }
}

#[test]
fn ranks_that_read_meta_at_different_times_get_the_same_file() {
    for seed in 0..20 {
        let store = MemoryStore::new();
        let stores = std::slice::from_ref(&store);
        let mut random = Random::new(seed);
        let fs = mount(stores, 1, 1);
        let mut files = vec![make(&fs, "f", 0)];
        let mut shares = Vec::new();
        for rank in 0..4 {
            files.push(again(&fs, "f", 1 + rank as u32));
            for file in &files {
                let bytes = pattern(1 + random.below(5000), seed + rank as u64);
                file.write_at(&bytes, random.below(20_000) as u64).unwrap();
                file.publish().unwrap();
            }
            if random.one_in(3) {
                let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
                resize(&fs, node, random.below(20_000) as u64);
            }
            // Each reader finds other writers than the reader before it, so that a log may be in
            // several shares or in none.
            let container = container(stores, "f");
            shares.extend(decode(&container, vec![read_share(&container, rank, 4, 1).unwrap()]));
        }
        let container = container(stores, "f");
        let summary = container.summary().unwrap();
        assert_eq!(
            content_of(&merged(&container, &summary, &shares)),
            content_of(&built(&container, &summary))
        );
    }
}

#[test]
fn bytes_that_a_share_hides_are_not_holes_for_readers_without_the_writers_name() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    make(&fs, "f", 1).write_at(&[1; 100], 0).unwrap();
    let container = container(stores, "f");
    let before = container.summary().unwrap();
    again(&fs, "f", 2).write_at(&[2; 10], 50).unwrap();
    let shares = decode(&container, read_all(&container, 1));
    let expected = content_of(&built(&container, &container.summary().unwrap()));
    assert_eq!(content_of(&merged(&container, &before, &shares)), expected);
}

#[test]
fn a_file_opened_with_shares_has_the_same_content_and_follows_its_writers() {
    for seed in 100..130 {
        history(seed, |store, _| {
            let stores = [store.crash(seed)];
            let Ok(expected) = content(&stores, "f") else { return };
            let fs = mount_later(&stores, 5);
            let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
            let shares = (0..3).map(|rank| fs.read_share(node, rank, 3).unwrap()).collect();
            let file = fs.open_with_shares(&Context::OWN, node, OpenMode::READ, shares).unwrap();
            let mut bytes = vec![0; expected.len() + 1];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), expected.len());
            assert_eq!(bytes[..expected.len()], expected);
            again(&mount_later(&stores, 6), "f", 9).write_at(b"later", 7).unwrap();
            drop(again(&fs, "f", 3));
            again(&fs, "f", 1).read_at(&mut bytes[..5], 7).unwrap();
            assert_eq!(&bytes[..5], b"later");
        });
    }
}

#[test]
fn bytes_other_than_a_share_of_the_file_are_refused() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let first = make(&fs, "f", 1);
    for i in 0..50u64 {
        first.write_at(&[i as u8; 30], i * 997 % 1000).unwrap();
        again(&fs, "f", 2).write_at(&[i as u8; 10], i * 20).unwrap();
    }
    drop(first);
    drop(make(&fs, "other", 1));
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    let refuses = |bytes: Vec<u8>| {
        let error = fs
            .open_with_shares(&Context::OWN, node, OpenMode::READ, vec![bytes])
            .err()
            .expect("it is no share");
        assert_eq!(error.kind, ErrorKind::Damaged);
    };
    let share = fs.read_share(node, 1, 2).unwrap();
    for at in 0..share.len() {
        let mut wrong = share.clone();
        wrong[at] ^= 4;
        refuses(wrong);
        refuses(share[..at].to_vec());
    }
    let other = fs.lookup(&Context::OWN, fs.root(), b"other").unwrap().unwrap().into_attributes().node;
    refuses(fs.read_share(other, 0, 1).unwrap());
    assert_eq!(fs.read_share(node, 2, 2).unwrap_err().kind, ErrorKind::InvalidInput);
    fs.open_with_shares(&Context::OWN, node, OpenMode::READ, vec![share]).unwrap();
}
