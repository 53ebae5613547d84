//! Linker options of the library.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libquell_preload.so");
}
