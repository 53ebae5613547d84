//! `quell batch commit --blobs`: reads a transaction of blobs from a file, and commits it together
//! with a batch. docs/techniques/batch.md has the format of the file.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use quell_batch::{Marker, MarkerLocation, StoreAccess, TransactionOutcome};
use quell_batch_service::BatchSummary;
use quell_blob::{
    MarkerOutcome, NAME_BYTES_MAX, OPERATIONS_MAX, Operation, Overflow, Retries, Store, Transaction,
    Transform,
};
use quell_vfs::ErrorKind;
use rustix::fs::OFlags;
use serde::Deserialize;

use crate::failure::{Failure, of_blob};
use crate::inputs::shown;
use crate::output::errln;

/// The largest total size of the file with operations and of the files with data, in bytes. They
/// are held in memory.
const BYTES_MAX: u64 = 256 << 20;
/// The number of operations that create the marker of a transaction: `Create` and `Write`.
const OPERATIONS_OF_MARKER: usize = 2;
/// An upper bound, in bytes, of the part of a marker's name after the prefix: the identity of the
/// store of blobs, two random numbers, and the number of a batch.
const MARKER_SUFFIX_BYTES_MAX: usize = 128;

/// The content of the file of `--blobs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    store: String,
    #[serde(default = "default_prefix")]
    marker_prefix: String,
    #[serde(default)]
    conditions: Vec<ConditionJson>,
    operations: Vec<OperationJson>,
}

