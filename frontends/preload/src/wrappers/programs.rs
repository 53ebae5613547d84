//! Functions that create processes, execute programs, and end the process.

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;

use libc::{c_char, c_int, c_void, pid_t};
use quell_vfs::Kind;

use crate::descriptors;
use crate::environment::Environment;
use crate::errno::{self, Errno, Outcome};
use crate::guard::{inside, is_inside};
use crate::locate::Located;
use crate::locate_at::locate;
use crate::memory_copy;
use crate::next::{Next, next, wrap};
use crate::placeholder::{self, Part};
use crate::process;
use crate::program::{self, Program};
use crate::resolve::{Entry, LastLink};
use crate::supervise;
use crate::variadic::{ArgumentList, variadic};
use crate::view;
use crate::wrappers::{FoundEntry, Target, bytes, find};

/// The largest program that is executed from a virtual directory, in bytes.
const PROGRAM_BYTES_MAX: u64 = 4 << 30;

// SAFETY: libc defines the variable.
unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Prepares the open files for an exec. If the exec fails, the files are opened again at their next
/// use.
fn before_exec() -> Outcome<()> {
    process::publish_all(Part::WholePages)?;
    process::close_files()?;
    process::restore_headers()
}

/// Copies a program or a library to a memfd, from which it is loaded. `wanted`: the permissions
/// that the caller must have, as for access(2).
pub(super) fn program_copy(entry: &Entry, wanted: c_int) -> Outcome<c_int> {
    let found = entry.node()?;
    if found.kind != Kind::File {
        return Err(Errno(libc::EACCES));
    }
    crate::access::check_access(found, wanted, true)?;
    if found.size_bytes > PROGRAM_BYTES_MAX {
        return Err(Errno(libc::ENOMEM));
    }
    let context = crate::view::context();
    let file = entry.fs.open(&context, found.node())?;
    let copy = memory_copy::copy("quell-program", |buffer, offset| Ok(file.read_at(buffer, offset)?))?;
    Ok(placeholder::leak(copy))
}

/// Returns the way in which a virtual program is started.
fn inspect_virtual(entry: &Entry) -> Outcome<Program> {
    let found = entry.node()?;
    if found.kind != Kind::File {
        return Err(Errno(libc::EACCES));
    }
    crate::access::check_access(found, libc::X_OK, true)?;
    let file = entry.fs.open(&quell_vfs::Context::for_process(std::process::id()), found.node())?;
    let mut head = vec![0; program::HEAD_BYTES];
    let length = file.read_at(&mut head, 0)?;
    Ok(program::inspect(&head[..length]))
}

/// The file that the kernel executes for a virtual program.
enum Started {
    /// The descriptor of a copy.
    Copy(c_int),
    Script(ScriptCommand),
}

/// The command line of the interpreter of a script.
struct ScriptCommand {
    // The pointers lead to these strings and to those of the caller.
    _interpreter: CString,
    _argument: Option<CString>,
    pointers: Vec<*const c_char>,
}

impl ScriptCommand {
    /// Returns the command for the script `path`.
    ///
    /// # Safety
    ///
    /// `argv` is NULL or an array of strings that ends with NULL, and outlives the result.
    unsafe fn new(
        interpreter: Vec<u8>,
        argument: Option<Vec<u8>>,
        path: *const c_char,
        argv: *const *const c_char,
    ) -> Outcome<ScriptCommand> {
        let string = |bytes| CString::new(bytes).map_err(|_| Errno(libc::ENOENT));
        let (interpreter, argument) = (string(interpreter)?, argument.map(string).transpose()?);
        let mut pointers = vec![interpreter.as_ptr()];
        pointers.extend(argument.as_ref().map(|argument| argument.as_ptr()));
        pointers.push(path);
        // SAFETY: the caller's promise; the element after one that is not NULL exists.
        unsafe {
            let mut next = argv;
            if !next.is_null() && !(*next).is_null() {
                next = next.add(1);
                while !(*next).is_null() {
                    pointers.push(*next);
                    next = next.add(1);
                }
            }
        }
        pointers.push(std::ptr::null());
        Ok(ScriptCommand { _interpreter: interpreter, _argument: argument, pointers })
    }
}

// SAFETY: calling the pointer requires the arguments of execve(2).
type Execve = unsafe extern "C" fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;

/// Returns the definition of execve(2) in libc.
fn libc_execve() -> Execve {
    next!(EXECVE, c"execve");
    EXECVE.function()
}

