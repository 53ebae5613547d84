//! The holder: creates the namespace, covers the trees, serves processes that join or request a
//! report, checks the trees at intervals, and ends with the last program of the namespace.
//!
//! It reads its plan from standard input and writes its answer to standard output. Messages go to
//! the standard error of the command that started it: for `quell mount` until it has answered, then
//! to a log file; for `quell run` until the program has ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_boot::{BLOCK_BYTES, BootImage, Choice, Kind, Recorder, Subject, Unreadable};
use quell_fuse::Session;
use quell_index::{BuildOptions, Change, Difference, Image, Rules, Sampler, compare};
use quell_mount_spec::{Covered, Ownership, Trusted, TrustedUse};
use quell_overlay::{CoveredTree, Holder, Ids, Isolation, Namespaces, Need};
use quell_vfs::{ErrorKind, FileSystem, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg,
};

use crate::arguments::{Check, HolderArgs, ViewArg};
use crate::ending::{InUse, MountedAt, Signals};
use crate::failure::Failure;
use crate::freshness::{self, Stale};
use crate::inputs::{Named, Reading, image_of, root_of, shown, shown_bytes};
use crate::memory::{self, Allowed};
use crate::mounts;
use crate::plan::{
    Answer, Begun, Place, Plan, Recorded, RecordingPlan, Refusal, Report, TreePlan, TreeReport, Writes,
};
use crate::runtime;
use crate::streams;
use crate::trust;
use crate::views::{self, Audience, Heat, Mounted, Surroundings, Taken};
use crate::whole_check::{Planned, Watch, WholeTree};

/// Maximum number of metadata operations of the check before a run.
const SAMPLE_LOOKS: u32 = 8;
/// As `SAMPLE_LOOKS`, if this node has just checked the tree: many launches in a row must not cause
/// a metadata storm.
const SAMPLE_LOOKS_AGAIN: u32 = 2;
const CHECK_LASTS: Duration = Duration::from_secs(60);
/// Number of intervals between the check before a run and the first check during it.
const INTERVALS_BEFORE_LOOKS: u32 = 5;
/// Number of requests in flight during a full check.
const CHECK_THREADS: u16 = 16;
/// Number of changes during a run that are printed; the rest is only counted.
const CHANGES_SHOWN: u64 = 5;
/// How long programs get between SIGTERM and SIGKILL when --strict ends them.
const END_GRACE: Duration = Duration::from_secs(5);
const PLAN_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of open files sent with a plan; further files are opened by path.
const OPENED_MAX: usize = 64;

/// Open files that were sent with the plan, by path.
pub(super) type Files = BTreeMap<PathBuf, File>;

/// Starts a holder for the plan and waits for its answer. The holder keeps the lock until other
/// processes can find it.
pub fn start(plan: &Plan, files: &[Named], lock: &File) -> std::result::Result<Answer, Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("cannot start the holder: {e}"));
    let (own, theirs) = UnixStream::pair().map_err(cannot)?;
    let mut child = Command::new("/proc/self/exe")
        .args(["holder", "--detach"])
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let files = &files[..files.len().min(OPENED_MAX)];
    let plan = Plan { opened: files.iter().map(|file| file.path.clone()).collect(), ..plan.clone() };
    send(&plan, files, lock, own).map_err(cannot)?;
    // The child exits at once. The holder is not a child of this process; it keeps the write end of
    // the pipe open until it has answered.
    let mut answer = String::new();
    child.stdout.take().expect("it was piped").read_to_string(&mut answer).map_err(cannot)?;
    child.wait().map_err(cannot)?;
    serde_json::from_str(&answer).map_err(|_| Failure::cannot("the holder ended without an answer"))
}

/// Sends the descriptors with the first byte of the plan. Closing the stream marks the end of the
/// plan.
fn send(plan: &Plan, files: &[Named], lock: &File, mut stream: UnixStream) -> std::io::Result<()> {
    let text = serde_json::to_vec(plan)?;
    let files = files.iter().map(|named| named.file.as_fd());
    let descriptors: Vec<_> = std::iter::once(lock.as_fd()).chain(files).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1 + OPENED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(&stream, &[IoSlice::new(&text[..1])], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&text[1..])
}

/// Receives a plan, the holder's lock and the open files.
fn receive() -> std::result::Result<(Plan, File, Files), Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("cannot read the plan: {e}"));
    let mut text = vec![0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1 + OPENED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let stdin = std::io::stdin();
    let got = recvmsg(&stdin, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| cannot(e.into()))?;
    text.truncate(got.bytes);
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut received = descriptors.flatten().map(File::from);
    let lock = received.next().ok_or_else(|| Failure::wrong_input("the plan: no lock came with it"))?;
    let files: Vec<File> = received.collect();
    stdin.take(PLAN_BYTES_MAX).read_to_end(&mut text).map_err(cannot)?;
    let plan: Plan =
        serde_json::from_slice(&text).map_err(|e| Failure::wrong_input(format!("the plan: {e}")))?;
    let files = plan.opened.iter().cloned().zip(files).collect();
    Ok((plan, lock, files))
}

