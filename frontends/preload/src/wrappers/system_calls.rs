//! syscall(2): system calls of which libc has a wrapped function go to that function, the others to
//! the kernel.

use std::ffi::CStr;

use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t};

use crate::descriptors;
use crate::dispatch;
use crate::errno::{self, Errno};
use crate::guard::is_inside;
use crate::next::{next, wrap};
use crate::process;
use crate::refusals::refused;
use crate::resolve::{LastLink, path_of};
use crate::view;
use crate::wrappers::if_virtual;
use crate::wrappers::programs::{continue_in, execute};

/// The structure `open_how` of openat2(2).
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Returns whether a system call creates a process, or a thread.
fn creates_process(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork || number == libc::SYS_vfork {
        return true;
    }
    number == libc::SYS_clone || number == libc::SYS_clone3
}

/// Returns the function that serves a system call. `syscall` jumps to it instead of calling it,
/// because a system call such as vfork(2) may return twice.
extern "C" fn chosen(number: c_long) -> *const c_void {
    next!(SYSCALL, c"syscall");
    if number == libc::SYS_seccomp {
        dispatch::note_filter();
    }
    if creates_process(number) {
        descriptors::share_all();
    }
    match !is_inside() && is_dispatched(number) && view::is_active() {
        true => call as *const c_void,
        false => SYSCALL.address(),
    }
}

continue_in!(syscall, chosen);

/// Calls the wrapped function for a system call. Returns `None` for calls that the kernel serves.
///
/// # Safety
///
/// The arguments are valid for the system call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn serve(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<c_long> {
    let is_served = !is_inside() && is_dispatched(number) && view::is_active();
    // SAFETY: the caller's promise.
    is_served.then(|| unsafe { call(number, a, b, c, d, e, f) })
}

/// Returns a pointer that the program passed as a number.
fn pointer<T>(argument: c_long) -> *mut T {
    std::ptr::with_exposed_provenance_mut(argument as usize)
}

/// A path, or another constant pointer.
fn constant<T>(argument: c_long) -> *const T {
    pointer::<T>(argument).cast_const()
}

