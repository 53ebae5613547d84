//! The indexes that the user named, as files or by their directories. A missing index of a
//! directory is created.

use std::path::{Path, PathBuf};

use crate::arguments::{IndexArgs, XattrsArg};
use crate::commands::index::{self, SummaryOutput};
use crate::failure::Failure;
use crate::inputs::{InputFile, root_of, shown};
use crate::output::errln;

/// An index as the user named it.
#[derive(Debug)]
pub enum RequestedIndex {
    File(InputFile),
    /// The index beside a directory, which has no symbolic links in its path. Both are open.
    OfTree {
        path: PathBuf,
        index: InputFile,
    },
    /// A directory, without symbolic links in its path, and the path of its index.
    Tree {
        path: PathBuf,
        index: PathBuf,
    },
}

impl RequestedIndex {
    /// Opens the file or directory. The index of a directory need not exist.
    pub fn open(path: &Path) -> Result<RequestedIndex, Failure> {
        let named = InputFile::open(path)?;
        if !named.is_dir() {
            return Ok(RequestedIndex::File(named));
        }
        let index = index::default_path(&named.path)?;
        Ok(RequestedIndex::Tree { path: named.path, index })
    }
}

/// Opens the index that was named: a file, or the index beside a directory, which is created if it
/// does not exist. Returns the directory, too.
pub fn index_of(path: &Path, creation: Creation) -> Result<(InputFile, Option<PathBuf>), Failure> {
    Ok(open_indexes(vec![RequestedIndex::open(path)?], creation)?.remove(0))
}

/// The output on standard error while a missing index is created. Standard output belongs to the
/// program that is run. Paths that cannot be read are always reported.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    /// Whether the creation and its result are reported.
    pub is_reported: bool,
    /// Whether no progress is shown on a terminal or in a log.
    pub quiet: bool,
}

/// Opens the indexes in their order, together with the directories that were named, and creates
/// missing ones. Refuses to create an index in one of the indexed trees.
pub fn open_indexes(
    indexes: Vec<RequestedIndex>,
    creation: Creation,
) -> Result<Vec<(InputFile, Option<PathBuf>)>, Failure> {
    let is_missing = |requested: &RequestedIndex| match requested {
        RequestedIndex::File(_) | RequestedIndex::OfTree { .. } => None,
        RequestedIndex::Tree { index, .. } => (!index.exists()).then(|| index.clone()),
    };
    let missing: Vec<PathBuf> = indexes.iter().filter_map(is_missing).collect();
    if !missing.is_empty() {
        let covered = indexes.iter().map(|requested| match requested {
            RequestedIndex::Tree { path, .. } | RequestedIndex::OfTree { path, .. } => Ok(path.clone()),
            RequestedIndex::File(file) => Ok(root_of(&file.index().map_err(Failure::into_final)?)),
        });
        let covered = covered.collect::<Result<Vec<_>, Failure>>()?;
        for index in &missing {
            index::refuse_within(index, &covered)?;
        }
    }
    let open = |requested| match requested {
        RequestedIndex::File(file) => Ok((file, None)),
        RequestedIndex::OfTree { path, index } => Ok((index, Some(path))),
        RequestedIndex::Tree { path, index } => Ok((index_at(&path, &index, creation)?, Some(path))),
    };
    indexes.into_iter().map(open).collect()
}

/// Opens the index of a directory in this file, and creates it if it does not exist.
fn index_at(directory: &Path, file: &Path, creation: Creation) -> Result<InputFile, Failure> {
    if !file.exists() {
        if creation.is_reported {
            errln!("quell: {} has no index yet: creating {}", shown(directory), shown(file));
        }
        index::run(
            IndexArgs {
                path: directory.into(),
                output: Some(file.into()),
                force: false,
                update: None,
                exclude: Vec::new(),
                one_file_system: false,
                cross_mounts: false,
                xattrs: XattrsArg::Auto,
                strict: false,
                threads: 16,
                source: None,
                trust_owner: Vec::new(),
                json: false,
            },
            creation.quiet,
            if creation.is_reported { SummaryOutput::Stderr } else { SummaryOutput::None },
        )?;
    }
    InputFile::open(file)
}