pub fn run(args: HolderArgs, quiet: bool) -> std::result::Result<ExitCode, Failure> {
    if args.detach {
        let cannot = |e| Failure::cannot(format!("cannot start the holder: {e}"));
        quell_overlay::close_inherited_on_exec().map_err(cannot)?;
        // The holder must not be a child of the program, which did not start it.
        Command::new("/proc/self/exe").arg("holder").spawn().map_err(cannot)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (plan, lock, files) = receive()?;
    let plan = Plan { quiet: plan.quiet || quiet, ..plan };
    live_apart();
    if plan.disk.is_some() {
        return super::disks::hold(&plan, lock, files);
    }
    if plan.log.is_some() {
        return super::log::hold(&plan, lock);
    }
    match establish(&plan, files) {
        Ok(view) => {
            if let Some(recording) = &view.recording {
                recording.tell_begun()?;
            }
            if !answer_ready(&plan) && view.mounted.is_some() {
                view.abandon();
                return Ok(ExitCode::SUCCESS);
            }
            drop(lock);
            quell_overlay::sweep(&plan.directory);
            let recording = view.serve(&plan)?;
            if let Some(recording) = recording {
                recording.finish();
            }
            end_messages(&plan);
        }
        Err(failure) => {
            answer(&Answer { refused: Some(Refusal::from(&failure)) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers that the view is ready. Returns `false` if the command that requested it was killed. The
/// caller then removes a mount before it releases the lock, so that a user who interrupts
/// `quell mount` finds no mount later.
pub(super) fn answer_ready(plan: &Plan) -> bool {
    // Before the answer, so that a pipe that captures the command's standard error is closed when
    // the command ends.
    if let Some(log) = message_log(plan) {
        streams::log_to(&log);
    }
    answer(&Answer { refused: None })
}

/// Returns `false` if the command that reads the answer was killed.
pub(super) fn answer(answer: &Answer) -> bool {
    let text = serde_json::to_string(answer).expect("an answer is always JSON");
    let told = writeln!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush());
    // The command reads to the end of the pipe, which closing it marks.
    let _ = streams::release_input_and_output();
    told.is_ok()
}

/// Returns the file for messages after the command was answered. A view of `quell run` has none; it
/// uses the program's standard error.
pub(super) fn message_log(plan: &Plan) -> Option<PathBuf> {
    plan.place.mountpoint().map(|_| streams::log_path(&plan.directory, &plan.key))
}

/// Removes an empty log. Called when the process ends.
pub(super) fn end_messages(plan: &Plan) {
    if let Some(log) = message_log(plan) {
        streams::remove_empty_log(&log);
    }
}

/// Releases the standard error of the program that the view was created for. Called when it has
/// ended: other programs may still use the view, but the program's stream is not kept open for
/// them. A recording keeps the stream, because the command that waits for it has the same one.
pub(super) fn release_error_of(plan: &Plan) {
    if message_log(plan).is_none() && plan.recording.is_none() {
        streams::release_error();
    }
}

/// Detaches the process from the terminal's signals, the caller's directory and its limits.
fn live_apart() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid, umask};
    // The process was started as /proc/self/exe and would be named `exe`.
    let _ = rustix::thread::set_name(c"quell");
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
    umask(rustix::fs::Mode::empty());
    for resource in [Resource::Nofile, Resource::Fsize] {
        let limit = getrlimit(resource);
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    // Without the handler, a write beyond the file size limit would kill the process instead of
    // returning an error.
    let ignored = Arc::default();
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
}

/// One covered tree.
struct Cover {
    covered: Covered,
    index: PathBuf,
    path: PathBuf,
    view: views::View,
    reason: String,
    sessions: Vec<Session>,
    heat: Option<Heat>,
    sampler: Sampler,
    watch: Option<Watch>,
    looks: u64,
    changes: u64,
}

/// The complete view.
struct Established {
    holder: Holder,
    namespaces: Option<Namespaces>,
    covers: Vec<Cover>,
    /// The lock of a writable layer, held while the layer is used.
    _lock: Option<std::fs::File>,
    recording: Option<Unfinished>,
    signals: Signals,
    /// The mount, if there is a mount point.
    mounted: Option<MountedAt>,
}

/// Creates the view. Threads are started only after the namespace was created: a process with
/// several threads cannot enter a user namespace (unshare(2)).
fn establish(plan: &Plan, mut files: Files) -> std::result::Result<Established, Failure> {
    let mut trees = Vec::new();
    let mut stale = Vec::new();
    for tree in &plan.trees {
        match open_tree(plan, tree, &mut files)? {
            (ready, None) => trees.push(ready),
            (ready, Some(differences)) => stale.push((ready.index, ready.path, differences)),
        }
    }
    leave_out(plan, stale, trees.is_empty())?;
    let lock = lock_writable(plan, &trees)?;
    heat(plan, &mut trees, &mut files)?;
    let recording =
        plan.recording.as_ref().map(|how| Unfinished::begin(how, plan.trusted(), &mut trees)).transpose()?;
    let isolation = match plan.place {
        Place::Mountpoint { .. } => None,
        Place::Namespace => Some(isolation()),
    };
    if let Some(isolation) = isolation {
        quell_overlay::isolate(isolation)
            .map_err(|e| Failure::cannot(format!("{e}; `quell doctor` tells how this may be allowed")))?;
    }
    let in_user_namespace = isolation == Some(Isolation::UserAndMount);
    let squash = if in_user_namespace { Some(Ids::of_caller()?) } else { None };
    // Until here a signal ends this process, and nothing is mounted yet.
    let signals = Signals::listen()?;
    if let Some(path) = plan.place.mountpoint() {
        // Another user may have mounted there since the command checked.
        super::mount::refuse_taken(&path)?;
    }
    // A tree inside another is covered after it. All sources were opened before anything is
    // covered.
    trees.sort_by_key(|tree| tree.path.components().count());
    let checks_end = begin_checks(plan, &mut trees);
    if matches!(plan.place, Place::Mountpoint { .. }) {
        // Every process sees a view at a mount point as soon as it is mounted, so the checks must
        // end before that.
        let found = trees.iter().filter_map(|tree| Some((tree, tree.watch.as_ref()?.wait(checks_end)?)));
        leave_out(
            plan,
            found.map(|(tree, stale)| (tree.index.clone(), tree.path.clone(), stale)).collect(),
            true,
        )?;
    }
    let mut covers = Vec::new();
    let mut mounts = Vec::new();
    for tree in trees {
        let ReadyTree { mut covered, index, index_is_roots, path, sampler, watch, .. } = tree;
        let taken = mount(plan, &mut covered, &index, index_is_roots, &path, squash.clone())?;
        // The blocks are decoded, so the compressed frames are no longer needed.
        covered.hot = None;
        let Taken { view, reason, mounted: Mounted { mount, sessions, heat } } = taken;
        // At the tree's own path the view covers only the directory that was checked, and not
        // another directory that was moved to the path meanwhile.
        let original = match path == covered.source_path {
            true => Some(covered.source().stat_self()?.identity()),
            false => None,
        };
        mounts.push((mount, path.clone(), original));
        let (looks, changes) = (0, 0);
        let cover =
            Cover { covered, index, path, view, reason, sessions, heat, sampler, watch, looks, changes };
        covers.push(cover);
    }
    let mut stale = Vec::new();
    for (cover, mount) in std::mem::take(&mut covers).into_iter().zip(std::mem::take(&mut mounts)) {
        match cover.watch.as_ref().and_then(|watch| watch.wait(checks_end)) {
            None => {
                covers.push(cover);
                mounts.push(mount);
            }
            Some(differences) => stale.push((cover.index, cover.path, differences)),
        }
    }
    leave_out(plan, stale, covers.is_empty())?;
    for (place, (mount, path, original)) in mounts.iter().enumerate() {
        let Some(mount) = mount else { continue };
        let around = mounts[..place].iter().rev().find_map(|(around, outer, _)| {
            let below = path.strip_prefix(outer).ok()?;
            let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
            Some((around.as_ref()?, below))
        });
        match around {
            Some((around, below)) => quell_overlay::attach_below(mount, around, below)?,
            None => quell_overlay::attach(mount, path, *original)?,
        }
    }
    if plan.verbose {
        for cover in &covers {
            let Cover { path, view, covered, reason, .. } = cover;
            let entries = covered.image.entries();
            say(&format!("{} covered by {} ({entries} entries; {reason})", shown(path), view.name()));
        }
    }
    let mut holder = Holder::bind(&plan.directory, &plan.key)?;
    holder.wait_for_creator(plan.creator);
    signals.wake(&mut holder)?;
    let mounted = plan.place.mountpoint().map(|path| MountedAt::of(&path));
    if let Some(mounted) = &mounted {
        mounted.wake(&mut holder)?;
    }
    for cover in &covers {
        let crosses_mounts = BuildOptions::from_image(&cover.covered.image)?.cross_mounts;
        holder.covers(CoveredTree { path: cover.path.clone(), crosses_mounts });
    }
    let namespaces = match plan.place {
        Place::Namespace => Some(Namespaces::of_caller(in_user_namespace)?),
        Place::Mountpoint { .. } => None,
    };
    Ok(Established { holder, namespaces, covers, _lock: lock, recording, signals, mounted })
}

/// Returns the isolation that this process needs. A process without CAP_SYS_ADMIN needs a user
/// namespace, even if it runs as root.
pub(super) fn isolation() -> Isolation {
    use rustix::thread::{CapabilitySet, capabilities};
    let may_mount = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if may_mount { Isolation::Mount } else { Isolation::UserAndMount }
}

/// Returns which users will see the view. Must be called before this process enters a user
/// namespace.
fn audience_of(plan: &Plan) -> Audience {
    match (isolation(), &plan.place) {
        (Isolation::Mount, Place::Mountpoint { .. }) => Audience::Everybody,
        (Isolation::Mount, Place::Namespace) => Audience::RootsPrograms,
        // fusermount3 mounts only FUSE views, and their rules decide what other users see.
        (Isolation::UserAndMount, _) => Audience::Caller,
    }
}

fn rules(plan: &Plan, index_is_roots: bool) -> std::result::Result<Rules, Failure> {
    let hidden = quell_mount_spec::owners_are_hidden();
    if plan.suid || plan.dev {
        if isolation() != Isolation::Mount || hidden {
            return Err(Failure::wrong_input("--suid and --dev are for root, outside of user namespaces"));
        }
        if !index_is_roots {
            let message =
                "--suid and --dev need an index that belongs to root and that no other user can write to";
            return Err(Failure::wrong_input(message));
        }
    }
    let namespace = matches!(plan.place, Place::Namespace);
    let owners_unknown = hidden || (namespace && isolation() == Isolation::UserAndMount);
    let lets_others_in = matches!(plan.place, Place::Mountpoint { allow_other: true, .. });
    let serves_others = audience_of(plan) != Audience::Caller || lets_others_in;
    Ok(Rules { serves_others, index_is_roots, owners_unknown })
}

fn lock_writable(plan: &Plan, trees: &[ReadyTree]) -> std::result::Result<Option<std::fs::File>, Failure> {
    let Writes::Kept(directory) = &plan.writes else { return Ok(None) };
    if let Some(tree) = trees.iter().find(|tree| {
        [&tree.covered.source_path, &tree.path].into_iter().any(|covered| directory.starts_with(covered))
    }) {
        return Err(Failure::refused(format!(
            "the writable layer {} would lie inside the tree {}, and change it: name a directory outside of it",
            shown(directory),
            shown(&tree.covered.source_path)
        )));
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(directory))))?;
    let cannot = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(directory)));
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(directory.join("lock"))
        .map_err(cannot)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::cannot(format!("the writable layer {} is in use by another view", shown(directory)))
    })?;
    Ok(Some(file))
}

