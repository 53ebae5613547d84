//! Functions that create processes, execute programs, and end the process.

use std::ffi::CString;

use libc::{c_char, c_int, c_void, pid_t};
use quell_vfs::Kind;
use rustix::fs::MemfdFlags;

use crate::descriptors;
use crate::environment::Environment;
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::locate::Located;
use crate::locate_at::locate;
use crate::next::{Next, wrap};
use crate::placeholder;
use crate::process;
use crate::resolve::{Entry, LastLink};
use crate::view;
use crate::wrappers::{Target, bytes, find};

/// The largest program that is executed from a virtual directory, in bytes.
const PROGRAM_BYTES_MAX: u64 = 4 << 30;

// SAFETY: libc defines the variable.
unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Prepares the open files for an exec. If it fails, they are opened again at their next use.
fn before_exec() -> Outcome<()> {
    process::publish_all()?;
    process::close_files()
}

/// Copies a program to a memfd, from which the kernel executes it.
fn program_copy(entry: &Entry) -> Outcome<c_int> {
    let found = entry.node()?;
    if found.kind != Kind::File {
        return Err(Errno(libc::EACCES));
    }
    crate::access::check_access(found, libc::X_OK, true)?;
    if found.size_bytes > PROGRAM_BYTES_MAX {
        return Err(Errno(libc::ENOMEM));
    }
    let context = crate::view::context();
    let file = entry.fs.open(&context, found.node())?;
    let memfd = rustix::fs::memfd_create("quell-program", MemfdFlags::CLOEXEC)?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    let mut is_script = false;
    loop {
        let length = file.read_at(&mut buffer, offset)?;
        if length == 0 {
            break;
        }
        is_script |= offset == 0 && buffer[..length].starts_with(b"#!");
        let mut written = 0;
        while written < length {
            written += rustix::io::pwrite(&memfd, &buffer[written..length], offset + written as u64)?;
        }
        offset += length as u64;
    }
    // The interpreter of a script opens it by the name of the descriptor, so it must stay open.
    if is_script {
        rustix::io::fcntl_setfd(&memfd, rustix::io::FdFlags::empty())?;
    }
    Ok(placeholder::leak(memfd))
}

/// Executes a program.
///
/// # Safety
///
/// The arguments are those of execve(2).
unsafe fn execute(
    path: *const c_char,
    environment: *const *const c_char,
    argv: *const *const c_char,
    next: impl FnOnce(*const c_char, *const *const c_char) -> c_int,
) -> c_int {
    if is_inside() || !view::is_active() {
        return next(path, environment);
    }
    // SAFETY: the caller's promise.
    let prepared = inside(|| Ok((before_exec()?, unsafe { Environment::completed(environment) })));
    let environment = match prepared {
        Ok((_, environment)) => environment,
        Err(error) => return errno::reply(Err(error)),
    };
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
        Ok(Target::Native) => next(path, environment.as_ptr()),
        Ok(Target::Elsewhere(path)) => next(path.as_ptr(), environment.as_ptr()),
        // The kernel executes the original file.
        Ok(Target::Virtual(entry)) if entry.dir.is_tree() => next(path, environment.as_ptr()),
        Ok(Target::Virtual(entry)) => errno::reply(inside(|| {
            let copy = program_copy(&entry)?;
            // SAFETY: the pointers are those of the caller and of `environment`; the path is empty.
            unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    copy,
                    c"".as_ptr(),
                    argv,
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
            }
            let failure = Errno(errno::get());
            drop(placeholder::own(copy));
            Err(failure)
        })),
        Err(error) => errno::reply(Err(error)),
    }
}

wrap! {
    fn execve(path: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of execve(2).
        unsafe { execute(path, environment, argv, |path, environment| next(path, argv, environment)) }
    }
}

wrap! {
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of execv(3); `environ` is the program's own.
        unsafe { execve(path, argv, environ) }
    }
}

