//! The check of a store: its key-value store, its tables, the tree of the image, the data files,
//! and the certificates of open batches.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use quell_batch_service::{Checked, DataFile, Image, Key, Problem, ProblemKind, ROOT, check_tables, split};
use quell_posix::{Dir, WritableDir};
use quell_threads::{into_inner, lock};
use quell_vfs::{Error, ErrorKind, Rename, Result};

use crate::adopted::AdoptedTree;
use crate::data_files::{FoundFile, numbered, visit_data};
use crate::exclusive::open_keys_within;
use crate::incoming::open_data_file;
use crate::store::BatchStore;
use crate::store_dir::{INCOMING, KEYS, OpenKeys, StoreDir};

/// The identifiers of the kinds of problems of a store, besides the kinds of [`ProblemKind`].
const LOST_KEYS: &str = "lost-keys";
const LOST_PARTITIONS: &str = "lost-partitions";
const MISSING_DATA: &str = "missing-data";
const LOST_TREE: &str = "lost-tree";
const MISSING_ADOPTED: &str = "missing-adopted";
const CHANGED_ADOPTED: &str = "changed-adopted";
const BAD_CERTIFICATE: &str = "bad-certificate";
const UNKNOWN_FILE: &str = "unknown-file";

/// The number of adopted files that are compared at a time, and the number of threads for it.
const ADOPTED_AT_A_TIME: usize = 4096;
const CHECK_THREADS: usize = 8;

/// A problem of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreProblem {
    /// The identifier of the kind of the problem.
    pub kind: &'static str,
    /// The path in the name space, if the problem concerns an entry.
    pub path: Option<Vec<u8>>,
    /// A description.
    pub detail: String,
    /// Whether a repair corrects the problem.
    pub is_repairable: bool,
}

/// Returns the identifiers of all kinds of problems.
pub fn problem_kinds() -> Vec<&'static str> {
    let of_image = ProblemKind::ALL.iter().map(|kind| kind.identifier());
    of_image
        .chain([
            LOST_KEYS,
            LOST_PARTITIONS,
            MISSING_DATA,
            LOST_TREE,
            MISSING_ADOPTED,
            CHANGED_ADOPTED,
            BAD_CERTIFICATE,
            UNKNOWN_FILE,
        ])
        .collect()
}

/// Checks a store, and passes each problem to `report`. If `repairs` is set, the problems that can
/// be corrected are corrected. While another process has the store open, the call waits, at most
/// for `wait`.
///
/// # Errors
/// As for [`BatchStore::open`]. `Damaged` also if there is no copy from which a lost image could be
/// rebuilt.
pub fn fsck(
    path: &Path,
    wait: Duration,
    repairs: bool,
    report: &mut dyn FnMut(&StoreProblem),
) -> Result<Checked> {
    let dir = StoreDir::open(path)?;
    dir.check_format()?;
    let keys = match opened_keys(&dir, wait)? {
        Some(keys) => keys,
        None => {
            report(&StoreProblem {
                kind: LOST_KEYS,
                path: None,
                detail: "the key-value store of the image cannot be read; a repair rebuilds the image from its tables, \
                         and loses the changes of the synchronous mode since the last table"
                    .into(),
                is_repairable: true,
            });
            if !repairs {
                return Ok(Checked::default());
            }
            rebuild(&dir)?
        }
    };
    let tables = dir.image_tables()?;
    let mut found = Vec::new();
    check_tables(&keys.store, &tables, &mut |problem| found.push(problem.clone()))?;
    if !found.is_empty() {
        // The image cannot be read without its tables.
        found.iter().for_each(|problem| report(&of_image(problem, None)));
        return Ok(Checked::default());
    }
    let store = BatchStore::with_keys(dir, keys, 0)?;
    if !take_back_partitions(&store, repairs, report)? {
        return Ok(Checked::default());
    }
    let checked = store.primary().check(repairs, &mut |problem| found.push(problem.clone()))?;
    for problem in &found {
        report(&of_image(problem, Some(&store)));
    }
    if found.iter().all(|problem| repairs && problem.kind.is_repairable()) {
        check_data(&store, report)?;
        check_adopted(&store, repairs, report)?;
    }
    check_batches(&store, report)?;
    Ok(checked)
}