fn mount(
    plan: &Plan,
    covered: &mut Covered,
    index: &Path,
    index_is_roots: bool,
    path: &Path,
    squash: Option<Ids>,
) -> std::result::Result<Taken, Failure> {
    let allow_other = match plan.place {
        Place::Namespace => true,
        Place::Mountpoint { allow_other, .. } => allow_other,
    };
    // Outside a namespace an ordinary user can mount only with fusermount3.
    let by_fusermount =
        matches!(plan.place, Place::Mountpoint { .. }) && isolation() == Isolation::UserAndMount;
    if by_fusermount
        && (!matches!(plan.view, ViewArg::Auto | ViewArg::Fuse) || plan.writes != Writes::Refused)
    {
        let message = "an ordinary user's mount is a read-only FUSE view; `quell run` does more";
        return Err(Failure::cannot(message));
    }
    let source_name = mounts::source_of(index);
    // In its own user namespace this process may mount, but has no more access than the caller.
    let audience = if squash.is_some() { Audience::Caller } else { audience_of(plan) };
    let hot = covered.hot.is_some();
    let mut around = Surroundings { plan, squash, audience, index_is_roots, source_name, allow_other, hot };
    let facts = views::facts(&covered.image, &covered.source_path, plan);
    let take = |covered: &Covered, around: &Surroundings<'_>| match by_fusermount {
        true => views::fuse_at(covered, path, around),
        false => views::take(covered, &facts, around),
    };
    match take(covered, &around) {
        // The frames of a boot image are verified while they are decoded.
        Err(e) if e.kind == ErrorKind::Damaged && around.hot && !plan.strict => {
            say(&format!("{e}; nothing of it is served from memory"));
            covered.hot = None;
            around.hot = false;
            Ok(take(covered, &around)?)
        }
        other => Ok(other?),
    }
}

