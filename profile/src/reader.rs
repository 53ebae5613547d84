//! From lines to what happened: joins calls that others interrupted in the log, follows processes, finds the path of
//! each call, and says it to whoever listens. One `Reader` reads a trace once; a second one can read it again with
//! the paths of the first.

use std::collections::HashMap;

use crate::calls::{self, Bookkeeping, Effect, FileCall, Spec, Subject};
use crate::paths::PathId;
use crate::places::Map;
use crate::processes::{Pid, Processes, ProgramId, Shares, Target};
use crate::report::Skipped;
use crate::strace::{self, Call, Outcome, Time, What};

/// A line is read no further than this; a path has 4,096 bytes, which escaped are four times as many, twice in a line.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Examples of lines that could not be read.
const EXAMPLES_MAX: usize = 5;
const EXAMPLE_CHARACTERS_MAX: usize = 80;
const MIDNIGHT: u64 = 24 * 3600 * 1_000_000;

/// What a call concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerns {
    File(PathId),
    NoFile,
    Unknown,
    Bad,
}

/// One file-system call.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<'a> {
    pub name: &'a [u8],
    pub call: FileCall,
    /// Begin, in microseconds; the first line of the trace is not zero.
    pub time: u64,
    pub spent: Option<u64>,
    /// Number of the process; threads have that of their process.
    pub process: u32,
    pub program: ProgramId,
    pub concerns: Concerns,
    /// The path as it was asked for, where it was asked for by path; the link where `concerns` is what it points to.
    pub asked: Option<PathId>,
    /// The other file: what a rename takes from, what a copy writes to.
    pub other: Option<PathId>,
    pub result: Ended<'a>,
    pub bytes: u64,
    /// For an open: how.
    pub open: Opened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended<'a> {
    Well,
    Failed(&'a [u8]),
    Unknown,
}

impl Ended<'_> {
    /// There is nothing of that name.
    pub fn is_missing(&self) -> bool {
        matches!(self, Ended::Failed(b"ENOENT" | b"ENOTDIR"))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    pub for_writing: bool,
    pub creates: bool,
    pub directory: bool,
}

/// Where lines come from: a file, and whose pids are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Files of `strace -ff` share one.
    pub space: u32,
    /// The pid of all lines that carry none.
    pub pid: u32,
}

/// What interrupted calls have said so far.
#[derive(Debug)]
struct Begun {
    name: Vec<u8>,
    text: Vec<u8>,
    time: u64,
    forked: bool,
    /// The descriptor that is being closed, and what it was.
    closing: Option<(i32, Target)>,
}

#[derive(Debug)]
pub struct Reader {
    pub processes: Processes,
    programs: Programs,
    begun: HashMap<Pid, Begun>,
    clocks: HashMap<u32, Clock>,
    pub lines: u64,
    pub skipped: Skipped,
    /// Calls that do what the trace does not show (io_uring).
    pub hidden: u64,
    pub has_times: bool,
    /// When the last process ended, as far as the trace says.
    pub last_exit: u64,
}

/// How the times of one source continue.
#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    last: u64,
    days: u64,
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

impl Reader {
    /// `working`: where the first process begins, as far as known.
    pub fn new(working: Option<PathId>) -> Reader {
        Reader {
            processes: Processes::new(working),
            programs: Programs::default(),
            begun: HashMap::new(),
            clocks: HashMap::new(),
            lines: 0,
            skipped: Skipped::default(),
            hidden: 0,
            has_times: false,
            last_exit: 0,
        }
    }

    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Reads one line without its end. `place` names it in examples.
    pub fn line(
        &mut self,
        source: Source,
        text: &[u8],
        map: &mut Map,
        place: impl Fn() -> String,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        self.lines += 1;
        if text.len() > LINE_BYTES_MAX {
            return self.skip_truncated(text, &place);
        }
        let line = strace::line(text);
        let pid = Pid { space: source.space, number: line.pid.unwrap_or(source.pid) };
        let time = self.time(source, line.time);
        match line.what {
            What::Call { name, text: call } => match calls::spec(name) {
                None => self.skipped.other_calls += 1,
                Some(spec) => match strace::call(name, call) {
                    Some(parsed) => self.call(pid, time, name, spec, &parsed, map, false, listen),
                    None => self.skip_truncated(text, &place),
                },
            },
            What::Begun { name, text } => self.begin(pid, time, name, text, map, listen),
            What::Resumed { name, rest } => self.resume(pid, name, rest, text, map, &place, listen),
            What::Exited => {
                self.skipped.events += 1;
                self.last_exit = self.last_exit.max(time);
                self.end(pid, map, listen);
            }
            What::Event => self.skipped.events += 1,
            What::Truncated => self.skip_truncated(text, &place),
            What::Foreign => {
                self.skipped.foreign += 1;
                self.example("not written by strace", text, &place);
            }
        }
    }

