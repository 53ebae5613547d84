//! Chooses the view of a tree: the first in an order of preference that works. The order is a pure
//! function. Whether a view works is found out by trying it, because nothing else shows what the
//! kernel and its configuration allow.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use quell_boot::{BootFile, BootFs, Hot, HotFiles, HotSet};
use quell_fuse::Session;
use quell_index::{Image, ROOT, format};
use quell_mount_spec::Covered;
use quell_overlay::{Credentials, Ids, Layers, Powers, Redirected, Upper};
use quell_vfs::{Error, ErrorKind, FileSystem, Kind, Result};

use crate::arguments::{OnChangeArg, ViewArg};
use crate::mounts;
use crate::plan::{Plan, Writes};
use crate::runtime;

/// Kernel memory per entry of a tmpfs, in bytes: measured with 78,624 entries, see
/// docs/decisions/0004-views.md.
const TMPFS_BYTES_PER_ENTRY: u64 = 1300;

/// More threads do not fill a tmpfs faster.
const FILL_THREADS: usize = 8;

/// File system types that overlayfs refuses as a layer, or fails on, as named in the mount table.
const NO_OVERLAY_OVER: [&str; 2] = ["lustre", "gpfs"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Overlay,
    OverlayFuse,
    Fuse,
}

impl View {
    pub fn name(self) -> &'static str {
        match self {
            View::Overlay => "overlay",
            View::OverlayFuse => "overlay-fuse",
            View::Fuse => "fuse",
        }
    }
}

/// The facts about a tree that determine the order of views.
#[derive(Debug, Clone)]
pub struct Facts {
    pub entries: u64,
    pub longest_path_bytes: u64,
    /// The type of the file system that contains the data.
    pub file_system: Option<String>,
    pub memory_budget_bytes: u64,
    /// The view that the user selected.
    pub forced: ViewArg,
}

pub fn refuses_overlay(file_system: &str) -> bool {
    NO_OVERLAY_OVER.contains(&file_system)
}

/// Returns the views to try, best first, and why others are left out.
pub fn candidates(facts: &Facts) -> (Vec<View>, Vec<String>) {
    match facts.forced {
        ViewArg::Overlay => return (vec![View::Overlay], vec!["asked for".into()]),
        ViewArg::OverlayFuse => return (vec![View::OverlayFuse], vec!["asked for".into()]),
        ViewArg::Fuse => return (vec![View::Fuse], vec!["asked for".into()]),
        ViewArg::Auto => {}
    }
    let mut views = Vec::new();
    let mut reasons = Vec::new();
    let refused = facts.file_system.as_deref().filter(|kind| refuses_overlay(kind));
    let needed = facts.entries * TMPFS_BYTES_PER_ENTRY;
    if let Some(name) = refused {
        reasons.push(format!("{name} cannot be a layer of overlayfs"));
    } else if facts.longest_path_bytes >= 4095 {
        reasons.push(format!("paths of {} bytes are too long for overlayfs", facts.longest_path_bytes));
    } else if needed > facts.memory_budget_bytes {
        reasons.push(format!(
            "a tmpfs of {} entries takes {} MiB, more than the {} MiB allowed (--memory)",
            facts.entries,
            needed >> 20,
            facts.memory_budget_bytes >> 20
        ));
    } else {
        views.push(View::Overlay);
    }
    // Overlay over FUSE has all requirements of FUSE and is slower to walk, so it is used only on
    // request.
    views.push(View::Fuse);
    (views, reasons)
}

/// A working view, mounted but not attached to a path yet.
#[derive(Debug)]
pub struct Taken {
    pub view: View,
    pub reason: String,
    pub mounted: Mounted,
}

/// The mounts and sessions of one attempt.
#[derive(Debug)]
pub struct Mounted {
    /// `None` if the mount is attached already.
    pub mount: Option<OwnedFd>,
    /// The FUSE sessions; empty if the kernel alone serves the view.
    pub sessions: Vec<Session>,
    pub heat: Option<Heat>,
}

