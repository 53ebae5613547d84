//! Mounts the view of a tree: the first view in an order of preference that works. No kernel
//! interface reports whether the kernel and its configuration allow a view, so each view is tried.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use quell_boot::{BootFile, BootFs, RecordedBlocks, RecordedFiles};
use quell_fuse::Session;
use quell_index::InodeNumbers;
use quell_mount_spec::Covered;
use quell_overlay::{Credentials, Layers, MountedMetadata, Redirected, Upper};
use quell_vfs::{Error, ErrorKind, FileIdentity, FileSystem, Result};

use crate::protocol::plan::{ViewChoice, Writes};
use crate::resources::processors;
use crate::view::boot_blocks::{BootBlocks, RecordedLayer};
use crate::view::credentials::{credentials, probe};
use crate::view::options::ViewOptions;
use crate::view::selection::{TreeProperties, View, candidates};

/// More threads do not fill a tmpfs faster.
const FILL_THREADS: usize = 8;

/// A working view, mounted but not attached to a path yet.
#[derive(Debug)]
pub struct SelectedView {
    pub view: View,
    pub reason: String,
    pub mounted: MountedView,
}

/// The mounts and sessions of one attempt.
#[derive(Debug)]
pub struct MountedView {
    /// `None` if the mount is attached already.
    pub mount: Option<OwnedFd>,
    /// The FUSE sessions; empty if the kernel alone serves the view.
    pub sessions: Vec<Session>,
    pub boot_blocks: Option<BootBlocks>,
    /// The metadata layer, if it is a tmpfs.
    pub metadata: Option<MountedMetadata>,
}

/// Tries views in order until one works.
pub fn mount_first(
    covered: &Covered,
    tree: &TreeProperties,
    view_options: &ViewOptions<'_>,
) -> Result<SelectedView> {
    let (views, mut reasons) = candidates(tree);
    let (mut failures, mut last) = (Vec::new(), None);
    for view in views {
        let attempt = match view {
            View::Overlay => overlay(covered, view_options),
            View::OverlayFuse => overlay_over_fuse(covered, view_options),
            View::Fuse => fuse(covered, view_options),
        };
        match attempt {
            Ok(mounted) => {
                reasons.append(&mut failures);
                if reasons.is_empty() {
                    reasons.push("the preferred view".into());
                }
                let reason = reasons.join("; ");
                tracing::debug!(view = view.name(), reason, "mounted");
                return Ok(SelectedView { view, reason, mounted });
            }
            // Another view would decode the same damaged boot image.
            Err(e) if e.kind == ErrorKind::Damaged => return Err(e),
            Err(e) => {
                tracing::debug!(view = view.name(), error = %e, "the view is not possible here");
                failures.push(format!("{}: {e}", view.name()));
                last = Some(e);
            }
        }
    }
    let kind = last.filter(|e| !e.is_refused_argument()).map_or(ErrorKind::Unsupported, |e| e.kind);
    let path = covered.source_path.as_os_str().as_encoded_bytes();
    // If the user selected the view, the only reason is that it was requested, which explains no
    // failure.
    if tree.forced == ViewChoice::Auto {
        failures.splice(0..0, reasons);
    }
    Err(Error { source: Some(failures.join("; ").into()), ..Error::new(kind, "cover", path) })
}

/// Returns the tree as a layer. The directory is opened again, because the kernel accepts only
/// layers of mounts in the caller's own namespace. Call it first: soon after the tree was opened,
/// the client of the file system answers the lookups of the path from its cache.
fn data_layer(covered: &Covered) -> Result<OwnedFd> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    let subject = covered.source_path.as_os_str().as_encoded_bytes();
    let layer = quell_overlay::open_layer(&covered.source_path)?;
    let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&layer, "", local, StatxFlags::BASIC_STATS)
        .map_err(|e| Error::from_io(e.into(), "stat", subject))?;
    let device = makedev(found.stx_dev_major, found.stx_dev_minor);
    let identity = FileIdentity { device, inode: found.stx_ino };
    if identity != covered.source().stat_self_cached()?.identity() {
        return Err(Error::new(
            ErrorKind::Stale,
            "cover a directory that was replaced at this moment:",
            subject,
        ));
    }
    Ok(layer)
}

