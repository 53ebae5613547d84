//! Functions with a list of arguments. Rust defines no variadic functions, so these are naked
//! functions that store the registers of arguments as a C compiler does, and pass the address of
//! the list (`va_list`) as the argument after the named ones.

use libc::c_void;

/// A list of arguments. Functions of libc that take a `va_list` get its address: on x86-64 it is an
/// array, and on aarch64 a structure that is passed by reference.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
pub struct ArgumentList {
    /// The offset in `registers` of the next argument that is an integer or a pointer.
    general_offset: u32,
    float_offset: u32,
    /// The next argument on the stack.
    stack: *mut c_void,
    registers: *mut c_void,
}

/// A list of arguments. Functions of libc that take a `va_list` get its address: on x86-64 it is an
/// array, and on aarch64 a structure that is passed by reference.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
pub struct ArgumentList {
    /// The next argument on the stack.
    stack: *mut c_void,
    /// The end of the stored general registers.
    general_end: *mut c_void,
    float_end: *mut c_void,
    /// The negative offset from `general_end` of the next argument that is an integer or a pointer.
    general_offset: i32,
    float_offset: i32,
}

impl ArgumentList {
    /// Returns the next argument, which is a pointer.
    ///
    /// # Safety
    ///
    /// The caller of the variadic function has passed another argument, and it is a pointer.
    pub unsafe fn next_pointer<T>(&mut self) -> *const T {
        let position = self.next_position();
        // SAFETY: the caller's promise; an argument is at the position.
        unsafe { position.cast::<*const T>().read() }
    }

    #[cfg(target_arch = "x86_64")]
    fn next_position(&mut self) -> *mut c_void {
        const GENERAL_BYTES: u32 = 6 * 8;
        if self.general_offset < GENERAL_BYTES {
            let position = self.registers.wrapping_byte_add(self.general_offset as usize);
            self.general_offset += 8;
            return position;
        }
        let position = self.stack;
        self.stack = position.wrapping_byte_add(8);
        position
    }

    #[cfg(target_arch = "aarch64")]
    fn next_position(&mut self) -> *mut c_void {
        if self.general_offset < 0 {
            let position = self.general_end.wrapping_byte_offset(self.general_offset as isize);
            self.general_offset += 8;
            return position;
        }
        let position = self.stack;
        self.stack = position.wrapping_byte_add(8);
        position
    }
}

/// Defines a variadic function that calls `$target` with its named arguments and the address of the
/// list. `$named`: the number of named arguments, which are integers or pointers; `$x86` and `$arm`
/// are the registers of the argument after them.
macro_rules! variadic {
    ($(#[$attribute:meta])* $name:ident, $named:literal, $x86:literal, $arm:literal, $target:path) => {
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// The requirements of the function of libc apply.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The area of the registers has 176 bytes, and the list after it 24.
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                "mov dword ptr [rsp + 176], {general_offset}",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $x86, ", [rsp + 176]"),
                "call {target}",
                "leave",
                "ret",
                general_offset = const $named * 8,
                target = sym $target,
            )
        }

        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// The requirements of the function of libc apply.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The general registers follow the frame record. The floating-point registers and the
            // list of 32 bytes follow the general registers.
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-240]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "add x9, sp, #240",
                "str x9, [sp, #208]",
                "add x9, sp, #80",
                "str x9, [sp, #216]",
                "add x9, sp, #208",
                "str x9, [sp, #224]",
                "mov w9, #{general_offset}",
                "str w9, [sp, #232]",
                "mov w9, #-128",
                "str w9, [sp, #236]",
                concat!("add ", $arm, ", sp, #208"),
                "bl {target}",
                "ldp x29, x30, [sp], #240",
                "ret",
                general_offset = const -((8 - $named) * 8),
                target = sym $target,
            )
        }
    };
}

pub(crate) use variadic;
