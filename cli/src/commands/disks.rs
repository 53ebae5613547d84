//! Disk images of virtual machines: checks the `--image` options of `run`, `mount` and `record`,
//! and serves the images.
//!
//! The files of a disk image are covered one by one at their own paths, or shown in a directory.
//! Blocks of a boot image come from the memory of the holder process, all other blocks from the
//! files.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use quell_boot::{Disks, DisksFs, Fit, Kind, LoadingContents, Recorder, RecorderFs, Subject};
use quell_fuse::Session;
use quell_mount_spec::{
    ChainFile, DiskFormat, DiskNames, OpenBoot, OpenDisks, Ownership, Reached, TrustedUse, disk_chain,
};
use quell_overlay::{FilePart, Holder, Isolation, Namespaces, Need};
use quell_vfs::FileSystem;

use crate::arguments::{Check, CoverArgs, ImageFormatArg, ImageFormatArgs, ViewArg};
use crate::commands::holder::{
    Files, Unfinished, answer, answer_ready, end_messages, isolation, message_log, release_error_of, say,
};
use crate::ending::{InUse, MountedAt, Signals};
use crate::failure::Failure;
use crate::inputs::{Named, shown, shown_bytes};
use crate::plan::{Answer, DiskPlan, Place, Plan, Refusal, Report, TreeReport};
use crate::{memory, mounts, trust};

/// Number of frames of a boot image that are read at once: a disk with other load serves a single
/// reader slowly.
const FILL_THREADS: usize = 8;

impl From<ImageFormatArg> for DiskFormat {
    fn from(format: ImageFormatArg) -> DiskFormat {
        match format {
            ImageFormatArg::Qcow2 => DiskFormat::Qcow2,
            ImageFormatArg::Raw => DiskFormat::Raw,
        }
    }
}

