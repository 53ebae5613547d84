//! The dependencies of transactions, and the cycles among them.

use std::collections::{BTreeMap, VecDeque};

/// A reason for which a transaction must be after another one. The names are Adya's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dependency {
    /// Both have written, and the second one has the later version (ww).
    WriteWrite,
    /// The second one has read what the first one has written (wr).
    WriteRead,
    /// The first one has read a version that the second one has replaced (rw).
    ReadWrite,
    /// The first one had ended before the second one began.
    RealTime,
}

use Dependency::{ReadWrite, RealTime, WriteRead, WriteWrite};

impl Dependency {
    const ALL: [Dependency; 4] = [WriteWrite, WriteRead, ReadWrite, RealTime];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    fn text(self) -> &'static str {
        match self {
            WriteWrite => "wrote before",
            WriteRead => "was read by",
            ReadWrite => "read before the write of",
            RealTime => "ended before the beginning of",
        }
    }
}

fn bits(kinds: &[Dependency]) -> u8 {
    kinds.iter().fold(0, |bits, kind| bits | kind.bit())
}

/// The dependencies of the transactions of a history.
pub(super) struct Graph {
    /// For each transaction, the transactions that must be after it, with the bits of the reasons.
    edges: Vec<BTreeMap<usize, u8>>,
    /// The number of the node that has written the first versions.
    initial: usize,
}

impl Graph {
    /// Returns the graph of a number of transactions, with one more node, for the initial state.
    pub(super) fn new(transactions: usize) -> Graph {
        Graph { edges: vec![BTreeMap::new(); transactions + 1], initial: transactions }
    }

    /// Returns the node that has written the first version of each object.
    pub(super) fn initial(&self) -> usize {
        self.initial
    }

    pub(super) fn add(&mut self, before: usize, after: usize, kind: Dependency) {
        if before != after {
            *self.edges[before].entry(after).or_insert(0) |= kind.bit();
        }
    }

    /// Returns the name of the anomaly and a description of a cycle, if there is one. Of several
    /// anomalies, returns the one that the weakest isolation level excludes.
    pub(super) fn anomaly(&self) -> Option<String> {
        let all = bits(&Dependency::ALL);
        let any = self.cycle(all)?;
        let cycles = |kinds: &[Dependency]| self.cycle(bits(kinds));
        let found = None
            .or_else(|| Some(("G0", cycles(&[WriteWrite])?)))
            .or_else(|| Some(("G0-realtime", cycles(&[WriteWrite, RealTime])?)))
            .or_else(|| Some(("G1c", cycles(&[WriteWrite, WriteRead])?)))
            .or_else(|| Some(("G1c-realtime", cycles(&[WriteWrite, WriteRead, RealTime])?)))
            .or_else(|| Some(("G-single", self.single(bits(&[WriteWrite, WriteRead]))?)))
            .or_else(|| Some(("G-single-realtime", self.single(bits(&[WriteWrite, WriteRead, RealTime]))?)))
            .or_else(|| Some(("G2", cycles(&[WriteWrite, WriteRead, ReadWrite])?)))
            .unwrap_or(("G2-realtime", any));
        let (name, nodes) = found;
        Some(format!("{name}: a cycle of dependencies: {}", self.describe(&nodes)))
    }

    fn describe(&self, nodes: &[usize]) -> String {
        let name = |node: usize| match node == self.initial {
            true => "the initial state".to_owned(),
            false => node.to_string(),
        };
        let step = |pair: &[usize]| {
            let reasons = self.edges[pair[0]][&pair[1]];
            let kind = Dependency::ALL.into_iter().find(|kind| reasons & kind.bit() != 0);
            format!("{} {} ", name(pair[0]), kind.map_or("", Dependency::text))
        };
        let steps: String = nodes.windows(2).map(step).collect();
        steps + &name(nodes[0])
    }

    fn after(&self, node: usize, allowed: u8) -> impl Iterator<Item = usize> {
        self.edges[node].iter().filter(move |(_, reasons)| **reasons & allowed != 0).map(|(after, _)| *after)
    }

    /// Returns the nodes of a cycle of edges with an allowed reason; the first is also the last.
    /// Without recursion: a history may be long.
    fn cycle(&self, allowed: u8) -> Option<Vec<usize>> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            OnPath,
            Done,
        }
        let mut states = vec![State::New; self.edges.len()];
        for start in 0..self.edges.len() {
            if states[start] != State::New {
                continue;
            }
            let mut path = vec![(start, self.after(start, allowed))];
            states[start] = State::OnPath;
            while let Some((node, next)) = path.last_mut() {
                match next.next() {
                    Some(after) if states[after] == State::OnPath => {
                        let begin = path.iter().position(|(node, _)| *node == after).unwrap_or(0);
                        let mut nodes: Vec<usize> = path[begin..].iter().map(|(node, _)| *node).collect();
                        nodes.push(after);
                        return Some(nodes);
                    }
                    Some(after) if states[after] == State::New => {
                        states[after] = State::OnPath;
                        path.push((after, self.after(after, allowed)));
                    }
                    Some(_) => {}
                    None => {
                        states[*node] = State::Done;
                        path.pop();
                    }
                }
            }
        }
        None
    }

    /// Returns the nodes of a cycle with one anti-dependency and otherwise only allowed reasons.
    fn single(&self, allowed: u8) -> Option<Vec<usize>> {
        for (reader, edges) in self.edges.iter().enumerate() {
            for (writer, _) in edges.iter().filter(|(_, reasons)| **reasons & ReadWrite.bit() != 0) {
                if let Some(mut path) = self.path(*writer, reader, allowed) {
                    path.insert(0, reader);
                    return Some(path);
                }
            }
        }
        None
    }

    /// Returns the nodes of a path of edges with an allowed reason.
    fn path(&self, from: usize, to: usize, allowed: u8) -> Option<Vec<usize>> {
        let mut found_from: Vec<Option<usize>> = vec![None; self.edges.len()];
        let mut waiting = VecDeque::from([from]);
        while let Some(node) = waiting.pop_front() {
            if node == to {
                let mut path = vec![to];
                while let Some(last) = path.last().filter(|last| **last != from) {
                    path.push(found_from[*last]?);
                }
                path.reverse();
                return Some(path);
            }
            for after in self.after(node, allowed) {
                if after != from && found_from[after].is_none() {
                    found_from[after] = Some(node);
                    waiting.push_back(after);
                }
            }
        }
        None
    }
}
