//! The plan that a command sends to the holder that it starts. It is JSON, sent over a socket pair
//! between two processes of the same program.

use std::path::{Component, Path, PathBuf};

use quell_batch::ProofForm;
use quell_boot::{BLOCK_BYTES, BLOCKS_MAX};
use quell_index::OnChange;
use quell_job::MeetingPoint;
use quell_mount_spec::{DiskFormat, IndexMode, NewFiles, Trusted};
use serde::{Deserialize, Serialize};

use crate::display::shown;
use crate::failure::Failure;
use crate::freshness::stale::StaleReport;

/// A request to a holder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Where the view is mounted.
    pub target: Target,
    /// The trees, the disk image or the stores that the view shows.
    pub source: PlanSource,
    /// For trees and disk images: whether the holder fails, instead of leaving out a tree or a boot
    /// image that cannot be used.
    pub strict: bool,
    /// Users whose indexes and boot images are used, besides those of the caller, root and the
    /// owner of a tree.
    pub trust_owners: Vec<u32>,
    /// Number of threads that serve a FUSE mount.
    pub threads: u16,
    /// Whether only errors are printed.
    pub quiet: bool,
    /// Whether the view of each tree and the reason for it are printed.
    pub verbose: bool,
    /// The time after which the holder ends if a file system does not answer while the view is
    /// created, in seconds; `None` without a limit.
    #[serde(default)]
    pub answer_timeout_s: Option<u64>,
    /// The absolute path of the holder's log file, if the command has one.
    pub log_file: Option<PathBuf>,
}

/// Where the view is mounted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// At the trees' own paths, in a separate mount namespace.
    Namespace,
    /// Nowhere: the processes of the program serve the trees with the preload library, from files
    /// in the memory of the holder.
    Processes,
    /// At a mount point, visible to all processes.
    Mountpoint {
        /// The absolute path of the mount point, without symbolic links.
        path: PathBuf,
        /// Whether other users have access.
        allow_other: bool,
    },
}

impl Target {
    /// Returns the mount point, if there is one.
    pub fn mountpoint(&self) -> Option<&Path> {
        match self {
            Target::Mountpoint { path, .. } => Some(path),
            Target::Namespace | Target::Processes => None,
        }
    }
}

/// The trees, the disk image or the stores that the holder shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanSource {
    /// Indexed trees.
    Trees(TreesPlan),
    /// A disk image.
    Disk(DiskPlan),
    /// The files of log stores.
    Log(LogPlan),
    /// The files of a pool.
    Pool(PoolPlan),
    /// The blobs of a store, as files.
    Blob(BlobPlan),
    /// The files of a store for batches.
    Batch(BatchPlan),
    /// Files that the nodes of a job read once.
    Job(JobPlan),
}

/// Indexed trees.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TreesPlan {
    /// The trees, in the order of the command line.
    pub trees: Vec<TreePlan>,
    /// Whether blocks are served from boot images, or recorded.
    pub boot: BootPlan,
    /// The view that the user selected.
    pub view: ViewChoice,
    /// How thoroughly the trees are compared with their indexes.
    pub check: CheckMode,
    /// Number of entries to compare per second while the tree is covered.
    pub rechecks_per_second: f64,
    /// Where programs may write.
    pub writes: Writes,
    /// The action for a file that changed since it was indexed.
    pub on_change: ChangePolicy,
    /// Whether set-id bits and file capabilities have an effect (`--suid`); for root only.
    pub suid: bool,
    /// Whether device nodes can be opened as devices (`--dev`); for root only.
    pub dev: bool,
    /// The kernel memory limit for the metadata of one tree, in MiB.
    pub memory_mib: u64,
    /// Whether the directories above the trees are copied, so that a path of a tree is looked up
    /// without a request; in a namespace only.
    #[serde(default)]
    pub copies_above: bool,
}

/// One tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TreePlan {
    /// The path of the index file, without symbolic links.
    pub index: PathBuf,
    /// The directory to read and to cover, if it is not the directory that the index names.
    pub source: Option<PathBuf>,
    /// The directory to cover, if it is not the source.
    pub at: Option<PathBuf>,
    /// The directory that the user named, without symbolic links. The index must be an index of
    /// this directory.
    pub named: Option<PathBuf>,
    /// The checks of other nodes of the job, if these have sent the index.
    pub job_check: Option<JobCheck>,
    /// The job holder from which the view gets blocks of the files of this tree, if the nodes of
    /// the job share them.
    #[serde(default)]
    pub shared_blocks: Option<SharedBlocksPlan>,
}

