//! Entry points for the fuzz targets. The input is arbitrary: a decoder must refuse it, or the
//! value must be the same after it was encoded and decoded again. Compiled for tests and with the
//! feature `fuzzing`, which only fuzz/ enables.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use quell_vfs::{Kind, NewEntry, Result, Time};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::{BatchCaller, BatchRecord, BatchState, Conflict, ConflictReason, Conflicts, PartState};
use crate::certificate::{Certificate, CertifiedDir, CertifiedTable, ProofForm};
use crate::entry::{AdoptedFile, Content, DataFile, Entry, Inode, ROOT, Timestamp, Xattr};
use crate::image::{Addition, Image};
use crate::image_copy::ImageCopy;
use crate::key::Key;
use crate::limits::{LimitChange, Limits, NumberChange, QuotaSubject, UNLIMITED};
use crate::names::Names;
use crate::operations::fuzzing::{self as operations, Change};
use crate::partition::{Assignment, Assignments, NewAssignment, ReturnedChanges, SlotPartitions};
use crate::readable::ReadAccess;
use crate::stored::{Description, decode, encode};
use crate::table::{self, BlockCache, Table, TableLookups, TableWriter};
use crate::table_ref::{TableRef, first_conflicts_of_batch, first_table_of_batch};
use crate::table_set::TableSet;
use crate::task::VerificationTask;
use crate::usage::{Usage, UsageChanges, UsageOfUsers};
use crate::verdict::Verdict;
use crate::view::View;

/// The length of the magic bytes before the checksum of a certificate and of a copy.
const MAGIC_BYTES: usize = 16;
/// The length of these magic bytes and of the checksum.
const HEAD_BYTES: usize = MAGIC_BYTES + 8;

/// Reads a table from beginning to end, and looks its keys up. If `is_sealed` is set, its checksums
/// are corrected first.
pub fn check_table(bytes: &[u8], is_sealed: bool) {
    let mut bytes = bytes.to_vec();
    if is_sealed {
        table::reseal(&mut bytes);
    }
    let Ok(table) = Table::open(memory_file(&bytes), None, Arc::new(BlockCache::default())) else { return };
    let table = Arc::new(table);
    let Ok(entries) = entries_of(&table) else { return };
    let mut lookups = TableLookups::new(table.clone());
    let ascends = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
    for (key, value) in &entries {
        if let Ok(entry) = Entry::decode(value) {
            let number = Entry::encoded_inode_number(value).expect("the entry has one");
            assert_eq!(number, entry.inode_number());
            assert_eq!(Entry::decode(&entry.encode()).expect("an encoded value can be decoded"), entry);
        }
        // The filter and the last keys of the blocks may be wrong, so an entry may not be found.
        let found = table.get(key);
        if ascends && let (Ok(Some(found)), Ok(Some(next))) = (found, lookups.get(key)) {
            assert_eq!((&found, &next), (value, value));
        }
    }
    if !ascends || entries.is_empty() {
        return;
    }
    let mut writer = TableWriter::new(memory_file(b""));
    if entries.iter().try_for_each(|(key, value)| writer.add(key, value)).is_ok() {
        let summary = writer.finish().expect("a write to memory succeeds");
        assert_eq!(summary.entries, entries.len() as u64);
    }
}

/// Decodes the copy of the description of an image.
pub fn check_image_copy(bytes: &[u8], is_sealed: bool) {
    let Ok(copy) = ImageCopy::decode(&sealed(bytes, is_sealed)) else { return };
    assert_eq!(ImageCopy::decode(&copy.encode()).expect("an encoded value can be decoded"), copy);
    let ImageCopy { description, batches, limits, assignments } = copy;
    assert!(description.has_few_numbers_less_than(&description));
    let rebuilt = description.clone().after_loss();
    assert!(rebuilt.next_inode > description.next_inode && rebuilt.next_table > description.next_table);
    batches.iter().for_each(|batch| drop(batch.summary()));
    assert!(limits.quotas(&UsageOfUsers::default()).len() >= 2);
    let by_dir = Assignments::new(assignments);
    by_dir.all().iter().for_each(|assignment| assert!(by_dir.map_of(assignment.partitions.dir).is_some()));
}

