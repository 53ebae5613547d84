//! Converts lines to events: joins calls that others interrupted in the trace, assigns lines to
//! processes, and passes each file-system call to the caller. A `Reader` reads a trace once; a
//! second one can read it again with the paths of the first.

use std::collections::HashMap;

use crate::locations::PathMap;
use crate::paths::PathId;
use crate::report::Skipped;
use crate::trace::calls::{self, CallKind, Effect, FileCall, StateCall};
use crate::trace::delayed::{DelayedLine, DelayedLines};
use crate::trace::event::Event;
use crate::trace::line::{self, Call, LineKind};
use crate::trace::processes::Pid;
use crate::trace::resolver::{CallResolver, Occurrence};
use crate::trace::split_lines::SplitLines;
use crate::trace::timestamps::Timestamps;
use crate::trace::unfinished::{UnfinishedCall, UnfinishedCalls};

/// Lines are read up to this size. A path has 4,096 bytes, escaped four times as many, and a line
/// may have two.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Number of examples of lines that could not be read.
const EXAMPLES_MAX: usize = 5;
const EXAMPLE_CHARACTERS_MAX: usize = 80;

/// The origin of lines: a file, and the machine to which its process ids belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineSource {
    /// The number of the space of process ids. The files of `strace -ff` share one number.
    pub space: u32,
    /// The process id of all lines without one.
    pub pid: u32,
}

/// The destination of the events of a reader.
pub struct Output<'a, 'l> {
    /// The paths of the trace.
    pub map: &'a mut PathMap<'l>,
    /// Called for each file-system call, in the order of the trace.
    pub on_event: &'a mut dyn FnMut(&Event, &mut PathMap),
}

/// Reads the lines of a trace, in order.
#[derive(Debug)]
pub struct Reader {
    pub resolver: CallResolver,
    unfinished: UnfinishedCalls,
    delayed: DelayedLines,
    split_lines: SplitLines,
    pub timestamps: Timestamps,
    /// The process id of lines without one, for each trace in which only some lines have one.
    ids_of_nameless_lines: HashMap<u32, u32>,
    pub lines: u64,
    pub skipped: Skipped,
    /// The time at which the last process ended, as far as the trace shows.
    pub last_exit_us: u64,
}

/// A call in one line, or joined from two.
struct ParsedCall<'a> {
    occurrence: Occurrence<'a>,
    kind: CallKind,
    call: &'a Call<'a>,
    /// Whether the creation of a child has begun in the process table.
    began_fork: bool,
}

impl Reader {
    /// Returns a reader. `working`: the working directory of the first process, if known.
    pub fn new(working: Option<PathId>) -> Reader {
        Reader {
            resolver: CallResolver::new(working),
            unfinished: UnfinishedCalls::default(),
            delayed: DelayedLines::default(),
            split_lines: SplitLines::default(),
            timestamps: Timestamps::default(),
            ids_of_nameless_lines: HashMap::new(),
            lines: 0,
            skipped: Skipped::default(),
            last_exit_us: 0,
        }
    }

    /// Reads one line without its newline. `position` describes it in examples.
    pub fn line(
        &mut self,
        source: LineSource,
        text: &[u8],
        position: &dyn Fn() -> String,
        output: &mut Output,
    ) {
        self.lines += 1;
        match self.split_lines.joined(source.space, text) {
            Some(line) => self.whole_line(source, &line, position, output),
            None => self.skipped.events += 1,
        }
    }

    fn whole_line(
        &mut self,
        source: LineSource,
        text: &[u8],
        position: &dyn Fn() -> String,
        output: &mut Output,
    ) {
        if text.len() > LINE_BYTES_MAX {
            return self.skip_truncated(text, position);
        }
        let line = line::parse_line(text);
        let time_us = self.timestamps.time_us(source.space, line.time);
        if line.kind == LineKind::Foreign {
            self.skipped.foreign += 1;
            return self.add_example("not written by strace", text, position);
        }
        let pid = self.pid(source, &line);
        if self.must_wait(pid) {
            let line = DelayedLine { time_us, text: text.to_vec(), position: position() };
            self.delayed.push(pid, line);
            if self.delayed.is_full() {
                self.read_delayed_lines(true, output);
            }
            return;
        }
        self.known_line(pid, time_us, line.kind, text, position, output);
        if self.resolver.processes.has_settled() && !self.delayed.is_empty() {
            self.read_delayed_lines(false, output);
        }
    }