/// A tree that was compared with its index and opened before anything is covered.
struct ReadyTree {
    covered: Covered,
    index: PathBuf,
    index_is_roots: bool,
    path: PathBuf,
    sampler: Sampler,
    /// The check of the whole tree, before it starts (`whole`) and while it runs (`watch`).
    whole: Option<WholeTree>,
    watch: Option<Watch>,
}

/// Assigns each boot image to the tree with its index. Without `--strict`, an image that cannot be
/// used is reported and left out, and the tree is served without it.
fn heat(plan: &Plan, trees: &mut Vec<ReadyTree>, files: &mut Files) -> std::result::Result<(), Failure> {
    if plan.boots.is_empty() {
        return Ok(());
    }
    let mut allowed = memory::allowed(plan.budget_mib);
    for path in &plan.boots {
        if let Err(failure) = heat_one(path, files.remove(path), &mut allowed, &plan.trusted(), trees) {
            if plan.strict || failure.is_final() {
                return Err(failure);
            }
            say(&format!("{failure}; nothing of it is served from memory"));
        }
    }
    Ok(())
}

fn heat_one(
    path: &Path,
    opened: Option<File>,
    allowed: &mut Allowed,
    trusted: &Trusted,
    trees: &mut Vec<ReadyTree>,
) -> std::result::Result<(), Failure> {
    let file = match opened {
        Some(file) => file,
        None => Named::open(path)?.file,
    };
    let boot = memory::load_boot(&file, path, allowed)?;
    if boot.kind() == Kind::Disk {
        let message = format!("{} holds blocks of a disk image: it goes with --image", shown(path));
        return Err(Failure::wrong_input(message));
    }
    let of = |tree: &ReadyTree| boot.kind() == Kind::Tree(tree.covered.image.generation().0);
    let Some(at) = trees.iter().position(of) else {
        return Err(Failure::wrong_input(format!(
            "{} belongs to another index, or to an older state of this one: record it again",
            shown(path)
        )));
    };
    let owner = Ownership::from(&trees[at].covered.source().stat_self()?);
    let source = trees[at].covered.source_path.clone();
    trust::check(trusted, &file, path, TrustedUse::BootImage, Some((&source, &owner)))?;
    if trees[at].covered.hot.is_some() {
        return Err(Failure::wrong_input(format!(
            "{} is the second boot image of {}: `quell boot merge` joins them",
            shown(path),
            shown(&trees[at].covered.source_path)
        )));
    }
    // While the image is decoded, its file is in memory too.
    allowed.take(path, boot.serving_bytes(), boot.file_bytes())?;
    let mut tree = trees.swap_remove(at);
    tree.covered = tree.covered.with_boot_image(boot);
    let stale = tree.covered.hot.as_ref().map_or(0, |hot| hot.stale().len());
    if stale > 0 {
        say(&format!("{stale} files of {} are another now; they are served from the tree", shown(path)));
    }
    trees.push(tree);
    Ok(())
}

