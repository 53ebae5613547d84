//! The lease of the server of a store: only the server with a valid lease answers requests.
//!
//! The server writes a record to an object, and renews it. Another server that takes the store over
//! writes a record with a larger term, which ends the renewals of the first one, and answers
//! nothing before the lease of the first one has ended by its own clock.
//! docs/decisions/0034-servers-in-rados.md states why this is safe, and for which clocks.
//!
//! This module reads no clock: callers pass times of a monotonic clock of their machine.

use std::sync::Arc;
use std::time::Duration;

use quell_vfs::{Error, ErrorKind, Result};

use crate::failure::Replaced;
use crate::format::names;
use crate::format::server::{RECORD_BYTES, ServerRecord, ServerState};
use crate::objects::{Objects, PendingWrite, Write, failure, is_refusal};

const GUARD: &str = "guard";
/// The duration of a read of the record, above which the observation begins again. During such a
/// read the cluster may have performed no operations, hence no renewals either.
const READ_LIMIT: Duration = Duration::from_millis(500);
/// The time, in addition to [`wait_for_end`], after which a server without a renewal is regarded as
/// dead although reads of its record take long.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// Returns the time that another server waits for the end of a lease, by its own clock. It is
/// longer than the lease by a quarter, so that the rates of the clocks may differ: each by less
/// than 11 % from the true one.
pub fn wait_for_end(lease: Duration) -> Duration {
    lease * 5 / 4
}

/// Reads the record of the server of a store, or `None` if there was no server yet.
///
/// # Errors
/// `Damaged` if the object is not a record; the errors of [`Objects`].
pub fn read_server(objects: &dyn Objects, name: &str) -> Result<Option<ServerRecord>> {
    let object = names::server(name);
    match objects.read(&object, 0, RECORD_BYTES + 1) {
        Ok(bytes) => match ServerRecord::decode(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(fault) => Err(failure(ErrorKind::Damaged, "read", &object, format!("{object}: {fault}"))),
        },
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The result of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// There is no server, or its lease has ended.
    Free,
    /// It is not yet known whether the server is alive.
    Unknown,
    /// The server has renewed its lease since the first observation.
    Alive,
}

/// Observes the record of a server, until its lease has certainly ended.
#[derive(Debug, Default)]
pub struct Observer {
    /// The record, the end of the first read that returned it, and the end of the last read that
    /// took longer than [`READ_LIMIT`], or of the first one.
    last: Option<(ServerRecord, Duration, Duration)>,
}

impl Observer {
    /// Returns an observer that has observed nothing.
    pub fn new() -> Observer {
        Observer::default()
    }

    /// Takes the result of a read that began and ended at these times.
    pub fn observe(&mut self, found: Option<ServerRecord>, begun: Duration, ended: Duration) -> Observed {
        let Some(found) = found else { return Observed::Free };
        if found.state == ServerState::Ended {
            return Observed::Free;
        }
        match &mut self.last {
            Some((record, first, silent_since)) if *record == found => {
                // A cluster that is slow delays renewals also: the server may be alive.
                if ended.saturating_sub(begun) > READ_LIMIT {
                    *silent_since = ended;
                }
                let (wait, silent) = (wait_for_end(found.lease), begun.saturating_sub(*silent_since));
                let is_dead =
                    silent >= wait.max(READ_LIMIT) || begun.saturating_sub(*first) >= wait + DEAD_AFTER;
                if is_dead { Observed::Free } else { Observed::Unknown }
            }
            Some(last) => {
                *last = (found, ended, ended);
                Observed::Alive
            }
            None => {
                self.last = Some((found, ended, ended));
                Observed::Unknown
            }
        }
    }
}

/// The lease of this server.
pub struct Lease {
    objects: Arc<dyn Objects>,
    object: String,
    /// The record that was written last.
    record: ServerRecord,
    valid_from: Duration,
    valid_until: Duration,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("record", &self.record).finish_non_exhaustive()
    }
}

/// A renewal in progress.
pub struct Renewal {
    begun: Duration,
    record: ServerRecord,
    pending: Box<dyn PendingWrite>,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewal").field("record", &self.record).finish_non_exhaustive()
    }
}

fn write_of<'a>(old: Option<&'a [u8]>, content: &'a [u8], guard: &'a [u8]) -> Write<'a> {
    let first = match old {
        Some(old) => Write::new().compare_attribute(GUARD, old),
        None => Write::new().create_exclusive(),
    };
    first.write_full(content).set_attribute(GUARD, guard)
}

