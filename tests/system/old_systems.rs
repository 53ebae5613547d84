//! The files that are installed start on systems with an older libc than the one of this machine.

use std::process::Command;

use crate::skip;
use crate::stage::{has, quell};

/// The newest version of glibc that the files may need: the version of RHEL 9. Programs that are
/// linked on Debian 12 need this version, in which the functions of libpthread became part of
/// libc.so.6.
const GLIBC_MAX: (u32, u32) = (2, 34);

/// The version of Debian 12. Programs that are linked with a newer one may need its functions.
const BUILD_GLIBC_MAX: (u32, u32) = (2, 36);

/// Returns the version of this machine's glibc.
fn installed_glibc() -> (u32, u32) {
    let printed = Command::new("getconf").arg("GNU_LIBC_VERSION").output().unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    let version = text.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    let (major, minor) = version.unwrap_or_else(|| panic!("getconf prints {text:?}"));
    (major.parse().unwrap(), minor.parse().unwrap())
}

/// Returns the symbol versions of glibc that an ELF file needs.
fn needed_versions(path: &std::path::Path) -> Vec<(u32, u32)> {
    let printed = Command::new("readelf").args(["--version-info", "--wide"]).arg(path).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let text = String::from_utf8(printed.stdout).unwrap();
    let version = |word: &str| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        // Versions such as 2.2.5 have a third number.
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    text.split_ascii_whitespace().filter_map(version).collect()
}

#[test]
fn installed_files_need_no_newer_libc_than_rhel_9_has() {
    if !has("readelf") {
        skip!("readelf (binutils) is not installed");
    }
    let installed = installed_glibc();
    if installed > BUILD_GLIBC_MAX {
        skip!(
            "glibc {}.{} is newer than Debian 12's: programs for older systems are not built here",
            installed.0,
            installed.1
        );
    }
    let directory = quell().parent().unwrap().to_owned();
    let names = ["quelld", "libquell_preload.so", "libquell.so", "libquellblob.so"];
    let others = names.map(|name| directory.join(name)).into_iter().filter(|path| path.exists());
    for file in std::iter::once(quell()).chain(others) {
        let versions = needed_versions(&file);
        assert!(!versions.is_empty(), "{} needs no version of glibc", file.display());
        let newest = versions.into_iter().max().unwrap();
        assert!(
            newest <= GLIBC_MAX,
            "{} needs GLIBC_{}.{}; `objdump -T` prints the functions that do",
            file.display(),
            newest.0,
            newest.1
        );
    }
}