fn overlay(covered: &Covered, view_options: &ViewOptions<'_>) -> Result<MountedView> {
    let credentials = credentials(covered, view_options)?;
    let tree = data_layer(covered)?;
    probe(credentials)?;
    let tmpfs = quell_overlay::mount_tmpfs()?;
    let threads = processors().min(FILL_THREADS);
    let squash = view_options.squash.as_ref();
    let fs = &*covered.fs;
    let whole = covered.recorded.as_ref().map(RecordedFiles::whole).unwrap_or_default();
    let metadata = quell_overlay::fill(fs, &tmpfs, squash, &whole, threads)?;
    let mut recorded_layer = None;
    let mut in_memory = whole.clone();
    if let Some(set) = &covered.recorded {
        let write = |file: &BootFile<'_>, offset: u64, bytes: &[u8]| metadata.write(file.name, offset, bytes);
        let rest = set.decode_and_write(&whole, threads, &write)?;
        metadata.finish(fs, &whole)?;
        in_memory.extend(rest.nodes());
        recorded_layer = Some(RecordedLayer::new(covered, rest, whole.len() as u64, view_options)?);
    }
    let layer = metadata.layer;
    let upper = match &view_options.trees.writes {
        Writes::Scratch => {
            Some(Upper { upper: metadata.upper, work: metadata.work, same_file_system: true, mount: None })
        }
        _ => upper(covered, view_options)?,
    };
    let mut mounted =
        join_layers(tree, layer.as_fd(), recorded_layer, upper.as_ref(), None, credentials, view_options)?;
    if let Some(mount) = &mounted.mount {
        let (layers, squash) = ((layer, metadata.outside), view_options.squash.clone());
        let metadata =
            MountedMetadata::new(covered.fs.clone(), layers, mount, upper.is_none(), squash, in_memory)?;
        mounted.metadata = Some(metadata);
    }
    Ok(mounted)
}

fn overlay_over_fuse(covered: &Covered, view_options: &ViewOptions<'_>) -> Result<MountedView> {
    let credentials = credentials(covered, view_options)?;
    let tree = data_layer(covered)?;
    probe(credentials)?;
    let metadata = Arc::new(Redirected::new(numbered(covered.fs.clone(), covered).0));
    // The kernel accesses the layer with the mounter's credentials, and other users' accesses must
    // not be refused.
    let options = quell_fuse::Options { fills_cache: false, ..view_options.fuse(true) };
    let (layer, session) = quell_fuse::mount_detached(metadata, &options)?;
    // Overlayfs checks access to its root by the owner in the kernel's inode, which is set only
    // after a stat.
    rustix::fs::statx(&layer, "", rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::BASIC_STATS)
        .map_err(|e| Error::from_io(e.into(), "stat", b"the metadata layer"))?;
    let recorded = match &covered.recorded {
        Some(set) => Some(RecordedLayer::new(covered, set.decode(processors())?, 0, view_options)?),
        None => None,
    };
    let upper = upper(covered, view_options)?;
    join_layers(tree, layer.as_fd(), recorded, upper.as_ref(), Some(session), credentials, view_options)
}

fn fuse(covered: &Covered, view_options: &ViewOptions<'_>) -> Result<MountedView> {
    let Tree { fs, recorded, numbers } = served(covered)?;
    let options = view_options.fuse(view_options.allow_other);
    let upper = upper(covered, view_options)?;
    let layer: Arc<dyn FileSystem> = match &upper {
        Some(_) => Arc::new(Redirected::with_data(fs)),
        None => fs,
    };
    let (mut mount, mut session) = quell_fuse::mount_detached(layer, &options)?;
    let boot_blocks = recorded
        .map(|recorded| BootBlocks::cached(recorded, &mut session, &mount, covered, numbers.as_deref()));
    if let Some(upper) = &upper {
        let layers = Layers {
            metadata: mount.as_fd(),
            data: &[],
            upper: Some(upper),
            // The FUSE view compares files at each open.
            credentials: Credentials::Mounter,
            powers: view_options.powers(),
            source: &view_options.source_name,
        };
        mount = quell_overlay::mount_overlay(&layers)?;
    }
    Ok(MountedView { mount: Some(mount), sessions: vec![session], boot_blocks, metadata: None })
}

