//! The views of trees: creates the namespace, covers the trees, serves processes that join or
//! request a report, checks the trees at intervals, and ends with the last program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_fuse::Session;
use quell_overlay::{Ids, Isolation, Namespaces};

use crate::failure::Failure;
use crate::holder::boot_images::{OpenImage, add_boot_images, open_boot_images};
use crate::holder::checked_tree::{self, CheckedTree, StaleTree, report_stale, start_checks};
use crate::holder::copies_above::{AttachedCopies, CopiesAbove};
use crate::holder::covered_view::{CoveredView, Unattached};
use crate::holder::handshake::HolderContext;
use crate::holder::hidden_mounts::HiddenMounts;
use crate::holder::in_flight::report_on_signal;
use crate::holder::own_mount::{BusyPolicy, OwnMount};
use crate::holder::privileges::{isolate, isolation};
use crate::holder::recording::ActiveRecording;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::holder::writable_layer::lock_writable_layer;
use crate::mount_point::refuse_mounted;
use crate::protocol::plan::{BootPlan, CheckMode, Target, TreesPlan, ViewChoice, Writes};
use crate::protocol::report::HolderReport;
use crate::protocol::transfer::OpenFiles;
use crate::socket::server::{Holder, Need, Service};

/// Number of intervals between the check before a run and the first check during it. A comparison
/// looks up each directory on a path, and a start of a program on a busy node takes many intervals.
const INTERVALS_BEFORE_RECHECKS: u32 = 60;

/// The views of the trees of a plan, in one namespace or at one mount point.
pub struct TreeView {
    plan: TreesPlan,
    holder: Holder,
    namespaces: Option<Namespaces>,
    views: Vec<CoveredView>,
    /// The lock of a writable layer, held while the layer is used.
    _lock: Option<File>,
    recording: Option<ActiveRecording>,
    signals: Signals,
    /// The mount, if there is a mount point.
    mount: Option<OwnMount>,
    hidden_mounts: HiddenMounts,
}

impl TreeView {
    /// Creates the views. All threads that are started before the namespace is created have ended
    /// then: a process with several threads cannot enter a user namespace (unshare(2)).
    pub fn create(context: &HolderContext, plan: &TreesPlan, files: OpenFiles) -> Result<TreeView, Failure> {
        let target = &context.plan.target;
        let mut copies = CopiesAbove::default();
        let (trees, images) = open_trees_and_images(context, plan, files, &mut copies);
        let mut trees = trees?;
        let paths = trees.iter().map(|tree| (&*tree.covered.source_path, &*tree.path));
        let lock = lock_writable_layer(&plan.writes, paths)?;
        add_boot_images(context, &plan.boot, images, &mut trees)?;
        let recording = match &plan.boot {
            BootPlan::Record(recording) => {
                let (trusted, messages) = (context.plan.trusted(), &context.messages);
                Some(ActiveRecording::of_tree(recording, trusted, &mut trees, messages)?)
            }
            BootPlan::Serve { .. } => None,
        };
        let isolation = match target {
            Target::Mountpoint { .. } | Target::Processes => None,
            Target::Namespace => Some(isolation()),
        };
        isolation.map(isolate).transpose()?;
        let in_user_namespace = isolation == Some(Isolation::UserAndMount);
        let squash = if in_user_namespace { Some(Ids::of_caller()?) } else { None };
        // Until here a signal ends this process, and nothing is mounted yet.
        let signals = Signals::listen()?;
        if let Some(path) = target.mountpoint() {
            // Another user may have mounted there since the command checked.
            refuse_mounted(path)?;
        }
        // A tree inside another is covered after it. All sources were opened before anything is
        // covered.
        trees.sort_by_key(|tree| tree.path.components().count());
        let (views, copies) = mount_views(context, plan, trees, squash, copies)?;
        if context.plan.verbose {
            views.iter().for_each(|view| context.print(&view.description()));
        }
        let mut holder = Holder::bind(&context.address.directory, &context.address.key)?;
        holder.wait_for_creator(context.creator);
        signals.wake(&mut holder)?;
        let mount = target.mountpoint().map(OwnMount::at);
        if let Some(mount) = &mount {
            mount.wake(&mut holder)?;
        }
        for view in &views {
            holder.covers(view.covered_tree()?);
        }
        copies.paths().for_each(|path| holder.copies(path));
        let hidden_mounts =
            HiddenMounts::watch(views.iter().map(CoveredView::covering).collect(), &mut holder)?;
        let namespaces = match target {
            Target::Namespace => Some(Namespaces::of_caller(in_user_namespace)?),
            Target::Mountpoint { .. } | Target::Processes => None,
        };
        Ok(TreeView {
            plan: plan.clone(),
            holder,
            namespaces,
            views,
            _lock: lock,
            recording,
            signals,
            mount,
            hidden_mounts,
        })
    }
}

