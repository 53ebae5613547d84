//! The interface to objects, with the operations of RADOS that the logs and stores of this crate
//! use.

use std::fmt;

use quell_vfs::{Error, ErrorKind, Result};

/// Largest number of bytes of one write, and of one read. A cluster refuses writes of more than 90
/// MiB by default (`osd_max_write_size`).
pub const TRANSFER_BYTES_MAX: usize = 64 << 20;
/// Largest length of an object's name, in bytes. A cluster's default limit is 2,048
/// (`osd_max_object_name_len`).
pub const NAME_BYTES_MAX: usize = 1024;
/// Largest length of the value of an attribute, in bytes.
pub const ATTRIBUTE_BYTES_MAX: usize = 4096;

/// A compound operation on one object: its steps are performed in their order, all of them or none.
#[derive(Debug, Clone, Default)]
pub struct Write<'a> {
    steps: Vec<Step<'a>>,
}

/// A step of a [`Write`].
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// Create the object; `Exists` if it exists.
    CreateExclusive,
    /// Continue only if the attribute has this value, otherwise `Conflict`. A missing attribute has
    /// an empty value; a missing object is `NotFound`.
    CompareAttribute {
        /// The name of the attribute.
        name: &'a str,
        /// The value that the attribute must have.
        value: &'a [u8],
    },
    /// Set an attribute. A missing object is created.
    SetAttribute {
        /// The name of the attribute.
        name: &'a str,
        /// The new value of the attribute.
        value: &'a [u8],
    },
    /// Write bytes at an offset. A missing object is created.
    WriteAt {
        /// The offset, in bytes.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Replace the content. A missing object is created.
    WriteFull(&'a [u8]),
    /// Write bytes at the end. A missing object is created.
    Append(&'a [u8]),
    /// Remove the object; `NotFound` if it does not exist.
    Remove,
}

impl<'a> Write<'a> {
    /// Returns an operation without steps.
    pub fn new() -> Write<'a> {
        Write::default()
    }

    /// Adds [`Step::CreateExclusive`].
    pub fn create_exclusive(self) -> Self {
        self.step(Step::CreateExclusive)
    }

    /// Adds [`Step::CompareAttribute`].
    pub fn compare_attribute(self, name: &'a str, value: &'a [u8]) -> Self {
        self.step(Step::CompareAttribute { name, value })
    }

    /// Adds [`Step::SetAttribute`].
    pub fn set_attribute(self, name: &'a str, value: &'a [u8]) -> Self {
        self.step(Step::SetAttribute { name, value })
    }

    /// Adds [`Step::WriteAt`].
    pub fn write_at(self, offset: u64, data: &'a [u8]) -> Self {
        self.step(Step::WriteAt { offset, data })
    }

    /// Adds [`Step::WriteFull`].
    pub fn write_full(self, data: &'a [u8]) -> Self {
        self.step(Step::WriteFull(data))
    }

    /// Adds [`Step::Append`].
    pub fn append(self, data: &'a [u8]) -> Self {
        self.step(Step::Append(data))
    }

    /// Adds [`Step::Remove`].
    pub fn remove(self) -> Self {
        self.step(Step::Remove)
    }

    fn step(mut self, step: Step<'a>) -> Self {
        self.steps.push(step);
        self
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[Step<'a>] {
        &self.steps
    }

    /// Returns whether the data and the attributes are within the limits of this module.
    pub(crate) fn is_within_limits(&self) -> bool {
        let mut data_bytes = 0_usize;
        for step in &self.steps {
            match *step {
                Step::CompareAttribute { value, .. } | Step::SetAttribute { value, .. } => {
                    if value.len() > ATTRIBUTE_BYTES_MAX {
                        return false;
                    }
                }
                Step::WriteAt { data, .. } | Step::WriteFull(data) | Step::Append(data) => {
                    data_bytes = data_bytes.saturating_add(data.len());
                }
                Step::CreateExclusive | Step::Remove => {}
            }
        }
        data_bytes <= TRANSFER_BYTES_MAX
    }
}

/// A write that was started. Dropping it does not stop it; whether it is performed is then not
/// known.
pub trait PendingWrite: Send {
    /// Waits for the result. The time limit of the implementation bounds the wait.
    ///
    /// # Errors
    /// The errors of [`Objects::start_write`].
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A read that was started.
pub trait PendingRead: Send {
    /// Waits for the bytes: fewer than requested only at the end of the object.
    ///
    /// # Errors
    /// The errors of [`Objects::start_read`].
    fn wait(self: Box<Self>) -> Result<Vec<u8>>;
}

/// Named objects: sequences of bytes, with attributes, that are changed by compound operations.
///
/// All methods may be called by several threads at the same time. The writes to one object that one
/// thread starts are performed in the order in which they were started. A read that starts after a
/// write has returned sees the write, in every process.
///
/// **Lost results.** After `TimedOut` and `Unavailable` it is not known whether a write was
/// performed, and it may even be performed later. A caller that must know compares an attribute in
/// the write and changes it in the same write: then the repetition of the write fails with
/// `Conflict` if the first one was performed. If the repetition was performed, the first one can
/// no longer have an effect.
pub trait Objects: Send + Sync {
    /// Starts a compound operation. The bytes are copied before the call returns. All errors are
    /// returned by [`PendingWrite::wait`].
    ///
    /// # Errors
    /// The errors of the steps. `InvalidInput` if a limit of this module is exceeded. `NoSpace` and
    /// `Quota` if the pool is full, `PermissionDenied` if this client may not write: nothing was
    /// changed. `TimedOut` and `Unavailable`: see above.
    fn start_write(&self, object: &str, write: &Write<'_>) -> Box<dyn PendingWrite>;

    /// Starts to read `length` bytes at an offset, in bytes. Several may be in flight.
    ///
    /// # Errors
    /// `NotFound` if the object does not exist, `InvalidInput` if `length` is larger than
    /// [`TRANSFER_BYTES_MAX`], and the errors of the connection.
    fn start_read(&self, object: &str, offset: u64, length: usize) -> Box<dyn PendingRead>;

    /// Returns the size of an object, in bytes.
    ///
    /// # Errors
    /// `NotFound` if the object does not exist, and the errors of the connection.
    fn size(&self, object: &str) -> Result<u64>;

    /// Returns the value of an attribute, or `None` if the object has no such attribute.
    ///
    /// # Errors
    /// `NotFound` if the object does not exist, `Damaged` if the value is longer than
    /// [`ATTRIBUTE_BYTES_MAX`], and the errors of the connection.
    fn attribute(&self, object: &str, name: &str) -> Result<Option<Vec<u8>>>;

    /// Passes the names that begin with `prefix` to `visit`, in no particular order, until `visit`
    /// returns false. An object that is created or removed during the call may be passed or not.
    /// The time is proportional to the number of all objects of the pool, whatever the prefix is.
    ///
    /// # Errors
    /// The errors of the connection; some names may have been passed before.
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str) -> bool) -> Result<()>;

    /// Performs a compound operation.
    ///
    /// # Errors
    /// The errors of [`start_write`](Objects::start_write).
    fn write(&self, object: &str, write: &Write<'_>) -> Result<()> {
        self.start_write(object, write).wait()
    }

    /// Reads up to `length` bytes at an offset: fewer only at the end of the object.
    ///
    /// # Errors
    /// The errors of [`start_read`](Objects::start_read).
    fn read(&self, object: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.start_read(object, offset, length).wait()
    }

    /// Removes an object.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, and the errors of [`start_write`](Objects::start_write).
    fn remove(&self, object: &str) -> Result<()> {
        self.write(object, &Write::new().remove())
    }
}

impl fmt::Debug for dyn Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

/// A result that is known when the operation starts.
pub(crate) struct Ready<T>(pub(crate) Result<T>);

impl PendingWrite for Ready<()> {
    fn wait(self: Box<Self>) -> Result<()> {
        self.0
    }
}

impl PendingRead for Ready<Vec<u8>> {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        self.0
    }
}

/// Returns an error with a reason.
pub(crate) fn failure(
    kind: ErrorKind,
    operation: &'static str,
    object: &str,
    reason: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error { source: Some(reason.into()), ..Error::new(kind, operation, object) }
}

/// Returns whether an error states that a write was not performed and never will be. After any
/// other error it is not known.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnly
            | ErrorKind::InvalidInput
            | ErrorKind::Exists
            | ErrorKind::NoSpace
            | ErrorKind::Quota
            | ErrorKind::Conflict
            | ErrorKind::Unsupported
    )
}
