//! Clients that perform random operations on a few names and record them, and the faults that
//! happen meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use quell_testkit::linearizability::{History, Name, NameOperation, NameResult};
use quell_vfs::{ErrorKind, Rename};
use quell_wire::pool::{FileId, Matching, NewKind, NodeKind, Operation, RenameMode, Reply, XattrMode};

use super::cluster::{Client, Cluster};
use super::contents::{Contents, InChunks};
use super::time::SimulationRuntime;
use crate::member::is_unknown;

const NAMES: u8 = 3;
/// The largest number of attempts of an operation that conflicts with others.
const ATTEMPTS_MAX: u32 = 40;

/// The state that clients share.
#[derive(Default)]
pub struct Shared {
    pub history: RefCell<History>,
    pub contents: RefCell<Contents>,
    /// Directories that clients have seen.
    dirs: RefCell<Vec<u64>>,
    pub clients_running: Cell<usize>,
    /// Files to which a client had a reference, and which were removed.
    pub lost_files: Cell<usize>,
    /// The number of operations whose result is not known although the member of the client has not
    /// ended.
    pub unknown: Cell<usize>,
    /// The longest time of an operation.
    pub longest: Cell<Duration>,
    /// The objects that most operations use.
    focus: Focus,
}

/// The objects that most operations use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Focus {
    #[default]
    Names,
    /// Directories, which are moved.
    Dirs,
    /// The contents of a few files.
    Contents,
}

impl Shared {
    pub fn new(focus: Focus) -> Rc<Shared> {
        let shared = Shared { focus, ..Shared::default() };
        shared.dirs.borrow_mut().push(FileId::ROOT.0);
        Rc::new(shared)
    }

    fn see(&self, id: u64, is_dir: bool) {
        let mut dirs = self.dirs.borrow_mut();
        if is_dir && dirs.len() < 5 && !dirs.contains(&id) {
            dirs.push(id);
        }
    }
}

/// The time after the end of its member within which a client must connect again to keep its
/// references.
const RECONNECTION_LIMIT: Duration = Duration::from_secs(30);

/// Performs `operations` random operations. After an operation without a result, a new client of a
/// random member continues. If the member of the earlier client has ended, the new client makes the
/// references of the earlier one again.
pub async fn run_client(cluster: Rc<Cluster>, shared: Rc<Shared>, operations: usize) {
    let runtime = Rc::clone(&cluster.runtime);
    let mut left = operations;
    let (mut held, mut lost) = (Vec::new(), Duration::ZERO);
    while left > 0 {
        let member = runtime.below(usize::from(cluster.members())) as u16;
        let Some(client) = cluster.connect(member) else {
            runtime.sleep(runtime.below_time(Duration::from_secs(1))).await;
            continue;
        };
        let held_before = std::mem::take(&mut held);
        let mut process =
            Process { client, shared: &shared, held: held_before, in_chunks: InChunks::default() };
        let has_held = process.hold_again(runtime.now() < lost + RECONNECTION_LIMIT).await;
        if !has_held {
            held = std::mem::take(&mut process.held);
            process.client.end();
            runtime.sleep(runtime.below_time(Duration::from_secs(1))).await;
            continue;
        }
        while left > 0 {
            left -= 1;
            pause(&runtime).await;
            let uses_file =
                if shared.focus == Focus::Contents { !runtime.one_in(4) } else { runtime.one_in(3) };
            let goes_on = match uses_file {
                true => process.use_a_file(&cluster).await,
                false => process.use_a_name(&cluster).await,
            };
            if !goes_on {
                break;
            }
        }
        if !process.client.is_connected() {
            held = std::mem::take(&mut process.held);
            lost = runtime.now();
        }
        process.client.end();
    }
    shared.clients_running.set(shared.clients_running.get() - 1);
}

/// Waits for a short time, or until the next second, so that operations of several clients and
/// faults coincide.
async fn pause(runtime: &Rc<SimulationRuntime>) {
    if runtime.one_in(4) {
        let next = Duration::from_secs(runtime.now().as_secs() + 1);
        runtime.sleep_until(next).await;
    }
    runtime.sleep(runtime.below_time(Duration::from_millis(2))).await;
}

/// A client process of one start of a member. It ends with the first operation without a result.
pub struct Process<'a> {
    pub client: Client,
    pub shared: &'a Shared,
    held: Vec<(FileId, NodeKind)>,
    pub in_chunks: InChunks,
}