/// The blocks that a boot image added to a view.
#[derive(Debug)]
pub struct Heat {
    /// The blocks that the view's process serves.
    pub hot: Arc<Hot>,
    /// Number of whole files, which are in the tmpfs.
    pub whole_files: u64,
    /// Number of bytes that were written to the kernel's page cache.
    pub cached_bytes: u64,
}

impl Heat {
    /// Fills the kernel's page cache with the recorded blocks, so that most reads cause no request.
    fn cached(hot: Arc<Hot>, session: &mut Session, mount: &OwnedFd, covered: &Covered) -> Heat {
        let path = |node| Some((node, covered.fs.path(node).ok()?));
        let files: Vec<_> = hot.nodes().filter_map(path).collect();
        let cached_bytes = session.fill_cache(mount, &files, &|node, visit| hot.blocks_of(node, visit));
        Heat { hot, whole_files: 0, cached_bytes }
    }
}

/// The users who see a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The user who created it, with that user's permissions.
    Caller,
    /// Programs that root starts in it.
    RootsPrograms,
    /// All users of the machine; the view is mounted by root.
    Everybody,
}

/// The inputs of an attempt, besides the tree.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub plan: &'a Plan,
    /// `Some` in a user namespace that maps one user.
    pub squash: Option<Ids>,
    pub audience: Audience,
    /// Whether the index belongs to root.
    pub index_is_roots: bool,
    /// The source shown in the mount table.
    pub source_name: String,
    pub allow_other: bool,
    /// Whether there is a boot image.
    pub hot: bool,
}

impl Surroundings<'_> {
    /// Returns the options that root gave; the plan was checked.
    fn powers(&self) -> Powers {
        Powers { suid: self.plan.suid, dev: self.plan.dev }
    }
}

/// Tries views in order until one works.
pub fn take(covered: &Covered, facts: &Facts, around: &Surroundings<'_>) -> Result<Taken> {
    let (views, mut reasons) = candidates(facts);
    let mut last = None;
    for view in views {
        let attempt = match view {
            View::Overlay => overlay(covered, around),
            View::OverlayFuse => overlay_over_fuse(covered, around),
            View::Fuse => fuse(covered, around),
        };
        match attempt {
            Ok(mounted) => {
                if reasons.is_empty() {
                    reasons.push("the preferred view".into());
                }
                return Ok(Taken { view, reason: reasons.join("; "), mounted });
            }
            // Another view would decode the same damaged boot image.
            Err(e) if e.kind == ErrorKind::Damaged => return Err(e),
            Err(e) => {
                reasons.push(format!("{}: {e}", view.name()));
                last = Some(e);
            }
        }
    }
    let kind = last.map_or(ErrorKind::Unsupported, |e| e.kind);
    Err(Error::new(kind, "cover: no view works here:", reasons.join("; ")))
}

/// Returns the credentials with which the kernel opens originals for the users of the view. The
/// kernel compares nothing at an open, so a private file that replaced a public one would be
/// readable with root's permissions.
fn credentials(covered: &Covered, around: &Surroundings<'_>) -> Result<Credentials> {
    if around.audience == Audience::Caller {
        return Ok(Credentials::Mounter);
    }
    let reason = match () {
        () if around.plan.writes != Writes::Refused => {
            "of a writable view the kernel opens them with the rights of root"
        }
        () if !is_public(&covered.image) => "not all of them are readable by every user",
        () => match probe(Credentials::Nobody) {
            Ok(()) => return Ok(Credentials::Nobody),
            Err(_) => "that needs Linux 6.15 and a file system that lets every user in",
        },
    };
    // Root's own programs may read everything.
    if around.audience == Audience::RootsPrograms && around.index_is_roots {
        return Ok(Credentials::Mounter);
    }
    Err(Error::new(ErrorKind::Unsupported, "open originals with no more rights than every user has:", reason))
}

