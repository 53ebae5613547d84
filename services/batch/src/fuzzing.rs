//! Entry points for the fuzz targets. The input is arbitrary: a decoder must refuse it, or the
//! value must be the same after it was encoded and decoded again. Compiled for tests and with the
//! feature `fuzzing`, which only fuzz/ enables.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use quell_vfs::{NewEntry, Result, Time};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::{BatchCaller, BatchRecord, BatchState, Conflict, ConflictReason, Conflicts, PartState};
use crate::certificate::{Certificate, CertifiedDir, CertifiedTable};
use crate::entry::{AdoptedFile, Content, Entry, Inode, ROOT, Xattr};
use crate::image::{Addition, Image};
use crate::image_copy::ImageCopy;
use crate::key::Key;
use crate::names::Names;
use crate::stored::{Description, decode, encode};
use crate::table::{self, BlockCache, Table, TableLookups, TableWriter};
use crate::table_ref::{TableRef, first_conflicts_of_batch, first_table_of_batch};
use crate::task::VerificationTask;
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
    let ImageCopy { description, batches } = copy;
    assert!(description.has_few_numbers_less_than(&description));
    let rebuilt = description.clone().after_loss();
    assert!(rebuilt.next_inode > description.next_inode && rebuilt.next_table > description.next_table);
    batches.iter().for_each(|batch| drop(batch.summary()));
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

/// Returns the task of an auxiliary server for the batch of the seeds.
pub(crate) fn verification_task() -> VerificationTask {
    let record = seed_record();
    let current = [&[TableRef { number: 2, ..record.snapshot[0].clone() }], &record.snapshot[..]].concat();
    VerificationTask { store: 1 << 100, batch: 3, earlier: Vec::new(), conflicts: 5, current, record }
}

/// Returns a verdict about this batch.
pub(crate) fn verdict() -> Verdict {
    let batch = seed_record().number;
    let table = |number| TableRef { number, bytes: 4000, entries: 2, checksum: 17 };
    let tables = vec![table(first_table_of_batch(batch) + 1), table(first_table_of_batch(batch))];
    Verdict {
        addition: Addition { tables, changed_dirs: vec![ROOT, 400] },
        entries: 3,
        conflicts: Conflicts { count: 7, tables: vec![table(first_conflicts_of_batch(batch))] },
        dirs: vec![ROOT, 1, 1 << 40],
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

/// Returns initial inputs: the fuzz target, a name, and the bytes.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
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
    let original = AdoptedFile {
        path: b"dir/name".to_vec(),
        inode: 5,
        size_bytes: 4,
        modified: root.modified,
        changed: root.changed,
    };
    let adopted = Inode { content: Content::Adopted(Box::new(original)), ..file.clone() };
    let link = Entry::Link { inode: 77, type_bits: 0o100_000 }.encode();
    let record = seed_record();
    let state = BatchState::Part { of: 2, state: PartState::Committed { entries: 300 } };
    let part = BatchRecord { state, ..record.clone() };
    let description = Description { tables: record.snapshot.clone(), ..Description::new(1 << 100) };
    let certificate = Certificate {
        store: 1 << 100,
        batch: 3,
        snapshot: 9,
        inodes_used: 300,
        tables: vec![CertifiedTable { number: 1 << 32, entries: 1000, checksum: 11 }],
        dirs: vec![CertifiedDir { dir: ROOT, changes: 2, pre_image: 13 }],
    };
    let conflict = Conflict { dir: ROOT, name: b"a".to_vec(), reason: ConflictReason::Exists, kept_as: None };
    let with = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    let small = vec![
        (Key::of_dir(ROOT), Entry::Inode(root).encode()),
        (Key::of_name(ROOT, b"file"), Entry::Inode(file.clone()).encode()),
        (Key::of_name(ROOT, b"link"), link.clone()),
        (Key::of_name(ROOT, b"removed"), Vec::new()),
    ];
    // Several blocks, with a value that has one of its own.
    let mut large: Vec<_> =
        (0..200).map(|n| (Key::of_name(ROOT, format!("{n:03}").as_bytes()), link.repeat(20))).collect();
    large[100].1 = (0..20_000).map(|n: u32| ((n * n) >> 3) as u8).collect();
    let copy = ImageCopy { description: description.clone(), batches: vec![record.clone()] };
    vec![
        ("batch_tables", "small", with(0, &table_of(&small))),
        ("batch_tables", "large", with(1, &table_of(&large))),
        ("batch_tables", "empty", with(1, &table_of(&[]))),
        ("batch_images", "copy", with(1, &copy.encode())),
        ("batch_records", "entry", Entry::Inode(file).encode()),
        ("batch_records", "adopted", Entry::Inode(adopted).encode()),
        ("batch_records", "link", link),
        ("batch_records", "description", encode(&description)),
        ("batch_records", "batch", encode(&record)),
        ("batch_records", "part", encode(&part)),
        ("batch_records", "conflict", encode(&conflict)),
        ("batch_certificates", "one", with(1, &certificate.encode())),
        ("batch_verdicts", "one", verdict().encode(record.number).expect("it is short")),
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
                if !["batch_records", "batch_verdicts"].contains(&target) {
                    bytes[0] = u8::from(!random.one_in(8));
                }
                bytes.truncate(bytes.len() - if random.one_in(8) { random.below(bytes.len()) } else { 0 });
                check(target, &bytes);
            }
        }
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
            let copy = ImageCopy { description, batches: Vec::new() };
            assert!(ImageCopy::decode(&copy.encode()).is_err(), "{copy:?}");
        }
    }
}