    /// The trace ends: what had begun is told without a result.
    pub fn finish(&mut self, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        let mut left: Vec<Pid> = self.begun.keys().copied().collect();
        left.sort();
        for pid in left {
            self.end(pid, map, listen);
        }
    }

    fn skip_truncated(&mut self, text: &[u8], place: &impl Fn() -> String) {
        self.skipped.truncated += 1;
        self.example("cut off", text, place);
    }

    fn example(&mut self, what: &str, text: &[u8], place: &impl Fn() -> String) {
        if self.skipped.examples.len() < EXAMPLES_MAX {
            let text: String = String::from_utf8_lossy(&text[..text.len().min(4 * EXAMPLE_CHARACTERS_MAX)])
                .chars()
                .take(EXAMPLE_CHARACTERS_MAX)
                .collect();
            self.skipped.examples.push(format!("{}: {what}: {text}", place()));
        }
    }

    fn time(&mut self, source: Source, time: Time) -> u64 {
        let clock = self.clocks.entry(source.space).or_default();
        self.has_times |= time != Time::None;
        match time {
            Time::None => {}
            Time::Epoch(micros) => clock.last = micros,
            Time::Relative(micros) => clock.last = clock.last.saturating_add(micros),
            Time::Clock(micros) => {
                let mut now = clock.days * MIDNIGHT + micros;
                // Lines may be a little out of order; half a day back is the next day.
                if now + MIDNIGHT / 2 < clock.last {
                    clock.days += 1;
                    now += MIDNIGHT;
                }
                clock.last = now;
            }
        }
        clock.last
    }

    fn begin(
        &mut self,
        pid: Pid,
        time: u64,
        name: &[u8],
        text: &[u8],
        map: &mut Map,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        let Some(spec) = calls::spec(name) else {
            self.skipped.other_calls += 1;
            // Remembered, so that its second half is none without a first.
            self.begun.insert(
                pid,
                Begun { name: name.to_vec(), text: Vec::new(), time, forked: false, closing: None },
            );
            return;
        };
        // A call of this process that was never resumed: it cannot have two at once.
        if self.begun.contains_key(&pid) {
            self.finish_begun(pid, map, listen);
        }
        let (mut forked, mut closing) = (false, None);
        if let Some(call) = strace::begun(name, text) {
            match spec {
                // From here on the number may be given again, before this call's end is in the log.
                Spec::File(FileCall { effect: Effect::Close, .. }) => {
                    if let Some(number) = call.descriptor(0).and_then(|d| d.number) {
                        closing = Some((number, self.processes.target(pid, number)));
                        self.processes.close(pid, number);
                    }
                }
                Spec::Bookkeeping(Bookkeeping::Fork(flags)) => {
                    self.processes.begin_fork(pid, shares(&call, flags));
                    forked = true;
                }
                _ => {}
            }
        }
        self.begun.insert(pid, Begun { name: name.to_vec(), text: text.to_vec(), time, forked, closing });
    }