wrap! {
    fn execvpe(name: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of execvpe(3).
        unsafe {
            // A name without a slash is searched for in PATH, and found in native directories only.
            let has_slash = !name.is_null() && bytes(name).contains(&b'/');
            if has_slash {
                return execve(name, argv, environment);
            }
            match found_in_path(name) {
                Some(path) => execve(path.as_ptr(), argv, environment),
                None => execute(name, environment, argv, |name, environment| next(name, argv, environment)),
            }
        }
    }
}

wrap! {
    fn execvp(name: *const c_char, argv: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of execvp(3); `environ` is the program's own.
        unsafe { execvpe(name, argv, environ) }
    }
}

/// Returns the path of a program in a virtual directory that PATH names, if the search for it
/// reaches one before it finds the program elsewhere.
///
/// # Safety
///
/// `name` is NULL or a string that ends with a NUL.
unsafe fn found_in_path(name: *const c_char) -> Option<CString> {
    if name.is_null() || is_inside() || !view::is_active() {
        return None;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { bytes(name) };
    inside(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        for dir in path.as_encoded_bytes().split(|byte| *byte == b':') {
            let dir = if dir.is_empty() { b"." } else { dir };
            let Ok(candidate) = CString::new(view::joined(dir, name)) else { continue };
            match locate(libc::AT_FDCWD, candidate.as_bytes()) {
                Located::Native => {
                    let access = rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK);
                    if access.is_ok() {
                        return Ok(None);
                    }
                }
                Located::Virtual(dir, rest) => {
                    let resolved = crate::resolve::resolve(dir, &rest, LastLink::Follow);
                    if let Ok(crate::resolve::Resolved::Virtual(entry)) = resolved
                        && entry.node().is_ok_and(|found| {
                            found.kind == Kind::File
                                && crate::access::check_access(found, libc::X_OK, true).is_ok()
                        })
                    {
                        return Ok(Some(candidate));
                    }
                }
            }
        }
        Ok(None)
    })
    .unwrap_or(None)
}

wrap! {
    fn fexecve(fd: c_int, argv: *const *const c_char, environment: *const *const c_char) -> c_int, |next| {
        match crate::wrappers::opened(fd) {
            None => {
                // SAFETY: the caller's arguments are those of fexecve(3). The path is not used.
                unsafe { execute(std::ptr::null(), environment, argv, |_, environment| next(fd, argv, environment)) }
            }
            Some(description) => {
                let path = inside(|| {
                    let file = descriptors::file(&description)?;
                    CString::new(view::absolute(file.dir, &file.path())).map_err(|_| Errno(libc::ENOENT))
                });
                match path {
                    // SAFETY: as above.
                    Ok(path) => unsafe { execve(path.as_ptr(), argv, environment) },
                    Err(error) => errno::reply(Err(error)),
                }
            }
        }
    }
}

/// Publishes the open files before libc creates a process or executes a program without calling the
/// functions of this library.
pub extern "C" fn publish_before() {
    if view::is_active()
        && !is_inside()
        && let Err(error) = inside(process::publish_all)
    {
        crate::messages::warn(&format!(
            "data could not be published before a program is executed: error {}",
            error.0
        ));
    }
}

/// Prepares for one of the functions whose arguments are a list.
extern "C" fn before_list_exec() {
    if view::is_active()
        && !is_inside()
        && let Err(error) = inside(before_exec)
    {
        crate::messages::warn(&format!(
            "data could not be published before a program is executed: error {}",
            error.0
        ));
    }
}

/// Whether vfork(2) must become fork(2): the child of vfork(2) shares the table of descriptors with
/// its parent, and would change it.
extern "C" fn vfork_function() -> *const c_void {
    static VFORK: Next = Next::new(c"vfork");
    static FORK: Next = Next::new(c"fork");
    if view::is_active() && !descriptors::all().is_empty() { FORK.address() } else { VFORK.address() }
}

