//! Determines the file that each call refers to: from the path in the call, from the annotation of
//! its descriptor, or from the descriptor table of its process, which this type keeps up to date.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::locations::PathMap;
use crate::paths::PathId;
use crate::trace::calls::{Effect, FileArgument, FileCall, StateCall};
use crate::trace::descriptors::Target;
use crate::trace::event::{CallResult, CallTarget, Event, OpenMode};
use crate::trace::line::{self, Call, ParsedResult};
use crate::trace::processes::{Pid, ProcessTable, ProgramId, Shares};

/// Limit on copied descriptors that are followed.
const COPIES_MAX: usize = 1 << 20;
/// The maximum number of bytes that Linux transfers in one call.
const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;

/// A path in a call, and the directory at which its lookup begins.
#[derive(Debug, Clone, Copy)]
struct Lookup {
    base: PathId,
    path: PathId,
}

/// Programs by number.
#[derive(Debug, Default)]
pub struct Programs {
    numbers: HashMap<PathId, ProgramId>,
    paths: Vec<PathId>,
}

impl Programs {
    fn number(&mut self, path: PathId) -> ProgramId {
        *self.numbers.entry(path).or_insert_with(|| {
            self.paths.push(path);
            self.paths.len() as ProgramId
        })
    }

    pub fn path(&self, program: ProgramId) -> Option<PathId> {
        self.paths.get((program as usize).checked_sub(1)?).copied()
    }
}

/// One call of a process at a time.
#[derive(Debug, Clone, Copy)]
pub struct Occurrence<'a> {
    pub pid: Pid,
    pub time_us: u64,
    pub name: &'a [u8],
}

#[derive(Debug)]
pub struct CallResolver {
    pub processes: ProcessTable,
    pub programs: Programs,
    /// Number of further descriptors that a process has of a file, because it copied them.
    copies: HashMap<(u32, PathId), u32>,
    /// The time of the first call of all.
    first_call_us: Option<u64>,
    /// Number of calls that make requests which the trace does not show (io_uring).
    pub hidden_calls: u64,
}

impl CallResolver {
    /// Returns a resolver without processes. `working`: the working directory of the first process,
    /// if known.
    pub fn new(working: Option<PathId>) -> CallResolver {
        CallResolver {
            processes: ProcessTable::new(working),
            programs: Programs::default(),
            copies: HashMap::new(),
            first_call_us: None,
            hidden_calls: 0,
        }
    }

    /// Records the start of a file-system call, and returns the time of the first one of all.
    pub fn first_call_us(&mut self, time_us: u64) -> u64 {
        *self.first_call_us.get_or_insert(time_us)
    }

