//! Tests of batches that an auxiliary server verifies: the result is the same as that of a
//! verification by the primary server, and others may change the image meanwhile.

mod stores;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;

use quell_batch_service::{
    Auxiliary, BatchRecord, BatchState, Certificate, InodeChange, Place, ROOT, TableFiles, Verdict,
    VerificationTask, verify_task,
};
use quell_testkit::Random;
use quell_vfs::{ErrorKind, Rename, Result};

use stores::operations::operation;
use stores::{Fixture, LATER, Open, UnsyncedFiles, make_dir, make_file, tables, tree};

/// A function of the number of the verification and its task.
type Meanwhile<'a> = dyn Fn(u64, &VerificationTask) + Send + Sync + 'a;

/// An auxiliary server in this process. `meanwhile` is called before each verdict is returned.
struct InProcess<'a> {
    path: PathBuf,
    certificate: &'a Certificate,
    submitted: &'a UnsyncedFiles,
    verifications: Mutex<u64>,
    meanwhile: Box<Meanwhile<'a>>,
}

impl Auxiliary for InProcess<'_> {
    fn verify(&self, task: &VerificationTask) -> Result<Option<Verdict>> {
        let number = {
            let mut verifications = self.verifications.lock().unwrap();
            *verifications += 1;
            *verifications
        };
        let (image, output) = (self.path.join("image"), self.path.join(format!("verify-{number}")));
        let files = Arc::new(tables(&output));
        (self.meanwhile)(number, task);
        let verdict = verify_task(task, self.certificate, self.submitted, &tables(&image), files)?;
        let bytes = verdict.encode(task.record.number).unwrap();
        let decoded = Verdict::decode(&bytes, task).unwrap();
        assert_eq!(decoded, verdict);
        for table in decoded.tables() {
            let name = format!("{table:016x}.table");
            std::fs::rename(output.join(&name), image.join(&name)).unwrap();
        }
        std::fs::remove_dir(&output).unwrap();
        Ok(Some(verdict))
    }
}

/// Commits a batch by an auxiliary server, and returns its record and the number of verifications.
fn commit<'a>(
    fixture: &'a Fixture,
    batch: &'a Open,
    certificate: &'a Certificate,
    meanwhile: impl Fn(u64, &VerificationTask) + Send + Sync + 'a,
) -> (Result<BatchRecord>, u64) {
    let auxiliary = InProcess {
        path: fixture.directory.path().to_owned(),
        certificate,
        submitted: &batch.files,
        verifications: Mutex::new(0),
        meanwhile: Box::new(meanwhile),
    };
    let guard = fixture.primary.lock_commit(batch.record.number);
    let committed =
        fixture.primary.commit_by(&auxiliary, &guard, &|_, visit| visit(certificate, &*batch.files));
    let verifications = *auxiliary.verifications.lock().unwrap();
    (committed, verifications)
}

#[test]
fn the_result_is_that_of_a_verification_by_the_primary_server() {
    for seed in 0..60 {
        let results = [false, true].map(|is_auxiliary| {
            let mut random = Random::new(seed);
            let fixture = Fixture::new();
            let run = |random: &mut Random, names: &dyn quell_batch_service::NameSpace, count: usize| {
                (0..count).for_each(|_| _ = operation(random).run(names));
            };
            run(&mut random, &*fixture.master(), 30);
            let batch = fixture.begin();
            run(&mut random, &batch.names, 30);
            run(&mut random, &*fixture.master(), 30);
            let certificate = fixture.certificate(&batch);
            let record = match is_auxiliary {
                false => fixture.primary.commit(batch.record.number, &certificate, &*batch.files),
                true => {
                    let (record, verifications) = commit(&fixture, &batch, &certificate, |_, _| ());
                    assert_eq!(verifications, 1);
                    record
                }
            };
            fixture.check(&format!("seed {seed}"));
            let record = record.unwrap();
            (tree(&*fixture.master()), record.state, fixture.conflicts_of(record.number))
        });
        assert_eq!(results[0], results[1], "seed {seed}");
    }
}

#[test]
fn a_batch_whose_directories_change_is_verified_again_and_at_last_under_the_lock() {
    for changes in [0, 1, 2, 3, 10] {
        let fixture = Fixture::new();
        let master = fixture.master();
        let dir = make_dir(&*master, ROOT, "dir");
        make_dir(&*master, ROOT, "other");
        let batch = fixture.begin();
        make_file(&batch.names, dir, "of-batch");
        let certificate = fixture.certificate(&batch);
        let meanwhile = |number, _: &VerificationTask| {
            // The directory of the batch changes during the first `changes` verifications.
            let changed = if number <= changes { dir } else { u64::MAX };
            if changed == dir {
                make_file(&*master, dir, &format!("of-others-{number}"));
            }
        };
        let (record, verifications) = commit(&fixture, &batch, &certificate, meanwhile);
        assert!(
            matches!(record.unwrap().state, BatchState::Committed { entries: 1, conflicts } if conflicts.count == 0)
        );
        assert_eq!(verifications, changes.min(2) + 1);
        let expected = 4 + changes.min(3) as usize;
        assert_eq!(tree(&*master).len(), expected, "{changes} changes");
        fixture.check(&format!("{changes} changes"));
    }
}

