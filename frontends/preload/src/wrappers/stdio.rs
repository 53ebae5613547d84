//! Functions of stdio that name a file or a descriptor.

use libc::{FILE, c_int};

use crate::next::wrap;
use crate::streams;

macro_rules! fileno {
    ($($name:ident),*) => {$(
        wrap! {
            fn $name(stream: *mut FILE) -> c_int, |next| {
                // SAFETY: the caller's argument is that of fileno(3).
                streams::descriptor(stream).unwrap_or_else(|| unsafe { next(stream) })
            }
        }
    )*};
}

fileno!(fileno, fileno_unlocked);

wrap! {
    fn fclose(stream: *mut FILE) -> c_int, |next| {
        streams::forget(stream);
        // SAFETY: the caller's argument is that of fclose(3).
        unsafe { next(stream) }
    }
}
