//! Clients over TCP with the key of a user of a store for a group. Their users have the rights that
//! they have at the socket. There, the kernel states the groups of a client; here, the server finds
//! the groups of the user in the databases of its node. This can take seconds, so threads of its
//! own do it, when the first request of a client arrives. The requests of the client wait
//! meanwhile.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use quell_batch::{Requester, ServedStore, UserKey};
use quell_threads::{TimedCalls, lock};
use quell_transport::peer::{ClientHandler, ClientIdentity, Handler, PeerUser, Reply, Request};
use quell_vfs::{Error, ErrorKind};

/// The number of users that are looked up at the same time.
const LOOKUPS: usize = 2;
/// The time for which a request waits for the groups of its user.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);
/// The largest number of look-ups that have taken longer and have not returned. While there are so
/// many, no further user is looked up.
const BLOCKED_MAX: usize = 4;
/// The largest number of waiting requests of one user. The server has at most 1,000 requests at a
/// time.
const WAITING_OF_USER_MAX: usize = 250;
/// The time for which a user whom the databases do not know as a member of the group is refused
/// without another look-up.
const REFUSAL_TIME: Duration = Duration::from_secs(10);
/// The largest number of such users.
const REFUSED_MAX: usize = 1000;

/// The reason for which a request is refused when the server ends.
const SERVER_ENDS: &str = "the server ends; repeat the command when the next server runs";

/// Returns the handler of the requests of a client with the key of a user.
pub(crate) type UserHandlers = Box<dyn Fn(UserKey) -> Arc<dyn Handler> + Send + Sync>;

/// The groups of a user in the databases of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserGroups {
    /// The group in the record of the user.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// Finds the groups of a user. `None` if there is no such user. It may block, and must not panic.
pub type FindGroups = fn(u32) -> io::Result<Option<UserGroups>>;

/// The clients with keys of users, and the threads that find their groups.
pub(crate) struct UserClients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    store: Arc<ServedStore>,
    /// The threads that execute requests.
    workers: Arc<dyn ClientHandler>,
    /// The group of the store, whose members can use it.
    group: u32,
    find: TimedCalls<u32, io::Result<Option<UserGroups>>>,
    queue: Mutex<Queue>,
    added: Condvar,
    /// For each refused user, the time at which the refusal ends, and its reason.
    refused: Mutex<HashMap<u32, (Instant, String)>>,
}

#[derive(Default)]
struct Queue {
    /// The connections limit the number of requests.
    waiting: VecDeque<Waiting>,
    is_ending: bool,
}

impl Queue {
    /// Returns the number of waiting requests of a user.
    fn waiting_of(&self, uid: u32) -> usize {
        self.waiting.iter().filter(|waiting| waiting.client.key.uid == uid).count()
    }
}

/// A request of a client whose groups are not known yet.
struct Waiting {
    client: Arc<UserClient>,
    request: Request,
    reply: Reply,
}

struct UserClient {
    key: UserKey,
    /// The handler of the requests of a client of this user, when the groups are known.
    handler: OnceLock<Arc<dyn Handler>>,
}

/// Executes the requests of one client.
struct Requests {
    client: Arc<UserClient>,
    shared: Arc<Shared>,
}

/// Returns the key of a client, if the description is that of a key of a user other than the owner
/// of the store.
pub(crate) fn user_key(client: ClientIdentity<'_>) -> Option<UserKey> {
    let is_derived = !client.has_named_key && client.user.is_none();
    let key = UserKey::decode(client.description).filter(|_| is_derived)?;
    (Requester::of_user(key.uid, key.uid, &[]) != Requester::Owner).then_some(key)
}

impl UserClients {
    /// Starts the threads.
    ///
    /// # Errors
    /// The error of the system if no thread can be created.
    pub(crate) fn start(
        store: Arc<ServedStore>,
        workers: Arc<dyn ClientHandler>,
        group: u32,
        find: FindGroups,
    ) -> io::Result<UserClients> {
        let find = TimedCalls::new(move |uid: &u32| find(*uid), LOOKUP_LIMIT, BLOCKED_MAX);
        let (queue, added) = (Mutex::default(), Condvar::new());
        let refused = Mutex::default();
        let shared = Arc::new(Shared { store, workers, group, find, queue, added, refused });
        let mut clients = UserClients { shared, threads: Vec::new() };
        for _ in 0..LOOKUPS {
            let shared = clients.shared.clone();
            match std::thread::Builder::new().name("batch users".into()).spawn(move || shared.run()) {
                Ok(thread) => clients.threads.push(thread),
                Err(error) => {
                    clients.end();
                    return Err(error);
                }
            }
        }
        Ok(clients)
    }

    /// Returns a function from the key of a client to the handler of its requests.
    pub(crate) fn handlers(&self) -> UserHandlers {
        let shared = self.shared.clone();
        Box::new(move |key| {
            let client = Arc::new(UserClient { key, handler: OnceLock::new() });
            Arc::new(Requests { client, shared: shared.clone() })
        })
    }

    /// Refuses the requests of clients whose groups are not known, from now on. A second call does
    /// nothing.
    pub(crate) fn refuse_waiting(&self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_ending = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.shared.added.notify_all();
        for Waiting { reply, .. } in waiting {
            self.shared.refuse(reply, ErrorKind::Busy, SERVER_ENDS);
        }
    }