/// Decodes bytes as each kind of value of the key-value store, and as a conflict.
pub fn check_records(bytes: &[u8]) {
    fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(value) = decode::<T>(bytes) {
            assert_eq!(decode::<T>(&encode(&value)).expect("an encoded value can be decoded"), value);
        }
    }
    check::<Entry>(bytes);
    check::<Description>(bytes);
    check::<BatchRecord>(bytes);
    check::<Conflict>(bytes);
    check::<View>(bytes);
    check::<Usage>(bytes);
    check::<UsageChanges>(bytes);
    check::<Limits>(bytes);
    check::<Assignment>(bytes);
    check::<NewAssignment>(bytes);
    check::<ReturnedChanges>(bytes);
}

/// Decodes a certificate.
pub fn check_certificate(bytes: &[u8], is_sealed: bool) {
    let bytes = sealed(bytes, is_sealed);
    if let Ok(certificate) = Certificate::decode(&bytes) {
        assert_eq!(certificate.encode(), bytes);
    }
}

/// Decodes the verdict about the batch of the seeds.
pub fn check_verdict(bytes: &[u8]) {
    let task = verification_task();
    if let Ok(verdict) = Verdict::decode(bytes, &task) {
        assert_eq!(verdict.encode(task.record.number).expect("it was decoded"), bytes);
    }
}

/// Returns an assignment of a partition.
pub(crate) fn new_assignment() -> NewAssignment {
    let VerificationTask { current, .. } = verification_task();
    let partitions = SlotPartitions { dir: 9, depth: 2, slots: 3, slot: 1 };
    let assignment = Assignment { number: 12, server: 1, partitions, tables: current, inodes: 100..200 };
    let content = Content::Parent { dir: ROOT, name: b"large".to_vec() };
    let dir = Inode {
        number: partitions.dir,
        mode: Kind::Dir.mode_bits() | 0o755,
        uid: 7,
        gid: 8,
        links: 2,
        size_bytes: 0,
        modified: Timestamp(5, 6),
        changed: Timestamp(7, 8),
        content,
        xattrs: Vec::new(),
    };
    NewAssignment { assignment, dir }
}

/// Returns the task of an auxiliary server for the batch of the seeds.
pub(crate) fn verification_task() -> VerificationTask {
    let record = seed_record();
    let current = [&[TableRef { number: 2, ..record.snapshot[0].clone() }], &record.snapshot[..]].concat();
    let now = Timestamp(1_700_000_000, 5);
    let reads = ReadAccess::Permitted;
    VerificationTask {
        store: 1 << 100,
        batch: 3,
        earlier: Vec::new(),
        conflicts: 5,
        current,
        now,
        record,
        reads,
    }
}

/// Returns a verdict about this batch.
pub(crate) fn verdict() -> Verdict {
    let batch = seed_record().number;
    let table = |number| TableRef { number, bytes: 4000, entries: 2, checksum: 17 };
    let tables = vec![table(first_table_of_batch(batch) + 1), table(first_table_of_batch(batch))];
    let mut usage = UsageChanges::default();
    let file = Inode { uid: 1000, mode: Kind::File.mode_bits(), size_bytes: 150, ..seed_inode() };
    (0..2).for_each(|_| usage.add(&Entry::Inode(file.clone())));
    Verdict {
        addition: Addition { tables, changed_dirs: vec![ROOT, 400], usage: Some(usage) },
        entries: 3,
        conflicts: Conflicts { count: 7, tables: vec![table(first_conflicts_of_batch(batch))] },
        dirs: vec![1, 1 << 40],
        accesses: vec![ROOT, 300],
    }
}

fn seed_inode() -> Inode {
    Inode {
        number: 400,
        mode: 0,
        uid: 0,
        gid: 0,
        links: 1,
        size_bytes: 0,
        modified: Timestamp(0, 0),
        changed: Timestamp(0, 0),
        content: Content::Empty,
        xattrs: Vec::new(),
    }
}

fn seed_record() -> BatchRecord {
    BatchRecord {
        number: 3,
        name: "job".to_owned(),
        caller: BatchCaller { uid: 1000, gid: 1000, groups: vec![4, 5] },
        inodes: 1 << 32..2 << 32,
        snapshot: vec![TableRef { number: 1, bytes: 900, entries: 4, checksum: 7 }],
        subtree: ROOT,
        is_atomic: false,
        state: BatchState::Open,
    }
}

