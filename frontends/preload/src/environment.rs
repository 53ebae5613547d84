//! The environment of programs that this process executes.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use libc::c_char;

/// The variables that programs need to see the same view.
static VARIABLES: OnceLock<Vec<CString>> = OnceLock::new();

/// Remembers the variables of this process, so that programs that are executed with another
/// environment see the view as well.
pub fn remember() {
    VARIABLES.get_or_init(|| {
        let variable = |name: &str| {
            let value = std::env::var_os(name)?;
            CString::new([name.as_bytes(), b"=", value.as_encoded_bytes()].concat()).ok()
        };
        ["LD_PRELOAD", quell_mount_spec::VIEW_VARIABLE].into_iter().filter_map(variable).collect()
    });
}

/// An environment for a program.
pub struct Environment {
    pointers: Vec<*const c_char>,
}

impl Environment {
    /// Returns `environment` with the variables that it lacks.
    ///
    /// # Safety
    ///
    /// `environment` is NULL or an array of strings that ends with NULL, and outlives the result.
    pub unsafe fn completed(environment: *const *const c_char) -> Environment {
        let mut pointers = Vec::new();
        if !environment.is_null() {
            let mut next = environment;
            loop {
                // SAFETY: the caller's promise.
                let found = unsafe { *next };
                if found.is_null() {
                    break;
                }
                pointers.push(found);
                // SAFETY: the array has an element after one that is not NULL.
                next = unsafe { next.add(1) };
            }
        }
        for variable in VARIABLES.get().into_iter().flatten() {
            let name_length =
                variable.as_bytes().iter().position(|byte| *byte == b'=').map_or(0, |at| at + 1);
            let name = &variable.as_bytes()[..name_length];
            // SAFETY: the caller's promise.
            let has =
                pointers.iter().any(|known| unsafe { CStr::from_ptr(*known) }.to_bytes().starts_with(name));
            if !has {
                pointers.push(variable.as_ptr());
            }
        }
        pointers.push(std::ptr::null());
        Environment { pointers }
    }

    /// Returns the array, which ends with NULL.
    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}
