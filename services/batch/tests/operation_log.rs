//! Tests of the operation log of a batch: its size is limited, and its verification has the same
//! result as the verification of tables, also for logs that no batch has written.

mod stores;

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};

use quell_batch_service::{
    BatchState, Certificate, CertifiedTable, Conflict, Content, Entry, Inode, InodeChange, Key, NameSpace,
    NewNode, OperationsWriter, ProofForm, ROOT, TableFiles, split,
};
use quell_testkit::Random;
use quell_vfs::{ErrorKind, Rename, Time};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use stores::operations::operation;
use stores::{FILE, Fixture, LATER, NOW, Open, USER, content, make_dir, make_file, tree, write};

/// The limit for a created file with a regular name, in bytes.
const BYTES_OF_CREATE_MAX: u64 = 8;

/// Returns the size of the log and of the certificate of a batch, in bytes.
fn proof_bytes(fixture: &Fixture, batch: &Open) -> u64 {
    let certificate = fixture.certificate(batch);
    let size = |table: &CertifiedTable| batch.files.open(table.number).unwrap().metadata().unwrap().len();
    certificate.encode().len() as u64 + certificate.tables.iter().map(size).sum::<u64>()
}

/// A clock that advances by 1 to 20 microseconds with each operation.
struct Clock {
    nanoseconds: u64,
    random: Random,
}

impl Clock {
    fn new(seed: u64) -> Clock {
        Clock { nanoseconds: 1_700_000_000_123_456_789, random: Random::new(seed) }
    }

    fn now(&mut self) -> Time {
        self.nanoseconds += 1000 + self.random.below(19_000) as u64;
        let (seconds, nanoseconds) = (self.nanoseconds / 1_000_000_000, self.nanoseconds % 1_000_000_000);
        Time { seconds: seconds as i64, nanoseconds: nanoseconds as u32 }
    }
}

#[test]
fn a_million_creates_with_regular_names_have_at_most_8_bytes_each() {
    const FILES: u64 = 1_000_000;
    /// The first inode number of the batch.
    const FIRST: u64 = 1 << 40;
    let mut clock = Clock::new(1);
    let times: Vec<Time> = (0..FILES).map(|_| clock.now()).collect();
    let mut file = tempfile::tempfile().unwrap();
    let mut writer = OperationsWriter::new(file.try_clone().unwrap(), 1);
    let mut inode = stores::file_inode(FIRST, Content::Empty);
    inode.size_bytes = 0;
    // The files are created in the order of their numbers, and sorted by their names.
    each_in_order_of_names(FILES, &mut |number| {
        let name = format!("file.mdtest.0.{number}");
        let time = times[number as usize].into();
        (inode.number, inode.modified, inode.changed) = (FIRST + 1 + number, time, time);
        let value = Entry::Inode(inode.clone()).encode();
        writer.add(Key::of_name(FIRST, name.as_bytes()).as_bytes(), &value, None).unwrap();
    });
    let summary = writer.finish().unwrap();
    assert_eq!(summary.entries, FILES);
    assert_eq!(summary.bytes, file.seek(SeekFrom::End(0)).unwrap());
    assert!(summary.bytes <= FILES * BYTES_OF_CREATE_MAX, "{} bytes", summary.bytes);
}

/// Passes the numbers below `end` to `visit`, in the order of their decimal digits.
fn each_in_order_of_names(end: u64, visit: &mut dyn FnMut(u64)) {
    fn below(first: u64, end: u64, visit: &mut dyn FnMut(u64)) {
        for number in (first..first + 10).filter(|number| *number < end) {
            visit(number);
            if number > 0 {
                below(number * 10, end, visit);
            }
        }
    }
    below(0, end, visit);
}