/// A tree as a file system that this process serves.
struct Tree {
    fs: Arc<dyn FileSystem>,
    /// The recorded blocks, which are in memory.
    recorded: Option<Arc<RecordedBlocks>>,
    /// The numbers of the nodes of `fs`, unless they are those of the tree.
    numbers: Option<Arc<InodeNumbers>>,
}

fn served(covered: &Covered) -> Result<Tree> {
    let recorded = covered.recorded.as_ref().map(|set| set.decode(processors())).transpose()?;
    let fs: Arc<dyn FileSystem> = match &recorded {
        Some(recorded) => Arc::new(BootFs::new(covered.fs.clone(), recorded.clone())),
        None => covered.fs.clone(),
    };
    let (fs, numbers) = numbered(fs, covered);
    Ok(Tree { fs, recorded, numbers })
}

/// Returns a file system that shows the inode numbers of the originals, if the index has them.
fn numbered(fs: Arc<dyn FileSystem>, covered: &Covered) -> (Arc<dyn FileSystem>, Option<Arc<InodeNumbers>>) {
    match InodeNumbers::new(fs.clone(), covered.image.clone()).map(Arc::new) {
        Some(numbers) => (numbers.clone(), Some(numbers)),
        None => (fs, None),
    }
}

/// Mounts a FUSE view at `path`.
pub fn fuse_at(covered: &Covered, path: &Path, view_options: &ViewOptions<'_>) -> Result<SelectedView> {
    let Tree { fs, recorded, numbers } = served(covered)?;
    let mut session = quell_fuse::mount_at(fs, path, &view_options.fuse(view_options.allow_other))?;
    let boot_blocks = match recorded {
        Some(recorded) => {
            let mount = quell_overlay::open_layer(path)?;
            Some(BootBlocks::cached(recorded, &mut session, &mount, covered, numbers.as_deref()))
        }
        None => None,
    };
    let mounted = MountedView { mount: None, sessions: vec![session], boot_blocks, metadata: None };
    Ok(SelectedView { view: View::Fuse, reason: "an ordinary user's mount".into(), mounted })
}

/// Mounts the layers as an overlay. `tree` has the data; `session` serves the metadata layer,
/// unless that is a tmpfs.
fn join_layers(
    tree: OwnedFd,
    metadata: BorrowedFd<'_>,
    recorded: Option<RecordedLayer>,
    upper: Option<&Upper>,
    session: Option<Session>,
    credentials: Credentials,
    view_options: &ViewOptions<'_>,
) -> Result<MountedView> {
    let (boot_blocks, recorded) =
        recorded.map_or((None, None), |recorded| (Some(recorded.boot_blocks), recorded.mount));
    let (recorded, recorded_session) = recorded.unzip();
    let data: Vec<OwnedFd> = recorded.into_iter().chain([tree]).collect();
    let (data, powers, source) = (&data[..], view_options.powers(), &*view_options.source_name);
    let mount = quell_overlay::mount_overlay(&Layers { metadata, data, upper, credentials, powers, source })?;
    Ok(MountedView {
        mount: Some(mount),
        sessions: session.into_iter().chain(recorded_session).collect(),
        boot_blocks,
        metadata: None,
    })
}

/// Returns the writable layer, unless it is on the same tmpfs as the metadata.
fn upper(covered: &Covered, view_options: &ViewOptions<'_>) -> Result<Option<Upper>> {
    let root = match &view_options.trees.writes {
        Writes::Refused => return Ok(None),
        Writes::Scratch => quell_overlay::mount_tmpfs()?,
        Writes::Kept(directory) => quell_overlay::open_layer(directory)?,
    };
    let open = |name: &str| -> Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "create the writable layer's", name);
        match rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o700)) {
            Ok(()) if name == "upper" => quell_overlay::finish_upper(
                &*covered.fs,
                root.as_fd(),
                name.as_bytes(),
                view_options.squash.as_ref(),
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
