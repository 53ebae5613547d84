//! The allocator of the library. The program's own malloc is not used: it may be a replacement that
//! calls `open` while it initializes itself, and a program that counts its allocations must not see
//! those of the library.

use std::alloc::{GlobalAlloc, Layout};

use dlmalloc::GlobalDlmalloc;

use crate::guard::Entered;

/// The allocator with signals blocked: a signal handler may call any function of the library, and
/// would wait for the lock of the allocator that its own thread holds.
struct Guarded;

// SAFETY: every call is passed on to an allocator.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _entered = Entered::new();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _entered = Entered::new();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _entered = Entered::new();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _entered = Entered::new();
        // SAFETY: the caller's promise.
        unsafe { GlobalDlmalloc.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;
