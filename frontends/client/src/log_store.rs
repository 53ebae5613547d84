//! Log stores, opened by path.

use std::path::Path;

use quell_log::{Choices, Flattened, LogFs};
use quell_vfs::{Context, Result, resolve};

use crate::client::Client;
use crate::file::ClientFile;

/// Stores opened as one directory tree.
pub type Store = Client<LogFs>;

/// An open file of a store.
pub type StoreFile = ClientFile<LogFs>;

impl Client<LogFs> {
    /// Opens the directories `stores` as one directory tree. The directories must exist; missing
    /// internal files in them are created. All processes must open the tree with the same
    /// directories.
    ///
    /// Flattening in the background (`flattens_later`) is only for mounts. Here a close waits for
    /// it, so that no thread remains that a fork or the end of the process would interrupt.
    pub fn open(stores: &[impl AsRef<Path>], choices: Choices) -> Result<Store> {
        let choices = Choices { flattens_later: false, ..choices };
        Client::new(quell_mount_spec::open_log(stores, choices)?)
    }

    /// Merges the indexes of the published data of a file into one, which makes later opens of a
    /// file with many writers much faster. Data written afterwards is found through its own index.
    pub fn flatten(&self, path: &[u8]) -> Result<Flattened> {
        let fs = self.fs()?;
        fs.flatten(resolve(fs, &Context::OWN, path)?.node())
    }
}
