//! The objects of a pool of a Ceph cluster.

use std::ffi::{CString, c_char};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_vfs::{Error, ErrorKind, Result, errno};

use crate::librados::{Connection, Context, LIBRARY, OpenFailure, PACKAGE, Started, StartedRead};
use crate::objects::{
    ATTRIBUTE_BYTES_MAX, NAME_BYTES_MAX, Objects, PendingRead, PendingWrite, Ready, TRANSFER_BYTES_MAX,
    Write, failure,
};

/// The options with which a pool is opened.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The configuration of the cluster. `None` is the file that `$CEPH_CONF` names, otherwise
    /// `/etc/ceph/ceph.conf`.
    pub configuration: Option<PathBuf>,
    /// The name of the client, which the keyring of the configuration contains.
    pub client: String,
    /// The time limit of an operation, at least one second. After it the operation fails with
    /// `TimedOut`.
    pub operation_timeout: Duration,
    /// The time limit of the connection to the cluster's monitors, at least one second.
    pub connect_timeout: Duration,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            configuration: None,
            client: "client.admin".to_owned(),
            operation_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// A namespace of a pool: the objects in it are independent of those in other namespaces.
///
/// The value owns a connection to the cluster. librados starts about ten threads for it, and a
/// child process after fork(2) must not use it.
pub struct Pool {
    context: Arc<Context>,
    address: String,
    ends_lists: AtomicBool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.address).finish()
    }
}

/// Returns the pool and the namespace of an address `rados://POOL[/NAMESPACE]`.
fn parse(address: &str) -> Option<(&str, &str)> {
    let rest = address.strip_prefix("rados://")?;
    let (pool, namespace) = match rest.split_once('/') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (rest, ""),
    };
    let valid = |text: &str| text.bytes().all(|byte| byte > b' ' && byte != b'/' && byte != 127);
    (!pool.is_empty() && valid(pool) && valid(namespace)).then_some((pool, namespace))
}

/// Converts an error number of librados to an error.
fn error(errno: i32, operation: &'static str, subject: &str) -> Error {
    /// `EBLOCKLISTED`: an administrator or another client has excluded this client from the
    /// cluster.
    const ESHUTDOWN: i32 = 108;
    let cause = std::io::Error::from_raw_os_error(errno);
    match errno {
        errno::EPERM => Error {
            source: Some(Box::new(cause)),
            ..Error::new(ErrorKind::PermissionDenied, operation, subject)
        },
        ESHUTDOWN => failure(
            ErrorKind::Unavailable,
            operation,
            subject,
            "the cluster refuses this client: it is on the block list (ceph osd blocklist ls)",
        ),
        _ => Error::from_io(cause, operation, subject),
    }
}

impl Pool {
    /// Connects to a cluster and opens a pool, given as `rados://POOL[/NAMESPACE]`. The pool must
    /// exist; a namespace needs no creation.
    ///
    /// # Errors
    /// `InvalidInput` if the address has another form. `Unsupported` if librados is not installed;
    /// the error names its package. `NotFound` if there is no such pool or configuration.
    /// `TimedOut` if the monitors did not answer, `PermissionDenied` if they refused the client.
    pub fn open(address: &str, options: &PoolOptions) -> Result<Pool> {
        let invalid =
            |reason: &str| failure(ErrorKind::InvalidInput, "open", address, format!("{address}: {reason}"));
        let (pool, namespace) = parse(address)
            .ok_or_else(|| invalid("the address of a pool is rados://POOL or rados://POOL/NAMESPACE"))?;
        let text = |text: &[u8]| CString::new(text).map_err(|_| invalid("a name contains a zero byte"));
        let seconds = |limit: Duration| text(limit.as_secs().max(1).to_string().as_bytes());
        let configuration =
            options.configuration.as_ref().map(|path| text(path.as_os_str().as_bytes())).transpose()?;
        let set = [
            (c"rados_osd_op_timeout", seconds(options.operation_timeout)?),
            (c"rados_mon_op_timeout", seconds(options.operation_timeout)?),
            (c"client_mount_timeout", seconds(options.connect_timeout)?),
            // Without this, librados creates a socket for inspection.
            (c"admin_socket", CString::default()),
        ];
        let connection = Connection {
            configuration: configuration.as_deref(),
            client: &text(options.client.as_bytes())?,
            options: &set,
            pool: &text(pool.as_bytes())?,
            namespace: &text(namespace.as_bytes())?,
        };
        let context = Context::open(&connection).map_err(|cause| match cause {
            OpenFailure::Library(cause) => failure(
                ErrorKind::Unsupported,
                "open",
                address,
                match std::error::Error::source(&cause) {
                    Some(detail) => {
                        format!("cannot load {LIBRARY}; install the package {PACKAGE}: {detail}")
                    }
                    None => format!("cannot load {LIBRARY}; install the package {PACKAGE}: {cause}"),
                },
            ),
            OpenFailure::Step(step, errno) => {
                let cause = error(errno, "open", address);
                failure(
                    cause.kind,
                    "open",
                    address,
                    format!("cannot {step}: {}", std::io::Error::from_raw_os_error(errno)),
                )
            }
        })?;
        Ok(Pool { context, address: address.to_owned(), ends_lists: AtomicBool::new(false) })
    }

