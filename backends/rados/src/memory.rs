//! Objects in memory, for tests and simulations. The caller decides which results are lost and
//! which writes are delayed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_vfs::{Error, ErrorKind, Result};

use crate::objects::{Objects, PendingRead, PendingWrite, Ready, Step, Write};

/// The effect of a fault on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// The operation is performed.
    Performed,
    /// The operation is performed, and its result is lost: `TimedOut`.
    ResultLost,
    /// The operation is not performed now, and its result is lost. A write is performed when
    /// [`MemoryObjects::perform_late`] is called, if it ever is.
    Late,
    /// The operation is refused with this kind of error.
    Refused(ErrorKind),
    /// The operation is performed without its comparisons: a planted fault, which a test must find.
    Unguarded,
}

/// A function that decides the effect of an operation of a client. Its arguments are the operation
/// (`write`, `read`, `stat`, `read attribute` or `list`) and the name of the object, or the prefix
/// of a `list`.
pub type Faults = Box<dyn FnMut(&str, &str) -> FaultEffect + Send>;

/// Objects in memory. A clone has the same objects.
#[derive(Clone)]
pub struct MemoryObjects {
    shared: Arc<Mutex<Shared>>,
    faults: Arc<Mutex<Option<Faults>>>,
}

#[derive(Default)]
struct Shared {
    objects: BTreeMap<String, Object>,
    late: Vec<(String, Vec<OwnedStep>)>,
}

/// An object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// The content of the object.
    pub content: Vec<u8>,
    /// The attributes of the object.
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// A [`Step`] that is performed later.
enum OwnedStep {
    CreateExclusive,
    CompareAttribute(String, Vec<u8>),
    SetAttribute(String, Vec<u8>),
    WriteAt(u64, Vec<u8>),
    WriteFull(Vec<u8>),
    Append(Vec<u8>),
    Remove,
}

impl OwnedStep {
    fn new(step: &Step<'_>) -> OwnedStep {
        match *step {
            Step::CreateExclusive => OwnedStep::CreateExclusive,
            Step::CompareAttribute { name, value } => {
                OwnedStep::CompareAttribute(name.to_owned(), value.to_vec())
            }
            Step::SetAttribute { name, value } => OwnedStep::SetAttribute(name.to_owned(), value.to_vec()),
            Step::WriteAt { offset, data } => OwnedStep::WriteAt(offset, data.to_vec()),
            Step::WriteFull(data) => OwnedStep::WriteFull(data.to_vec()),
            Step::Append(data) => OwnedStep::Append(data.to_vec()),
            Step::Remove => OwnedStep::Remove,
        }
    }

    fn borrow(&self) -> Step<'_> {
        match self {
            OwnedStep::CreateExclusive => Step::CreateExclusive,
            OwnedStep::CompareAttribute(name, value) => Step::CompareAttribute { name, value },
            OwnedStep::SetAttribute(name, value) => Step::SetAttribute { name, value },
            OwnedStep::WriteAt(offset, data) => Step::WriteAt { offset: *offset, data },
            OwnedStep::WriteFull(data) => Step::WriteFull(data),
            OwnedStep::Append(data) => Step::Append(data),
            OwnedStep::Remove => Step::Remove,
        }
    }
}

/// Performs the steps on a copy of the object. Returns the new state of the object.
fn perform(before: Option<&Object>, steps: &[Step<'_>]) -> Result<Option<Object>, ErrorKind> {
    let mut object = before.cloned();
    for step in steps {
        match *step {
            Step::CreateExclusive if object.is_some() => return Err(ErrorKind::Exists),
            Step::CreateExclusive => object = Some(Object::default()),
            Step::CompareAttribute { name, value } => {
                let object = object.as_ref().ok_or(ErrorKind::NotFound)?;
                if object.attributes.get(name).map_or(&[][..], Vec::as_slice) != value {
                    return Err(ErrorKind::Conflict);
                }
            }
            Step::SetAttribute { name, value } => {
                object.get_or_insert_default().attributes.insert(name.to_owned(), value.to_vec());
            }
            Step::WriteAt { offset, data } => {
                let content = &mut object.get_or_insert_default().content;
                let start = usize::try_from(offset).map_err(|_| ErrorKind::InvalidInput)?;
                let end = start.checked_add(data.len()).ok_or(ErrorKind::InvalidInput)?;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[start..end].copy_from_slice(data);
            }
            Step::WriteFull(data) => object.get_or_insert_default().content = data.to_vec(),
            Step::Append(data) => object.get_or_insert_default().content.extend_from_slice(data),
            Step::Remove if object.is_none() => return Err(ErrorKind::NotFound),
            Step::Remove => object = None,
        }
    }
    Ok(object)
}

impl Shared {
    fn write(&mut self, name: &str, steps: &[Step<'_>]) -> Result<(), ErrorKind> {
        match perform(self.objects.get(name), steps)? {
            Some(object) => self.objects.insert(name.to_owned(), object),
            None => self.objects.remove(name),
        };
        Ok(())
    }
}

impl Default for MemoryObjects {
    fn default() -> MemoryObjects {
        MemoryObjects::new()
    }
}

impl fmt::Debug for MemoryObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.shared().objects.keys()).finish()
    }
}