impl Process<'_> {
    /// Makes the references of an earlier client again. Returns false if there is no result.
    async fn hold_again(&mut self, must_exist: bool) -> bool {
        if self.held.is_empty() {
            return true;
        }
        let hold = Operation::Hold { ids: self.held.iter().map(|(id, _)| *id).collect() };
        let missing = match self.client.perform(&hold).await {
            Some(Ok(Reply::Missing(missing))) => missing,
            Some(Ok(reply)) => panic!("{reply:?}"),
            Some(Err(_)) | None => return false,
        };
        let lost = self.held.extract_if(.., |(id, _)| missing.contains(id));
        let files = lost.filter(|(_, kind)| *kind == NodeKind::File).count();
        if must_exist {
            self.shared.lost_files.set(self.shared.lost_files.get() + files);
        }
        true
    }

    /// Performs an operation. `None` if the member of the client has ended.
    pub async fn perform(&self, operation: &Operation<'_>) -> Option<quell_vfs::Result<Reply<'static>>> {
        let reply = self.client.perform(operation).await;
        if let Some(Err(error)) = &reply
            && is_unknown(error)
        {
            self.shared.unknown.set(self.shared.unknown.get() + 1);
        }
        reply
    }

    /// Performs an operation that is recorded. Returns false if there is no result.
    async fn use_a_name(&mut self, cluster: &Rc<Cluster>) -> bool {
        let runtime = &cluster.runtime;
        let name = || -> Name {
            (runtime.pick(&self.shared.dirs.borrow()), runtime.below(usize::from(NAMES)) as u8)
        };
        let mode = runtime.pick(&[Rename::Replace, Rename::Replace, Rename::Keep, Rename::Exchange]);
        let focus = self.shared.focus;
        let kinds = if focus == Focus::Dirs { 14 } else { 9 };
        let operation = match runtime.below(kinds) {
            0..3 => NameOperation::Lookup(name()),
            3..6 => {
                let is_dir = focus == Focus::Dirs || focus == Focus::Names && runtime.one_in(2);
                NameOperation::Create { name: name(), is_dir }
            }
            6 if focus == Focus::Contents && !runtime.one_in(4) => NameOperation::Lookup(name()),
            6 => NameOperation::Remove { name: name(), is_dir: runtime.one_in(2) },
            7.. => NameOperation::Rename { from: name(), to: name(), mode },
        };
        let begun = self.shared.history.borrow_mut().begin(operation.clone());
        for _ in 0..ATTEMPTS_MAX {
            let request = request(&operation);
            let began = runtime.now();
            let Some(reply) = self.perform(&request.as_operation()).await else {
                return false;
            };
            self.shared.longest.set(self.shared.longest.get().max(runtime.now() - began));
            match self.note(&operation, reply) {
                Ok(Some(result)) => {
                    self.shared.history.borrow_mut().end(begun, result);
                    return true;
                }
                Err(ErrorKind::NoSpace) => break,
                Ok(None) => runtime.sleep(runtime.below_time(Duration::from_millis(200))).await,
                Err(_) => return false,
            }
        }
        self.shared.history.borrow_mut().refuse(begun);
        true
    }

    /// Returns the result of a reply, or `None` if the operation must be repeated. The error is
    /// `NoSpace` if the operation had no effect; after other errors the result is not known.
    fn note(
        &mut self,
        operation: &NameOperation,
        reply: quell_vfs::Result<Reply<'static>>,
    ) -> Result<Option<NameResult>, ErrorKind> {
        Ok(Some(match reply {
            Ok(Reply::Held(node)) => {
                self.held.push((node.id, node.kind));
                self.shared.see(node.id.0, node.kind == NodeKind::Dir);
                match operation {
                    NameOperation::Lookup(_) => NameResult::Found(Some(node.id.0)),
                    _ => NameResult::Created(node.id.0),
                }
            }
            Ok(Reply::Found(None)) => NameResult::Found(None),
            Ok(Reply::Done) => NameResult::Done,
            Ok(reply) => panic!("{operation:?}: {reply:?}"),
            Err(error) => match error.kind {
                ErrorKind::Busy => return Ok(None),
                kind @ (ErrorKind::NoSpace | ErrorKind::Unavailable | ErrorKind::TimedOut) => {
                    return Err(kind);
                }
                kind => NameResult::Failed(kind),
            },
        }))
    }

    /// Sets or removes an extended attribute. Returns false if there is no result.
    async fn change_xattr(&mut self, cluster: &Rc<Cluster>, id: FileId) -> bool {
        let name = cluster.runtime.pick(&[&b"user.a"[..], b"user.b"]);
        let operation = match cluster.runtime.one_in(3) {
            true => Operation::RemoveXattr { id, name },
            false => Operation::SetXattr { id, name, value: b"value", mode: XattrMode::Any },
        };
        self.perform(&operation).await.is_some()
    }

    /// Uses the content of a file or an extended attribute, or returns a reference. Returns false
    /// if there is no result.
    async fn use_a_file(&mut self, cluster: &Rc<Cluster>) -> bool {
        let runtime = &cluster.runtime;
        if self.held.is_empty() {
            return true;
        }
        let position = runtime.below(self.held.len());
        let (id, kind) = self.held[position];
        if kind != NodeKind::Symlink && runtime.one_in(5) {
            return self.change_xattr(cluster, id).await;
        }
        let releases = if self.shared.focus == Focus::Contents { 12 } else { 3 };
        if kind != NodeKind::File || runtime.one_in(releases) {
            self.held.swap_remove(position);
            let release = Operation::Release { references: vec![(id, 1)] };
            return self.perform(&release).await.is_some();
        }
        self.use_contents(cluster, id).await
    }

    /// Counts a file that was removed although the client has a reference to it.
    pub fn lose_file(&self) {
        self.shared.lost_files.set(self.shared.lost_files.get() + 1);
    }
}

