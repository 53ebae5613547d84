//! A log in objects. Only the process with the largest epoch can append to it.
//!
//! docs/formats/rados-log.md states the bytes and the protocol.

use std::fmt;
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result};

use crate::failure::{Failure, Replaced};
use crate::fields::Fault;
use crate::format::head::{self, Checkpoint, HEAD_BYTES_MAX, Head, LOG_OBJECTS_MAX, LogObject};
use crate::format::log::{
    Expected, Guard, HEADER_BYTES, Header, OBJECT_BYTES_MAX, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, Record,
    encode_record, replay,
};
use crate::format::names;
use crate::objects::{Objects, Write, failure, is_refusal};

/// The attribute that is compared and changed by each write.
const GUARD: &str = "guard";
/// The largest number of attempts of an operation whose result is not known.
const ATTEMPTS: usize = 4;
/// The largest number of attempts to take a log over while other processes change it.
const TAKEOVERS: usize = 16;
/// The length of a read of a log object, in bytes.
const READ_BYTES: usize = 4 << 20;
/// The largest number of reads, or of removals, in flight.
const READS: usize = 8;

/// The options of a log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Whether the log is created if there is none.
    pub create: bool,
    /// The largest size of a log object, in bytes: at most 64 MiB. A record that would make an
    /// object larger is the first one of the next object.
    pub object_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { create: true, object_bytes: OBJECT_BYTES_MAX }
    }
}

/// The objects of one log. Their names begin with the name of the log.
struct LogStorage {
    objects: Arc<dyn Objects>,
    name: String,
}

/// The reason for which a change of the head failed.
enum NotChanged {
    /// The operation was refused; the head is as before.
    Refused(Error),
    /// It is not known whether the head was changed.
    Unknown(Error),
    /// Another process has changed the head: this is the present one.
    Other(Box<Head>),
}

fn damaged(object: &str, reason: impl fmt::Display) -> Error {
    failure(ErrorKind::Damaged, "read", object, format!("{object}: {reason}"))
}

/// Repeats an operation that changes nothing, while its result is lost.
fn again<T>(mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut result = operation();
    for _ in 1..ATTEMPTS {
        match &result {
            Err(error) if !is_refusal(error) && error.kind != ErrorKind::Damaged => result = operation(),
            _ => break,
        }
    }
    result
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(16) => Ok(bytes),
        Ok(_) => Err(Error::new(ErrorKind::Os(quell_vfs::errno::EIO), "getrandom", "")),
        Err(cause) => Err(Error::from_io(cause.into(), "getrandom", "")),
    }
}

impl LogStorage {
    fn head_name(&self) -> String {
        names::head(&self.name)
    }

    fn object_name(&self, object: LogObject) -> String {
        names::log_object(&self.name, object.epoch, object.number)
    }

    /// Returns the head, or `None` if there is none.
    fn read_head(&self) -> Result<Option<Head>> {
        let name = self.head_name();
        let bytes = match again(|| self.objects.read(&name, 0, HEAD_BYTES_MAX + 1)) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        Head::decode(&bytes).map(Some).map_err(|fault| damaged(&name, fault))
    }

    fn read_guard(&self, object: LogObject) -> Result<Guard> {
        let name = self.object_name(object);
        let value = again(|| self.objects.attribute(&name, GUARD))?.unwrap_or_default();
        Guard::decode(&value).ok_or_else(|| damaged(&name, "its guard is missing or not valid"))
    }