/// Checks the options and the files before anything is served, and returns the plan.
pub fn plan_of(path: &Path, format: ImageFormatArgs, cover: &CoverArgs) -> Result<DiskPlan, Failure> {
    let for_trees = [
        ("--source", cover.source.is_some()),
        ("--at", cover.at.is_some()),
        ("--scratch", cover.scratch),
        ("--writable", cover.writable.is_some()),
        ("--view", !matches!(cover.view, ViewArg::Auto | ViewArg::Fuse)),
        ("--check full", cover.check == Check::Full),
    ];
    if let Some((option, _)) = for_trees.iter().find(|(_, given)| *given) {
        return Err(Failure::wrong_input(format!("{option} is for trees, and does not go with --image")));
    }
    let format = format.image_format;
    let chain = disk_chain(path, format.map(Into::into))?;
    let state = state_of(&chain);
    let files = chain.into_iter().map(|file| file.path).collect();
    let path =
        std::path::absolute(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?;
    Ok(DiskPlan { path, format, files, state })
}

/// Returns a text that identifies the state of the files. Machines whose files are in the same
/// state share one view.
fn state_of(chain: &[ChainFile]) -> String {
    let of = |ChainFile { stat, .. }: &ChainFile| {
        let modified = stat.modified;
        let (device, inode) = stat.identity();
        format!("{device}.{inode}.{}.{}.{}", stat.size_bytes, modified.seconds, modified.nanoseconds)
    };
    chain.iter().map(of).collect::<Vec<_>>().join(" ")
}

/// Checks that a disk image and its backing chain can be opened.
pub fn check(path: &Path, format: ImageFormatArgs) -> Result<(), Failure> {
    disk_chain(path, format.image_format.map(Into::into))?;
    Ok(())
}

/// Checks the number of boot images: exactly one, or none for a recording.
pub fn check_boots(boots: usize, recording: bool) -> Result<(), Failure> {
    match (boots, recording) {
        (1, _) | (0, true) => Ok(()),
        (0, false) => Err(Failure::wrong_input(
            "--image goes with -b, the boot image that `quell record --image` wrote",
        )),
        _ => Err(Failure::wrong_input(
            "one boot image goes with --image; `quell boot merge` joins several of one disk",
        )),
    }
}

/// Runs the holder of a disk image: answers, serves until the last program has ended, and finishes
/// a recording. `opened` has the files that were sent, opened, with the plan.
pub fn hold(plan: &Plan, lock: File, opened: Files) -> Result<ExitCode, Failure> {
    match establish(plan, opened) {
        Ok(served) => {
            if let Some(recording) = &served.recording {
                recording.tell_begun()?;
            }
            if !answer_ready(plan) && served.mounted.is_some() {
                served.abandon();
                return Ok(ExitCode::SUCCESS);
            }
            drop(lock);
            quell_overlay::sweep(&plan.directory);
            let served = served.serve(plan);
            end_messages(plan);
            served?;
        }
        Err(failure) => {
            answer(&Answer { refused: Some(Refusal::from(&failure)) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Served {
    holder: Holder,
    namespaces: Option<Namespaces>,
    session: Session,
    watched: Watched,
    recording: Option<Unfinished>,
    signals: Signals,
    /// The mount, if there is a mount point.
    mounted: Option<MountedAt>,
}

/// The files of the disk image, of which one is checked for changes at each interval.
struct Watched {
    disk: PathBuf,
    /// The path at which programs see the disk image.
    path: PathBuf,
    disks: Arc<Disks>,
    files: Vec<ChainFile>,
    /// For each file, whether its change was reported.
    said: Vec<bool>,
    looks: u64,
}

fn establish(plan: &Plan, mut opened: Files) -> Result<Served, Failure> {
    let disk = plan.disk.as_ref().expect("asked before");
    let chain = disk_chain(&disk.path, disk.format.map(Into::into))?;
    if chain.iter().map(|file| &file.path).ne(&disk.files) || state_of(&chain) != disk.state {
        return Err(Failure::cannot(format!("{} is being changed", shown(&disk.path))));
    }
    let isolation = isolation();
    // In a user namespace that maps one user, files of other users would show as 65534. If other
    // users have access, files keep their owners and groups, because these and the modes decide
    // about access.
    let others_look = matches!(plan.place, Place::Mountpoint { allow_other: true, .. });
    let owner = (isolation == Isolation::UserAndMount && !others_look)
        .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    let names = match plan.place {
        Place::Namespace => DiskNames::Numbers,
        Place::Mountpoint { .. } => DiskNames::Relative,
    };
    if names == DiskNames::Relative {
        say_what_is_not_shown(plan, &chain)?;
    }
    let paths_now = chain.iter().map(|file| file.path.as_os_str().as_encoded_bytes().to_vec()).collect();
    let OpenDisks { disks, files } = OpenDisks::new(chain, names, owner)?;
    let (disks, coming) = match plan.boots.first() {
        Some(boot) => heat(plan, boot, opened.remove(boot), disks, &files)?,
        None => (disks, None),
    };
    let disks = Arc::new(disks);
    let mut fs: Arc<dyn FileSystem> = Arc::new(DisksFs(disks.clone()));
    let mut recording = None;
    if let Some(how) = &plan.recording {
        let recorder = Recorder::new();
        let trust = (plan.trusted(), Ownership::from(&files[0].stat));
        recording = Some(Unfinished::of(how, recorder.clone(), fs.clone(), Subject::Disk(paths_now), trust)?);
        fs = Arc::new(RecorderFs::new(fs, recorder));
    }
    let signals = Signals::listen()?;
    if let Some(path) = plan.place.mountpoint() {
        // Another user may have mounted there since the command checked.
        super::mount::refuse_taken(&path)?;
    }
    let (session, path) = mount(plan, disk, fs, &files, isolation)?;
    // No thread may exist before the namespace is created.
    if let Some(coming) = coming {
        coming.fill();
    }
    if !plan.quiet {
        let others = match files.len() {
            1 => String::new(),
            2 => " and the file that it lies on".to_owned(),
            n => format!(" and {} files that it lies on", n - 1),
        };
        say(&format!("{}{others} served at {}", shown(&disk.path), shown(&path)));
    }
    let mut holder = Holder::bind(&plan.directory, &plan.key)?;
    holder.wait_for_creator(plan.creator);
    signals.wake(&mut holder)?;
    let mounted = plan.place.mountpoint().map(|path| MountedAt::of(&path));
    if let Some(mounted) = &mounted {
        mounted.wake(&mut holder)?;
    }
    let namespaces = match plan.place {
        Place::Namespace => Some(Namespaces::of_caller(isolation == Isolation::UserAndMount)?),
        Place::Mountpoint { .. } => None,
    };
    let said = vec![false; files.len()];
    let watched = Watched { disk: files[0].path.clone(), path, disks, files, said, looks: 0 };
    Ok(Served { holder, namespaces, session, watched, recording, signals, mounted })
}

/// Mounts the file system and puts it, or the files in it, in place. Returns the path at which the
/// disk image is seen.
fn mount(
    plan: &Plan,
    disk: &DiskPlan,
    fs: Arc<dyn FileSystem>,
    files: &[ChainFile],
    isolation: Isolation,
) -> Result<(Session, PathBuf), Failure> {
    let mut options = quell_fuse::Options {
        threads: plan.threads.into(),
        direct: true,
        allow_other: true,
        source: mounts::source_of(&disk.path),
        ..quell_fuse::Options::default()
    };
    match &plan.place {
        Place::Mountpoint { path, allow_other } => {
            options.allow_other = *allow_other;
            Ok((quell_fuse::mount_at(fs, path, &options)?, path.clone()))
        }
        Place::Namespace => {
            quell_overlay::isolate(isolation)
                .map_err(|e| Failure::cannot(format!("{e}; `quell doctor` tells how this may be allowed")))?;
            let (mount, session) = quell_fuse::mount_detached(fs, &options)?;
            let parts: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(place, file)| FilePart {
                    name: place.to_string(),
                    path: file.path.clone(),
                    original: file.stat.identity(),
                })
                .collect();
            quell_overlay::attach_files(&mount, &plan.directory, &parts)?;
            Ok((session, files[0].path.clone()))
        }
    }
}

/// Reports the files of the backing chain that the mount does not show: a file that is named by an
/// absolute path is opened at that path, regardless of the directory in which the disk image is
/// shown.
fn say_what_is_not_shown(plan: &Plan, chain: &[ChainFile]) -> Result<(), Failure> {
    if let Some(data) = chain.iter().find(|file| file.is_data_file) {
        return Err(Failure::wrong_input(format!(
            "{} has its data in {}, which machines open there: `quell run --image` covers both",
            shown(&chain[0].path),
            shown(&data.path)
        )));
    }
    let past = chain.iter().find_map(|file| match &file.reached {
        Reached::Elsewhere(path) => Some(path),
        Reached::Within(_) => None,
    });
    let Some(past) = past else { return Ok(()) };
    let message = format!(
        "{} lies on {}, which is not below its directory: machines open it there, and nothing of it comes from memory; \
         `quell run --image` covers it, too",
        shown(&chain[0].path),
        shown(past)
    );
    if plan.strict {
        return Err(Failure::wrong_input(message));
    }
    say(&message);
    Ok(())
}

/// A boot image whose blocks are still to be loaded.
struct Coming {
    boot: OpenBoot,
    contents: Arc<LoadingContents>,
    path: PathBuf,
}

impl Coming {
    /// Loads the blocks in a separate thread. Machines already run meanwhile, and begin with other
    /// work. A request for a block that is not loaded yet waits for it.
    fn fill(self) {
        std::thread::spawn(move || {
            if let Err(e) = self.boot.load(&self.contents, FILL_THREADS) {
                say(&format!("{}: {e}; the rest of it is not served from memory", shown(&self.path)));
            }
        });
    }
}

/// Adds the boot image to the files that it fits. A misfit is reported; with `--strict` it is an
/// error.
fn heat(
    plan: &Plan,
    boot: &Path,
    opened: Option<File>,
    disks: Disks,
    files: &[ChainFile],
) -> Result<(Disks, Option<Coming>), Failure> {
    let open = match load(plan, boot, opened, files) {
        Ok(open) => open,
        Err(failure) if plan.strict || failure.is_final() => return Err(failure),
        Err(failure) => {
            say(&format!("{failure}; nothing of it is served from memory"));
            return Ok((disks, None));
        }
    };
    let mut fitting = 0;
    for fit in disks.fits(&open.image) {
        let Some(misfit) = misfit(&fit, boot, files, &plan.place) else {
            fitting += usize::from(matches!(fit, Fit::Same { .. }));
            continue;
        };
        if plan.strict {
            return Err(Failure::wrong_input(misfit));
        }
        say(&format!("{misfit}; nothing of it is served from memory"));
    }
    if fitting == 0 {
        return Ok((disks, None));
    }
    let contents = LoadingContents::new(&open.image);
    let disks = disks.with_image(&open.image, contents.clone());
    if plan.strict {
        // Errors in the image are found before a machine starts.
        open.load(&contents, FILL_THREADS)
            .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(boot))))?;
        return Ok((disks, None));
    }
    Ok((disks, Some(Coming { boot: open, contents, path: boot.into() })))
}

fn load(plan: &Plan, boot: &Path, opened: Option<File>, files: &[ChainFile]) -> Result<OpenBoot, Failure> {
    let file = match opened {
        Some(file) => file,
        None => Named::open(boot)?.file,
    };
    let disk = files.first().map(|disk| (&*disk.path, Ownership::from(&disk.stat)));
    let disk = disk.as_ref().map(|(path, owner)| (*path, owner));
    trust::check(&plan.trusted(), &file, boot, TrustedUse::BootImage, disk)?;
    let mut allowed = memory::allowed(plan.budget_mib);
    let open = OpenBoot::begin(Some(file), boot, |bytes| allowed.holds(boot, bytes))?;
    let image = &open.image;
    if image.kind() != Kind::Disk {
        let message = format!(
            "{} holds files of an indexed tree, not blocks of a disk image: it goes with -i",
            shown(boot)
        );
        return Err(Failure::wrong_input(message));
    }
    // The frames are read and decoded one by one, so no memory for the compressed file is needed.
    allowed.take(boot, image.memory_bytes(), 0)?;
    Ok(open)
}

/// Returns why a file of a boot image is not served from memory, or `None` if it is.
fn misfit(fit: &Fit, boot: &Path, files: &[ChainFile], place: &Place) -> Option<String> {
    match fit {
        Fit::Same { .. } => None,
        Fit::Changed { position, recorded_path } => {
            let now = &files[*position].path;
            Some(match now.as_os_str().as_encoded_bytes() == recorded_path {
                true => {
                    format!("{} has changed since {} was recorded: record it again", shown(now), shown(boot))
                }
                false => format!(
                    "{} was recorded of {}, and {} has another size or time: it is another disk image, or a copy \
                     without its time",
                    shown(boot),
                    shown_bytes(recorded_path),
                    shown(now)
                ),
            })
        }
        // A directory shows only files that are named relative to it; the others were already
        // reported.
        Fit::Absent { .. } if matches!(place, Place::Mountpoint { .. }) && !files.is_empty() => None,
        Fit::Absent { recorded_path } => Some(format!(
            "{} was recorded of a disk image that lies on {}: {} lies on no such file",
            shown(boot),
            shown_bytes(recorded_path),
            shown(&files[0].path)
        )),
    }
}

impl Watched {
    /// Checks one file for a change. A failed check is not reported: it proves no change, and
    /// machines get the error themselves.
    fn look(&mut self) {
        let place = self.looks as usize % self.files.len();
        self.looks += 1;
        if self.said[place] || !self.files[place].has_changed().unwrap_or(false) {
            return;
        }
        self.said[place] = true;
        self.disks.mark_changed(place);
        say(&format!(
            "{} has changed while it is served: nothing of it comes from memory any more, and machines that run see what \
             they read before beside what is there now",
            shown(&self.files[place].path)
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
            looks: self.looks,
            changes: self.said.iter().filter(|said| **said).count() as u64,
            counters: Some(counters),
        }
    }

    /// Returns the path of the first file that changed since it was opened.
    fn changed(&self) -> Option<&Path> {
        self.files.iter().find(|file| file.has_changed().unwrap_or(true)).map(|file| &*file.path)
    }
}

impl Served {
    /// Removes the mount at once, because the command that requested it was killed.
    fn abandon(self) {
        self.session.stop();
        self.holder.abandon();
    }

    fn serve(self, plan: &Plan) -> Result<(), Failure> {
        let Served { holder, namespaces, session, watched, recording, mut signals, mut mounted } = self;
        let messages = message_log(plan);
        let mountpoint = plan.place.mountpoint();
        let looking = plan.recheck > 0.0;
        let interval = if looking { 1.0 / plan.recheck.min(1000.0) } else { 3600.0 };
        let interval = Duration::from_secs_f64(interval.min(if mountpoint.is_some() { 1.0 } else { 3600.0 }));
        let watched = std::cell::RefCell::new(watched);
        let mut report = || {
            let trees = vec![watched.borrow().report(&session)];
            let (pid, mountpoint, messages) = (std::process::id(), mountpoint.clone(), messages.clone());
            let report = Report { pid, mountpoint, trees, messages, ..Report::default() };
            serde_json::to_string(&report).unwrap_or_default()
        };
        let mut need = || {
            let requests = signals.requests();
            match &mut mounted {
                Some(_) if session.is_over() => Need::Over,
                Some(mounted) => mounted.need(requests, InUse::DetachAndServe),
                None if requests < 2 => Need::Listed,
                None => Need::Over,
            }
        };
        let mut tick = || {
            if looking {
                watched.borrow_mut().look();
            }
        };
        let mut creator_ended = || release_error_of(plan);
        holder.serve(namespaces.as_ref(), interval, &mut report, &mut need, &mut tick, &mut creator_ended)?;
        if let Some(recording) = recording {
            let packed = match watched.borrow().changed() {
                Some(path) => Err(Failure::cannot(format!("{} has changed meanwhile", shown(path)))),
                None => recording.pack(),
            };
            recording.tell(packed);
        }
        Ok(())
    }
}