#[test]
fn a_verification_depends_on_the_permissions_of_the_directories_above_and_not_on_their_names() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let above = make_dir(&*master, ROOT, "above");
    let dir = make_dir(&*master, above, "dir");
    let change = |dir: u64, change: InodeChange| {
        master.change((dir, &Place::Dir(dir)), &change, LATER).unwrap();
    };
    let verifications = |name: &str, meanwhile: &(dyn Fn() + Sync)| {
        let batch = fixture.begin_as(stores::USER, dir, false).unwrap();
        make_file(&batch.names, dir, name);
        let certificate = fixture.certificate(&batch);
        let (record, verifications) = commit(&fixture, &batch, &certificate, |number, _| {
            if number == 1 {
                meanwhile();
            }
        });
        record.unwrap();
        fixture.check(name);
        verifications
    };
    let other = || drop(make_file(&*master, above, "other"));
    assert_eq!(verifications("create", &other), 1);
    let root = || drop(make_file(&*master, ROOT, "other"));
    assert_eq!(verifications("create in the root directory", &root), 1);
    let mode = || change(above, InodeChange { permissions: Some(0o711), ..InodeChange::default() });
    assert_eq!(verifications("mode", &mode), 2);
    let owner = || change(above, InodeChange { uid: Some(7), ..InodeChange::default() });
    assert_eq!(verifications("owner", &owner), 2);
    let moved = || drop(master.rename((ROOT, b"above"), (ROOT, b"moved"), Rename::Keep, LATER).unwrap());
    assert_eq!(verifications("rename", &moved), 2);
}

#[test]
fn a_name_that_others_create_during_a_verification_is_a_conflict() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let batch = fixture.begin();
    make_file(&batch.names, ROOT, "file");
    let certificate = fixture.certificate(&batch);
    let meanwhile = |number, _: &VerificationTask| {
        if number == 1 {
            make_file(&*master, ROOT, "file");
        }
    };
    let (record, verifications) = commit(&fixture, &batch, &certificate, meanwhile);
    assert_eq!((fixture.conflicts_of(record.unwrap().number).len(), verifications), (1, 2));
    fixture.check("a conflict");
}

#[test]
fn tables_that_a_verification_reads_are_kept_while_the_image_gets_others() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make_dir(&*master, ROOT, "dir");
    let batch = fixture.begin_as(stores::USER, dir, false).unwrap();
    make_file(&batch.names, dir, "of-batch");
    let certificate = fixture.certificate(&batch);
    make_file(&*master, ROOT, "later");
    let (opened, is_last) = (RefCell::new(Vec::new()), Cell::new(false));
    let state = Mutex::new((opened, is_last));
    let other = make_dir(&*master, ROOT, "other");
    let meanwhile = |_, task: &VerificationTask| {
        for number in 0..30 {
            let own = fixture.begin_as(stores::USER, other, false).unwrap();
            make_file(&own.names, other, &format!("file-{number}"));
            fixture.commit(&own).unwrap();
        }
        let image = tables(&fixture.directory.path().join("image"));
        let kept = task.current.iter().filter(|table| image.open(table.number).is_ok()).count();
        assert_eq!(kept, task.current.len());
        let state = state.lock().unwrap();
        state.0.borrow_mut().extend(task.current.iter().map(|table| table.number));
        state.1.set(true);
    };
    let (record, verifications) = commit(&fixture, &batch, &certificate, meanwhile);
    record.unwrap();
    assert_eq!(verifications, 1);
    // The image has merged the tables meanwhile, and does not use them any more.
    let unused = fixture.primary.unused_tables().unwrap();
    let read = state.into_inner().unwrap().0.into_inner();
    assert!(read.iter().any(|table| unused.contains(table)), "{read:?} {unused:?}");
    fixture.check("merged tables");
}

#[test]
fn a_refused_batch_stays_open_and_its_tables_are_not_kept() {
    let fixture = Fixture::new();
    let batch = fixture.begin();
    make_file(&batch.names, ROOT, "file");
    let certificate = fixture.certificate(&batch);
    let forged = Certificate { inodes_used: certificate.inodes_used + 1, ..certificate.clone() };
    let (refused, verifications) = commit(&fixture, &batch, &forged, |_, _| ());
    assert_eq!((refused.unwrap_err().kind, verifications), (ErrorKind::InvalidInput, 1));
    assert_eq!(fixture.primary.batch(batch.record.number).unwrap().state, BatchState::Open);
    assert_eq!(tree(&*fixture.master()).len(), 1);
    commit(&fixture, &batch, &certificate, |_, _| ()).0.unwrap();
    assert_eq!(tree(&*fixture.master()).len(), 2);
}
