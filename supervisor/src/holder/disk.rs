//! The view of a disk image of virtual machines.
//!
//! The files of a disk image are covered one by one at their own paths, or shown in a directory.
//! Blocks of a boot image come from the memory of the holder process, all other blocks from the
//! files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quell_boot::{Disks, DisksFs, Recorder, RecorderFs, Subject};
use quell_fuse::Session;
use quell_mount_spec::{ChainFile, DiskNames, OpenDisks, Ownership, Reached, disk_chain};
use quell_overlay::{FilePart, Isolation, Namespaces};
use quell_vfs::FileSystem;

use crate::disk_plan::{chain_state, trusted_owners};
use crate::display::{counted, shown};
use crate::failure::Failure;
use crate::holder::disk_boot::add_boot_image;
use crate::holder::handshake::HolderContext;
use crate::holder::in_flight::report_on_signal;
use crate::holder::messages::Messages;
use crate::holder::own_mount::{BusyPolicy, OwnMount};
use crate::holder::privileges::{isolate, isolation};
use crate::holder::recording::ActiveRecording;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::mount_point::refuse_mounted;
use crate::mount_table::mount_source;
use crate::protocol::plan::{BootPlan, DiskPlan, Target};
use crate::protocol::report::{HolderReport, TreeReport};
use crate::protocol::transfer::OpenFiles;
use crate::record::image::Recorded;
use crate::socket::server::{Holder, Need, Service};

/// The view of a disk image.
pub struct DiskView {
    holder: Holder,
    namespaces: Option<Namespaces>,
    session: Session,
    watched: WatchedDisk,
    rechecks_per_second: f64,
    recording: Option<ActiveRecording>,
    signals: Signals,
    /// The mount, if there is a mount point.
    mount: Option<OwnMount>,
}

/// The files of the disk image, of which one is checked for changes at each interval.
struct WatchedDisk {
    disk: PathBuf,
    /// The path at which programs see the disk image.
    path: PathBuf,
    disks: Arc<Disks>,
    files: Vec<ChainFile>,
    /// For each file, whether its change was reported.
    reported: Vec<bool>,
    /// Number of checks.
    checks: u64,
}

impl DiskView {
    /// Covers the files of a disk image. `opened` has the files that were sent with the plan.
    pub fn create(
        context: &HolderContext,
        disk: &DiskPlan,
        mut opened: OpenFiles,
    ) -> Result<DiskView, Failure> {
        let target = &context.plan.target;
        let trusted = trusted_owners(target, &context.plan.trust_owners);
        let chain = disk_chain(&disk.path, disk.format.map(Into::into), trusted.as_ref())?;
        if chain.iter().map(|file| &file.path).ne(&disk.files) || chain_state(&chain) != disk.state {
            return Err(Failure::cannot(format!(
                "{} changed while it was opened: run the command again when no program writes to it",
                shown(&disk.path)
            )));
        }
        let isolation = isolation();
        // In a user namespace that maps one user, files of other users would show as 65534. All
        // files are therefore shown as the caller's. If other users may access the mount, the files
        // keep their owners and modes, which decide about this access.
        let allows_others = matches!(target, Target::Mountpoint { allow_other: true, .. });
        let owner = (isolation == Isolation::UserAndMount && !allows_others)
            .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
        let names = match target {
            Target::Namespace | Target::Processes => DiskNames::Numbers,
            Target::Mountpoint { .. } => DiskNames::Relative,
        };
        if names == DiskNames::Relative {
            report_files_not_shown(context, &chain)?;
        }
        let paths_now = chain.iter().map(|file| file.path.as_os_str().as_encoded_bytes().to_vec()).collect();
        let OpenDisks { disks, files } = OpenDisks::new(chain, names, owner)?;
        let (disks, pending) = add_boot_image(context, &disk.boot, &mut opened, disks, &files)?;
        let disks = Arc::new(disks);
        let mut fs: Arc<dyn FileSystem> = Arc::new(DisksFs(disks.clone()));
        let mut recording = None;
        if let BootPlan::Record(plan) = &disk.boot {
            let recorder = Recorder::new();
            let recorded = Recorded {
                recorder: recorder.clone(),
                fs: fs.clone(),
                subject: Subject::Disk(paths_now),
                trusted: context.plan.trusted(),
                owner: Ownership::from(&files[0].stat),
            };
            recording = Some(ActiveRecording::new(plan, recorded, &context.messages)?);
            fs = Arc::new(RecorderFs::new(fs, recorder));
        }
        let signals = Signals::listen()?;
        if let Some(path) = target.mountpoint() {
            // Another user may have mounted there since the command checked.
            refuse_mounted(path)?;
        }
        let (session, path) = mount(context, disk, fs, &files, isolation)?;
        // No thread may exist before the namespace is created.
        if let Some(pending) = pending {
            pending.load(&context.messages);
        }
        if context.plan.verbose {
            context.print(&description(&disk.path, files.len() - 1, &path, target));
        }
        let mut holder = Holder::bind(&context.address.directory, &context.address.key)?;
        holder.wait_for_creator(context.creator);
        signals.wake(&mut holder)?;
        let mount = target.mountpoint().map(OwnMount::at);
        if let Some(mount) = &mount {
            mount.wake(&mut holder)?;
        }
        let namespaces = match target {
            Target::Namespace => Some(Namespaces::of_caller(isolation == Isolation::UserAndMount)?),
            Target::Mountpoint { .. } | Target::Processes => None,
        };
        let reported = vec![false; files.len()];
        let watched = WatchedDisk { disk: files[0].path.clone(), path, disks, files, reported, checks: 0 };
        let rechecks_per_second = disk.rechecks_per_second;
        Ok(DiskView { holder, namespaces, session, watched, rechecks_per_second, recording, signals, mount })
    }
}

