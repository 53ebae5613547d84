//! Opening a key-value store for the commands that do not use a server.

use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result};

use crate::server_files::find_server;
use crate::store_dir::{OpenKeys, RETRY, StoreDir};

/// Opens the key-value store. While another process has it open, the call waits, at most for
/// `wait`.
///
/// # Errors
/// `Busy` if another process still has it open; the errors of files.
pub(crate) fn open_keys_within(dir: &StoreDir, wait: Duration) -> Result<OpenKeys> {
    let end = Instant::now() + wait;
    loop {
        match dir.open_keys() {
            Err(error) if error.kind == ErrorKind::Busy && Instant::now() < end => std::thread::sleep(RETRY),
            Err(error) if error.kind == ErrorKind::Busy && find_server(dir).is_ok() => {
                let reason = "a server (`quell batch serve`) has it open, and only one process can; end the server (`quell batch serve STORE --stop` on its node) and repeat the command";
                return Err(Error { source: Some(reason.into()), ..error });
            }
            opened => return opened,
        }
    }
}
