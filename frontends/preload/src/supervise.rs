//! Runs a program that does not load this library, such as a statically linked one, with open
//! virtual files. The program writes to their placeholders, so a process has to remain that writes
//! this data to the virtual files: the process that executes the program remains, runs the program
//! as its child, and ends with the status of the child. Files that are open for reading are copied
//! for the child.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, pid_t};
use rustix::fs::{Mode, OFlags};

use crate::descriptors::{self, Description};
use crate::errno::{self, Errno, Outcome};
use crate::guard::Entered;
use crate::memory_copy;
use crate::messages::warn;
use crate::open_file::OpenFile;
use crate::placeholder::{self, Part};
use crate::process;

/// The largest file that is copied for a program that reads it, in bytes.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// The exit code if data of the program could not be stored.
const NOT_STORED: c_int = 1;

/// The exit code of a child that has not executed the program. Its parent reads the error number.
const NOT_EXECUTED: c_int = 127;

/// A file that is open for reading, and the copy of its content for the program.
struct Copy {
    fd: c_int,
    content: OwnedFd,
}

/// Returns whether open virtual files would be inherited by a program.
pub fn is_inherited() -> bool {
    descriptors::all().iter().any(|(fd, description)| is_inherited_file(*fd, description))
}

fn is_inherited_file(fd: c_int, description: &Description) -> bool {
    let flags = rustix::io::fcntl_getfd(placeholder::borrow(fd));
    matches!(description, Description::File(_))
        && flags.is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
}

/// Returns whether an inherited file will be refused by the library in the program, because another
/// user created its placeholder.
pub fn is_of_another_user() -> bool {
    let user = rustix::process::geteuid().as_raw();
    descriptors::all().iter().any(|(fd, description)| {
        is_inherited_file(*fd, description)
            && rustix::fs::fstat(placeholder::borrow(*fd)).is_ok_and(|found| found.st_uid != user)
    })
}

/// Executes a program with `execute` in a child, and ends this process with the status of the
/// child. Returns only if the program cannot be executed, with `errno` set.
pub fn run(execute: impl FnOnce() -> c_int) -> c_int {
    let entered = Entered::new();
    let error = match start(execute, entered) {
        Ok(error) | Err(error) => error,
    };
    errno::set(error.0);
    -1
}

/// Returns the error of the exec, or an error before it.
fn start(execute: impl FnOnce() -> c_int, entered: Entered) -> Outcome<Errno> {
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) > 1 {
        return Err(Errno(libc::ENOTSUP)); // an exec would end the other threads
    }
    process::publish_all(Part::WholePages)?;
    let copies = copies()?;
    let (reader, writer) = pipe()?;
    // With SIGCHLD ignored, the kernel would drop the status of the child.
    // SAFETY: SIG_DFL is a valid handler.
    let child_signal = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: there are no preconditions.
    match unsafe { libc::fork() } {
        -1 => Err(Errno(errno::get())),
        0 => {
            // SAFETY: the descriptors are open, and the handler is the one from before. The kernel
            // ends the child if this process is killed.
            unsafe {
                libc::signal(libc::SIGCHLD, child_signal);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for copy in &copies {
                    libc::syscall(libc::SYS_dup3, copy.content.as_raw_fd(), copy.fd, 0);
                }
            }
            drop(reader);
            drop(entered);
            execute();
            let number = errno::get();
            let _ = rustix::io::write(&writer, &number.to_ne_bytes());
            // SAFETY: any status is valid; handlers of the parent's program must not run.
            unsafe { libc::syscall(libc::SYS_exit_group, NOT_EXECUTED) };
            unreachable!("exit_group does not return")
        }
        child => {
            drop(writer);
            let mut number = [0; 4];
            match rustix::io::read(&reader, &mut number) {
                Ok(4) => {
                    wait(child, 0);
                    // SAFETY: as above.
                    unsafe { libc::signal(libc::SIGCHLD, child_signal) };
                    Ok(Errno(c_int::from_ne_bytes(number)))
                }
                _ => {
                    drop(reader);
                    close_others(&copies);
                    end_like(supervise(child), &copies)
                }
            }
        }
    }
}