macro_rules! dispatched {
    (
        |$a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident|
        $($(#[$attribute:meta])* $number:ident => $call:expr;)*
    ) => {
        fn is_dispatched(number: c_long) -> bool {
            match number {
                $($(#[$attribute])* libc::$number => true,)*
                _ => false,
            }
        }

        /// Calls the wrapped function for a system call.
        ///
        /// # Safety
        ///
        /// The arguments are valid for the system call.
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn call(
            number: c_long,
            $a: c_long,
            $b: c_long,
            $c: c_long,
            $d: c_long,
            $e: c_long,
            $f: c_long,
        ) -> c_long {
            // SAFETY: the caller's promise; each function has the arguments of its system call.
            unsafe {
                match number {
                    $($(#[$attribute])* libc::$number => $call as c_long,)*
                    _ => errno::reply(Err(Errno(libc::ENOSYS))),
                }
            }
        }
    };
}

dispatched! {
    |a, b, c, d, e, f|
    SYS_read => libc::read(a as c_int, pointer(b), c as usize);
    SYS_write => libc::write(a as c_int, constant(b), c as usize);
    SYS_pread64 => libc::pread64(a as c_int, pointer(b), c as usize, d);
    SYS_pwrite64 => libc::pwrite64(a as c_int, constant(b), c as usize, d);
    SYS_readv => libc::readv(a as c_int, constant(b), c as c_int);
    SYS_writev => libc::writev(a as c_int, constant(b), c as c_int);
    SYS_preadv => libc::preadv64(a as c_int, constant(b), c as c_int, d);
    SYS_pwritev => libc::pwritev64(a as c_int, constant(b), c as c_int, d);
    SYS_preadv2 => libc::preadv64v2(a as c_int, constant(b), c as c_int, d, f as c_int);
    SYS_pwritev2 => libc::pwritev64v2(a as c_int, constant(b), c as c_int, d, f as c_int);
    SYS_lseek => libc::lseek64(a as c_int, b, c as c_int);
    SYS_close => libc::close(a as c_int);
    SYS_close_range => libc::close_range(a as c_uint, b as c_uint, c as c_int);
    SYS_dup => libc::dup(a as c_int);
    SYS_dup3 => libc::dup3(a as c_int, b as c_int, c as c_int);
    SYS_fcntl => libc::fcntl(a as c_int, b as c_int, c as c_ulong);
    SYS_ioctl => libc::ioctl(a as c_int, b as c_ulong, c as c_ulong);
    SYS_flock => libc::flock(a as c_int, b as c_int);
    SYS_fsync => libc::fsync(a as c_int);
    SYS_fdatasync => libc::fdatasync(a as c_int);
    SYS_syncfs => libc::syncfs(a as c_int);
    SYS_sync_file_range => libc::sync_file_range(a as c_int, b, c, d as c_uint);
    SYS_fallocate => libc::fallocate64(a as c_int, b as c_int, c, d);
    SYS_fadvise64 => advise(a as c_int, b, c, d as c_int);
    SYS_readahead => libc::readahead(a as c_int, b, c as usize);
    SYS_umask => libc::umask(a as mode_t);
    SYS_truncate => libc::truncate64(constant(a), b);
    SYS_ftruncate => libc::ftruncate64(a as c_int, b);
    SYS_getdents64 => crate::wrappers::directory_entries::getdents64(a as c_int, pointer(b), c as usize);
    SYS_mmap => libc::mmap64(pointer(a), b as usize, c as c_int, d as c_int, e as c_int, f).expose_provenance();
    SYS_sendfile => libc::sendfile64(a as c_int, b as c_int, pointer(c), d as usize);
    SYS_copy_file_range => libc::copy_file_range(a as c_int, pointer(b), c as c_int, pointer(d), e as usize, f as c_uint);
    SYS_splice => libc::splice(a as c_int, pointer(b), c as c_int, pointer(d), e as usize, f as c_uint);
    SYS_tee => libc::tee(a as c_int, b as c_int, c as usize, d as c_uint);
    SYS_prctl => libc::prctl(a as c_int, b as c_ulong, c as c_ulong, d as c_ulong, e as c_ulong);
    SYS_openat => libc::openat64(a as c_int, constant(b), c as c_int, d as mode_t);
    SYS_openat2 => open_how(a, b, c, d);
    SYS_newfstatat => libc::fstatat(a as c_int, constant(b), pointer(c), d as c_int);
    SYS_fstat => libc::fstat(a as c_int, pointer(b));
    SYS_statx => libc::statx(a as c_int, constant(b), c as c_int, d as c_uint, pointer(e));
    SYS_faccessat => libc::faccessat(a as c_int, constant(b), c as c_int, 0);
    SYS_faccessat2 => libc::faccessat(a as c_int, constant(b), c as c_int, d as c_int);
    SYS_fchmod => libc::fchmod(a as c_int, b as mode_t);
    SYS_fchmodat => libc::fchmodat(a as c_int, constant(b), c as mode_t, 0);
    SYS_fchown => libc::fchown(a as c_int, b as u32, c as u32);
    SYS_fchownat => libc::fchownat(a as c_int, constant(b), c as u32, d as u32, e as c_int);
    SYS_utimensat => change_times(a as c_int, constant(b), constant(c), d as c_int);
    SYS_mkdirat => libc::mkdirat(a as c_int, constant(b), c as mode_t);
    SYS_mknodat => libc::mknodat(a as c_int, constant(b), c as mode_t, d as libc::dev_t);
    SYS_unlinkat => libc::unlinkat(a as c_int, constant(b), c as c_int);
    SYS_renameat => libc::renameat(a as c_int, constant(b), c as c_int, constant(d));
    SYS_renameat2 => libc::renameat2(a as c_int, constant(b), c as c_int, constant(d), e as c_uint);
    SYS_linkat => libc::linkat(a as c_int, constant(b), c as c_int, constant(d), e as c_int);
    SYS_symlinkat => libc::symlinkat(constant(a), b as c_int, constant(c));
    SYS_readlinkat => libc::readlinkat(a as c_int, constant(b), pointer(c), d as usize);
    SYS_chdir => libc::chdir(constant(a));
    SYS_fchdir => libc::fchdir(a as c_int);
    SYS_getcwd => current_dir(pointer(a), b as usize);
    SYS_statfs => libc::statfs64(constant(a), pointer(b));
    SYS_fstatfs => libc::fstatfs64(a as c_int, pointer(b));
    SYS_getxattr => libc::getxattr(constant(a), constant(b), pointer(c), d as usize);
    SYS_lgetxattr => libc::lgetxattr(constant(a), constant(b), pointer(c), d as usize);
    SYS_fgetxattr => libc::fgetxattr(a as c_int, constant(b), pointer(c), d as usize);
    SYS_listxattr => libc::listxattr(constant(a), pointer(b), c as usize);
    SYS_llistxattr => libc::llistxattr(constant(a), pointer(b), c as usize);
    SYS_flistxattr => libc::flistxattr(a as c_int, pointer(b), c as usize);
    SYS_setxattr => libc::setxattr(constant(a), constant(b), constant(c), d as usize, e as c_int);
    SYS_lsetxattr => libc::lsetxattr(constant(a), constant(b), constant(c), d as usize, e as c_int);
    SYS_fsetxattr => libc::fsetxattr(a as c_int, constant(b), constant(c), d as usize, e as c_int);
    SYS_removexattr => libc::removexattr(constant(a), constant(b));
    SYS_lremovexattr => libc::lremovexattr(constant(a), constant(b));
    SYS_fremovexattr => libc::fremovexattr(a as c_int, constant(b));
    SYS_inotify_add_watch => libc::inotify_add_watch(a as c_int, constant(b), c as u32);
    SYS_execve => libc::execve(constant(a), constant(b), constant(c));
    SYS_execveat => execveat(a as c_int, constant(b), constant(c), constant(d), e as c_int);
    SYS_pidfd_getfd => crate::wrappers::received::pidfd_getfd(a as c_int, b as c_int, c as c_uint);
    SYS_recvmsg => libc::recvmsg(a as c_int, pointer(b), c as c_int);
    SYS_io_uring_setup => no_ring();
    SYS_wait4 => libc::wait4(a as c_int, pointer(b), c as c_int, pointer(d));
    SYS_exit_group => end(a as c_int);
    #[cfg(target_arch = "x86_64")]
    SYS_open => libc::open64(constant(a), b as c_int, c as mode_t);
    #[cfg(target_arch = "x86_64")]
    SYS_creat => libc::creat64(constant(a), b as mode_t);
    #[cfg(target_arch = "x86_64")]
    SYS_stat => libc::stat(constant(a), pointer(b));
    #[cfg(target_arch = "x86_64")]
    SYS_lstat => libc::lstat(constant(a), pointer(b));
    #[cfg(target_arch = "x86_64")]
    SYS_access => libc::access(constant(a), b as c_int);
    #[cfg(target_arch = "x86_64")]
    SYS_dup2 => libc::dup2(a as c_int, b as c_int);
    #[cfg(target_arch = "x86_64")]
    SYS_chmod => libc::chmod(constant(a), b as mode_t);
    #[cfg(target_arch = "x86_64")]
    SYS_chown => libc::chown(constant(a), b as u32, c as u32);
    #[cfg(target_arch = "x86_64")]
    SYS_lchown => libc::lchown(constant(a), b as u32, c as u32);
    #[cfg(target_arch = "x86_64")]
    SYS_mkdir => libc::mkdir(constant(a), b as mode_t);
    #[cfg(target_arch = "x86_64")]
    SYS_mknod => libc::mknod(constant(a), b as mode_t, c as libc::dev_t);
    #[cfg(target_arch = "x86_64")]
    SYS_rmdir => libc::rmdir(constant(a));
    #[cfg(target_arch = "x86_64")]
    SYS_unlink => libc::unlink(constant(a));
    #[cfg(target_arch = "x86_64")]
    SYS_rename => libc::rename(constant(a), constant(b));
    #[cfg(target_arch = "x86_64")]
    SYS_link => libc::link(constant(a), constant(b));
    #[cfg(target_arch = "x86_64")]
    SYS_symlink => libc::symlink(constant(a), constant(b));
    #[cfg(target_arch = "x86_64")]
    SYS_utime => libc::utime(constant(a), constant(b));
    #[cfg(target_arch = "x86_64")]
    SYS_utimes => libc::utimes(constant(a), constant(b));
    #[cfg(target_arch = "x86_64")]
    SYS_readlink => libc::readlink(constant(a), pointer(b), c as usize);
}

/// posix_fadvise(3) returns the error number, the system call does not.
fn advise(fd: c_int, start: i64, length: i64, advice: c_int) -> c_int {
    // SAFETY: any arguments are valid.
    match unsafe { libc::posix_fadvise64(fd, start, length, advice) } {
        0 => 0,
        number => errno::reply(Err(Errno(number))),
    }
}

/// utimensat(2) as a system call accepts NULL as the path, and then changes the times of the
/// descriptor.
///
/// # Safety
///
/// The arguments are valid for the system call.
unsafe fn change_times(
    dirfd: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match path.is_null() {
            true => libc::futimens(dirfd, times),
            false => libc::utimensat(dirfd, path, times, flags),
        }
    }
}

/// getcwd(2) as a system call returns the length of the path with its NUL.
///
/// # Safety
///
/// `into` has space for `space` bytes.
unsafe fn current_dir(into: *mut c_char, space: usize) -> c_long {
    if into.is_null() {
        return errno::reply(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: the caller's promise; the result is a string.
    unsafe {
        match libc::getcwd(into, space).is_null() {
            true => -1,
            false => CStr::from_ptr(into).count_bytes() as c_long + 1,
        }
    }
}

/// openat2(2): its additional restrictions of a path apply to native paths only.
///
/// # Safety
///
/// The arguments are valid for the system call.
unsafe fn open_how(dirfd: c_long, path: c_long, how: c_long, length: c_long) -> c_long {
    let text = constant::<c_char>(path);
    // SAFETY: the caller's promise.
    unsafe {
        if if_virtual(dirfd as c_int, text, LastLink::Keep, |_| Ok(())).is_none() {
            return crate::next::system_call()(libc::SYS_openat2, dirfd, path, how, length);
        }
        let how = constant::<OpenHow>(how).as_ref();
        match how.filter(|_| length as usize >= size_of::<OpenHow>()) {
            Some(how) => libc::openat64(dirfd as c_int, text, how.flags as c_int, how.mode as mode_t).into(),
            None => errno::reply(Err(Errno(libc::EINVAL))),
        }
    }
}

/// The kernel cannot serve virtual files with io_uring. Programs use other calls if the kernel does
/// not have io_uring.
fn no_ring() -> c_long {
    errno::reply(Err(refused("io_uring_setup", None, Errno(libc::ENOSYS))))
}

fn end(status: c_int) -> c_long {
    process::finish();
    // SAFETY: any argument is valid; the call does not return.
    unsafe { crate::next::system_call()(libc::SYS_exit_group, status) }
}

wrap! {
    fn execveat(
        dirfd: c_int,
        path: *const c_char,
        argv: *const *const c_char,
        environment: *const *const c_char,
        flags: c_int,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for execveat(2).
        unsafe {
            if is_inside() || !view::is_active() || path.is_null() {
                return next(dirfd, path, argv, environment, flags);
            }
            if flags & libc::AT_EMPTY_PATH != 0 && *path == 0 {
                return libc::fexecve(dirfd, argv, environment);
            }
            let absolute = if_virtual(dirfd, path, LastLink::Follow, |entry| {
                std::ffi::CString::new(path_of(entry)).map_err(|_| Errno(libc::ENOENT))
            });
            match absolute {
                Some(Ok(path)) => libc::execve(path.as_ptr(), argv, environment),
                Some(Err(error)) => errno::reply(Err(error)),
                None => execute(std::ptr::null(), environment, argv, |_, environment| {
                    next(dirfd, path, argv, environment, flags)
                }),
            }
        }
    }
}