    /// Replaces the head `old`, or creates it. `new` differs from all heads that other processes
    /// write, because it contains the owner.
    fn change_head(&self, old: Option<&Head>, new: &Head) -> Result<(), NotChanged> {
        let (name, content, guard) = (self.head_name(), new.encode(), head::guard(new.version));
        let expected = old.map(|old| head::guard(old.version));
        let first = match &expected {
            Some(expected) => Write::new().compare_attribute(GUARD, expected),
            None => Write::new().create_exclusive(),
        };
        let write = first.write_full(&content).set_attribute(GUARD, &guard);
        let mut unknown = None;
        for _ in 0..ATTEMPTS {
            let error = match self.objects.write(&name, &write) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.kind {
                ErrorKind::Conflict | ErrorKind::Exists => {
                    return match self.read_head() {
                        Ok(Some(found)) if found == *new => Ok(()),
                        Ok(Some(found)) => Err(NotChanged::Other(Box::new(found))),
                        Ok(None) => Err(NotChanged::Unknown(damaged(&name, "the head was removed"))),
                        Err(error) => Err(NotChanged::Unknown(error)),
                    };
                }
                _ if is_refusal(&error) && unknown.is_none() => return Err(NotChanged::Refused(error)),
                _ => unknown = unknown.or(Some(error)),
            }
        }
        Err(NotChanged::Unknown(unknown.unwrap_or_else(|| damaged(&name, "no attempt"))))
    }

    /// Returns the valid bytes of a log object.
    fn read_object(&self, object: LogObject, position: u64) -> Result<Vec<u8>> {
        let name = self.object_name(object);
        let position = position as usize;
        let mut bytes = Vec::with_capacity(position);
        while bytes.len() < position {
            let starts = (bytes.len()..position).step_by(READ_BYTES).take(READS);
            let reads: Vec<_> = starts
                .map(|start| {
                    let length = READ_BYTES.min(position - start);
                    (start, length, self.objects.start_read(&name, start as u64, length))
                })
                .collect();
            for (start, length, read) in reads {
                let part = match read.wait() {
                    Err(error) if !is_refusal(&error) => {
                        again(|| self.objects.read(&name, start as u64, length))?
                    }
                    part => part.map_err(|error| missing(error, &name))?,
                };
                if part.len() != length {
                    let end = start + part.len();
                    return Err(damaged(&name, format!("offset {end}: {position} bytes should be there")));
                }
                bytes.extend_from_slice(&part);
            }
        }
        Ok(bytes)
    }
}

/// Returns the error of an object that the head names, and that could not be read. It must exist,
/// so `NotFound` becomes `Damaged`.
fn missing(error: Error, object: &str) -> Error {
    match error.kind {
        ErrorKind::NotFound => damaged(object, "the object is missing"),
        _ => error,
    }
}

/// A log that was taken over, and has not yet been read. No other process can append to it, unless
/// that process takes the log over in turn.
pub struct Takeover {
    storage: LogStorage,
    head: Head,
    /// The position in the last log object.
    position: u64,
    object_bytes: u64,
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takeover").field("name", &self.storage.name).field("head", &self.head).finish()
    }
}

impl Takeover {
    /// Takes the log with this name over, with a new epoch, or creates it.
    ///
    /// # Errors
    /// `InvalidInput` if the name has other characters than letters, digits, `_` and `-`, or more
    /// than 64. `NotFound` if there is no such log and it is not to be created. `Busy` if other
    /// processes take it over at the same time, `Unavailable` with [`Replaced`] if one did so
    /// later. `Damaged` if an object is not as the format states. The errors of [`Objects`].
    pub fn new(objects: Arc<dyn Objects>, name: &str, options: &LogOptions) -> Result<Takeover> {
        if !names::is_log_name(name) {
            let reason =
                format!("{name:?} is not the name of a log: use 1 to 64 letters, digits, `_` and `-`");
            return Err(failure(ErrorKind::InvalidInput, "open", name, reason));
        }
        let storage = LogStorage { objects, name: name.to_owned() };
        let head = take_epoch(&storage, options.create)?;
        let position = match head.logs.last() {
            Some(last) => fence(&storage, *last, head.epoch)?,
            None => 0,
        };
        let object_bytes = options.object_bytes.min(OBJECT_BYTES_MAX);
        Ok(Takeover { storage, head, position, object_bytes })
    }