/// Returns the message about a view that was created. `backing_files`: the number of files that the
/// disk image depends on. `path`: the path at which the disk image is seen.
fn description(disk: &Path, backing_files: usize, path: &Path, target: &Target) -> String {
    let backing_files = match backing_files {
        0 => String::new(),
        n => format!(" with {}", counted(n as u64, "backing file", "backing files")),
    };
    let position = match target {
        Target::Namespace | Target::Processes => "covered by fuse".to_owned(),
        Target::Mountpoint { .. } => format!("mounted as {}", shown(path)),
    };
    format!("disk image {}{backing_files} {position}", shown(disk))
}

/// Mounts the file system and puts it, or the files in it, in place. Returns the path at which the
/// disk image is seen.
fn mount(
    context: &HolderContext,
    disk: &DiskPlan,
    fs: Arc<dyn FileSystem>,
    files: &[ChainFile],
    isolation: Isolation,
) -> Result<(Session, PathBuf), Failure> {
    let mut options = quell_fuse::Options {
        threads: context.plan.threads.into(),
        direct: true,
        allow_other: true,
        source: mount_source(&disk.path),
        ..quell_fuse::Options::default()
    };
    match &context.plan.target {
        Target::Mountpoint { path, allow_other } => {
            options.allow_other = *allow_other;
            Ok((quell_fuse::mount_at(fs, path, &options)?, path.clone()))
        }
        Target::Namespace | Target::Processes => {
            isolate(isolation)?;
            let (mount, session) = quell_fuse::mount_detached(fs, &options)?;
            let parts: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(number, file)| FilePart {
                    name: number.to_string(),
                    path: file.path.clone(),
                    original: file.stat.identity(),
                })
                .collect();
            quell_overlay::attach_files(&mount, &context.address.directory, &parts)?;
            Ok((session, files[0].path.clone()))
        }
    }
}

/// Reports the files of the backing chain that the mount does not show: a file that is named by an
/// absolute path is opened at that path, regardless of the directory in which the disk image is
/// shown.
fn report_files_not_shown(context: &HolderContext, chain: &[ChainFile]) -> Result<(), Failure> {
    if let Some(data) = chain.iter().find(|file| file.is_data_file) {
        return Err(Failure::wrong_input(format!(
            "{} has its data in {}, which virtual machines open by that path: use `quell run --image`, which covers both files",
            shown(&chain[0].path),
            shown(&data.path)
        )));
    }
    let outside = chain.iter().find_map(|file| match &file.reached {
        Reached::Elsewhere(path) => Some(path),
        Reached::Within(_) => None,
    });
    let Some(outside) = outside else { return Ok(()) };
    let message = format!(
        "{} has the backing file {}, which is not below its directory: virtual machines open it by that path, and nothing \
         of it is served from memory; `quell run --image` covers it, too",
        shown(&chain[0].path),
        shown(outside)
    );
    if context.plan.strict {
        return Err(Failure::wrong_input(message));
    }
    context.print(&message);
    Ok(())
}