#[test]
fn the_log_of_other_regular_jobs_has_at_most_8_bytes_for_each_file() {
    const FILES: u64 = 10_000;
    type Job = fn(&dyn NameSpace, u64, u64, &mut Clock);
    let jobs: [(&str, Job); 4] = [
        ("numbers of equal lengths", |names, dir, number, clock| {
            let name = format!("out.{number:08}.dat");
            names.create(dir, name.as_bytes(), NewNode::File, FILE, clock.now()).unwrap();
        }),
        ("100 directories", |names, dir, number, clock| {
            let name = format!("d{}", number % 100);
            let dir = match names.lookup(dir, name.as_bytes()).unwrap() {
                Some(found) => found.inode.number,
                None => make_dir(names, dir, &name),
            };
            let name = format!("file.{}", number / 100);
            names.create(dir, name.as_bytes(), NewNode::File, FILE, clock.now()).unwrap();
        }),
        ("created, written, changed and renamed", |names, dir, number, clock| {
            let (name, temporary) = (format!("file.{number}"), format!("file.{number}.tmp"));
            let file = names.create(dir, temporary.as_bytes(), NewNode::File, FILE, clock.now()).unwrap();
            let place = (file.inode.number, &file.place);
            names.change(place, &content(b"the same bytes"), clock.now()).unwrap();
            let mode = InodeChange { permissions: Some(0o640), ..InodeChange::default() };
            names.change(place, &mode, clock.now()).unwrap();
            let to = (dir, name.as_bytes());
            names.rename((dir, temporary.as_bytes()), to, Rename::Replace, clock.now()).unwrap();
        }),
        ("removed again", |names, dir, number, clock| {
            let name = format!("file.{number}");
            names.create(dir, name.as_bytes(), NewNode::File, FILE, clock.now()).unwrap();
            if number % 10 != 0 {
                names.remove(dir, name.as_bytes(), clock.now()).unwrap();
            }
        }),
    ];
    for (title, job) in jobs {
        let fixture = Fixture::new();
        let batch = fixture.begin();
        let mut clock = Clock::new(2);
        let dir = make_dir(&batch.names, ROOT, "dir");
        for number in 0..FILES {
            job(&batch.names, dir, number, &mut clock);
        }
        let bytes = proof_bytes(&fixture, &batch);
        assert!(bytes <= FILES * BYTES_OF_CREATE_MAX, "{title}: {bytes} bytes");
        assert_eq!(fixture.conflicts(&batch), [], "{title}");
    }
}

#[test]
fn a_change_of_an_existing_file_is_stated_without_its_content() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let bytes = Random::new(4).bytes(60_000);
    let file = make_file(&*master, ROOT, "file");
    write(&*master, &file, &bytes);
    let batch = fixture.begin();
    let mode = InodeChange { permissions: Some(0o600), ..InodeChange::default() };
    batch.names.change((file.inode.number, &file.place), &mode, LATER).unwrap();
    let proof = proof_bytes(&fixture, &batch);
    assert!(proof < 400, "{proof} bytes");
    assert_eq!(fixture.conflicts(&batch), []);
    let inode = master.lookup(ROOT, b"file").unwrap().unwrap().inode;
    assert_eq!((inode.mode & 0o777, inode.content), (0o600, Content::Inline(bytes)));
}

/// The number of random sequences: the value of the variable `QUELL_HISTORIES`, or 40.
fn sequences() -> u64 {
    histories().unwrap_or(40)
}

/// The number of mutated logs: 10,000, or 100 times the variable `QUELL_HISTORIES`.
fn mutations() -> u64 {
    histories().map_or(10_000, |count| count * 100)
}

fn histories() -> Option<u64> {
    std::env::var("QUELL_HISTORIES").ok().map(|text| text.parse().expect("a number"))
}

/// Runs batches beside changes of others. Returns, for each batch, the entries that it has
/// submitted, the result of its commit, its conflicts, and the tree after the commit.
#[allow(clippy::type_complexity)]
fn history(
    seed: u64,
    form: ProofForm,
) -> Vec<(Vec<Pair>, Result<u64, ErrorKind>, Vec<Conflict>, Vec<String>)> {
    let mut random = Random::new(seed);
    let memory_bytes = if random.one_in(2) { 2000 } else { 1 << 20 };
    let fixture = Fixture { form, memory_bytes, ..Fixture::new() };
    let master = fixture.master();
    let mut rounds = Vec::new();
    for _ in 0..6 {
        let open = fixture.begin_as(USER, ROOT, random.one_in(4)).unwrap();
        for _ in 0..random.below(60) {
            let names: &dyn NameSpace = if random.one_in(2) { &open.names } else { &*master };
            // The operation may be refused.
            let _ = operation(&mut random).run(names);
        }
        let submitted = entries(&fixture, &open, &fixture.certificate(&open)).unwrap();
        let (number, committed) = (open.record.number, fixture.commit(&open));
        let result = committed.map_err(|error| error.kind).map(|record| match record.state {
            BatchState::Committed { entries, .. } => entries,
            state => panic!("{state:?}"),
        });
        let conflicts = if result.is_ok() { fixture.conflicts_of(number) } else { Vec::new() };
        if result.is_err() {
            fixture.primary.abort(number).unwrap();
        }
        rounds.push((submitted, result, conflicts, tree(&*master)));
    }
    rounds
}