/// Takes back the partitions of all directories. Returns false if changes of a partition server are
/// lost and `repairs` is not set.
fn take_back_partitions(
    store: &BatchStore,
    repairs: bool,
    report: &mut dyn FnMut(&StoreProblem),
) -> Result<bool> {
    let primary = store.primary();
    let mut is_complete = true;
    for dir in primary.divided_dirs() {
        match primary.take_back(dir) {
            Err(error) if matches!(error.kind, ErrorKind::Damaged | ErrorKind::NotFound) => {
                report(&StoreProblem {
                    kind: LOST_PARTITIONS,
                    path: store.path_of(dir).ok(),
                    detail: format!(
                        "the files of a partition server cannot be read ({error}); a repair loses the changes of \
                         this directory that the server has executed since the division of the directory"
                    ),
                    is_repairable: true,
                });
                if repairs { primary.give_up_partitions(dir)? } else { is_complete = false }
            }
            taken_back => taken_back?,
        }
    }
    Ok(is_complete)
}

fn of_image(problem: &Problem, store: Option<&BatchStore>) -> StoreProblem {
    let path = problem.entry.as_ref().zip(store).and_then(|((dir, name), store)| {
        let above = store.path_of(*dir).ok()?;
        Some(if name.is_empty() { above } else { [&above[..], b"/", name].concat() })
    });
    StoreProblem {
        kind: problem.kind.identifier(),
        path,
        detail: problem.detail.clone(),
        is_repairable: problem.kind.is_repairable(),
    }
}

/// Opens the key-value store. `None` if it is lost or damaged, or has no image.
fn opened_keys(dir: &StoreDir, wait: Duration) -> Result<Option<OpenKeys>> {
    // Opening a directory without a key-value store would create one.
    if !dir.files()?.names()?.iter().any(|name| name == KEYS.as_bytes()) {
        return Ok(None);
    }
    let keys = match open_keys_within(dir, wait) {
        Err(error) if matches!(error.kind, ErrorKind::Damaged | ErrorKind::NotFound) => return Ok(None),
        keys => keys?,
    };
    match Image::is_present(&keys.store)? {
        true => Ok(Some(keys)),
        false => keys.store.close().map(|()| None),
    }
}

/// Rebuilds the image from the copy of its description. The remains of the key-value store are kept
/// as `keys.lost`.
fn rebuild(dir: &StoreDir) -> Result<OpenKeys> {
    let files = dir.files()?;
    let tables = dir.image_tables()?;
    if !Image::can_be_rebuilt(&tables)? {
        let source = "the image cannot be rebuilt: the store has no tables yet, or their description is lost";
        return Err(Error {
            source: Some(source.into()),
            ..Error::new(ErrorKind::Damaged, "rebuild the image", dir.subject())
        });
    }
    for number in 0_u32.. {
        let lost = if number == 0 { "keys.lost".to_owned() } else { format!("keys.lost.{number}") };
        match files.rename(KEYS.as_bytes(), &files, lost.as_bytes(), Rename::Keep) {
            Err(error) if error.kind == ErrorKind::Exists => {}
            Err(error) if error.kind == ErrorKind::NotFound => break,
            renamed => {
                renamed?;
                break;
            }
        }
    }
    let keys = dir.open_keys()?;
    Image::rebuild(&keys.store, &tables)?;
    Ok(keys)
}

/// Returns whether the error of an open can be caused by the user to whom a file belongs.
fn is_users_change(error: ErrorKind) -> bool {
    use ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied};
    matches!(error, NotFound | InvalidInput | NotADirectory | PermissionDenied)
}

