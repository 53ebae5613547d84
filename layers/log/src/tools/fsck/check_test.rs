//! Tests that each kind of damage is reported as such, that a repair loses nothing, and that a
//! second repair finds nothing.

use std::ops::Range;

use quell_posix::WritableFile;
use quell_testkit::MemoryStore;
use quell_vfs::{Change, Context, FileSystem, Rename, Time, Writable};

use super::super::problem::{Finding, ProblemKind, RepairOutcome};
use super::*;
use crate::container::{Container, LOG_PERMISSIONS, read_frame_head};
use crate::format::{
    Builder, Closed, Extent, FileOffset, Frames, HEAD_BYTES, HeadKind, Holder, LogPosition, MetaName,
    PayloadOffset, Running, Runs, data_name, encode_batch, epoch_name, index_name, number_name,
};
use crate::fs::LogFs;
use crate::session::{Choices, ExtentMap, flatten, visit_batches};
use crate::stores::Host;
use crate::test_stores::{
    GONE, again, container, content, host, join, make, mount, opened, opened_by, pattern,
};
use crate::tools::report::report_file;

const DAY: i64 = 86_400;

fn options<'a>(repair: bool, now_seconds: i64, dead_nodes: &'a [String]) -> CheckOptions<'a> {
    CheckOptions {
        threads: 2,
        repair,
        dead_nodes,
        dead_writers: &[],
        now: Time { seconds: now_seconds, nanoseconds: 0 },
        leftover_age_seconds: DAY,
        is_in_use: &|_, _| false,
    }
}

fn checked(stores: &[MemoryStore], options: &CheckOptions<'_>) -> CheckResult {
    let opened = Arc::new(opened(stores, 41));
    check(&opened, b"", options, &ToolProgress::default()).unwrap()
}

fn ids(checked: &CheckResult) -> Vec<&'static str> {
    checked.findings.iter().map(|finding| finding.problem.kind.id()).collect()
}

/// Checks that a problem is reported whose identifier and text begin with `expected`.
#[track_caller]
fn assert_reports(stores: &[MemoryStore], expected: &str) {
    let checked = checked(stores, &options(false, 0, &[]));
    let is_expected = |finding: &Finding| finding.problem.to_string().starts_with(expected);
    assert!(checked.findings.iter().any(is_expected), "{checked:?}");
}

/// Returns the problems before and after a repair.
fn found_and_left(stores: &[MemoryStore]) -> (Vec<&'static str>, Vec<&'static str>) {
    let before = checked(stores, &options(false, 0, &[]));
    assert!(before.findings.iter().all(|finding| finding.outcome == RepairOutcome::NotRepaired));
    let repaired = checked(stores, &options(true, 0, &[]));
    assert_eq!(ids(&before), ids(&repaired), "{repaired:?}");
    for finding in &repaired.findings {
        assert!(!matches!(finding.outcome, RepairOutcome::Failed(_)), "{finding:?}");
    }
    let left = ids(&checked(stores, &options(true, 0, &[])));
    let still: Vec<_> = (repaired.findings.iter())
        .filter(|finding| finding.outcome == RepairOutcome::NotRepaired)
        .map(|finding| finding.problem.kind.id())
        .collect();
    assert_eq!(still, left, "{repaired:?}");
    (ids(&before), left)
}

/// Creates a file that two processes have written, with several frames each.
fn written() -> [MemoryStore; 2] {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    let (one, other) = (make(&fs, "f", 1), again(&fs, "f", 2));
    for i in 0..8u64 {
        one.write_at(&pattern(30_000, i), i * 100_000).unwrap();
        other.write_at(&pattern(30_000, 100 + i), i * 100_000 + 50_000).unwrap();
        other.publish().unwrap();
    }
    one.sync().unwrap();
    other.sync().unwrap();
    drop((one, other));
    stores
}

fn writer(stores: &[MemoryStore]) -> u64 {
    let summary = container(stores, "f").summary().unwrap();
    summary.closed.iter().map(|closed| closed.writer).min().unwrap()
}

fn log(stores: &[MemoryStore], name: &[u8]) -> Box<dyn WritableFile> {
    let writer = writer(stores);
    container(stores, "f").logs_of(writer, false).unwrap().open_writable_file(name).unwrap()
}

fn flip(file: &dyn WritableFile, at: u64) {
    let mut byte = [0];
    file.read_at(&mut byte, at).unwrap();
    file.write_at(&[byte[0] ^ 0x55], at).unwrap();
}

