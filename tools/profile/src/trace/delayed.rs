//! Lines of processes whose parent is not known yet. They are read when the parent is known, or
//! when there are too many of them.

use crate::trace::processes::{Pid, ProcessTable};

const BYTES_MAX: usize = 1 << 20;
const PROCESSES_MAX: usize = 256;

#[derive(Debug)]
pub struct DelayedLine {
    pub time_us: u64,
    pub text: Vec<u8>,
    /// File and line number, for examples of lines that cannot be read.
    pub position: String,
}

#[derive(Debug)]
struct ProcessLines {
    pid: Pid,
    lines: Vec<DelayedLine>,
}

#[derive(Debug, Default)]
pub struct DelayedLines {
    processes: Vec<ProcessLines>,
    bytes: usize,
}

impl DelayedLines {
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX || self.processes.len() > PROCESSES_MAX
    }

    pub fn has_lines_of(&self, pid: Pid) -> bool {
        self.processes.iter().any(|process| process.pid == pid)
    }

    pub fn push(&mut self, pid: Pid, line: DelayedLine) {
        self.bytes += bytes_of(&line);
        match self.processes.iter_mut().find(|process| process.pid == pid) {
            Some(process) => process.lines.push(line),
            None => self.processes.push(ProcessLines { pid, lines: vec![line] }),
        }
    }

    /// Removes and returns the lines of one process whose parent is known by now. With `all`, this
    /// may also be a process whose parent must be guessed.
    pub fn take(&mut self, table: &ProcessTable, all: bool) -> Option<(Pid, Vec<DelayedLine>)> {
        let known = self.processes.iter().position(|process| table.is_running(process.pid));
        let single = || self.processes.iter().position(|process| all || table.awaited(process.pid.space) < 2);
        let ProcessLines { pid, lines } = self.processes.remove(known.or_else(single)?);
        self.bytes -= lines.iter().map(bytes_of).sum::<usize>();
        Some((pid, lines))
    }
}

fn bytes_of(line: &DelayedLine) -> usize {
    line.text.len() + line.position.len() + size_of::<DelayedLine>()
}
