//! The way in which the kernel starts a program file, and whether the program then loads this
//! library. Both are derived from the first bytes of the file, without executing it.

use std::ffi::CString;

use libc::c_int;
use rustix::fs::{Mode, OFlags};

/// The number of bytes at the beginning of a program that are read. The kernel reads 256 bytes for
/// the first line of a script, and linkers place the headers of an ELF file in its first page.
pub const HEAD_BYTES: usize = 4096;

/// The largest number of scripts in a chain of interpreters, as in the kernel.
pub const SCRIPTS_MAX: usize = 4;

const SCRIPT_LINE_BYTES: usize = 256;
const PT_INTERP: u32 = 3;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;

/// The way in which a program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// By a dynamic linker that loads this library.
    Loads,
    /// By another program, which gets the path of the script.
    Script {
        /// The path of the interpreter.
        interpreter: Vec<u8>,
        /// The text after the interpreter, as one argument.
        argument: Option<Vec<u8>>,
    },
    /// Without this library, for this reason.
    DoesNotLoad(&'static str),
    /// By musl's dynamic linker, which fails, because the library needs glibc.
    Musl,
    /// The kernel, not this library, decides about the file.
    Unknown,
}

/// Returns the way in which a program with these first bytes is started.
pub fn inspect(head: &[u8]) -> Program {
    if let Some(line) = head.strip_prefix(b"#!") {
        return inspect_script(line);
    }
    inspect_elf(head).unwrap_or(Program::Unknown)
}

fn inspect_script(line: &[u8]) -> Program {
    let line = &line[..line.len().min(SCRIPT_LINE_BYTES - 2)];
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else { return Program::Unknown };
    let line = line[..end].trim_ascii();
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let (interpreter, argument) = line.split_at(line.iter().position(blank).unwrap_or(line.len()));
    if interpreter.is_empty() {
        return Program::Unknown;
    }
    let argument = argument.trim_ascii();
    Program::Script {
        interpreter: interpreter.to_vec(),
        argument: (!argument.is_empty()).then(|| argument.to_vec()),
    }
}

fn inspect_elf(head: &[u8]) -> Option<Program> {
    let bytes = |at: usize, length: usize| head.get(at..at.checked_add(length)?);
    let half = |at| Some(u16::from_le_bytes(bytes(at, 2)?.try_into().ok()?));
    let word = |at| Some(u32::from_le_bytes(bytes(at, 4)?.try_into().ok()?));
    let long = |at| Some(u64::from_le_bytes(bytes(at, 8)?.try_into().ok()?));
    if bytes(0, 4)? != b"\x7fELF" {
        return None;
    }
    if *head.get(4)? != CLASS_64 || *head.get(5)? != LITTLE_ENDIAN {
        return Some(Program::DoesNotLoad("it is not a 64-bit program"));
    }
    let (headers, size, count) = (long(32)?, usize::from(half(54)?), usize::from(half(56)?));
    for number in 0..count {
        let header = usize::try_from(headers).ok()?.checked_add(number * size)?;
        if word(header)? != PT_INTERP {
            continue;
        }
        let start = usize::try_from(long(header.checked_add(8)?)?).ok()?;
        let length = usize::try_from(long(header.checked_add(32)?)?).ok()?;
        let linker = bytes(start, length)?;
        return Some(match linker.windows(7).any(|part| part == b"ld-musl") {
            true => Program::Musl,
            false => Program::Loads,
        });
    }
    Some(Program::DoesNotLoad("it is statically linked"))
}

/// Returns the way in which a native program is started. The interpreters of scripts are followed.
pub fn inspect_native(path: &[u8]) -> Program {
    let mut path = path.to_vec();
    for _ in 0..=SCRIPTS_MAX {
        let Ok(name) = CString::new(path) else { return Program::Unknown };
        let Ok(file) = rustix::fs::open(&name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return Program::Unknown;
        };
        if rustix::fs::fstat(&file).is_ok_and(|found| changes_identity(&found)) {
            return Program::DoesNotLoad("it runs with the identity of another user or group");
        }
        let mut head = vec![0; HEAD_BYTES];
        let Ok(length) = rustix::io::pread(&file, &mut head, 0) else { return Program::Unknown };
        match inspect(&head[..length]) {
            Program::Script { interpreter, .. } => path = interpreter,
            found => return found,
        }
    }
    Program::Unknown
}

/// Returns whether an exec of this file changes the user or the group. The dynamic linker then
/// ignores LD_PRELOAD.
fn changes_identity(found: &rustix::fs::Stat) -> bool {
    use rustix::process::{getegid, geteuid};
    let has = |bit: libc::mode_t| found.st_mode & bit != 0;
    has(libc::S_ISUID) && found.st_uid != geteuid().as_raw()
        || has(libc::S_ISGID) && has(libc::S_IXGRP) && found.st_gid != getegid().as_raw()
}

/// The error number for a program that musl's dynamic linker cannot start with this library.
pub const MUSL_ERROR: c_int = libc::ELIBACC;

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(linker: Option<&str>) -> Vec<u8> {
        let mut head = vec![0; 512];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64; // the program headers
        head[54] = 56; // the size of one
        head[56] = 2; // their number
        if let Some(linker) = linker {
            let header = 64 + 56;
            head[header] = PT_INTERP as u8;
            head[header + 8..header + 10].copy_from_slice(&256u16.to_le_bytes());
            head[header + 32] = linker.len() as u8;
            head[256..256 + linker.len()].copy_from_slice(linker.as_bytes());
        }
        head
    }

    #[test]
    fn the_dynamic_linker_decides_whether_a_program_loads_the_library() {
        assert_eq!(inspect(&elf(Some("/lib64/ld-linux-x86-64.so.2\0"))), Program::Loads);
        assert_eq!(inspect(&elf(Some("/lib/ld-musl-x86_64.so.1\0"))), Program::Musl);
        assert_eq!(inspect(&elf(None)), Program::DoesNotLoad("it is statically linked"));
        assert_eq!(inspect(b"no program"), Program::Unknown);
        // Headers outside of the bytes that were read.
        let mut far = elf(Some("/lib64/ld-linux-x86-64.so.2\0"));
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(inspect(&far), Program::Unknown);
        assert_eq!(inspect(&far[..20]), Program::Unknown);
    }

    #[test]
    fn a_script_names_its_interpreter_and_one_argument() {
        let script = |interpreter: &str, argument: Option<&str>| Program::Script {
            interpreter: interpreter.into(),
            argument: argument.map(Into::into),
        };
        assert_eq!(inspect(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(inspect(b"#! /usr/bin/env -S a b \n"), script("/usr/bin/env", Some("-S a b")));
        for head in [&b"#!\n"[..], b"#!   \n", b"#!/bin/sh"] {
            assert_eq!(inspect(head), Program::Unknown);
        }
    }
}