    /// Returns the epoch of this process.
    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Passes all records of the log to `visit`, oldest first, and returns the log.
    ///
    /// # Errors
    /// `Damaged` with the object and the offset if bytes that were acknowledged are missing or
    /// differ. The errors of `visit` and of [`Objects`].
    pub fn replay(self, visit: &mut dyn FnMut(Record<'_>) -> Result<()>) -> Result<GuardedLog> {
        let Takeover { storage, head, position, object_bytes } = self;
        let mut expected = Expected { sequence: head.sequence, epoch: 0 };
        let mut log_bytes = 0;
        for (index, object) in head.logs.iter().enumerate() {
            let name = storage.object_name(*object);
            let end = match index + 1 == head.logs.len() {
                true => position,
                false => storage.read_guard(*object).map_err(|error| missing(error, &name))?.position,
            };
            let bytes = storage.read_object(*object, end)?;
            let header = Header {
                id: head.id,
                epoch: object.epoch,
                number: object.number,
                sequence: expected.sequence,
            };
            expected = replay(&bytes, &header, expected, head.epoch, &mut |record| {
                visit(record).map_err(ReplayFailure::Visit)
            })
            .map_err(|cause| match cause {
                ReplayFailure::Fault(fault) => damaged(&name, fault),
                ReplayFailure::Visit(error) => error,
            })?;
            log_bytes += end - HEADER_BYTES;
        }
        let mut log = GuardedLog {
            storage,
            head,
            position,
            object_bytes,
            sequence: expected.sequence,
            log_bytes,
            failure: None,
            garbage: Vec::new(),
        };
        if log.head.logs.is_empty() {
            log.begin_object()?;
        }
        Ok(log)
    }
}

enum ReplayFailure {
    Fault(Fault),
    Visit(Error),
}

impl From<Fault> for ReplayFailure {
    fn from(fault: Fault) -> ReplayFailure {
        ReplayFailure::Fault(fault)
    }
}

/// Takes the next epoch in the head. If there is no head, creates it if `create` is true.
fn take_epoch(storage: &LogStorage, create: bool) -> Result<Head> {
    let owner = random()?;
    let mut old = storage.read_head()?;
    for _ in 0..TAKEOVERS {
        let new = match &old {
            Some(old) => Head { epoch: old.epoch + 1, owner, version: old.version + 1, ..old.clone() },
            None if !create => return Err(Error::new(ErrorKind::NotFound, "open", storage.head_name())),
            None => Head {
                id: random()?,
                epoch: 1,
                owner,
                version: 1,
                next: 0,
                checkpoint: None,
                sequence: 1,
                logs: Vec::new(),
            },
        };
        match storage.change_head(old.as_ref(), &new) {
            Ok(()) => return Ok(new),
            Err(NotChanged::Other(found)) => old = Some(*found),
            Err(NotChanged::Refused(error) | NotChanged::Unknown(error)) => return Err(error),
        }
    }
    let reason = "other servers take the log over at the same time";
    Err(failure(ErrorKind::Busy, "open", &storage.name, reason))
}

/// Sets the epoch of the guard of a log object, so that no process with a smaller epoch can append
/// to it. Returns the position.
fn fence(storage: &LogStorage, object: LogObject, epoch: u64) -> Result<u64> {
    let name = storage.object_name(object);
    let mut last_error = None;
    // The previous owner may append, and thereby change the guard, between the two operations.
    for _ in 0..TAKEOVERS {
        let guard = match storage.read_guard(object) {
            // A process that took the log over later has removed the object.
            Err(error) if error.kind == ErrorKind::NotFound => {
                return match storage.read_head()? {
                    Some(head) if head.epoch > epoch => {
                        Err(Failure::Replaced(Replaced { epoch: head.epoch }).error("open", &storage.name))
                    }
                    _ => Err(missing(error, &name)),
                };
            }
            guard => guard?,
        };
        if guard.epoch > epoch {
            return Err(Failure::Replaced(Replaced { epoch: guard.epoch }).error("open", &storage.name));
        }
        if guard.epoch == epoch {
            return Ok(guard.position);
        }
        let (old, new) = (guard.encode(), Guard { epoch, ..guard }.encode());
        match storage
            .objects
            .write(&name, &Write::new().compare_attribute(GUARD, &old).set_attribute(GUARD, &new))
        {
            Ok(()) => return Ok(guard.position),
            Err(error) if error.kind == ErrorKind::Conflict || !is_refusal(&error) => {
                last_error = Some(error)
            }
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(last_error.unwrap_or_else(|| Error::new(ErrorKind::Busy, "open", name)))
}

/// A checkpoint that is being written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BegunCheckpoint {
    pub(crate) checkpoint: Checkpoint,
    /// The sequence of the next record when the checkpoint was begun.
    sequence: u64,
    /// The size of the log when the checkpoint was begun, in bytes.
    log_bytes: u64,
}

/// A log of which this process is the owner.
pub struct GuardedLog {
    storage: LogStorage,
    head: Head,
    /// The position in the last log object.
    position: u64,
    object_bytes: u64,
    /// The sequence of the next record.
    sequence: u64,
    /// The size of all records since the checkpoint, in bytes.
    log_bytes: u64,
    failure: Option<Failure>,
    /// Objects that the head does not name any more, and that have not been removed yet.
    garbage: Vec<String>,
}

impl fmt::Debug for GuardedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("GuardedLog");
        text.field("name", &self.storage.name).field("epoch", &self.head.epoch);
        text.field("sequence", &self.sequence).field("failure", &self.failure).finish()
    }
}

