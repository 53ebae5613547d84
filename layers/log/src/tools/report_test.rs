//! Tests that the reports about a file agree with the data written to it.

use quell_testkit::{MemoryStore, Random};
use quell_vfs::{Change, Context, FileSystem, Writable};

use super::*;
use crate::test_stores::{again, container, content, make, mount, pattern};

/// Writes to a file from two processes alternately, at random offsets.
fn write_randomly(stores: &[MemoryStore], cut: bool) {
    let fs = mount(stores, 5, 1);
    let one = make(&fs, "f", 1);
    let other = again(&fs, "f", 2);
    let mut random = Random::new(9);
    for turn in 0..60 {
        let bytes = pattern(1 + random.below(9000), turn);
        let file = if random.one_in(2) { &one } else { &other };
        file.write_at(&bytes, random.below(200_000) as u64).unwrap();
    }
    drop((one, other));
    if cut {
        let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
        fs.change(&Context::OWN, node, &Change { size_bytes: Some(100_000), ..Change::default() }).unwrap();
    }
}

#[test]
fn the_map_gives_the_location_of_each_byte_that_readers_get() {
    let stores = [MemoryStore::new()];
    write_randomly(&stores, false);
    let resolved = ResolvedFile::resolve(container(&stores, "f"), 2).unwrap();
    let whole = content(&stores, "f").unwrap();
    let logs = container(&stores, "f");
    let mut at = 0;
    let mut holes = 0;
    resolved
        .map(0, u64::MAX, &mut |range| {
            assert_eq!(range.start, at);
            at = range.end;
            let expected = &whole[range.start as usize..range.end as usize];
            let Some(location) = range.location else {
                holes += 1;
                assert!(expected.iter().all(|byte| *byte == 0));
                return;
            };
            // Up to the next checksum the bytes are consecutive in the data log.
            let mut first = [0; 1];
            let file = logs.open_data(location.writer).unwrap();
            file.read_at(&mut first, location.log_offset).unwrap();
            assert_eq!(first[0], expected[0], "{range:?}");
        })
        .unwrap();
    assert_eq!(at, whole.len() as u64);
    assert!(holes > 0);
    let (mut some, mut part) = (Vec::new(), Vec::new());
    resolved.map(1000, 5000, &mut |range| some.push(range)).unwrap();
    resolved.map(5000, u64::MAX, &mut |range| part.push(range)).unwrap();
    assert_eq!((some[0].start, some.last().unwrap().end, part[0].start), (1000, 5000, 5000));
}

#[test]
fn the_states_of_all_logs_agree_with_the_map() {
    for cut in [false, true] {
        let stores = [MemoryStore::new(), MemoryStore::new()];
        write_randomly(&stores, cut);
        let report = report_file(container(&stores, "f"), 1).unwrap();
        assert_eq!(report.writers.len(), 2);
        let resolved = ResolvedFile::resolve(container(&stores, "f"), 1).unwrap();
        let (mut held, mut cut_away) = (0, 0);
        for writer in &report.writers {
            let mut at = 0;
            resolved
                .query(writer.writer, 0, u64::MAX, &mut |range| {
                    assert_eq!(range.payload_offset, at);
                    let length = range.end - range.start;
                    at += length;
                    let mut now = Vec::new();
                    resolved.map(range.start, range.end, &mut |range| now.push(range)).unwrap();
                    match range.state {
                        ByteState::Held => {
                            held += length;
                            let location = now[0].location.unwrap();
                            assert_eq!((now.len(), location.payload_offset), (1, range.payload_offset));
                            assert_eq!(
                                (location.writer, location.log_offset),
                                (writer.writer, range.log_offset)
                            );
                        }
                        ByteState::Overwritten(by) => {
                            assert_eq!((now.len(), now[0].location), (1, Some(by)));
                        }
                        ByteState::Truncated => cut_away += length,
                    }
                })
                .unwrap();
            assert_eq!(at, writer.payload_bytes);
        }
        assert_eq!(held, report.held_bytes);
        assert_eq!(cut_away > 0, cut);
        assert_eq!(report.truncations.len(), usize::from(cut));
        let mut one = Vec::new();
        resolved.query(report.writers[0].writer, 777, 778, &mut |range| one.push(range)).unwrap();
        assert_eq!((one.len(), one[0].payload_offset, one[0].end - one[0].start), (1, 777, 1));
        assert_eq!(resolved.query(1, 0, 1, &mut |_| ()).unwrap_err().kind, ErrorKind::NotFound);
    }
}

#[test]
fn a_report_includes_open_writers_and_their_processes() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, crate::test_stores::GONE);
    let file = make(&fs, "f", 1);
    file.write_at(b"hello", 10).unwrap();
    file.sync().unwrap();
    file.write_at(b"more", 100).unwrap();
    file.publish().unwrap();
    let report = report_file(container(&stores, "f"), 1).unwrap();
    let [writer] = &report.writers[..] else { panic!("{report:?}") };
    assert!(writer.open.as_ref().unwrap().is_dead);
    assert_eq!((writer.frames, writer.payload_bytes, report.held_bytes), (2, 9, 9));
    assert_eq!(report.attributes.size_bytes, 104);
    let summary = summarize_file(container(&stores, "f")).unwrap();
    assert_eq!((summary.writers, summary.open_writers, summary.data_bytes), (1, 1, writer.data_bytes));
}