/// Executes the operations of a block of a log. The entries that they make must be the same after
/// they were stated as operations again.
pub fn check_operations(bytes: &[u8]) {
    let snapshot = small_snapshot();
    let Ok(executed) = operations::execute(bytes, &snapshot) else { return };
    let Ok(entries) = table::entries_of_block(&executed) else { return };
    let with_before = entries.into_iter().map(|(key, value)| {
        let before = snapshot.get(&key).expect("a table in memory can be read");
        (key, value, before.filter(|before| !before.is_empty()))
    });
    let changes: Vec<_> = with_before.collect();
    // The path of an adopted file was not checked yet.
    let Ok(block) = operations::block_of(&changes) else { return };
    let again = operations::execute(&block, &snapshot).expect("a block that was written can be executed");
    let again = table::entries_of_block(&again).expect("the keys ascend");
    let expected = changes.into_iter().map(|(key, value, _)| (key, value));
    assert_eq!(again, expected.collect::<Vec<_>>());
}

/// Returns a snapshot with a directory and some files.
fn small_snapshot() -> TableSet {
    let bytes = table_of(&small_entries());
    let table = Table::open(memory_file(&bytes), None, Arc::new(BlockCache::default()));
    TableSet::new(vec![Arc::new(table.expect("a table"))])
}

