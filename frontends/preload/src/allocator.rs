//! The allocator of the library. The program's own malloc is not used: it may be a replacement that
//! calls `open` while it initializes itself, and a program that counts its allocations must not see
//! those of the library.

use dlmalloc::GlobalDlmalloc;

#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;