    /// Returns the address that the pool was opened with.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends calls of [`list`](Objects::list) in progress, and later ones, with `Interrupted`.
    pub fn end_lists(&self) {
        self.ends_lists.store(true, Ordering::Relaxed);
    }
}

/// Returns the name of an object as a text for librados, or `InvalidInput`.
fn name(object: &str, operation: &'static str) -> Result<CString> {
    let refuse = |reason| failure(ErrorKind::InvalidInput, operation, object, reason);
    if object.is_empty() || object.len() > NAME_BYTES_MAX {
        let reason =
            format!("an object's name of {} bytes; the limits are 1 and {NAME_BYTES_MAX}", object.len());
        return Err(refuse(reason));
    }
    CString::new(object).map_err(|_| refuse("an object's name with a zero byte".to_owned()))
}

fn too_large(operation: &'static str, object: &str) -> Error {
    let reason =
        format!("more than {TRANSFER_BYTES_MAX} bytes, or an attribute of more than {ATTRIBUTE_BYTES_MAX}");
    failure(ErrorKind::InvalidInput, operation, object, reason)
}

struct OwnWrite {
    started: Started,
    object: String,
}

impl PendingWrite for OwnWrite {
    fn wait(self: Box<Self>) -> Result<()> {
        self.started.wait().map(drop).map_err(|errno| error(errno, "write", &self.object))
    }
}

struct OwnRead {
    started: StartedRead,
    object: String,
}

impl PendingRead for OwnRead {
    fn wait(self: Box<Self>) -> Result<Vec<u8>> {
        let OwnRead { started, object } = *self;
        started.wait().map_err(|errno| error(errno, "read", &object))
    }
}

impl Objects for Pool {
    fn start_write(&self, object: &str, write: &Write<'_>) -> Box<dyn PendingWrite> {
        let start = || {
            let name = name(object, "write")?;
            if !write.is_within_limits() {
                return Err(too_large("write", object));
            }
            self.context.start_write(&name, write).map_err(|errno| error(errno, "write", object))
        };
        match start() {
            Ok(started) => Box::new(OwnWrite { started, object: object.to_owned() }),
            Err(error) => Box::new(Ready(Err(error))),
        }
    }

    fn start_read(&self, object: &str, offset: u64, length: usize) -> Box<dyn PendingRead> {
        let start = || {
            let name = name(object, "read")?;
            if length > TRANSFER_BYTES_MAX {
                return Err(too_large("read", object));
            }
            self.context.start_read(&name, offset, length).map_err(|errno| error(errno, "read", object))
        };
        match start() {
            Ok(started) => Box::new(OwnRead { started, object: object.to_owned() }),
            Err(error) => Box::new(Ready(Err(error))),
        }
    }

    fn size(&self, object: &str) -> Result<u64> {
        self.context.size(&name(object, "stat")?).map_err(|errno| error(errno, "stat", object))
    }

    fn attribute(&self, object: &str, attribute: &str) -> Result<Option<Vec<u8>>> {
        let attribute = name(attribute, "read attribute")?;
        match self.context.attribute(&name(object, "read attribute")?, &attribute, ATTRIBUTE_BYTES_MAX) {
            Ok(value) => Ok(Some(value)),
            Err(errno::ENODATA) => Ok(None),
            Err(errno::ERANGE) => Err(failure(
                ErrorKind::Damaged,
                "read attribute",
                object,
                format!("the value is longer than {ATTRIBUTE_BYTES_MAX} bytes"),
            )),
            Err(errno) => Err(error(errno, "read attribute", object)),
        }
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str) -> bool) -> Result<()> {
        let is_ended = || self.ends_lists.load(Ordering::Relaxed);
        let mut visit_matching = |name: &[u8]| match std::str::from_utf8(name) {
            _ if is_ended() => false,
            Ok(name) if name.starts_with(prefix) => visit(name),
            _ => true,
        };
        self.context.list(&mut visit_matching).map_err(|errno| error(errno, "list", &self.address))?;
        match is_ended() {
            true => Err(Error::new(ErrorKind::Interrupted, "list", &self.address)),
            false => Ok(()),
        }
    }
}

const _: () = assert!(size_of::<c_char>() == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        assert_eq!(parse("rados://data"), Some(("data", "")));
        assert_eq!(parse("rados://data/a.b"), Some(("data", "a.b")));
        for refused in
            ["data", "rados://", "rados:///a", "rados://a/", "rados://a/b/c", "rados://a b", "rados://a\0"]
        {
            assert_eq!(parse(refused), None, "{refused}");
        }
    }

    #[test]
    fn an_address_of_another_form_is_refused_with_the_form() {
        let refused = Pool::open("pool", &PoolOptions::default()).expect_err("not an address");
        assert_eq!(refused.kind, ErrorKind::InvalidInput);
        assert!(refused.to_string().contains("rados://POOL"), "{refused}");
    }
}
