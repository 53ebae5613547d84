//! The version of the kernel that runs the tests.

/// Returns the major and the minor version of the kernel that runs.
pub fn kernel_version() -> (u32, u32) {
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("the release of the kernel has no version: {release}"),
    }
}
