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
    /// The variables that `completed` has composed, to which pointers refer.
    _owned: Vec<CString>,
}

impl Environment {
    /// Returns `environment` with the remembered variables that it lacks.
    ///
    /// # Safety
    ///
    /// `environment` is NULL or an array of strings that ends with NULL, and outlives the result.
    pub unsafe fn completed(environment: *const *const c_char) -> Environment {
        let (mut pointers, mut owned) = (Vec::new(), Vec::new());
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
            let (name, value) = variable.as_bytes().split_at(name_length);
            // SAFETY: the caller's promise.
            let value_of =
                |known: *const c_char| unsafe { CStr::from_ptr(known) }.to_bytes().strip_prefix(name);
            match pointers.iter().position(|known| value_of(*known).is_some()) {
                None => pointers.push(variable.as_ptr()),
                // The program's own libraries follow this one.
                Some(at) if name == b"LD_PRELOAD=" => {
                    let theirs = value_of(pointers[at]).unwrap_or_default();
                    if !libraries(theirs).any(|library| Some(library) == own_library(value)) {
                        let joined = [variable.as_bytes(), b":", theirs].concat();
                        if let Ok(joined) = CString::new(joined) {
                            pointers[at] = joined.as_ptr();
                            owned.push(joined);
                        }
                    }
                }
                Some(at) if value_of(pointers[at]) == Some(b"") => pointers[at] = variable.as_ptr(),
                Some(_) => {}
            }
        }
        pointers.push(std::ptr::null());
        Environment { pointers, _owned: owned }
    }

    /// Returns the array, which ends with NULL.
    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Returns the names of the libraries in a value of LD_PRELOAD.
fn libraries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|library| !library.is_empty())
}

/// Returns the name of this library in the value of LD_PRELOAD with which it was loaded.
fn own_library(value: &[u8]) -> Option<&[u8]> {
    libraries(value).find(|library| library.ends_with(b"libquell_preload.so")).or(libraries(value).next())
}