/// A recording in progress.
pub(super) struct Unfinished {
    how: RecordingPlan,
    recorder: Arc<Recorder>,
    /// The file system below the recorder.
    fs: Arc<dyn FileSystem>,
    subject: Subject,
    /// The owners whose image may be merged, and the owner of the tree or disk image.
    trust: (Trusted, Ownership),
    /// A process that waits for the result sees end of file if this process is killed.
    pipe: std::fs::File,
}

impl Unfinished {
    fn begin(
        how: &RecordingPlan,
        trusted: Trusted,
        trees: &mut Vec<ReadyTree>,
    ) -> std::result::Result<Unfinished, Failure> {
        let mut tree = match trees.pop() {
            Some(tree) if trees.is_empty() => tree,
            _ => return Err(Failure::wrong_input("one tree is recorded at a time")),
        };
        if how.output.parent().is_some_and(|parent| parent.starts_with(&tree.covered.source_path)) {
            return Err(Failure::refused(format!(
                "{} would lie inside the tree, and change it by being written; choose another place with -o",
                shown(&how.output)
            )));
        }
        let owner = Ownership::from(&tree.covered.source().stat_self()?);
        let (fs, subject) = (tree.covered.fs.clone(), Subject::Tree(tree.covered.image.generation().0));
        let (covered, recorder) = tree.covered.with_recorder();
        tree.covered = covered;
        trees.push(tree);
        Unfinished::of(how, recorder, fs, subject, (trusted, owner))
    }

    pub(super) fn of(
        how: &RecordingPlan,
        recorder: Arc<Recorder>,
        fs: Arc<dyn FileSystem>,
        subject: Subject,
        trust: (Trusted, Ownership),
    ) -> std::result::Result<Unfinished, Failure> {
        let pipe = runtime::open_pipe(&how.pipe)?;
        // Once open, the pipe needs no name; without one, nothing remains when its users end.
        let _ = std::fs::remove_file(&how.pipe);
        let unfinished = Unfinished { how: how.clone(), recorder, fs, subject, trust, pipe };
        // Errors that can be found now are reported before the program runs.
        quell_mount_spec::LockedBootFile::check(&how.output, how.force)?;
        unfinished.old()?;
        Ok(unfinished)
    }

    /// Returns the image to merge, if there is one.
    fn old(&self) -> std::result::Result<Option<BootImage>, Failure> {
        let output = &self.how.output;
        if !self.how.merge || !output.exists() {
            return Ok(None);
        }
        let file = Named::open(output)?.file;
        // Merged blocks become part of an image that belongs to the caller, so the old image must
        // be trusted.
        let (trusted, owner) = &self.trust;
        trust::check(
            trusted,
            &file,
            output,
            TrustedUse::BootImage,
            Some((Path::new("what it was recorded of"), owner)),
        )?;
        let old = quell_mount_spec::load_boot_from(&file, output, |_| Ok::<(), Failure>(()))?;
        if self.subject.can_merge(&*self.fs, &old) {
            return Ok(Some(old));
        }
        let other = match self.subject {
            Subject::Tree(_) => "belongs to another index, or to an older state of this one",
            Subject::Disk(_) => "was recorded of another disk image, or of an older state of this one",
        };
        Err(Failure::wrong_input(format!("{} {other}: --merge cannot join it", shown(output))))
    }