#[test]
fn a_check_of_sound_stores_finds_nothing_and_writes_nothing() {
    let stores = written();
    let fs = mount(&stores, 6, 1);
    let file = make(&fs, "open", 1);
    file.write_at(b"not published", 0).unwrap();
    file.publish().unwrap();
    stores.iter().for_each(|store| store.set_read_only(true));
    let checked = checked(&stores, &options(false, 0, &[]));
    assert_eq!((checked.files, checked.open_writers, &checked.findings[..]), (2, 1, &[][..]));
    assert!(checked.bytes >= 480_000);
}

#[test]
fn a_missing_torn_damaged_or_short_index_log_is_created_again() {
    let lengths = {
        let stores = written();
        log(&stores, &index_name(writer(&stores))).stat().unwrap().size_bytes
    };
    for damage in 0..5 {
        let stores = written();
        let whole = content(&stores, "f").unwrap();
        let writer = writer(&stores);
        let index = index_name(writer);
        let dir = container(&stores, "f").logs_of(writer, false).unwrap();
        match damage {
            0 => dir.remove(&index).unwrap(),
            1 => log(&stores, &index).set_size(lengths - 3).unwrap(),
            2 => flip(&*log(&stores, &index), HEAD_BYTES as u64 + 70),
            3 => flip(&*log(&stores, &index), 20),
            _ => log(&stores, &index).set_size(HEAD_BYTES as u64).unwrap(),
        }
        assert_eq!(content(&stores, "f").unwrap(), whole);
        assert_reports(&stores, "metadata: the index log of writer");
        assert_eq!(found_and_left(&stores), (vec!["metadata"], vec![]), "{damage}");
        assert_eq!(content(&stores, "f").unwrap(), whole);
        // The rebuilt index log is complete.
        let end = visit_batches(&container(&stores, "f"), writer, &mut |_, _| Ok(true)).unwrap();
        assert_eq!((end.end.indexed.payload, end.damage), (PayloadOffset(240_000), None));
    }
}

#[test]
fn an_index_log_that_differs_from_the_data_log_is_created_again() {
    let stores = written();
    let whole = content(&stores, "f").unwrap();
    let writer = writer(&stores);
    // Writes a valid batch with the runs of other frames.
    let mut frames = Frames::new(16_384, HEAD_BYTES as u64);
    let mut runs = Runs::default();
    let container = container(&stores, "f");
    visit_batches(&container, writer, &mut |batch, _| {
        frames.append(batch.frames);
        Ok(true)
    })
    .unwrap();
    runs.push(FileOffset(7), frames.payload_bytes());
    let bytes = encode_batch(&frames, runs.finish(), LogPosition::START, true);
    let index = log(&stores, &index_name(writer));
    index.set_size(HEAD_BYTES as u64).unwrap();
    index.write_at(&bytes, HEAD_BYTES as u64).unwrap();
    assert_reports(&stores, "metadata: the index log of writer");
    assert_eq!(found_and_left(&stores), (vec!["metadata"], vec![]));
    assert_eq!(content(&stores, "f").unwrap(), whole);
}

#[test]
fn damaged_bytes_are_reported_with_their_file_ranges_and_not_changed() {
    let stores = written();
    let data = log(&stores, &data_name(writer(&stores)));
    // This offset is in the second block of the first frame.
    let place = HEAD_BYTES as u64 + 200 + 16_384;
    flip(&*data, place);
    let before = checked(&stores, &options(true, 0, &[]));
    let [finding] = &before.findings[..] else { panic!("{before:?}") };
    assert_eq!(finding.problem.kind, ProblemKind::DamagedData);
    let [Range { start, end }] = finding.problem.ranges[..] else { panic!("{finding:?}") };
    assert_eq!(((start.0 % 50_000), end - start), (16_384, 30_000 - 16_384));
    assert_eq!((finding.path.as_slice(), &finding.outcome), (&b"f"[..], &RepairOutcome::NotRepaired));
    // Reading the damaged bytes is an error; all other bytes are readable.
    assert!(content(&stores, "f").is_err());
    // After an overwrite the damaged bytes are not needed.
    let fs = mount(&stores, 8, 1);
    again(&fs, "f", 3).write_at(&vec![1; 30_000], start.0 / 50_000 * 50_000).unwrap();
    assert_eq!(ids(&checked(&stores, &options(false, 0, &[]))), ["harmless-damage"]);
    content(&stores, "f").unwrap();
}

#[test]
fn lost_unsynced_bytes_are_reported_and_not_changed() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&pattern(30_000, 1), 0).unwrap();
    file.publish().unwrap();
    drop(file);
    let data = log(&stores, &data_name(writer(&stores)));
    let (head, _) = read_frame_head(&*data, LogPosition::START).unwrap().unwrap();
    // The end of the frame's first block did not reach the disk.
    data.write_at(&[0; 500], HEAD_BYTES as u64 + head.bytes() + 16_384 + 8 - 500).unwrap();
    assert_eq!(found_and_left(&stores), (vec!["lost-unsynced"], vec!["lost-unsynced"]));
    let whole = content(&stores, "f").unwrap();
    assert_eq!((&whole[..16_384], &whole[16_384..]), (&[0; 16_384][..], &pattern(30_000, 1)[16_384..]));
}