/// Checks that the data files of all inodes exist.
fn check_data(store: &BatchStore, report: &mut dyn FnMut(&StoreProblem)) -> Result<()> {
    let mut missing: HashSet<DataFile> = HashSet::new();
    store.primary().data_files(&mut |file, _| {
        missing.insert(file);
    })?;
    visit_data(&store.data_dir()?, &mut |path, found| {
        match found {
            FoundFile::File { file, .. } => {
                missing.remove(&file);
            }
            FoundFile::Unknown => report(&unknown(b"data/", path)),
        }
        Ok(())
    })?;
    if store.dir.is_shared() {
        // The files of other users belong to them, so only the files that the image needs are
        // checked.
        let incoming = store.dir.open_dir(INCOMING)?;
        for file in missing.clone() {
            match open_data_file(&incoming, file) {
                Ok(_) => {
                    missing.remove(&file);
                }
                // The user of the file has removed or replaced it, or withdrawn the permission to
                // read it.
                Err(error) if is_users_change(error.kind) => {}
                Err(error) => return Err(error),
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    // The names are found with a second pass through the image.
    let mut places = Vec::new();
    store.primary().data_files(&mut |file, (dir, name)| {
        if missing.contains(&file) {
            places.push((file, dir, name.to_vec()));
        }
    })?;
    for (file, dir, name) in places {
        if !missing.remove(&file) {
            continue;
        }
        let above = store.path_of(dir).ok();
        report(&StoreProblem {
            kind: MISSING_DATA,
            path: above.map(|above| [&above[..], b"/", &name].concat()),
            detail: format!("the data file of inode {} in batch {} does not exist", file.inode, file.batch),
            is_repairable: false,
        });
    }
    Ok(())
}

/// Compares the files of the adopted tree, to which the image refers, with their states at the
/// adoption. A repair accepts the present states.
fn check_adopted(store: &BatchStore, repairs: bool, report: &mut dyn FnMut(&StoreProblem)) -> Result<()> {
    let tree = AdoptedTree::of_store(&store.dir.files()?)?;
    let mut after = Key::of_dir(ROOT);
    loop {
        let page = store.primary().adopted_files(after.as_bytes(), ADOPTED_AT_A_TIME)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = last.clone();
        let lost = match &tree {
            None => Some("the store has no file `adopted` with the path of its tree".to_owned()),
            Some(tree) => tree.problem().map(|error| format!("the adopted tree cannot be opened: {error}")),
        };
        let (Some(tree), None) = (&tree, &lost) else {
            let detail = lost.unwrap_or_default();
            report(&StoreProblem { kind: LOST_TREE, path: None, detail, is_repairable: false });
            return Ok(());
        };
        let found = Mutex::new(Vec::new());
        quell_threads::run(CHECK_THREADS, page, |(key, file), _| match tree.present(&file) {
            Ok(present) if present.file == file => {}
            present => lock(&found).push((key, file, present)),
        });
        let mut found = into_inner(found);
        found.sort_by(|(left, ..), (right, ..)| left.cmp(right));
        for (key, file, present) in found {
            let original = format!("{}/{}", tree.path.display(), file.path.escape_ascii());
            let (kind, detail) = match &present {
                Ok(_) => (CHANGED_ADOPTED, format!("{original} was changed since the adoption")),
                Err(error) => (MISSING_ADOPTED, format!("{original} cannot be found: {error}")),
            };
            let path = split(key.as_bytes()).and_then(|(dir, name)| {
                Some([&store.path_of(dir).ok()?[..], b"/", name].concat()) // `None`: it has several names
            });
            report(&StoreProblem { kind, path, detail, is_repairable: present.is_ok() });
            if let (true, Ok(present)) = (repairs, present) {
                store.primary().accept_adopted(&key, &file, present)?;
            }
        }
    }
}

/// Checks the directories of the batches, and that the directories of open batches have the tables
/// of their certificates.
fn check_batches(store: &BatchStore, report: &mut dyn FnMut(&StoreProblem)) -> Result<()> {
    let records = store.primary().batches()?;
    let known: BTreeSet<u64> = records.iter().map(|record| record.number).collect();
    let (numbers, others) = numbered(&store.batches_dir()?)?;
    let unrecorded = numbers.into_iter().filter(|number| !known.contains(number));
    let names = unrecorded.map(|number| number.to_string().into_bytes()).chain(others);
    names.for_each(|name| report(&unknown(b"batches/", &name)));
    for record in records.iter().filter(|record| !record.state.has_ended()) {
        let checked = store.certificate(record.number).and_then(|found| match found {
            Some((certificate, tables)) => certificate.check_files(&tables, false),
            None => Ok(()),
        });
        if let Err(error) = checked {
            report(&StoreProblem {
                kind: BAD_CERTIFICATE,
                path: None,
                detail: format!("batch {} cannot be committed: {error}", record.number),
                is_repairable: false,
            });
        }
    }
    Ok(())
}

fn unknown(dir: &[u8], name: &[u8]) -> StoreProblem {
    let path = [dir, name].concat();
    StoreProblem {
        kind: UNKNOWN_FILE,
        path: None,
        detail: format!("{} is not a file of the store", path.escape_ascii()),
        is_repairable: false,
    }
}
