//! Decides when a process that serves a view ends: on signals, or when its mount is removed.
//!
//! SIGTERM, SIGINT and SIGHUP request the end. A view at a mount point is unmounted. If programs
//! use it, it is detached, which removes its name, and is served until the last of them has ended.
//! A view of `quell run` is served until the last program has ended. A writable view remains in
//! place while programs use it, because its process holds the lock of the writable layer. A second
//! SIGTERM or SIGINT ends all of them at once.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use quell_overlay::{Holder, Need};
use rustix::event::PollFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::commands::umount;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::mounts::{self, Mount};
use crate::streams::say;

/// Counts the requests to end this process.
#[derive(Debug)]
pub struct Signals {
    /// Receives a byte for each SIGTERM and SIGINT.
    ends: UnixStream,
    /// Receives a byte for each SIGHUP. SIGHUP counts once: systemd sends it together with SIGTERM.
    hang_ups: UnixStream,
    requests: u32,
}

impl Signals {
    /// Installs the handlers. From now on these signals do not end the process by themselves.
    pub fn listen() -> Result<Signals, Failure> {
        let cannot = |e: std::io::Error| Failure::cannot(format!("cannot wait for signals: {e}"));
        let pipe = |signals: &[i32]| {
            let (reader, writer) = UnixStream::pair()?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
            }
            reader.set_nonblocking(true)?;
            Ok(reader)
        };
        let (ends, hang_ups) = (pipe(&[SIGTERM, SIGINT]).map_err(cannot)?, pipe(&[SIGHUP]).map_err(cannot)?);
        Ok(Signals { ends, hang_ups, requests: 0 })
    }

    /// Makes the holder check for requests as soon as a signal arrives.
    pub fn wake(&self, holder: &mut Holder) -> Result<(), Failure> {
        for stream in [&self.ends, &self.hang_ups] {
            let stream =
                stream.try_clone().map_err(|e| Failure::cannot(format!("cannot wait for signals: {e}")))?;
            holder.wake_on(OwnedFd::from(stream), PollFlags::IN);
        }
        Ok(())
    }

    /// Returns the number of requests so far. Several that arrived since the last call count as
    /// one.
    pub fn requests(&mut self) -> u32 {
        let came = |mut stream: &UnixStream| {
            let mut any = false;
            while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
                any = true;
            }
            any
        };
        let (ends, hang_ups) = (came(&self.ends), came(&self.hang_ups));
        if ends || hang_ups && self.requests == 0 {
            self.requests += 1;
        }
        self.requests
    }
}

/// This process's mount at a mount point.
#[derive(Debug)]
pub struct MountedAt {
    mount: Option<Mount>,
    is_detached: bool,
    /// The number of requests at which an unmount last failed, and the failure was reported.
    requests_failed: u32,
}

/// The action for a mount that is in use when its process gets a request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InUse {
    /// The mount stays.
    Keep,
    /// The mount is detached, and the process ends: the kernel alone continues to serve programs.
    Detach,
    DetachAndServe,
}

impl MountedAt {
    /// Returns the mount that was just created at `path`.
    pub fn of(path: &Path) -> MountedAt {
        MountedAt { mount: mounts::topmost_at(path), is_detached: false, requests_failed: 0 }
    }

    /// Makes the holder check the mount as soon as the mount table changes.
    pub fn wake(&self, holder: &mut Holder) -> Result<(), Failure> {
        let table =
            File::open(mounts::TABLE).map_err(|e| Failure::cannot(format!("{}: {e}", mounts::TABLE)))?;
        holder.wake_on(table.into(), PollFlags::PRI);
        Ok(())
    }

    /// Returns the mount with its current path: a mount moves with the directories above it.
    fn now(&self) -> Option<Mount> {
        let mount = self.mount.as_ref()?;
        match mounts::table() {
            Ok(table) => table.into_iter().find(|other| other.is_same(mount)),
            // If the table cannot be read, the mount is taken to exist.
            Err(_) => Some(mount.clone()),
        }
    }

    pub fn is_there(&self) -> bool {
        self.now().is_some()
    }

    /// Returns whether the holder is still needed after this number of requests to end.
    pub fn need(&mut self, requests: u32, in_use: InUse) -> Need {
        let is_served = matches!(in_use, InUse::DetachAndServe);
        if self.is_detached {
            return if is_served && requests < 2 { Need::Unlisted } else { Need::Over };
        }
        let Some(mount) = self.now() else { return Need::Over };
        if requests == 0 {
            return Need::Listed;
        }
        if let Err(failure) = self.take_away(&mount, requests > 1, in_use) {
            if requests != self.requests_failed {
                self.requests_failed = requests;
                say(&format!("{failure}; it is served until it is unmounted, or until a second SIGTERM"));
            }
            return if requests > 1 { Need::Over } else { Need::Listed };
        }
        match self.is_detached && is_served && requests < 2 {
            true => Need::Unlisted,
            false => Need::Over,
        }
    }

    /// Removes the mount at once, because the command that requested it was killed.
    pub fn abandon(&mut self) {
        if let Some(mount) = self.now()
            && let Err(failure) = self.take_away(&mount, true, InUse::Detach)
        {
            say(&failure.to_string());
        }
    }

    /// Unmounts; a mount that is in use is detached.
    fn take_away(&mut self, mount: &Mount, by_force: bool, in_use: InUse) -> Result<(), Failure> {
        let path = &mount.point;
        if !mounts::topmost_at(path).is_some_and(|top| top.is_same(mount)) {
            return Err(Failure::cannot(format!("{}: another mount covers the view", shown(path))));
        }
        if !by_force {
            match umount::unmount(path, false) {
                Err(failure) if matches!(in_use, InUse::Keep) => return Err(failure),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
        umount::unmount(path, true)?;
        self.is_detached = true;
        if !by_force {
            say(&format!(
                "{} was in use when this process was asked to end: it is detached, and served until the last \
                 program has closed its files",
                shown(path)
            ));
        }
        Ok(())
    }
}
