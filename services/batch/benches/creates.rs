//! Creates files in batches, commits them, and looks them up.
//!
//! `cargo bench -p quell-batch-service --bench creates [-- FILES DIR ROUNDS PROOF]` prints the time
//! and the processor time of each step for a number of files (1,000,000), with the tables in a
//! directory (the one for temporary files). The commits with conflicts and without are repeated
//! ROUNDS times. With 0 rounds, only the steps of one batch are measured. The batches submit their
//! changes in the form PROOF: `certificate`, the default, or `log`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quell_batch_service::{
    Auxiliary, BatchCaller, BatchRecord, BatchState, Certificate, Entries, Image, MEMORY_BYTES, Names,
    NewBatch, NewNode, Primary, ProofForm, ROOT, TableDir, Verdict, VerificationTask, verify_task,
};
use quell_kv::{DiskOptions, DiskStore};
use quell_vfs::{NewEntry, Result, Time};
use rustix::time::{ClockId, clock_gettime};

const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 0, gid: 0 };

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let files: u64 = arguments.next().map_or(1_000_000, |text| text.parse().expect("a number of files"));
    let base = arguments.next().map_or(std::env::temp_dir(), PathBuf::from);
    let rounds: usize = arguments.next().map_or(1, |text| text.parse().expect("a number of rounds"));
    let form = match arguments.next().as_deref() {
        None | Some("certificate") => ProofForm::Certificate,
        Some("log") => ProofForm::Log,
        Some(other) => panic!("no form of proof: {other}"),
    };
    let directory = tempfile::tempdir_in(&base).expect("a directory");
    let primary = new_primary(directory.path());
    let new = new_batch();
    let record = step("begin", 1, || primary.begin(new.clone()).expect("a batch"));
    let own = Arc::new(tables(&directory.path().join("batch")));
    let mut names = primary.private(&record, own.clone(), MEMORY_BYTES).expect("a private name space");
    let dir = names.create(ROOT, b"dir", NewNode::Dir, NEW, now()).expect("a directory").inode.number;
    step("create", files, || create(&mut names, dir, files));
    let spilled = bytes_in(&directory.path().join("batch"));
    let certificate = step("write changes and certificate", files, || {
        names.0.submit(primary.store_number(), &record, &*own, form, 0).expect("a certificate")
    });
    let certificate_bytes = certificate.encode().len() as u64;
    println!("certificate: {certificate_bytes} bytes");
    let proof_bytes = certificate_bytes + bytes_in(&directory.path().join("batch")) - spilled;
    println!("proof: {:.2} bytes a create", proof_bytes as f64 / files as f64);
    println!("peak memory: {:.0} MB", peak_memory_mb());
    let committed = step("verify and commit", files, || {
        primary.commit(record.number, &certificate, &*own).expect("a commit")
    });
    assert!(matches!(committed.state, BatchState::Committed { entries, .. } if entries == files + 1));
    let other =
        step("begin with a snapshot of these files", 1, || primary.begin(new.clone()).expect("a batch"));
    primary.abort(other.number).expect("an end of the batch");
    println!("copy of the description: {} bytes", file_bytes(&directory.path().join("image/image")));
    let image = primary.name_space();
    step("look up in random order", files / 10, || {
        for number in 0..files / 10 {
            let name = format!("file.{}", number.wrapping_mul(2_654_435_761) % files);
            image.lookup(dir, name.as_bytes()).expect("a look-up").expect("a file");
        }
    });
    step("create synchronously", files / 100, || {
        for number in 0..files / 100 {
            let name = format!("later.{number}");
            image.create(dir, name.as_bytes(), NewNode::File, NEW, now()).expect("a file");
        }
    });
    drop((image, names, primary, directory));
    if rounds == 0 {
        return;
    }
    for clients in [1, 2] {
        measure_clients(&base, files, clients, form);
    }
    measure_auxiliary(&base, files, form);
    compare_conflicts(&base, files, rounds, form);
}

/// An auxiliary server in this process, and the processor time of its verification.
struct Measured<'a> {
    directory: &'a Path,
    certificate: &'a Certificate,
    submitted: &'a TableDir,
    seconds: Mutex<f64>,
}

