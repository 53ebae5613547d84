//! Index files on disk: where they lie, who may read them, and that nobody ever sees half of one.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use quell_boot::{BootImage, Filling};
use quell_fs::{Error, ErrorKind, Kind, Result};
use quell_index::{Image, format};

/// `DIR.quell` beside the directory.
pub fn default_index_path(directory: &Path) -> PathBuf {
    let mut name = OsString::new();
    name.push(directory.as_os_str());
    // `dir/` is `dir`.
    let trimmed = name.as_bytes().iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let mut path = std::ffi::OsStr::from_bytes(&name.as_bytes()[..trimmed]).to_os_string();
    path.push(".quell");
    path.into()
}

/// Reads and checks an index. It is read in one pass, not mapped: pages that are fetched one by one from
/// a shared file system are what Quell is against, and a mapped file that somebody cuts short kills its
/// reader (docs/decisions/0002-read-not-map.md).
pub fn load_index(path: &Path) -> Result<Image> {
    load_index_from(open(path, "read index")?, path)
}

/// The same of a file that is open already.
pub fn load_index_from(file: File, path: &Path) -> Result<Image> {
    let bytes = read_whole(file, path, "read index", format::FILE_BYTES_MAX)?;
    Image::parse(bytes).map_err(|damage| damaged(path, "read index", damage))
}

/// Reads a boot image the same way, and checks all but its frames.
pub fn load_boot(path: &Path) -> Result<BootImage> {
    load_boot_from(open(path, "read boot image")?, path)
}

/// The same of a file that is open already.
pub fn load_boot_from(file: File, path: &Path) -> Result<BootImage> {
    let bytes = read_whole(file, path, "read boot image", quell_boot::FILE_BYTES_MAX)?;
    BootImage::parse(bytes).map_err(|damage| damaged(path, "read boot image", damage))
}

/// A boot image of which the tables were read and checked; its frames are still in the file.
#[derive(Debug)]
pub struct OpenBoot {
    pub image: BootImage,
    file: File,
    path: PathBuf,
}

