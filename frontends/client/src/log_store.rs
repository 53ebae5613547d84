//! Log stores, opened by path.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use quell_log::{Choices, Flattened, LogFs};
use quell_vfs::{Context, Result, resolve};

use crate::client::Client;
use crate::file::ClientFile;
use crate::open_options::OpenOptions;
use crate::owned::Owned;

/// Stores opened as one directory tree. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Store {
    client: Client,
    log: Arc<Owned<Arc<LogFs>>>,
}

/// The operations by path that all file systems have.
impl Deref for Store {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Store {
    /// Opens the directories `stores` as one directory tree. The directories must exist; missing
    /// internal files in them are created. All processes must open the tree with the same
    /// directories.
    ///
    /// Flattening in the background (`flattens_later`) is only for mounts. Here a close waits for
    /// it, so that no thread remains that a fork or the end of the process would interrupt.
    pub fn open(stores: &[impl AsRef<Path>], choices: Choices) -> Result<Store> {
        let choices = Choices { flattens_later: false, ..choices };
        Store::of(quell_mount_spec::open_log(stores, choices)?)
    }

    pub(crate) fn of(fs: LogFs) -> Result<Store> {
        let log = Arc::new(fs);
        Ok(Store { client: Client::new(log.clone())?, log: Arc::new(Owned::new(log)) })
    }

    fn log(&self) -> Result<&LogFs> {
        Ok(&**self.log.get()?)
    }

    /// Merges the indexes of the published data of a file into one, which makes later opens of a
    /// file with many writers much faster. Data written afterwards is found through its own index.
    pub fn flatten(&self, path: &[u8]) -> Result<Flattened> {
        let fs = self.log()?;
        fs.flatten(resolve(fs, &Context::OWN, path)?.node())
    }

    /// Does the same as [`flatten`](Self::flatten) with all shares of the file, as one process of
    /// those that have read them with [`read_share`](Self::read_share).
    pub fn flatten_shares(&self, path: &[u8], shares: Vec<Vec<u8>>) -> Result<Flattened> {
        let fs = self.log()?;
        fs.flatten_shares(resolve(fs, &Context::OWN, path)?.node(), shares)
    }

    /// Returns the number of index logs that opening the file reads, and thus the largest useful
    /// number of shares: 0 if no process has published data, and 1 if the file is flattened.
    pub fn index_logs(&self, path: &[u8]) -> Result<usize> {
        let fs = self.log()?;
        fs.index_logs(resolve(fs, &Context::OWN, path)?.node())
    }

    /// Reads share `number` of `shares` of the index of a file, for the processes that open the
    /// file together: each reads one share, all exchange their shares, and each opens the file with
    /// all of them. Errors: `EFBIG` if the share has more than 1 GiB; each process then opens the
    /// file alone.
    pub fn read_share(&self, path: &[u8], number: usize, shares: usize) -> Result<Vec<u8>> {
        let fs = self.log()?;
        fs.read_share(resolve(fs, &Context::OWN, path)?.node(), number, shares)
    }

    /// Opens an existing file for reading, or reading and writing, with the shares of its index in
    /// any order. Data that is in no share is found through the index logs. Errors: `Damaged` if
    /// the bytes are not a share of this file; `InvalidInput` for options that create or truncate.
    pub fn open_with_shares(
        &self,
        path: &[u8],
        options: OpenOptions,
        shares: Vec<Vec<u8>>,
    ) -> Result<ClientFile> {
        let log = self.log()?;
        self.open_existing(path, options, |context, node, mode| {
            log.open_with_shares(context, node, mode, shares)
        })
    }
}
