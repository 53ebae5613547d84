//! Disk images of virtual machines: finds the files of the backing chain from the headers, as QEMU
//! does, opens them, and assembles them as a file system.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_boot::{DISK_FILES_MAX, DiskFile, DiskSource, Disks};
use quell_posix::{OpenFile, Stat};
use quell_qcow2::{HEADER_BYTES_MAX, Header, Named, is_qcow2, named};
use quell_vfs::{Attributes, Error, ErrorKind, Kind, NodeId, ReadAt, Result};

use crate::display::shown;
use crate::resolve::{self, Directories, ResolvedFile};
use crate::{Ownership, Trusted};

/// The format of a file in a backing chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFormat {
    /// QEMU's qcow2 format.
    Qcow2,
    /// The bytes of the file are the bytes of the disk.
    Raw,
    /// Another format: the mapping from the file's bytes to the disk is unknown.
    Other,
}

/// The path by which a program that opens the disk image finds a file of its backing chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    /// By a path relative to the directory of the disk image.
    Within(PathBuf),
    /// By this absolute path, regardless of where the disk image is.
    Elsewhere(PathBuf),
}

/// A file of a backing chain.
pub struct ChainFile {
    /// The absolute path, without symbolic links.
    pub path: PathBuf,
    /// The path by which a program finds the file.
    pub reached: Reached,
    /// The format of the file.
    pub format: DiskFormat,
    /// The header, for qcow2.
    pub header: Option<Header>,
    /// Whether this is an external data file of the previous file. It has no backing file.
    pub is_data_file: bool,
    /// The metadata when the file was opened.
    pub stat: Stat,
    /// The open file.
    pub file: Arc<dyn OpenFile>,
    /// The directories of `path`.
    directories: Directories,
}

impl std::fmt::Debug for ChainFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainFile")
            .field("path", &self.path)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

fn refused(kind: ErrorKind, path: &Path, why: impl Into<String>) -> Error {
    let cause = std::io::Error::other(why.into());
    Error {
        source: Some(Box::new(cause)),
        ..Error::new(kind, "open disk image", path.as_os_str().as_bytes())
    }
}

/// Opens a file that an image's header names. With `trusted`, the owner of the file and of each
/// symbolic link on its path is checked. `top`: the disk image at the top of the chain.
fn open_named_in_header(path: &Path, top: &Ownership, trusted: Option<&Trusted>) -> Result<ResolvedFile> {
    let resolved = resolve::open(path)?;
    let Some(trusted) = trusted else { return Ok(resolved) };
    let owner = Ownership::from(&resolved.stat);
    // The owner of a link chooses the file to which it refers. A link that belongs to the disk
    // image's owner is therefore not sufficient: it could refer to a file that this owner may not
    // read.
    if let Some(link) = resolved.links.iter().find(|l| trusted.decide_owner(l.uid, Some(&owner)).is_err()) {
        let why = format!(
            "its path has the symbolic link {}, which belongs to user {uid}, not to you, to root or to the owner of {}: store the path \
             of the file itself in the disk image with `qemu-img rebase -u`, or, if you trust that user with your files, pass \
             --trust-owner {uid}",
            shown(&link.path),
            shown(&resolved.path),
            uid = link.uid,
        );
        return Err(refused(ErrorKind::InvalidInput, path, why));
    }
    if trusted.decide_owner(owner.uid, Some(top)).is_err() {
        let why = format!(
            "it belongs to user {uid}, not to you, to root or to the owner of the disk image: if you trust that user with your virtual \
             machines, pass --trust-owner {uid}",
            uid = owner.uid,
        );
        return Err(refused(ErrorKind::InvalidInput, path, why));
    }
    Ok(resolved)
}

