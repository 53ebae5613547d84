//! The handler of SIGSYS for dispatched system calls (`dispatch`). Like a function of libc, it runs
//! on the stack of the interrupted code, with the signal mask of this code.

use libc::{c_int, c_long, c_ulong, c_void, siginfo_t, ucontext_t};

use crate::counters::Counter;
use crate::dispatch;
use crate::errno;
use crate::guard::{CancellationDisabled, is_inside};
use crate::next::system_call;
use crate::process;
use crate::refusals::warn_once;
use crate::selector;
use crate::view;
use crate::wrappers::system_calls;

/// `si_code` of a dispatched system call.
const SYS_USER_DISPATCH: c_int = 2;

/// The length of the instruction `syscall`.
const INSTRUCTION_BYTES: i64 = 2;

/// The size of the kernel's set of signals.
const MASK_BYTES: usize = 8;

/// SIGSYS in the kernel's set of signals.
const MASK_SIGSYS: u64 = 1 << (libc::SIGSYS - 1);

const ARCH_SET_FS: c_long = 0x1002;

/// `AUDIT_ARCH_X86_64`: `si_arch` of a 64-bit system call.
const ARCHITECTURE: u32 = 0xC000_003E;

/// The offset of `si_arch` in `siginfo_t`, in bytes.
const ARCHITECTURE_OFFSET: usize = 28;

/// The structure `sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The first members of the structure `clone_args` of clone3(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CloneArguments {
    flags: u64,
    _descriptors: [u64; 4],
    stack: u64,
}

/// A system call: its number and arguments.
type Call = (c_long, [c_long; 6]);

/// Handles SIGSYS.
pub extern "C" fn handle(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO. No other code
    // uses the context until the handler returns.
    unsafe {
        if (*information).si_code != SYS_USER_DISPATCH {
            return dispatch::deliver(signal, information, context);
        }
        let number = errno::get();
        let context = &mut *context.cast::<ucontext_t>();
        match information.cast::<u8>().add(ARCHITECTURE_OFFSET).cast::<u32>().read() {
            ARCHITECTURE => serve(context),
            _ => {
                // 32-bit calls have other numbers. Their instruction, `int 0x80`, is as long.
                repeat(context, "int 0x80", "32-bit system calls are not served");
            }
        }
        errno::set(number);
    }
}

/// Serves the system call of an interrupted thread.
fn serve(context: &mut ucontext_t) {
    let registers = &context.uc_mcontext.gregs;
    let of = |register: c_int| registers[register as usize];
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    let call: Call = (of(libc::REG_RAX), arguments.map(of));
    let is_own = is_inside() || dispatch::is_own_text(of(libc::REG_RIP) as usize);
    let result = if is_own { native(call) } else { result_of(context, call) };
    if let Some(result) = result {
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
    }
}

/// Returns the result of a system call, or `None` if the context was changed so that the kernel
/// serves it.
fn result_of(context: &mut ucontext_t, call: Call) -> Option<c_long> {
    let (number, arguments) = call;
    match number {
        libc::SYS_rt_sigreturn => {
            // The same call by libc's function is not dispatched, and finds the same stack.
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = restorer() as i64;
            None
        }
        libc::SYS_fork | libc::SYS_vfork => fork(),
        libc::SYS_clone => clone(context, call, arguments[0] as u64, arguments[1] as u64),
        libc::SYS_clone3 => {
            let known: CloneArguments = read(arguments[0]).unwrap_or_default();
            clone(context, call, known.flags, known.stack)
        }
        libc::SYS_arch_prctl if arguments[0] == ARCH_SET_FS => {
            let message =
                "the program has thread-local storage of its own; its system calls may not be served";
            repeat(context, "arch_prctl", message)
        }
        libc::SYS_rt_sigprocmask => change_mask(context, call),
        libc::SYS_rt_sigaction => change_action(call),
        libc::SYS_sigaltstack => {
            let result = native(call);
            // SAFETY: the pointer is valid; NULL is allowed. The kernel sets the stack again when
            // the handler returns.
            unsafe { libc::sigaltstack(std::ptr::null(), &mut context.uc_stack) };
            result
        }
        libc::SYS_rt_sigsuspend => with_mask(call, 0),
        libc::SYS_ppoll => with_mask(call, 3),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => with_mask(call, 4),
        libc::SYS_pselect6 => with_nested_mask(call),
        _ => {
            if number == libc::SYS_seccomp {
                dispatch::note_filter();
            }
            // A system call is not a cancellation point.
            let _disabled = CancellationDisabled::new();
            // SAFETY: the program has passed these arguments for the system call.
            match unsafe { system_calls::serve(number, arguments) } {
                Some(result) => Some(as_kernel(result)),
                None => native(call),
            }
        }
    }
}

/// Converts the result of a function of libc, -1 and `errno`, to the result of a system call.
fn as_kernel(result: c_long) -> c_long {
    if result == -1 { -c_long::from(errno::get()) } else { result }
}

/// Makes the system call in the kernel, and returns its result.
fn native((number, [a, b, c, d, e, f]): Call) -> Option<c_long> {
    // SAFETY: the program has made this call.
    Some(as_kernel(unsafe { system_call()(number, a, b, c, d, e, f) }))
}

/// Makes the thread repeat its system call, which the kernel then serves: a handler cannot
/// reproduce the effect of the call on the registers and the stack. The kernel serves all calls of
/// this thread until the library has served a virtual file in it.
fn repeat(context: &mut ucontext_t, name: &'static str, message: &str) -> Option<c_long> {
    view::dirs().iter().take(1).for_each(|dir| dir.count(Counter::CallsRefused, 1));
    warn_once(name, message);
    context.uc_mcontext.gregs[libc::REG_RIP as usize] -= INSTRUCTION_BYTES;
    selector::pause();
    None
}