/// The shared blocks of a tree, for the FUSE view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBlocksPlan {
    /// The socket of the job holder in the runtime directory.
    pub socket: PathBuf,
    /// The position of the index in the list of files of the job.
    pub index: u32,
    /// The time, in milliseconds, after which the view stops waiting for a job holder that does not
    /// answer.
    pub limit_ms: u64,
}

/// The comparisons of a tree with its index that one node makes for all nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCheck {
    /// Whether this node makes the comparisons.
    pub is_reader: bool,
    /// The result of the sample, if it was made.
    pub sample: Option<SampleResult>,
    /// The file in the runtime directory with the result of the check of the whole tree. On the
    /// reader it is written by that check, on the other nodes by the job holder.
    pub result: PathBuf,
}

/// The result of the comparison of a sample of a tree with its index. This is a type of its own,
/// because JSON does not distinguish an absent result from a result without a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleResult {
    /// The differences, if there are any.
    pub stale: Option<StaleReport>,
}

/// Files that the nodes of a job read once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobPlan {
    /// The identifier of the job.
    pub job: String,
    /// The meeting point.
    pub meeting: MeetingPoint,
    /// The files, by absolute path.
    pub files: Vec<PathBuf>,
    /// The directory of the tree, if it is not the directory that the index names.
    pub source: Option<PathBuf>,
    /// Whether the reader compares a sample of each tree with its index for all nodes.
    pub samples: bool,
    /// The network interface to use; any if it is `None`.
    pub interface: Option<String>,
    /// The time, in milliseconds, after which a node that gets no answer from another node stops
    /// waiting for it.
    pub limit_ms: u64,
    /// The memory for shared blocks, in MiB, if the nodes share blocks of the files of the trees.
    pub shared_mib: Option<u64>,
}

/// A disk image of virtual machines.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskPlan {
    /// The absolute path as the user named it: names in the backing chain are relative to it.
    pub path: PathBuf,
    /// The format that the user gave; otherwise it is detected.
    pub format: Option<ImageFormat>,
    /// The files of the backing chain from top to bottom, without symbolic links.
    pub files: Vec<PathBuf>,
    /// Identifies the state of `files`.
    pub state: String,
    /// Whether blocks are served from boot images, or recorded.
    pub boot: BootPlan,
    /// Number of files to check for changes per second while the disk image is served.
    pub rechecks_per_second: f64,
}

/// A log mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogPlan {
    /// The stores' paths, without symbolic links.
    pub stores: Vec<PathBuf>,
    /// The size of the write buffer of one process for one file, in bytes.
    pub buffer_bytes: usize,
    /// How the index of a file is made.
    pub index: IndexMode,
    /// The largest size of the index logs of a file that is flattened, in bytes.
    pub flatten_threshold_bytes: u64,
    /// Where locks are kept.
    pub locks: LocksMode,
    /// How long the kernel keeps names and attributes.
    pub kernel_caching: KernelCaching,
    /// The form in which new files are created.
    pub new_files: NewFiles,
}

/// A mount of a pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolPlan {
    /// The name of the pool.
    pub name: String,
    /// The socket of the pool's daemon on this node.
    pub socket: PathBuf,
    /// The size of the pool's chunks, in bytes.
    pub chunk_bytes: u32,
}

/// A mount of blobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BlobPlan {
    /// The location of the store. Its paths are absolute.
    pub store: String,
    /// The prefix of the names of the blobs.
    pub prefix: String,
}

/// A mount of a store for batches.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BatchPlan {
    /// The path of the store, without symbolic links.
    pub store: PathBuf,
    /// The path, in the store, of the directory that is mounted; empty for the whole store.
    pub subtree: PathBuf,
    /// The effect of the changes.
    pub mode: BatchMode,
    /// The users who may own the store, besides the caller.
    pub trust_owners: Vec<u32>,
}

/// The effect of the changes in a mount of a store for batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchMode {
    /// Each change takes effect in the store immediately.
    Synchronous,
    /// The changes belong to a batch, which is committed when the mount ends.
    Batch {
        /// The name of the batch.
        name: String,
        /// Whether the batch is committed as a whole or not at all.
        is_atomic: bool,
        /// Whether the batch is only submitted when the mount ends, and verified later.
        #[serde(default)]
        is_lazy: bool,
        /// The form in which the changes are submitted.
        #[serde(default)]
        proof: ProofForm,
    },
    /// The changes belong to a part of a batch. The part is closed when the mount ends, and
    /// committed with the other parts.
    Part {
        /// The number of the batch.
        batch: u64,
        /// The name of the part.
        name: String,
        /// The form in which the changes are submitted.
        #[serde(default)]
        proof: ProofForm,
    },
    /// No changes are possible: the mount shows the files of a running batch of another process.
    Watch {
        /// The number of the batch.
        batch: u64,
    },
}

