//! The holder's side of the socket.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_overlay::Namespaces;
use quell_vfs::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::socket::connection::{ANSWER_TIMEOUT, RETRY_INTERVAL, timespec};
use crate::socket::lock::{lock, remove_files, socket_path};
use crate::socket::request::{Caller, CoveredTree, DISCARDS, Request, send_answer};

/// Why a holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderEnd {
    /// The last process of the namespace has ended.
    LastMemberEnded,
    /// The service returned `Need::Over`.
    NotNeeded,
}

/// Whether a holder is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The holder is needed and can be joined through its socket.
    Joinable,
    /// The holder serves programs that still use its view; a new holder may take its key.
    NotJoinable,
    Over,
}

/// The view or mount of a holder, as the socket server uses it. Only `Holder::serve` calls the
/// methods, from one thread.
pub trait Service {
    /// Returns the report that `quell stats` requests, as JSON.
    fn report(&self) -> String;

    /// Returns the answer to processes that join a holder without a namespace; `None` if the holder
    /// has one, or cannot be joined.
    fn shared(&self) -> Option<String> {
        None
    }

    /// Makes the end of the mount discard its changes. Returns whether it does: false if changes
    /// take effect immediately.
    fn discard(&mut self) -> bool {
        false
    }

    /// Returns whether the holder is still needed.
    fn need(&mut self) -> Need;

    /// Does the work of one interval.
    fn tick(&mut self);

    /// Acts on the end of the process that requested the view.
    fn creator_ended(&mut self);
}

/// The server side of the protocol.
#[derive(Debug)]
pub struct Holder {
    directory: PathBuf,
    key: String,
    listener: UnixListener,
    /// Processes of the namespace, by process number, each with its pidfd.
    members: HashMap<i32, OwnedFd>,
    callers: Vec<Caller>,
    trees: Vec<CoveredTree>,
    /// Directories outside of the trees of which the view has copies.
    copies: Vec<PathBuf>,
    creator: Option<OwnedFd>,
    /// Descriptors whose events make `serve` call `Service::need`.
    wakers: Vec<(OwnedFd, PollFlags)>,
    /// The end of a pipe whose other end the programs of a holder without a namespace inherit.
    lifeline: Option<OwnedFd>,
    is_not_joinable: bool,
}

