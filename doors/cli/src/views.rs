//! Which view a tree gets: the first in an order that works here. Deciding is a pure function; trying is
//! the probe, as nothing else tells what a kernel and a site allow.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use quell_boot::{BootFile, BootFs, Hot, HotFiles, HotSet};
use quell_fs::{Error, ErrorKind, FileSystem, Kind, Result};
use quell_fuse::Session;
use quell_index::{Image, ROOT, format};
use quell_overlay::{Credentials, Ids, Layers, Powers, Redirected, Upper};
use quell_stack::Covered;

use crate::arguments::{OnChangeArg, ViewArg};
use crate::mounts;
use crate::plan::{Plan, Writes};
use crate::runtime;

/// Kernel memory that a tmpfs takes for one entry, in bytes: measured with 78,624 entries, see
/// docs/decisions/0004-views.md.
const TMPFS_BYTES_PER_ENTRY: u64 = 1300;

/// More threads do not fill a tmpfs faster.
const FILL_THREADS: usize = 8;

/// The file systems that overlayfs refuses or fails on as a layer, by the name in the mount table.
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

/// What is known of a tree before anything is tried.
#[derive(Debug, Clone)]
pub struct Facts {
    pub entries: u64,
    pub longest_path_bytes: u64,
    /// The kind of file system that the data lies on.
    pub file_system: Option<String>,
    pub memory_budget_bytes: u64,
    /// What the user forced.
    pub forced: ViewArg,
}

pub fn refuses_overlay(file_system: &str) -> bool {
    NO_OVERLAY_OVER.contains(&file_system)
}

/// The views to try, best first, and why others are not.
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
    // Overlay over FUSE needs all that FUSE needs and is slower to walk; it is there to be asked for.
    views.push(View::Fuse);
    (views, reasons)
}

/// A view that works, mounted but attached nowhere yet.
#[derive(Debug)]
pub struct Taken {
    pub view: View,
    pub reason: String,
    pub mounted: Mounted,
}

/// What one attempt made.
#[derive(Debug)]
pub struct Mounted {
    /// `None`: it is at its place already.
    pub mount: Option<OwnedFd>,
    /// Those that serve it, if not the kernel alone.
    pub sessions: Vec<Session>,
    pub heat: Option<Heat>,
}

/// What a boot image gave to a view.
#[derive(Debug)]
pub struct Heat {
    /// What the view's process serves.
    pub hot: Arc<Hot>,
    /// Files that lie whole in the kernel's memory.
    pub whole_files: u64,
    /// Bytes that were put into the kernel's cache.
    pub cached_bytes: u64,
}

impl Heat {
    /// Puts what is hot into the kernel's cache, from which most of it will be read without a request.
    fn cached(hot: Arc<Hot>, session: &mut Session, mount: &OwnedFd, covered: &Covered) -> Heat {
        let path = |node| Some((node, covered.fs.path(node).ok()?));
        let files: Vec<_> = hot.nodes().filter_map(path).collect();
        let cached_bytes = session.fill_cache(mount, &files, &|node, visit| hot.blocks_of(node, visit));
        Heat { hot, whole_files: 0, cached_bytes }
    }
}

/// Who sees a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The user who asked for it, with no more rights than that user has.
    Caller,
    /// Programs that root starts in it.
    RootsPrograms,
    /// Every user of the machine, of a view that root mounts.
    Everybody,
}

/// What the attempts need to know besides the tree.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub plan: &'a Plan,
    /// `Some` in a user namespace that maps one user.
    pub squash: Option<Ids>,
    pub audience: Audience,
    /// The index belongs to root.
    pub index_is_roots: bool,
    /// Shown in the list of mounts.
    pub source_name: String,
    pub allow_other: bool,
    /// There is a boot image.
    pub hot: bool,
}

impl Surroundings<'_> {
    /// What root asked for; the plan was checked.
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
                    reasons.push("the best there is".into());
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

/// With whose rights the kernel may open originals for the users of the view. It compares nothing at an open, so a
/// private file that was put in the place of a public one would be shown with the rights of root.
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