/// Where the locks (flock(2), fcntl(2)) of a log mount are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocksMode {
    /// In the store: they hold between nodes, or fail with ENOLCK.
    #[default]
    Store,
    /// In the kernel: they hold between the processes of one node.
    Node,
    /// Nowhere: they fail with ENOLCK.
    None,
}

impl LocksMode {
    /// Returns the name as in the serialized form.
    pub fn name(self) -> &'static str {
        match self {
            LocksMode::Store => "store",
            LocksMode::Node => "node",
            LocksMode::None => "none",
        }
    }
}

/// How long the kernel keeps the names and attributes of a log mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelCaching {
    /// While no other process uses the store.
    #[default]
    Auto,
    /// Never.
    None,
    /// While no other process uses the store, and otherwise for this many seconds.
    Seconds(u32),
}

/// Whether blocks are served from boot images, or recorded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootPlan {
    /// Blocks are served from boot images; none if the list is empty.
    Serve {
        /// Each image belongs to the tree with its index, or to the disk image.
        images: Vec<PathBuf>,
        /// Memory limit for all of them together, if the user gave one.
        budget_mib: Option<u64>,
    },
    /// The blocks that are read are recorded.
    Record(RecordingPlan),
}

impl BootPlan {
    /// Returns the boot images to serve.
    pub fn images(&self) -> &[PathBuf] {
        match self {
            BootPlan::Serve { images, .. } => images,
            BootPlan::Record(_) => &[],
        }
    }

    /// Returns the memory limit for all boot images together, if the user gave one.
    pub fn budget_mib(&self) -> Option<u64> {
        match self {
            BootPlan::Serve { budget_mib, .. } => *budget_mib,
            BootPlan::Record(_) => None,
        }
    }

    /// Returns the recording to make, if there is one.
    pub fn recording(&self) -> Option<&RecordingPlan> {
        match self {
            BootPlan::Record(recording) => Some(recording),
            BootPlan::Serve { .. } => None,
        }
    }
}

/// The recording that the holder writes when the last program has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordingPlan {
    /// The boot image to write.
    pub image: ImagePlan,
    /// A FIFO in the runtime directory, from which `quell record` reads a line with
    /// `RecordingStart` and a line with `RecordingResult`.
    pub pipe: PathBuf,
    /// FIFOs for the program's standard output and standard error, if the program does not use
    /// those of `quell run`.
    pub outputs: Option<[PathBuf; 2]>,
}

/// A boot image to write, and the selection of its blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImagePlan {
    /// The path of the image.
    pub output: PathBuf,
    /// Whether the recording is merged with those of an existing image.
    pub merge: bool,
    /// Whether an existing image is completed: its valid blocks are served during the recording.
    #[serde(default)]
    pub update: bool,
    /// Whether the blocks of changed files of an existing image are read again, without a program.
    #[serde(default)]
    pub refresh: bool,
    /// Whether to replace any regular file.
    pub force: bool,
    /// Keep only the blocks that were read in at least this number of recordings.
    pub min_runs: u32,
    /// Store whole files, and not only the blocks that were read.
    #[serde(default)]
    pub whole: bool,
    /// Store no unread blocks.
    #[serde(default)]
    pub exact: bool,
    /// Size limit of the blocks to keep, in MiB.
    pub budget_mib: Option<u64>,
}

impl ImagePlan {
    /// Returns the limit on the number of blocks, if there is one. It is not more than an image can
    /// have.
    pub fn blocks_max(&self) -> Option<u64> {
        let blocks = |mib: u64| mib.saturating_mul(1 << 20) / BLOCK_BYTES as u64;
        self.budget_mib.map(|mib| blocks(mib).min(BLOCKS_MAX))
    }
}

/// The view that the user selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViewChoice {
    /// The first one that works.
    Auto,
    /// overlayfs on a tmpfs with the metadata.
    Overlay,
    /// overlayfs on a FUSE mount with the metadata.
    OverlayFuse,
    /// A FUSE mount.
    Fuse,
}