fn clone(context: &mut ucontext_t, call: Call, flags: u64, stack: u64) -> Option<c_long> {
    let shares_memory = flags & libc::CLONE_VM as u64 != 0;
    if shares_memory || stack != 0 {
        let message = "the program calls clone(2) without libc; system calls of the new thread or process are not served";
        return repeat(context, "clone", message);
    }
    if call.0 == libc::SYS_clone && flags == libc::SIGCHLD as u64 {
        return fork();
    }
    process::before_raw_fork();
    let result = native(call);
    if result == Some(0) {
        process::after_raw_fork();
    }
    result
}

/// fork(2), also for vfork(2): the child of vfork(2) would use the memory of its parent.
fn fork() -> Option<c_long> {
    // SAFETY: there are no preconditions.
    Some(as_kernel(c_long::from(unsafe { libc::fork() })))
}

/// rt_sigprocmask(2): also changes the mask of the context, which the kernel sets when the handler
/// returns.
fn change_mask(context: &mut ucontext_t, call: Call) -> Option<c_long> {
    let result = native(call);
    let mut mask = 0u64;
    let current = (libc::SYS_rt_sigprocmask, [0, 0, (&raw mut mask) as c_long, MASK_BYTES as c_long, 0, 0]);
    if native(current) == Some(0) {
        // SAFETY: the kernel's set is at the beginning of libc's, which is larger.
        unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write_unaligned(mask & !MASK_SIGSYS) };
    }
    result
}

fn kernel_action(signal: c_long, new: *const KernelAction, old: *mut KernelAction) -> Option<c_long> {
    native((libc::SYS_rt_sigaction, [signal, new as c_long, old as c_long, MASK_BYTES as c_long, 0, 0]))
}

/// Returns the address of the function of libc to which signal handlers return.
fn restorer() -> usize {
    let mut own = KernelAction::default();
    kernel_action(c_long::from(libc::SIGSYS), std::ptr::null(), &mut own);
    own.restorer
}

/// rt_sigaction(2): does not replace this library's handler of SIGSYS, and removes SIGSYS from the
/// masks of other handlers.
fn change_action(call: Call) -> Option<c_long> {
    let (_, [signal, new, old, size, ..]) = call;
    if signal != c_long::from(libc::SIGSYS) || size != MASK_BYTES as c_long {
        let result = native(call);
        let mut action = KernelAction::default();
        if result == Some(0)
            && new != 0
            && kernel_action(signal, std::ptr::null(), &mut action) == Some(0)
            && action.mask & MASK_SIGSYS != 0
        {
            action.mask &= !MASK_SIGSYS;
            kernel_action(signal, &action, std::ptr::null_mut());
        }
        return result;
    }
    let mut chosen = dispatch::change_disposition(None);
    if old != 0 {
        let action = KernelAction {
            handler: chosen.sa_sigaction,
            flags: chosen.sa_flags as u64,
            restorer: restorer(),
            // SAFETY: the kernel's set is at the beginning of libc's.
            mask: unsafe { (&raw const chosen.sa_mask).cast::<u64>().read_unaligned() },
        };
        // SAFETY: the program passes space for the structure.
        unsafe { (old as *mut KernelAction).write_unaligned(action) };
    }
    if new != 0 {
        let Some(action) = read::<KernelAction>(new) else { return Some(-c_long::from(libc::EFAULT)) };
        chosen.sa_sigaction = action.handler;
        chosen.sa_flags = action.flags as c_int;
        // SAFETY: as above.
        unsafe { (&raw mut chosen.sa_mask).cast::<u64>().write_unaligned(action.mask) };
        dispatch::change_disposition(Some(chosen));
    }
    Some(0)
}

/// Makes a call whose argument at this position is a mask, with SIGSYS removed from the mask.
fn with_mask((number, mut arguments): Call, position: usize) -> Option<c_long> {
    let mask = (arguments[position] != 0).then(|| read::<u64>(arguments[position])).flatten();
    let kept = mask.map(|mask| mask & !MASK_SIGSYS);
    if let Some(kept) = &kept {
        arguments[position] = std::ptr::from_ref(kept) as c_long;
    }
    native((number, arguments))
}

/// pselect6(2): its last argument is a pointer to a structure with the mask and its size.
fn with_nested_mask((number, mut arguments): Call) -> Option<c_long> {
    let known = (arguments[5] != 0).then(|| read::<[u64; 2]>(arguments[5])).flatten();
    let mask = known.filter(|known| known[0] != 0).and_then(|known| read::<u64>(known[0] as c_long));
    let kept = mask.map(|mask| mask & !MASK_SIGSYS);
    let changed = kept.as_ref().zip(known).map(|(kept, known)| [std::ptr::from_ref(kept) as u64, known[1]]);
    if let Some(changed) = &changed {
        arguments[5] = changed.as_ptr() as c_long;
    }
    native((number, arguments))
}

/// Reads a value at an address that the program passed, which may be invalid.
fn read<T: Copy + Default>(address: c_long) -> Option<T> {
    let mut value = T::default();
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of::<T>() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: size_of::<T>() };
    // SAFETY: the local vector is the variable, for which any bytes are valid in all uses of this
    // function; the kernel checks the remote one.
    let received = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0 as c_ulong) };
    (received == size_of::<T>() as isize).then_some(value)
}
