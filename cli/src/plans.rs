//! Turns arguments into plans for the supervisor.

use quell_batch::ProofForm;
use quell_mount_spec::{DiskFormat, IndexMode, NewFiles};
use quell_supervisor::{
    BatchMode, BootPlan, ChangePolicy, CheckMode, ImageFormat, LocksMode, LogOptions, Plan, PlanSource,
    Target, TreePlan, TreesPlan, ViewChoice, Writes,
};

use crate::arguments::{
    AboveArg, BatchModeArg, BatchModeArgs, BootArgs, Check, CoverArgs, ImageFormatArg, IndexMethod, LocksArg,
    LogArgs, NewFilesArg, OnChangeArg, ProofArg, ViewArg,
};
use crate::failure::Failure;
use crate::trace;

/// Returns a plan with the options that all kinds of views have in common.
pub fn plan(target: Target, source: PlanSource, cover: &CoverArgs, quiet: bool) -> Plan {
    Plan {
        target,
        source,
        strict: cover.strict,
        trust_owners: cover.trust_owner.clone(),
        threads: cover.threads,
        quiet,
        verbose: cover.verbose,
        answer_timeout_s: cover.answer_timeout,
        log_file: trace::log_file(),
    }
}

/// Returns the part of a plan that concerns trees.
pub fn trees(
    trees: Vec<TreePlan>,
    boot: BootPlan,
    cover: &CoverArgs,
    view: ViewChoice,
    above: AboveArg,
) -> Result<PlanSource, Failure> {
    let writes = match (&cover.writable, cover.scratch) {
        (Some(directory), _) => Writes::Kept(directory.clone()),
        (None, true) => Writes::Scratch,
        (None, false) => Writes::Refused,
    };
    Ok(PlanSource::Trees(TreesPlan {
        trees,
        boot,
        view,
        check: cover.check.into(),
        rechecks_per_second: cover.recheck,
        writes: writes.resolved()?,
        on_change: cover.on_change.into(),
        suid: cover.suid,
        dev: cover.dev,
        memory_mib: cover.memory,
        copies_above: above == AboveArg::Copy,
    }))
}

/// Refuses options that are for trees, with `--image`.
pub fn refuse_tree_options(cover: &CoverArgs) -> Result<(), Failure> {
    let for_trees = [
        ("--source", cover.source.is_some()),
        ("--at", cover.at.is_some()),
        ("--scratch", cover.scratch),
        ("--writable", cover.writable.is_some()),
        ("--view", !matches!(cover.view, ViewArg::Auto | ViewArg::Fuse)),
        ("--check full", cover.check == Check::Full),
    ];
    match for_trees.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::wrong_input(format!(
            "{option} is an option for trees, and cannot be used with --image"
        ))),
    }
}

/// Checks the number of boot images of a disk image: exactly one, or none for a recording.
pub fn check_disk_boot_images(count: usize, is_recording: bool) -> Result<(), Failure> {
    match (count, is_recording) {
        (1, _) | (0, true) => Ok(()),
        (0, false) => Err(Failure::wrong_input(
            "--image needs -b with the boot image that `quell record --image` wrote",
        )),
        _ => Err(Failure::wrong_input(
            "--image takes one boot image; `quell boot merge` merges several of one disk",
        )),
    }
}

/// Refuses a boot image with `--on-change serve` or `ignore`. A block in memory has the file's
/// content at indexing; together with blocks of a changed file, it would form content that the file
/// never had.
pub fn refuse_mixed_content(boot: &BootArgs, cover: &CoverArgs) -> Result<(), Failure> {
    if boot.boot.is_empty() || cover.on_change == OnChangeArg::Refuse {
        return Ok(());
    }
    Err(Failure::wrong_input(
        "a boot image has the content of files as they were indexed: use it only with --on-change refuse",
    ))
}

/// Refuses `--suid` and `--dev` for other users than root, and for disk images.
pub fn refuse_powers(cover: &CoverArgs, is_disk: bool) -> Result<(), Failure> {
    if !cover.suid && !cover.dev {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::wrong_input("only root can use --suid and --dev"));
    }
    if is_disk {
        return Err(Failure::wrong_input("--suid and --dev cannot be used with a disk image"));
    }
    Ok(())
}