/// How thoroughly trees are compared with their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckMode {
    /// A sample, and the check of the whole tree that `freshness` decides on.
    Auto,
    /// Nothing is compared.
    None,
    /// A sample of eight entries.
    Sample,
    /// All entries, before the program starts.
    Full,
}

/// The action for a file that changed since it was indexed, when a program opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangePolicy {
    /// The open fails with ESTALE.
    Refuse,
    /// The file is opened as it is now.
    Serve,
    /// Files are not compared.
    Ignore,
}

impl From<ChangePolicy> for OnChange {
    fn from(policy: ChangePolicy) -> OnChange {
        match policy {
            ChangePolicy::Refuse => OnChange::Refuse,
            ChangePolicy::Serve => OnChange::Serve,
            ChangePolicy::Ignore => OnChange::Ignore,
        }
    }
}

/// The format of a disk image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageFormat {
    /// QEMU's format with a backing chain.
    Qcow2,
    /// The bytes of the disk, without a header.
    Raw,
}

impl From<ImageFormat> for DiskFormat {
    fn from(format: ImageFormat) -> DiskFormat {
        match format {
            ImageFormat::Qcow2 => DiskFormat::Qcow2,
            ImageFormat::Raw => DiskFormat::Raw,
        }
    }
}

/// Where programs may write in a view.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// Nowhere: the view is read-only.
    Refused,
    /// In a tmpfs that is discarded at the end.
    Scratch,
    /// In a directory.
    Kept(PathBuf),
}

impl Writes {
    /// Resolves symbolic links in the path of the writable layer, which need not exist yet.
    pub fn resolved(self) -> Result<Writes, Failure> {
        let Writes::Kept(directory) = self else { return Ok(self) };
        let wrong = |e: &dyn std::fmt::Display| Failure::wrong_input(format!("{}: {e}", shown(&directory)));
        let named = std::path::absolute(&directory).map_err(|e| wrong(&e))?;
        let existing = named.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(&named);
        let rest = named.strip_prefix(existing).unwrap_or(Path::new(""));
        if rest.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(wrong(&"it does not exist"));
        }
        let existing = existing.canonicalize().map_err(|e| wrong(&e))?;
        Ok(Writes::Kept(existing.join(rest).components().collect()))
    }
}

impl Plan {
    /// Returns the users whose files are used.
    pub fn trusted(&self) -> Trusted {
        Trusted::by_caller(&self.trust_owners)
    }

    /// Returns the recording to make, if there is one.
    pub fn recording(&self) -> Option<&RecordingPlan> {
        match &self.source {
            PlanSource::Trees(trees) => trees.boot.recording(),
            PlanSource::Disk(disk) => disk.boot.recording(),
            PlanSource::Log(_)
            | PlanSource::Pool(_)
            | PlanSource::Blob(_)
            | PlanSource::Batch(_)
            | PlanSource::Job(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_one_source_and_an_unknown_one_is_refused() {
        let log = LogPlan {
            stores: vec!["/s".into()],
            buffer_bytes: 4096,
            index: IndexMode::FlattenLater,
            flatten_threshold_bytes: 1,
            locks: LocksMode::Store,
            kernel_caching: KernelCaching::Seconds(3),
            new_files: NewFiles::Object,
        };
        let plan = Plan {
            target: Target::Mountpoint { path: "/m".into(), allow_other: false },
            source: PlanSource::Log(log),
            strict: false,
            trust_owners: Vec::new(),
            threads: 1,
            quiet: false,
            verbose: false,
            answer_timeout_s: None,
            log_file: None,
        };
        let text = serde_json::to_string(&plan).unwrap();
        assert!(
            text.contains("\"source\":{\"log\":{") && text.contains(IndexMode::FlattenLater.name()),
            "{text}"
        );
        let again: Plan = serde_json::from_str(&text).unwrap();
        assert!(matches!(again.source, PlanSource::Log(log) if log.stores == [Path::new("/s")]));
        let unknown = text.replace("\"log\":{", "\"unknown\":{");
        assert!(serde_json::from_str::<Plan>(&unknown).unwrap_err().to_string().contains("unknown variant"));
    }

    #[test]
    fn the_path_of_a_writable_layer_may_name_directories_to_create() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let kept = |path: PathBuf| Writes::Kept(path).resolved();
        assert_eq!(kept(real.join("link/new/./layer")).unwrap(), Writes::Kept(real.join("new/layer")));
        assert!(kept(real.join("new/../layer")).is_err());
        assert_eq!(Writes::Scratch.resolved().unwrap(), Writes::Scratch);
    }
}