#[test]
fn both_forms_have_the_same_entries_conflicts_and_refusals() {
    let (mut conflicts, mut refused) = (0, 0);
    for seed in 0..sequences() {
        let log = history(seed, ProofForm::Log);
        assert_eq!(log, history(seed, ProofForm::Certificate), "seed {seed}");
        conflicts += log.iter().map(|(_, _, conflicts, _)| conflicts.len()).sum::<usize>();
        refused += log.iter().filter(|(_, result, ..)| result.is_err()).count();
    }
    assert!(conflicts > 20 && refused > 5, "{conflicts} conflicts, {refused} refused");
}

/// A key and a value.
type Pair = (Vec<u8>, Vec<u8>);

/// Returns the entries that a batch has submitted.
fn entries(fixture: &Fixture, batch: &Open, certificate: &Certificate) -> quell_vfs::Result<Vec<Pair>> {
    let tables = fixture.primary.submitted_tables(&batch.record, certificate, &*batch.files)?;
    let mut pairs = Vec::new();
    for table in tables {
        let mut entries = table.entries();
        while let Some(pair) = entries.next(|key, value| (key.to_vec(), value.to_vec()))? {
            pairs.push(pair);
        }
    }
    Ok(pairs)
}

/// The footer of a file of a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Footer {
    entries: u64,
    first_key: Vec<u8>,
    filter_bytes: u64,
    filter_checksum: u64,
    blocks: Vec<Block>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Block {
    last_key: Vec<u8>,
    stored_bytes: u32,
    raw_bytes: u32,
    checksum: u64,
}

const HEADER_BYTES: usize = 16;
const TRAILER_BYTES: usize = 32;

/// Returns the only block of a log, decompressed, and the footer.
fn parts_of(log: &[u8]) -> (Vec<u8>, Footer) {
    let trailer = log.len() - TRAILER_BYTES;
    let length = u64::from_le_bytes(log[trailer..trailer + 8].try_into().unwrap()) as usize;
    let footer: Footer = postcard::from_bytes(&log[trailer - length..trailer]).unwrap();
    let [block] = &footer.blocks[..] else { panic!("one block") };
    let stored = &log[HEADER_BYTES..HEADER_BYTES + block.stored_bytes as usize];
    let raw = match block.stored_bytes == block.raw_bytes {
        true => stored.to_vec(),
        false => lz4_flex::block::decompress(stored, block.raw_bytes as usize).unwrap(),
    };
    (raw, footer)
}

/// Returns a log with this block, which is not compressed, and right lengths and checksums. Every
/// user can compute them.
fn log_of(header: &[u8], block: &[u8], footer: &Footer) -> (Vec<u8>, CertifiedTable) {
    let mut footer = footer.clone();
    let length = block.len() as u32;
    let last_key = footer.blocks[0].last_key.clone();
    footer.blocks[0] = Block { last_key, stored_bytes: length, raw_bytes: length, checksum: xxh3_64(block) };
    let encoded = postcard::to_stdvec(&footer).unwrap();
    let checksum = xxh3_64(&encoded);
    let (length, entries) = ((encoded.len() as u64).to_le_bytes(), footer.entries.to_le_bytes());
    let trailer = [&length[..], &checksum.to_le_bytes(), &entries, b"TABLEEND"].concat();
    let log = [header, block, &encoded, &trailer].concat();
    (log, CertifiedTable { number: FORGED, entries: footer.entries, checksum })
}

/// The number of the file of a forged log.
const FORGED: u64 = 1 << 33;
/// A user other than the user of the batch.
const OTHER: u32 = 2000;