    /// Reads a line of a process whose parent is known.
    fn known_line(
        &mut self,
        pid: Pid,
        time_us: u64,
        kind: LineKind,
        text: &[u8],
        position: &dyn Fn() -> String,
        output: &mut Output,
    ) {
        // A process that makes calls exists, regardless of the calls.
        if matches!(kind, LineKind::Call { .. } | LineKind::Unfinished { .. } | LineKind::Resumed { .. }) {
            self.resolver.processes.group(pid);
        }
        // A process makes one call after another, so the end of the previous call is not in the
        // trace.
        if matches!(kind, LineKind::Call { .. } | LineKind::Unfinished { .. })
            && self.unfinished.contains(pid)
        {
            self.end_unfinished(pid, output);
        }
        match kind {
            LineKind::Call { name, text: call } => match calls::call_kind(name) {
                None => self.skipped.other_calls += 1,
                Some(kind) => match line::parse_call(name, call) {
                    Some(call) => {
                        let occurrence = Occurrence { pid, time_us, name };
                        self.call(ParsedCall { occurrence, kind, call: &call, began_fork: false }, output);
                    }
                    None => self.skip_truncated(text, position),
                },
            },
            LineKind::Unfinished { name, text } => {
                self.begin_call(Occurrence { pid, time_us, name }, text, output);
            }
            LineKind::Resumed { name, rest } => {
                if !self.resume_call(pid, name, rest, output) {
                    self.skip_truncated(text, position);
                }
            }
            LineKind::Exited => {
                self.skipped.events += 1;
                self.last_exit_us = self.last_exit_us.max(time_us);
                self.end_process(pid, output);
            }
            LineKind::Superseded(by) => {
                self.skipped.events += 1;
                self.end_process(pid, output);
                self.rename(Pid { number: by, ..pid }, pid);
            }
            LineKind::Remark => self.skipped.events += 1,
            LineKind::Truncated => self.skip_truncated(text, position),
            LineKind::Foreign => self.skipped.foreign += 1,
        }
    }

    /// Changes the id of a running process, with its unfinished call.
    fn rename(&mut self, from: Pid, to: Pid) {
        if from == to || !self.resolver.processes.is_running(from) || self.unfinished.contains(to) {
            return;
        }
        self.resolver.processes.rename(from, to);
        self.unfinished.rename(from, to);
    }

    /// Returns the process of a line. While a trace to a terminal (without `-o`) has only one
    /// process, its lines have no process id.
    fn pid(&mut self, source: LineSource, line: &line::Line) -> Pid {
        let pid_of = |number| Pid { space: source.space, number };
        let nameless = pid_of(0);
        let Some(number) = line.pid else {
            return if source.pid != 0 {
                pid_of(source.pid)
            } else {
                self.pid_of_nameless_line(source.space)
            };
        };
        let pid = pid_of(number);
        let processes = &self.resolver.processes;
        if source.pid == 0 && !processes.is_running(pid) && processes.is_running(nameless) {
            // The line is from a child, or from the process that had no id until now.
            let continues = match line.kind {
                LineKind::Resumed { name, .. } => self.unfinished.has_name(nameless, name),
                _ => false,
            };
            if continues || processes.awaited(source.space) == 0 {
                self.rename(nameless, pid);
            }
        }
        pid
    }

    fn pid_of_nameless_line(&mut self, space: u32) -> Pid {
        let number = self.ids_of_nameless_lines.get(&space).copied().unwrap_or(0);
        let last = Pid { space, number };
        if self.resolver.processes.is_running(last) {
            return last;
        }
        match self.resolver.processes.first_running(space) {
            Some(first) => {
                self.ids_of_nameless_lines.insert(space, first.number);
                first
            }
            None => last,
        }
    }

    /// Returns whether the line must wait, because several processes are being created and it is
    /// not known which of them this is.
    fn must_wait(&self, pid: Pid) -> bool {
        let processes = &self.resolver.processes;
        processes.awaited(pid.space) > 1 && !processes.is_running(pid)
            || !self.delayed.is_empty() && self.delayed.has_lines_of(pid)
    }

    /// Reads the lines of processes whose parent is known by now; with `all`, also those whose
    /// parent must be guessed.
    fn read_delayed_lines(&mut self, all: bool, output: &mut Output) {
        while let Some((pid, lines)) = self.delayed.take(&self.resolver.processes, all) {
            for DelayedLine { time_us, text, position } in lines {
                let kind = line::parse_line(&text).kind;
                self.known_line(pid, time_us, kind, &text, &|| position.clone(), output);
            }
        }
    }

    /// Ends the trace: unfinished calls are reported without a result.
    pub fn finish(&mut self, output: &mut Output) {
        self.read_delayed_lines(true, output);
        for pid in self.unfinished.pids() {
            self.end_process(pid, output);
        }
    }

    fn skip_truncated(&mut self, text: &[u8], position: &dyn Fn() -> String) {
        self.skipped.truncated += 1;
        self.add_example("truncated", text, position);
    }

    fn add_example(&mut self, reason: &str, text: &[u8], position: &dyn Fn() -> String) {
        if self.skipped.examples.len() < EXAMPLES_MAX {
            let text: String = String::from_utf8_lossy(&text[..text.len().min(4 * EXAMPLE_CHARACTERS_MAX)])
                .chars()
                .take(EXAMPLE_CHARACTERS_MAX)
                .collect();
            self.skipped.examples.push(format!("{}: {reason}: {text}", position()));
        }
    }

