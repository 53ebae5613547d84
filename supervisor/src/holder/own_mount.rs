//! The mount of a holder at a mount point, and when it is removed.

use std::fs::File;
use std::path::Path;

use rustix::event::PollFlags;

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::messages::Messages;
use crate::mount_point;
use crate::mount_table::{self, MOUNT_TABLE, MountTableEntry};
use crate::socket::server::{Holder, Need};

/// This process's mount at a mount point.
#[derive(Debug)]
pub struct OwnMount {
    mount: Option<MountTableEntry>,
    is_detached: bool,
    /// The number of requests at which an unmount last failed, and the failure was reported.
    requests_failed: u32,
}

/// The action for a mount that is in use when its process gets a request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyPolicy {
    /// The mount stays.
    Keep,
    /// The mount is detached, and the process ends: the kernel alone continues to serve programs.
    Detach,
    DetachAndServe,
}

impl OwnMount {
    /// Returns the mount that was just created at `path`.
    pub fn at(path: &Path) -> OwnMount {
        OwnMount { mount: mount_table::topmost_at(path), is_detached: false, requests_failed: 0 }
    }

    /// Makes the holder check the mount as soon as the mount table changes.
    pub fn wake(&self, holder: &mut Holder) -> Result<(), Failure> {
        let table = File::open(MOUNT_TABLE).map_err(|e| Failure::cannot(format!("{}: {e}", MOUNT_TABLE)))?;
        holder.wake_on(table.into(), PollFlags::PRI);
        Ok(())
    }

    /// Returns the mount with its current path: a mount moves with the directories above it.
    fn current(&self) -> Option<MountTableEntry> {
        let mount = self.mount.as_ref()?;
        match mount_table::mount_table() {
            Ok(table) => table.into_iter().find(|other| other.is_same(mount)),
            // If the table cannot be read, the mount is taken to exist.
            Err(_) => Some(mount.clone()),
        }
    }

    /// Returns whether the mount still exists.
    pub fn exists(&self) -> bool {
        self.current().is_some()
    }

    /// Returns whether the holder is still needed after this number of requests to end.
    pub fn need(&mut self, requests: u32, busy: BusyPolicy, messages: &Messages) -> Need {
        let is_served = matches!(busy, BusyPolicy::DetachAndServe);
        if self.is_detached {
            return if is_served && requests < 2 { Need::NotJoinable } else { Need::Over };
        }
        let Some(mount) = self.current() else { return Need::Over };
        if requests == 0 {
            return Need::Joinable;
        }
        if let Err(failure) = self.unmount(&mount, requests > 1, busy, messages) {
            if requests != self.requests_failed {
                self.requests_failed = requests;
                messages.print(&format!(
                    "{failure}; it is served until it is unmounted, or until a second SIGTERM"
                ));
            }
            return if requests > 1 { Need::Over } else { Need::Joinable };
        }
        match self.is_detached && is_served && requests < 2 {
            true => Need::NotJoinable,
            false => Need::Over,
        }
    }

    /// Removes the mount at once, because the command that requested it was killed.
    pub fn abandon(&mut self, messages: &Messages) {
        if let Some(mount) = self.current()
            && let Err(failure) = self.unmount(&mount, true, BusyPolicy::Detach, messages)
        {
            messages.print(&failure.to_string());
        }
    }

    /// Unmounts; a mount that is in use is detached.
    fn unmount(
        &mut self,
        mount: &MountTableEntry,
        by_force: bool,
        busy: BusyPolicy,
        messages: &Messages,
    ) -> Result<(), Failure> {
        let path = &mount.point;
        if !mount_table::topmost_at(path).is_some_and(|top| top.is_same(mount)) {
            return Err(Failure::cannot(format!("{}: another mount covers the view", shown(path))));
        }
        if !by_force {
            match mount_point::unmount(path, false) {
                Err(failure) if matches!(busy, BusyPolicy::Keep) => return Err(failure),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
        mount_point::unmount(path, true)?;
        self.is_detached = true;
        if !by_force {
            messages.print(&format!(
                "{} was in use when its process got a signal to end: it is detached, and served until the last program has \
                 closed its files",
                shown(path)
            ));
        }
        Ok(())
    }
}