/// A store with files of two users, and a batch that uses most kinds of operations below one of its
/// directories, and that is in conflict with others. If it is atomic, its commit never changes the
/// store.
fn honest(is_atomic: bool) -> (Fixture, Open) {
    let fixture = Fixture::new();
    let master = fixture.master();
    let d = make_dir(&*master, ROOT, "d");
    let theirs = quell_vfs::NewEntry { permissions: 0o666, uid: OTHER, gid: OTHER };
    for name in ["old", "gone", "kept"] {
        write(&*master, &make_file(&*master, d, name), name.as_bytes());
    }
    master.create(d, b"theirs", NewNode::File, theirs, NOW).unwrap();
    master.create(ROOT, b"outside", NewNode::File, theirs, NOW).unwrap();
    let linked = make_file(&*master, d, "l1");
    master.link((linked.inode.number, &linked.place), d, b"l2", NOW).unwrap();
    make_dir(&*master, d, "empty");
    let batch = fixture.begin_as(USER, d, is_atomic).unwrap();
    let names = &batch.names;
    let new = make_dir(names, d, "new");
    for number in 0..5 {
        make_file(names, new, &format!("file.{number}"));
    }
    write(names, &make_file(names, new, "content"), b"content");
    let two = make_file(names, new, "one");
    names.link((two.inode.number, &two.place), d, b"two", LATER).unwrap();
    make_dir(names, new, "below");
    names.create(d, b"symlink", NewNode::Symlink(b"target".to_vec()), FILE, LATER).unwrap();
    names.rename((d, b"old"), (new, b"renamed"), Rename::Keep, LATER).unwrap();
    names.rename((d, b"empty"), (new, b"moved"), Rename::Keep, LATER).unwrap();
    names.remove(d, b"gone", LATER).unwrap();
    let kept = names.lookup(d, b"kept").unwrap().unwrap();
    let mode = InodeChange { permissions: Some(0o600), ..InodeChange::default() };
    names.change((kept.inode.number, &kept.place), &mode, LATER).unwrap();
    make_file(names, d, "conflict");
    make_file(&*master, d, "conflict");
    (fixture, batch)
}

/// Checks that the batch may have made these entries, without the code of the verification: it has
/// changed only its tree, it gives its new inodes to its user only, and it changes no attribute of
/// an inode of another user.
fn check_permitted(batch: &Open, snapshot: &HashMap<u64, Inode>, pairs: &[Pair], text: &str) {
    let (range, root) = (&batch.record.inodes, batch.record.subtree);
    for (key, value) in pairs {
        let (dir, name) = split(key).expect("a key");
        let is_in_tree = range.contains(&dir) || dir == root || dir == 1 || {
            // The only other directory of the tree.
            snapshot
                .get(&dir)
                .is_some_and(|inode| matches!(inode.content, Content::Parent { dir, .. } if dir == root))
        };
        assert!(is_in_tree, "{text}: directory {dir}");
        assert!(dir == 1 || !name.contains(&b'/') && name != b"..", "{text}: {}", name.escape_ascii());
        let Ok(Entry::Inode(inode)) = Entry::decode(value) else { continue };
        if range.contains(&inode.number) {
            assert_eq!(inode.uid, USER, "{text}: the owner of a new inode");
            continue;
        }
        let before = snapshot.get(&inode.number).unwrap_or_else(|| panic!("{text}: inode {}", inode.number));
        assert_eq!(inode.mode & 0o170_000, before.mode & 0o170_000, "{text}: the type of an inode");
    }
}

