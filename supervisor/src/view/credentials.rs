//! The credentials with which the kernel opens original files for an overlay view.

use std::os::fd::AsFd;

use quell_index::{Image, ROOT, format};
use quell_mount_spec::Covered;
use quell_overlay::{Credentials, Layers, Powers};
use quell_vfs::{Error, ErrorKind, Kind, Result};

use crate::protocol::plan::Writes;
use crate::view::options::{ViewOptions, Visibility};

/// Returns the credentials with which the kernel opens originals for the users of the view. The
/// kernel does not compare a file with the index when it opens it, so with root's permissions a
/// private file that replaced a public one would be readable.
pub fn credentials(covered: &Covered, view_options: &ViewOptions<'_>) -> Result<Credentials> {
    if view_options.visibility == Visibility::Caller {
        return Ok(Credentials::Mounter);
    }
    let reason = match () {
        () if view_options.trees.writes != Writes::Refused => {
            "the kernel opens those of a writable view with the permissions of root"
        }
        () if !is_public(&covered.image) => "not all of them are readable by every user",
        () => match probe(Credentials::Nobody) {
            Ok(()) => return Ok(Credentials::Nobody),
            Err(_) => "this needs Linux 6.15 and a file system that every user can access",
        },
    };
    // Root's own programs may read everything.
    if view_options.visibility == Visibility::RootPrograms && view_options.index_belongs_to_root {
        return Ok(Credentials::Mounter);
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "open originals with the permissions of an unprivileged user:",
        reason,
    ))
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

/// Checks that the kernel accepts an unprivileged user's data-only layers, before a tmpfs is
/// filled. Both layers are empty tmpfs mounts, so this causes no request to the shared file system.
pub fn probe(credentials: Credentials) -> Result<()> {
    let metadata = quell_overlay::mount_tmpfs()?;
    let data = [quell_overlay::mount_tmpfs()?];
    let (metadata, powers) = (metadata.as_fd(), Powers::default());
    let layers = Layers { metadata, data: &data, upper: None, credentials, powers, source: "quell" };
    quell_overlay::mount_overlay(&layers).map(drop)
}
