//! Sends a plan to a holder, with the descriptors that it needs, and receives it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg,
};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::inputs::{InputFile, Origin};
use crate::protocol::plan::Plan;

const ENVELOPE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of open files sent with a plan; further files are opened by path.
const FILES_MAX: usize = 64;

/// A plan, with the other values that the holder needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope {
    pub plan: Plan,
    pub address: Address,
    /// The process that waits for the answer; the holder exists at least as long as this process.
    pub creator: i32,
    /// Files that the creator has opened. Their descriptors are sent in this order, after the
    /// descriptor of the lock.
    files: Vec<SentFile>,
}

/// An open file whose descriptor is sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SentFile {
    path: PathBuf,
    origin: Option<Origin>,
}

/// The name of a holder: its socket and its lock are files in the runtime directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Address {
    /// The runtime directory.
    pub directory: PathBuf,
    pub key: String,
}

/// Open files that were sent with a plan, by path.
pub type OpenFiles = BTreeMap<PathBuf, InputFile>;

/// A received plan, with the descriptors that were sent with it.
#[derive(Debug)]
pub struct Received {
    pub envelope: Envelope,
    /// The lock of the holder's key.
    pub lock: File,
    pub files: OpenFiles,
}

/// Sends the descriptors with the first byte of the plan. Closing the stream marks the end of the
/// plan.
pub fn send(
    plan: &Plan,
    address: &Address,
    files: &[InputFile],
    lock: &File,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    let files = &files[..files.len().min(FILES_MAX)];
    let text = serde_json::to_vec(&Envelope {
        plan: plan.clone(),
        address: address.clone(),
        creator: std::process::id() as i32,
        files: files.iter().map(|file| SentFile { path: file.path.clone(), origin: file.origin }).collect(),
    })?;
    let files = files.iter().map(|file| file.file.as_fd());
    let descriptors: Vec<_> = std::iter::once(lock.as_fd()).chain(files).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1 + FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(&stream, &[IoSlice::new(&text[..1])], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&text[1..])
}

/// Receives a plan, the holder's lock and the open files from a socket.
pub fn receive(mut stream: impl AsFd + Read) -> Result<Received, Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("cannot read the plan: {e}"));
    let mut text = vec![0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1 + FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(&stream, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| cannot(e.into()))?;
    text.truncate(got.bytes);
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut received = descriptors.flatten().map(File::from);
    let lock = received.next().ok_or_else(|| Failure::wrong_input("the plan: no lock came with it"))?;
    let files: Vec<File> = received.collect();
    stream.by_ref().take(ENVELOPE_BYTES_MAX).read_to_end(&mut text).map_err(cannot)?;
    let envelope: Envelope =
        serde_json::from_slice(&text).map_err(|e| Failure::wrong_input(format!("the plan: {e}")))?;
    let opened = |(SentFile { path, origin }, file)| (path.clone(), InputFile { path, file, origin });
    let files = envelope.files.iter().cloned().zip(files).map(opened).collect();
    Ok(Received { envelope, lock, files })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::plan::{KernelCaching, LocksMode, LogPlan, PlanSource, Target};
    use quell_mount_spec::{IndexMode, NewFiles};

    fn plan() -> Plan {
        let (index, flatten_threshold_bytes, locks) = (IndexMode::Parallel, 0, LocksMode::Store);
        let (stores, buffer_bytes, kernel_caching) = (Vec::new(), 4096, KernelCaching::Auto);
        let new_files = NewFiles::Container;
        let log = LogPlan {
            stores,
            buffer_bytes,
            index,
            flatten_threshold_bytes,
            locks,
            kernel_caching,
            new_files,
        };
        let (strict, quiet, verbose) = (false, true, false);
        let (target, source, trust_owners) = (Target::Namespace, PlanSource::Log(log), Vec::new());
        Plan {
            target,
            source,
            strict,
            trust_owners,
            threads: 1,
            quiet,
            verbose,
            answer_timeout_s: None,
            log_file: None,
        }
    }

    #[test]
    fn a_plan_arrives_with_the_lock_and_the_open_files_by_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().canonicalize().unwrap().join(name);
        let open = |name: &str| {
            std::fs::write(path(name), name).unwrap();
            InputFile::open(&path(name)).unwrap()
        };
        let (lock, files) = (open("lock"), [open("a"), open("b")]);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let address = Address { directory: directory.path().into(), key: "view-1".into() };
        send(&plan(), &address, &files, &lock.file, ours).unwrap();
        let mut received = receive(&theirs).unwrap();
        let content = |mut file: File| {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(content(received.lock), "lock");
        assert_eq!(content(received.files.remove(&path("b")).unwrap().file), "b");
        assert_eq!((received.files.len(), received.envelope.address.key.as_str()), (1, "view-1"));
        assert_eq!(received.envelope.creator, std::process::id() as i32);
    }

    #[test]
    fn a_plan_that_is_not_complete_or_has_no_lock_is_refused() {
        let refused = |text: &[u8], lock: Option<&File>| {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors: Vec<_> = lock.iter().map(|file| file.as_fd()).collect();
            if lock.is_some() {
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            let first = [IoSlice::new(&text[..1])];
            rustix::net::sendmsg(&ours, &first, &mut control, SendFlags::NOSIGNAL).unwrap();
            ours.write_all(&text[1..]).unwrap();
            drop(ours);
            receive(&theirs).unwrap_err().to_string()
        };
        let lock = File::open("/dev/null").unwrap();
        assert!(refused(b"{}", None).contains("no lock"));
        assert!(refused(b"{}", Some(&lock)).contains("missing field"));
        assert!(refused(b"{\"plan\":", Some(&lock)).contains("the plan:"));
    }
}