fn default_prefix() -> String {
    "quell-batch/".into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionJson {
    blob: String,
    exists: Option<bool>,
    size: Option<u64>,
    offset: Option<u64>,
    text: Option<String>,
    file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case", deny_unknown_fields)]
enum OperationJson {
    Create {
        blob: String,
        #[serde(default)]
        may_exist: bool,
    },
    Delete {
        blob: String,
    },
    Write {
        blob: String,
        offset: u64,
        text: Option<String>,
        file: Option<PathBuf>,
    },
    Append {
        blob: String,
        text: Option<String>,
        file: Option<PathBuf>,
    },
    Resize {
        blob: String,
        size: u64,
    },
    Rename {
        blob: String,
        to: String,
    },
    Add {
        blob: String,
        offset: u64,
        number: i64,
    },
}

/// A condition under which a transaction is committed.
#[derive(Debug, PartialEq, Eq)]
enum Condition {
    Exists { blob: String, exists: bool },
    Size { blob: String, size_bytes: u64 },
    Bytes { blob: String, offset: u64, data: Vec<u8> },
}

/// A transaction of blobs, and the location of its store.
#[derive(Debug)]
pub struct BlobTransaction {
    location: String,
    marker_prefix: String,
    conditions: Vec<Condition>,
    operations: Vec<Operation>,
}

/// Reads files, up to a limit of their total size.
struct DataReader {
    bytes_left: u64,
}

impl DataReader {
    fn read_file(&mut self, path: &Path) -> Result<Vec<u8>, Failure> {
        let failed = |cause| Failure::wrong_input(format!("cannot read {}: {cause}", shown(path)));
        let mut data = Vec::new();
        // NONBLOCK: the open of a FIFO without a writer would wait.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(Failure::wrong_input(format!("{} is not a regular file", shown(path))));
        }
        let length = file.take(self.bytes_left + 1).read_to_end(&mut data).map_err(failed)?;
        self.bytes_left = self.bytes_left.checked_sub(length as u64).ok_or_else(|| {
            Failure::wrong_input(format!("{}: the data of a transaction has at most 256 MiB", shown(path)))
        })?;
        Ok(data)
    }

    fn data(&mut self, text: Option<String>, file: Option<PathBuf>) -> Result<Vec<u8>, Failure> {
        match (text, file) {
            (Some(text), None) => Ok(text.into_bytes()),
            (None, Some(file)) => self.read_file(&file),
            _ => Err(Failure::wrong_input("data is either `text` or `file`")),
        }
    }
}

impl BlobTransaction {
    /// Reads a transaction from a file, and the data from the files that it names.
    pub fn read(path: &Path) -> Result<BlobTransaction, Failure> {
        let mut reader = DataReader { bytes_left: BYTES_MAX };
        let text = reader.read_file(path)?;
        let wrong = |reason: String| Failure::wrong_input(format!("{}: {reason}", shown(path)));
        let document: Document = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        BlobTransaction::new(document, &mut reader).map_err(|failure| wrong(failure.to_string()))
    }

    fn new(document: Document, reader: &mut DataReader) -> Result<BlobTransaction, Failure> {
        let Document { store, marker_prefix, conditions, operations } = document;
        if marker_prefix.len() + MARKER_SUFFIX_BYTES_MAX > NAME_BYTES_MAX {
            return Err(Failure::wrong_input("the prefix of the marker is too long"));
        }
        let location = store.parse::<quell_blob::Location>()?.to_absolute()?;
        let conditions = conditions.into_iter().map(|condition| condition.check(reader));
        let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
        let operations = operations.into_iter().map(|operation| operation.with_data(reader));
        let operations = operations.collect::<Result<Vec<Vec<Operation>>, _>>()?.concat();
        let most = OPERATIONS_MAX - OPERATIONS_OF_MARKER;
        if operations.len() > most {
            return Err(Failure::wrong_input(format!("a transaction has at most {most} operations")));
        }
        Ok(BlobTransaction { location, marker_prefix, conditions, operations })
    }
}

impl ConditionJson {
    fn check(self, reader: &mut DataReader) -> Result<Condition, Failure> {
        let ConditionJson { blob, exists, size, offset, text, file } = self;
        match (exists, size, offset) {
            (Some(exists), None, None) if text.is_none() && file.is_none() => {
                Ok(Condition::Exists { blob, exists })
            }
            (None, Some(size_bytes), None) if text.is_none() && file.is_none() => {
                Ok(Condition::Size { blob, size_bytes })
            }
            (None, None, Some(offset)) => {
                Ok(Condition::Bytes { blob, offset, data: reader.data(text, file)? })
            }
            _ => Err(Failure::wrong_input(
                "a condition has `blob`, and either `exists`, or `size`, or `offset` with `text` or `file`",
            )),
        }
    }
}

impl OperationJson {
    fn with_data(self, reader: &mut DataReader) -> Result<Vec<Operation>, Failure> {
        Ok(vec![match self {
            OperationJson::Create { blob, may_exist } => Operation::Create { name: blob.into(), may_exist },
            OperationJson::Delete { blob } => Operation::Delete { name: blob.into() },
            OperationJson::Write { blob, offset, text, file } => {
                Operation::Write { name: blob.into(), offset, data: reader.data(text, file)? }
            }
            OperationJson::Append { blob, text, file } => {
                Operation::Append { name: blob.into(), data: reader.data(text, file)? }
            }
            OperationJson::Resize { blob, size } => Operation::Resize { name: blob.into(), size_bytes: size },
            OperationJson::Rename { blob, to } => Operation::Rename { name: blob.into(), to: to.into() },
            OperationJson::Add { blob, offset, number } => {
                let transform = Transform { overflow: Overflow::Check, ..Transform::add_i64(number) };
                let name: Vec<u8> = blob.into();
                return Ok(vec![
                    Operation::Create { name: name.clone(), may_exist: true },
                    Operation::Transform { name, offset, transform },
                ]);
            }
        }])
    }
}

impl Condition {
    /// Fails if the condition does not hold.
    fn check(&self, transaction: &mut Transaction) -> quell_blob::Result<()> {
        let (holds, expected) = match self {
            Condition::Exists { blob, exists } => {
                let expected = if *exists { "does not exist" } else { "exists" };
                (transaction.stat(blob)?.is_some() == *exists, format!("the blob {blob} {expected}"))
            }
            Condition::Size { blob, size_bytes } => {
                let stat = transaction.stat(blob)?;
                let holds = stat.is_some_and(|stat| stat.size_bytes == *size_bytes);
                (holds, format!("the blob {blob} does not have {size_bytes} bytes"))
            }
            Condition::Bytes { blob, offset, data } => {
                let mut found = vec![0; data.len()];
                let length = match transaction.stat(blob)? {
                    Some(_) => transaction.read(blob, *offset, &mut found)?,
                    None => 0,
                };
                (found[..length] == data[..], format!("the blob {blob} has other bytes at {offset}"))
            }
        };
        match holds {
            true => Ok(()),
            false => {
                let source = Some(format!("a condition does not hold: {expected}").into());
                let error =
                    quell_vfs::Error::new(ErrorKind::InvalidInput, "commit the transaction of", "blobs");
                Err(quell_vfs::Error { source, ..error }.into())
            }
        }
    }
}

/// Commits a batch together with a transaction of blobs.
pub fn commit(
    store: &StoreAccess,
    number: u64,
    transaction: &BlobTransaction,
) -> Result<BatchSummary, Failure> {
    store.check_commit_with(number)?;
    let BlobTransaction { location, marker_prefix, conditions, operations } = transaction;
    let blobs = Store::open(location).map_err(of_blob)?;
    let prefix = blobs.marker_prefix(marker_prefix).map_err(of_blob)?;
    let place = MarkerLocation { location, prefix: &prefix };
    let mut created = None;
    let committed = store.commit_with(number, place, |marker| {
        created = Some(marker.blob.clone());
        let body = |transaction: &mut Transaction| {
            conditions.iter().try_for_each(|condition| condition.check(transaction))?;
            operations.iter().try_for_each(|operation| transaction.add(operation.clone()))
        };
        match blobs.commit_with_marker(&marker.blob, &Retries::default(), body) {
            MarkerOutcome::Committed => TransactionOutcome::Committed,
            MarkerOutcome::Refused(error) => TransactionOutcome::Refused(of_store(error)),
            MarkerOutcome::Unknown(error) => TransactionOutcome::Unknown(of_store(error)),
        }
    })?;
    if let Some(marker) = created {
        remove_marker(&blobs, &marker);
    }
    Ok(committed)
}

/// Publishes a prepared batch if its transaction of blobs is committed, and makes it an open batch
/// again otherwise. Returns whether it is published, or `None` if the batch was not prepared.
pub fn resolve(store: &StoreAccess, number: u64) -> Result<Option<bool>, Failure> {
    let mut blobs = None;
    let is_committed = |marker: &Marker| -> quell_vfs::Result<bool> {
        let opened = blobs.insert(Store::open_existing(&marker.location).map_err(of_store)?);
        opened.resolve_marker(&marker.blob).map_err(of_store)
    };
    let Some((summary, marker)) = store.resolve_prepared(number, is_committed)? else { return Ok(None) };
    let is_published = summary.is_committed();
    if let (true, Some(blobs)) = (is_published, blobs) {
        remove_marker(&blobs, &marker.blob);
    }
    Ok(Some(is_published))
}

/// Removes the marker of a batch that is published.
fn remove_marker(blobs: &Store, marker: &str) {
    if let Err(error) = blobs.remove_marker(marker) {
        errln!("quell: the batch is committed, but the blob {} was not deleted: {error}", shown(marker));
    }
}

/// Converts an error of a store of blobs.
fn of_store(error: quell_blob::Error) -> quell_vfs::Error {
    match error {
        quell_blob::Error::Store(error) => error,
        refused => {
            let kind = refused.kind();
            let error = quell_vfs::Error::new(kind, "commit the transaction of", "blobs");
            quell_vfs::Error { source: Some(refused.to_string().into()), ..error }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BlobTransaction, String> {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("operations.json");
        std::fs::write(&path, text).unwrap();
        BlobTransaction::read(&path).map_err(|failure| failure.to_string())
    }

    #[test]
    fn all_operations_and_conditions_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("data");
        std::fs::write(&data, b"\x00\xff").unwrap();
        let text = format!(
            r#"{{"store": "/results", "conditions": [
                {{"blob": "a", "exists": false}}, {{"blob": "b", "size": 3}},
                {{"blob": "b", "offset": 1, "text": "x"}}],
               "operations": [
                {{"operation": "create", "blob": "a"}},
                {{"operation": "create", "blob": "b", "may_exist": true}},
                {{"operation": "write", "blob": "a", "offset": 4, "file": "{}"}},
                {{"operation": "append", "blob": "a", "text": "line\n"}},
                {{"operation": "resize", "blob": "b", "size": 0}},
                {{"operation": "rename", "blob": "b", "to": "c"}},
                {{"operation": "add", "blob": "sum", "offset": 8, "number": -2}},
                {{"operation": "delete", "blob": "d"}}]}}"#,
            data.display()
        );
        let read = parsed(&text).unwrap();
        assert_eq!((read.location.as_str(), read.marker_prefix.as_str()), ("dir:/results", "quell-batch/"));
        assert_eq!(
            read.conditions,
            [
                Condition::Exists { blob: "a".into(), exists: false },
                Condition::Size { blob: "b".into(), size_bytes: 3 },
                Condition::Bytes { blob: "b".into(), offset: 1, data: b"x".to_vec() },
            ]
        );
        let add = Transform { overflow: Overflow::Check, ..Transform::add_i64(-2) };
        let name = |name: &str| name.as_bytes().to_vec();
        assert_eq!(
            read.operations,
            [
                Operation::Create { name: name("a"), may_exist: false },
                Operation::Create { name: name("b"), may_exist: true },
                Operation::Write { name: name("a"), offset: 4, data: vec![0, 0xff] },
                Operation::Append { name: name("a"), data: name("line\n") },
                Operation::Resize { name: name("b"), size_bytes: 0 },
                Operation::Rename { name: name("b"), to: name("c") },
                Operation::Create { name: name("sum"), may_exist: true },
                Operation::Transform { name: name("sum"), offset: 8, transform: add },
                Operation::Delete { name: name("d") },
            ]
        );
    }

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("fifo");
        let mode = rustix::fs::Mode::from_bits_truncate(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let refused = BlobTransaction::read(&path).unwrap_err().to_string();
        assert!(refused.ends_with("fifo is not a regular file"), "{refused}");
    }

    #[test]
    fn a_file_of_another_form_is_refused_with_the_reason() {
        let of = |conditions: &str, operations: &str| {
            parsed(&format!(
                r#"{{"store": "/results", "conditions": [{conditions}], "operations": [{operations}]}}"#
            ))
            .unwrap_err()
        };
        for (reason, found) in [
            ("missing field `store`", parsed(r#"{"operations": []}"#).unwrap_err()),
            ("unknown field", parsed(r#"{"store": "/results", "operations": [], "other": 1}"#).unwrap_err()),
            ("unknown variant", of("", r#"{"operation": "truncate", "blob": "a"}"#)),
            ("unknown field", of("", r#"{"operation": "delete", "blob": "a", "name": "b"}"#)),
            ("either `text` or `file`", of("", r#"{"operation": "append", "blob": "a"}"#)),
            ("cannot read", of("", r#"{"operation": "append", "blob": "a", "file": "/does/not/exist"}"#)),
            ("not a regular file", of("", r#"{"operation": "append", "blob": "a", "file": "/dev/zero"}"#)),
            ("a condition has", of(r#"{"blob": "a"}"#, "")),
            ("a condition has", of(r#"{"blob": "a", "exists": true, "size": 3}"#, "")),
            ("a condition has", of(r#"{"blob": "a", "exists": true, "text": "x"}"#, "")),
        ] {
            assert!(found.contains(reason) && found.contains("operations.json"), "{reason}: {found}");
        }
    }
}
