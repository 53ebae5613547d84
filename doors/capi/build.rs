//! Names the shared library for those that link it: without that a program looks for it where it was when it was linked.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libquell.so");
    println!("cargo:rerun-if-changed=build.rs");
}