impl WatchedDisk {
    /// Checks one file for a change. A failed check is not reported: it proves no change, and
    /// machines get the error themselves.
    fn check_next(&mut self, messages: &Messages) {
        let number = self.checks as usize % self.files.len();
        self.checks += 1;
        if self.reported[number] || !self.files[number].has_changed().unwrap_or(false) {
            return;
        }
        self.reported[number] = true;
        self.disks.mark_changed(number);
        messages.print(&format!(
            "{} has changed while it is served: its boot image is not used any more, and running virtual machines may \
             combine old data with new: restart them",
            shown(&self.files[number].path)
        ));
    }

    fn report(&self, session: &Session) -> TreeReport {
        let pairs = session.counters().snapshot().pairs();
        let mut counters: BTreeMap<_, _> = pairs.map(|(name, value)| (name.to_owned(), value)).collect();
        let served = self.disks.served();
        counters.insert("blocks_from_memory".into(), served.from_memory);
        counters.insert("blocks_from_source".into(), served.from_source);
        TreeReport {
            index: self.disk.clone(),
            generation: String::new(),
            path: self.path.clone(),
            source: self.disk.clone(),
            view: "fuse".into(),
            reason: "a disk image".into(),
            entries: self.files.len() as u64,
            looks: self.checks,
            changes: self.reported.iter().filter(|reported| **reported).count() as u64,
            counters: Some(counters),
        }
    }

    /// Returns the path of the first file that changed since it was opened.
    fn changed(&self) -> Option<&Path> {
        self.files.iter().find(|file| file.has_changed().unwrap_or(true)).map(|file| &*file.path)
    }
}

/// The view of a disk image while it is served.
struct ServedDisk<'a> {
    context: &'a HolderContext,
    session: Session,
    watched: WatchedDisk,
    mount: Option<OwnMount>,
    signals: Signals,
    /// Whether the files are checked for changes while they are served.
    rechecks: bool,
}

impl Service for ServedDisk<'_> {
    fn report(&self) -> String {
        HolderReport {
            pid: std::process::id(),
            mountpoint: self.context.plan.target.mountpoint().map(Path::to_owned),
            trees: vec![self.watched.report(&self.session)],
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
        let requests = self.signals.requests();
        match &mut self.mount {
            Some(_) if self.session.is_over() => Need::Over,
            Some(mount) => mount.need(requests, BusyPolicy::DetachAndServe, &self.context.messages),
            None if requests < 2 => Need::Joinable,
            None => Need::Over,
        }
    }

    fn tick(&mut self) {
        if self.rechecks {
            self.watched.check_next(&self.context.messages);
        }
    }

    fn creator_ended(&mut self) {
        self.context.release_error_of_creator();
    }
}

impl Served for DiskView {
    fn report_start(&self) -> Result<(), Failure> {
        self.recording.as_ref().map_or(Ok(()), ActiveRecording::report_start)
    }

    fn is_mounted(&self) -> bool {
        self.mount.is_some()
    }

    fn abandon(self, _context: &HolderContext) {
        self.session.stop();
        self.holder.abandon();
    }

    fn serve(self, context: &HolderContext) -> Result<(), Failure> {
        let DiskView { holder, namespaces, session, watched, recording, signals, mount, .. } = self;
        report_on_signal(vec![session.in_flight()], &context.messages)?;
        let mountpoint = context.plan.target.mountpoint();
        let rechecks = self.rechecks_per_second > 0.0;
        let interval = if rechecks { 1.0 / self.rechecks_per_second.min(1000.0) } else { 3600.0 };
        let interval = Duration::from_secs_f64(interval.min(if mountpoint.is_some() { 1.0 } else { 3600.0 }));
        let mut served = ServedDisk { context, session, watched, mount, signals, rechecks };
        holder.serve(namespaces.as_ref(), interval, &mut served)?;
        if let Some(recording) = recording {
            match served.watched.changed() {
                Some(path) => {
                    recording.fail(Failure::cannot(format!(
                        "{} has changed during the recording: record again",
                        shown(path)
                    )));
                }
                None => recording.finish(),
            }
        }
        Ok(())
    }
}