#[test]
fn an_index_log_that_describes_lost_data_is_created_again_and_the_file_keeps_its_size() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, GONE);
    let file = make(&fs, "f", 1);
    file.write_at(&pattern(20_000, 1), 0).unwrap();
    file.sync().unwrap();
    file.write_at(&pattern(20_000, 2), 20_000).unwrap();
    file.publish().unwrap();
    let stores = [stores[0].kill()];
    let writer = container(&stores, "f").summary().unwrap().open[0].writer;
    let data = container(&stores, "f").logs_of(writer, false).unwrap();
    let data = data.open_writable_file(&data_name(writer)).unwrap();
    data.set_size(data.stat().unwrap().size_bytes - 5_000).unwrap();
    let before = content(&stores, "f").unwrap();
    assert_eq!(before[..20_000], pattern(20_000, 1));
    let found = ids(&checked(&stores, &options(true, 0, &[])));
    assert_eq!(found, ["lost-unsynced", "torn-end", "metadata", "dead-writer"]);
    // The lost bytes are not reported again.
    assert_eq!(found_and_left(&stores), (vec![], vec![]));
    let after = content(&stores, "f").unwrap();
    assert_eq!((after.len(), &after[..20_000]), (40_000, &before[..20_000]));
}

#[test]
fn a_damaged_frame_header_is_harmless_while_the_index_log_describes_the_frame() {
    let stores = written();
    let whole = content(&stores, "f").unwrap();
    flip(&*log(&stores, &data_name(writer(&stores))), HEAD_BYTES as u64 + 9);
    assert_reports(&stores, "harmless-damage: the header of the frame at byte 64 of the data log");
    assert_eq!(found_and_left(&stores), (vec!["harmless-damage"], vec!["harmless-damage"]));
    assert_eq!(content(&stores, "f").unwrap(), whole);
    // Without the index log the content of the frame is unknown: the log is not truncated, and no
    // data is invented.
    let index = index_name(writer(&stores));
    container(&stores, "f").logs_of(writer(&stores), false).unwrap().remove(&index).unwrap();
    assert_reports(&stores, "damaged-data: bytes 64 to ");
    let (found, left) = found_and_left(&stores);
    assert!(found.contains(&"damaged-data") && left == found, "{found:?} {left:?}");
}

#[test]
fn a_log_that_lost_its_end_is_reported_and_not_changed() {
    let stores = written();
    let data = log(&stores, &data_name(writer(&stores)));
    let size = data.stat().unwrap().size_bytes;
    data.set_size(size - 100).unwrap();
    assert_reports(&stores, "damaged-data: bytes ");
    assert_reports(&stores, "damaged-data: the data log of writer");
    let (found, left) = found_and_left(&stores);
    assert_eq!((found.len(), &found), (2, &left));
    assert_eq!(data.stat().unwrap().size_bytes, size - 100);
    let writer = writer(&stores);
    let head = Container::head(&container(&stores, "f")).for_file(HeadKind::Index, writer);
    data.write_at(&head.encode(), 0).unwrap();
    let header = format!("damaged-data: the data log of writer {writer:016x} has a damaged header");
    assert_reports(&stores, &header);
    assert!(found_and_left(&stores).1.contains(&"damaged-data"));
}

/// Creates a file whose writer was killed: two frames are published, one is in the data log only.
fn killed(tail: &[u8]) -> ([MemoryStore; 1], Vec<u8>) {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, GONE);
    let file = make(&fs, "f", 1);
    for i in 0..2u64 {
        file.write_at(&pattern(20_000, i), i * 20_000).unwrap();
        file.publish().unwrap();
    }
    // This write is larger than a frame, and is written to the data log immediately.
    file.write_at(&pattern(50_000, 3), 40_000).unwrap();
    // The process is killed before it closes the file.
    let stores = [stores[0].kill()];
    let writer = container(&stores, "f").summary().unwrap().open[0].writer;
    let data = container(&stores, "f").logs_of(writer, false).unwrap();
    let data = data.open_writable_file(&data_name(writer)).unwrap();
    data.write_at(tail, data.stat().unwrap().size_bytes).unwrap();
    let whole = [pattern(20_000, 0), pattern(20_000, 1), pattern(50_000, 3)].concat();
    (stores, whole)
}