/// Returns whether the modes allow every user to read all files, list all directories and use all
/// special files.
fn is_public(image: &Image) -> bool {
    let open = |entry| {
        let attributes = image.attributes(entry);
        let needed = match attributes.kind {
            Kind::File => 0o004,
            Kind::Dir => 0o005,
            Kind::Symlink => 0,
            // A FIFO can be written to even in a read-only view.
            _ => 0o006,
        };
        attributes.permissions & needed == needed
    };
    !image.has_flag(format::FLAG_ACLS) && (ROOT..image.entries()).all(open)
}

/// Returns the tree as a layer. The directory is opened again, because the kernel accepts only
/// layers of mounts in the caller's own namespace.
fn data_layer(covered: &Covered) -> Result<OwnedFd> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    let subject = covered.source_path.as_os_str().as_encoded_bytes();
    let layer = quell_overlay::open_layer(&covered.source_path)?;
    let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&layer, "", local, StatxFlags::BASIC_STATS)
        .map_err(|e| Error::from_io(e.into(), "stat", subject))?;
    let identity = (makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino);
    if identity != covered.source().stat_self_cached()?.identity() {
        return Err(Error::new(
            ErrorKind::Stale,
            "cover a directory that was replaced at this moment:",
            subject,
        ));
    }
    Ok(layer)
}

fn overlay(covered: &Covered, around: &Surroundings<'_>) -> Result<Mounted> {
    let credentials = credentials(covered, around)?;
    probe(credentials)?;
    let tmpfs = quell_overlay::mount_tmpfs()?;
    let threads = runtime::processors().min(FILL_THREADS);
    let squash = around.squash.as_ref();
    let fs = &*covered.fs;
    let whole = covered.hot.as_ref().map(HotSet::whole).unwrap_or_default();
    let metadata = quell_overlay::fill(fs, &tmpfs, squash, &whole, threads)?;
    let mut hot_layer = None;
    if let Some(set) = &covered.hot {
        let write = |file: &BootFile<'_>, offset: u64, bytes: &[u8]| metadata.write(file.name, offset, bytes);
        let rest = set.decode_and_write(&whole, threads, &write)?;
        metadata.finish(fs, &whole)?;
        hot_layer = Some(HotLayer::new(covered, rest, whole.len() as u64, around)?);
    }
    let layer = metadata.layer;
    let upper = match &around.plan.writes {
        Writes::Scratch => {
            Some(Upper { upper: metadata.upper, work: metadata.work, same_file_system: true, mount: None })
        }
        _ => upper(covered, around)?,
    };
    join_layers(covered, layer.as_fd(), hot_layer, upper.as_ref(), None, credentials, around)
}

/// A data layer with the files whose blocks are in this process's memory.
struct HotLayer {
    heat: Heat,
    /// `None` if there are no such files.
    mount: Option<(OwnedFd, Session)>,
}

impl HotLayer {
    fn new(
        covered: &Covered,
        hot: Arc<Hot>,
        whole_files: u64,
        around: &Surroundings<'_>,
    ) -> Result<HotLayer> {
        if hot.nodes().len() == 0 {
            return Ok(HotLayer { heat: Heat { hot, whole_files, cached_bytes: 0 }, mount: None });
        }
        let options = quell_fuse::Options {
            // Opens need no request; if the first miss of a file fails, the reader gets the error.
            no_open: true,
            ..fuse_options(around, true)
        };
        let layer = Arc::new(HotFiles::new(covered.fs.clone(), hot.clone()));
        let (mount, mut session) = quell_fuse::mount_detached(layer, &options)?;
        let heat = Heat { whole_files, ..Heat::cached(hot, &mut session, &mount, covered) };
        Ok(HotLayer { heat, mount: Some((mount, session)) })
    }
}