/// Opens the disk image at `path` and its backing chain, from top to bottom. With `format` `None`,
/// the format is detected from the first bytes.
///
/// With `trusted`, the files below the disk image must belong to the trusted users or to the owner
/// of the disk image, and symbolic links on their paths to the trusted users or to the owner of the
/// file. With `None`, the files may belong to any user, which is sufficient if only the caller can
/// reach the files through Quell.
///
/// Errors: the errors of the opens; `Damaged` with the damage of a header; `InvalidInput` for a
/// chain that is circular, too long, refers to something other than a local file, or has a file or
/// a symbolic link of another user.
pub fn disk_chain(
    path: &Path,
    format: Option<DiskFormat>,
    trusted: Option<&Trusted>,
) -> Result<Vec<ChainFile>> {
    let mut chain: Vec<ChainFile> = Vec::new();
    let as_named = std::path::absolute(path)
        .map_err(|e| Error::from_io(e, "open disk image", path.as_os_str().as_bytes()))?;
    let top = as_named.parent().unwrap_or(Path::new("/")).to_path_buf();
    let mut next = Some((as_named, format));
    while let Some((named_as, format)) = next.take() {
        if chain.len() == DISK_FILES_MAX {
            return Err(refused(
                ErrorKind::InvalidInput,
                path,
                format!("it has more than {DISK_FILES_MAX} backing files"),
            ));
        }
        let ResolvedFile { path: real, file, stat, directories, .. } = match chain.first() {
            None => resolve::open(&named_as)?,
            Some(top) => open_named_in_header(&named_as, &Ownership::from(&top.stat), trusted)?,
        };
        if chain.iter().any(|above| above.stat.identity() == stat.identity()) {
            let why =
                format!("it is its own backing file: {} occurs twice in its backing chain", shown(&real));
            return Err(refused(ErrorKind::InvalidInput, path, why));
        }
        let (format, header) = look_into(&real, &*file, stat.size_bytes, format)?;
        let directory = named_as.parent().unwrap_or(Path::new("/")).to_path_buf();
        let reached = reached(&top, &named_as);
        // Files in one directory share its descriptors.
        let shared = chain.iter().find(|above| resolve::are_same(&above.directories, &directories));
        let directories = shared.map_or(directories, |above| above.directories.clone());
        let owner_of_top = Ownership::from(chain.first().map_or(&stat, |top| &top.stat));
        if let Some(header) = &header {
            if let Some(name) = &header.data_file {
                // QEMU looks for a relative name in its own working directory, regardless of where
                // the image is.
                let Named::Absolute(name) = named(name) else {
                    let why = format!(
                        "its data is in {}, which is not an absolute path: the file meant depends on the working directory of the program that opens it",
                        name.escape_ascii()
                    );
                    return Err(refused(ErrorKind::InvalidInput, &real, why));
                };
                let named_as = PathBuf::from(OsStr::from_bytes(name));
                let ResolvedFile { path, file, stat, directories, .. } =
                    open_named_in_header(&named_as, &owner_of_top, trusted)?;
                let (reached, format) = (Reached::Elsewhere(named_as), DiskFormat::Raw);
                chain.push(ChainFile {
                    path,
                    reached,
                    format,
                    header: None,
                    is_data_file: true,
                    stat,
                    file,
                    directories,
                });
            }
            if let Some(backing) = &header.backing {
                let format = match backing.format.as_deref() {
                    Some(b"qcow2") => Some(DiskFormat::Qcow2),
                    Some(b"raw") => Some(DiskFormat::Raw),
                    Some(_) => Some(DiskFormat::Other),
                    None => None,
                };
                next = Some((local(&real, &directory, &backing.name)?, format));
            }
        }
        // A data file belongs to the previous image, so the image comes first.
        let at = chain.len() - usize::from(header.as_ref().is_some_and(|h| h.data_file.is_some()));
        let image =
            ChainFile { path: real, reached, format, header, is_data_file: false, stat, file, directories };
        chain.insert(at, image);
    }
    Ok(chain)
}

/// Returns the path of a name in the header of an image in `directory`.
fn local(image: &Path, directory: &Path, name: &[u8]) -> Result<PathBuf> {
    match named(name) {
        Named::Absolute(path) => Ok(OsStr::from_bytes(path).into()),
        Named::Relative(path) => Ok(directory.join(OsStr::from_bytes(path))),
        Named::Elsewhere(name) => {
            let why = format!("its backing file {} is not a local file", name.escape_ascii());
            Err(refused(ErrorKind::InvalidInput, image, why))
        }
    }
}

/// Returns the path by which a program finds a file. Paths are compared as text, because QEMU joins
/// them as text.
fn reached(top: &Path, named_as: &Path) -> Reached {
    use std::path::Component;
    let below = named_as.strip_prefix(top).ok();
    match below.filter(|path| path.components().all(|c| matches!(c, Component::Normal(_)))) {
        Some(path) => Reached::Within(path.components().collect()),
        None => Reached::Elsewhere(named_as.into()),
    }
}