    /// Reports the namespace of the recorded processes and the holder's process id.
    pub(super) fn tell_begun(&self) -> std::result::Result<(), Failure> {
        let namespace = std::fs::read_link("/proc/self/ns/mnt")
            .map_err(|e| Failure::cannot(format!("/proc/self/ns/mnt: {e}")))?;
        self.write(&Begun { namespace, holder: std::process::id() });
        Ok(())
    }

    fn finish(self) {
        let packed = self.pack();
        self.tell(packed);
    }

    pub(super) fn tell(self, packed: std::result::Result<Recorded, Failure>) {
        let files = self.recorder.files() as u64;
        let recorded = packed.unwrap_or_else(|failure| Recorded {
            failure: Some(failure.to_string()),
            files,
            ..Recorded::default()
        });
        self.write(&recorded);
    }

    /// Writes a message to the waiting command. If that command has ended, the image is written
    /// nevertheless.
    fn write(&self, what: &impl serde::Serialize) {
        let text = serde_json::to_string(what).expect("what we say is always JSON");
        let _ = writeln!(&self.pipe, "{text}");
    }

    pub(super) fn pack(&self) -> std::result::Result<Recorded, Failure> {
        let output = &self.how.output;
        let threads = runtime::processors();
        if self.recorder.files() == 0 {
            let of = match self.subject {
                Subject::Tree(_) => "tree",
                Subject::Disk(_) => "disk image",
            };
            return Err(Failure::cannot(format!("no file of the {of} was opened")));
        }
        let place = quell_mount_spec::LockedBootFile::claim(output, &super::boot::say_waiting)?;
        let old = self.old()?;
        let blocks_max = self.how.budget_mib.map_or(usize::MAX, |mib| (mib << 20) as usize / BLOCK_BYTES);
        let choice = Choice { old: old.as_ref(), min_recordings: self.how.min_runs, blocks_max };
        let (bytes, unreadable) = self.recorder.pack(&*self.fs, &self.subject, &choice, threads)?;
        if let Unreadable { blocks, first: Some(first) } = unreadable {
            say(&format!("{blocks} blocks cannot be read again, and the image goes without them: {first}"));
        }
        let image = BootImage::parse(bytes).map_err(|damage| {
            Failure::cannot(format!("the boot image just made is not readable: {damage}"))
        })?;
        if image.files() == 0 {
            return Err(Failure::cannot("no block is left to keep"));
        }
        place.replace(image.as_bytes(), self.how.force)?;
        Ok(Recorded {
            failure: None,
            files: self.recorder.files() as u64,
            blocks: self.recorder.blocks() as u64,
            image_files: image.files().into(),
            image_contents: image.contents().into(),
            image_bytes: image.file_bytes(),
            recordings: image.recordings(),
        })
    }
}

/// Opens a tree and compares it with its index, as far as this is done before the namespace exists.
/// Returns the differences, too.
fn open_tree(
    plan: &Plan,
    tree: &TreePlan,
    files: &mut Files,
) -> std::result::Result<(ReadyTree, Option<Stale>), Failure> {
    let file = match files.remove(&tree.index) {
        Some(file) => file,
        None => Named::open(&tree.index)?.file,
    };
    let image = memory::load_index(&file, &tree.index).map_err(|failure| match failure.is_damage() {
        true => failure,
        false => failure.and_final(),
    })?;
    let image = Arc::new(image);
    let root = root_of(&image);
    if let Some(named) = tree.named.as_ref().filter(|named| **named != root) {
        return Err(Failure::refused(format!(
            "{} is an index of {}, not of {}: index that directory, or tell with --source or --at where the tree of the index is",
            shown(&tree.index),
            shown(&root),
            shown(named)
        )));
    }
    let source = tree.source.clone().unwrap_or(root);
    let index_is_roots = quell_mount_spec::belongs_to_root(&file);
    let rules = rules(plan, index_is_roots)?;
    let covered = quell_mount_spec::cover(image.clone(), &source, plan.layer_on_change(), rules)?;
    // So far, only the path of the tree was taken from the index.
    let owner = Ownership::from(&covered.source().stat_self()?);
    trust::check(&plan.trusted(), &file, &tree.index, TrustedUse::Index, Some((&source, &owner)))?;
    let path = match &plan.place {
        Place::Mountpoint { path, .. } => path.clone(),
        Place::Namespace => tree.at.clone().unwrap_or_else(|| covered.source_path.clone()),
    };
    let seed = u64::from(std::process::id()) << 32
        | u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.subsec_nanos()));
    let mut sampler = Sampler::new(image.clone(), covered.source(), seed);
    let stale = match plan.check {
        Check::None => None,
        Check::Sample | Check::Auto => {
            let differences = sample(&runtime::stamp_of(plan, &image, &source), &image, &mut sampler);
            Stale::of(&differences, false)
        }
        Check::Full => Stale::of(&full_check(plan, &image, &source)?, true),
    };
    let planned = match (plan.check, &stale) {
        (Check::Auto, None) => WholeTree::plan(&image, &source, &plan.directory),
        _ => Planned::default(),
    };
    let (whole, stale) = (planned.check, stale.or(planned.stale));
    let index = tree.index.clone();
    let ready = ReadyTree { covered, index, index_is_roots, path, sampler, whole, watch: None };
    Ok((ready, stale))
}