/// Opens the trees of a plan, and at the same time its boot images.
fn open_trees_and_images(
    context: &HolderContext,
    plan: &TreesPlan,
    mut files: OpenFiles,
    copies: &mut CopiesAbove,
) -> (Result<Vec<CheckedTree>, Failure>, Vec<OpenImage>) {
    if plan.boot.images().is_empty() {
        return (checked_tree::open_trees(context, plan, &mut files, copies), Vec::new());
    }
    // An image whose descriptor cannot be duplicated is opened by its path.
    let duplicate = |path: &PathBuf| Some((path.clone(), files.get(path)?.try_clone().ok()?));
    let image_files: OpenFiles = plan.boot.images().iter().filter_map(duplicate).collect();
    std::thread::scope(|scope| {
        let images = scope.spawn(move || open_boot_images(context, &plan.boot, image_files));
        let trees = checked_tree::open_trees(context, plan, &mut files, copies);
        (trees, images.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Mounts and attaches the views of all trees whose checks find no difference in time.
fn mount_views(
    context: &HolderContext,
    plan: &TreesPlan,
    mut trees: Vec<CheckedTree>,
    squash: Option<Ids>,
    copies: CopiesAbove,
) -> Result<(Vec<CoveredView>, AttachedCopies), Failure> {
    let checks_end = start_checks(context, &mut trees, plan.view != ViewChoice::Fuse);
    if context.plan.target.mountpoint().is_some() {
        // Every process sees a view at a mount point as soon as it is mounted, so the checks must
        // end before that.
        let stale = trees.iter().filter_map(|tree| {
            let report = tree.running_check.as_ref()?.wait(checks_end)?;
            Some(StaleTree { index: tree.index.clone(), path: tree.path.clone(), report })
        });
        report_stale(context, &stale.collect::<Vec<_>>(), true)?;
    }
    let mounted = trees.into_iter().map(|tree| CoveredView::mount(context, plan, tree, squash.clone()));
    let mounted = mounted.collect::<Result<Vec<_>, Failure>>()?;
    let (mut views, mounts) = leave_out_stale(context, mounted, checks_end)?;
    let paths: Vec<&Path> = mounts.iter().map(|mount| &*mount.path).collect();
    let copies = copies.attach(context, &paths, squash.is_none())?;
    attach(context, &mounts, &copies)?;
    views.iter_mut().for_each(|view| view.follow_changes(context.plan.verbose));
    Ok((views, copies))
}

/// Leaves out the views of trees in which a check has found differences before the deadline.
fn leave_out_stale(
    context: &HolderContext,
    mounted: Vec<(CoveredView, Unattached)>,
    deadline: Instant,
) -> Result<(Vec<CoveredView>, Vec<Unattached>), Failure> {
    let (mut views, mut mounts, mut stale) = (Vec::new(), Vec::new(), Vec::new());
    for (view, mount) in mounted {
        match view.running_check.as_ref().and_then(|check| check.wait(deadline)) {
            None => {
                views.push(view);
                mounts.push(mount);
            }
            Some(report) => stale.push(StaleTree { index: view.index, path: view.path, report }),
        }
    }
    report_stale(context, &stale, views.is_empty())?;
    Ok((views, mounts))
}

/// Attaches the mounts. `mounts` has the mount of an inner tree after the mounts of the trees
/// around it.
fn attach(context: &HolderContext, mounts: &[Unattached], copies: &AttachedCopies) -> Result<(), Failure> {
    for (position, Unattached { mount, path, original }) in mounts.iter().enumerate() {
        let Some(mount) = mount else { continue };
        let outer = mounts[..position].iter().rev().find_map(|outer| {
            let below = path.strip_prefix(&outer.path).ok()?;
            let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
            Some((outer.mount.as_ref()?, below))
        });
        match outer {
            Some((outer, below)) => quell_overlay::attach_below(mount, outer, below)?,
            None if copies.attach_view(mount, path)? => {}
            None => context.waiting.watch(path, || quell_overlay::attach(mount, path, *original))?,
        }
    }
    Ok(())
}

/// The views while they are served.
struct ServedTrees<'a> {
    context: &'a HolderContext,
    views: Vec<CoveredView>,
    mount: Option<OwnMount>,
    hidden_mounts: HiddenMounts,
    signals: Signals,
    /// Whether programs write to a layer of the view, whose lock this process holds.
    is_writable: bool,
    /// Whether trees are compared with their indexes while they are served.
    rechecks: bool,
    /// Number of intervals without a check: the trees were compared just before the start.
    intervals_before_rechecks: u32,
    /// The view whose tree was compared last.
    compared: usize,
}

impl Service for ServedTrees<'_> {
    fn report(&self) -> String {
        HolderReport {
            pid: std::process::id(),
            mountpoint: self.context.plan.target.mountpoint().map(Path::to_owned),
            trees: self.views.iter().map(CoveredView::report).collect(),
            log: None,
            pool: None,
            blob: None,
            batch: None,
            job: None,
            messages: self.context.message_log(),
        }
        .to_json()
    }

    fn need(&mut self) -> Need {
        self.hidden_mounts.report_new(&self.context.messages);
        let requests = self.signals.requests();
        let mut sessions = self.views.iter().flat_map(|view| &view.sessions).peekable();
        // A view without sessions is served by the kernel alone.
        let is_served = sessions.peek().is_some();
        let is_over = sessions.any(Session::is_over);
        // Programs that still write need the lock of the writable layer.
        let policy = match (self.is_writable, is_served) {
            (true, _) => BusyPolicy::Keep,
            (false, true) => BusyPolicy::DetachAndServe,
            (false, false) => BusyPolicy::Detach,
        };
        match &mut self.mount {
            Some(_) if is_over => Need::Over,
            Some(mount) => mount.need(requests, policy, &self.context.messages),
            None if requests == 0 || requests == 1 && (is_served || self.is_writable) => Need::Joinable,
            None => Need::Over,
        }
    }

    /// Compares an entry of one tree, regardless of the number of trees.
    fn tick(&mut self) {
        if self.intervals_before_rechecks > 0 {
            self.intervals_before_rechecks -= 1;
        } else if self.rechecks && !self.views.is_empty() {
            self.compared = (self.compared + 1) % self.views.len();
            self.views[self.compared].compare_next();
        }
    }

    fn creator_ended(&mut self) {
        self.context.release_error_of_creator();
    }
}

impl Served for TreeView {
    fn report_start(&self) -> Result<(), Failure> {
        self.recording.as_ref().map_or(Ok(()), ActiveRecording::report_start)
    }

    fn is_mounted(&self) -> bool {
        self.mount.is_some()
    }

    fn abandon(mut self, context: &HolderContext) {
        if let Some(mount) = &mut self.mount {
            mount.abandon(&context.messages);
        }
        self.holder.abandon();
    }

    fn serve(self, context: &HolderContext) -> Result<(), Failure> {
        let plan = self.plan;
        let mountpoint = context.plan.target.mountpoint();
        let rechecks = plan.rechecks_per_second > 0.0;
        let interval = if rechecks { 1.0 / plan.rechecks_per_second.min(1000.0) } else { 1.0 };
        let interval = Duration::from_secs_f64(interval.min(if mountpoint.is_some() { 1.0 } else { 3600.0 }));
        let sessions = self.views.iter().flat_map(|view| &view.sessions);
        report_on_signal(sessions.map(Session::in_flight).collect(), &context.messages)?;
        let mut served = ServedTrees {
            context,
            views: self.views,
            mount: self.mount,
            hidden_mounts: self.hidden_mounts,
            signals: self.signals,
            is_writable: plan.writes != Writes::Refused,
            rechecks,
            intervals_before_rechecks: match plan.check {
                CheckMode::None => 0,
                _ => INTERVALS_BEFORE_RECHECKS,
            },
            compared: 0,
        };
        self.holder.serve(self.namespaces.as_ref(), interval, &mut served)?;
        if let Some(recording) = self.recording {
            recording.finish();
        }
        Ok(())
    }
}