#[test]
fn a_dead_writer_is_closed_and_its_torn_end_is_removed() {
    for (tail, found) in [
        (&b""[..], vec!["metadata", "dead-writer"]),
        (b"FRAM and what else was begun", vec!["torn-end", "metadata", "dead-writer"]),
        (&[0; 40_000], vec!["torn-end", "metadata", "dead-writer"]),
    ] {
        let (stores, whole) = killed(tail);
        assert_eq!(content(&stores, "f").unwrap(), whole);
        assert_eq!(found_and_left(&stores), (found, vec![]));
        let summary = container(&stores, "f").summary().unwrap();
        let ([], [closed]) = (&summary.open[..], &summary.closed[..]) else { panic!("{summary:?}") };
        assert_eq!((closed.end, closed.first_epoch), (FileOffset(90_000), 1));
        assert_eq!(summary.size(), (90_000, vec![]));
        assert_eq!(content(&stores, "f").unwrap(), whole);
        let container = container(&stores, "f");
        let end = visit_batches(&container, closed.writer, &mut |_, _| Ok(true)).unwrap();
        let expected = LogPosition { log_offset: closed.data_bytes, payload: PayloadOffset(90_000) };
        assert_eq!(end.end.indexed, expected);
    }
}

#[test]
fn a_writer_that_died_before_its_first_write_leaves_no_logs() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, GONE);
    drop(make(&fs, "f", 1));
    let container = container(&stores, "f");
    let holder = Holder { pid: GONE, start: 1, node: "boot.node1".to_owned() };
    let begun =
        |writer| MetaName::Open(Running { writer, first_epoch: 1, holder: holder.clone(), published: None });
    container.add_meta(&begun(77)).unwrap();
    assert_eq!(found_and_left(&stores), (vec!["dead-writer"], vec![]));
    container.add_meta(&begun(78)).unwrap();
    container.create_data(78, &mut None).unwrap().set_size(30).unwrap();
    assert_eq!(found_and_left(&stores).1, Vec::<&str>::new());
    assert!(container.summary().unwrap().open.is_empty());
}

#[test]
fn a_writer_of_unknown_state_is_not_closed_until_its_node_is_declared_dead() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&pattern(50_000, 3), 0).unwrap();
    let stores = [stores[0].kill()];
    assert_eq!(found_and_left(&stores), (vec![], vec![]));
    let dead = ["elsewhere".to_owned()];
    assert_eq!(ids(&checked(&stores, &options(true, 0, &dead))), Vec::<&str>::new());
    for dead in [["node1".to_owned()], ["boot.node1".to_owned()]] {
        assert_eq!(ids(&checked(&stores, &options(false, 0, &dead))), ["metadata", "dead-writer"]);
    }
    assert_eq!(ids(&checked(&stores, &options(true, 0, &["node1".to_owned()]))), ["metadata", "dead-writer"]);
    assert_eq!(found_and_left(&stores), (vec![], vec![]));
    assert_eq!(content(&stores, "f").unwrap(), pattern(50_000, 3));
}

#[test]
fn a_writer_of_this_boot_is_not_closed_by_the_name_of_its_node() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&[1; 100], 0).unwrap();
    file.sync().unwrap();
    // A check in another container of the node, and one in the writer's own.
    for (writer, node) in [(77, "boot-7-8.node1"), (78, "boot.node1")] {
        let host = host(41, 2);
        let host = Host { holder: Holder { node: node.to_owned(), ..host.holder }, ..host };
        let opened = Arc::new(opened_by(&stores, host));
        for dead in [["node1".to_owned()], ["boot.node1".to_owned()]] {
            let checked = check(&opened, b"", &options(true, 0, &dead), &ToolProgress::default()).unwrap();
            assert_eq!((ids(&checked), checked.open_writers, checked.kept_writers), (vec![], 1, 1), "{node}");
        }
        let dead = ["elsewhere".to_owned()];
        let checked = check(&opened, b"", &options(true, 0, &dead), &ToolProgress::default()).unwrap();
        assert_eq!((checked.open_writers, checked.kept_writers), (1, 0), "{node}");
        // A process that is known to have ended needs no declaration.
        let container = container(&stores, "f");
        let holder = Holder { pid: GONE, start: 1, node: "boot.node1".to_owned() };
        let ended = MetaName::Open(Running { writer, first_epoch: 1, holder, published: None });
        container.add_meta(&ended).unwrap();
        let dead = ["node1".to_owned()];
        let checked = check(&opened, b"", &options(true, 0, &dead), &ToolProgress::default()).unwrap();
        assert_eq!((ids(&checked), checked.kept_writers), (vec!["dead-writer"], 1), "{node}");
    }
    file.write_at(&[2; 100], 100).unwrap();
    file.sync().unwrap();
}