    /// Returns the event of a file-system call.
    pub fn event<'a>(
        &mut self,
        occurrence: Occurrence<'a>,
        file: FileCall,
        call: &Call<'a>,
        map: &mut PathMap,
    ) -> Event<'a> {
        let Occurrence { pid, time_us, name } = occurrence;
        let result = match call.result {
            ParsedResult::Value(value, _) if value >= 0 || file.effect.returns_address() => {
                CallResult::Succeeded
            }
            ParsedResult::Value(..) => CallResult::Failed(b""),
            ParsedResult::Failed(error) => CallResult::Failed(error),
            ParsedResult::Unknown => CallResult::Unknown,
        };
        let (mut target, lookup) = self.target(pid, file.file, file.follows, call, map);
        let mut other_path = None;
        match file.effect {
            Effect::Rename(from) => {
                if let (CallTarget::File(path), _) = self.target(pid, from, false, call, map) {
                    other_path = Some(path);
                }
            }
            Effect::Copy(from, to) => {
                let source = self.descriptor_target(pid, from, call, map);
                let sink = self.descriptor_target(pid, to, call, map);
                // For a copy from a pipe to a file, the file counts.
                target = if matches!(source, CallTarget::File(_)) { source } else { sink };
                other_path = if let CallTarget::File(path) = sink { Some(path) } else { None };
            }
            Effect::Open(_) | Effect::Create => {
                // The tracer prints the opened file itself, and not a link to it.
                if let ParsedResult::Value(_, Some(annotation)) = call.result
                    && let Target::File(path) = annotated(annotation, map)
                {
                    target = CallTarget::File(path);
                }
            }
            _ => {}
        }
        if let CallResult::Failed(b"EBADF" | b"EFAULT") = result {
            target = CallTarget::Invalid;
        }
        let bytes = match (file.effect, call.result) {
            (Effect::Read | Effect::Write | Effect::Copy(..), ParsedResult::Value(value, _)) => {
                u64::try_from(value).unwrap_or(0).min(TRANSFER_BYTES_MAX)
            }
            (Effect::Map(length), ParsedResult::Value(..)) => {
                call.number(length).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
            }
            _ => 0,
        };
        let program = match (file.effect, result, target) {
            // A successful exec counts for the program that it starts, because it looks this
            // program up.
            (Effect::Execute, CallResult::Succeeded, CallTarget::File(path)) => self.programs.number(path),
            _ => self.processes.program(pid),
        };
        let process = self.processes.group(pid);
        let closes_last_copy = match (file.effect, target) {
            (Effect::Close, CallTarget::File(path)) => self.removes_last_copy(process, path),
            _ => false,
        };
        let output_descriptor = match (file.effect, file.file) {
            (Effect::Copy(_, to), _) => Some(to),
            (Effect::Write, FileArgument::Descriptor(index)) => Some(index),
            _ => None,
        };
        let output_descriptor = output_descriptor.and_then(|index| call.descriptor(index)?.number);
        Event {
            name,
            call: file,
            time_us,
            first_call_us: self.first_call_us(time_us),
            duration_us: call.duration_us,
            process,
            pid: pid.number,
            program,
            target,
            named_path: lookup.map(|lookup| lookup.path),
            base: lookup.map_or(PathId::ROOT, |lookup| lookup.base),
            output_descriptor,
            closes_last_copy,
            other_path,
            result,
            bytes,
            open: open_mode(file.effect, call),
        }
    }

    fn target(
        &mut self,
        pid: Pid,
        argument: FileArgument,
        follows: bool,
        call: &Call,
        map: &mut PathMap,
    ) -> (CallTarget, Option<Lookup>) {
        let (base, path) = match argument {
            FileArgument::Descriptor(index) => {
                return (self.descriptor_target(pid, index, call, map), None);
            }
            FileArgument::Path(index) => (None, call.argument(index)),
            FileArgument::At(base, index) => (Some(base), call.argument(index)),
        };
        let path = match path {
            Some(b"NULL") if base.is_some() => Some(Vec::new()),
            Some(text) => line::string(text).map(|(path, _)| path),
            None => None,
        };
        // The argument is an address: the program passed one from which nothing could be read.
        let Some(path) = path else { return (CallTarget::Invalid, None) };
        if let (Some(base), true) = (base, path.is_empty()) {
            return (self.descriptor_target(pid, base, call, map), None);
        }
        let follows = follows && !call.has_any_flag(&[b"AT_SYMLINK_NOFOLLOW", b"O_NOFOLLOW"]);
        let mut path = path.as_slice();
        let base = if path.starts_with(b"/") && !call.has_any_flag(&[b"RESOLVE_IN_ROOT"]) {
            if let Some((number, below)) = own_descriptor(path)
                && (follows || !below.is_empty())
            {
                // The kernel continues at the file itself.
                match self.processes.target(pid, number) {
                    Target::File(file) if below.is_empty() => return (CallTarget::File(file), None),
                    Target::NoFile => return (CallTarget::NoFile, None),
                    Target::File(file) => {
                        path = below;
                        file
                    }
                    Target::Unknown => PathId::ROOT,
                }
            } else {
                self.processes.origin(pid).root
            }
        } else {
            let base = match base {
                Some(base) => self.descriptor_target(pid, base, call, map),
                None => self.processes.origin(pid).working.map_or(CallTarget::Unknown, CallTarget::File),
            };
            match base {
                CallTarget::File(path) => path,
                other => return (other, None),
            }
        };
        let path = map.resolve(base, strip_slashes(path), follows);
        (CallTarget::File(path), Some(Lookup { base, path }))
    }

    /// Returns the file of a descriptor, as printed by the tracer or as followed.
    fn descriptor_target(&mut self, pid: Pid, index: usize, call: &Call, map: &mut PathMap) -> CallTarget {
        let Some(descriptor) = call.descriptor(index) else { return CallTarget::Unknown };
        let target = match (descriptor.annotation, descriptor.number) {
            (Some(annotation), number) => {
                let target = annotated(annotation, map);
                match (target, number) {
                    (Target::File(path), None) => self.processes.set_working(pid, Some(path)),
                    (target, Some(number)) if self.processes.target(pid, number) == Target::Unknown => {
                        self.processes.open(pid, number, target, false);
                    }
                    _ => {}
                }
                target
            }
            (None, None) => self.processes.origin(pid).working.map_or(Target::Unknown, Target::File),
            (None, Some(number)) => self.processes.target(pid, number),
        };
        match target {
            Target::File(path) => CallTarget::File(path),
            Target::NoFile => CallTarget::NoFile,
            Target::Unknown => CallTarget::Unknown,
        }
    }

    /// Updates the state of the process after a file-system call.
    pub fn apply_event(&mut self, pid: Pid, event: &Event, call: &Call) {
        let target = match event.target {
            CallTarget::File(path) => Target::File(path),
            CallTarget::NoFile => Target::NoFile,
            _ => Target::Unknown,
        };
        let returned = match call.result {
            ParsedResult::Value(number, _) => i32::try_from(number).ok(),
            _ => None,
        };
        match event.call.effect {
            Effect::Close => {
                if let Some(number) = call.descriptor(0).and_then(|d| d.number) {
                    self.processes.close(pid, number);
                }
            }
            Effect::Open(flags) => {
                if let Some(number) = returned.filter(|number| *number >= 0) {
                    self.processes.open(pid, number, target, call.has_flag(flags, b"O_CLOEXEC"));
                }
            }
            Effect::Create => {
                if let Some(number) = returned {
                    self.processes.open(pid, number, target, false);
                }
            }
            Effect::ChangeDirectory if event.result == CallResult::Succeeded => {
                let working = if let Target::File(path) = target { Some(path) } else { None };
                self.processes.set_working(pid, working);
            }
            Effect::ChangeRoot if event.result == CallResult::Succeeded => {
                if let Target::File(path) = target {
                    self.processes.set_root(pid, path);
                }
            }
            // An exec that did not fail has replaced the program.
            Effect::Execute if event.result == CallResult::Succeeded => {
                // A program in memory has no path.
                let number = if let Target::File(path) = target { self.programs.number(path) } else { 0 };
                self.processes.execute(pid, number);
            }
            _ => {}
        }
    }

    /// Records that a descriptor is a copy of another one: the file stays open until both are
    /// closed.
    fn record_copy(&mut self, pid: Pid, descriptor: i32) {
        if let Target::File(path) = self.processes.target(pid, descriptor)
            && self.copies.len() < COPIES_MAX
        {
            *self.copies.entry((self.processes.group(pid), path)).or_default() += 1;
        }
    }

    /// Removes one copy of a descriptor. Returns whether it was the last one.
    fn removes_last_copy(&mut self, process: u32, path: PathId) -> bool {
        let Entry::Occupied(mut copies) = self.copies.entry((process, path)) else { return true };
        *copies.get_mut() -= 1;
        if *copies.get() == 0 {
            copies.remove();
        }
        false
    }

    /// Updates the process and descriptor tables after a call that is not a file-system call.
    /// `began_fork`: whether `begin_fork` was called when the call was interrupted.
    pub fn apply_state_call(&mut self, pid: Pid, state_call: StateCall, call: &Call, began_fork: bool) {
        let value = match call.result {
            ParsedResult::Value(value, _) => i32::try_from(value).ok().filter(|v| *v >= 0),
            _ => None,
        };
        let first = call.descriptor(0).and_then(|d| d.number);
        match state_call {
            StateCall::Duplicate => {
                if let (Some(from), Some(to)) = (first, value) {
                    self.processes.duplicate(pid, from, to, call.has_flag(2, b"O_CLOEXEC"));
                    self.record_copy(pid, to);
                }
            }
            StateCall::Control => self.apply_control(pid, call, first, value),
            StateCall::Pair(index) => {
                if value.is_none() {
                    return;
                }
                let array = call.argument(index).unwrap_or_default();
                let inner = array.strip_prefix(b"[").and_then(|a| a.strip_suffix(b"]")).unwrap_or_default();
                for end in inner.split(|b| *b == b',') {
                    let digits: Vec<u8> =
                        end.trim_ascii().iter().copied().take_while(u8::is_ascii_digit).collect();
                    if let Ok(number) = String::from_utf8_lossy(&digits).parse() {
                        self.processes.open(pid, number, Target::NoFile, false);
                    }
                }
            }
            StateCall::NoFile => {
                if let Some(number) = value {
                    self.processes.open(pid, number, Target::NoFile, false);
                }
            }
            StateCall::Nameless => {
                if let Some(number) = value {
                    self.processes.close(pid, number);
                }
            }
            StateCall::CloseRange => {
                if let (Some(first), Some(last), Some(0)) = (call.number(0), call.number(1), value) {
                    let on_exec = call.has_flag(2, b"CLOSE_RANGE_CLOEXEC");
                    if call.has_flag(2, b"CLOSE_RANGE_UNSHARE") {
                        self.processes.unshare(pid, true, false);
                    }
                    self.processes.close_range(pid, first, last, on_exec);
                }
            }
            StateCall::Fork(flags) => {
                let child = call.tracer_pid.or(value.and_then(|v| u32::try_from(v).ok())).filter(|v| *v > 0);
                let shares = shares(call, flags);
                if !began_fork {
                    self.processes.begin_fork(pid, shares);
                }
                self.processes.end_fork(pid, child, shares);
            }
            StateCall::Unshare => {
                let (files, working) = (call.has_flag(0, b"CLONE_FILES"), call.has_flag(0, b"CLONE_FS"));
                self.processes.unshare(pid, files, working);
            }
            StateCall::Hidden => self.hidden_calls += 1,
        }
    }

    /// Applies an `fcntl` or `ioctl`.
    fn apply_control(&mut self, pid: Pid, call: &Call, descriptor: Option<i32>, value: Option<i32>) {
        let (Some(descriptor), Some(value)) = (descriptor, value) else { return };
        match call.argument(1).unwrap_or_default() {
            command @ (b"F_DUPFD" | b"F_DUPFD_CLOEXEC") => {
                self.processes.duplicate(pid, descriptor, value, command == b"F_DUPFD_CLOEXEC");
                self.record_copy(pid, value);
            }
            b"F_SETFD" => {
                self.processes.set_close_on_exec(pid, descriptor, call.has_flag(2, b"FD_CLOEXEC"));
            }
            command @ (b"FIOCLEX" | b"FIONCLEX") => {
                self.processes.set_close_on_exec(pid, descriptor, command == b"FIOCLEX");
            }
            _ => {}
        }
    }

    /// Begins the creation of a child whose id is not known yet.
    pub fn begin_fork(&mut self, pid: Pid, call: &Call, flags: Option<usize>) {
        self.processes.begin_fork(pid, shares(call, flags));
    }
}

