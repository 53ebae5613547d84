//! What `run` and `mount` ask of the process that will serve the view, and what that process answers.
//! Travels as JSON over a socket pair between two processes of one program.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use quell_index::OnChange;
use quell_stack::Trusted;
use serde::{Deserialize, Serialize};

use crate::arguments::{BootArgs, Check, CoverArgs, ImageFormatArg, IndexWay, OnChangeArg, ViewArg};
use crate::failure::Failure;
use crate::inputs::shown;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Where the holder's socket lies, and its name there.
    pub directory: PathBuf,
    pub key: String,
    pub place: Place,
    pub trees: Vec<TreePlan>,
    /// Instead of trees.
    pub disk: Option<DiskPlan>,
    /// Instead of trees.
    pub log: Option<LogPlan>,
    /// Boot images, each for the tree whose index it belongs to.
    pub boots: Vec<PathBuf>,
    /// Files named here that the creator has opened; their descriptors come with the plan, in this order, after that of the lock.
    pub opened: Vec<PathBuf>,
    /// Memory that boot images may take together, if the user said so.
    pub budget_mib: Option<u64>,
    pub recording: Option<RecordingPlan>,
    pub view: ViewArg,
    pub check: Check,
    /// Looks per second while the tree is covered.
    pub recheck: f64,
    pub strict: bool,
    /// Users whose indexes and boot images are used, besides the caller, root and the owner of a tree.
    pub trust_owners: Vec<u32>,
    pub writes: Writes,
    pub on_change: OnChangeArg,
    /// What root asks for, as `--suid` and `--dev`.
    pub suid: bool,
    pub dev: bool,
    pub memory_mib: u64,
    pub threads: u16,
    pub quiet: bool,
    /// The process that waits for the answer; the holder stays at least as long as it does.
    pub creator: i32,
}

/// What the holder of a recorded start does when the last program has gone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordingPlan {
    /// The boot image to write.
    pub output: PathBuf,
    pub merge: bool,
    /// Replace any regular file.
    pub force: bool,
    pub min_runs: u32,
    pub budget_mib: Option<u64>,
    /// A pipe in the runtime directory on which `quell record` waits for a line of `Begun` and one of `Recorded`.
    pub pipe: PathBuf,
    /// What the program is given as its output and its error output, if not ours.
    pub outputs: Option<[PathBuf; 2]>,
}

/// Which processes are recorded.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begun {
    /// Their mount namespace, as /proc/PID/ns/mnt names it.
    pub namespace: PathBuf,
    /// The one in it that is not of the program.
    pub holder: u32,
}

/// What became of a recording.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Recorded {
    pub failure: Option<String>,
    /// Read in this start.
    pub files: u64,
    pub blocks: u64,
    /// In the image.
    pub image_files: u64,
    pub image_contents: u64,
    pub image_bytes: u64,
    pub recordings: u32,
}

/// Where the view is seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// At the trees' own paths, in a namespace of its own.
    Namespace,
    /// At a mount point, by every process.
    Mountpoint { path: PathBuf, allow_other: bool },
}

impl Place {
    pub fn mountpoint(&self) -> Option<PathBuf> {
        match self {
            Place::Mountpoint { path, .. } => Some(path.clone()),
            Place::Namespace => None,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TreePlan {
    pub index: PathBuf,
    pub source: Option<PathBuf>,
    pub at: Option<PathBuf>,
    /// The directory that the user named, without symbolic links: the index must be one of it.
    pub named: Option<PathBuf>,
}

/// A disk image of virtual machines.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskPlan {
    /// As it was named, absolute: the files below are found from there.
    pub path: PathBuf,
    pub format: Option<ImageFormatArg>,
    /// All files that it is made of, itself first, without symbolic links; and what tells that they are the same still.
    pub files: Vec<PathBuf>,
    pub state: String,
}

/// A log mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogPlan {
    /// Without symbolic links.
    pub stores: Vec<PathBuf>,
    pub buffer_bytes: usize,
    pub index: IndexWay,
    pub flatten_threshold_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    Refused,
    Scratch,
    Kept(PathBuf),
}

impl Plan {
    pub fn new(place: Place, trees: Vec<TreePlan>, boot: &BootArgs, cover: &CoverArgs, quiet: bool) -> Plan {
        Plan {
            directory: PathBuf::new(),
            key: String::new(),
            place,
            trees,
            disk: None,
            log: None,
            boots: Vec::new(),
            opened: Vec::new(),
            budget_mib: boot.budget,
            recording: None,
            view: cover.view,
            check: cover.check,
            recheck: cover.recheck,
            strict: cover.strict,
            trust_owners: cover.trust_owner.clone(),
            writes: match (&cover.writable, cover.scratch) {
                (Some(directory), _) => Writes::Kept(directory.clone()),
                (None, true) => Writes::Scratch,
                (None, false) => Writes::Refused,
            },
            on_change: cover.on_change,
            suid: cover.suid,
            dev: cover.dev,
            memory_mib: cover.memory,
            threads: cover.threads,
            quiet,
            creator: std::process::id() as i32,
        }
    }