/// Reports trees that are not covered because their indexes are out of date. This is an error with
/// --strict, or if no tree is left.
fn leave_out(
    plan: &Plan,
    stale: Vec<(PathBuf, PathBuf, Stale)>,
    is_all: bool,
) -> std::result::Result<(), Failure> {
    if stale.is_empty() {
        return Ok(());
    }
    if plan.strict || is_all {
        let messages: Vec<String> = stale.iter().map(|(index, _, stale)| stale.message(index, "")).collect();
        return Err(Failure::cannot(messages.join("\n")));
    }
    for (index, path, stale) in &stale {
        say(&stale.message(index, &format!(": {} is not covered", shown(path))));
    }
    Ok(())
}

/// Starts the checks of whole trees; views are created meanwhile. Returns the time until which the
/// start waits for the checks that it depends on.
fn begin_checks(plan: &Plan, trees: &mut [ReadyTree]) -> Instant {
    for tree in trees {
        let report = late_report(plan, &tree.index, &tree.covered.source_path);
        tree.watch = tree.whole.take().map(|whole| whole.begin(report));
    }
    Instant::now() + freshness::START_WAIT
}

/// Returns the function that reports differences found after the program's start, and with --strict
/// ends the programs of the view.
fn late_report(plan: &Plan, index: &Path, source: &Path) -> impl FnOnce(&Stale) + Send + 'static {
    let (index, source) = (index.to_owned(), source.to_owned());
    let ends = plan.strict && matches!(plan.place, Place::Namespace);
    move |stale| {
        let consequence = match ends {
            true => ": ending the program, as --strict asks".into(),
            false => format!(": the program sees {} as it was indexed", shown(source)),
        };
        say(&stale.message(&index, &consequence));
        if !ends {
            return;
        }
        loop {
            // Also ends programs that join from now on; the holder ends after the last one.
            quell_overlay::end_other_members(END_GRACE);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Formats a difference as `quell verify` prints it.
pub fn line_of(difference: &Difference) -> String {
    let path = match difference.path.is_empty() {
        true => ".".into(),
        false => shown_bytes(&difference.path),
    };
    match &difference.what {
        Change::Added => format!("+ {path}"),
        Change::Removed => format!("- {path}"),
        Change::Changed(what) => format!("~ {path} ({})", what.join(", ")),
    }
}

/// Compares a sample. The file `stamp` exists if a recent sample on this node found no difference.
fn sample(stamp: &Path, image: &Image, sampler: &mut Sampler) -> Vec<Difference> {
    let (mut differences, mut answers) = (Vec::new(), 0);
    let age = std::fs::metadata(stamp).and_then(|metadata| metadata.modified()).map(|at| at.elapsed());
    // A stamp with a time in the future is ignored.
    let looks = match age {
        Ok(Ok(age)) if age < CHECK_LASTS => {
            sampler.skip_path_to_fullest();
            SAMPLE_LOOKS_AGAIN
        }
        _ => SAMPLE_LOOKS,
    };
    // For a tree with fewer entries, the number of steps is the number of entries.
    for _ in 0..looks.min(image.entries()) {
        // An error of the file system is no difference; the program gets the same error.
        if let Ok(answer) = sampler.step() {
            answers += 1;
            differences.extend(answer);
        }
    }
    differences.dedup();
    runtime::sweep_stamps(stamp, CHECK_LASTS);
    // If the stamp cannot be written, the next start makes more requests, and nothing else changes.
    let _ = match (differences.is_empty(), looks) {
        (true, SAMPLE_LOOKS) if answers > 0 => {
            File::options().write(true).create(true).truncate(true).mode(0o600).open(stamp).map(drop)
        }
        (true, _) => Ok(()),
        (false, _) => std::fs::remove_file(stamp),
    };
    differences
}

fn full_check(plan: &Plan, image: &Image, source: &Path) -> std::result::Result<Vec<Difference>, Failure> {
    let reading = Reading {
        directory: source,
        root_path: &root_of(image),
        options: &BuildOptions::from_image(image)?,
        threads: CHECK_THREADS,
        trust: None,
        expected: Some(image.entries().into()),
        quiet: plan.quiet,
    };
    // Ctrl-C ends the run, but not this process, which has its own session. The check therefore
    // ends when the run has ended.
    let run = PathBuf::from(format!("/proc/{}", plan.creator));
    let tree = reading.read_unless(&|| !run.exists())?;
    let now = image_of(&tree)?;
    let mut differences = Vec::new();
    compare(image, &now, &mut |difference| {
        differences.push(difference);
        true
    });
    Ok(differences)
}

pub(super) fn say(message: &str) {
    streams::say(message);
}

impl Cover {
    fn report(&self) -> TreeReport {
        TreeReport {
            index: self.index.clone(),
            generation: self.covered.image.generation().to_string(),
            path: self.path.clone(),
            source: self.covered.source_path.clone(),
            view: self.view.name().into(),
            reason: self.reason.clone(),
            entries: self.covered.image.entries().into(),
            looks: self.looks,
            changes: self.changes + self.watch.as_ref().map_or(0, Watch::changes),
            counters: self.counters(),
        }
    }

    /// Returns `None` if the kernel alone serves the view and nothing is counted.
    fn counters(&self) -> Option<BTreeMap<String, u64>> {
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        for session in &self.sessions {
            for (name, value) in session.counters().snapshot().pairs() {
                *counters.entry(name.to_owned()).or_default() += value;
            }
        }
        if let Some(heat) = &self.heat {
            let served = heat.hot.served();
            counters.insert("blocks_from_memory".into(), served.from_memory);
            counters.insert("blocks_from_source".into(), served.from_source);
            counters.insert("blocks_cached".into(), heat.cached_bytes.div_ceil(BLOCK_BYTES as u64));
            counters.insert("files_whole".into(), heat.whole_files);
        }
        (!counters.is_empty()).then_some(counters)
    }

    /// Compares one entry with the tree. Each change is reported, up to a limit.
    fn look(&mut self) {
        self.looks += 1;
        let Ok(Some(difference)) = self.sampler.step() else { return };
        self.changes += 1;
        if self.changes <= CHANGES_SHOWN {
            say(&format!(
                "{} changed while it is covered: {}; programs see it as it was indexed",
                shown(&self.covered.source_path),
                line_of(&difference)
            ));
        }
    }
}

impl Established {
    /// Serves until the last program has ended. Returns a recording that must be finished.
    fn serve(self, plan: &Plan) -> Result<Option<Unfinished>> {
        let at_mountpoint = matches!(plan.place, Place::Mountpoint { .. });
        let looking = plan.recheck > 0.0;
        let interval = if looking { 1.0 / plan.recheck.min(1000.0) } else { 1.0 };
        let interval = Duration::from_secs_f64(interval.min(if at_mountpoint { 1.0 } else { 3600.0 }));
        let covers = std::cell::RefCell::new(self.covers);
        let mountpoint = plan.place.mountpoint();
        let messages = message_log(plan);
        let (mut signals, mut mounted) = (self.signals, self.mounted);
        let mut report = || {
            let trees = covers.borrow().iter().map(Cover::report).collect();
            let (pid, mountpoint, messages) = (std::process::id(), mountpoint.clone(), messages.clone());
            let report = Report { pid, mountpoint, trees, messages, ..Report::default() };
            serde_json::to_string(&report).unwrap_or_default()
        };
        let mut need = || {
            let requests = signals.requests();
            let covers = covers.borrow();
            let mut sessions = covers.iter().flat_map(|cover| &cover.sessions).peekable();
            // A view without sessions is served by the kernel alone.
            let is_served = sessions.peek().is_some();
            let is_over = sessions.any(Session::is_over);
            // Programs that still write need the lock of the writable layer, which this process
            // holds.
            let is_written = plan.writes != Writes::Refused;
            match &mut mounted {
                Some(_) if is_over => Need::Over,
                Some(mounted) if is_written => mounted.need(requests, InUse::Keep),
                Some(mounted) if is_served => mounted.need(requests, InUse::DetachAndServe),
                Some(mounted) => mounted.need(requests, InUse::Detach),
                None if requests == 0 || requests == 1 && (is_served || is_written) => Need::Listed,
                None => Need::Over,
            }
        };
        let mut turn = 0;
        // The tree was compared just before the start, so short runs need no further check.
        let mut rest = if plan.check == Check::None { 0 } else { INTERVALS_BEFORE_LOOKS };
        let mut tick = || {
            if rest > 0 {
                rest -= 1;
                return;
            }
            let mut covers = covers.borrow_mut();
            if looking && !covers.is_empty() {
                // One check per interval, regardless of the number of trees.
                turn = (turn + 1) % covers.len();
                covers[turn].look();
            }
        };
        let mut creator_ended = || release_error_of(plan);
        let namespaces = self.namespaces.as_ref();
        self.holder.serve(namespaces, interval, &mut report, &mut need, &mut tick, &mut creator_ended)?;
        Ok(self.recording)
    }

    /// Removes the mount at once, because the command that requested it was killed.
    fn abandon(mut self) {
        if let Some(mounted) = &mut self.mounted {
            mounted.abandon();
        }
        self.holder.abandon();
    }
}