/// Checks that the kernel accepts an unprivileged user's data-only layers, before a tmpfs is
/// filled. Both layers are empty tmpfs mounts, so this causes no request to the shared file system.
fn probe(credentials: Credentials) -> Result<()> {
    let metadata = quell_overlay::mount_tmpfs()?;
    let data = [quell_overlay::mount_tmpfs()?];
    let (metadata, powers) = (metadata.as_fd(), Powers::default());
    let layers = Layers { metadata, data: &data, upper: None, credentials, powers, source: "quell" };
    quell_overlay::mount_overlay(&layers).map(drop)
}

fn overlay_over_fuse(covered: &Covered, around: &Surroundings<'_>) -> Result<Mounted> {
    let credentials = credentials(covered, around)?;
    probe(credentials)?;
    let metadata = Arc::new(Redirected::new(covered.fs.clone()));
    // The kernel accesses the layer with the mounter's credentials, and other users' accesses must
    // not be refused.
    let options = quell_fuse::Options { fills_cache: false, ..fuse_options(around, true) };
    let (layer, session) = quell_fuse::mount_detached(metadata, &options)?;
    // Overlayfs checks access to its root by the owner in the kernel's inode, which is set only
    // after a stat.
    rustix::fs::statx(&layer, "", rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::BASIC_STATS)
        .map_err(|e| Error::from_io(e.into(), "stat", b"the metadata layer"))?;
    let hot = match &covered.hot {
        Some(set) => Some(HotLayer::new(covered, set.decode(runtime::processors())?, 0, around)?),
        None => None,
    };
    let upper = upper(covered, around)?;
    join_layers(covered, layer.as_fd(), hot, upper.as_ref(), Some(session), credentials, around)
}

fn fuse(covered: &Covered, around: &Surroundings<'_>) -> Result<Mounted> {
    let (fs, hot) = served(covered)?;
    let options = fuse_options(around, around.allow_other);
    let upper = upper(covered, around)?;
    let layer: Arc<dyn FileSystem> = match &upper {
        Some(_) => Arc::new(Redirected::with_data(fs)),
        None => fs,
    };
    let (mut mount, mut session) = quell_fuse::mount_detached(layer, &options)?;
    let heat = hot.map(|hot| Heat::cached(hot, &mut session, &mount, covered));
    if let Some(upper) = &upper {
        let layers = Layers {
            metadata: mount.as_fd(),
            data: &[],
            upper: Some(upper),
            // The FUSE view compares files at each open.
            credentials: Credentials::Mounter,
            powers: around.powers(),
            source: &around.source_name,
        };
        mount = quell_overlay::mount_overlay(&layers)?;
    }
    Ok(Mounted { mount: Some(mount), sessions: vec![session], heat })
}

type WithHot = (Arc<dyn FileSystem>, Option<Arc<Hot>>);

/// Returns the tree as a file system of this process, with all recorded blocks in memory.
fn served(covered: &Covered) -> Result<WithHot> {
    let Some(set) = &covered.hot else { return Ok((covered.fs.clone(), None)) };
    let hot = set.decode(runtime::processors())?;
    Ok((Arc::new(BootFs::new(covered.fs.clone(), hot.clone())), Some(hot)))
}

/// Mounts a FUSE view at `path`.
pub fn fuse_at(covered: &Covered, path: &Path, around: &Surroundings<'_>) -> Result<Taken> {
    let (fs, hot) = served(covered)?;
    let mut session = quell_fuse::mount_at(fs, path, &fuse_options(around, around.allow_other))?;
    let heat = match hot {
        Some(hot) => Some(Heat::cached(hot, &mut session, &quell_overlay::open_layer(path)?, covered)),
        None => None,
    };
    let mounted = Mounted { mount: None, sessions: vec![session], heat };
    Ok(Taken { view: View::Fuse, reason: "an ordinary user's mount".into(), mounted })
}

