//! Random histories of processes, created by a model that knows the file of each descriptor. The
//! same history, written in the different formats of strace, must give the model's own counts, and
//! the same report each time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::analysis::readings::FirstReading;
use crate::locations::{LocationRules, MountPoint, NoLinks, PathMap, UnknownDirectories};
use crate::report::Report;
use crate::trace::calls::{CallKind, Class, call_kind};
use crate::trace::event::{CallTarget, Event};
use crate::trace::reader::{LineSource, Output, Reader};

/// A small random number generator: the same seed gives the same history.
struct Random(u64);

impl Random {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.below(sides) == 0
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

#[derive(Clone, PartialEq)]
enum Target {
    File(String),
    Pipe,
}

type Files = Rc<RefCell<BTreeMap<i32, (Target, bool)>>>;

#[derive(Clone)]
struct Process {
    pid: u32,
    files: Files,
    working: Rc<RefCell<String>>,
    /// The step at which the process's current call ends.
    busy_until: usize,
}

/// A call in a form that is common to all formats of strace; `{n}` stands for a descriptor, `@` for
/// AT_FDCWD.
struct TracedCall {
    pid: u32,
    begin: usize,
    /// The same step as `begin` if no other call interrupted it.
    end: usize,
    text: String,
    /// The files of `{n}` and `@`, in their order.
    are: Vec<String>,
    /// The offset in `text` at which the line was interrupted.
    cut: usize,
}

/// A call as the model knows it: its name, and the path that it refers to.
type TrueCall = (String, String);

struct History {
    calls: Vec<TracedCall>,
    truth: Vec<TrueCall>,
    processes: usize,
    reuses_pids: bool,
}

const DIRECTORIES: [&str; 6] = ["/sw/env/lib", "/sw/env/bin", "/home/u/job", "/tmp", "/usr/lib", "/data/in"];
const NAMES: [&str; 6] = ["liba.so", "b.py", "c", "d.txt", "e>f", "g h"];

struct Model {
    random: Random,
    running: Vec<Process>,
    history: History,
    step: usize,
    next_pid: u32,
    /// Whether there are threads, and processes that share a working directory.
    shares: bool,
    /// Children, and the steps at which the calls that created them end.
    begun: Vec<(u32, usize)>,
}

/// Escapes a path as `-y` does.
fn escaped(path: &str) -> String {
    path.replace('>', "\\76").replace('<', "\\74")
}

impl Model {
    fn history(seed: u64, steps: usize) -> History {
        let first = Process {
            pid: 100,
            files: Rc::default(),
            working: Rc::new(RefCell::new("/home/u/job".into())),
            busy_until: 0,
        };
        let history = History {
            calls: Vec::new(),
            truth: Vec::new(),
            processes: 1,
            reuses_pids: seed.is_multiple_of(2),
        };
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut model = Model {
            random,
            running: vec![first],
            history,
            step: 0,
            next_pid: 101,
            shares: seed.is_multiple_of(3),
            begun: vec![],
        };
        // A program starts with three descriptors.
        for _ in 0..3 {
            model.step = model.running[0].busy_until + 1;
            model.open(0);
        }
        for _ in 0..steps {
            model.step += 1;
            let free: Vec<usize> =
                (0..model.running.len()).filter(|p| model.running[*p].busy_until < model.step).collect();
            if !free.is_empty() {
                let which = free[model.random.below(free.len())];
                model.act(which);
            }
        }
        model.history
    }

    fn is_shared(&self, which: usize) -> bool {
        Rc::strong_count(&self.running[which].files) > 1 || Rc::strong_count(&self.running[which].working) > 1
    }