    /// Stores the first half of an interrupted call.
    fn begin_call(&mut self, occurrence: Occurrence, text: &[u8], output: &mut Output) {
        let Occurrence { pid, time_us, name } = occurrence;
        let mut unfinished = UnfinishedCall {
            name: name.to_vec(),
            text: Vec::new(),
            time_us,
            began_fork: false,
            closing: None,
        };
        let kind = calls::call_kind(name);
        if kind.is_some() {
            unfinished.text = text.to_vec();
        } else {
            // Stored so that its second half does not count as an orphan.
            self.skipped.other_calls += 1;
        }
        if let (Some(kind), Some(call)) = (kind, line::parse_unfinished(name, text)) {
            let processes = &mut self.resolver.processes;
            match kind {
                // The descriptor's number may be reused before the end of this call is in the log.
                CallKind::File(FileCall { effect: Effect::Close, .. }) => {
                    if let Some(number) = call.descriptor(0).and_then(|d| d.number) {
                        unfinished.closing = processes.descriptor(pid, number).map(|file| (number, file));
                        processes.close(pid, number);
                    }
                }
                CallKind::State(StateCall::Fork(flags)) => {
                    self.resolver.begin_fork(pid, &call, flags);
                    unfinished.began_fork = true;
                }
                _ => {}
            }
        }
        if matches!(kind, Some(CallKind::File(_))) {
            self.resolver.first_call_us(time_us);
        }
        self.unfinished.insert(pid, unfinished);
        if self.unfinished.is_full() {
            self.end_unfinished(pid, output);
        }
    }

    /// Joins the second half of a call with its first half. Returns `false` if the result is
    /// truncated; the call counts nevertheless, because it was made.
    fn resume_call(&mut self, pid: Pid, name: &[u8], rest: &[u8], output: &mut Output) -> bool {
        let is_its = self.unfinished.has_name(pid, name);
        let Some(mut unfinished) = is_its.then(|| self.unfinished.remove(pid)).flatten() else {
            self.skipped.orphans += 1;
            return true;
        };
        let Some(kind) = calls::call_kind(name) else {
            self.skipped.resumed += 1;
            return true;
        };
        let first_half = unfinished.text.len();
        unfinished.text.extend_from_slice(rest);
        if let Some(call) = line::parse_call(name, &unfinished.text) {
            self.skipped.resumed += 1;
            self.interrupted_call(pid, &unfinished, kind, &call, output);
            return true;
        }
        unfinished.text.truncate(first_half);
        self.call_without_result(pid, &unfinished, kind, output);
        false
    }

    /// Ends a process, because it has ended or the trace ends.
    fn end_process(&mut self, pid: Pid, output: &mut Output) {
        if self.unfinished.contains(pid) {
            self.end_unfinished(pid, output);
        }
        // The trace may contain nothing of a process but its end.
        self.resolver.processes.group(pid);
        self.resolver.processes.exit(pid);
    }

    /// Reports a call that never returned.
    fn end_unfinished(&mut self, pid: Pid, output: &mut Output) {
        let Some(unfinished) = self.unfinished.remove(pid) else { return };
        if let Some(kind) = calls::call_kind(&unfinished.name) {
            self.call_without_result(pid, &unfinished, kind, output);
        }
    }

    fn call_without_result(
        &mut self,
        pid: Pid,
        unfinished: &UnfinishedCall,
        kind: CallKind,
        output: &mut Output,
    ) {
        if let Some(call) = line::parse_unfinished(&unfinished.name, &unfinished.text) {
            let counts = matches!(kind, CallKind::File(file) if !file.effect.is_anonymous_map(&call));
            self.skipped.unfinished += u64::from(counts);
            self.interrupted_call(pid, unfinished, kind, &call, output);
        }
    }

    /// Handles a complete call that was interrupted in the log.
    fn interrupted_call(
        &mut self,
        pid: Pid,
        unfinished: &UnfinishedCall,
        kind: CallKind,
        call: &Call,
        output: &mut Output,
    ) {
        // For the event, the descriptor that is being closed refers to its file once more.
        let reused = unfinished.closing.as_ref().map(|(number, file)| {
            let reused = self.resolver.processes.descriptor(pid, *number);
            self.resolver.processes.set(pid, *number, *file);
            (*number, reused)
        });
        let occurrence = Occurrence { pid, time_us: unfinished.time_us, name: &unfinished.name };
        self.call(ParsedCall { occurrence, kind, call, began_fork: unfinished.began_fork }, output);
        if let Some((number, Some(file))) = reused {
            self.resolver.processes.set(pid, number, file);
        }
    }

    fn call(&mut self, parsed: ParsedCall, output: &mut Output) {
        let ParsedCall { occurrence, kind, call, began_fork } = parsed;
        match kind {
            CallKind::State(state_call) => {
                self.skipped.other_calls += 1;
                self.resolver.apply_state_call(occurrence.pid, state_call, call, began_fork);
            }
            CallKind::File(file) if file.effect.is_anonymous_map(call) => self.skipped.other_calls += 1,
            CallKind::File(file) => {
                let event = self.resolver.event(occurrence, file, call, output.map);
                (output.on_event)(&event, output.map);
                self.resolver.apply_event(occurrence.pid, &event, call);
            }
        }
    }
}