fn pipe() -> Outcome<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has space for two descriptors, which the kernel opens.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => Err(Errno(errno::get())),
        }
    }
}

/// Copies the content of the files that are open for reading only.
fn copies() -> Outcome<Vec<Copy>> {
    let mut copies: Vec<Copy> = Vec::new();
    for (fd, description) in descriptors::all() {
        let Description::File(file) = &*description else { continue };
        if !is_inherited_file(fd, &description) || file.flags() & libc::O_ACCMODE != libc::O_RDONLY {
            continue;
        }
        copies.push(Copy { fd, content: copy(fd, file)? });
    }
    Ok(copies)
}

fn copy(fd: c_int, file: &OpenFile) -> Outcome<OwnedFd> {
    if file.attributes()?.size_bytes > COPY_BYTES_MAX {
        return Err(Errno(libc::EFBIG));
    }
    let content = memory_copy::copy("quell-content", |buffer, offset| file.read_at(&mut [buffer], offset))?;
    let again = format!("/proc/self/fd/{}", content.as_raw_fd());
    let reader = rustix::fs::open(again, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    placeholder::set_position(
        placeholder::borrow(reader.as_raw_fd()),
        placeholder::position(placeholder::borrow(fd))?,
    )?;
    Ok(reader)
}

/// Closes the descriptors of the program, so that the reader of a pipe sees its end when the child
/// closes it. Standard error stays, for messages.
fn close_others(copies: &[Copy]) {
    for number in process::open_numbers().unwrap_or_default() {
        let is_copy = copies.iter().any(|copy| copy.content.as_raw_fd() == number);
        let is_own = crate::own_descriptors::contains(number);
        if number != libc::STDERR_FILENO && !is_copy && !is_own && !descriptors::is_virtual(number) {
            // SAFETY: this process uses no descriptor of the program any more.
            unsafe { libc::syscall(libc::SYS_close, number) };
        }
    }
}

/// Waits for the child, and returns its status.
fn wait(child: pid_t, options: c_int) -> Option<c_int> {
    let mut status = 0;
    // SAFETY: the pointer is to a variable of this function.
    (unsafe { libc::waitpid(child, &mut status, options) } == child).then_some(status)
}

/// Forwards signals to the child until it ends, and returns its status. All signals are blocked.
fn supervise(child: pid_t) -> c_int {
    // SAFETY: zero bytes are a valid set and a valid structure, and both are initialized by the
    // functions before they are read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&all, &mut info);
            if signal == libc::SIGCHLD {
                while let Some(status) = wait(child, libc::WNOHANG | libc::WUNTRACED) {
                    if !libc::WIFSTOPPED(status) {
                        return status;
                    }
                    // Job control of a shell sees this process, which stops with the child.
                    libc::kill(libc::getpid(), libc::SIGSTOP);
                }
            } else if signal > 0 && (info.si_code <= 0 || signal == libc::SIGCONT) {
                // The kernel itself, such as a terminal, signals the whole process group.
                libc::kill(child, signal);
            }
        }
    }
}

/// Stores the data of the program, and ends this process as the child ended.
fn end_like(status: c_int, copies: &[Copy]) -> ! {
    for copy in copies {
        let content = placeholder::borrow(copy.content.as_raw_fd());
        if let Ok(position) = placeholder::position(content) {
            let _ = placeholder::set_position(placeholder::borrow(copy.fd), position);
        }
    }
    let stored = process::publish_all(Part::All).and(process::close_files());
    if let Err(Errno(number)) = &stored {
        let reason = std::io::Error::from_raw_os_error(*number);
        warn(&format!("data that a program wrote without the library could not be stored: {reason}"));
    }
    let code = match status {
        _ if stored.is_err() => NOT_STORED,
        status if libc::WIFSIGNALED(status) => {
            end_by(libc::WTERMSIG(status));
            128 + libc::WTERMSIG(status)
        }
        status => libc::WEXITSTATUS(status),
    };
    // SAFETY: any status is valid.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    unreachable!("exit_group does not return")
}

/// Ends this process by a signal. The child has written a core file if there is one.
fn end_by(signal: c_int) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // SAFETY: the set is initialized by sigemptyset before it is read, and SIG_DFL is a valid
    // handler.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}