    /// Records one call. `concerned`: the path to which the call refers, if the call is counted.
    fn say(
        &mut self,
        which: usize,
        text: String,
        are: Vec<String>,
        concerned: Option<String>,
        may_wait: bool,
    ) {
        // Processes that share descriptors would need an order of their calls.
        let often = if text.contains("fork(") || text.contains("clone(") { 2 } else { 4 };
        let waits = may_wait && !self.is_shared(which) && self.random.one_in(often);
        let end = if waits { self.step + 1 + self.random.below(12) } else { self.step };
        self.running[which].busy_until = end;
        // strace has written the arguments that are inputs, or some of them.
        let last = text.rfind(" = ").map_or(text.len(), |at| text[..at].rfind(')').unwrap_or(at));
        let first = text.find('(').unwrap() + 1;
        let commas: Vec<usize> =
            text[first..last].match_indices(", ").map(|(at, _)| first + at + 1).chain([last]).collect();
        // Descriptors can be followed only if all arguments are known before the end of the call.
        let cut = *commas.last().unwrap();
        if let Some(path) = concerned {
            self.history.truth.push((text[..first - 1].to_owned(), path));
        }
        let pid = self.running[which].pid;
        self.history.calls.push(TracedCall { pid, begin: self.step, end, text, are, cut });
    }

    fn path(&mut self) -> String {
        format!("{}/{}", self.random.of(&DIRECTORIES), self.random.of(&NAMES))
    }

    /// Returns a path as a program writes it, and the absolute path that it refers to.
    fn written(&mut self, which: usize) -> (String, String) {
        let path = self.path();
        let working = self.running[which].working.borrow().clone();
        match self.random.below(3) {
            0 => {
                let name = self.random.of(&NAMES);
                (format!("./{name}"), format!("{working}/{name}"))
            }
            1 => (format!("{}x/..//{}", "/", &path[1..]), path),
            _ => (path.clone(), path),
        }
    }

    /// Returns a descriptor that the process has open.
    fn descriptor(&mut self, which: usize) -> Option<(i32, String)> {
        let files = self.running[which].files.clone();
        let files = files.borrow();
        let (number, (target, _)) = files.iter().nth(self.random.below(files.len().max(1)))?;
        Some((*number, shown(target)))
    }

    fn free_number(&self, which: usize) -> i32 {
        let files = self.running[which].files.borrow();
        (0..).find(|n| !files.contains_key(n)).unwrap()
    }

    fn set(&self, which: usize, number: i32, target: Target, on_exec: bool) {
        self.running[which].files.borrow_mut().insert(number, (target, on_exec));
    }

