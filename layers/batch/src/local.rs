//! A name space of another process of this node as a file system: the client of the local channel.

use std::path::Path;
use std::sync::Arc;

use quell_batch_service::{PROTOCOL, Reply, Request};
use quell_transport::local::LocalChannel;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::{decode, encode_into};

use crate::file_locks::FileLocks;
use crate::file_system::BatchFs;
use crate::served_names::{ServedNames, Server};
use crate::store_dir::StoreDir;

/// The name of the operation in errors.
const CALL: &str = "call the process of the store";

/// The connection to the process that has the name space.
struct LocalProcess {
    channel: LocalChannel,
    /// The path of the store.
    subject: Vec<u8>,
}

impl Server for LocalProcess {
    fn call(&self, request: &Request) -> Result<Reply> {
        let reply =
            self.channel.call(None, |into| encode_into(request, into), |reply| decode::<Reply>(reply))??;
        match reply {
            Reply::Failed(failure) => Err(failure.into_error(CALL, &self.subject)),
            reply => Ok(reply),
        }
    }

    fn unexpected(&self) -> Error {
        let source = Some("the reply does not belong to the request".into());
        Error { source, ..Error::new(ErrorKind::Damaged, CALL, self.subject.clone()) }
    }

    fn version(&self) -> u64 {
        self.channel.version()
    }
}

/// Connects to the process that serves a name space at `socket` (a
/// [`SharedNames`](crate::SharedNames)), and returns its file system. `store` is the path of the
/// store, for messages; `batch` is the number of the batch, or 0 in the synchronous mode. Each
/// process needs its own connection, also after fork(2).
///
/// # Errors
/// `NotFound` and `Unavailable` if no process serves a name space at `socket`; `PermissionDenied`
/// if the process belongs to another user; the errors of files of the store.
pub fn open_shared_names(socket: &Path, store: &Path, batch: u64) -> Result<BatchFs> {
    let channel = LocalChannel::connect_with(socket, quell_posix::moved)?;
    let subject = store.as_os_str().as_encoded_bytes().to_vec();
    let descriptor = |number| match channel.descriptors().nth(number) {
        Some(found) => found.try_clone_to_owned().map_err(|cause| Error::from_io(cause, CALL, &subject[..])),
        None => Err(Error::new(ErrorKind::Damaged, CALL, &subject[..])),
    };
    let dir = StoreDir::of_descriptor(store, descriptor(0)?)?;
    let locks = FileLocks::new(quell_posix::moved(descriptor(1)?));
    let process = LocalProcess { channel, subject };
    match process.call(&Request::Hello { protocol: PROTOCOL })? {
        Reply::Welcome { .. } => {}
        _ => return Err(process.unexpected()),
    }
    let names = Arc::new(ServedNames::new(process));
    Ok(BatchFs::of_parts(names, dir.data_of(batch)?, Some(locks)))
}
