//! Sets the soname of the shared library. Without it, a program that is linked with the library
//! looks for it at the path that was given to the linker.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libquellblob.so");
    println!("cargo:rerun-if-changed=build.rs");
}