extern "C" fn execl_function() -> *const c_void {
    static EXECL: Next = Next::new(c"execl");
    before_list_exec();
    EXECL.address()
}

extern "C" fn execle_function() -> *const c_void {
    static EXECLE: Next = Next::new(c"execle");
    before_list_exec();
    EXECLE.address()
}

extern "C" fn execlp_function() -> *const c_void {
    static EXECLP: Next = Next::new(c"execlp");
    before_list_exec();
    EXECLP.address()
}

/// Defines a function that calls `$choose`, and then continues in the function that this returns,
/// with its own arguments and return address: a function with a list of arguments, or one that
/// returns twice.
macro_rules! continue_in {
    ($name:ident, $choose:ident) => {
        /// Continues in the next definition.
        ///
        /// # Safety
        ///
        /// The requirements are those of the function of libc.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {choose}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                choose = sym $choose,
            )
        }

        /// Continues in the next definition.
        ///
        /// # Safety
        ///
        /// The requirements are those of the function of libc.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {choose}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                choose = sym $choose,
            )
        }
    };
}

continue_in!(vfork, vfork_function);
continue_in!(execl, execl_function);
continue_in!(execle, execle_function);
continue_in!(execlp, execlp_function);

wrap! {
    fn system(command: *const c_char) -> c_int, |next| {
        publish_before();
        // SAFETY: the caller's argument is that of system(3).
        unsafe { next(command) }
    }
}

/// Starts a program with posix_spawn(3).
///
/// # Safety
///
/// The arguments are those of posix_spawn(3).
unsafe fn spawn(
    path: *const c_char,
    environment: *const *const c_char,
    next: impl FnOnce(*const c_char, *const *const c_char) -> c_int,
) -> c_int {
    if is_inside() || !view::is_active() {
        return next(path, environment);
    }
    publish_before();
    // SAFETY: the caller's promise.
    let prepared = inside(|| Ok(unsafe { Environment::completed(environment) }));
    let Ok(environment) = prepared else { return libc::ENOMEM };
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
        Ok(Target::Native) => next(path, environment.as_ptr()),
        Ok(Target::Elsewhere(path)) => next(path.as_ptr(), environment.as_ptr()),
        Ok(Target::Virtual(entry)) if entry.dir.is_tree() => next(path, environment.as_ptr()),
        Ok(Target::Virtual(entry)) => {
            let copy = inside(|| {
                let copy = program_copy(&entry)?;
                rustix::io::fcntl_setfd(placeholder::borrow(copy), rustix::io::FdFlags::empty())?;
                let path = CString::new(format!("/proc/self/fd/{copy}")).map_err(|_| Errno(libc::ENOENT))?;
                Ok((placeholder::own(copy), path))
            });
            match copy {
                Ok((_copy, path)) => next(path.as_ptr(), environment.as_ptr()),
                Err(error) => error.0,
            }
        }
        Err(error) => error.0,
    }
}

wrap! {
    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of posix_spawn(3).
        unsafe { spawn(path, environment, |path, environment| next(pid, path, actions, attributes, argv, environment)) }
    }
}

wrap! {
    fn posix_spawnp(
        pid: *mut pid_t,
        name: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int, |next| {
        // SAFETY: the caller's arguments are those of posix_spawnp(3).
        unsafe {
            let has_slash = !name.is_null() && bytes(name).contains(&b'/');
            let found = if has_slash { None } else { found_in_path(name) };
            let path = found.as_ref().map_or(name, |path| path.as_ptr());
            spawn(path, environment, |path, environment| next(pid, path, actions, attributes, argv, environment))
        }
    }
}

macro_rules! ending {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(status: c_int) -> (), |next| {
                if view::is_active() && !is_inside() {
                    process::finish();
                }
                // SAFETY: any argument is valid; the function does not return.
                unsafe { next(status) }
            }
        }
    )*};
}

ending!(_exit, _Exit, quick_exit);