    fn open(&mut self, which: usize) {
        let (written, path) = self.written(which);
        let working = self.running[which].working.borrow().clone();
        if self.random.one_in(4) {
            let text = format!(r#"openat(@, "{written}", O_RDONLY) = -1 ENOENT (No such file or directory)"#);
            return self.say(which, text, vec![working], Some(path), true);
        }
        let on_exec = self.random.one_in(2);
        let flags = if on_exec { "O_RDONLY|O_CLOEXEC" } else { "O_RDWR|O_CREAT, 0666" };
        let number = self.free_number(which);
        let text = format!(r#"openat(@, "{written}", {flags}) = {{{number}}}"#);
        self.set(which, number, Target::File(path.clone()), on_exec);
        self.say(which, text, vec![working, path.clone()], Some(path), true);
    }

    fn act(&mut self, which: usize) {
        let descriptor = self.descriptor(which);
        let kind = self.random.below(30);
        match (kind, descriptor) {
            (0..=4, _) => self.open(which),
            (5..=8, _) => {
                let (written, path) = self.written(which);
                let text = match kind {
                    5 => format!(r#"stat("{written}", {{st_mode=S_IFREG|0644, st_size=9, ...}}) = 0"#),
                    6 => format!(r#"access("{written}", R_OK) = -1 ENOENT (No such file or directory)"#),
                    7 => format!(r#"unlink("{written}") = 0"#),
                    _ => format!(
                        r#"readlink("{written}", 0x7ffd8d4a4068, 4095) = -1 EINVAL (Invalid argument)"#
                    ),
                };
                self.say(which, text, vec![], Some(path), true);
            }
            (9, Some((number, what))) => {
                let name = self.random.of(&NAMES);
                let concerned = if what == "-" { what.clone() } else { format!("{what}/{name}") };
                let text = format!(r#"newfstatat({{{number}}}, "{name}", {{st_size=1}}, 0) = 0"#);
                self.say(which, text, vec![what], Some(concerned), true);
            }
            (10 | 11, Some((number, what))) => {
                let name = self.random.of(&["read", "write", "pread64"]);
                let offset = if name == "pread64" { ", 0" } else { "" };
                let text = format!(r#"{name}({{{number}}}, "a) = 3, <\"...", 100{offset}) = 77"#);
                self.say(which, text, vec![what.clone()], Some(what), true);
            }
            (12, Some((number, what))) => {
                let text = format!("fstat({{{number}}}, {{st_mode=S_IFREG|0644, st_size=9, ...}}) = 0");
                self.say(which, text, vec![what.clone()], Some(what), true);
            }
            (13, Some((number, what))) => {
                let text =
                    format!("mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, {{{number}}}, 0) = 0x7f6727514000");
                self.say(which, text, vec![what.clone()], Some(what), true);
            }
            (14, _) => {
                let text = "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f6727514000";
                self.say(which, text.into(), vec![], None, true);
            }
            (15 | 16, Some((number, what))) => {
                self.running[which].files.borrow_mut().remove(&number);
                self.say(which, format!("close({{{number}}}) = 0"), vec![what.clone()], Some(what), true);
            }
            (17, Some((number, what))) => self.duplicate(which, number, what),
            (18, Some((number, _))) => {
                let on_exec = self.random.one_in(2);
                let target = self.running[which].files.borrow()[&number].0.clone();
                let what = shown(&target);
                self.set(which, number, target, on_exec);
                let flags = if on_exec { "FD_CLOEXEC" } else { "0" };
                self.say(
                    which,
                    format!("fcntl({{{number}}}, F_SETFD, {flags}) = 0"),
                    vec![what],
                    None,
                    false,
                );
            }
            (19, _) => {
                let number = self.free_number(which);
                self.set(which, number, Target::Pipe, false);
                let other = self.free_number(which);
                self.set(which, other, Target::Pipe, false);
                let are = vec!["-".to_owned(); 2];
                self.say(which, format!("pipe2([{{{number}}}, {{{other}}}], 0) = 0"), are, None, false);
            }
            (20, _) => {
                let number = self.free_number(which);
                self.set(which, number, Target::Pipe, false);
                let text = format!("socket(AF_UNIX, SOCK_STREAM, 0) = {{{number}}}");
                self.say(which, text, vec!["-".into()], None, false);
            }
            (21, _) => {
                let path = self.random.of(&DIRECTORIES).to_owned();
                *self.running[which].working.borrow_mut() = path.clone();
                self.say(which, format!(r#"chdir("{path}") = 0"#), vec![], Some(path), true);
            }
            (22, Some((number, what))) if what != "-" => {
                *self.running[which].working.borrow_mut() = what.clone();
                self.say(which, format!("fchdir({{{number}}}) = 0"), vec![what.clone()], Some(what), true);
            }
            (23..=25, _) if self.running.len() < 12 => self.fork(which),
            (26, _) if !self.is_shared(which) => {
                let path = self.path();
                if self.random.one_in(2) {
                    let text = format!(r#"execve("{path}", ["x"], 0x7ffd /* 3 vars */) = -1 ENOENT (No)"#);
                    return self.say(which, text, vec![], Some(path), true);
                }
                self.running[which].files.borrow_mut().retain(|_, (_, on_exec)| !*on_exec);
                let text = format!(r#"execve("{path}", ["x", "<y>"], 0x7ffd /* 3 vars */) = 0"#);
                self.say(which, text, vec![], Some(path), true);
            }
            (27, _) if self.running.len() > 1 => {
                let pid = self.running.remove(which).pid;
                let text = "+++ exited with 0 +++".to_owned();
                let cut = text.len();
                let (begin, end) = (self.step, self.step);
                self.history.calls.push(TracedCall { pid, begin, end, text, are: vec![], cut });
            }
            (28, _) => {
                let first = 3 + self.random.below(6) as i32;
                self.running[which].files.borrow_mut().retain(|n, _| *n < first);
                self.say(which, format!("close_range({first}, 4294967295, 0) = 0"), vec![], None, false);
            }
            _ => {
                let text = self.random.of(&["brk(NULL) = 0x5581", "futex(0x7f, FUTEX_WAIT, 2, NULL) = 0"]);
                self.say(which, text.to_owned(), vec![], None, true);
            }
        }
    }

    fn duplicate(&mut self, which: usize, number: i32, what: String) {
        let target = self.running[which].files.borrow()[&number].0.clone();
        let free = self.free_number(which);
        let high =
            (free..).find(|n| *n >= 10 && !self.running[which].files.borrow().contains_key(n)).unwrap();
        let any = 3 + self.random.below(9) as i32;
        let (text, to, on_exec) = match self.random.below(5) {
            0 => (format!("dup({{{number}}}) = {{{free}}}"), free, false),
            1 => (format!("fcntl({{{number}}}, F_DUPFD, 10) = {{{high}}}"), high, false),
            2 => (format!("fcntl({{{number}}}, F_DUPFD_CLOEXEC, 10) = {{{high}}}"), high, true),
            3 if any != number => (format!("dup2({{{number}}}, {any}) = {{{any}}}"), any, false),
            _ if any != number => (format!("dup3({{{number}}}, {any}, O_CLOEXEC) = {{{any}}}"), any, true),
            _ => (format!("fcntl({{{number}}}, F_GETFL) = 0x8000"), number, false),
        };
        if to != number {
            self.set(which, to, target, on_exec);
        }
        self.say(which, text, vec![what.clone(), what], None, false);
    }

    fn fork(&mut self, which: usize) {
        let pid = if self.history.reuses_pids {
            // The smallest unused process id, so that ids are reused as soon as possible. An id is
            // not reused before its parent's call has returned.
            let found =
                |pid: &u32| self.begun.iter().all(|(child, until)| child != pid || *until < self.step);
            (100..).filter(found).find(|pid| self.running.iter().all(|p| p.pid != *pid)).unwrap()
        } else {
            self.next_pid
        };
        self.next_pid += 1;
        let thread = self.shares && self.random.one_in(4);
        // In a block, so that no reference to the parent's tables remains: a process that shares
        // nothing may be interrupted.
        let (text, files, working) = {
            let Process { files, working, .. } = self.running[which].clone();
            match (thread, self.random.below(4)) {
                (true, _) => {
                    let flags = "CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD";
                    let text = format!("clone3({{flags={flags}, exit_signal=0, stack=0x7f}}, 88) = {pid}");
                    (text, files, working)
                }
                (_, kind) => {
                    let files = Rc::new(RefCell::new(files.borrow().clone()));
                    let own = Rc::new(RefCell::new(working.borrow().clone()));
                    match kind {
                        0 => (format!("vfork() = {pid}"), files, own),
                        1 if self.shares => {
                            let text = format!("clone(child_stack=0x7f, flags=CLONE_FS|SIGCHLD) = {pid}");
                            (text, files, working)
                        }
                        _ => {
                            let flags = "CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD";
                            let text =
                                format!("clone(child_stack=NULL, flags={flags}, child_tidptr=0x7f) = {pid}");
                            (text, files, own)
                        }
                    }
                }
            }
        };
        self.history.processes += usize::from(!thread);
        // The child may run before this call returns; a thread starts after it.
        let may_wait = !text.contains("CLONE_F");
        self.say(which, text, vec![], None, may_wait);
        self.begun.push((pid, self.running[which].busy_until));
        let busy_until = if may_wait { self.step } else { self.running[which].busy_until };
        self.running.push(Process { pid, files, working, busy_until });
    }
}

fn shown(target: &Target) -> String {
    match target {
        Target::File(path) => path.clone(),
        Target::Pipe => "-".into(),
    }
}

/// The options of strace.
#[derive(Debug, Clone, Copy)]
struct TraceFormat {
    annotates: bool,
    interrupts: bool,
    times: bool,
}

impl TracedCall {
    fn text(&self, format: TraceFormat) -> (String, usize) {
        let (mut out, mut cut) = (String::new(), 0);
        let mut are = self.are.iter();
        let mut quoted = false;
        let mut characters = self.text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            if at == self.cut {
                cut = out.len();
            }
            match character {
                '"' if !self.text[..at].ends_with('\\') => {
                    quoted = !quoted;
                    out.push('"');
                }
                '@' if !quoted => {
                    let working = are.next().unwrap();
                    out.push_str("AT_FDCWD");
                    if format.annotates {
                        out.push_str(&format!("<{}>", escaped(working)));
                    }
                }
                '{' if !quoted && characters.peek().is_some_and(|(_, c)| c.is_ascii_digit()) => {
                    for (_, digit) in characters.by_ref().take_while(|(_, c)| *c != '}') {
                        out.push(digit);
                    }
                    let what = are.next().unwrap();
                    if format.annotates {
                        let what = if what == "-" { "pipe:[5]".to_owned() } else { escaped(what) };
                        out.push_str(&format!("<{what}>"));
                    }
                }
                other => out.push(other),
            }
        }
        (out, if self.cut == self.text.len() { self.text.len() } else { cut })
    }
}

impl History {
    /// Returns the lines as `strace -f -o` writes them.
    fn lines(&self, format: TraceFormat) -> Vec<String> {
        let mut lines: Vec<((usize, usize), String)> = Vec::new();
        let time = |step: usize| match format.times {
            true => format!("1700000000.{step:06} "),
            false => String::new(),
        };
        for (number, calls) in self.calls.iter().enumerate() {
            let (text, cut) = calls.text(format);
            let head = |step| format!("{} {}", calls.pid, time(step));
            if calls.end == calls.begin || !format.interrupts {
                lines.push(((calls.begin, number), format!("{}{text}", head(calls.begin))));
                continue;
            }
            let name = &text[..text.find('(').unwrap()];
            let begin = format!("{}{} <unfinished ...>", head(calls.begin), &text[..cut]);
            lines.push(((calls.begin, number), begin));
            let end = format!("{}<... {name} resumed>{}", head(calls.end), &text[cut..]);
            // The interrupted process continues before others do anything at the same step.
            lines.push(((calls.end - 1, usize::MAX - calls.begin), end));
        }
        lines.sort_by_key(|(at, _)| *at);
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

fn location_rules() -> LocationRules {
    let mount = |point: &str, kind: &str| MountPoint { point: point.into(), file_system: kind.into() };
    LocationRules {
        mounts: vec![mount("/", "ext4"), mount("/sw", "lustre"), mount("/home", "nfs4")],
        shared: vec![b"/data".to_vec()],
        temporary: vec![b"/tmp".to_vec()],
        working: Some(b"/home/u/job".to_vec()),
        home: Some(b"/home/u".to_vec()),
    }
}

const SOURCE: LineSource = LineSource { space: 0, pid: 0 };

/// Returns the names and paths in alphabetical order, and the number of processes.
fn read_events(lines: &[String]) -> (Vec<TrueCall>, usize) {
    let (location_rules, mut links) = (location_rules(), NoLinks);
    let mut map = PathMap::new(&location_rules, &mut links);
    let mut truth = Vec::new();
    let working = map.resolve(crate::paths::PathId::ROOT, b"/home/u/job", true);
    let mut reader = Reader::new(Some(working));
    let mut on_event = |event: &Event, map: &mut PathMap| {
        let path = match event.target {
            CallTarget::File(path) => map.paths.text(path),
            CallTarget::NoFile => "-".into(),
            CallTarget::Unknown => "unknown".into(),
            CallTarget::Invalid => "bad".into(),
        };
        truth.push((String::from_utf8_lossy(event.name).into_owned(), path));
    };
    let mut output = Output { map: &mut map, on_event: &mut on_event };
    for line in lines {
        reader.line(SOURCE, line.as_bytes(), &String::new, &mut output);
    }
    reader.finish(&mut output);
    let skipped = &reader.skipped;
    let others = skipped.other_calls + skipped.events + skipped.resumed + skipped.orphans;
    assert_eq!(
        reader.lines,
        truth.len() as u64 + others + skipped.truncated + skipped.foreign,
        "each line counts once"
    );
    assert_eq!(
        (skipped.orphans, skipped.truncated, skipped.foreign),
        (0, 0, 0),
        "{:?}\n{}",
        skipped.examples,
        lines.join("\n")
    );
    truth.sort();
    (truth, reader.resolver.processes.groups as usize)
}

fn report(lines: &[(LineSource, String)]) -> Report {
    let mut links = NoLinks;
    let mut first = FirstReading::new(&location_rules(), Vec::new(), &mut links);
    for (source, line) in lines {
        first.line(*source, line.as_bytes(), String::new);
    }
    let calls = first.end().calls;
    let mut second = first.choose(1.0, &mut UnknownDirectories);
    for (source, line) in lines {
        second.line(*source, line.as_bytes());
    }
    let report = second.report(None);
    assert_eq!(report.totals.calls, calls);
    report
}

fn lines_of_one_file(lines: &[String]) -> Vec<(LineSource, String)> {
    lines.iter().map(|line| (SOURCE, line.clone())).collect()
}

/// Removes the parts of a report that depend on the format of the trace.
fn comparable(mut report: Report) -> Report {
    report.totals.lines = 0;
    report.totals.skipped = Default::default();
    report
}

const SEEDS: u64 = 60;
const STEPS: usize = 400;

fn trace_formats() -> impl Iterator<Item = TraceFormat> {
    (0..8).map(|n| TraceFormat { annotates: n & 1 > 0, interrupts: n & 2 > 0, times: n & 4 > 0 })
}

#[test]
fn every_call_refers_to_the_right_file() {
    for seed in 1..=SEEDS {
        let history = Model::history(seed, STEPS);
        let mut truth = history.truth.clone();
        truth.sort();
        for format in trace_formats() {
            let lines = history.lines(format);
            let (found, processes) = read_events(&lines);
            if let Some((found, truth)) = found.iter().zip(&truth).find(|(a, b)| a != b) {
                panic!("seed {seed}, {format:?}: {found:?} was {truth:?}\n{}", lines.join("\n"));
            }
            assert_eq!((found.len(), processes), (truth.len(), history.processes), "seed {seed}, {format:?}");
        }
    }
}

#[test]
fn a_report_does_not_depend_on_the_format_of_the_trace() {
    for seed in 1..=SEEDS {
        let history = Model::history(seed, STEPS);
        let read = |format| comparable(report(&lines_of_one_file(&history.lines(format))));
        for (interrupts, times) in [(false, true), (true, true), (true, false)] {
            let plain = read(TraceFormat { annotates: false, interrupts, times });
            let annotated = read(TraceFormat { annotates: true, interrupts, times });
            assert_eq!(plain, annotated, "seed {seed}, interrupted {interrupts}, times {times}");
        }
    }
}

#[test]
fn totals_equal_those_of_the_model() {
    for seed in 1..=SEEDS {
        let history = Model::history(seed, STEPS);
        let mut by_call: BTreeMap<String, u64> = BTreeMap::new();
        let mut paths = BTreeSet::new();
        let (mut of_class, mut no_file) = ([0, 0], 0);
        for (name, path) in &history.truth {
            *by_call.entry(name.clone()).or_default() += 1;
            let Some(CallKind::File(call)) = call_kind(name.as_bytes()) else { panic!("{name}") };
            if path == "-" {
                no_file += 1;
            } else {
                of_class[usize::from(call.class == Class::Data)] += 1;
                paths.insert(path);
            }
        }
        let report = report(&lines_of_one_file(&history.lines(TraceFormat {
            annotates: false,
            interrupts: true,
            times: true,
        })));
        let totals = &report.totals;
        assert_eq!(totals.by_call, by_call, "seed {seed}");
        assert_eq!([totals.metadata, totals.data], of_class, "seed {seed}");
        assert_eq!((totals.elsewhere.no_file, totals.elsewhere.unknown), (no_file, 0), "seed {seed}");
        assert_eq!(totals.paths, paths.len() as u64, "seed {seed}");
        assert_eq!(totals.processes, history.processes as u64, "seed {seed}");
        let locations = &report.locations;
        let each = [&locations.cwd, &locations.tmp, &locations.shared, &locations.local];
        assert_eq!(each.iter().map(|p| p.metadata).sum::<u64>(), totals.metadata);
        assert_eq!(each.iter().map(|p| p.data).sum::<u64>(), totals.data);
        assert_eq!(report.operations.iter().map(|o| o.calls).sum::<u64>(), totals.calls);
        assert_eq!(report.operations.iter().map(|o| o.missing).sum::<u64>(), totals.missing);
        let of_files = report.operations.iter().filter(|o| o.location != "elsewhere");
        assert_eq!(of_files.map(|o| o.bytes_read).sum::<u64>(), totals.bytes_read);
        assert!(totals.failed >= totals.missing);
    }
}

#[test]
fn a_file_for_each_process_gives_the_same_report() {
    let format = TraceFormat { annotates: false, interrupts: false, times: true };
    for seed in (1..=SEEDS).filter(|seed| !seed.is_multiple_of(2)) {
        let history = Model::history(seed, STEPS);
        assert!(!history.reuses_pids);
        let one = lines_of_one_file(&history.lines(format));
        let many: Vec<(LineSource, String)> = one
            .iter()
            .map(|(_, line)| {
                let (pid, rest) = line.split_once(' ').unwrap();
                (LineSource { space: 0, pid: pid.parse().unwrap() }, rest.to_owned())
            })
            .collect();
        assert_eq!(comparable(report(&one)), comparable(report(&many)), "seed {seed}");
    }
}

#[test]
fn ranks_with_equal_pids_are_separate() {
    for seed in 1..=10 {
        let format = TraceFormat { annotates: false, interrupts: true, times: true };
        let ranks = [Model::history(seed, STEPS), Model::history(seed + 100, STEPS)];
        let mut both: Vec<(LineSource, String)> = Vec::new();
        for (space, rank) in ranks.iter().enumerate() {
            let source = LineSource { space: space as u32, pid: 0 };
            both.extend(rank.lines(format).into_iter().map(|line| (source, line)));
        }
        both.sort_by_key(|(_, line)| line.split(' ').nth(1).map(str::to_owned));
        let together = report(&both).totals;
        let each = ranks.map(|rank| report(&lines_of_one_file(&rank.lines(format))).totals);
        assert_eq!(together.calls, each[0].calls + each[1].calls);
        assert_eq!(together.metadata, each[0].metadata + each[1].metadata);
        assert_eq!(together.processes, each[0].processes + each[1].processes);
        assert_eq!(together.elsewhere.unknown, 0);
    }
}

#[test]
fn truncated_lines_and_garbage_count_once() {
    for seed in 1..=SEEDS {
        let history = Model::history(seed, STEPS);
        let format = TraceFormat { annotates: seed.is_multiple_of(3), interrupts: true, times: true };
        let mut random = Random(seed);
        let mut lines = Vec::new();
        for line in history.lines(format) {
            let mut bytes = line.into_bytes();
            match random.below(12) {
                0 => bytes.truncate(random.below(bytes.len())),
                1 => drop(bytes.drain(..random.below(bytes.len()))),
                2 => lines.push(b"\x00\xffnot of strace = 3 <unfinished ...>".to_vec()),
                3 => bytes.push(b'\r'),
                4 => continue,
                5 => lines.push(bytes.clone()),
                _ => {}
            }
            lines.push(bytes);
        }
        let mut links = NoLinks;
        let mut first = FirstReading::new(&location_rules(), Vec::new(), &mut links);
        for line in &lines {
            first.line(SOURCE, line, || "a:1".into());
        }
        let calls = first.end().calls;
        let mut second = first.choose(2.0, &mut UnknownDirectories);
        for line in &lines {
            second.line(SOURCE, line);
        }
        let totals = second.report(None).totals;
        let s = &totals.skipped;
        let others = s.other_calls + s.events + s.resumed + s.orphans + s.truncated + s.foreign;
        assert_eq!(totals.lines, calls + others, "seed {seed}");
        assert_eq!(totals.lines, lines.len() as u64);
    }
}