impl MemoryObjects {
    /// Returns an empty set of objects, which performs all operations.
    pub fn new() -> MemoryObjects {
        MemoryObjects { shared: Arc::default(), faults: Arc::default() }
    }

    /// Returns another client of the same objects, for whose operations `faults` decides.
    pub fn with_faults(&self, faults: Faults) -> MemoryObjects {
        MemoryObjects { shared: Arc::clone(&self.shared), faults: Arc::new(Mutex::new(Some(faults))) }
    }

    /// Returns the number of writes that are [`FaultEffect::Late`] and not yet performed.
    pub fn late(&self) -> usize {
        self.shared().late.len()
    }

    /// Performs one of the late writes, or does nothing if `index` is too large. The result is
    /// lost.
    pub fn perform_late(&self, index: usize) {
        let mut shared = self.shared();
        if index < shared.late.len() {
            let (name, steps) = shared.late.remove(index);
            let steps: Vec<_> = steps.iter().map(OwnedStep::borrow).collect();
            let _result_is_lost = shared.write(&name, &steps);
        }
    }

    /// Returns the names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.shared().objects.keys().cloned().collect()
    }

    /// Calls `change` with an object, if it exists, for example to damage it. Returns whether it
    /// exists.
    pub fn change(&self, object: &str, change: impl FnOnce(&mut Object)) -> bool {
        self.shared().objects.get_mut(object).map(change).is_some()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics between two changes that belong together.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn effect(&self, operation: &str, object: &str) -> FaultEffect {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.as_mut().map_or(FaultEffect::Performed, |faults| faults(operation, object))
    }

    /// Calls `read` with the object, unless it is missing or the operation has another effect.
    fn examine<T>(
        &self,
        operation: &'static str,
        object: &str,
        read: impl FnOnce(&Object) -> T,
    ) -> Result<T> {
        let error = |kind| Error::new(kind, operation, object);
        match self.effect(operation, object) {
            FaultEffect::Performed | FaultEffect::Unguarded => {
                let shared = self.shared();
                shared.objects.get(object).map(read).ok_or_else(|| error(ErrorKind::NotFound))
            }
            FaultEffect::ResultLost | FaultEffect::Late => Err(error(ErrorKind::TimedOut)),
            FaultEffect::Refused(kind) => Err(error(kind)),
        }
    }
}

impl Objects for MemoryObjects {
    fn start_write(&self, object: &str, write: &Write<'_>) -> Box<dyn PendingWrite> {
        let error = |kind| Error::new(kind, "write", object);
        let effect = self.effect("write", object);
        let mut shared = self.shared();
        let result = match effect {
            _ if !write.is_within_limits() => Err(error(ErrorKind::InvalidInput)),
            FaultEffect::Performed => shared.write(object, write.steps()).map_err(error),
            FaultEffect::ResultLost => {
                let _result_is_lost = shared.write(object, write.steps());
                Err(error(ErrorKind::TimedOut))
            }
            FaultEffect::Late => {
                shared.late.push((object.to_owned(), write.steps().iter().map(OwnedStep::new).collect()));
                Err(error(ErrorKind::TimedOut))
            }
            FaultEffect::Refused(kind) => Err(error(kind)),
            FaultEffect::Unguarded => {
                let is_guard = |step: &&Step<'_>| matches!(step, Step::CompareAttribute { .. });
                let steps: Vec<_> = write.steps().iter().filter(|step| !is_guard(step)).copied().collect();
                shared.write(object, &steps).map_err(error)
            }
        };
        Box::new(Ready(result))
    }

    fn start_read(&self, object: &str, offset: u64, length: usize) -> Box<dyn PendingRead> {
        Box::new(Ready(self.examine("read", object, |object| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(object.content.len());
            let end = start.saturating_add(length).min(object.content.len());
            object.content[start..end].to_vec()
        })))
    }

    fn size(&self, object: &str) -> Result<u64> {
        self.examine("stat", object, |object| object.content.len() as u64)
    }

    fn attribute(&self, object: &str, name: &str) -> Result<Option<Vec<u8>>> {
        self.examine("read attribute", object, |object| object.attributes.get(name).cloned())
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str) -> bool) -> Result<()> {
        match self.effect("list", prefix) {
            FaultEffect::Performed | FaultEffect::Unguarded => {}
            FaultEffect::ResultLost | FaultEffect::Late => {
                return Err(Error::new(ErrorKind::TimedOut, "list", prefix));
            }
            FaultEffect::Refused(kind) => return Err(Error::new(kind, "list", prefix)),
        }
        let names = self.names();
        let _all = names.iter().filter(|name| name.starts_with(prefix)).all(|name| visit(name));
        Ok(())
    }
}