/// Mounts the layers as an overlay. `session` serves the metadata layer, unless that is a tmpfs.
fn join_layers(
    covered: &Covered,
    metadata: BorrowedFd<'_>,
    hot: Option<HotLayer>,
    upper: Option<&Upper>,
    session: Option<Session>,
    credentials: Credentials,
    around: &Surroundings<'_>,
) -> Result<Mounted> {
    let (heat, hot) = hot.map_or((None, None), |hot| (Some(hot.heat), hot.mount));
    let (hot, hot_session) = hot.unzip();
    let data: Vec<OwnedFd> = hot.into_iter().chain([data_layer(covered)?]).collect();
    let (data, powers, source) = (&data[..], around.powers(), &*around.source_name);
    let mount = quell_overlay::mount_overlay(&Layers { metadata, data, upper, credentials, powers, source })?;
    Ok(Mounted { mount: Some(mount), sessions: session.into_iter().chain(hot_session).collect(), heat })
}

pub fn fuse_options(around: &Surroundings<'_>, allow_other: bool) -> quell_fuse::Options {
    quell_fuse::Options {
        threads: around.plan.threads.into(),
        no_open: around.plan.on_change == OnChangeArg::Ignore,
        // Read-ahead would add blocks to the recording that the program did not read.
        no_read_ahead: around.plan.recording.is_some(),
        fills_cache: around.hot,
        allow_other,
        suid: around.plan.suid,
        dev: around.plan.dev,
        direct: false,
        source: around.source_name.clone(),
    }
}

/// Returns the writable layer, unless it is on the same tmpfs as the metadata.
fn upper(covered: &Covered, around: &Surroundings<'_>) -> Result<Option<Upper>> {
    let root = match &around.plan.writes {
        Writes::Refused => return Ok(None),
        Writes::Scratch => quell_overlay::mount_tmpfs()?,
        Writes::Kept(directory) => quell_overlay::open_layer(directory)?,
    };
    let open = |name: &str| -> Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "make the writable layer's", name);
        match rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o700)) {
            Ok(()) if name == "upper" => quell_overlay::finish_upper(
                &*covered.fs,
                root.as_fd(),
                name.as_bytes(),
                around.squash.as_ref(),
            )?,
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(failed(e)),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&root, name, flags, Mode::empty()).map_err(failed)
    };
    let (upper, work) = (open("upper")?, open("work")?);
    Ok(Some(Upper { upper, work, same_file_system: false, mount: Some(root) }))
}

/// Collects the facts about a tree that determine the order of views.
pub fn facts(image: &Image, source: &Path, plan: &Plan) -> Facts {
    Facts {
        entries: image.entries().into(),
        longest_path_bytes: image.longest_path_bytes(),
        file_system: mounts::file_system_of(source),
        memory_budget_bytes: plan.memory_mib << 20,
        forced: plan.view,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            entries: 1000,
            longest_path_bytes: 100,
            file_system: Some("fuse.mfs".into()),
            memory_budget_bytes: 256 << 20,
            forced: ViewArg::Auto,
        }
    }

    #[test]
    fn the_kernel_alone_comes_first_and_fuse_next() {
        assert_eq!(candidates(&facts()).0, [View::Overlay, View::Fuse]);
    }

    #[test]
    fn trees_past_the_budget_are_served_by_fuse() {
        let large = Facts { entries: 1_000_000, ..facts() };
        let (views, reasons) = candidates(&large);
        assert_eq!(views, [View::Fuse]);
        assert!(reasons[0].contains("1239 MiB"), "{reasons:?}");
    }

    #[test]
    fn file_systems_and_paths_that_overlayfs_cannot_take_go_to_fuse() {
        for facts in [
            Facts { file_system: Some("lustre".into()), ..facts() },
            Facts { file_system: Some("gpfs".into()), ..facts() },
            Facts { longest_path_bytes: 5000, ..facts() },
        ] {
            let (views, reasons) = candidates(&facts);
            assert_eq!((views, reasons.len()), (vec![View::Fuse], 1));
        }
    }
}