/// Executes a program.
///
/// # Safety
///
/// The arguments are valid for execve(2).
pub(super) unsafe fn execute(
    path: *const c_char,
    environment: *const *const c_char,
    argv: *const *const c_char,
    next: impl FnOnce(*const c_char, *const *const c_char) -> c_int,
) -> c_int {
    if is_inside() || !view::is_active() {
        return next(path, environment);
    }
    // SAFETY: the caller's promise.
    let environment = unsafe { Environment::completed(environment) };
    // SAFETY: the caller's promise.
    unsafe { execute_completed(path, &environment, argv, next, 0) }
}

/// Executes a program with a complete environment. `scripts`: the number of scripts before this
/// interpreter.
///
/// # Safety
///
/// As for `execute`.
unsafe fn execute_completed(
    path: *const c_char,
    environment: &Environment,
    argv: *const *const c_char,
    next: impl FnOnce(*const c_char, *const *const c_char) -> c_int,
    scripts: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
        // SAFETY: the caller's promise.
        Ok(Target::Native) => unsafe { execute_native(path, environment, argv, next) },
        // SAFETY: as above.
        Ok(Target::Elsewhere(path)) => unsafe { execute_native(path.as_ptr(), environment, argv, next) },
        // The kernel executes the original file.
        // SAFETY: as above.
        Ok(Target::Virtual(entry)) if entry.is_tree() => unsafe {
            execute_native(path, environment, argv, next)
        },
        // SAFETY: as above.
        Ok(Target::Virtual(entry)) => unsafe { execute_virtual(entry, path, environment, argv, scripts) },
        Err(error) => errno::reply(Err(error)),
    }
}

/// Executes a native program. Only glibc's dynamic linker loads this library into it.
///
/// # Safety
///
/// As for `execute`.
unsafe fn execute_native(
    path: *const c_char,
    environment: &Environment,
    argv: *const *const c_char,
    next: impl FnOnce(*const c_char, *const *const c_char) -> c_int,
) -> c_int {
    let found = match path.is_null() {
        true => Program::Unknown,
        // SAFETY: the caller's promise.
        false => inside(|| Ok(program::inspect_native(unsafe { bytes(path) }))).unwrap_or(Program::Unknown),
    };
    // SAFETY: the caller's promise.
    let name = || String::from_utf8_lossy(unsafe { bytes(path) }).into_owned();
    let reason = match found {
        Program::Musl => {
            crate::messages::warn(&format!(
                "{}: not executed: it is linked with musl, which cannot load libquell_preload.so; use a FUSE \
                 view, or run it without LD_PRELOAD and without virtual directories",
                name()
            ));
            return errno::reply(Err(Errno(program::MUSL_ERROR)));
        }
        Program::DoesNotLoad(reason) => Some(reason),
        _ => None,
    };
    // SAFETY: the caller's promise.
    let names_view = reason.is_some() && unsafe { has_virtual_argument(argv) };
    if let Some(reason) = reason
        && (names_view || crate::cwd::virtual_cwd().is_some())
    {
        crate::messages::warn(&format!(
            "{}: {reason}, so it does not load libquell_preload.so and sees no virtual directories; its standard \
             streams may be virtual files",
            name()
        ));
    }
    let is_supervised =
        inside(|| Ok(reason.is_some() && supervise::is_inherited() || supervise::is_of_another_user()));
    if is_supervised.unwrap_or(false) {
        return supervise::run(|| next(path, environment.as_ptr()));
    }
    if let Err(error) = inside(before_exec) {
        return errno::reply(Err(error));
    }
    next(path, environment.as_ptr())
}

/// Returns whether an argument is a path in a virtual directory.
///
/// # Safety
///
/// `argv` is NULL or an array of strings that ends with NULL.
unsafe fn has_virtual_argument(argv: *const *const c_char) -> bool {
    let mut next = argv;
    // SAFETY: the caller's promise; the element after one that is not NULL exists.
    unsafe {
        while !next.is_null() && !(*next).is_null() {
            if bytes(*next).starts_with(b"/") && !view::is_certainly_native(bytes(*next)) {
                return true;
            }
            next = next.add(1);
        }
    }
    false
}