/// Returns the given or detected format, and the header of a qcow2 image.
fn look_into(
    path: &Path,
    file: &dyn OpenFile,
    size: u64,
    format: Option<DiskFormat>,
) -> Result<(DiskFormat, Option<Header>)> {
    if let Some(format @ (DiskFormat::Raw | DiskFormat::Other)) = format {
        return Ok((format, None));
    }
    let mut begin = vec![0; size.min(4096) as usize];
    read_whole(file, &mut begin, 0, path)?;
    if !is_qcow2(&begin) {
        if format.is_some() {
            let why = "it is not a qcow2 image: it does not begin with the qcow2 magic number";
            return Err(refused(ErrorKind::Damaged, path, why));
        }
        let footer = size.min(512);
        let mut end = vec![0; footer as usize];
        read_whole(file, &mut end, size - footer, path)?;
        let format = if is_other(&begin, &end) { DiskFormat::Other } else { DiskFormat::Raw };
        return Ok((format, None));
    }
    let qcow2 = |header| (DiskFormat::Qcow2, Some(header));
    let damaged = |e: quell_qcow2::Qcow2Error| refused(ErrorKind::Damaged, path, e.to_string());
    // All header data is usually in the first page; with large clusters it may be longer.
    match Header::parse(&begin) {
        Ok(header) => Ok(qcow2(header)),
        Err(first) if size <= begin.len() as u64 => Err(damaged(first)),
        Err(_) => {
            begin.resize(size.min(HEADER_BYTES_MAX as u64) as usize, 0);
            read_whole(file, &mut begin, 0, path)?;
            Header::parse(&begin).map(qcow2).map_err(damaged)
        }
    }
}

/// Returns whether a file with these first and last bytes is a disk image in another format than
/// qcow2 that QEMU detects by its first bytes (or, for fixed-size VHD, by its last 512 bytes).
fn is_other(begin: &[u8], end: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 9] = [
        b"KDMV",              // VMDK
        b"COWD",              // VMDK, old
        b"# Disk Descriptor", // VMDK with separate data files
        b"vhdxfile",          // VHDX
        b"conectix",          // VHD
        b"LUKS\xba\xbe",      // LUKS
        b"QED\0",             // QED
        b"WithouFreSpacExt",  // Parallels
        b"WithoutFreeSpace",  // Parallels, old
    ];
    const VDI: [u8; 4] = 0xbeda_107f_u32.to_le_bytes();
    BEGINNINGS.iter().any(|magic| begin.starts_with(magic))
        || begin.get(64..).is_some_and(|rest| rest.starts_with(&VDI))
        || end.starts_with(b"conectix")
}

fn read_whole(file: &dyn OpenFile, into: &mut [u8], offset: u64, path: &Path) -> Result<()> {
    match file.read_at(into, offset)? {
        length if length == into.len() => Ok(()),
        _ => Err(refused(ErrorKind::Stale, path, "it changed while it was opened")),
    }
}

/// The names under which the files of a chain are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskNames {
    /// The numbers of the files. The caller mounts each file at its path.
    Numbers,
    /// The paths of the files relative to the directory of the disk image. Files with absolute
    /// names, and the files below them, are not shown.
    Relative,
}

/// The chain as a file system, and its files, which are checked for changes.
#[derive(Debug)]
pub struct OpenDisks {
    /// The file system of the chain.
    pub disks: Disks,
    /// The files of the chain, from top to bottom.
    pub files: Vec<ChainFile>,
}

impl OpenDisks {
    /// Assembles the chain. `owner` replaces the owners of the files. In a user namespace that maps
    /// one user, it is the user that opened the files, and may therefore read them.
    ///
    /// Without `owner`, files with relative names are shown to users who may lack access to the
    /// originals' directories. Only the user of this process may read such a file, unless every
    /// user may read the original; then each open checks that this is still so.
    pub fn new(chain: Vec<ChainFile>, names: DiskNames, owner: Option<(u32, u32)>) -> Result<OpenDisks> {
        let shown: Vec<ChainFile> = match names {
            DiskNames::Numbers => chain,
            // A file with an absolute path is opened at that path, not here.
            DiskNames::Relative => {
                chain.into_iter().take_while(|file| matches!(file.reached, Reached::Within(_))).collect()
            }
        };
        let caller = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let named = shown.iter().enumerate().map(|(position, file)| {
            let name = match (&file.reached, names) {
                (Reached::Within(path), DiskNames::Relative) => path.clone().into_os_string().into_vec(),
                _ => position.to_string().into_bytes(),
            };
            let is_public = || resolve::is_readable_by_everyone_now(&*file.file, &file.directories);
            // With numbers as names, each file is mounted at its own path.
            let is_checked = names == DiskNames::Relative && owner.is_none() && is_public()?;
            let is_private = names == DiskNames::Relative && !is_checked;
            let attributes = attributes(&file.stat, owner.or(is_private.then_some(caller)));
            let public_path = is_checked.then(|| file.directories.clone());
            Ok(DiskFile {
                name,
                attributes,
                source: Arc::new(OpenDiskFile { file: file.file.clone(), public_path }),
            })
        });
        let (uid, gid) = owner.unwrap_or((0, 0));
        let disks = Disks::new(named.collect::<Result<_>>()?, uid, gid)?;
        Ok(OpenDisks { disks, files: shown })
    }
}

