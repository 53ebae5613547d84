//! Reads trace files as lines in the order of time: one file, one for each rank, or the files of
//! `strace -ff`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use quell_profile::{LINE_BYTES_MAX, LineSource};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;
use crate::inputs::shown;

const BUFFER_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct Traces {
    files: Vec<(PathBuf, LineSource)>,
    pub bytes: u64,
}

/// One line and its origin.
#[derive(Debug)]
pub struct Line<'a> {
    pub source: LineSource,
    pub text: &'a [u8],
    pub path: &'a Path,
    pub number: u64,
}

impl Traces {
    /// Opens and checks the files: they must be regular files, because they are read twice.
    pub fn open(paths: &[PathBuf]) -> Result<Traces, Failure> {
        raise_descriptor_limit();
        let mut spaces: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut files = Vec::new();
        let mut bytes = 0;
        for (number, path) in paths.iter().enumerate() {
            let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
            let metadata = std::fs::metadata(path).map_err(failed)?;
            if !metadata.is_file() {
                return Err(Failure::wrong_input(format!(
                    "{} is not a regular file; a trace is read twice, so save it to a file first",
                    shown(path)
                )));
            }
            bytes += metadata.len();
            let mut source = LineSource { space: number as u32, pid: 0 };
            if let Some((stem, pid)) = pid_in_name(path).filter(|_| !has_pids(path)) {
                // `strace -ff`: the process ids in all files of one run belong to the same machine.
                source = LineSource { space: *spaces.entry(stem).or_insert(number as u32), pid };
            }
            files.push((path.clone(), source));
        }
        // If times are equal or absent, parents come before their children.
        files.sort_by_key(|(_, source)| (source.space, source.pid));
        Ok(Traces { files, bytes })
    }

    /// Passes all lines to `on_line`, in the order of time, until it returns `false`.
    pub fn read(&self, on_line: &mut dyn FnMut(Line) -> bool) -> Result<(), Failure> {
        let mut readers = Vec::new();
        let mut next = BinaryHeap::new();
        for (number, (path, source)) in self.files.iter().enumerate() {
            let file = File::open(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?;
            let buffer = if self.files.len() > 1 { BUFFER_BYTES / 16 } else { BUFFER_BYTES };
            let mut reader = Lines {
                path,
                source: *source,
                reader: BufReader::with_capacity(buffer, file),
                text: Vec::new(),
                number: 0,
                time: 0,
            };
            if reader.advance()? {
                next.push(Reverse((reader.time(), number)));
            }
            readers.push(reader);
        }
        while let Some(Reverse((_, number))) = next.pop() {
            let reader = &mut readers[number];
            // Stay with this file as long as no other file has an earlier line.
            loop {
                let line = Line {
                    source: reader.source,
                    text: &reader.text,
                    path: reader.path,
                    number: reader.number,
                };
                if !on_line(line) {
                    return Ok(());
                }
                if !reader.advance()? {
                    break;
                }
                if let Some(Reverse((earliest, _))) = next.peek()
                    && reader.time() > *earliest
                {
                    next.push(Reverse((reader.time, number)));
                    break;
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Lines<'a> {
    path: &'a Path,
    source: LineSource,
    reader: BufReader<File>,
    text: Vec<u8>,
    number: u64,
    time: u64,
}

impl Lines<'_> {
    /// Reads the next line. Returns `false` at the end. Of a line that is too long, only the
    /// beginning is kept.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.text.clear();
        let mut any = false;
        loop {
            let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(self.path)));
            let buffer = self.reader.fill_buf().map_err(failed)?;
            if buffer.is_empty() {
                break;
            }
            any = true;
            let end = memchr::memchr(b'\n', buffer);
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let free_bytes = (LINE_BYTES_MAX + 1).saturating_sub(self.text.len());
            self.text.extend_from_slice(&part[..part.len().min(free_bytes)]);
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        self.number += u64::from(any);
        Ok(any)
    }

    /// Returns the line's time. A line without a time (a remark, output of another program) has the
    /// time of the previous line.
    fn time(&mut self) -> u64 {
        self.time = quell_profile::time_of(&self.text).unwrap_or(self.time);
        self.time
    }
}

/// Splits off the suffix `.1234` that `strace -ff` adds to a name.
fn pid_in_name(path: &Path) -> Option<(Vec<u8>, u32)> {
    let pid = path.extension()?.to_str()?.parse().ok()?;
    Some((path.with_extension("").into_os_string().into_encoded_bytes(), pid))
}

/// Returns whether the first lines have process ids.
fn has_pids(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut text = Vec::new();
    use std::io::Read;
    let _ = file.take(BUFFER_BYTES as u64).read_to_end(&mut text);
    text.split(|b| *b == b'\n').take(20).any(quell_profile::has_pid)
}

/// Raises the limit of open files to the largest one that this process may have.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
