//! Sets the soname of the shared library. Without it, a program that links the library searches it
//! at the path that it had when it was linked.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libquell.so");
    println!("cargo:rerun-if-changed=build.rs");
}