impl GuardedLog {
    /// Returns the epoch of this process.
    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    /// Returns the size of the records since the checkpoint, in bytes.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    pub(crate) fn id(&self) -> head::Id {
        self.head.id
    }

    /// Returns the failure after which every append fails, if there was one.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Returns the last object, which records are appended to.
    fn last(&self) -> LogObject {
        *self.head.logs.last().expect("a log has an object after it was replayed")
    }

    /// Appends a record, and returns its sequence. After `Ok` all replicas of the pool have it on
    /// their disks.
    ///
    /// # Errors
    /// `InvalidInput` if the payload has more than 40 MiB; `NoSpace`, `Quota` or `PermissionDenied`
    /// if the cluster refused the append: nothing was appended, and the log continues to work.
    /// `Unavailable` with [`Replaced`] if another process has taken the log over, and any other
    /// error: it is not known here whether the record was appended, and every later append fails.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64> {
        if let Some(failure) = &self.failure {
            return Err(failure.error("append", &self.storage.name));
        }
        if payload.len() > PAYLOAD_BYTES_MAX {
            let reason = format!("a record of {} bytes; the limit is {PAYLOAD_BYTES_MAX}", payload.len());
            return Err(failure(ErrorKind::InvalidInput, "append", &self.storage.name, reason));
        }
        let size = (RECORD_HEADER_BYTES + payload.len()) as u64;
        let limit = self.object_bytes.max(HEADER_BYTES + size).min(OBJECT_BYTES_MAX);
        if self.position > HEADER_BYTES && self.position + size > limit {
            self.begin_object()?;
        }
        let sequence = self.sequence;
        let record = encode_record(sequence, self.head.epoch, payload);
        self.append_bytes(&record)?;
        self.position += size;
        self.log_bytes += size;
        self.sequence += 1;
        Ok(sequence)
    }

    /// Appends a record's bytes to the last object.
    fn append_bytes(&mut self, record: &[u8]) -> Result<()> {
        let object = self.last();
        let name = self.storage.object_name(object);
        let old = Guard { epoch: self.head.epoch, position: self.position };
        let new = Guard { position: self.position + record.len() as u64, ..old };
        let (old, encoded) = (old.encode(), new.encode());
        let write = Write::new()
            .compare_attribute(GUARD, &old)
            .write_at(self.position, record)
            .set_attribute(GUARD, &encoded);
        let mut unknown = None;
        for _ in 0..ATTEMPTS {
            let error = match self.storage.objects.write(&name, &write) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.kind {
                ErrorKind::Conflict => {
                    return match self.storage.read_guard(object) {
                        // An earlier attempt was performed: nothing else writes this guard.
                        Ok(guard) if guard == new => Ok(()),
                        Ok(guard) if guard.epoch > new.epoch => Err(self.replaced(guard.epoch)),
                        Ok(guard) => {
                            let reason = format!("the guard {guard:?} is not one that this server wrote");
                            Err(self.fail(&damaged(&name, reason)))
                        }
                        Err(error) if error.kind == ErrorKind::NotFound => Err(self.lost_object(&name)),
                        Err(error) => Err(self.fail(&error)),
                    };
                }
                ErrorKind::NotFound => return Err(self.lost_object(&name)),
                _ if is_refusal(&error) && unknown.is_none() => return Err(error),
                _ => unknown = unknown.or(Some(error)),
            }
        }
        let error = unknown.unwrap_or_else(|| damaged(&name, "no attempt"));
        Err(self.fail(&error))
    }

    /// Returns the error of a log object that does not exist any more.
    fn lost_object(&mut self, name: &str) -> Error {
        match self.storage.read_head() {
            Ok(Some(head)) if head.epoch > self.head.epoch => self.replaced(head.epoch),
            Ok(_) => self.fail(&damaged(name, "the object is missing")),
            Err(error) => self.fail(&error),
        }
    }

    fn replaced(&mut self, epoch: u64) -> Error {
        let failure = self.failure.insert(Failure::Replaced(Replaced { epoch }));
        failure.error("append", &self.storage.name)
    }

    fn fail(&mut self, error: &Error) -> Error {
        let failure = self.failure.insert(Failure::unknown(error));
        failure.error("append", &self.storage.name)
    }

    /// Creates the next log object, and adds it to the head. The following records are appended to
    /// it.
    fn begin_object(&mut self) -> Result<()> {
        if self.head.logs.len() == LOG_OBJECTS_MAX {
            let reason = format!("the log has {LOG_OBJECTS_MAX} objects; write a checkpoint");
            return Err(failure(ErrorKind::NoSpace, "append", &self.storage.name, reason));
        }
        let object = self.create_object()?;
        let mut new = self.head.clone();
        new.version += 1;
        if new.logs.is_empty() {
            new.sequence = self.sequence;
        }
        new.logs.push(object);
        if let Err(error) = self.change_head(new) {
            // If the change was refused, nothing refers to the object.
            self.garbage.extend(self.failure.is_none().then(|| self.storage.object_name(object)));
            return Err(error);
        }
        self.position = HEADER_BYTES;
        Ok(())
    }

    /// Creates a log object of this epoch. After an unknown result the name is not used: the
    /// creation may be performed late, even after another process has removed the object, and would
    /// then make it again with a guard that allows this process to append.
    fn create_object(&mut self) -> Result<LogObject> {
        let mut unknown = None;
        for _ in 0..ATTEMPTS {
            let object = LogObject { epoch: self.head.epoch, number: self.head.next };
            self.head.next += 1;
            let name = self.storage.object_name(object);
            let header = Header {
                id: self.head.id,
                epoch: object.epoch,
                number: object.number,
                sequence: self.sequence,
            };
            let (header, guard) =
                (header.encode(), Guard { epoch: object.epoch, position: HEADER_BYTES }.encode());
            let write = Write::new().create_exclusive().write_at(0, &header).set_attribute(GUARD, &guard);
            match self.storage.objects.write(&name, &write) {
                Ok(()) => return Ok(object),
                Err(error) if is_refusal(&error) => return Err(error),
                Err(error) => {
                    self.garbage.push(name);
                    unknown = Some(error);
                }
            }
        }
        let error =
            unknown.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "append", &self.storage.name));
        Err(self.fail(&error))
    }

    fn change_head(&mut self, new: Head) -> Result<()> {
        match self.storage.change_head(Some(&self.head), &new) {
            Ok(()) => {
                self.head = new;
                Ok(())
            }
            Err(NotChanged::Refused(error)) => Err(error),
            Err(NotChanged::Unknown(error)) => Err(self.fail(&error)),
            Err(NotChanged::Other(found)) if found.epoch > self.head.epoch => Err(self.replaced(found.epoch)),
            Err(NotChanged::Other(_)) => {
                let name = self.storage.head_name();
                Err(self.fail(&damaged(&name, "the head is not one that this server wrote")))
            }
        }
    }

    /// Begins a checkpoint: the records that follow are in a new log object. Returns `None` if no
    /// record was appended since the last checkpoint.
    pub(crate) fn begin_checkpoint(&mut self) -> Result<Option<BegunCheckpoint>> {
        if let Some(failure) = &self.failure {
            return Err(failure.error("checkpoint", &self.storage.name));
        }
        if self.log_bytes == 0 {
            return Ok(None);
        }
        // Always a new object, so that late writes of an earlier attempt have other names.
        self.begin_object()?;
        let checkpoint = Checkpoint { epoch: self.head.epoch, number: self.last().number, pieces: 0 };
        Ok(Some(BegunCheckpoint { checkpoint, sequence: self.sequence, log_bytes: self.log_bytes }))
    }

    /// Publishes a checkpoint whose pieces are all written, and removes the objects that it
    /// replaces.
    pub(crate) fn publish_checkpoint(&mut self, begun: &BegunCheckpoint) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.error("checkpoint", &self.storage.name));
        }
        let mut new = self.head.clone();
        new.version += 1;
        new.sequence = begun.sequence;
        new.checkpoint = Some(begun.checkpoint);
        new.logs.retain(|log| log.number >= begun.checkpoint.number);
        let old = self.head.clone();
        self.change_head(new)?;
        self.log_bytes -= begun.log_bytes;
        let logs = old.logs.iter().filter(|log| log.number < begun.checkpoint.number);
        self.garbage.extend(logs.map(|log| names::log_object(&self.storage.name, log.epoch, log.number)));
        if let Some(checkpoint) = &old.checkpoint {
            self.discard_pieces(checkpoint);
        }
        Ok(())
    }

    /// Adds the pieces of a checkpoint that is not, or no longer, published to the objects that are
    /// to be removed.
    pub(crate) fn discard_pieces(&mut self, checkpoint: &Checkpoint) {
        let piece = |piece| names::piece(&self.storage.name, checkpoint.epoch, checkpoint.number, piece);
        let pieces: Vec<_> = (0..checkpoint.pieces).map(piece).collect();
        self.garbage.extend(pieces);
    }

    /// Returns the objects that are to be removed. The caller removes them with [`remove_all`].
    pub(crate) fn take_garbage(&mut self) -> Vec<String> {
        std::mem::take(&mut self.garbage)
    }

    /// Adds objects whose removal failed to those that are to be removed.
    pub(crate) fn return_garbage(&mut self, names: Vec<String>) {
        self.garbage.extend(names);
    }

    /// Returns whether an object was created in an earlier epoch and is not named by the head. Such
    /// an object is never named again.
    pub(crate) fn is_orphan(&self, object: &str) -> bool {
        let head = &self.head;
        match names::parse(&self.storage.name, object) {
            Some(names::ParsedName::LogObject { epoch, number }) => {
                epoch < head.epoch && !head.logs.contains(&LogObject { epoch, number })
            }
            Some(names::ParsedName::Piece { epoch, number, piece }) => {
                let named = |found: Checkpoint| {
                    (found.epoch, found.number) == (epoch, number) && piece < found.pieces
                };
                epoch < head.epoch && !head.checkpoint.is_some_and(named)
            }
            Some(names::ParsedName::Extent { .. }) | None => false,
        }
    }
}

/// Removes objects, several at the same time. Returns those whose removal failed, and the last
/// error.
pub(crate) fn remove_all(objects: &dyn Objects, names: Vec<String>) -> (Vec<String>, Option<Error>) {
    let (mut failed, mut last) = (Vec::new(), None);
    for part in names.chunks(READS) {
        let started: Vec<_> =
            part.iter().map(|name| (name, objects.start_write(name, &Write::new().remove()))).collect();
        for (name, write) in started {
            match write.wait() {
                Err(error) if error.kind != ErrorKind::NotFound => {
                    failed.push(name.clone());
                    last = Some(error);
                }
                _ => {}
            }
        }
    }
    (failed, last)
}