#[test]
fn a_live_writer_that_was_closed_by_force_gets_an_error_at_each_sync_and_close() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&[1; 100], 0).unwrap();
    file.sync().unwrap();
    let writer = container(&stores, "f").summary().unwrap().open[0].writer;
    assert_eq!(ids(&checked(&stores, &options(true, 0, &[]))), [""; 0], "it may live");
    let another = [writer ^ 1];
    let named = CheckOptions { dead_writers: &another, ..options(true, 0, &[]) };
    assert_eq!(ids(&checked(&stores, &named)), [""; 0], "another was named");
    let ended = [writer];
    let done = checked(&stores, &CheckOptions { dead_writers: &ended, ..options(true, 0, &[]) });
    assert_eq!((ids(&done), &done.findings[0].outcome), (vec!["dead-writer"], &RepairOutcome::Repaired));
    file.write_at(&[2; 100], 100).unwrap();
    for _ in 0..2 {
        let error = file.sync().unwrap_err();
        assert_eq!(error.errno(), quell_vfs::errno::EIO, "{error}");
        assert!(error.to_string().contains("has ended writer"), "{error}");
    }
    assert_eq!(file.publish().unwrap_err().errno(), quell_vfs::errno::EIO);
    drop((file, fs));
    assert_eq!(content(&stores, "f").unwrap(), [1; 100]);
}

#[test]
fn a_flat_index_that_is_damaged_or_differs_from_the_logs_is_removed() {
    for damage in 0..3 {
        let stores = written();
        let whole = content(&stores, "f").unwrap();
        let container = container(&stores, "f");
        flatten(&container, 1).unwrap();
        assert_eq!(found_and_left(&stores), (vec![], vec![]));
        // Later data does not contradict the flat index.
        let fs = mount(&stores, 8, 1);
        again(&fs, "f", 3).write_at(b"later", 10).unwrap();
        assert_eq!(found_and_left(&stores), (vec![], vec![]));
        let name = container.flats().unwrap().remove(0);
        let flat = container.dir().unwrap().open_writable_file(&name).unwrap();
        match damage {
            0 => flip(&*flat, HEAD_BYTES as u64 + 3),
            1 => flat.set_size(100).unwrap(),
            _ => {
                // Uses a flat index of another file's logs.
                let other = make(&fs, "other", 1);
                other.write_at(&whole[..1000], 0).unwrap();
                drop(other);
                let put = |pieces: &[&[u8]], place| flat.write_pieces_at(pieces, place);
                let mut builder = Builder::new(put, container.head()).unwrap();
                let summary = container.summary().unwrap();
                let view = ExtentMap::published(&container, &summary, 1).unwrap();
                let first = Extent { start: FileOffset(5), payload: PayloadOffset(0), length: 1000, log: 0 };
                builder.push(first).unwrap();
                let logs: Vec<_> = view.logs().iter().map(|log| log.to_flat()).collect();
                let bytes = builder.finish(&logs, &[], 800_000).unwrap();
                flat.set_size(bytes).unwrap();
            }
        }
        assert_reports(&stores, "metadata: the flat index flat-");
        assert_eq!(found_and_left(&stores), (vec!["metadata"], vec![]), "{damage}");
        assert!(container.flats().unwrap().is_empty());
        let now = content(&stores, "f").unwrap();
        assert_eq!((&now[..10], &now[10..15], &now[15..]), (&whole[..10], &b"later"[..], &whole[15..]));
    }
}

#[test]
fn a_used_epoch_without_a_name_gets_its_name() {
    let stores = written();
    let fs = mount(&stores, 8, 1);
    again(&fs, "f", 3).write_at(b"later", 0).unwrap();
    let container = container(&stores, "f");
    let (epochs, _) = container.epochs_and_flats().unwrap();
    assert!(*epochs.last().unwrap() > 1);
    for epoch in epochs {
        container.dir().unwrap().remove(format!("epoch-{epoch:x}").as_bytes()).unwrap();
    }
    assert_reports(&stores, "metadata: epoch ");
    assert_eq!(found_and_left(&stores), (vec!["metadata"], vec![]));
}

