//! The user of the process at the other end of a Unix socket, as the kernel states it.

// rustix has no function for SO_PEERGROUPS.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// The id that the kernel shows for users and groups that the user namespace does not map.
const UNMAPPED: u32 = 65_534;
/// The largest number of supplementary groups of a process on Linux.
const GROUPS_MAX: usize = 65_536;

/// The user and the groups that a process had when it connected to a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUser {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

impl PeerUser {
    /// Returns a user with the groups that the user namespace maps. `None` if it does not map the
    /// user or the effective group, because all such users are shown with the same id.
    pub fn mapped(uid: u32, gid: u32, mut groups: Vec<u32>) -> Option<PeerUser> {
        groups.retain(|group| *group != UNMAPPED);
        (uid != UNMAPPED && gid != UNMAPPED).then_some(PeerUser { uid, gid, groups })
    }

    /// Returns the user at the other end of a connected Unix socket.
    ///
    /// # Errors
    /// `PermissionDenied` for a user or a group that the user namespace does not map; the errors of
    /// getsockopt(2).
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<PeerUser> {
        let found = rustix::net::sockopt::socket_peercred(socket)?;
        let user = PeerUser::mapped(found.uid.as_raw(), found.gid.as_raw(), groups_of(socket)?);
        user.ok_or_else(|| {
            let reason = "the user or group of the client is not known in this user namespace";
            io::Error::new(io::ErrorKind::PermissionDenied, reason)
        })
    }
}

fn groups_of(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&*groups)).expect("at most 256 KiB");
        // SAFETY: the kernel writes at most `bytes` bytes, which are those of `groups`, and then
        // the length to `bytes`; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel has written the length that it needs.
        if error.raw_os_error() != Some(Errno::RANGE.raw_os_error())
            || !(groups.len()..=GROUPS_MAX).contains(&count)
        {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn ids_that_are_not_mapped_give_no_rights() {
        let user = PeerUser::mapped(5, 6, vec![7, UNMAPPED, 8]);
        assert_eq!(user, Some(PeerUser { uid: 5, gid: 6, groups: vec![7, 8] }));
        assert_eq!(PeerUser::mapped(UNMAPPED, 6, vec![]), None);
        assert_eq!(PeerUser::mapped(5, UNMAPPED, vec![]), None);
    }

    #[test]
    fn the_kernel_states_the_user_and_the_groups_of_this_process() {
        let (one, _two) = UnixStream::pair().unwrap();
        let found = PeerUser::of(one.as_fd()).unwrap();
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(found.gid, rustix::process::getegid().as_raw());
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut groups = found.groups;
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
    }
}
