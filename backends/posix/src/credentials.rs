//! The user, the group and the supplementary groups with which a thread accesses files.
//!
//! Root serves other users and works in directories that belong to them. With the credentials of
//! that user, the kernel checks each access. A name in such a directory, even if the user has
//! replaced it, then gives root no access to a file of a third user. Linux keeps credentials per
//! thread, and the system calls used here change only those of the calling thread (credentials(7),
//! "setuid: C library/kernel differences").

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use quell_vfs::{Caller, Error, Result};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

thread_local! {
    static ASSUMED: RefCell<Option<Arc<Caller>>> = const { RefCell::new(None) };
}

/// The group and supplementary groups with which the process was started.
struct ProcessCredentials {
    gid: Gid,
    groups: Vec<Gid>,
}

fn process_credentials() -> &'static ProcessCredentials {
    static CREDENTIALS: OnceLock<ProcessCredentials> = OnceLock::new();
    CREDENTIALS.get_or_init(|| ProcessCredentials {
        gid: rustix::process::getegid(),
        groups: rustix::process::getgroups().unwrap_or_default(),
    })
}

/// Returns the credentials that this thread has assumed, or `None` for the credentials of the
/// process. A thread that is ending has assumed none: its variables are already destroyed while
/// libc flushes streams at the end of a process, which a library in that process serves.
pub fn assumed() -> Option<Arc<Caller>> {
    ASSUMED.try_with(|assumed| assumed.borrow().clone()).unwrap_or(None)
}

/// Returns whether this thread has root's privileges, and has not assumed the credentials of
/// another user.
pub fn has_root_power() -> bool {
    rustix::process::geteuid().is_root()
}

/// Restores the thread's previous credentials when dropped. The raw pointer prevents `Send`, so the
/// value stays in its thread.
#[derive(Debug)]
pub struct Acting {
    before: Option<Arc<Caller>>,
    _not_send: PhantomData<*const ()>,
}

/// Makes this thread access files with the credentials of `caller`, or with the credentials of the
/// process if `None`, until the result is dropped. Errors: `Os(EPERM)` if the process does not run
/// as root.
///
/// The real and the saved user id remain root's, so that the assumed user can neither signal nor
/// trace the process.
pub fn assume(caller: Option<Arc<Caller>>) -> Result<Acting> {
    let before = assumed();
    if before != caller {
        let subject = caller.as_ref().map_or(String::new(), |caller| format!("user {}", caller.uid));
        let refused =
            |errno: Errno| Error::from_io(errno.into(), "act with the credentials of", subject.as_bytes());
        if before.is_none() && !rustix::process::geteuid().is_root() {
            return Err(refused(Errno::PERM));
        }
        if let Err(errno) = set_credentials(caller.as_deref()) {
            restore(before.as_deref());
            return Err(refused(errno));
        }
        ASSUMED.set(caller);
    }
    Ok(Acting { before, _not_send: PhantomData })
}

fn set_credentials(caller: Option<&Caller>) -> rustix::io::Result<()> {
    // Only root can change groups.
    let process = process_credentials();
    set_thread_res_uid(None, Uid::ROOT, None)?;
    match caller {
        None => {
            set_thread_groups(&process.groups)?;
            set_thread_res_gid(None, process.gid, None)
        }
        Some(Caller { uid, gid, groups }) => {
            // -1 would mean "unchanged" to the kernel.
            if *uid == u32::MAX || *gid == u32::MAX || groups.contains(&u32::MAX) {
                return Err(rustix::io::Errno::INVAL);
            }
            let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            set_thread_groups(&groups)?;
            set_thread_res_gid(None, Gid::from_raw(*gid), None)?;
            set_thread_res_uid(None, Uid::from_raw(*uid), None)
        }
    }
}

/// Restores credentials. If that fails, the process ends, because a thread with other credentials
/// than it is assumed to have would access files with the wrong permissions.
fn restore(before: Option<&Caller>) {
    // If groups cannot be changed at all, the call fails and the credentials are unchanged.
    let result = set_credentials(before);
    if result.is_err() && !are_credentials(before) {
        eprintln!("quell: cannot restore the credentials of a thread ({result:?}); the process ends");
        std::process::abort();
    }
}

fn are_credentials(caller: Option<&Caller>) -> bool {
    let ids = (rustix::process::geteuid(), rustix::process::getegid());
    let groups = rustix::process::getgroups().unwrap_or_default();
    match caller {
        None => ids == (Uid::ROOT, process_credentials().gid) && groups == process_credentials().groups,
        Some(Caller { uid, gid, groups: wanted }) => {
            (ids.0.as_raw(), ids.1.as_raw()) == (*uid, *gid)
                && groups.iter().map(|group| group.as_raw()).eq(wanted.iter().copied())
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let before = self.before.take();
        if assumed() != before {
            restore(before.as_deref());
            ASSUMED.set(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> (u32, u32, Vec<u32>) {
        let groups = rustix::process::getgroups().unwrap();
        (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
            groups.iter().map(|gid| gid.as_raw()).collect(),
        )
    }

    fn caller(uid: u32, groups: &[u32]) -> Option<Arc<Caller>> {
        Some(Arc::new(Caller { uid, gid: uid.wrapping_add(1), groups: groups.to_vec() }))
    }

    #[test]
    fn credentials_change_for_one_thread_and_are_restored_even_after_a_panic() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: only root can be two users");
        }
        let before = ids();
        let outer = assume(caller(1234, &[77, 78])).unwrap();
        assert_eq!(ids(), (1234, 1235, vec![77, 78]));
        std::thread::spawn(|| assert_eq!(rustix::process::geteuid().as_raw(), 1234)).join().unwrap();
        let unwound = std::panic::catch_unwind(|| {
            let _inner = assume(caller(4321, &[])).unwrap();
            assert_eq!(ids(), (4321, 4322, vec![]));
            let _root = assume(None).unwrap();
            assert_eq!(rustix::process::geteuid().as_raw(), 0);
            panic!("on purpose");
        });
        assert!(unwound.is_err());
        assert_eq!(ids(), (1234, 1235, vec![77, 78]));
        assert!(assume(caller(u32::MAX, &[])).is_err_and(|_| ids().0 == 1234));
        drop(outer);
        assert_eq!(ids(), before);
        assert_eq!(assumed(), None);
    }
}
