//! The requests of callers, and the answers to them, as bytes.

use std::ffi::OsStr;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// A longer path than PATH_MAX cannot be opened.
const PATH_BYTES_MAX: usize = 4096;

/// A directory that a view covers.
#[derive(Debug, Clone)]
pub struct CoveredTree {
    pub path: PathBuf,
    /// Whether file systems mounted below it were also indexed. If not, their mount points are
    /// empty in the view.
    pub crosses_mounts: bool,
}

/// Returns the bytes of a request to join. A directory with too long a path cannot be opened, so
/// such a request has no path.
pub fn join_request(working_directory: &Path) -> Vec<u8> {
    let path = working_directory.as_os_str().as_bytes();
    let path = if path.len() > PATH_BYTES_MAX { b"" } else { path };
    [b"J", &(path.len() as u32).to_le_bytes()[..], path].concat()
}

/// The bytes of a request for a report.
pub const REPORT_REQUEST: &[u8] = b"S";
/// The bytes of a request to discard the changes of a mount when it ends.
pub const DISCARD_REQUEST: &[u8] = b"D";
/// The answer to `DISCARD_REQUEST` of a holder that will discard the changes.
pub const DISCARDS: &[u8] = b"D";

/// A connected process whose request is not complete yet.
#[derive(Debug)]
pub struct Caller {
    pub stream: UnixStream,
    request: Vec<u8>,
    pub deadline: Instant,
}

/// A request of a caller.
#[derive(Debug)]
pub enum Request {
    Report,
    Discard,
    Join(PathBuf),
}

impl Caller {
    /// Returns a caller that has sent nothing. The stream must not block.
    pub fn new(stream: UnixStream, deadline: Instant) -> Caller {
        Caller { stream, request: Vec::new(), deadline }
    }

    /// Reads the available data. `None`: the request is not complete.
    pub fn receive(&mut self) -> std::io::Result<Option<Request>> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(request) = self.request()? {
                return Ok(Some(request));
            }
            match (&self.stream).read(&mut bytes) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.request.extend(&bytes[..count]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn request(&self) -> std::io::Result<Option<Request>> {
        let Some((kind, rest)) = self.request.split_first() else { return Ok(None) };
        match kind {
            b'J' => {}
            b'D' => return Ok(Some(Request::Discard)),
            _ => return Ok(Some(Request::Report)),
        }
        let Some((length, path)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > PATH_BYTES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Ok(path.get(..length).map(|path| Request::Join(OsStr::from_bytes(path).into())))
    }
}

impl CoveredTree {
    /// Returns the kind and the path of a tree in the form of an answer. `None` stands for a
    /// directory outside all trees.
    pub fn encode(tree: Option<&CoveredTree>) -> Vec<u8> {
        match tree {
            None => vec![0],
            Some(CoveredTree { path, crosses_mounts }) => {
                [&[1 + u8::from(*crosses_mounts)], path.as_os_str().as_bytes()].concat()
            }
        }
    }

    /// Decodes the result of `encode`.
    pub fn decode(bytes: &[u8]) -> Option<CoveredTree> {
        match bytes.split_first() {
            None | Some((0, _)) => None,
            Some((kind, path)) => {
                Some(CoveredTree { path: OsStr::from_bytes(path).into(), crosses_mounts: *kind == 2 })
            }
        }
    }
}

/// Sends an answer. The descriptors are sent with its length.
pub fn send_answer(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let length = (bytes.len() as u32).to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
    std::io::Write::write_all(&mut &*stream, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_complete_with_its_last_byte_and_too_long_a_path_is_refused() {
        let (stream, mut peer) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut caller = Caller::new(stream, Instant::now());
        for byte in [&b"J"[..], &[4, 0, 0, 0], b"/ab"].concat() {
            std::io::Write::write_all(&mut peer, &[byte]).unwrap();
            assert!(caller.receive().unwrap().is_none());
        }
        std::io::Write::write_all(&mut peer, b"c").unwrap();
        assert!(matches!(caller.receive().unwrap(), Some(Request::Join(path)) if path == Path::new("/abc")));
        caller.request.clear();
        std::io::Write::write_all(&mut peer, &[&b"J"[..], &u32::MAX.to_le_bytes()].concat()).unwrap();
        assert!(caller.receive().is_err());
    }
}
