//! The meeting point of a job's nodes: a symbolic link in a directory that only the user can enter,
//! on a file system that the nodes share, or an entry in the memory of a process
//! (`meeting_server`). The text of the link has the addresses of the reader and
//! the key of the job. symlink(2) creates a name with its content in one step, and fails if the
//! name exists, so the node that creates the link is the reader, and no node finds an incomplete
//! text. A node that finds the link needs a lookup of the directory, a lookup of the link and a
//! readlink; with a process it needs no request to a file system.

use std::fmt::Write;
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_transport::peer::PoolKey;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode;
use quell_wire::job::{Reply, Request};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, openat, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::calls::{OtherNode, printable};

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

    /// Reads the text of a link; `None` if it does not have the format of this version.
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

/// Returns a new random key.
pub fn new_key() -> Result<[u8; 32]> {
    let mut key = [0; 32];
    getrandom(&mut key, GetRandomFlags::empty())
        .map_err(|e| Error::from_io(e.into(), "draw", "the key of the job"))?;
    Ok(key)
}

/// The meeting point: the directory or the process that has the links of jobs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeetingPoint {
    /// A directory that all nodes share.
    Directory(PathBuf),
    /// A process that serves links, by the text of its [`Advertisement`].
    Process(String),
}

impl std::fmt::Debug for MeetingPoint {
    /// Omits the text of a process, which contains its key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MeetingPoint::Directory(directory) => f.debug_tuple("Directory").field(directory).finish(),
            MeetingPoint::Process(_) => f.debug_tuple("Process").finish_non_exhaustive(),
        }
    }
}

/// The link of one job and list of files, which leads the nodes to the reader.
#[derive(Debug)]
pub struct ReaderLink {
    store: LinkStore,
    number: u128,
    /// The path of the link, for messages.
    pub path: PathBuf,
}

/// An open meeting point.
enum LinkStore {
    Directory(OwnedFd),
    Process { server: OtherNode, limit: Duration },
}

impl std::fmt::Debug for LinkStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkStore::Directory(directory) => f.debug_tuple("Directory").field(directory).finish(),
            LinkStore::Process { server, .. } => f.debug_tuple("Process").field(&server.address).finish(),
        }
    }
}

/// Returns the number of the link of a job and its files.
fn link_number(job: &str, files: &[PathBuf]) -> u128 {
    let mut key = job.as_bytes().to_vec();
    for file in files {
        key.push(0);
        key.extend_from_slice(file.as_os_str().as_bytes());
    }
    xxh3_128(&key)
}

fn link_name(number: u128) -> String {
    format!("job-{number:032x}")
}