    #[allow(clippy::too_many_arguments)]
    fn resume(
        &mut self,
        pid: Pid,
        name: &[u8],
        rest: &[u8],
        line: &[u8],
        map: &mut Map,
        place: &impl Fn() -> String,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        let Some(mut begun) = self.begun.remove(&pid).filter(|b| b.name == name) else {
            self.skipped.orphans += 1;
            return;
        };
        self.skipped.resumed += 1;
        let Some(spec) = calls::spec(name) else { return };
        begun.text.extend_from_slice(rest);
        match strace::call(name, &begun.text) {
            Some(call) => self.call_again(pid, &begun, spec, &call, map, listen),
            None => {
                self.skip_truncated(line, place);
                if begun.forked {
                    self.processes.end_fork(pid, None, Shares::default());
                }
            }
        }
    }

    /// The process is gone, or the trace ends.
    fn end(&mut self, pid: Pid, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        if self.begun.contains_key(&pid) {
            self.finish_begun(pid, map, listen);
        }
        self.processes.exit(pid);
    }

    /// Tells a call that never returned.
    fn finish_begun(&mut self, pid: Pid, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        let Some(begun) = self.begun.remove(&pid) else { return };
        let Some(spec) = calls::spec(&begun.name) else { return };
        if let Some(call) = strace::begun(&begun.name, &begun.text) {
            self.skipped.unfinished += u64::from(matches!(spec, Spec::File(_)));
            self.call_again(pid, &begun, spec, &call, map, listen);
        }
    }

    /// The whole of a call that was interrupted in the log.
    fn call_again(
        &mut self,
        pid: Pid,
        begun: &Begun,
        spec: Spec,
        call: &Call,
        map: &mut Map,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        let now = begun.closing.map(|(number, was)| {
            let now = self.processes.target(pid, number);
            self.processes.open(pid, number, was, false);
            (number, now)
        });
        self.call(pid, begun.time, &begun.name, spec, call, map, begun.forked, listen);
        if let Some((number, now)) = now.filter(|(_, now)| *now != Target::Unknown) {
            self.processes.open(pid, number, now, false);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn call(
        &mut self,
        pid: Pid,
        time: u64,
        name: &[u8],
        spec: Spec,
        call: &Call,
        map: &mut Map,
        forked: bool,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        match spec {
            Spec::Bookkeeping(what) => {
                self.skipped.other_calls += 1;
                self.keep_books(pid, what, call, forked);
            }
            Spec::File(file) => {
                if file.effect.is_map_of_nothing(call) {
                    // Memory without a file.
                    self.skipped.other_calls += 1;
                    return;
                }
                let event = self.event(pid, time, name, file, call, map);
                listen(&event, map);
                self.follow(pid, &event, call);
            }
        }
    }

    fn event<'a>(
        &mut self,
        pid: Pid,
        time: u64,
        name: &'a [u8],
        file: FileCall,
        call: &Call<'a>,
        map: &mut Map,
    ) -> Event<'a> {
        let result = match call.result {
            Outcome::Value(value, _) if value >= 0 || is_address(file.effect) => Ended::Well,
            Outcome::Value(..) => Ended::Failed(b""),
            Outcome::Failed(error) => Ended::Failed(error),
            Outcome::Unknown => Ended::Unknown,
        };
        let (mut concerns, asked) = self.subject(pid, file.subject, file.follows, call, map);
        let mut other = None;
        match file.effect {
            Effect::Rename(from) => {
                if let (Concerns::File(path), _) = self.subject(pid, from, false, call, map) {
                    other = Some(path);
                }
            }
            Effect::Copy(from, to) => {
                let mut of = |index| self.subject(pid, Subject::Descriptor(index), true, call, map).0;
                let (source, sink) = (of(from), of(to));
                // From a pipe into a file it is the file that counts.
                concerns = if matches!(source, Concerns::File(_)) { source } else { sink };
                other = if let Concerns::File(path) = sink { Some(path) } else { None };
            }
            Effect::Open(_) | Effect::Create => {
                // What was opened, where the tracer says it, is the file itself and no link to it.
                if let Outcome::Value(_, Some(annotation)) = call.result
                    && let Target::File(path) = annotated(annotation, map)
                {
                    concerns = Concerns::File(path);
                }
            }
            _ => {}
        }
        if let Ended::Failed(b"EBADF" | b"EFAULT") = result {
            concerns = Concerns::Bad;
        }
        let bytes = match (file.effect, call.result) {
            (Effect::Read | Effect::Write | Effect::Copy(..), Outcome::Value(value, _)) => {
                u64::try_from(value).unwrap_or(0)
            }
            (Effect::Map(length), Outcome::Value(..)) => {
                call.number(length).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
            }
            _ => 0,
        };
        let program = match (file.effect, result, concerns) {
            // What a program costs begins with finding it.
            (Effect::Execute, Ended::Well, Concerns::File(path)) => self.programs.number(path),
            _ => self.processes.program(pid),
        };
        let process = self.processes.group(pid);
        let open = opened(file.effect, call);
        Event {
            name,
            call: file,
            time,
            spent: call.spent,
            process,
            program,
            concerns,
            asked,
            other,
            result,
            bytes,
            open,
        }
    }

