//! Which view a tree gets: the first in an order that works here. Deciding is a pure function; trying is
//! the probe, as nothing else tells what a kernel and a site allow.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use quell_fs::{Error, ErrorKind, Result};
use quell_fuse::Session;
use quell_index::Image;
use quell_overlay::{Ids, Layers, Redirected, Upper};
use quell_stack::Covered;

use crate::arguments::{OnChangeArg, ViewArg};
use crate::mounts;
use crate::plan::{Plan, Writes};

/// Kernel memory that a tmpfs takes for one entry, in bytes: measured with 78,624 entries, see
/// docs/decisions/0004-views.md.
const TMPFS_BYTES_PER_ENTRY: u64 = 1300;

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
    /// Blocks of it are in memory, which only a view of ours can serve.
    pub hot: bool,
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
    if facts.hot {
        return (vec![View::Fuse], vec!["blocks of a boot image are served from memory".into()]);
    }
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
    pub mount: OwnedFd,
    pub session: Option<Session>,
}

/// What the attempts need to know besides the tree.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub plan: &'a Plan,
    /// `Some` in a user namespace that maps one user.
    pub squash: Option<Ids>,
    /// Shown in the list of mounts.
    pub source_name: String,
    pub allow_other: bool,
    /// Blocks of it are in memory.
    pub hot: bool,
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
            Ok((mount, session)) => {
                if reasons.is_empty() {
                    reasons.push("the best there is".into());
                }
                return Ok(Taken { view, reason: reasons.join("; "), mount, session });
            }
            Err(e) => {
                reasons.push(format!("{}: {e}", view.name()));
                last = Some(e);
            }
        }
    }
    let kind = last.map_or(ErrorKind::Unsupported, |e| e.kind);
    Err(Error::new(kind, "cover: no view works here:", reasons.join("; ")))
}

fn overlay(covered: &Covered, around: &Surroundings<'_>) -> Result<(OwnedFd, Option<Session>)> {
    probe()?;
    let tmpfs = quell_overlay::mount_tmpfs()?;
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    let metadata = quell_overlay::fill(&*covered.fs, &tmpfs, around.squash.as_ref(), threads)?;
    let layer = metadata.layer;
    let upper = match &around.plan.writes {
        Writes::Scratch => {
            Some(Upper { upper: metadata.upper, work: metadata.work, same_file_system: true, mount: None })
        }
        _ => upper(covered, around)?,
    };
    Ok((join_layers(covered, layer.as_fd(), upper.as_ref(), around)?, None))
}

/// Whether the kernel takes a user's data-only layers at all, before a tmpfs is filled for nothing. Both
/// layers are empty and in memory: the shared file system is asked nothing.
fn probe() -> Result<()> {
    let metadata = quell_overlay::mount_tmpfs()?;
    let data = [quell_overlay::mount_tmpfs()?];
    let layers = Layers { metadata: metadata.as_fd(), data: &data, upper: None, source: "quell" };
    quell_overlay::mount_overlay(&layers).map(drop)
}

fn overlay_over_fuse(covered: &Covered, around: &Surroundings<'_>) -> Result<(OwnedFd, Option<Session>)> {
    probe()?;
    let metadata = Arc::new(Redirected::new(covered.fs.clone()));
    // The layer is used with the mounter's credentials and must not refuse anybody else's.
    let (layer, session) = quell_fuse::detached(metadata, &fuse_options(around, true))?;
    // Overlayfs judges access to its root by the owner in the kernel's inode, which is known once it was asked for.
    rustix::fs::statx(&layer, "", rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::BASIC_STATS)
        .map_err(|e| Error::from_io(e.into(), "stat", b"the metadata layer"))?;
    let upper = upper(covered, around)?;
    Ok((join_layers(covered, layer.as_fd(), upper.as_ref(), around)?, Some(session)))
}

fn fuse(covered: &Covered, around: &Surroundings<'_>) -> Result<(OwnedFd, Option<Session>)> {
    let options = fuse_options(around, around.allow_other);
    let Some(upper) = upper(covered, around)? else {
        let (mount, session) = quell_fuse::detached(covered.fs.clone(), &options)?;
        return Ok((mount, Some(session)));
    };
    let layer = Arc::new(Redirected::with_data(covered.fs.clone()));
    let (mount, session) = quell_fuse::detached(layer, &options)?;
    let layers =
        Layers { metadata: mount.as_fd(), data: &[], upper: Some(&upper), source: &around.source_name };
    Ok((quell_overlay::mount_overlay(&layers)?, Some(session)))
}

fn join_layers(
    covered: &Covered,
    metadata: std::os::fd::BorrowedFd<'_>,
    upper: Option<&Upper>,
    around: &Surroundings<'_>,
) -> Result<OwnedFd> {
    let data = [quell_overlay::open_layer(&covered.source_path)?];
    quell_overlay::mount_overlay(&Layers { metadata, data: &data, upper, source: &around.source_name })
}

pub fn fuse_options(around: &Surroundings<'_>, allow_other: bool) -> quell_fuse::Options {
    quell_fuse::Options {
        threads: around.plan.threads.into(),
        no_open: around.plan.on_change == OnChangeArg::Ignore,
        // What is read ahead of the program is in no recording, and would be asked of the source.
        no_read_ahead: around.plan.recording.is_some() || around.hot,
        allow_other,
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
pub fn facts(image: &Image, source: &Path, plan: &Plan, hot: bool) -> Facts {
    Facts {
        entries: image.entries().into(),
        longest_path_bytes: image.longest_path_bytes(),
        file_system: mounts::file_system_of(source),
        memory_budget_bytes: plan.memory_mib << 20,
        forced: plan.view,
        hot,
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
            hot: false,
        }
    }

    #[test]
    fn blocks_in_memory_are_served_by_fuse() {
        assert_eq!(candidates(&Facts { hot: true, ..facts() }).0, [View::Fuse]);
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
