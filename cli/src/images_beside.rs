//! The boot images beside an index that was updated, and how much of each is still valid.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_boot::{ImageKind, Validity};
use quell_index::{Generation, Image, OnChange, Rules};
use quell_mount_spec::{Covered, OpenBoot, directory_of};
use quell_supervisor::check_available;
use rustix::fs::{FileType, Mode, OFlags};

use crate::inputs::{shown, text_of};
use crate::output::{counted, errln, outln};

/// Number of boot images that are read.
const IMAGES_MAX: usize = 64;

/// A boot image of a tree, with the part that is valid with the tree's index.
pub struct ImageBeside {
    path: PathBuf,
    validity: Validity,
}

/// Returns the boot images among the files `*.boot` in the directory of an index, sorted by name,
/// that were recorded with the older generation of the index or have valid files. Regular files of
/// every owner are read, because only numbers are printed. Symbolic links, files that cannot be
/// read, and files that are no boot images are left out.
///
/// The index is written already, so a tree that cannot be opened any more causes a message and no
/// failure of the command.
pub fn images_beside(index: &Path, image: Arc<Image>, tree: &Path, older: Generation) -> Vec<ImageBeside> {
    let paths = candidates(index);
    if paths.is_empty() {
        return Vec::new();
    }
    match quell_mount_spec::cover(image, tree, OnChange::Refuse, Rules::default()) {
        Ok(covered) => paths.into_iter().filter_map(|path| read(path, &covered, older)).collect(),
        Err(error) => {
            errln!("quell: the boot images beside {} were not checked: {error}", shown(index));
            Vec::new()
        }
    }
}

fn candidates(index: &Path) -> Vec<PathBuf> {
    let directory = directory_of(index);
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.filter(|name| name.as_bytes().ends_with(b".boot")).collect();
    names.sort_unstable();
    names.truncate(IMAGES_MAX);
    names.into_iter().map(|name| directory.join(name)).collect()
}

fn read(path: PathBuf, covered: &Covered, older: Generation) -> Option<ImageBeside> {
    let file = open_regular(&path).ok()?;
    let boot = OpenBoot::begin(Some(file), &path, |bytes| check_available(&path, bytes)).ok()?.image;
    let validity = covered.validity(&boot);
    let belongs = boot.kind() == ImageKind::Tree(older.0) || validity.valid_files > 0;
    belongs.then_some(ImageBeside { path, validity })
}

/// Opens a regular file for reading. Other users may be able to create files in the directory: no
/// symbolic link is followed, and no device is opened, because an open can have an effect on it.
fn open_regular(path: &Path) -> std::io::Result<File> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(std::io::Error::other("not a regular file"));
    }
    // O_NONBLOCK: another user's lease on the file must not delay the open (fcntl(2)).
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

impl ImageBeside {
    /// Returns the facts for `--json`.
    pub fn json(&self) -> serde_json::Value {
        let Validity { files, valid_files, blocks, valid_blocks } = self.validity;
        serde_json::json!({
            "file": text_of(&self.path), "files": files, "valid_files": valid_files,
            "blocks": blocks, "valid_blocks": valid_blocks,
        })
    }

    /// Prints the result as one line.
    pub fn print(&self) {
        let Validity { files, valid_files, blocks, valid_blocks } = self.validity;
        let path = shown(&self.path);
        if valid_files == files {
            outln!("{path}: all {} still valid", counted(blocks, "block", "blocks"));
            return;
        }
        let percent = valid_blocks * 100 / blocks.max(1);
        // An image without a file of the new state cannot be updated.
        let advice = match valid_files {
            0 => "record the image again",
            _ => "`quell record --update --changed` reads them again",
        };
        outln!(
            "{path}: {valid_blocks} of {} still valid ({percent} %), {} of {} changed; {advice}",
            counted(blocks, "block", "blocks"),
            files - valid_files,
            counted(files.into(), "file", "files"),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::mem::MaybeUninit;
    use std::os::unix::fs::symlink;

    use quell_index::{BuildOptions, BuildProgress, Xattrs};
    use quell_posix::PosixDir;
    use rustix::fs::{CWD, inotify};

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        fs::write(at("file.boot"), "text").unwrap();
        symlink("file.boot", at("link.boot")).unwrap();
        rustix::fs::mkfifoat(CWD, at("fifo.boot"), Mode::RUSR).unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, directory.path(), inotify::WatchFlags::OPEN).unwrap();
        let is_opened = |name| open_regular(&at(name)).is_ok();
        assert_eq!(["link.boot", "fifo.boot", "none.boot"].map(is_opened), [false; 3]);
        assert!(is_opened("file.boot"));
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&watch, &mut space);
        let first = events.next().unwrap();
        assert_eq!(first.file_name(), Some(c"file.boot"), "another file was opened");
        assert!(events.next().is_err());
    }

    #[test]
    fn a_tree_that_was_removed_after_the_update_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let options = BuildOptions { exclude: Vec::new(), cross_mounts: false, xattrs: Xattrs::Never };
        let root = Arc::new(PosixDir::open(&tree).unwrap());
        let path = tree.as_os_str().as_bytes();
        let read = quell_index::build(root, path, &options, 1, None, &BuildProgress::default()).unwrap();
        let image = Arc::new(Image::parse(quell_index::encode(&read).unwrap()).unwrap());
        let index = directory.path().join("tree.quell");
        fs::write(directory.path().join("app.boot"), "").unwrap();
        fs::remove_dir(&tree).unwrap();
        let older = image.generation();
        assert!(images_beside(&index, image, &tree, older).is_empty());
    }
}
