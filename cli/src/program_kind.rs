//! Determines whether the preload library can serve a program, from the program's file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Object, ObjectKind, ObjectSection};

use crate::failure::Failure;
use crate::inputs::shown;

/// The largest number of interpreters of scripts that are followed, as in the kernel.
const INTERPRETERS_MAX: usize = 4;

/// The longest first line of a script that the kernel reads, in bytes.
const FIRST_LINE_BYTES: u64 = 256;

const SET_ID: u32 = 0o6000;

/// A program, and the reason why the preload library cannot serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramKind {
    /// The executable file: the interpreter of a script.
    pub file: PathBuf,
    /// `None`: the library can serve it.
    pub refusal: Option<Refusal>,
}

/// Why the preload library cannot serve a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The program is statically linked.
    Static,
    /// The program is written in Go, whose runtime calls the kernel itself.
    Go,
    /// The program is linked with musl.
    Musl,
    /// The program has set-id bits, for which the dynamic linker ignores LD_PRELOAD.
    SetId,
}

impl Refusal {
    /// Returns the reason as the end of a sentence about the program.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::Static => "is statically linked, so the dynamic linker loads no library into it",
            Refusal::Go => "is written in Go, whose runtime calls the kernel without libc",
            Refusal::Musl => "is linked with musl, and the library needs glibc",
            Refusal::SetId => "has set-id bits, for which the dynamic linker ignores LD_PRELOAD",
        }
    }
}

/// The advice for a program that the preload library cannot serve.
pub const ALTERNATIVE: &str =
    "`quell run` without --via, or a mount by `quell mount`, serves every program where FUSE is available";

/// The reason why programs that load no library are not served by trapped system calls;
/// docs/decisions/0018-no-trapped-calls.md.
pub const NO_TRAP: &str = "the kernel reads the path of a trapped call again after it was checked, and another thread \
                           can change it in between";

/// Returns the reason why the kernel cannot dispatch system calls to the preload library.
pub fn why_no_dispatch() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("Syscall User Dispatch needs x86-64".into());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (version < DISPATCH_VERSION).then(|| {
        let (major, minor) = DISPATCH_VERSION;
        format!("Syscall User Dispatch needs Linux {major}.{minor} or newer, and this is Linux {release}")
    })
}

/// The first version of Linux with Syscall User Dispatch.
const DISPATCH_VERSION: (u32, u32) = (5, 11);

/// Determines the kind of the program that `name` executes, as execvp(3) finds it.
pub fn program_kind(name: &OsStr) -> Result<ProgramKind, Failure> {
    let mut file = find(name)?;
    for _ in 0..INTERPRETERS_MAX {
        match interpreter(&file)? {
            Some(interpreter) => file = interpreter,
            None => break,
        }
    }
    let refusal = refusal_of(&file)?;
    Ok(ProgramKind { file, refusal })
}

fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Failure::wrong_input(format!("{}: it is not in a directory of PATH", shown(name))))
}

fn failed(file: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::wrong_input(format!("{}: {error}", shown(file)))
}

/// Returns the interpreter of a script.
fn interpreter(file: &Path) -> Result<Option<PathBuf>, Failure> {
    let mut first = Vec::new();
    let opened = File::open(file).map_err(failed(file))?;
    opened.take(FIRST_LINE_BYTES).read_to_end(&mut first).map_err(failed(file))?;
    let Some(line) = first.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let program = words.next().filter(|word| !word.is_empty());
    // `#!/usr/bin/env NAME` executes NAME.
    let of_env = words.find(|word| !word.is_empty() && !word.starts_with(b"-"));
    Ok(match (program, of_env) {
        (Some(program), Some(name)) if program.ends_with(b"/env") => {
            Some(find(&OsString::from_vec(name.to_vec()))?)
        }
        (Some(program), _) => Some(PathBuf::from(OsString::from_vec(program.to_vec()))),
        (None, _) => None,
    })
}

fn refusal_of(file: &Path) -> Result<Option<Refusal>, Failure> {
    let opened = File::open(file).map_err(failed(file))?;
    let metadata = opened.metadata().map_err(failed(file))?;
    if metadata.mode() & SET_ID != 0 {
        return Ok(Some(Refusal::SetId));
    }
    // A file in another format is executed by the kernel or by a shell, or fails by itself.
    let cache = ReadCache::new(opened);
    let Ok(program) = object::File::parse(&cache) else { return Ok(None) };
    if !matches!(program.kind(), ObjectKind::Executable | ObjectKind::Dynamic) {
        return Ok(None);
    }
    if program.section_by_name(".note.go.buildid").is_some() {
        return Ok(Some(Refusal::Go));
    }
    let interpreter = program.section_by_name(".interp").and_then(|section| section.data().ok());
    Ok(match interpreter {
        None => Some(Refusal::Static),
        Some(path) if path.windows(7).any(|part| part == b"ld-musl") => Some(Refusal::Musl),
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_dynamic_program_and_its_scripts_can_be_served() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, "#! /usr/bin/env -S sh -e\n").unwrap();
        let kind = program_kind(script.as_os_str()).unwrap();
        assert_eq!(kind.refusal, None);
        assert!(kind.file.ends_with("sh"), "{kind:?}");
        assert_eq!(program_kind(OsStr::new("sh")).unwrap().refusal, None);
    }

    #[test]
    fn programs_without_a_dynamic_linker_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        // An ELF header of an executable without segments and sections.
        let mut header = vec![0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (header[16], header[18], header[20], header[52], header[54], header[58]) = (2, 62, 1, 64, 56, 64);
        std::fs::write(&program, &header).unwrap();
        assert_eq!(program_kind(program.as_os_str()).unwrap().refusal, Some(Refusal::Static));
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        assert_eq!(program_kind(program.as_os_str()).unwrap().refusal, Some(Refusal::SetId));
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(&program, b"not a program").unwrap();
        assert_eq!(program_kind(program.as_os_str()).unwrap().refusal, None);
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = program_kind(OsStr::new("no-such-program")).unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
    }
}