#[test]
fn a_wrong_closed_name_is_written_again() {
    let stores = written();
    let whole = content(&stores, "f").unwrap();
    let container = container(&stores, "f");
    let right = *container.summary().unwrap().closed.iter().min_by_key(|closed| closed.writer).unwrap();
    let wrong = Closed { last_epoch: right.last_epoch + 1, ..right };
    container.rename_meta(&MetaName::Closed(right), &MetaName::Closed(wrong)).unwrap();
    container.dir().unwrap().create_file(&epoch_name(wrong.last_epoch), LOG_PERMISSIONS).unwrap();
    assert_reports(&stores, "metadata: the `closed` name of writer");
    assert_eq!(found_and_left(&stores), (vec!["metadata"], vec![]));
    let repaired = container.summary().unwrap().closed;
    let repaired = repaired.iter().find(|closed| closed.writer == right.writer).unwrap();
    assert_eq!((repaired.last_epoch, repaired.end), (right.last_epoch, right.end));
    assert_eq!(content(&stores, "f").unwrap(), whole);
}

#[test]
fn a_closed_name_left_from_a_truncation_to_zero_is_removed() {
    let stores = written();
    let fs = mount(&stores, 8, 1);
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    let closed = container(&stores, "f").summary().unwrap().closed;
    fs.change(&Context::OWN, node, &Change { size_bytes: Some(0), ..Change::default() }).unwrap();
    drop(fs);
    let container = container(&stores, "f");
    assert!(container.summary().unwrap().closed.is_empty());
    // The truncation was interrupted after it removed the logs of the writer, before its name.
    container.add_meta(&MetaName::Closed(closed[0])).unwrap();
    assert_reports(&stores, "metadata: the `closed` name of writer");
    assert_eq!(found_and_left(&stores), (vec!["metadata"], vec![]));
    assert!(container.summary().unwrap().closed.is_empty());
}

#[test]
fn foreign_entries_and_inconsistent_names_are_reported_and_not_changed() {
    let stores = written();
    let (first, second) = (stores[0].root(), stores[1].root());
    first.create_file(b"plain", 0o644).unwrap();
    first.create_file(b"x.container", 0o644).unwrap().write_at(b"x", 0).unwrap();
    first.make_dir(b"y.container", 0o755).unwrap();
    first.make_dir(b"lonely", 0o755).unwrap();
    first.make_dir(b"f", 0o755).unwrap();
    second.make_dir(b"f", 0o755).unwrap();
    second.make_symlink(b"link", b"/etc").unwrap();
    let container = container(&stores, "f");
    container.meta().unwrap().create_file(b"open-nonsense", 0o644).unwrap();
    container.dir().unwrap().make_dir(b"logs-9999", 0o755).unwrap();
    container.create_data(5, &mut None).unwrap();
    for expected in [
        "foreign: an entry of store 0 that Quell did not create",
        "leftover: the file has no header and no content",
        "foreign: a directory that has the name of a container",
        "foreign: Quell did not create meta/open-nonsense",
        "foreign: Quell did not create logs-9999",
        "inconsistent-name: store 1 does not have this directory",
        "inconsistent-name: a file of this name hides a directory",
        "inconsistent-name: store 1 has a directory or symbolic link that is missing in store 0",
        "orphan-logs: the logs of writer 0000000000000005",
    ] {
        assert_reports(&stores, expected);
    }
    let (mut found, left) = found_and_left(&stores);
    found.retain(|id| *id != "leftover");
    assert_eq!(found, left);
    assert!(first.stat(b"x.container").is_err());
    found.sort_unstable();
    let expected = [("foreign", 4), ("inconsistent-name", 3), ("orphan-logs", 1)];
    let expected: Vec<_> = expected.iter().flat_map(|(id, count)| std::iter::repeat_n(*id, *count)).collect();
    assert_eq!(found, expected);
    assert!(first.stat(b"plain").is_ok() && first.stat(b"y.container").is_ok());
}

#[test]
fn a_file_in_two_stores_and_a_damaged_record_are_reported() {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    for (alone, seed) in stores.iter().zip(5..) {
        drop(make(&mount(std::slice::from_ref(alone), seed, 1), "f", 1));
    }
    // Each store was mounted separately and created a file of this name.
    join(&stores);
    assert_reports(&stores, "inconsistent-name: another store has a file of this name");
    assert_eq!(found_and_left(&stores).0, ["inconsistent-name"]);
    let stores = written();
    let (_, found) = stores.iter().enumerate().find(|(_, s)| s.root().stat(b"f.container").is_ok()).unwrap();
    let dir = found.root().open_writable_dir(b"f.container").unwrap();
    flip(&*dir.open_writable_file(b"container").unwrap(), 30);
    assert!(ids(&checked(&stores, &options(true, 0, &[]))).contains(&"not-checked"));
}

