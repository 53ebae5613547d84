//! The meeting point of a job's nodes: a symbolic link in a directory that only the user can enter,
//! on a file system that the nodes share. The text of the link has the addresses of the reader and
//! the key of the job. symlink(2) creates a name with its content in one step, and fails if the
//! name exists, so the node that creates the link is the reader, and no node finds an incomplete
//! text. A node that finds the link needs a lookup and a readlink.

use std::fmt::Write;
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use quell_transport::peer::PoolKey;
use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, openat, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

/// The begin of the text of a link.
const MAGIC: &str = "quell-job-1:";
/// The largest number of addresses in a link.
const ADDRESSES_MAX: usize = 16;

/// The addresses of a reader, and the key of its job.
#[derive(Debug, Clone)]
pub struct Advertisement {
    /// The addresses at which the reader serves other nodes, the preferred one first.
    pub addresses: Vec<SocketAddr>,
    /// The key of the job.
    pub key: PoolKey,
}

impl Advertisement {
    /// Returns the text of the link.
    pub fn encode(&self) -> String {
        let mut text = String::from(MAGIC);
        for byte in self.key.0 {
            let _ = write!(text, "{byte:02x}");
        }
        for address in self.addresses.iter().take(ADDRESSES_MAX) {
            let _ = write!(text, ",{address}");
        }
        text
    }

    /// Reads the text of a link; `None` if it is not one of this version.
    pub fn decode(text: &[u8]) -> Option<Advertisement> {
        let text = std::str::from_utf8(text).ok()?.strip_prefix(MAGIC)?;
        let mut parts = text.split(',');
        let digits = parts.next().filter(|digits| digits.len() == 64 && digits.is_ascii())?;
        let mut key = [0; 32];
        for (byte, digits) in key.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
            if !digits.iter().all(is_digit) {
                return None;
            }
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let addresses = parts.take(ADDRESSES_MAX + 1).map(|part| part.parse().ok());
        let addresses = addresses.collect::<Option<Vec<SocketAddr>>>()?;
        let is_bounded = (1..=ADDRESSES_MAX).contains(&addresses.len());
        is_bounded.then_some(Advertisement { addresses, key: PoolKey(key) })
    }
}

/// The link of one job and list of files.
#[derive(Debug)]
pub struct MeetingPoint {
    directory: OwnedFd,
    name: String,
    /// The path of the link, for messages.
    pub path: PathBuf,
}

impl MeetingPoint {
    /// Opens the directory, which is created if it does not exist. `job`: the identifier of the
    /// job; `files`: the files that its nodes read, as the user named them.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory belongs to another user, or if other users have access
    /// to it; the errors of open(2) and mkdir(2).
    pub fn open(directory: &Path, job: &str, files: &[PathBuf]) -> Result<MeetingPoint> {
        let subject = directory.as_os_str().as_bytes();
        let failed = |e: Errno| Error::from_io(e.into(), "open the directory for jobs", subject);
        // Without a request to open it: FUSE asks the server for that of a directory.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(CWD, directory, flags, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) => {
                let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
                created.map_err(|e| Error::from_io(e, "create the directory for jobs", subject))?;
                open()
            }
            opened => opened,
        };
        let opened = opened.map_err(failed)?;
        let found = fstat(&opened).map_err(failed)?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            return Err(Error {
                source: Some(
                    "it must belong to you, with mode 0700: it will contain the key of the job".into(),
                ),
                ..Error::new(ErrorKind::PermissionDenied, "open the directory for jobs", subject)
            });
        }
        let mut key = job.as_bytes().to_vec();
        for file in files {
            key.push(0);
            key.extend_from_slice(file.as_os_str().as_bytes());
        }
        let name = format!("job-{:032x}", xxh3_128(&key));
        Ok(MeetingPoint { directory: opened, path: directory.join(&name), name })
    }

    /// Returns the text of the link; `None` if there is none.
    pub fn read(&self) -> Result<Option<Vec<u8>>> {
        match readlinkat(&self.directory, self.name.as_str(), Vec::new()) {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.failed(e, "read")),
        }
    }

    /// Creates the link. Returns whether this process has created it.
    pub fn create(&self, text: &str) -> Result<bool> {
        match symlinkat(text, &self.directory, self.name.as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(self.failed(e, "create")),
        }
    }

    /// Removes the link if it has this text. Another process can replace it between the two steps;
    /// then two nodes read the files.
    pub fn remove(&self, text: &[u8]) -> Result<()> {
        if self.read()?.as_deref() != Some(text) {
            return Ok(());
        }
        match unlinkat(&self.directory, self.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.failed(e, "remove")),
        }
    }

    fn failed(&self, cause: Errno, operation: &'static str) -> Error {
        Error::from_io(cause.into(), operation, self.path.as_os_str().as_bytes())
    }
}