impl Auxiliary for Measured<'_> {
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>> {
        let (image, output) = (self.directory.join("image"), self.directory.join("verify"));
        let start = thread_seconds();
        let verdict =
            verify_task(task, self.certificate, self.submitted, &tables(&image), Arc::new(tables(&output)))?;
        let encoded = verdict.encode(task.record.number)?;
        *self.seconds.lock().expect("no thread panics") += thread_seconds() - start;
        // The primary server does the remaining work.
        let verdict = Verdict::decode(&encoded, task)?;
        for number in verdict.tables() {
            let name = TableDir::file_name(number);
            std::fs::rename(output.join(&name), image.join(&name)).expect("a rename");
        }
        Ok(Some(verdict))
    }
}

/// Prints the processor time that an auxiliary server and the primary server need for the commit of
/// a batch.
fn measure_auxiliary(base: &Path, files: u64, form: ProofForm) {
    let directory = tempfile::tempdir_in(base).expect("a directory");
    let primary = new_primary(directory.path());
    let record = primary.begin(new_batch()).expect("a batch");
    let own = Arc::new(tables(&directory.path().join("batch")));
    let mut names = primary.private(&record, own.clone(), MEMORY_BYTES).expect("a private name space");
    let dir = names.create(ROOT, b"dir", NewNode::Dir, NEW, now()).expect("a directory").inode.number;
    create(&mut names, dir, files);
    let certificate = names.0.submit(primary.store_number(), &record, &*own, form, 0).expect("a certificate");
    drop(names);
    let (certificate, submitted) = (&certificate, &*own);
    let auxiliary =
        Measured { directory: directory.path(), certificate, submitted, seconds: Mutex::new(0.0) };
    let (start, processor) = (Instant::now(), processor_seconds());
    let guard = primary.lock_commit(record.number);
    let committed = primary.commit_by(&auxiliary, &guard, &|_, _| panic!("the primary server verifies it"));
    let (elapsed, all) = (start.elapsed().as_secs_f64(), processor_seconds() - processor);
    let entries = committed.map(|record| record.state);
    assert!(matches!(entries, Ok(BatchState::Committed { entries, .. }) if entries == files + 1));
    let verified = *auxiliary.seconds.lock().expect("no thread panics");
    let each = |seconds: f64| seconds * 1e6 / files.max(1) as f64;
    println!(
        "verify by an auxiliary server and commit: {elapsed:.3} s, {:.4} us of its processor time each, {:.4} us of \
         that of the primary server",
        each(verified),
        each(all - verified),
    );
}

/// Prints the rate of creates of several clients, each each with its own batch in its own
/// directory, from the first create to the end of the last commit.
fn measure_clients(base: &Path, files: u64, clients: u64, form: ProofForm) {
    let directory = tempfile::tempdir_in(base).expect("a directory");
    let primary = new_primary(directory.path());
    let image = primary.name_space();
    let mut batches = Vec::new();
    for client in 0..clients {
        let name = format!("client.{client}");
        let dir = image.create(ROOT, name.as_bytes(), NewNode::Dir, NEW, now()).expect("a directory");
        let subtree = dir.inode.number;
        let record = primary.begin(NewBatch { subtree, ..new_batch() }).expect("a batch");
        batches.push((record, directory.path().join(name)));
    }
    let title = format!("create and commit, {clients} clients");
    step(&title, files * clients, || {
        std::thread::scope(|scope| {
            for (record, path) in &batches {
                scope.spawn(|| run_client(&primary, record, path, files, form));
            }
        });
    });
    let table_bytes: u64 = batches.iter().map(|(_, path)| bytes_in(path)).sum();
    println!(
        "tables of {clients} clients: {:.2} bytes a create",
        table_bytes as f64 / (files * clients) as f64
    );
}

/// Creates files in a new directory of a batch, and commits the batch.
fn run_client(primary: &Primary, record: &BatchRecord, path: &Path, files: u64, form: ProofForm) {
    let own = Arc::new(tables(path));
    let mut names = primary.private(record, own.clone(), MEMORY_BYTES).expect("a private name space");
    let dir = names.create(record.subtree, b"dir", NewNode::Dir, NEW, now()).expect("a directory");
    create(&mut names, dir.inode.number, files);
    let certificate = names.0.submit(primary.store_number(), record, &*own, form, 0).expect("a certificate");
    primary.commit(record.number, &certificate, &*own).expect("a commit");
}

