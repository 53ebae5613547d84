//! Converts lines to events: joins calls that others interrupted in the log, follows processes,
//! determines the path of each call, and passes it to a listener. A `Reader` reads a trace once; a
//! second one can read it again with the paths of the first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::calls::{self, Bookkeeping, Effect, FileCall, Spec, Subject};
use crate::descriptors::{Open, Target};
use crate::paths::PathId;
use crate::places::Map;
use crate::processes::{Pid, Processes, ProgramId, Shares};
use crate::report::Skipped;
use crate::strace::{self, Call, Outcome, Time, What};

/// Lines are read up to this size. A path has 4,096 bytes, escaped four times as many, and a line
/// may have two.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Limit on copied descriptors that are followed.
const COPIES_MAX: usize = 1 << 20;
/// Number of examples of lines that could not be read.
const EXAMPLES_MAX: usize = 5;
const EXAMPLE_CHARACTERS_MAX: usize = 80;
const HOUR: u64 = 3600 * 1_000_000;
const MIDNIGHT: u64 = 24 * HOUR;
/// The maximum number of bytes that Linux transfers in one call.
const BYTES_MAX: u64 = 0x7fff_f000;
/// Limit on the bytes of unfinished calls that are stored; further calls count as never ended.
const BEGUN_BYTES_MAX: usize = 32 << 20;
/// Limit on the bytes of lines of processes whose parent is not known yet.
const WAITING_BYTES_MAX: usize = 1 << 20;
const WAITING_PROCESSES_MAX: usize = 256;

/// What a call refers to.
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
    /// The time of its start in microseconds, not relative to the start of the trace.
    pub time: u64,
    /// The time of the first call of all.
    pub first: u64,
    pub spent: Option<u64>,
    /// The number of the process; its threads have the same one.
    pub process: u32,
    pub program: ProgramId,
    pub concerns: Concerns,
    /// The path in the call, if it has one. If it is a symbolic link, `concerns` has the target.
    pub asked: Option<PathId>,
    /// The directory at which the lookup of `asked` begins: the root directory, the working
    /// directory, or that of a descriptor.
    pub base: PathId,
    /// For a close: whether the process has no other copy of the descriptor.
    pub last: bool,
    /// The other file: the old name of a rename, the destination of a copy.
    pub other: Option<PathId>,
    pub result: Ended<'a>,
    pub bytes: u64,
    /// For an open: its flags.
    pub open: Opened,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended<'a> {
    Well,
    Failed(&'a [u8]),
    Unknown,
}

impl Ended<'_> {
    /// Returns whether the name does not exist.
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

/// A path in a call, and the directory at which its lookup begins.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: PathId,
    to: PathId,
}

/// The origin of lines: a file, and the machine to which its process ids belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The files of `strace -ff` share one number.
    pub space: u32,
    /// The process id of all lines without one.
    pub pid: u32,
}

/// The first half of an interrupted call.
#[derive(Debug)]
struct Begun {
    name: Vec<u8>,
    text: Vec<u8>,
    time: u64,
    forked: bool,
    /// The descriptor that is being closed, and its file.
    closing: Option<(i32, Open)>,
}

/// Lines of a process whose parent is not known yet.
#[derive(Debug)]
struct Waiting {
    pid: Pid,
    lines: Vec<(u64, Vec<u8>, String)>,
}

#[derive(Debug)]
pub struct Reader {
    pub processes: Processes,
    programs: Programs,
    begun: HashMap<Pid, Begun>,
    begun_bytes: usize,
    clocks: HashMap<u32, Clock>,
    /// For each trace the first half of a line that a remark split.
    halves: HashMap<u32, Vec<u8>>,
    /// The process id of lines without one, for each trace in which only some lines have one.
    nameless: HashMap<u32, u32>,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    /// The time of the first call of all.
    began: Option<u64>,
    /// Number of further descriptors that a process has of a file, because it copied them.
    copies: HashMap<(u32, PathId), u32>,
    pub lines: u64,
    pub skipped: Skipped,
    /// Number of calls that make requests which the trace does not show (io_uring).
    pub hidden: u64,
    pub has_times: bool,
    /// The time at which the last process ended, as far as the trace shows.
    pub last_exit: u64,
}