#[test]
fn no_mutation_of_a_log_does_what_its_batch_may_not_do() {
    let mutations = mutations();
    let (fixture, batch) = honest(true);
    let before = tree(&*fixture.master());
    let snapshot = inodes_of(&fixture);
    let certificate = fixture.certificate(&batch);
    let [table] = &certificate.tables[..] else { panic!("one file") };
    let mut log = Vec::new();
    batch.files.open(table.number).unwrap().read_to_end(&mut log).unwrap();
    let (raw, footer) = parts_of(&log);
    let submit = |(_, batch): &(Fixture, Open), raw: &[u8], footer: &Footer| {
        let (log, table) = log_of(&log[..HEADER_BYTES], raw, footer);
        batch.files.create(FORGED).unwrap().write_all(&log).unwrap();
        Certificate { tables: vec![table], ..certificate.clone() }
    };
    let mut store = (fixture, batch);
    let forged = submit(&store, &raw, &footer);
    let refused = store.0.primary.commit(store.1.record.number, &forged, &*store.1.files).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy, "the honest log is in conflict with others");
    let mut random = Random::new(12);
    let (mut refused, mut accepted) = (0, 0);
    for mutation in 0..mutations {
        let (mut raw, mut footer) = (raw.clone(), footer.clone());
        match random.below(10) {
            0 => raw.truncate(random.below(raw.len())),
            1 => {
                let length = 1 + random.below(8);
                raw.extend(random.bytes(length));
            }
            // Bytes from other positions in the log, which belong to other operations.
            2 => {
                let (from, to) = (random.below(raw.len()), random.below(raw.len()));
                let length = (1 + random.below(8)).min(raw.len() - from.max(to));
                raw.copy_within(from..from + length, to);
            }
            3 => footer.entries = footer.entries.wrapping_add(random.below(3) as u64).wrapping_sub(1),
            4 => footer.blocks[0].last_key = random.bytes(9),
            _ => {
                for _ in 0..1 + random.below(2) {
                    let at = random.below(raw.len());
                    raw[at] = if random.one_in(2) {
                        raw[at] ^ 1 << random.below(8)
                    } else {
                        random.below(256) as u8
                    };
                }
            }
        }
        let text = format!("mutation {mutation}");
        let forged = submit(&store, &raw, &footer);
        match store.0.primary.commit(store.1.record.number, &forged, &*store.1.files) {
            Err(error) if matches!(error.kind, ErrorKind::InvalidInput | ErrorKind::Damaged) => {
                refused += 1;
                continue;
            }
            // The changed log has other permitted operations, for example with another time, and
            // the conflict.
            Err(error) if error.kind == ErrorKind::Busy => {}
            Err(error) => panic!("{text}: {error}"),
            // The changed log also has permitted operations, but not the one that is in conflict.
            Ok(_) => {
                store.0.check(&text);
                store = honest(true);
                submit(&store, &raw, &footer);
            }
        }
        accepted += 1;
        let pairs = entries(&store.0, &store.1, &forged).unwrap();
        check_permitted(&store.1, &snapshot, &pairs, &text);
        if accepted % 50 == 0 {
            commit_in_equal_store(&log[..HEADER_BYTES], &raw, &footer, &text);
        }
    }
    assert!(refused > mutations / 4 && accepted > mutations / 100, "{refused} refused, {accepted} accepted");
    assert_eq!(tree(&*store.0.master()), before);
}

/// Returns the inodes of the master image.
fn inodes_of(fixture: &Fixture) -> HashMap<u64, Inode> {
    let master = fixture.master();
    let (mut inodes, mut dirs) = (HashMap::new(), vec![ROOT]);
    while let Some(dir) = dirs.pop() {
        let place = quell_batch_service::Place::Dir(dir);
        inodes.insert(dir, master.find(dir, &place).unwrap().inode);
        let mut found = Vec::new();
        let mut visit = |name: &[u8], _, _| {
            found.push(name.to_vec());
            true
        };
        master.list(dir, b"", &mut visit).unwrap();
        for name in found {
            let inode = master.lookup(dir, &name).unwrap().unwrap().inode;
            match inode.kind().unwrap() {
                quell_vfs::Kind::Dir => dirs.push(inode.number),
                _ => drop(inodes.insert(inode.number, inode)),
            }
        }
    }
    inodes
}

/// Commits a log in an equal store whose batch need not be committed as a whole: the image stays
/// intact, and the files of another user keep their modes and contents.
fn commit_in_equal_store(header: &[u8], raw: &[u8], footer: &Footer, text: &str) {
    let (fixture, batch) = honest(false);
    let certificate = fixture.certificate(&batch);
    let (log, table) = log_of(header, raw, footer);
    batch.files.create(FORGED).unwrap().write_all(&log).unwrap();
    let forged = Certificate { tables: vec![table], ..certificate };
    fixture.primary.commit(batch.record.number, &forged, &*batch.files).expect(text);
    fixture.check(text);
    let tree = tree(&*fixture.master());
    for line in ["/outside 666 1 ", "/d/theirs 666 1 "] {
        // A name in the directory of the batch may be removed or renamed.
        let is_unchanged = tree.iter().any(|found| found == line);
        assert!(
            is_unchanged || line.starts_with("/d/") && !tree.iter().any(|found| found.contains("theirs ")),
            "{text}: {tree:?}"
        );
    }
}