    fn subject(
        &mut self,
        pid: Pid,
        subject: Subject,
        follows: bool,
        call: &Call,
        map: &mut Map,
    ) -> (Concerns, Option<PathId>) {
        let (base, path) = match subject {
            Subject::Descriptor(index) => return (self.descriptor(pid, index, call, map), None),
            Subject::Path(index) => (None, call.argument(index)),
            Subject::At(base, index) => (Some(base), call.argument(index)),
        };
        let path = match path {
            Some(b"NULL") if base.is_some() => Some(Vec::new()),
            Some(text) => strace::string(text).map(|(path, _)| path),
            None => None,
        };
        // An address: the program gave one from which nothing could be read.
        let Some(path) = path else { return (Concerns::Bad, None) };
        if let (Some(base), true) = (base, path.is_empty()) {
            return (self.descriptor(pid, base, call, map), None);
        }
        let base = if path.starts_with(b"/") {
            PathId::ROOT
        } else {
            let base = match base {
                Some(base) => self.descriptor(pid, base, call, map),
                None => self.processes.working(pid).map_or(Concerns::Unknown, Concerns::File),
            };
            match base {
                Concerns::File(path) => path,
                other => return (other, None),
            }
        };
        let asked = map.resolve(base, &path, follows);
        (Concerns::File(asked), Some(asked))
    }