/// Returns the bytes, with the checksum after the magic bytes corrected if `is_sealed` is set.
fn sealed(bytes: &[u8], is_sealed: bool) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if is_sealed && bytes.len() >= HEAD_BYTES {
        let checksum = xxh3_64(&bytes[HEAD_BYTES..]);
        bytes[MAGIC_BYTES..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

fn memory_file(bytes: &[u8]) -> File {
    let mut file =
        File::from(memfd_create("table", MemfdFlags::CLOEXEC).expect("the kernel has memory files"));
    file.write_all(bytes).expect("a write to memory succeeds");
    file
}

fn entries_of(table: &Arc<Table>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut entries, mut found) = (table.entries(), Vec::new());
    while let Some(pair) = entries.next(|key, value| (key.to_vec(), value.to_vec()))? {
        found.push(pair);
    }
    Ok(found)
}

/// Returns the inodes of a directory and of a file in it.
fn small_inodes() -> (Inode, Inode) {
    let new = NewEntry { permissions: 0o755, uid: 1000, gid: 1000 };
    let (_, root) = Names::<Image>::new_root(new, Time { seconds: 1_700_000_000, nanoseconds: 5 });
    let Some(Entry::Inode(root)) = root else { unreachable!("the root directory has an inode") };
    let file = Inode {
        number: 77,
        mode: 0o100_644,
        links: 1,
        size_bytes: 4,
        content: Content::Inline(b"data".to_vec()),
        xattrs: vec![Xattr { name: b"user.a".to_vec(), value: b"b".to_vec() }],
        ..root.clone()
    };
    (root, file)
}

fn small_link() -> Entry {
    Entry::Link { inode: 77, type_bits: 0o100_000 }
}

/// Returns the entries of a directory, and a removal.
fn small_entries() -> Vec<(Key, Vec<u8>)> {
    let (root, file) = small_inodes();
    vec![
        (Key::of_dir(ROOT), Entry::Inode(root).encode()),
        (Key::of_name(ROOT, b"file"), Entry::Inode(file).encode()),
        (Key::of_name(ROOT, b"link"), small_link().encode()),
        (Key::of_name(ROOT, b"removed"), Vec::new()),
    ]
}

/// Returns operations of all kinds on these entries.
fn small_operations() -> Vec<Change> {
    let (root, file) = small_inodes();
    let (number, time) = (1 << 32, Timestamp(1_700_000_001, 7));
    let before = Some(Entry::Inode(file.clone()).encode());
    let touched = Inode { modified: time, changed: time, ..root.clone() };
    let new = |number, name: &str| {
        let (content, xattrs) = (Content::Empty, Vec::new());
        let inode =
            Inode { number, size_bytes: 0, content, xattrs, modified: time, changed: time, ..file.clone() };
        (Key::of_name(ROOT, name.as_bytes()), Some(inode))
    };
    let mut changes = vec![
        (Key::of_dir(ROOT), Some(Entry::Inode(touched)), Some(Entry::Inode(root.clone()).encode())),
        (Key::of_name(ROOT, b"dir"), Some(Entry::Dir { inode: number }), None),
        (
            Key::of_name(ROOT, b"file"),
            Some(Entry::Inode(Inode { mode: 0o100_600, changed: time, ..file.clone() })),
            before,
        ),
        (Key::of_name(ROOT, b"link"), None, Some(small_link().encode())),
    ];
    for at in 1..4 {
        let (key, inode) = new(number + at, &format!("new.{at}"));
        changes.push((key, inode.map(Entry::Inode), None));
    }
    let (key, inode) = new(number + 9, "own");
    let own = DataFile { batch: 3, inode: number + 9, version: 0 };
    let own = inode.map(|inode| Inode { size_bytes: 1 << 20, content: Content::File(own), ..inode });
    changes.push((key, own.map(Entry::Inode), None));
    let parent = Content::Parent { dir: ROOT, name: b"dir".to_vec() };
    let dir = Inode { number, content: parent, xattrs: Vec::new(), ..root };
    changes.push((Key::of_dir(number), Some(Entry::Inode(dir)), None));
    changes.push((Key::of_name(number, b"link"), Some(small_link()), None));
    let encoded = |entry: Option<Entry>| entry.map_or(Vec::new(), |entry| entry.encode());
    changes
        .into_iter()
        .map(|(key, value, before)| (key.as_bytes().to_vec(), encoded(value), before))
        .collect()
}

/// Returns initial inputs: the fuzz target, a name, and the bytes.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (root, file) = small_inodes();
    let original = AdoptedFile {
        path: b"dir/name".to_vec(),
        inode: 5,
        size_bytes: 4,
        modified: root.modified,
        changed: root.changed,
    };
    let adopted = Inode { content: Content::Adopted(Box::new(original)), ..file.clone() };
    let link = small_link().encode();
    let record = seed_record();
    let state = BatchState::Part { of: 2, state: PartState::Committed { entries: 300 } };
    let part = BatchRecord { state, ..record.clone() };
    let description = Description { tables: record.snapshot.clone(), ..Description::new(1 << 100) };
    let certificate = Certificate {
        store: 1 << 100,
        batch: 3,
        snapshot: 9,
        inodes_used: 300,
        form: ProofForm::Certificate,
        tables: vec![CertifiedTable { number: 1 << 32, entries: 1000, checksum: 11 }],
        dirs: vec![CertifiedDir { dir: ROOT, changes: 2, pre_image: 13 }],
    };
    let of_log = Certificate { form: ProofForm::Log, dirs: Vec::new(), ..certificate.clone() };
    let conflict = Conflict { dir: ROOT, name: b"a".to_vec(), reason: ConflictReason::Exists, kept_as: None };
    let with = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    let small = small_entries();
    let block = operations::block_of(&small_operations()).expect("the values are entries");
    // Several blocks. A large value has a block of its own.
    let mut large: Vec<_> =
        (0..200).map(|n| (Key::of_name(ROOT, format!("{n:03}").as_bytes()), link.repeat(20))).collect();
    large[100].1 = (0..20_000).map(|n: u32| ((n * n) >> 3) as u8).collect();
    let limit = LimitChange { inodes: NumberChange::Set(1000), bytes: NumberChange::Set(UNLIMITED) };
    let limits = Limits::default().changed(QuotaSubject::User(7), limit).expect("it is a user");
    let (description_of_copy, batches) = (description.clone(), vec![record.clone()]);
    let assignments = vec![new_assignment().assignment];
    let copy = ImageCopy { description: description_of_copy, batches, limits, assignments };
    vec![
        ("batch_tables", "small", with(0, &table_of(&small))),
        ("batch_tables", "large", with(1, &table_of(&large))),
        ("batch_tables", "empty", with(1, &table_of(&[]))),
        ("batch_images", "copy", with(1, &copy.encode_without_limits())),
        ("batch_images", "assignments", with(1, &copy.encode())),
        ("batch_records", "entry", Entry::Inode(file).encode()),
        ("batch_records", "adopted", Entry::Inode(adopted).encode()),
        ("batch_records", "link", link),
        ("batch_records", "description", encode(&description)),
        ("batch_records", "batch", encode(&record)),
        ("batch_records", "part", encode(&part)),
        ("batch_records", "conflict", encode(&conflict)),
        ("batch_records", "limits", encode(&copy.limits)),
        ("batch_records", "assignment", encode(&copy.assignments[0])),
        ("batch_certificates", "one", with(1, &certificate.encode())),
        ("batch_verdicts", "one", verdict().encode(record.number).expect("it is short")),
        ("batch_certificates", "log", with(1, &of_log.encode())),
        ("batch_operations", "block", block),
    ]
}