impl Lease {
    /// Takes the lease after the record `found`, whose server cannot renew its lease any more from
    /// then on. `is_free` states whether an [`Observer`] has found that this server is not alive;
    /// otherwise the new lease is not valid before the old one has ended. `owner` is a random
    /// number. `now` is called before and after the write.
    ///
    /// # Errors
    /// `Busy` if another server has renewed or taken the lease since the record was read. The
    /// errors of [`Objects`], after which it is not known whether the lease was taken.
    pub fn take(
        objects: Arc<dyn Objects>,
        name: &str,
        found: Option<&ServerRecord>,
        is_free: bool,
        (owner, lease): ([u8; 16], Duration),
        now: &dyn Fn() -> Duration,
    ) -> Result<Lease> {
        let object = names::server(name);
        let record = ServerRecord {
            term: found.map_or(0, |found| found.term).saturating_add(1),
            renewal: 0,
            owner,
            lease,
            state: ServerState::Starting,
            is_encrypted: false,
            address: String::new(),
        };
        let begun = now();
        let old = found.map(ServerRecord::guard);
        let (content, guard) = (record.encode(), record.guard());
        let write = write_of(old.as_ref().map(|old| &old[..]), &content, &guard);
        let written = objects.write(&object, &write).or_else(|error| {
            // The write was performed if the object has the random number of this process.
            let is_unknown = !is_refusal(&error);
            let is_lost = matches!(error.kind, ErrorKind::Conflict | ErrorKind::Exists);
            match read_server(&*objects, name)? {
                Some(current) if current == record => Ok(()),
                _ if is_lost => {
                    let reason = "another server has taken or renewed its lease";
                    Err(failure(ErrorKind::Busy, "take the lease", &object, reason))
                }
                _ if is_unknown => Err(Error { operation: "take the lease", ..error }),
                _ => Err(error),
            }
        });
        written?;
        let valid_from = match found {
            Some(found) if !is_free => now() + wait_for_end(found.lease),
            _ => begun,
        };
        Ok(Lease { objects, object, record, valid_from, valid_until: begun + lease })
    }

    /// Returns the number of this server.
    pub fn term(&self) -> u64 {
        self.record.term
    }

    /// Returns the times between which this server may answer requests. A renewal can delay the
    /// end.
    pub fn validity(&self) -> (Duration, Duration) {
        (self.valid_from, self.valid_until)
    }

    /// Begins a renewal, with a new state and address. Only one may be in progress.
    pub fn begin(&self, now: Duration, state: ServerState, address: &str, is_encrypted: bool) -> Renewal {
        let record = ServerRecord {
            renewal: self.record.renewal + 1,
            state,
            is_encrypted,
            address: address.to_owned(),
            ..self.record.clone()
        };
        let (old, content, guard) = (self.record.guard(), record.encode(), record.guard());
        let pending = self.objects.start_write(&self.object, &write_of(Some(&old), &content, &guard));
        Renewal { begun: now, record, pending }
    }

    /// Waits for the end of a renewal. After an error other than the first two, the next call of
    /// [`begin`](Lease::begin) is another attempt.
    ///
    /// # Errors
    /// `Unavailable` with [`Replaced`] if another server has taken the lease. `Damaged` if the
    /// object is missing, or has another content. The errors of [`Objects`].
    pub fn finish(&mut self, renewal: Renewal) -> Result<()> {
        let Renewal { begun, record, pending } = renewal;
        match pending.wait() {
            Ok(()) => {}
            Err(error) if matches!(error.kind, ErrorKind::Conflict | ErrorKind::NotFound) => {
                self.take_earlier()?;
                return Err(Error::new(ErrorKind::TimedOut, "renew the lease", &self.object));
            }
            Err(error) => return Err(error),
        }
        self.valid_until = begun + record.lease;
        self.record = record;
        Ok(())
    }

    /// Finds out why the object does not have the record that this server wrote last: it may have
    /// the record of a renewal whose result was lost. The lease does not become longer.
    fn take_earlier(&mut self) -> Result<()> {
        let name = self.object.strip_suffix(".server").unwrap_or(&self.object);
        match read_server(&*self.objects, name)? {
            Some(found) if found.owner == self.record.owner && found.term == self.record.term => {
                self.record = found;
                Ok(())
            }
            Some(found) if found.term > self.record.term => {
                let source = Some(Box::new(Replaced { epoch: found.term }) as _);
                Err(Error { source, ..Error::new(ErrorKind::Unavailable, "renew the lease", &self.object) })
            }
            _ => {
                let reason = "the object is missing, or has a record that no server wrote";
                Err(failure(ErrorKind::Damaged, "renew the lease", &self.object, reason))
            }
        }
    }
}