impl Effect {
    /// Returns whether the result is an address, which may look like a negative number (mmap).
    fn returns_address(self) -> bool {
        matches!(self, Effect::Map(_))
    }

    /// Returns whether the call maps memory, and no file.
    pub fn is_anonymous_map(self, call: &Call) -> bool {
        self.returns_address()
            && (call.argument(4).is_none_or(|fd| fd.starts_with(b"-1")) || call.has_flag(3, b"MAP_ANONYMOUS"))
    }
}

fn shares(call: &Call, flags: Option<usize>) -> Shares {
    let has = |flag: &[u8]| {
        flags.is_some() && (0..8).any(|i| call.argument(i).is_some_and(|a| line::has_flag(a, flag)))
    };
    Shares { files: has(b"CLONE_FILES"), origin: has(b"CLONE_FS"), group: has(b"CLONE_THREAD") }
}

fn open_mode(effect: Effect, call: &Call) -> OpenMode {
    match effect {
        Effect::Create => OpenMode { for_writing: true, creates: true, directory: false },
        Effect::Open(flags) => {
            let has = |flag: &[u8]| call.has_flag(flags, flag);
            OpenMode {
                for_writing: has(b"O_WRONLY") || has(b"O_RDWR") || has(b"O_TRUNC"),
                creates: has(b"O_CREAT") || has(b"O_TMPFILE"),
                directory: has(b"O_DIRECTORY"),
            }
        }
        _ => OpenMode::default(),
    }
}