impl LogArgs {
    /// Returns the options of a log mount. `index` and `locks` are the values in the configuration
    /// file, which the command line overrides.
    pub fn options(&self, index: Option<IndexMethod>, locks: Option<LocksArg>) -> LogOptions {
        LogOptions {
            buffer_bytes: self.buffer,
            index: self.index_method.or(index).map(Into::into),
            flatten_threshold_bytes: self.flatten_threshold,
            locks: self.locks.or(locks).map(Into::into),
            kernel_caching: self.kernel_cache,
            new_files: self.new_files.map(Into::into),
        }
    }
}

impl From<ViewArg> for ViewChoice {
    fn from(view: ViewArg) -> ViewChoice {
        match view {
            ViewArg::Auto => ViewChoice::Auto,
            ViewArg::Overlay => ViewChoice::Overlay,
            ViewArg::OverlayFuse => ViewChoice::OverlayFuse,
            ViewArg::Fuse => ViewChoice::Fuse,
        }
    }
}

impl From<Check> for CheckMode {
    fn from(check: Check) -> CheckMode {
        match check {
            Check::Auto => CheckMode::Auto,
            Check::None => CheckMode::None,
            Check::Sample => CheckMode::Sample,
            Check::Full => CheckMode::Full,
        }
    }
}

impl From<OnChangeArg> for ChangePolicy {
    fn from(on_change: OnChangeArg) -> ChangePolicy {
        match on_change {
            OnChangeArg::Refuse => ChangePolicy::Refuse,
            OnChangeArg::Serve => ChangePolicy::Serve,
            OnChangeArg::Ignore => ChangePolicy::Ignore,
        }
    }
}

impl From<ImageFormatArg> for ImageFormat {
    fn from(format: ImageFormatArg) -> ImageFormat {
        match format {
            ImageFormatArg::Qcow2 => ImageFormat::Qcow2,
            ImageFormatArg::Raw => ImageFormat::Raw,
        }
    }
}

impl From<ImageFormatArg> for DiskFormat {
    fn from(format: ImageFormatArg) -> DiskFormat {
        ImageFormat::from(format).into()
    }
}

impl From<NewFilesArg> for NewFiles {
    fn from(form: NewFilesArg) -> NewFiles {
        match form {
            NewFilesArg::Container => NewFiles::Container,
            NewFilesArg::Object => NewFiles::Object,
        }
    }
}

impl From<LocksArg> for LocksMode {
    fn from(locks: LocksArg) -> LocksMode {
        match locks {
            LocksArg::Store => LocksMode::Store,
            LocksArg::Node => LocksMode::Node,
            LocksArg::None => LocksMode::None,
        }
    }
}

impl From<IndexMethod> for IndexMode {
    fn from(mode: IndexMethod) -> IndexMode {
        match mode {
            IndexMethod::Flatten => IndexMode::Flatten,
            IndexMethod::FlattenLater => IndexMode::FlattenLater,
            IndexMethod::Parallel => IndexMode::Parallel,
        }
    }
}

/// Returns the name of a batch of this process, if the user gives none.
pub fn own_batch_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

/// Returns the effect of changes in a store for batches. `default`: the mode if --mode is not
/// given.
pub fn batch_mode(args: &BatchModeArgs, default: BatchModeArg) -> Result<BatchMode, Failure> {
    let proof = match args.proof {
        None => ProofForm::default(),
        Some(ProofArg::Log) => ProofForm::Log,
        Some(ProofArg::Certificate) => ProofForm::Certificate,
    };
    let name = || args.batch_name.clone().unwrap_or_else(own_batch_name);
    if let Some(batch) = args.join {
        return match args.mode {
            Some(BatchModeArg::Sync) => Err(Failure::wrong_input("--join cannot be used with --mode sync")),
            _ => Ok(BatchMode::Part { batch, name: name(), proof }),
        };
    }
    match args.mode.unwrap_or(default) {
        BatchModeArg::Batch => {
            Ok(BatchMode::Batch { name: name(), is_atomic: args.atomic, is_lazy: args.lazy, proof })
        }
        BatchModeArg::Sync
            if args.atomic || args.lazy || args.batch_name.is_some() || args.proof.is_some() =>
        {
            Err(Failure::wrong_input(
                "--atomic, --lazy, --proof and --batch-name can be used only with --mode batch",
            ))
        }
        BatchModeArg::Sync => Ok(BatchMode::Synchronous),
    }
}