impl ReaderLink {
    /// Connects to the process with this text of an [`Advertisement`]. It waits at most for
    /// `limit`, as does each request.
    ///
    /// # Errors
    /// `InvalidInput` for another text; the error of the first address if no address accepts a
    /// connection.
    pub fn connect(text: &str, job: &str, files: &[PathBuf], limit: Duration) -> Result<ReaderLink> {
        let wrong = || Error {
            source: Some("its text does not have the format of this version of quell".into()),
            ..Error::new(ErrorKind::InvalidInput, "use", "the meeting point of the job")
        };
        let Advertisement { addresses, key } = Advertisement::decode(text.as_bytes()).ok_or_else(wrong)?;
        let until = Instant::now() + limit;
        let mut failed = None;
        for (position, address) in addresses.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let is_last = position + 1 == addresses.len();
            let part = if is_last { left } else { left / 2 }.max(Duration::from_millis(1));
            match OtherNode::try_address(*address, part) {
                Ok(()) => {
                    let server = OtherNode::connect(*address, &key)?;
                    let number = link_number(job, files);
                    let path = Path::new(&address.to_string()).join(link_name(number));
                    return Ok(ReaderLink { store: LinkStore::Process { server, limit }, number, path });
                }
                Err(e) => _ = failed.get_or_insert((e, address)),
            }
        }
        let (error, address) = failed.ok_or_else(wrong)?;
        Err(Error::from_io(error, "connect to the meeting point of the job at", address.to_string()))
    }

    /// Sends a request to the process of the meeting point. Returns the text that the link had
    /// before.
    fn ask(
        &self,
        server: &OtherNode,
        request: &Request<'_>,
        limit: Duration,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let subject = self.path.as_os_str().as_bytes();
        let bytes = server.ask(request, limit, is_needed)?;
        let wrong = |reason: &str| Error {
            source: Some(reason.to_owned().into()),
            ..Error::new(ErrorKind::Unsupported, "use the meeting point of the job at", subject)
        };
        match decode::<Reply<'_>>(&bytes) {
            Ok(Reply::Link(text)) => Ok(text.map(|text| text.as_bytes().to_vec())),
            Ok(Reply::Refused(reason)) => Err(wrong(&printable(reason))),
            _ => Err(wrong("it has sent a wrong message")),
        }
    }

    /// Opens the directory, which is created if it does not exist. `job`: the identifier of the
    /// job; `files`: the files that its nodes read, as the user named them.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory belongs to another user, or if other users have access
    /// to it; the errors of open(2) and mkdir(2).
    pub fn open(directory: &Path, job: &str, files: &[PathBuf]) -> Result<ReaderLink> {
        let subject = directory.as_os_str().as_bytes();
        let failed = |e: Errno| Error::from_io(e.into(), "open the directory for jobs", subject);
        // O_PATH causes no request. For a real open of a directory, FUSE sends a request to its
        // server.
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
        let number = link_number(job, files);
        let path = directory.join(link_name(number));
        Ok(ReaderLink { store: LinkStore::Directory(opened), number, path })
    }

    /// Returns the text of the link; `None` if there is no link.
    ///
    /// # Errors
    /// The errors of readlink(2) or of the request to the process; `Interrupted` as soon as
    /// `is_needed` returns `false` while this process waits for the other one.
    pub fn read(&self, is_needed: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>> {
        match &self.store {
            LinkStore::Directory(directory) => self.read_in(directory),
            LinkStore::Process { server, limit } => {
                self.ask(server, &Request::ReadLink { link: self.number }, *limit, is_needed)
            }
        }
    }

    fn read_in(&self, directory: &OwnedFd) -> Result<Option<Vec<u8>>> {
        match readlinkat(directory, link_name(self.number), Vec::new()) {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.failed(e, "read")),
        }
    }

    /// Creates the link. Returns whether this process has created it.
    ///
    /// # Errors
    /// The errors of symlink(2) or of the request to the process; `Interrupted` as for
    /// [`read`](Self::read).
    pub fn create(&self, text: &str, is_needed: &dyn Fn() -> bool) -> Result<bool> {
        match &self.store {
            LinkStore::Directory(directory) => match symlinkat(text, directory, link_name(self.number)) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(e) => Err(self.failed(e, "create")),
            },
            LinkStore::Process { server, limit } => {
                let request = Request::CreateLink { link: self.number, text };
                // If the answer to the first attempt was lost, the link has this text already.
                let found = self.ask(server, &request, *limit, is_needed)?;
                Ok(found.is_none_or(|found| found == text.as_bytes()))
            }
        }
    }

    /// Removes the link if it has this text. Another process can replace a link in a directory
    /// between the two steps; then two nodes read the files.
    ///
    /// # Errors
    /// The errors of readlink(2) and unlink(2) or of the request to the process; `Interrupted` as
    /// for [`read`](Self::read).
    pub fn remove(&self, text: &[u8], is_needed: &dyn Fn() -> bool) -> Result<()> {
        match &self.store {
            LinkStore::Directory(directory) => {
                if self.read_in(directory)?.as_deref() != Some(text) {
                    return Ok(());
                }
                match unlinkat(directory, link_name(self.number), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => Ok(()),
                    Err(e) => Err(self.failed(e, "remove")),
                }
            }
            LinkStore::Process { server, limit } => {
                // `create` cannot have sent a text that is not UTF-8.
                let Ok(text) = std::str::from_utf8(text) else { return Ok(()) };
                let request = Request::RemoveLink { link: self.number, text };
                self.ask(server, &request, *limit, is_needed).map(drop)
            }
        }
    }

    fn failed(&self, cause: Errno, operation: &'static str) -> Error {
        Error::from_io(cause.into(), operation, self.path.as_os_str().as_bytes())
    }
}

/// The link that this process has created.
#[derive(Debug)]
pub struct OwnLink {
    pub(crate) link: ReaderLink,
    pub(crate) text: String,
}

impl OwnLink {
    /// Removes the link if it is still the link of this process.
    ///
    /// # Errors
    /// The errors of [`ReaderLink::remove`].
    pub fn remove(&self) -> Result<()> {
        self.link.remove(self.text.as_bytes(), &|| true)
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
        let open = |job: &str| ReaderLink::open(&directory, job, &["/a".into()]).unwrap();
        let link = open("1");
        assert_eq!(link.read(&|| true).unwrap(), None);
        assert!(link.create("first", &|| true).unwrap() && !link.create("second", &|| true).unwrap());
        assert_eq!(open("1").read(&|| true).unwrap().as_deref(), Some(&b"first"[..]));
        assert_eq!(open("2").read(&|| true).unwrap(), None);
        link.remove(b"second", &|| true).unwrap();
        assert!(link.read(&|| true).unwrap().is_some());
        link.remove(b"first", &|| true).unwrap();
        assert_eq!(link.read(&|| true).unwrap(), None);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o750, 0o701, 0o777] {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = ReaderLink::open(directory.path(), "1", &[]).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{mode:o}");
        }
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        ReaderLink::open(directory.path(), "1", &[]).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(ReaderLink::open(&link, "1", &[]).is_err(), "the last component is not followed");
    }
}