/// The link that this process has created.
#[derive(Debug)]
pub struct OwnLink {
    pub(crate) point: MeetingPoint,
    pub(crate) text: String,
}

impl OwnLink {
    /// Removes the link if it is still that of this process.
    ///
    /// # Errors
    /// Those of [`MeetingPoint::remove`].
    pub fn remove(&self) -> Result<()> {
        self.point.remove(self.text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn advertisement() -> Advertisement {
        let addresses = vec!["10.0.0.7:513".parse().unwrap(), "[fd00::1]:2".parse().unwrap()];
        Advertisement { addresses, key: PoolKey([0xa7; 32]) }
    }

    #[test]
    fn the_example_of_the_format_is_encoded_and_decoded() {
        let text = advertisement().encode();
        assert_eq!(text, format!("quell-job-1:{},10.0.0.7:513,[fd00::1]:2", "a7".repeat(32)));
        let again = Advertisement::decode(text.as_bytes()).unwrap();
        assert_eq!((again.addresses, again.key.0), (advertisement().addresses, [0xa7; 32]));
    }

    #[test]
    fn other_texts_are_refused() {
        let key = "a7".repeat(32);
        let many = ",1.1.1.1:1".repeat(ADDRESSES_MAX + 1);
        for bad in [
            String::new(),
            "/etc/passwd".into(),
            format!("quell-job-1:{key}"),
            format!("quell-job-1:{key},"),
            format!("quell-job-1:{key},n7:513"),
            format!("quell-job-1:{},10.0.0.7:513", &key[1..]),
            format!("quell-job-1:{},10.0.0.7:513", key.to_uppercase()),
            format!("quell-job-1:+{},10.0.0.7:513", &key[1..]),
            format!("quell-job-2:{key},10.0.0.7:513"),
            format!("quell-job-1:{key}{many}"),
        ] {
            assert!(Advertisement::decode(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(Advertisement::decode(&[0xff; 90]).is_none());
    }

    #[test]
    fn one_process_creates_the_link_and_only_its_own_text_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("new/jobs");
        let open = |job: &str| MeetingPoint::open(&directory, job, &["/a".into()]).unwrap();
        let point = open("1");
        assert_eq!(point.read().unwrap(), None);
        assert!(point.create("first").unwrap() && !point.create("second").unwrap());
        assert_eq!(open("1").read().unwrap().as_deref(), Some(&b"first"[..]));
        assert_eq!(open("2").read().unwrap(), None);
        point.remove(b"second").unwrap();
        assert!(point.read().unwrap().is_some());
        point.remove(b"first").unwrap();
        assert_eq!(point.read().unwrap(), None);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o750, 0o701, 0o777] {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = MeetingPoint::open(directory.path(), "1", &[]).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{mode:o}");
        }
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        MeetingPoint::open(directory.path(), "1", &[]).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(MeetingPoint::open(&link, "1", &[]).is_err(), "the last component is not followed");
    }
}