/// Returns the bytes of a table.
fn table_of(entries: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let file = memory_file(b"");
    let mut writer = TableWriter::new(file.try_clone().expect("a descriptor"));
    for (key, value) in entries {
        writer.add(key.as_bytes(), value).expect("a write to memory succeeds");
    }
    let summary = writer.finish().expect("a write to memory succeeds");
    let mut bytes = vec![0; summary.bytes as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("a read from memory succeeds");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::Random;

    /// Passes one input to the function of the fuzz target.
    fn check(target: &str, bytes: &[u8]) {
        let (choice, rest) = bytes.split_first().unwrap_or((&0, &[]));
        match target {
            "batch_tables" => check_table(rest, choice % 2 == 1),
            "batch_images" => check_image_copy(rest, choice % 2 == 1),
            "batch_certificates" => check_certificate(rest, choice % 2 == 1),
            "batch_records" => check_records(bytes),
            "batch_verdicts" => check_verdict(bytes),
            "batch_operations" => check_operations(bytes),
            other => panic!("no target {other}"),
        }
    }

    #[test]
    fn seeds_and_modified_seeds_are_refused_or_decoded_consistently() {
        let mut random = Random::new(5);
        for (target, _, seed) in seeds() {
            check(target, &seed);
            for _ in 0..4000 / (1 + seed.len() / 500) {
                let mut bytes = seed.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(bytes.len());
                    bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, random.number() as u8][random.below(6)];
                }
                // Most inputs with a wrong checksum are refused for it.
                if !["batch_operations", "batch_records", "batch_verdicts"].contains(&target) {
                    bytes[0] = u8::from(!random.one_in(8));
                }
                bytes.truncate(bytes.len() - if random.one_in(8) { random.below(bytes.len()) } else { 0 });
                check(target, &bytes);
            }
        }
    }

    #[test]
    fn operations_make_the_entries_that_they_were_made_of() {
        let changes = small_operations();
        let executed =
            operations::execute(&operations::block_of(&changes).unwrap(), &small_snapshot()).unwrap();
        let expected: Vec<_> = changes.into_iter().map(|(key, value, _)| (key, value)).collect();
        assert_eq!(table::entries_of_block(&executed).unwrap(), expected);
        // A change needs the inode of the snapshot.
        let block = operations::block_of(&small_operations()).unwrap();
        assert!(operations::execute(&block, &TableSet::default()).is_err());
    }

    #[test]
    fn a_block_whose_entries_would_be_too_large_is_refused() {
        // Each operation of a few bytes makes an entry with 40,000 bytes of the snapshot.
        let (_, file) = small_inodes();
        let names: Vec<_> =
            (0..30).map(|number| Key::of_name(ROOT, format!("{number:02}").as_bytes())).collect();
        let content = Content::Inline(vec![b'x'; 40_000]);
        let before = Entry::Inode(Inode { content, size_bytes: 40_000, ..file.clone() });
        let pairs: Vec<_> = names.iter().map(|name| (name.clone(), before.encode())).collect();
        let Entry::Inode(inode) = before.clone() else { unreachable!("it is an inode") };
        let after = Entry::Inode(Inode { mode: 0o100_600, ..inode });
        let change = |name: &Key| (name.as_bytes().to_vec(), after.encode(), Some(before.encode()));
        let table =
            Table::open(memory_file(&table_of(&pairs)), None, Arc::new(BlockCache::default())).unwrap();
        let snapshot = TableSet::new(vec![Arc::new(table)]);
        let block = |count: usize| {
            operations::block_of(&names[..count].iter().map(change).collect::<Vec<_>>()).unwrap()
        };
        assert!(block(30).len() < 1000);
        assert!(operations::execute(&block(20), &snapshot).is_ok());
        assert!(operations::execute(&block(30), &snapshot).is_err());
    }

    #[test]
    fn records_of_stores_without_parts_are_read_as_before() {
        // These files were written before a record could have the state of a part.
        let record = include_bytes!("../../../fuzz/seeds/batch_records/batch");
        let decoded: BatchRecord = decode(record).unwrap();
        assert_eq!((decoded.number, &decoded.state, decoded.has_parts()), (3, &BatchState::Open, false));
        assert_eq!(encode(&decoded), record);
        let copy = include_bytes!("../../../fuzz/seeds/batch_images/copy");
        assert_eq!(ImageCopy::decode(&copy[1..]).unwrap().batches, [decoded]);
    }

    #[test]
    fn a_copy_with_numbers_beyond_the_largest_ones_is_refused() {
        let new = Description::new(1);
        for description in [
            Description { next_inode: u64::MAX, ..new.clone() },
            Description { next_table: u64::MAX - 5, ..new.clone() },
            Description { next_batch: u64::MAX, ..new },
        ] {
            let copy = ImageCopy {
                description,
                batches: Vec::new(),
                limits: Limits::default(),
                assignments: Vec::new(),
            };
            assert!(ImageCopy::decode(&copy.encode()).is_err(), "{copy:?}");
        }
    }
}