/// The state by which the times of one source are continued.
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
    /// Returns a reader. `working`: the working directory of the first process, if known.
    pub fn new(working: Option<PathId>) -> Reader {
        Reader {
            processes: Processes::new(working),
            programs: Programs::default(),
            begun: HashMap::new(),
            begun_bytes: 0,
            clocks: HashMap::new(),
            halves: HashMap::new(),
            nameless: HashMap::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            began: None,
            copies: HashMap::new(),
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

    /// Reads one line without its newline. `place` describes it in examples.
    pub fn line(
        &mut self,
        source: Source,
        text: &[u8],
        map: &mut Map,
        place: impl Fn() -> String,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        self.lines += 1;
        if let Some(before) = strace::before_remark(text) {
            self.skipped.events += 1;
            self.halves.insert(source.space, before.to_vec());
            return;
        }
        if !self.halves.is_empty()
            && !strace::is_remark(text)
            && let Some(mut whole) = self.halves.remove(&source.space)
            && strace::is_rest(text)
        {
            whole.extend_from_slice(text);
            return self.whole_line(source, &whole, map, place, listen);
        }
        self.whole_line(source, text, map, place, listen);
    }

    fn whole_line(
        &mut self,
        source: Source,
        text: &[u8],
        map: &mut Map,
        place: impl Fn() -> String,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        if text.len() > LINE_BYTES_MAX {
            return self.skip_truncated(text, &place);
        }
        let line = strace::line(text);
        let time = self.time(source, line.time);
        if line.what == What::Foreign {
            self.skipped.foreign += 1;
            return self.example("not written by strace", text, &place);
        }
        let pid = self.pid(source, &line);
        if self.must_wait(pid) {
            self.wait(pid, time, text, place());
            if self.waiting_bytes > WAITING_BYTES_MAX || self.waiting.len() > WAITING_PROCESSES_MAX {
                self.release(true, map, listen);
            }
            return;
        }
        self.known_line(pid, time, line.what, text, map, &place, listen);
        if self.processes.has_settled() && !self.waiting.is_empty() {
            self.release(false, map, listen);
        }
    }

    /// Reads a line of a process whose parent is known.
    #[allow(clippy::too_many_arguments)]
    fn known_line(
        &mut self,
        pid: Pid,
        time: u64,
        what: What,
        text: &[u8],
        map: &mut Map,
        place: &dyn Fn() -> String,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        // A process that makes calls exists, regardless of the calls.
        if matches!(what, What::Call { .. } | What::Begun { .. } | What::Resumed { .. }) {
            self.processes.group(pid);
        }
        // A process makes one call after another, so the end of the previous call is not in the
        // trace.
        if matches!(what, What::Call { .. } | What::Begun { .. }) && self.begun.contains_key(&pid) {
            self.finish_begun(pid, map, listen);
        }
        match what {
            What::Call { name, text: call } => match calls::spec(name) {
                None => self.skipped.other_calls += 1,
                Some(spec) => match strace::call(name, call) {
                    Some(parsed) => self.call(pid, time, name, spec, &parsed, map, false, listen),
                    None => self.skip_truncated(text, place),
                },
            },
            What::Begun { name, text } => self.begin(pid, time, name, text, map, listen),
            What::Resumed { name, rest } => self.resume(pid, name, rest, text, map, place, listen),
            What::Exited => {
                self.skipped.events += 1;
                self.last_exit = self.last_exit.max(time);
                self.end(pid, map, listen);
            }
            What::Superseded(by) => {
                self.skipped.events += 1;
                self.end(pid, map, listen);
                self.rename(Pid { number: by, ..pid }, pid);
            }
            What::Event => self.skipped.events += 1,
            What::Truncated => self.skip_truncated(text, place),
            What::Foreign => self.skipped.foreign += 1,
        }
    }

    fn rename(&mut self, from: Pid, to: Pid) {
        if from == to || !self.processes.is_running(from) || self.begun.contains_key(&to) {
            return;
        }
        self.processes.rename(from, to);
        if let Some(begun) = self.begun.remove(&from) {
            self.begun.insert(to, begun);
        }
    }

    /// Returns the process of a line. While a trace to a terminal (without `-o`) has only one
    /// process, its lines have no process id.
    fn pid(&mut self, source: Source, line: &strace::Line) -> Pid {
        let of = |number| Pid { space: source.space, number };
        let nameless = of(0);
        match line.pid {
            Some(number) => {
                let pid = of(number);
                if source.pid == 0 && !self.processes.is_running(pid) && self.processes.is_running(nameless) {
                    // It is either a child, or the process that had no id until now.
                    let goes_on = match line.what {
                        What::Resumed { name, .. } => {
                            self.begun.get(&nameless).is_some_and(|begun| begun.name == name)
                        }
                        _ => false,
                    };
                    if goes_on || self.processes.awaited(source.space) == 0 {
                        self.rename(nameless, pid);
                    }
                }
                pid
            }
            None if source.pid != 0 => of(source.pid),
            None => {
                let last = of(self.nameless.get(&source.space).copied().unwrap_or(0));
                if self.processes.is_running(last) {
                    return last;
                }
                match self.processes.any_of(source.space) {
                    Some(only) => {
                        self.nameless.insert(source.space, only.number);
                        only
                    }
                    None => last,
                }
            }
        }
    }

    /// Returns whether the line must wait, because several processes are being created and it is
    /// not known which of them this is.
    fn must_wait(&self, pid: Pid) -> bool {
        self.processes.awaited(pid.space) > 1 && !self.processes.is_running(pid)
            || !self.waiting.is_empty() && self.waiting.iter().any(|w| w.pid == pid)
    }

    fn wait(&mut self, pid: Pid, time: u64, text: &[u8], place: String) {
        self.waiting_bytes += text.len() + place.len() + size_of::<(u64, Vec<u8>, String)>();
        let line = (time, text.to_vec(), place);
        match self.waiting.iter_mut().find(|w| w.pid == pid) {
            Some(waiting) => waiting.lines.push(line),
            None => self.waiting.push(Waiting { pid, lines: vec![line] }),
        }
    }

    /// Reads the lines of processes whose parent is known by now; with `all`, also those whose
    /// parent must be guessed.
    fn release(&mut self, all: bool, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        loop {
            let known = self.waiting.iter().position(|w| self.processes.is_running(w.pid));
            let single = || self.waiting.iter().position(|w| all || self.processes.awaited(w.pid.space) < 2);
            let Some(at) = known.or_else(single) else { return };
            let Waiting { pid, lines } = self.waiting.remove(at);
            for (time, text, place) in lines {
                self.waiting_bytes -= text.len() + place.len() + size_of::<(u64, Vec<u8>, String)>();
                self.known_line(pid, time, strace::line(&text).what, &text, map, &|| place.clone(), listen);
            }
        }
    }

    /// Ends the trace: unfinished calls are reported without a result.
    pub fn finish(&mut self, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        self.release(true, map, listen);
        let mut left: Vec<Pid> = self.begun.keys().copied().collect();
        left.sort();
        for pid in left {
            self.end(pid, map, listen);
        }
    }

    fn skip_truncated(&mut self, text: &[u8], place: &dyn Fn() -> String) {
        self.skipped.truncated += 1;
        self.example("cut off", text, place);
    }

    fn example(&mut self, what: &str, text: &[u8], place: &dyn Fn() -> String) {
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
                let mut now = clock.days.saturating_mul(MIDNIGHT).saturating_add(micros);
                // A time more than half a day earlier belongs to the next day. Lines may be
                // slightly out of order, also around midnight.
                if now.saturating_add(MIDNIGHT / 2) < clock.last {
                    clock.days = clock.days.saturating_add(1);
                    now = now.saturating_add(MIDNIGHT);
                } else if clock.days > 0 && now > clock.last.saturating_add(MIDNIGHT - HOUR) {
                    now -= MIDNIGHT;
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
            // Stored so that its second half does not count as an orphan.
            let begun = Begun { name: name.to_vec(), text: Vec::new(), time, forked: false, closing: None };
            self.keep_begun(pid, begun, map, listen);
            return;
        };
        let (mut forked, mut closing) = (false, None);
        if let Some(call) = strace::begun(name, text) {
            match spec {
                // The descriptor's number may be reused before the end of this call is in the log.
                Spec::File(FileCall { effect: Effect::Close, .. }) => {
                    if let Some(number) = call.descriptor(0).and_then(|d| d.number) {
                        closing = self.processes.descriptor(pid, number).map(|was| (number, was));
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
        if matches!(spec, Spec::File(_)) {
            self.began.get_or_insert(time);
        }
        let begun = Begun { name: name.to_vec(), text: text.to_vec(), time, forked, closing };
        self.keep_begun(pid, begun, map, listen);
    }

    fn keep_begun(
        &mut self,
        pid: Pid,
        begun: Begun,
        map: &mut Map,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        self.begun_bytes += begun.bytes();
        self.begun.insert(pid, begun);
        if self.begun_bytes > BEGUN_BYTES_MAX {
            self.finish_begun(pid, map, listen);
        }
    }

    fn take_begun(&mut self, pid: Pid) -> Option<Begun> {
        let begun = self.begun.remove(&pid)?;
        self.begun_bytes -= begun.bytes();
        Some(begun)
    }

    #[allow(clippy::too_many_arguments)]
    fn resume(
        &mut self,
        pid: Pid,
        name: &[u8],
        rest: &[u8],
        line: &[u8],
        map: &mut Map,
        place: &dyn Fn() -> String,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        let is_its = self.begun.get(&pid).is_some_and(|begun| begun.name == name);
        let Some(mut begun) = is_its.then(|| self.take_begun(pid)).flatten() else {
            self.skipped.orphans += 1;
            return;
        };
        let Some(spec) = calls::spec(name) else {
            self.skipped.resumed += 1;
            return;
        };
        let first_half = begun.text.len();
        begun.text.extend_from_slice(rest);
        if let Some(call) = strace::call(name, &begun.text) {
            self.skipped.resumed += 1;
            return self.call_again(pid, &begun, spec, &call, map, listen);
        }
        // The call was made; its result is truncated.
        self.skip_truncated(line, place);
        begun.text.truncate(first_half);
        self.never_ended(pid, &begun, spec, map, listen);
    }

    /// Ends a process, because it has ended or the trace ends.
    fn end(&mut self, pid: Pid, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        if self.begun.contains_key(&pid) {
            self.finish_begun(pid, map, listen);
        }
        // The trace may contain nothing of a process but its end.
        self.processes.group(pid);
        self.processes.exit(pid);
    }

    /// Reports a call that never returned.
    fn finish_begun(&mut self, pid: Pid, map: &mut Map, listen: &mut impl FnMut(&Event, &mut Map)) {
        let Some(begun) = self.take_begun(pid) else { return };
        if let Some(spec) = calls::spec(&begun.name) {
            self.never_ended(pid, &begun, spec, map, listen);
        }
    }

    fn never_ended(
        &mut self,
        pid: Pid,
        begun: &Begun,
        spec: Spec,
        map: &mut Map,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        if let Some(call) = strace::begun(&begun.name, &begun.text) {
            let counts = matches!(spec, Spec::File(file) if !file.effect.is_map_of_nothing(&call));
            self.skipped.unfinished += u64::from(counts);
            self.call_again(pid, begun, spec, &call, map, listen);
        }
    }

    /// Handles a complete call that was interrupted in the log.
    fn call_again(
        &mut self,
        pid: Pid,
        begun: &Begun,
        spec: Spec,
        call: &Call,
        map: &mut Map,
        listen: &mut impl FnMut(&Event, &mut Map),
    ) {
        let now = begun.closing.as_ref().map(|(number, was)| {
            let now = self.processes.descriptor(pid, *number);
            self.processes.set(pid, *number, *was);
            (*number, now)
        });
        self.call(pid, begun.time, &begun.name, spec, call, map, begun.forked, listen);
        if let Some((number, Some(now))) = now {
            self.processes.set(pid, number, now);
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
                    // An anonymous mapping.
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
        let (mut concerns, way) = self.subject(pid, file.subject, file.follows, call, map);
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
                // For a copy from a pipe to a file, the file counts.
                concerns = if matches!(source, Concerns::File(_)) { source } else { sink };
                other = if let Concerns::File(path) = sink { Some(path) } else { None };
            }
            Effect::Open(_) | Effect::Create => {
                // The tracer prints the opened file itself, and not a link to it.
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
                u64::try_from(value).unwrap_or(0).min(BYTES_MAX)
            }
            (Effect::Map(length), Outcome::Value(..)) => {
                call.number(length).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
            }
            _ => 0,
        };
        let program = match (file.effect, result, concerns) {
            // The cost of a program begins with its lookup.
            (Effect::Execute, Ended::Well, Concerns::File(path)) => self.programs.number(path),
            _ => self.processes.program(pid),
        };
        let process = self.processes.group(pid);
        let open = opened(file.effect, call);
        let last = match (file.effect, concerns) {
            (Effect::Close, Concerns::File(path)) => self.is_last(process, path),
            _ => false,
        };
        Event {
            name,
            call: file,
            time,
            first: *self.began.get_or_insert(time),
            spent: call.spent,
            process,
            program,
            concerns,
            asked: way.map(|way| way.to),
            base: way.map_or(PathId::ROOT, |way| way.from),
            last,
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
    ) -> (Concerns, Option<Way>) {
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
        // The argument is an address: the program passed one from which nothing could be read.
        let Some(path) = path else { return (Concerns::Bad, None) };
        if let (Some(base), true) = (base, path.is_empty()) {
            return (self.descriptor(pid, base, call, map), None);
        }
        let follows = follows && !call.has_any_flag(&[b"AT_SYMLINK_NOFOLLOW", b"O_NOFOLLOW"]);
        let mut path = path.as_slice();
        let base = if path.starts_with(b"/") && !call.has_any_flag(&[b"RESOLVE_IN_ROOT"]) {
            if let Some((number, below)) = own_descriptor(path)
                && (follows || !below.is_empty())
            {
                // The kernel continues at the file itself.
                match self.processes.target(pid, number) {
                    Target::File(file) if below.is_empty() => return (Concerns::File(file), None),
                    Target::NoFile => return (Concerns::NoFile, None),
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
                Some(base) => self.descriptor(pid, base, call, map),
                None => self.processes.origin(pid).working.map_or(Concerns::Unknown, Concerns::File),
            };
            match base {
                Concerns::File(path) => path,
                other => return (other, None),
            }
        };
        let asked = map.resolve(base, strip_slashes(path), follows);
        (Concerns::File(asked), Some(Way { from: base, to: asked }))
    }

    /// Returns the file of a descriptor, as printed by the tracer or as followed.
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
            (None, None) => self.processes.origin(pid).working.map_or(Target::Unknown, Target::File),
            (None, Some(number)) => self.processes.target(pid, number),
        };
        match target {
            Target::File(path) => Concerns::File(path),
            Target::NoFile => Concerns::NoFile,
            Target::Unknown => Concerns::Unknown,
        }
    }

    /// Updates the state of the process after a call.
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
            Effect::ChangeRoot if event.result == Ended::Well => {
                if let Target::File(path) = path {
                    self.processes.set_root(pid, path);
                }
            }
            // An exec that did not fail has replaced the program.
            Effect::Execute if event.result == Ended::Well => {
                // A program in memory has no path.
                let number = if let Target::File(path) = path { self.programs.number(path) } else { 0 };
                self.processes.execute(pid, number);
            }
            _ => {}
        }
    }

    /// Records that a descriptor is a copy of another one: the file stays open until both are
    /// closed.
    fn copied(&mut self, pid: Pid, descriptor: i32) {
        if let Target::File(path) = self.processes.target(pid, descriptor)
            && self.copies.len() < COPIES_MAX
        {
            *self.copies.entry((self.processes.group(pid), path)).or_default() += 1;
        }
    }

    fn is_last(&mut self, process: u32, path: PathId) -> bool {
        let Entry::Occupied(mut copies) = self.copies.entry((process, path)) else { return true };
        *copies.get_mut() -= 1;
        if *copies.get() == 0 {
            copies.remove();
        }
        false
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
                    self.copied(pid, to);
                }
            }
            Bookkeeping::Control => {
                let command = call.argument(1).unwrap_or_default();
                match (first, value) {
                    (Some(from), Some(to)) if matches!(command, b"F_DUPFD" | b"F_DUPFD_CLOEXEC") => {
                        self.processes.duplicate(pid, from, to, command == b"F_DUPFD_CLOEXEC");
                        self.copied(pid, to);
                    }
                    (Some(number), Some(_)) => match command {
                        b"F_SETFD" => {
                            self.processes.set_close_on_exec(pid, number, call.has_flag(2, b"FD_CLOEXEC"));
                        }
                        b"FIOCLEX" | b"FIONCLEX" => {
                            self.processes.set_close_on_exec(pid, number, command == b"FIOCLEX");
                        }
                        _ => {}
                    },
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
            Bookkeeping::Nameless => {
                if let Some(number) = value {
                    self.processes.close(pid, number);
                }
            }
            Bookkeeping::CloseRange => {
                if let (Some(first), Some(last), Some(0)) = (call.number(0), call.number(1), value) {
                    let on_exec = call.has_flag(2, b"CLOSE_RANGE_CLOEXEC");
                    if call.has_flag(2, b"CLOSE_RANGE_UNSHARE") {
                        self.processes.unshare(pid, true, false);
                    }
                    self.processes.close_range(pid, first, last, on_exec);
                }
            }
            Bookkeeping::Fork(flags) => {
                let child = call.outer.or(value.and_then(|v| u32::try_from(v).ok())).filter(|v| *v > 0);
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

/// Returns whether the result is an address, which may look like a negative number (mmap).
fn is_address(effect: Effect) -> bool {
    matches!(effect, Effect::Map(_))
}

impl Effect {
    fn is_map_of_nothing(self, call: &Call) -> bool {
        is_address(self)
            && (call.argument(4).is_none_or(|fd| fd.starts_with(b"-1")) || call.has_flag(3, b"MAP_ANONYMOUS"))
    }
}

fn shares(call: &Call, flags: Option<usize>) -> Shares {
    let has = |flag: &[u8]| {
        flags.is_some() && (0..8).any(|i| call.argument(i).is_some_and(|a| strace::has_flag(a, flag)))
    };
    Shares { files: has(b"CLONE_FILES"), origin: has(b"CLONE_FS"), group: has(b"CLONE_THREAD") }
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
fn annotated(annotation: &[u8], map: &mut Map) -> Target {
    // With `-yy`, the type of a device follows.
    let path = annotation.split(|b| *b == b'<').next().unwrap_or(annotation);
    let path = strace::unescape(path);
    if !path.starts_with(b"/") {
        return Target::NoFile;
    }
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    if path.starts_with(b"/memfd:") {
        return Target::NoFile;
    }
    Target::File(map.resolve(PathId::ROOT, path, false))
}

impl Begun {
    fn bytes(&self) -> usize {
        size_of::<Begun>() + self.name.len() + self.text.len()
    }
}