    /// Names the writable layer by a path without symbolic links. It need not exist yet.
    pub fn resolve_writable(&mut self) -> Result<(), Failure> {
        let Writes::Kept(directory) = &mut self.writes else { return Ok(()) };
        let wrong = |e: &dyn std::fmt::Display| Failure::wrong_input(format!("{}: {e}", shown(&*directory)));
        let named = std::path::absolute(&*directory).map_err(|e| wrong(&e))?;
        let existing = named.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(&named);
        let missing = named.strip_prefix(existing).unwrap_or(Path::new(""));
        if missing.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(wrong(&"it does not exist"));
        }
        let existing = existing.canonicalize().map_err(|e| wrong(&e))?;
        *directory = existing.join(missing).components().collect();
        Ok(())
    }

    /// Whose files are used.
    pub fn trusted(&self) -> Trusted {
        Trusted::by_caller(&self.trust_owners)
    }

    /// What the index layer does when it opens a file that changed.
    pub fn layer_on_change(&self) -> OnChange {
        match self.on_change {
            OnChangeArg::Refuse => OnChange::Refuse,
            OnChangeArg::Serve => OnChange::Serve,
            OnChangeArg::Ignore => OnChange::Ignore,
        }
    }
}

/// A block in memory is of the file as it was indexed; beside blocks of the file as it is now it would make a file that never
/// was.
pub fn refuse_mixtures(boot: &BootArgs, cover: &CoverArgs) -> Result<(), Failure> {
    if boot.boot.is_empty() || cover.on_change == OnChangeArg::Refuse {
        return Ok(());
    }
    Err(Failure::wrong_input(
        "a boot image is of files as they were indexed: it goes with --on-change refuse alone",
    ))
}

/// `--suid` and `--dev` are for root, and for trees.
pub fn refuse_powers(cover: &CoverArgs, disk: bool) -> Result<(), Failure> {
    if !cover.suid && !cover.dev {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::wrong_input("--suid and --dev are for root"));
    }
    if disk {
        return Err(Failure::wrong_input("--suid and --dev go with an index, not with a disk image"));
    }
    Ok(())
}

/// The holder's answer, one line, once the view is there or cannot be.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Why nothing is covered; the reasons were printed.
    pub refused: Option<Refusal>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub code: u8,
    pub message: String,
    /// No program is run on the original directory.
    pub is_final: bool,
}

impl From<&Failure> for Refusal {
    fn from(failure: &Failure) -> Refusal {
        Refusal { code: failure.code(), message: failure.to_string(), is_final: failure.is_final() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let failure = Failure::of_code(refusal.code, refusal.message);
        if refusal.is_final { failure.and_final() } else { failure }
    }
}

/// What a holder tells those who ask.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub pid: u32,
    pub mountpoint: Option<PathBuf>,
    pub trees: Vec<TreeReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogReport>,
    /// The file with the messages of a mount's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<PathBuf>,
}

/// Of a log mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct LogReport {
    pub path: PathBuf,
    pub stores: Vec<PathBuf>,
    pub buffer_bytes: u64,
    pub index: IndexWay,
    pub counters: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct TreeReport {
    pub index: PathBuf,
    pub generation: String,
    /// Where the view is.
    pub path: PathBuf,
    pub source: PathBuf,
    pub view: String,
    /// Why this view and none before it.
    pub reason: String,
    pub entries: u64,
    /// Looks at the tree's freshness since it is covered, and the changes they found.
    pub looks: u64,
    pub changes: u64,
    /// What the view counts; the kernel's own views count nothing.
    pub counters: Option<BTreeMap<String, u64>>,
}