/// Returns the number in `/proc/self/fd/3/below`, and the rest of the path.
fn own_descriptor(path: &[u8]) -> Option<(i32, &[u8])> {
    let rest = path.strip_prefix(b"/proc/self/fd/").or_else(|| path.strip_prefix(b"/dev/fd/"))?;
    let length = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let number = std::str::from_utf8(&rest[..length]).ok()?.parse().ok()?;
    match rest[length..].split_first() {
        None => Some((number, b"")),
        Some((b'/', below)) => Some((number, below)),
        Some(_) => None,
    }
}

/// Removes leading slashes, so that the path is looked up relative to the given directory.
fn strip_slashes(path: &[u8]) -> &[u8] {
    &path[path.iter().take_while(|b| **b == b'/').count()..]
}

/// Parses an annotation of `-y`: a path, or a descriptor that is not a file (`pipe:[5]`,
/// `socket:[7]`, `anon_inode:[eventfd]`).
fn annotated(annotation: &[u8], map: &mut PathMap) -> Target {
    // With `-yy`, the type of a device follows.
    let path = annotation.split(|b| *b == b'<').next().unwrap_or(annotation);
    let path = line::unescape(path);
    if !path.starts_with(b"/") {
        return Target::NoFile;
    }
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    if path.starts_with(b"/memfd:") {
        return Target::NoFile;
    }
    Target::File(map.resolve(PathId::ROOT, path, false))
}