/// Returns the shown attributes. Write permission is removed. With another owner, only the owner
/// has access, because the group and other permissions apply to other users and groups.
fn attributes(stat: &Stat, owner: Option<(u32, u32)>) -> Attributes {
    let readable = stat.mode & 0o444;
    let (uid, gid) = owner.unwrap_or((stat.uid, stat.gid));
    Attributes {
        node: NodeId(0),
        kind: Kind::File,
        permissions: if owner.is_some() { 0o400 } else { readable },
        uid,
        gid,
        nlink: 1,
        rdev: 0,
        size_bytes: stat.size_bytes,
        blocks: stat.blocks,
        modified: stat.modified,
        changed: stat.changed,
    }
}

struct OpenDiskFile {
    file: Arc<dyn OpenFile>,
    /// If the file is shown as readable by every user, the directories of its path.
    public_path: Option<Directories>,
}

impl ReadAt for OpenDiskFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl DiskSource for OpenDiskFile {
    fn check_open(&self) -> Result<()> {
        let Some(directories) = &self.public_path else { return Ok(()) };
        match resolve::is_readable_by_everyone_now(&*self.file, directories)? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::PermissionDenied, "open", b"")),
        }
    }
}

impl ChainFile {
    /// Returns whether the size or the modification time has changed since the open.
    pub fn has_changed(&self) -> Result<bool> {
        let now = self.file.stat()?;
        Ok((now.size_bytes, now.modified) != (self.stat.size_bytes, self.stat.modified))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_shown_with_another_owner_has_no_permissions_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.raw");
        std::fs::write(&path, [0; 4096]).unwrap();
        let mut stat = resolve::open(&path).unwrap().stat;
        (stat.mode, stat.gid) = (0o100_640, 7);
        assert_eq!(attributes(&stat, None).permissions, 0o440);
        // The file's own group had read permission, but the file is shown with another group.
        let owned = attributes(&stat, Some((1000, 1000)));
        assert_eq!((owned.permissions, owned.uid, owned.gid), (0o400, 1000, 1000));
    }

    /// Returns an image without data that has a backing file.
    fn layer(backing: &Path) -> Vec<u8> {
        quell_qcow2::write(1 << 20, backing.as_os_str().as_bytes(), "qcow2", &[]).unwrap()
    }

    #[test]
    fn names_in_refusals_are_escaped() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let refusal = |path: &Path| {
            let trusted = Trusted::by_caller(&[]);
            disk_chain(path, None, Some(&trusted)).map(drop).unwrap_err().to_string()
        };
        let odd = top.join("odd\nline");
        std::fs::write(&odd, layer(&odd)).unwrap();
        let message = refusal(&odd);
        assert!(message.contains("own backing file") && message.contains("odd\\nline occurs"), "{message}");
        assert!(!message.contains('\n'), "{message}");
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: only root can be two users");
        }
        let link = top.join("link\nline");
        std::os::unix::fs::symlink(&odd, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4242), Some(4242)).unwrap();
        let above = top.join("above");
        std::fs::write(&above, layer(&link)).unwrap();
        let message = refusal(&above);
        assert!(message.contains("link\\nline, which belongs to user 4242"), "{message}");
        assert!(message.contains("odd\\nline: store the path"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }

    #[test]
    fn formats_are_recognized_by_their_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let format = |at: usize, magic: &[u8]| {
            let mut bytes = vec![0; 8192];
            bytes[at..at + magic.len()].copy_from_slice(magic);
            let path = directory.path().join("disk");
            std::fs::write(&path, bytes).unwrap();
            let said = disk_chain(&path, Some(DiskFormat::Raw), None).unwrap()[0].format;
            assert_eq!(said, DiskFormat::Raw);
            disk_chain(&path, None, None).unwrap()[0].format
        };
        assert_eq!(format(0, b""), DiskFormat::Raw);
        for magic in [&b"KDMV"[..], b"COWD", b"vhdxfile", b"conectix", b"LUKS\xba\xbe", b"QED\0"] {
            assert_eq!(format(0, magic), DiskFormat::Other, "{}", magic.escape_ascii());
        }
        assert_eq!(format(64, &[0x7f, 0x10, 0xda, 0xbe]), DiskFormat::Other);
        assert_eq!(format(8192 - 512, b"conectix"), DiskFormat::Other);
    }
}