impl OpenBoot {
    /// `admit`: asked before memory is taken for so many bytes of tables, which is what the header says.
    pub fn begin<E: From<Error>>(
        file: Option<File>,
        path: &Path,
        admit: impl FnOnce(u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<OpenBoot, E> {
        let operation = "read boot image";
        let file = file.map_or_else(|| open(path, operation), Ok)?;
        let failed = |e| Error::from_io(e, operation, path.as_os_str().as_bytes());
        let length = file.metadata().map_err(failed)?.len();
        let mut bytes = vec![0; length.min(quell_boot::HEADER_BYTES as u64) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        if let Some(header) = bytes.first_chunk() {
            let end = BootImage::tables_end(header, length).map_err(|e| damaged(path, operation, e))?;
            let end = end.min(length);
            admit(end)?;
            bytes.resize(end as usize, 0);
            file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        }
        let image =
            BootImage::parse_tables(bytes, length).map_err(|damage| damaged(path, operation, damage))?;
        Ok(OpenBoot { image, file, path: path.into() })
    }

    /// Reads and decodes all frames in order, so many at a time.
    pub fn fill(&self, filling: &Filling, threads: usize) -> Result<()> {
        let failed = |e| Error::from_io(e, "read boot image", self.path.as_os_str().as_bytes());
        filling
            .fill(&self.image, threads, &|offset, into| self.file.read_exact_at(into, offset).map_err(failed))
    }
}

fn damaged(
    path: &Path,
    operation: &'static str,
    damage: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error {
        source: Some(Box::new(damage)),
        ..Error::new(ErrorKind::Damaged, operation, path.as_os_str().as_bytes())
    }
}

fn open(path: &Path, operation: &'static str) -> Result<File> {
    File::open(path).map_err(|e| Error::from_io(e, operation, path.as_os_str().as_bytes()))
}

fn read_whole(mut file: File, path: &Path, operation: &'static str, bytes_max: u64) -> Result<Vec<u8>> {
    let subject = path.as_os_str().as_bytes();
    let failed = |e| Error::from_io(e, operation, subject);
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, operation, subject));
    }
    if metadata.len() > bytes_max {
        let large =
            std::io::Error::other(format!("{} bytes are more than any such file has", metadata.len()));
        return Err(Error {
            source: Some(Box::new(large)),
            ..Error::new(ErrorKind::Damaged, operation, subject)
        });
    }
    // Whoever had it before may have read it.
    file.rewind().map_err(failed)?;
    let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
    Read::by_ref(&mut file).take(metadata.len() + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Who may read an index: nobody who could not list every directory of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readers {
    pub others: bool,
    /// Members of this group.
    pub group: Option<u32>,
}

/// What the tree's own modes allow, `above` being the directories on the way to its root.
pub fn readers_of(image: &Image, above: &Path) -> Readers {
    let mut others = !image.has_flag(format::FLAG_ACLS) && image.problem_count() == 0;
    let root_group = image.attributes(quell_index::ROOT).gid;
    let mut group = others;
    for entry in (0..image.entries()).filter(|e| image.kind(*e) == Kind::Dir) {
        let a = image.attributes(entry);
        let open_to_others = a.permissions & 0o005 == 0o005;
        others &= open_to_others;
        group &= open_to_others || (a.gid == root_group && a.permissions & 0o050 == 0o050);
    }
    for directory in above.ancestors().skip(1) {
        let Ok(metadata) = fs::metadata(directory) else { continue };
        let open_to_others = metadata.mode() & 0o001 != 0;
        others &= open_to_others;
        group &= open_to_others || (metadata.gid() == root_group && metadata.mode() & 0o010 != 0);
    }
    Readers { others, group: group.then_some(root_group) }
}

/// Writes an index; see [`replace_file`].
pub fn save_index(path: &Path, bytes: &[u8], readers: Readers) -> Result<()> {
    replace_file(path, bytes, |file| {
        let mut mode = 0o600;
        if readers.others {
            mode |= 0o044;
        }
        if let (false, Some(group)) = (readers.others, readers.group) {
            let group = rustix::fs::Gid::from_raw(group);
            // Where the group cannot be given, its members go without.
            if rustix::fs::fchown(file, None, Some(group)).is_ok() {
                mode |= 0o040;
            }
        }
        file.set_permissions(Permissions::from_mode(mode))
    })
}

/// Writes a file aside and puts it in place in one step: whoever reads sees the old one or the new one,
/// whole, also when several write at once or this is interrupted. Until then it is its owner's alone, and
/// `admit` says who may read it afterwards.
pub fn replace_file(
    path: &Path,
    bytes: &[u8],
    admit: impl FnOnce(&File) -> std::io::Result<()>,
) -> Result<()> {
    let failed = |e| Error::from_io(e, "write", path.as_os_str().as_bytes());
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let prefix = aside_prefix(path);
    // Removed if it never comes to be put in place.
    let mut builder = tempfile::Builder::new();
    let mut aside = builder.prefix(&prefix).suffix(ASIDE).tempfile_in(directory).map_err(failed)?;
    aside.write_all(bytes).map_err(failed)?;
    admit(aside.as_file()).map_err(failed)?;
    aside.as_file().sync_all().map_err(failed)?;
    aside.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// The name of what is written aside for a file: this, some random letters, and `ASIDE`.
pub(crate) fn aside_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

pub(crate) const ASIDE: &str = ".aside";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_lies_beside_the_directory() {
        for (directory, file) in [("/sw/env", "/sw/env.quell"), ("env/", "env.quell"), ("a/b//", "a/b.quell")]
        {
            assert_eq!(default_index_path(Path::new(directory)), Path::new(file));
        }
    }

    #[test]
    fn memory_for_the_tables_of_a_boot_image_is_asked_for_before_it_is_taken() {
        struct Zeros;
        impl quell_boot::ReadBlock for Zeros {
            fn read(&mut self, _: u32, _: u32, _: &mut [u8; quell_boot::BLOCK_BYTES]) -> Result<bool> {
                Ok(true)
            }
        }
        let mut packer = quell_boot::Packer::default();
        let mut recording = quell_boot::Recording::new();
        packer.add(
            &quell_boot::disk_name(0, b"/disk.raw"),
            4096,
            quell_fs::Time { seconds: 1, nanoseconds: 0 },
        );
        recording.add(0, 0..1);
        let mut bytes = packer.pack(quell_boot::Kind::Disk, &recording, &mut Zeros, 1).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.boot");
        fs::write(&path, &bytes).unwrap();
        let mut asked = 0;
        OpenBoot::begin(None, &path, |bytes| {
            asked = bytes;
            Ok::<(), Error>(())
        })
        .unwrap();
        assert!((quell_boot::HEADER_BYTES as u64..=bytes.len() as u64).contains(&asked), "{asked}");
        let none = |_| Err::<(), _>(Error::new(ErrorKind::InvalidInput, "ask for memory", b""));
        assert_eq!(OpenBoot::begin(None, &path, none).unwrap_err().operation, "ask for memory");
        // A file of nothing, all of which is said to be names: it is not even asked.
        let length = 60 << 30;
        bytes[16..24].copy_from_slice(&u64::to_le_bytes(length));
        bytes[72..80].copy_from_slice(&u64::to_le_bytes(length - 4096));
        fs::write(&path, &bytes).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let refused = OpenBoot::begin(None, &path, none).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Damaged);
    }
}