/// Whether every user may read all files, list all directories and use all special files, by their modes.
fn is_public(image: &Image) -> bool {
    let open = |entry| {
        let attributes = image.attributes(entry);
        let needed = match attributes.kind {
            Kind::File => 0o004,
            Kind::Dir => 0o005,
            Kind::Symlink => 0,
            // A pipe may be written to although the view is read-only.
            _ => 0o006,
        };
        attributes.permissions & needed == needed
    };
    !image.has_flag(format::FLAG_ACLS) && (ROOT..image.entries()).all(open)
}

/// The tree as a layer. It is opened again, as the kernel takes layers of the caller's own namespace alone.
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
        let rest = set.spread(&whole, threads, &write)?;
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

/// A data layer with the files whose blocks are in memory of this process.
struct HotLayer {
    heat: Heat,
    /// None if there are no such files.
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
            // Nobody else is asked at an open; what the first miss of a file says, its reader hears.
            no_open: true,
            ..fuse_options(around, true)
        };
        let layer = Arc::new(HotFiles::new(covered.fs.clone(), hot.clone()));
        let (mount, mut session) = quell_fuse::detached(layer, &options)?;
        let heat = Heat { whole_files, ..Heat::cached(hot, &mut session, &mount, covered) };
        Ok(HotLayer { heat, mount: Some((mount, session)) })
    }
}

/// Whether the kernel takes a user's data-only layers at all, before a tmpfs is filled for nothing. Both
/// layers are empty and in memory: the shared file system is asked nothing.
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
    // The layer is used with the mounter's credentials and must not refuse anybody else's.
    let options = quell_fuse::Options { fills_cache: false, ..fuse_options(around, true) };
    let (layer, session) = quell_fuse::detached(metadata, &options)?;
    // Overlayfs judges access to its root by the owner in the kernel's inode, which is known once it was asked for.
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
    let (mut mount, mut session) = quell_fuse::detached(layer, &options)?;
    let heat = hot.map(|hot| Heat::cached(hot, &mut session, &mount, covered));
    if let Some(upper) = &upper {
        let layers = Layers {
            metadata: mount.as_fd(),
            data: &[],
            upper: Some(upper),
            // The FUSE view compares what it opens.
            credentials: Credentials::Mounter,
            powers: around.powers(),
            source: &around.source_name,
        };
        mount = quell_overlay::mount_overlay(&layers)?;
    }
    Ok(Mounted { mount: Some(mount), sessions: vec![session], heat })
}

type WithHot = (Arc<dyn FileSystem>, Option<Arc<Hot>>);

/// The tree as a file system of ours, with all that is hot in memory.
fn served(covered: &Covered) -> Result<WithHot> {
    let Some(set) = &covered.hot else { return Ok((covered.fs.clone(), None)) };
    let hot = set.decode(runtime::processors())?;
    Ok((Arc::new(BootFs::new(covered.fs.clone(), hot.clone())), Some(hot)))
}

/// A FUSE view at a place of its own.
pub fn fuse_at(covered: &Covered, path: &Path, around: &Surroundings<'_>) -> Result<Taken> {
    let (fs, hot) = served(covered)?;
    let mut session = quell_fuse::at(fs, path, &fuse_options(around, around.allow_other))?;
    let heat = match hot {
        Some(hot) => Some(Heat::cached(hot, &mut session, &quell_overlay::open_layer(path)?, covered)),
        None => None,
    };
    let mounted = Mounted { mount: None, sessions: vec![session], heat };
    Ok(Taken { view: View::Fuse, reason: "an ordinary user's mount".into(), mounted })
}

/// `session` serves the metadata, if anybody does.
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
        // What is read ahead of the program is in no recording.
        no_read_ahead: around.plan.recording.is_some(),
        fills_cache: around.hot,
        allow_other,
        suid: around.plan.suid,
        dev: around.plan.dev,
        direct: false,
        source: around.source_name.clone(),
    }
}

/// The writable layer, where it does not lie beside the metadata.
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

/// What is known of a tree before anything is tried.
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