/// Executes a virtual program: a copy of it, or the interpreter of a script, which opens the script
/// by its path.
///
/// # Safety
///
/// As for `execute`.
unsafe fn execute_virtual(
    entry: FoundEntry,
    path: *const c_char,
    environment: &Environment,
    argv: *const *const c_char,
    scripts: usize,
) -> c_int {
    let prepared = entry.with(|entry| match inspect_virtual(entry)? {
        Program::Script { .. } if scripts >= program::SCRIPTS_MAX => Err(Errno(libc::ELOOP)),
        Program::Script { interpreter, argument } => {
            // SAFETY: the caller's promise.
            unsafe { ScriptCommand::new(interpreter, argument, path, argv) }.map(Started::Script)
        }
        _ => program_copy(entry, libc::X_OK).map(Started::Copy),
    });
    match prepared {
        Err(error) => errno::reply(Err(error)),
        Ok(Started::Script(command)) => {
            let words = command.pointers.as_ptr();
            // SAFETY: the array ends with NULL, and its strings are valid as long as `command`.
            unsafe {
                execute_completed(
                    command.pointers[0],
                    environment,
                    words,
                    |path, environment| libc_execve()(path, words, environment),
                    scripts + 1,
                )
            }
        }
        Ok(Started::Copy(copy)) => errno::reply(inside(|| {
            let copy = placeholder::own(copy);
            before_exec()?;
            // SAFETY: the pointers belong to the caller and to `environment`; the path is empty.
            unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    copy.as_raw_fd(),
                    c"".as_ptr(),
                    argv,
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
            }
            Err(Errno(errno::get()))
        })),
    }
}

wrap! {
    fn execve(path: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for execve(2).
        unsafe { execute(path, environment, argv, |path, environment| next(path, argv, environment)) }
    }
}

wrap! {
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for execv(3); `environ` is the program's own.
        unsafe { execve(path, argv, environ) }
    }
}

wrap! {
    fn execvpe(name: *const c_char, argv: *const *const c_char, environment: *const *const c_char) -> c_int, |next| {
        if name.is_null() || is_inside() || !view::is_active() {
            // SAFETY: the caller's arguments are valid for execvpe(3).
            return unsafe { next(name, argv, environment) };
        }
        // SAFETY: as above.
        unsafe {
            if bytes(name).contains(&b'/') {
                return execute_or_interpret(name, argv, environment);
            }
            match found_in_path(name) {
                Some(path) => execute_or_interpret(path.as_ptr(), argv, environment),
                // libc returns the error.
                None => next(name, argv, environment),
            }
        }
    }
}

/// Executes a program; a file without a known format is a script of the shell, as for execvp(3).
///
/// # Safety
///
/// The arguments are valid for execve(2), and the path is not NULL.
unsafe fn execute_or_interpret(
    path: *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let failed = unsafe { execve(path, argv, environment) };
    if errno::get() != libc::ENOEXEC {
        return failed;
    }
    // SAFETY: as above.
    match inside(|| unsafe { ScriptCommand::new(b"/bin/sh".to_vec(), None, path, argv) }) {
        // SAFETY: the array ends with NULL, and its strings are valid as long as `command`.
        Ok(command) => unsafe { execve(command.pointers[0], command.pointers.as_ptr(), environment) },
        Err(error) => errno::reply(Err(error)),
    }
}

wrap! {
    fn execvp(name: *const c_char, argv: *const *const c_char) -> c_int, |next| {
        // SAFETY: the caller's arguments are valid for execvp(3); `environ` is the program's own.
        unsafe { execvpe(name, argv, environ) }
    }
}