    /// Refuses the requests of clients whose groups are not known, and ends the threads. A second
    /// call does nothing.
    pub(crate) fn end(&mut self) {
        self.refuse_waiting();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Handler for Requests {
    fn handle(&self, request: Request, reply: Reply) {
        let Requests { client, shared } = self;
        if client.key.has_expired(SystemTime::now()) {
            let reason =
                "the key has expired; the owner of the store derives another one with: quell batch key";
            return shared.refuse(reply, ErrorKind::PermissionDenied, reason);
        }
        if let Some(handler) = client.handler.get() {
            return handler.handle(request, reply);
        }
        let uid = client.key.uid;
        if let Some(reason) = shared.known_refusal(uid) {
            return shared.refuse(reply, ErrorKind::PermissionDenied, &reason);
        }
        let mut queue = lock(&shared.queue);
        let refusal = match queue.is_ending {
            true => Some(SERVER_ENDS.to_owned()),
            false if queue.waiting_of(uid) >= WAITING_OF_USER_MAX => Some(format!(
                "{WAITING_OF_USER_MAX} requests of user {uid} are waiting for a look-up of the user's groups; \
                 repeat the command later"
            )),
            false => None,
        };
        if let Some(reason) = refusal {
            drop(queue);
            return shared.refuse(reply, ErrorKind::Busy, &reason);
        }
        queue.waiting.push_back(Waiting { client: client.clone(), request, reply });
        drop(queue);
        shared.added.notify_one();
    }
}

impl Shared {
    fn refuse(&self, reply: Reply, kind: ErrorKind, reason: &str) {
        let source = Some(reason.to_owned().into());
        reply.send(self.store.refuse(&Error { source, ..Error::new(kind, "execute a request", "") }));
    }

    /// Finds the groups of the clients in the queue, and passes their requests to the threads that
    /// execute them.
    fn run(&self) {
        while let Some(Waiting { client, request, reply }) = self.next() {
            match self.handler_of(&client) {
                Ok(handler) => handler.handle(request, reply),
                Err((kind, reason)) => self.refuse(reply, kind, &reason),
            }
        }
    }

    /// Returns the reason for which a user was refused a short time ago.
    fn known_refusal(&self, uid: u32) -> Option<String> {
        let refused = lock(&self.refused);
        let (_, reason) = refused.get(&uid).filter(|(until, _)| Instant::now() < *until)?;
        Some(reason.clone())
    }

    /// Keeps a refusal, and returns it.
    fn refusal(&self, uid: u32, reason: String) -> (ErrorKind, String) {
        let now = Instant::now();
        let mut refused = lock(&self.refused);
        refused.retain(|_, (until, _)| now < *until);
        if refused.len() < REFUSED_MAX {
            refused.insert(uid, (now + REFUSAL_TIME, reason.clone()));
        }
        (ErrorKind::PermissionDenied, reason)
    }

    /// Waits for a request. `None` when the threads end.
    fn next(&self) -> Option<Waiting> {
        let is_idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.is_ending;
        let waited = self.added.wait_while(lock(&self.queue), is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    /// Returns the handler of a client. The groups are found once for each client, as the kernel
    /// states those of the moment of a connection.
    fn handler_of(&self, client: &UserClient) -> Result<Arc<dyn Handler>, (ErrorKind, String)> {
        if let Some(handler) = client.handler.get() {
            return Ok(handler.clone());
        }
        let uid = client.key.uid;
        // Another request of the user may have waited at the same time.
        if let Some(reason) = self.known_refusal(uid) {
            return Err((ErrorKind::PermissionDenied, reason));
        }
        let UserGroups { gid, groups } = self.groups_of(uid)?;
        if gid != self.group && !groups.contains(&self.group) {
            let reason = format!(
                "user {uid} is not a member of group {}, the group of the store, on the node of the server",
                self.group
            );
            return Err(self.refusal(uid, reason));
        }
        // The requests are executed as those of a client at the socket with these groups.
        let handler = PeerUser::mapped(uid, gid, groups).and_then(|user| {
            let identity = ClientIdentity { description: b"", has_named_key: false, user: Some(&user) };
            self.workers.handler(identity)
        });
        match handler {
            Some(handler) => Ok(client.handler.get_or_init(|| handler).clone()),
            None => Err(self.refusal(uid, format!("the server does not accept group {gid} of user {uid}"))),
        }
    }

    fn groups_of(&self, uid: u32) -> Result<UserGroups, (ErrorKind, String)> {
        let unavailable = |reason: String| {
            (ErrorKind::Unavailable, format!("the groups of user {uid} are not known: {reason}"))
        };
        match self.find.results([uid]).pop().flatten() {
            Some(Ok(Some(groups))) => Ok(groups),
            Some(Ok(None)) => {
                Err(self.refusal(uid, format!("user {uid} is not known on the node of the server")))
            }
            Some(Err(error)) => Err(unavailable(error.to_string())),
            None => Err(unavailable("the databases on the node of the server do not answer".into())),
        }
    }
}
