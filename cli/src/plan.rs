//! The plan that `run` and `mount` send to the holder, and the holder's answer. Both are JSON, sent
//! over a socket pair between two processes of the same program.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use quell_index::OnChange;
use quell_mount_spec::Trusted;
use serde::{Deserialize, Serialize};

use crate::arguments::{BootArgs, Check, CoverArgs, ImageFormatArg, IndexWay, OnChangeArg, ViewArg};
use crate::failure::Failure;
use crate::inputs::shown;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The directory of the holder's socket; `key` is the socket's name in it.
    pub directory: PathBuf,
    pub key: String,
    pub place: Place,
    pub trees: Vec<TreePlan>,
    /// Used instead of trees.
    pub disk: Option<DiskPlan>,
    /// Used instead of trees.
    pub log: Option<LogPlan>,
    /// Boot images, each of which belongs to the tree with its index.
    pub boots: Vec<PathBuf>,
    /// Files that the creator has opened. Their descriptors are sent with the plan, in this order,
    /// after that of the lock.
    pub opened: Vec<PathBuf>,
    /// Memory limit for all boot images together, if the user gave one.
    pub budget_mib: Option<u64>,
    pub recording: Option<RecordingPlan>,
    pub view: ViewArg,
    pub check: Check,
    /// Number of entries to compare per second while the tree is covered.
    pub recheck: f64,
    pub strict: bool,
    /// Users whose indexes and boot images are used, besides those of the caller, root and the
    /// owner of a tree.
    pub trust_owners: Vec<u32>,
    pub writes: Writes,
    pub on_change: OnChangeArg,
    /// The options `--suid` and `--dev`, for root only.
    pub suid: bool,
    pub dev: bool,
    pub memory_mib: u64,
    pub threads: u16,
    pub quiet: bool,
    /// Whether the view of each tree and the reason for it are printed.
    pub verbose: bool,
    /// The process that waits for the answer; the holder exists at least as long as this process.
    pub creator: i32,
}

/// The recording that the holder writes when the last program has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordingPlan {
    /// The boot image to write.
    pub output: PathBuf,
    pub merge: bool,
    /// Whether to replace any regular file.
    pub force: bool,
    pub min_runs: u32,
    pub budget_mib: Option<u64>,
    /// A FIFO in the runtime directory, from which `quell record` reads a line with `Begun` and a
    /// line with `Recorded`.
    pub pipe: PathBuf,
    /// FIFOs for the program's standard output and standard error, if they are not those of
    /// `quell run`.
    pub outputs: Option<[PathBuf; 2]>,
}

/// The processes that are recorded.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begun {
    /// Their mount namespace, as given by the link /proc/PID/ns/mnt.
    pub namespace: PathBuf,
    /// The process id of the holder, which is in the namespace too and is not recorded.
    pub holder: u32,
}

/// The result of a recording.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Recorded {
    pub failure: Option<String>,
    /// Files and blocks that were read in this start.
    pub files: u64,
    pub blocks: u64,
    /// Files, contents and bytes of the image.
    pub image_files: u64,
    pub image_contents: u64,
    pub image_bytes: u64,
    pub recordings: u32,
}

/// Where the view is mounted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// At the trees' own paths, in a separate mount namespace.
    Namespace,
    /// At a mount point, visible to all processes.
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
    /// The directory that the user named, without symbolic links. The index must be an index of
    /// this directory.
    pub named: Option<PathBuf>,
}

/// A disk image of virtual machines.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskPlan {
    /// The absolute path as the user named it: names in the backing chain are relative to it.
    pub path: PathBuf,
    pub format: Option<ImageFormatArg>,
    /// The files of the backing chain from top to bottom, without symbolic links; `state`
    /// identifies their state.
    pub files: Vec<PathBuf>,
    pub state: String,
}

/// A log mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogPlan {
    /// The stores' paths, without symbolic links.
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
            verbose: cover.verbose,
            creator: std::process::id() as i32,
        }
    }

    /// Resolves symbolic links in the path of the writable layer, which need not exist yet.
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

    /// Returns the users whose files are used.
    pub fn trusted(&self) -> Trusted {
        Trusted::by_caller(&self.trust_owners)
    }

    /// Returns what the index layer does when it opens a changed file.
    pub fn layer_on_change(&self) -> OnChange {
        match self.on_change {
            OnChangeArg::Refuse => OnChange::Refuse,
            OnChangeArg::Serve => OnChange::Serve,
            OnChangeArg::Ignore => OnChange::Ignore,
        }
    }
}

/// Refuses a boot image with `--on-change serve` or `ignore`. A block in memory has the file's
/// content at indexing; together with blocks of a changed file, it would form content that the file
/// never had.
pub fn refuse_mixtures(boot: &BootArgs, cover: &CoverArgs) -> Result<(), Failure> {
    if boot.boot.is_empty() || cover.on_change == OnChangeArg::Refuse {
        return Ok(());
    }
    Err(Failure::wrong_input(
        "a boot image is of files as they were indexed: it goes with --on-change refuse alone",
    ))
}

/// Refuses `--suid` and `--dev` for other users than root, and for disk images.
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

/// The holder's answer, one line, sent when the view exists or cannot be created.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Why nothing is covered. The reasons were printed.
    pub refused: Option<Refusal>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub code: u8,
    pub message: String,
    /// Whether the program must not be run on the original directory.
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

/// The report that a holder sends on request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub pid: u32,
    pub mountpoint: Option<PathBuf>,
    pub trees: Vec<TreeReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogReport>,
    /// The path of the message log of a mount's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<PathBuf>,
}

/// The report of a log mount.
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
    /// The path at which the view is seen.
    pub path: PathBuf,
    pub source: PathBuf,
    pub view: String,
    /// Why this view was chosen, and not one that comes before it.
    pub reason: String,
    pub entries: u64,
    /// Number of entries compared since the tree was covered, and number of changes found.
    pub looks: u64,
    pub changes: u64,
    /// The view's counters; a view that is served by the kernel alone has none.
    pub counters: Option<BTreeMap<String, u64>>,
}