impl Holder {
    /// Creates the socket. The caller of `join` that started this process holds the lock.
    pub fn bind(directory: &Path, key: &str) -> Result<Holder> {
        let path = socket_path(directory, key);
        let failed = |e| Error::from_io(e, "open socket", path.as_os_str().as_bytes());
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        // The mode of the directory already excludes other users.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Holder {
            directory: directory.into(),
            key: key.into(),
            listener,
            members: HashMap::new(),
            callers: Vec::new(),
            trees: Vec::new(),
            copies: Vec::new(),
            creator: None,
            wakers: Vec::new(),
            lifeline: None,
            is_not_joinable: false,
        })
    }

    /// Keeps the holder running at least until the process that requested the view has ended.
    pub fn wait_for_creator(&mut self, pid: i32) {
        self.wait_for(pid);
        self.creator = self.members.get(&pid).and_then(|descriptor| descriptor.try_clone().ok());
    }

    fn wait_for(&mut self, pid: i32) {
        let Some(process) = Pid::from_raw(pid) else { return };
        if let Ok(descriptor) = pidfd_open(process, PidfdFlags::empty()) {
            self.members.insert(pid, descriptor);
        }
    }

    /// Adds a tree that the view covers, for the answers to processes that join.
    pub fn covers(&mut self, tree: CoveredTree) {
        self.trees.push(tree);
    }

    /// Adds a directory outside of the trees of which the view has a copy.
    pub fn copies(&mut self, directory: &Path) {
        self.copies.push(directory.to_owned());
    }

    /// Makes `serve` call `Service::need` when the descriptor has one of the events.
    pub fn wake_on(&mut self, descriptor: OwnedFd, events: PollFlags) {
        self.wakers.push((descriptor, events));
    }

    /// Makes a holder without a namespace end when the processes that joined it have ended and no
    /// process has the other end of a pipe open. Each process that joins gets this end with the
    /// answer, and its children inherit it.
    pub fn end_with_programs(&mut self) -> Result<()> {
        let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "create", b"a pipe");
        let (read, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
        self.lifeline = Some(read);
        Ok(())
    }

    /// Answers callers until the namespace has no other processes or the service is over. Calls
    /// `report` for each request for a report, `tick` about every `interval`, `need` at the start,
    /// after each `tick` and when a descriptor of `wake_on` has an event, and `creator_ended` once.
    pub fn serve(
        mut self,
        namespaces: Option<&Namespaces>,
        interval: Duration,
        service: &mut dyn Service,
    ) -> Result<HolderEnd> {
        let mut next_tick = Instant::now() + interval;
        let mut must_ask_need = true;
        loop {
            must_ask_need |= self.wait(match must_ask_need {
                true => Duration::ZERO,
                false => next_tick.saturating_duration_since(Instant::now()),
            })?;
            while let Ok((stream, _)) = self.listener.accept() {
                // An error or delay of one caller must not affect the others.
                if stream.set_nonblocking(true).is_ok() {
                    let deadline = Instant::now() + ANSWER_TIMEOUT;
                    self.callers.push(Caller::new(stream, deadline));
                }
            }
            self.answer_callers(namespaces, service);
            if self.creator.as_ref().is_some_and(|creator| has_ended(creator.as_fd())) {
                self.creator = None;
                service.creator_ended();
            }
            self.members.retain(|_, descriptor| !has_ended(descriptor.as_fd()));
            if Instant::now() >= next_tick {
                service.tick();
                next_tick = Instant::now() + interval;
                must_ask_need = true;
            }
            if must_ask_need {
                must_ask_need = false;
                match service.need() {
                    Need::Joinable => {}
                    Need::NotJoinable if self.is_not_joinable => {}
                    Need::NotJoinable => {
                        self.is_not_joinable = self.leave()?;
                        must_ask_need = !self.is_not_joinable;
                    }
                    Need::Over if self.is_not_joinable || self.leave()? => return Ok(HolderEnd::NotNeeded),
                    Need::Over => must_ask_need = true,
                }
            }
            if self.lifeline.is_some() && self.members.is_empty() && !self.has_programs() && self.leave()? {
                return Ok(HolderEnd::LastMemberEnded);
            }
            if namespaces.is_some() && self.members.is_empty() {
                self.find_members();
                if self.members.is_empty() && self.leave()? {
                    return Ok(HolderEnd::LastMemberEnded);
                }
            }
        }
    }

    /// Removes the socket, which no other process has used yet, and the lock file. The caller must
    /// hold the lock.
    pub fn abandon(self) {
        remove_files(&self.directory, &self.key);
    }

    /// Waits until a caller connects or sends data, a member or the creator ends, a descriptor of
    /// `wake_on` has an event, or the timeout. Returns whether a descriptor of `wake_on` has an
    /// event.
    fn wait(&self, timeout: Duration) -> Result<bool> {
        let mut watched: Vec<PollFd<'_>> =
            self.wakers.iter().map(|(waker, events)| PollFd::new(waker, *events)).collect();
        watched.push(PollFd::new(&self.listener, PollFlags::IN));
        watched.extend(self.members.values().map(|m| PollFd::new(m, PollFlags::IN)));
        watched.extend(self.creator.iter().map(|creator| PollFd::new(creator, PollFlags::IN)));
        watched.extend(self.callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)));
        // While a member lives, the pipe may already be closed.
        let lifeline = self.lifeline.iter().filter(|_| self.members.is_empty());
        watched.extend(lifeline.map(|lifeline| PollFd::new(lifeline, PollFlags::IN)));
        let first_deadline = self.callers.iter().map(|caller| caller.deadline).min();
        let timeout = match first_deadline {
            Some(deadline) => timeout.min(deadline.saturating_duration_since(Instant::now())),
            None => timeout,
        };
        match poll(&mut watched, Some(&timespec(timeout))) {
            Ok(_) => {
                let wakers = &watched[..self.wakers.len()];
                Ok(wakers.iter().any(|waker| !waker.revents().is_empty()))
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(Error::from_io(e.into(), "wait", b"for the job's processes")),
        }
    }

    /// Reads the available data of all callers without waiting, and answers complete requests.
    fn answer_callers(&mut self, namespaces: Option<&Namespaces>, service: &mut dyn Service) {
        let mut waiting = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.receive() {
                // An error of one caller must not affect the others.
                Ok(Some(request)) => drop(self.answer(&caller.stream, request, namespaces, service)),
                Ok(None) if Instant::now() < caller.deadline => waiting.push(caller),
                Ok(None) | Err(_) => {}
            }
        }
        self.callers = waiting;
    }

    fn answer(
        &mut self,
        stream: &UnixStream,
        request: Request,
        namespaces: Option<&Namespaces>,
        service: &mut dyn Service,
    ) -> std::io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        // The mode of the directory already excludes other users; this is a second check.
        if peer.uid != rustix::process::geteuid() {
            return Ok(());
        }
        // Most answers fit into the socket buffer, so writing them does not block.
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        if let (Request::Join(_), Some(lifeline), Some(shared)) = (&request, &self.lifeline, service.shared())
        {
            let path = format!("/proc/self/fd/{}", lifeline.as_raw_fd());
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
            let other_end = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
            self.wait_for(peer.pid.as_raw_nonzero().get());
            return send_answer(stream, shared.as_bytes(), &[other_end.as_fd()]);
        }
        if let Request::Discard = request {
            let answer = if service.discard() { DISCARDS } else { b"" };
            return send_answer(stream, answer, &[]);
        }
        let (Request::Join(path), Some(namespaces)) = (&request, namespaces) else {
            return send_answer(stream, service.report().as_bytes(), &[]);
        };
        let opened = open_directory(path);
        let number = opened.as_ref().err().map_or(0, |e| e.raw_os_error()) as u32;
        let above = self.trees.iter().filter(|tree| path.starts_with(&tree.path));
        let tree = match self.copies.contains(path) {
            // As in a tree with file systems mounted below it, the directory at this path in the
            // view is not the original.
            true => CoveredTree::encode(Some(&CoveredTree { path: path.clone(), crosses_mounts: true })),
            false => CoveredTree::encode(above.max_by_key(|tree| tree.path.components().count())),
        };
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![namespaces.mount()];
        descriptors.extend(opened.as_ref().ok().map(AsFd::as_fd));
        descriptors.extend(namespaces.user());
        // Recorded as a member before it can enter the namespace, so that the holder does not end
        // meanwhile.
        self.wait_for(peer.pid.as_raw_nonzero().get());
        send_answer(stream, &[&number.to_le_bytes()[..], &tree].concat(), &descriptors)
    }

    /// Returns whether a process has the other end of the pipe open.
    fn has_programs(&self) -> bool {
        let Some(lifeline) = &self.lifeline else { return false };
        let mut watched = [PollFd::new(lifeline, PollFlags::IN)];
        // Without a writer, poll(2) reports POLLHUP.
        !poll(&mut watched, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
    }

    /// Finds processes of the namespace that did not join through the socket: children that
    /// outlived their parents.
    fn find_members(&mut self) {
        let Ok(namespace) = std::fs::read_link("/proc/self/ns/mnt") else { return };
        // The holder does not wait for a process that cannot be identified as a member: any user
        // can create such a process, and the holder must end.
        for pid in quell_overlay::other_members(&namespace, std::process::id()) {
            self.wait_for(pid);
        }
        self.members.retain(|_, descriptor| !has_ended(descriptor.as_fd()));
    }

    /// Removes the socket, unless a caller is connecting. Returns whether it was removed.
    fn leave(&self) -> Result<bool> {
        let Some(_lock) = lock(&self.directory, &self.key, FlockOperation::NonBlockingLockExclusive)? else {
            // Another process holds the lock and may connect.
            std::thread::sleep(RETRY_INTERVAL);
            return Ok(false);
        };
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = timespec(Duration::ZERO);
        if !self.callers.is_empty() || poll(&mut waiting, Some(&now)).is_ok_and(|ready| ready > 0) {
            std::thread::sleep(RETRY_INTERVAL);
            return Ok(false);
        }
        remove_files(&self.directory, &self.key);
        Ok(true)
    }
}

/// Opens the directory at exactly this path, without symbolic links, if it may be entered.
fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, statat};
    use std::os::fd::AsRawFd;
    if !path.is_absolute() {
        return Err(rustix::io::Errno::NOENT);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty())?;
    let found = readlinkat(CWD, format!("/proc/self/fd/{}", directory.as_raw_fd()), Vec::new())?;
    if found.as_bytes() != path.as_os_str().as_bytes() {
        return Err(rustix::io::Errno::LOOP);
    }
    // Checks the search permission, as fchdir(2) will.
    statat(&directory, ".", AtFlags::empty())?;
    Ok(directory)
}

/// Returns whether the process of the pidfd has ended.
pub fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&now)).is_ok_and(|ready| ready > 0)
}