#[test]
fn leftovers_are_removed_when_they_are_old_and_not_in_use() {
    let stores = written();
    let opened = Arc::new(opened(&stores, 41));
    let summary = container(&stores, "f").summary().unwrap();
    let home = (0..2).find(|s| stores[*s].root().stat(b"f.container").is_ok()).unwrap();
    // Imitates a file that was removed while a process had it open, after which the process was
    // killed.
    let trash = opened.trash_dir(home).unwrap();
    stores[home].root().rename(b"f.container", &*trash, b"0123", Rename::Replace).unwrap();
    opened.temporary_dir(1).unwrap().make_dir(b"4567", 0o700).unwrap();
    opened.temporary_dir(1).unwrap().make_symlink(b"89", b"/etc").unwrap();
    stores[0].root().make_dir(b".quell-00000000000000000000000000000000", 0o755).unwrap();
    let now = trash.stat(b"0123").unwrap().changed.seconds;
    assert!(ids(&checked(&stores, &options(true, now, &[]))).is_empty());
    let late = now + 2 * DAY;
    let used = CheckOptions { is_in_use: &|_, names| names[0] == b"trash", ..options(true, late, &[]) };
    let seen = checked(&stores, &used);
    assert_eq!(seen.findings.len(), 3, "{seen:?}");
    assert!(seen.findings.iter().all(|finding| finding.outcome == RepairOutcome::Repaired), "{seen:?}");
    assert!(trash.stat(b"0123").is_ok());
    assert_eq!(ids(&checked(&stores, &options(false, late, &[]))), ["leftover"]);
    assert_eq!(ids(&checked(&stores, &options(true, late, &[]))), ["leftover"]);
    assert_eq!(ids(&checked(&stores, &options(true, late, &[]))), Vec::<&str>::new());
    assert!(!summary.closed.is_empty());
}

#[test]
fn orphan_parts_are_reported_and_not_removed() {
    let stores = written();
    let own = stores[1].root().open_writable_dir(b".quell").unwrap();
    own.open_writable_dir(b"parts").unwrap().make_dir(&number_name(5), 0o755).unwrap();
    assert_eq!(found_and_left(&stores), (vec!["orphan-parts"], vec!["orphan-parts"]));
}

#[test]
fn a_failed_repair_is_reported_and_the_next_run_completes_it() {
    let (stores, whole) = killed(b"torn");
    stores[0].fail_one_in(1, 1, &["rename"], quell_vfs::errno::EIO);
    let failed = checked(&stores, &options(true, 0, &[]));
    assert!(failed.findings.iter().any(|f| matches!(f.outcome, RepairOutcome::Failed(_))), "{failed:?}");
    stores[0].fail_nothing();
    assert_eq!(found_and_left(&stores).1, Vec::<&str>::new());
    assert_eq!(content(&stores, "f").unwrap(), whole);
}

#[test]
fn a_stopped_check_repairs_nothing() {
    let (stores, _) = killed(b"torn");
    let opened = Arc::new(opened(&stores, 41));
    let progress = ToolProgress::default();
    progress.stop();
    let checked = check(&opened, b"f", &options(true, 0, &[]), &progress).unwrap();
    assert!(checked.findings.is_empty());
    assert_eq!(container(&stores, "f").summary().unwrap().open.len(), 1);
}

#[test]
fn closing_a_dead_writer_keeps_the_size_of_a_truncated_file() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, GONE);
    let file = make(&fs, "f", 1);
    file.write_at(&pattern(50_000, 3), 0).unwrap();
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    fs.change(&Context::OWN, node, &Change { size_bytes: Some(1000), ..Change::default() }).unwrap();
    let stores = [stores[0].kill()];
    assert_eq!(content(&stores, "f").unwrap().len(), 1000);
    assert_eq!(found_and_left(&stores), (vec!["metadata", "dead-writer"], vec![]));
    assert_eq!(content(&stores, "f").unwrap(), pattern(50_000, 3)[..1000]);
}

/// Returns a mount whose files begin as objects.
fn mount_of_objects(stores: &[MemoryStore], pid: u32) -> LogFs {
    let choices = Choices { begins_as_object: true, index_threads: 1, ..Choices::default() };
    LogFs::new(opened_by(stores, host(pid.into(), pid)), choices)
}

#[test]
fn objects_and_their_containers_are_checked_without_a_change() {
    let stores = [MemoryStore::new()];
    let fs = mount_of_objects(&stores, 1);
    drop(make(&fs, "empty", 1));
    let file = make(&fs, "small", 1);
    file.write_at(&[1; 5000], 0).unwrap();
    drop(file);
    let file = make(&fs, "extended", 1);
    file.write_at(&[2; 3 << 20], 0).unwrap();
    file.publish().unwrap();
    file.write_at(&[3; 100], 50).unwrap();
    drop(file);
    let open = make(&fs, "open", 1);
    open.write_at(&[4; 3 << 20], 0).unwrap();
    let names =
        || stores[0].root().open_writable_dir(b".quell/parts").map_or(0, |dir| dir.names().unwrap().len());
    let before = names();
    let checked = checked(&stores, &options(true, 0, &[]));
    assert!(checked.findings.is_empty(), "{checked:?}");
    assert_eq!(names(), before, "a check creates no container");
    for name in ["small", "extended"] {
        let report = report_file(container(&stores, name), 1).unwrap();
        assert!(
            !report.writers.is_empty() && report.writers.iter().all(|writer| writer.open.is_none()),
            "{report:?}"
        );
    }
    drop(open);
}