    /// What the tracer says of a descriptor, or what is known of it.
    fn descriptor(&mut self, pid: Pid, index: usize, call: &Call, map: &mut Map) -> Concerns {
        let Some(descriptor) = call.descriptor(index) else { return Concerns::Unknown };
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
            (None, None) => self.processes.working(pid).map_or(Target::Unknown, Target::File),
            (None, Some(number)) => self.processes.target(pid, number),
        };
        match target {
            Target::File(path) => Concerns::File(path),
            Target::NoFile => Concerns::NoFile,
            Target::Unknown => Concerns::Unknown,
        }
    }

    /// What the call changes for the process.
    fn follow(&mut self, pid: Pid, event: &Event, call: &Call) {
        let path = match event.concerns {
            Concerns::File(path) => Target::File(path),
            Concerns::NoFile => Target::NoFile,
            _ => Target::Unknown,
        };
        match event.call.effect {
            Effect::Close => {
                if let Some(number) = call.descriptor(0).and_then(|d| d.number) {
                    self.processes.close(pid, number);
                }
            }
            Effect::Open(flags) => {
                if let Outcome::Value(number, _) = call.result
                    && let Ok(number) = i32::try_from(number)
                    && number >= 0
                {
                    self.processes.open(pid, number, path, call.has_flag(flags, b"O_CLOEXEC"));
                }
            }
            Effect::Create => {
                if let Outcome::Value(number, _) = call.result
                    && let Ok(number) = i32::try_from(number)
                {
                    self.processes.open(pid, number, path, false);
                }
            }
            Effect::ChangeDirectory if event.result == Ended::Well => {
                let path = if let Target::File(path) = path { Some(path) } else { None };
                self.processes.set_working(pid, path);
            }
            // An exec that does not return has happened.
            Effect::Execute if event.result == Ended::Well => {
                if let Target::File(path) = path {
                    let number = self.programs.number(path);
                    self.processes.execute(pid, number);
                }
            }
            _ => {}
        }
    }

    fn keep_books(&mut self, pid: Pid, what: Bookkeeping, call: &Call, forked: bool) {
        let value = match call.result {
            Outcome::Value(value, _) => i32::try_from(value).ok().filter(|v| *v >= 0),
            _ => None,
        };
        let first = call.descriptor(0).and_then(|d| d.number);
        match what {
            Bookkeeping::Duplicate => {
                if let (Some(from), Some(to)) = (first, value) {
                    self.processes.duplicate(pid, from, to, call.has_flag(2, b"O_CLOEXEC"));
                }
            }
            Bookkeeping::Control => {
                let command = call.argument(1).unwrap_or_default();
                match (first, value) {
                    (Some(from), Some(to)) if command.starts_with(b"F_DUPFD") => {
                        self.processes.duplicate(pid, from, to, command == b"F_DUPFD_CLOEXEC");
                    }
                    (Some(number), Some(_)) if command == b"F_SETFD" => {
                        let target = self.processes.target(pid, number);
                        self.processes.open(pid, number, target, call.has_flag(2, b"FD_CLOEXEC"));
                    }
                    _ => {}
                }
            }
            Bookkeeping::Pair(index) => {
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
            Bookkeeping::NoFile => {
                if let Some(number) = value {
                    self.processes.open(pid, number, Target::NoFile, false);
                }
            }
            Bookkeeping::CloseRange => {
                if let (Some(first), Some(last), Some(0)) = (call.number(0), call.number(1), value) {
                    let on_exec = call.has_flag(2, b"CLOSE_RANGE_CLOEXEC");
                    self.processes.close_range(pid, first, last, on_exec);
                }
            }
            Bookkeeping::Fork(flags) => {
                let child = value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0);
                let shares = shares(call, flags);
                if !forked {
                    self.processes.begin_fork(pid, shares);
                }
                self.processes.end_fork(pid, child, shares);
            }
            Bookkeeping::Unshare => {
                let (files, working) = (call.has_flag(0, b"CLONE_FILES"), call.has_flag(0, b"CLONE_FS"));
                self.processes.unshare(pid, files, working);
            }
            Bookkeeping::Hidden => self.hidden += 1,
        }
    }
}

/// mmap's result is an address, which may look negative.
fn is_address(effect: Effect) -> bool {
    matches!(effect, Effect::Map(_))
}

impl Effect {
    fn is_map_of_nothing(self, call: &Call) -> bool {
        is_address(self) && call.argument(4).is_none_or(|fd| fd.starts_with(b"-1"))
    }
}

fn shares(call: &Call, flags: Option<usize>) -> Shares {
    let has = |flag: &[u8]| {
        flags.is_some() && (0..8).any(|i| call.argument(i).is_some_and(|a| strace::has_flag(a, flag)))
    };
    Shares { files: has(b"CLONE_FILES"), working: has(b"CLONE_FS"), group: has(b"CLONE_THREAD") }
}

fn opened(effect: Effect, call: &Call) -> Opened {
    match effect {
        Effect::Create => Opened { for_writing: true, creates: true, directory: false },
        Effect::Open(flags) => {
            let has = |flag: &[u8]| call.has_flag(flags, flag);
            Opened {
                for_writing: has(b"O_WRONLY") || has(b"O_RDWR") || has(b"O_TRUNC"),
                creates: has(b"O_CREAT") || has(b"O_TMPFILE"),
                directory: has(b"O_DIRECTORY"),
            }
        }
        _ => Opened::default(),
    }
}

/// What `-y` tells: a path, or something that is no file (`pipe:[5]`, `socket:[7]`, `anon_inode:[eventfd]`).
fn annotated(annotation: &[u8], map: &mut Map) -> Target {
    if !annotation.starts_with(b"/") {
        return Target::NoFile;
    }
    let path = strace::unescape(annotation);
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    if path.starts_with(b"/memfd:") {
        return Target::NoFile;
    }
    Target::File(map.resolve(PathId::ROOT, path, false))
}
