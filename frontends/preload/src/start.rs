//! The start of the library, which the dynamic linker calls when it has loaded it.

use crate::process;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    #[cfg(target_arch = "x86_64")]
    crate::dispatch::set_handler(crate::wrappers::dispatched_calls::handle);
    process::start();
}
