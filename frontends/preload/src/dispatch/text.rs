//! The addresses of the instructions of libc and of this library.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::OnceLock;

use libc::{c_int, c_void, dl_phdr_info, size_t};

struct Texts {
    libc: Option<Range<usize>>,
    own: Option<Range<usize>>,
}

static TEXTS: OnceLock<Texts> = OnceLock::new();

/// A search for the executable segment that contains an address.
struct Search {
    address: usize,
    found: Option<Range<usize>>,
}

/// Searches the segments of one loaded object. A result of 1 ends the search.
// SAFETY: the signature matches the callback of dl_iterate_phdr(3).
unsafe extern "C" fn examine(object: *mut dl_phdr_info, _size: size_t, search: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a description that is valid during this call, and the pointer
    // that it was called with.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    for number in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: the object has this many headers.
        let header = unsafe { &*object.dlpi_phdr.add(number) };
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        let segment = start..start + header.p_memsz as usize;
        let is_text = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        if is_text && segment.contains(&search.address) {
            search.found = Some(segment);
            return 1;
        }
    }
    0
}

fn text_with(address: usize) -> Option<Range<usize>> {
    let mut search = Search { address, found: None };
    // SAFETY: the function has the required signature, and the pointer is to a `Search`.
    unsafe { libc::dl_iterate_phdr(Some(examine), (&raw mut search).cast()) };
    search.found
}

fn texts() -> &'static Texts {
    TEXTS.get_or_init(|| {
        let libc = text_with(libc::gnu_get_libc_version as *const () as usize);
        Texts { libc: libc.filter(|_| has_threads()), own: text_with(texts as *const () as usize) }
    })
}

/// Returns whether libc contains the functions of threads. Before glibc 2.34 they were in another
/// library, whose own system calls would be dispatched.
fn has_threads() -> bool {
    // SAFETY: there are no preconditions; the result is a string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    (numbers.next(), numbers.next()) >= (Some(2u32), Some(34u32))
}

/// Returns the addresses of libc's text, whose system calls are not dispatched; `None` if system
/// calls cannot be dispatched with this libc.
pub fn of_libc() -> Option<Range<usize>> {
    texts().libc.clone()
}

/// Returns whether an address is in the text of this library.
#[cfg(target_arch = "x86_64")]
pub fn is_own(address: usize) -> bool {
    texts().own.as_ref().is_some_and(|own| own.contains(&address))
}
