//! Boot images of selected files of a tree, without a recording of a program.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell_boot::{BLOCK_BYTES, BLOCKS_MAX, MemoryEstimate, Recorder};
use quell_index::{OnChange, Patterns, Rules};
use quell_mount_spec::{Covered, LockedBootFile, Ownership, Trusted, TrustedUse};
use quell_vfs::{Attributes, Context, Cursor, ErrorKind, Kind, NodeId};

use crate::display::{counted, shown};
use crate::failure::Failure;
use crate::inputs::{InputFile, root_of};
use crate::protocol::answer::RecordingResult;
use crate::protocol::plan::ImagePlan;
use crate::record::image::Recorded;
use crate::resources::load_index;
use crate::trust::check_trust;

/// The conditions that select files of a tree. A file must satisfy all of them.
#[derive(Debug, Clone, Default)]
pub struct FileSelection {
    /// The largest size of a file, in bytes.
    pub size_bytes_max: Option<u64>,
    /// Patterns of names and paths, of which one must match. If there is no pattern, and a largest
    /// size, all names match.
    pub patterns: Vec<String>,
    /// The selection ends with the file that reaches this number of blocks. Further blocks of that
    /// file are left out.
    pub blocks_max: Option<u64>,
}

impl FileSelection {
    /// Returns whether there is no condition. Then no file is selected.
    pub fn is_empty(&self) -> bool {
        self.size_bytes_max.is_none() && self.patterns.is_empty()
    }
}

/// The selected files of an indexed tree.
#[derive(Debug)]
pub struct SelectedFiles {
    covered: Covered,
    owner: Ownership,
    trusted: Trusted,
    files: Vec<NodeId>,
    /// The number of blocks of all files, up to the limit of the selection. A single file can have
    /// up to 2^63 - 1 bytes.
    blocks: u64,
    names_bytes: u64,
}

impl SelectedFiles {
    /// Selects files of the tree of an index, without I/O on the tree. `source`: the location of
    /// the tree, if it is not the directory that the index names. `named`: the directory that the
    /// user named. The index must be an index of this directory.
    pub fn of_index(
        index: &InputFile,
        source: Option<&Path>,
        named: Option<&Path>,
        trusted: Trusted,
        selection: &FileSelection,
    ) -> Result<SelectedFiles, Failure> {
        let image = Arc::new(load_index(&index.file, &index.path)?);
        let root = root_of(&image);
        if let Some(named) = named.filter(|named| *named != root) {
            return Err(Failure::refused(format!(
                "{} is an index of {}, not of {}: index that directory, or name the location of the indexed tree with --source",
                shown(&index.path),
                shown(&root),
                shown(named)
            )));
        }
        let source = source.unwrap_or(&root);
        let covered = quell_mount_spec::cover(image, source, OnChange::Refuse, Rules::default())?;
        let owner = Ownership::from(&covered.source().stat_self()?);
        check_trust(&trusted, &index.file, &index.path, TrustedUse::Index, Some((source, &owner)))?;
        let mut selected =
            SelectedFiles { covered, owner, trusted, files: Vec::new(), blocks: 0, names_bytes: 0 };
        if selection.is_empty() {
            return Ok(selected);
        }
        selected.select(selection)?;
        match selected.files.len() {
            0 => Err(Failure::wrong_input(format!(
                "no file of {} with a size above 0 is selected",
                shown(&selected.covered.source_path)
            ))),
            _ => Ok(selected),
        }
    }

    /// Selects files. The files of a directory are next to one another, because programs often read
    /// them one after another. A file with several names is selected once.
    fn select(&mut self, selection: &FileSelection) -> Result<(), Failure> {
        let patterns = Patterns::new("select", &selection.patterns)?;
        let is_selected = |directory: &[u8], name: &[u8], file: &Attributes| {
            file.kind == Kind::File
                && file.size_bytes > 0
                && selection.size_bytes_max.is_none_or(|most| file.size_bytes <= most)
                && (selection.patterns.is_empty() || patterns.matches(directory, name))
        };
        let blocks_max = selection.blocks_max.unwrap_or(u64::MAX);
        let fs = self.covered.fs.clone();
        let mut linked = HashSet::new();
        let mut directories = vec![(fs.root(), Vec::new())];
        while self.blocks < blocks_max
            && let Some((directory, path)) = directories.pop()
        {
            let mut below = Vec::new();
            let listed = fs.list(&Context::OWN, directory, Cursor::START, &mut |entry| {
                let attributes = entry.attributes.expect("a read-only tree lists all attributes");
                if attributes.kind == Kind::Dir {
                    let path = [&path[..], entry.name].join(&b"/"[..usize::from(!path.is_empty())]);
                    below.push((entry.node, path));
                } else if is_selected(&path, entry.name, &attributes)
                    && (attributes.nlink == 1 || linked.insert(entry.node))
                {
                    self.files.push(entry.node);
                    let blocks = attributes.size_bytes.div_ceil(BLOCK_BYTES as u64);
                    self.blocks = self.blocks.saturating_add(blocks).min(blocks_max);
                    self.names_bytes += (path.len() + 1 + entry.name.len()) as u64;
                }
                self.blocks < blocks_max
            });
            match listed {
                // The content of such a directory is not in the index.
                Err(e) if e.kind == ErrorKind::PermissionDenied && !path.is_empty() => {}
                other => other?,
            }
            directories.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Returns the number of selected files.
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Returns the size of the blocks of the files, in bytes.
    pub fn blocks_bytes(&self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// Returns the largest amount of memory that serving the files takes.
    pub fn memory(&self) -> MemoryEstimate {
        MemoryEstimate::of_files(self.files(), self.blocks, self.names_bytes)
    }

    /// Reads the files and writes the image. `interruption` is called when the lock of the image is
    /// held, and returns a flag that ends the work. `print` gets messages for the user.
    pub fn write_image(
        self,
        plan: &ImagePlan,
        interruption: &dyn Fn() -> Arc<AtomicBool>,
        print: &(dyn Fn(&str) + Sync),
    ) -> Result<RecordingResult, Failure> {
        let source = &self.covered.source_path;
        if plan.output.parent().is_some_and(|parent| parent.starts_with(source)) {
            return Err(Failure::refused(format!(
                "{} lies inside the tree, which writing it would change: name a file outside of the tree with -o",
                shown(&plan.output)
            )));
        }
        if self.blocks > BLOCKS_MAX {
            return Err(Failure::wrong_input(format!(
                "{} have {} blocks, and an image can have {BLOCKS_MAX}: select fewer with --small or --pattern, or set --budget",
                counted(self.files(), "file", "files"),
                self.blocks
            )));
        }
        LockedBootFile::check(&plan.output, plan.force)?;
        let subject = self.covered.subject();
        let SelectedFiles { covered, owner, trusted, files, blocks, .. } = self;
        let fs = covered.fs.clone();
        let recorder = Recorder::of_files(&*fs, &files, blocks)?;
        Recorded { recorder, fs, subject, trusted, owner }.write_image(plan, interruption, print)
    }
}