/// An operation with the bytes of its names.
struct Request {
    operation: NameOperation,
    names: [[u8; 1]; 2],
}

fn request(operation: &NameOperation) -> Request {
    let bytes = |name: &Name| [b'a' + name.1];
    let names = match operation {
        NameOperation::Lookup(name)
        | NameOperation::Create { name, .. }
        | NameOperation::Remove { name, .. } => [bytes(name), bytes(name)],
        NameOperation::Rename { from, to, .. } => [bytes(from), bytes(to)],
    };
    Request { operation: operation.clone(), names }
}

impl Request {
    fn as_operation(&self) -> Operation<'_> {
        let name = &self.names[0];
        match &self.operation {
            NameOperation::Lookup((dir, _)) => Operation::Lookup { dir: FileId(*dir), name, holds: true },
            NameOperation::Create { name: (dir, _), is_dir } => Operation::Create {
                dir: FileId(*dir),
                name,
                kind: if *is_dir { NewKind::Dir } else { NewKind::File },
                permissions: 0o700,
                uid: 1000,
                gid: 1000,
            },
            NameOperation::Remove { name: (dir, _), is_dir } => Operation::Remove {
                dir: FileId(*dir),
                name,
                matching: if *is_dir { Matching::Dir } else { Matching::NotDir },
            },
            NameOperation::Rename { from, to, mode } => Operation::Rename {
                from_dir: FileId(from.0),
                from: name,
                to_dir: FileId(to.0),
                to: &self.names[1],
                mode: match mode {
                    Rename::Replace => RenameMode::Replace,
                    Rename::Keep => RenameMode::Keep,
                    Rename::Exchange => RenameMode::Exchange,
                },
            },
        }
    }
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Members are killed, at any commit, and started again.
    Kill,
    /// A member is killed, and started again only when the faults end.
    Gone,
    /// Processes are stopped and continued.
    Stop,
    /// Pairs of members cannot reach each other.
    Disconnect,
    /// Messages are lost or arrive late.
    Loss,
    /// Disks are full.
    Full,
    /// Clocks are changed.
    Clock,
    /// Daemons fail with their storage, if all their members have backups.
    Fail,
    /// Members move to the daemons with their backups.
    Move,
}

impl Fault {
    pub const ALL: [Fault; 6] =
        [Fault::Kill, Fault::Stop, Fault::Disconnect, Fault::Loss, Fault::Full, Fault::Clock];
}

/// Causes faults of these kinds, until `end`.
pub async fn run_faults(cluster: Rc<Cluster>, kinds: Vec<Fault>, end: Duration) {
    let runtime = Rc::clone(&cluster.runtime);
    cluster.loses.set(kinds.contains(&Fault::Loss));
    let kinds: Vec<Fault> = kinds.into_iter().filter(|kind| *kind != Fault::Loss).collect();
    while !kinds.is_empty() {
        runtime.sleep(runtime.below_time(Duration::from_secs(3))).await;
        pause(&runtime).await;
        if runtime.now() >= end {
            return;
        }
        let member = runtime.below(usize::from(cluster.members())) as u16;
        match runtime.pick(&kinds) {
            Fault::Gone => {
                let is_any_gone = (0..cluster.members()).any(|member| cluster.running(member).is_none());
                if !is_any_gone {
                    cluster.kill(member);
                }
            }
            Fault::Kill => {
                match cluster.running(member) {
                    Some(running) if runtime.one_in(2) => {
                        running.life.end_after_commits(1 + runtime.below(6) as u64);
                    }
                    _ => cluster.kill(member),
                }
                let cluster = Rc::clone(&cluster);
                let later = Rc::clone(&runtime);
                runtime.spawn(async move {
                    later.sleep(later.below_time(Duration::from_secs(8))).await;
                    cluster.restart(member);
                });
            }
            Fault::Stop => cluster.stop(member, runtime.below_time(Duration::from_secs(40))),
            Fault::Disconnect => {
                let other = runtime.below(usize::from(cluster.members())) as u16;
                cluster.disconnect(member, other);
                let cluster = Rc::clone(&cluster);
                let later = Rc::clone(&runtime);
                let duration = if runtime.one_in(8) { 90 } else { 15 };
                runtime.spawn(async move {
                    later.sleep(later.below_time(Duration::from_secs(duration))).await;
                    cluster.reconnect(member, other);
                });
            }
            Fault::Full => {
                cluster.disk(member).set_full(true);
                let cluster = Rc::clone(&cluster);
                let later = Rc::clone(&runtime);
                runtime.spawn(async move {
                    later.sleep(later.below_time(Duration::from_secs(5))).await;
                    cluster.disk(member).set_full(false);
                });
            }
            Fault::Clock => cluster.move_clock(member, runtime.below(20_000) as i64 - 10_000),
            Fault::Fail => cluster.fail_daemon(member),
            Fault::Move => cluster.move_member(member),
            Fault::Loss => {}
        }
    }
}