#[test]
fn an_object_of_a_killed_process_is_readable_and_its_writer_is_ended_by_a_repair() {
    let stores = [MemoryStore::new()];
    let fs = mount_of_objects(&stores, GONE);
    let file = make(&fs, "f", 1);
    file.write_at(&[1; 2 << 20], 0).unwrap();
    file.write_at(&[2; 100], 2 << 20).unwrap(); // collected and lost
    let _killed = std::mem::ManuallyDrop::new((file, fs));
    // Another process creates the container.
    let fs = mount_of_objects(&stores, 1);
    let other = again(&fs, "f", 2);
    other.write_at(&[3; 10], 3 << 20).unwrap();
    drop(other);
    let size = || report_file(container(&stores, "f"), 1).unwrap().attributes.size_bytes;
    assert_eq!(size(), (3 << 20) + 10);
    let (_, left) = found_and_left(&stores);
    assert_eq!(left, [""; 0]);
    assert_eq!(size(), (3 << 20) + 10);
}

/// Returns the owners of all parts of a file that began as an object.
fn owners(stores: &[MemoryStore], name: &str) -> Vec<u32> {
    let container = container(stores, name);
    let object = container.object().unwrap().stat().unwrap().uid;
    let dir = container.dir().unwrap();
    let parts = [&b"access"[..], b"meta"].map(|part| dir.stat(part).unwrap().uid);
    [&[object, dir.stat_self().unwrap().uid][..], &parts].concat()
}

#[test]
fn an_interrupted_change_of_the_owner_is_reported_and_finished() {
    let (mut at, mut was_interrupted, mut reported) = (0, true, 0);
    while was_interrupted {
        let stores = [MemoryStore::new()];
        drop(make(&mount_of_objects(&stores, 1), "f", 1));
        let file = again(&mount_of_objects(&stores, 2), "f", 2);
        file.write_at(&[7; 100], 0).unwrap();
        drop(file);
        let root = Host { uid: 0, ..host(3, 3) };
        let fs = LogFs::new(opened_by(&stores, root), Choices { index_threads: 1, ..Choices::default() });
        let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
        let mut count = 0;
        stores[0].fail(move |_| {
            count += 1;
            (count > at).then_some(quell_vfs::errno::EIO)
        });
        let changed = fs.change(&Context::OWN, node, &Change { uid: Some(55), ..Change::default() });
        was_interrupted = changed.is_err();
        let _killed = std::mem::ManuallyDrop::new(fs);
        stores[0].fail_nothing();
        let opened = || Arc::new(opened_by(&stores, Host { uid: 0, ..host(4, 4) }));
        let check =
            |repair| check(&opened(), b"", &options(repair, 0, &[]), &ToolProgress::default()).unwrap();
        let before = ids(&check(false));
        let has_several = owners(&stores, "f").iter().any(|owner| *owner != owners(&stores, "f")[0]);
        assert_eq!(before.contains(&"inconsistent-owner"), has_several, "{at}: {before:?}");
        reported += usize::from(has_several);
        let parts = owners(&stores, "f");
        // `meta` changes before the object, and an object never gets the container of another user.
        let can_be_finished = parts[3] == parts[0];
        check(true);
        let after = ids(&check(false)).contains(&"inconsistent-owner");
        assert_eq!(after, has_several && !can_be_finished, "{at}: {parts:?}");
        if after {
            let fs = LogFs::new(opened_by(&stores, Host { uid: 0, ..host(5, 5) }), Choices::default());
            let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
            fs.change(&Context::OWN, node, &Change { uid: Some(55), ..Change::default() }).unwrap();
            assert_eq!(ids(&check(false)), [""; 0], "{at}");
        }
        let owners = owners(&stores, "f");
        assert!(owners.iter().all(|owner| *owner == owners[0]), "{at}: {owners:?}");
        assert!(was_interrupted || owners[0] == 55, "{owners:?}");
        assert_eq!(content(&stores, "f").unwrap(), [7; 100], "{at}");
        at += 1;
    }
    assert!(reported > 3, "the owner is changed in several steps: {reported}");
}