/// Prints the time and the processor time of commits in a directory of the snapshot, where each
/// name is compared with the image: without conflicts, and with conflicts of 1 % of the names. The
/// rounds of both are interleaved.
fn compare_conflicts(base: &Path, files: u64, rounds: usize, form: ProofForm) {
    let mut measured = [(0, Vec::new()), (files / 100, Vec::new())];
    for round in 0..rounds {
        // Each of the two measurements is first in every second round.
        for index in [round % 2, 1 - round % 2] {
            let (conflicts, times) = &mut measured[index];
            times.push(commit_with_conflicts(base, files, *conflicts, form));
        }
    }
    for (conflicts, times) in &measured {
        let column = |of: fn(&(f64, f64)) -> f64| {
            let mut sorted: Vec<f64> = times.iter().map(of).collect();
            sorted.sort_by(f64::total_cmp);
            let (median, last) = (sorted[sorted.len() / 2], sorted.len() - 1);
            format!("{median:.3} s ({:.3} to {:.3})", sorted[0], sorted[last])
        };
        println!(
            "verify and commit in a directory of the snapshot, {conflicts} conflicts, median of {rounds}: {}, \
             {} of processor time",
            column(|(elapsed, _)| *elapsed),
            column(|(_, processor)| *processor),
        );
    }
}

/// Commits a batch to a new store. Returns the time and the processor time of the commit.
fn commit_with_conflicts(base: &Path, files: u64, conflicts: u64, form: ProofForm) -> (f64, f64) {
    let directory = tempfile::tempdir_in(base).expect("a directory");
    let primary = new_primary(directory.path());
    let image = primary.name_space();
    let dir = image.create(ROOT, b"dir", NewNode::Dir, NEW, now()).expect("a directory").inode.number;
    let record = primary.begin(NewBatch { subtree: dir, ..new_batch() }).expect("a batch");
    let own = Arc::new(tables(&directory.path().join("batch")));
    let mut names = primary.private(&record, own.clone(), MEMORY_BYTES).expect("a private name space");
    create(&mut names, dir, files);
    for number in 0..conflicts {
        let name = format!("file.{}", number * 100);
        image.create(dir, name.as_bytes(), NewNode::File, NEW, now()).expect("a file");
    }
    let certificate = names.0.submit(primary.store_number(), &record, &*own, form, 0).expect("a certificate");
    drop(names);
    let (start, processor) = (Instant::now(), processor_seconds());
    let committed = primary.commit(record.number, &certificate, &*own).expect("a commit");
    let times = (start.elapsed().as_secs_f64(), processor_seconds() - processor);
    assert!(
        matches!(committed.state, BatchState::Committed { conflicts: found, .. } if found.count == conflicts)
    );
    times
}

/// Returns the primary server of a new store in a directory.
fn new_primary(directory: &Path) -> Primary {
    let store =
        Arc::new(DiskStore::open(&directory.join("kv"), &DiskOptions::default()).expect("a key-value store"));
    Image::create(&*store, 1, NEW, now()).expect("an image");
    Primary::open(store, Arc::new(tables(&directory.join("image")))).expect("a primary server")
}

fn new_batch() -> NewBatch {
    let caller = BatchCaller { uid: 0, gid: 0, groups: Vec::new() };
    NewBatch { name: "bench".into(), caller, subtree: ROOT, is_atomic: false }
}

fn create<E: Entries>(names: &mut Names<E>, dir: u64, files: u64) {
    for number in 0..files {
        let name = format!("file.{number}");
        names.create(dir, name.as_bytes(), NewNode::File, NEW, now()).expect("a file");
    }
}

fn step<T>(name: &str, operations: u64, run: impl FnOnce() -> T) -> T {
    let (start, processor) = (Instant::now(), processor_seconds());
    let result = run();
    let (elapsed, processor) = (start.elapsed().as_secs_f64(), processor_seconds() - processor);
    let each = processor * 1e6 / operations.max(1) as f64;
    let rate = operations as f64 / elapsed;
    println!("{name}: {elapsed:.3} s, {rate:.0}/s, {each:.2} us of processor time each");
    result
}

fn processor_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn thread_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the most memory that this process has had so far, in megabytes.
fn peak_memory_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of the process");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the peak of the memory");
    let kilobytes: f64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kilobytes * 1024.0 / 1e6
}

/// Returns the size of the files in a directory, in bytes.
fn bytes_in(path: &Path) -> u64 {
    let files = std::fs::read_dir(path).expect("a directory");
    files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len()).sum()
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a file").len()
}

fn now() -> Time {
    let time = clock_gettime(ClockId::Realtime);
    Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}

fn tables(path: &Path) -> TableDir {
    std::fs::create_dir_all(path).expect("a directory");
    TableDir::new(OwnedFd::from(File::open(path).expect("a directory")))
}