/// Returns the path of a program that is found with the variable PATH.
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
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        for dir in path.as_encoded_bytes().split(|byte| *byte == b':') {
            let dir = if dir.is_empty() { b"." } else { dir };
            let Ok(candidate) = CString::new(view::joined(dir, name)) else { continue };
            match locate(libc::AT_FDCWD, candidate.as_bytes()) {
                Located::Native => {
                    let access = rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK);
                    let is_file = || {
                        rustix::fs::stat(&candidate)
                            .is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFREG)
                    };
                    if access.is_ok() && is_file() {
                        return Ok(Some(candidate));
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
                // SAFETY: the caller's arguments are valid for fexecve(3). The path is not used.
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
        && let Err(error) = inside(|| process::publish_all(Part::WholePages))
    {
        crate::messages::warn(&format!(
            "data could not be published before a program is executed: error {}",
            error.0
        ));
    }
}

/// Makes vfork(2) the same as fork(2) in a process with virtual directories: the child of vfork(2)
/// shares the memory of its parent, and would change its working directory and its descriptors.
extern "C" fn vfork_function() -> *const c_void {
    next!(VFORK, c"vfork");
    next!(FORK, c"fork");
    if view::is_active() { FORK.address() } else { VFORK.address() }
}

/// Records that another process shares the placeholders, because clone(2) runs no handlers of
/// fork(2). It can be called in a signal handler.
extern "C" fn clone_function() -> *const c_void {
    next!(CLONE, c"clone");
    descriptors::share_all();
    CLONE.address()
}

/// Collects the arguments of a program up to NULL, which is the last element.
///
/// # Safety
///
/// The list has strings, and NULL after them.
unsafe fn collected(arguments: &mut ArgumentList) -> Vec<*const c_char> {
    let mut collected = Vec::new();
    loop {
        // SAFETY: the caller's promise: NULL has not been returned yet.
        let argument = unsafe { arguments.next_pointer::<c_char>() };
        collected.push(argument);
        if argument.is_null() {
            return collected;
        }
    }
}

/// # Safety
///
/// The arguments are valid for execl(3).
unsafe extern "C" fn execl_with_list(path: *const c_char, arguments: &mut ArgumentList) -> c_int {
    // SAFETY: the caller's promise; `environ` is the program's own.
    unsafe { execve(path, collected(arguments).as_ptr(), environ) }
}

/// # Safety
///
/// The arguments are valid for execle(3).
unsafe extern "C" fn execle_with_list(path: *const c_char, arguments: &mut ArgumentList) -> c_int {
    // SAFETY: the caller's promise; the environment follows NULL.
    unsafe {
        let words = collected(arguments);
        execve(path, words.as_ptr(), arguments.next_pointer::<*const c_char>())
    }
}

/// # Safety
///
/// The arguments are valid for execlp(3).
unsafe extern "C" fn execlp_with_list(name: *const c_char, arguments: &mut ArgumentList) -> c_int {
    // SAFETY: the caller's promise; `environ` is the program's own.
    unsafe { execvpe(name, collected(arguments).as_ptr(), environ) }
}

variadic!(
    /// execl(3) in a process with virtual directories.
    own_execl, 1, "rsi", "x1", execl_with_list
);
variadic!(
    /// execle(3) in a process with virtual directories.
    own_execle, 1, "rsi", "x1", execle_with_list
);
variadic!(
    /// execlp(3) in a process with virtual directories.
    own_execlp, 1, "rsi", "x1", execlp_with_list
);

/// Returns the function to which an exec with a list of arguments jumps.
fn list_exec(own: *const c_void, next: &Next) -> *const c_void {
    match view::is_active() && !is_inside() {
        true => own,
        false => next.address(),
    }
}

extern "C" fn execl_function() -> *const c_void {
    next!(EXECL, c"execl");
    list_exec(own_execl as *const c_void, &EXECL)
}

extern "C" fn execle_function() -> *const c_void {
    next!(EXECLE, c"execle");
    list_exec(own_execle as *const c_void, &EXECLE)
}

extern "C" fn execlp_function() -> *const c_void {
    next!(EXECLP, c"execlp");
    list_exec(own_execlp as *const c_void, &EXECLP)
}

/// Defines a function that calls `$choose`, and then jumps to the function that `$choose` returns,
/// with unchanged arguments and return address. This is needed for a function that has a list of
/// arguments, or that returns twice.
macro_rules! continue_in {
    ($name:ident, $choose:ident) => {
        /// Jumps to the function that serves the call.
        ///
        /// # Safety
        ///
        /// The requirements of the function of libc apply.
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

        /// Jumps to the function that serves the call.
        ///
        /// # Safety
        ///
        /// The requirements of the function of libc apply.
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

pub(super) use continue_in;

continue_in!(vfork, vfork_function);
continue_in!(clone, clone_function);
continue_in!(execl, execl_function);
continue_in!(execle, execle_function);
continue_in!(execlp, execlp_function);

// `_Fork` runs no handlers of fork(2) either.
wrap! {
    fn _Fork() -> libc::pid_t, |next| {
        descriptors::share_all();
        // SAFETY: there are no preconditions.
        unsafe { next() }
    }
}

wrap! {
    fn system(command: *const c_char) -> c_int, |next| {
        publish_before();
        // SAFETY: the caller's argument is valid for system(3).
        let status = unsafe { next(command) };
        crate::ended_children::add();
        status
    }
}

/// Starts a program with posix_spawn(3).
///
/// # Safety
///
/// The arguments are valid for posix_spawn(3).
unsafe fn spawn(
    path: *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
    next: impl FnOnce(*const c_char, *const *const c_char, *const *const c_char) -> c_int,
) -> c_int {
    if is_inside() || !view::is_active() {
        return next(path, argv, environment);
    }
    publish_before();
    // SAFETY: the caller's promise.
    let environment = unsafe { Environment::completed(environment) };
    // SAFETY: the caller's promise.
    match unsafe { find(libc::AT_FDCWD, path, LastLink::Follow) } {
        // SAFETY: as above.
        Ok(Target::Native) => unsafe { spawn_native(path, argv, &environment, next) },
        // SAFETY: as above.
        Ok(Target::Elsewhere(path)) => unsafe { spawn_native(path.as_ptr(), argv, &environment, next) },
        Ok(Target::Virtual(entry)) if entry.is_tree() => next(path, argv, environment.as_ptr()),
        Ok(Target::Virtual(entry)) => {
            // SAFETY: as above.
            let prepared = entry.with(|entry| match inspect_virtual(entry)? {
                // A shell executes the script, and passes its descriptors on.
                // SAFETY: the caller's promise.
                Program::Script { .. } => Ok((None, unsafe { shell_command(path, argv) }?)),
                _ => {
                    let copy = program_copy(entry, libc::X_OK)?;
                    rustix::io::fcntl_setfd(placeholder::borrow(copy), rustix::io::FdFlags::empty())?;
                    let path =
                        CString::new(format!("/proc/self/fd/{copy}")).map_err(|_| Errno(libc::ENOENT))?;
                    Ok((Some((placeholder::own(copy), path)), Vec::new()))
                }
            });
            match prepared {
                Ok((Some((_copy, path)), _)) => next(path.as_ptr(), argv, environment.as_ptr()),
                Ok((None, words)) => next(SHELL.as_ptr(), words.as_ptr(), environment.as_ptr()),
                Err(error) => error.0,
            }
        }
        Err(error) => error.0,
    }
}

const SHELL: &CStr = c"/bin/sh";

/// Returns the arguments of a shell that executes a program. The strings belong to the caller.
///
/// # Safety
///
/// The arguments are valid for execve(2).
unsafe fn shell_command(path: *const c_char, argv: *const *const c_char) -> Outcome<Vec<*const c_char>> {
    let mut words = vec![SHELL.as_ptr(), c"-c".as_ptr(), c"exec \"$0\" \"$@\"".as_ptr()];
    // SAFETY: the caller's promise.
    let command = unsafe { ScriptCommand::new(Vec::new(), None, path, argv) }?;
    words.extend(&command.pointers[1..]);
    Ok(words)
}

/// Starts a native program. A program that does not load this library is executed by a shell, which
/// stores the data of virtual files that the program inherits.
///
/// # Safety
///
/// The arguments are valid for posix_spawn(3).
unsafe fn spawn_native(
    path: *const c_char,
    argv: *const *const c_char,
    environment: &Environment,
    next: impl FnOnce(*const c_char, *const *const c_char, *const *const c_char) -> c_int,
) -> c_int {
    if path.is_null() {
        return next(path, argv, environment.as_ptr());
    }
    // SAFETY: the caller's promise.
    let found = inside(|| Ok(program::inspect_native(unsafe { bytes(path) }))).unwrap_or(Program::Unknown);
    let is_supervised = matches!(found, Program::Musl)
        || matches!(found, Program::DoesNotLoad(_))
            && !inside(|| Ok(descriptors::all())).unwrap_or_default().is_empty();
    if !is_supervised {
        return next(path, argv, environment.as_ptr());
    }
    // SAFETY: as above.
    match inside(|| unsafe { shell_command(path, argv) }) {
        Ok(words) => next(SHELL.as_ptr(), words.as_ptr(), environment.as_ptr()),
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
        // SAFETY: the caller's arguments are valid for posix_spawn(3).
        unsafe { spawn(path, argv, environment, |path, argv, environment| next(pid, path, actions, attributes, argv, environment)) }
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
        // SAFETY: the caller's arguments are valid for posix_spawnp(3).
        unsafe {
            let has_slash = !name.is_null() && bytes(name).contains(&b'/');
            let found = if has_slash { None } else { found_in_path(name) };
            if !has_slash && found.is_none() {
                return next(pid, name, actions, attributes, argv, environment); // libc returns the error
            }
            let path = found.as_ref().map_or(name, |path| path.as_ptr());
            spawn(path, argv, environment, |path, argv, environment| next(pid, path, actions, attributes, argv, environment))
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
