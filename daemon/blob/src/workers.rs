//! The threads that execute the requests of clients: reads, and the checks and large writes of
//! transactions before their commit.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use quell_blob_service::{ClientId, Permissions, Sessions};
use quell_threads::{lock, wait_while};
use quell_transport::peer::{self, ClientHandler, Handler, MemberId, Reply, Request};

use crate::committer::CommitterWaker;
use crate::permit::ReplyPermit;

/// The largest number of requests that a thread takes at a time. Their replies are written
/// together.
const TAKEN_MAX: usize = 16;

#[derive(Default)]
struct Queue {
    /// The limits of the connections bound the number of requests.
    requests: VecDeque<(Request, Arc<Permissions>, Reply)>,
    /// The number of threads that wait for requests.
    idle: usize,
    is_ending: bool,
}

struct Shared {
    sessions: Arc<Sessions>,
    committer: CommitterWaker,
    permit: Option<ReplyPermit>,
    queue: Mutex<Queue>,
    added: Condvar,
}

/// The running threads.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Passes the requests of the clients to the threads.
pub(crate) struct Clients(Arc<Shared>);

/// Passes the requests of one client to the threads.
struct Requests {
    shared: Arc<Shared>,
    permissions: Arc<Permissions>,
}

impl Handler for Requests {
    fn handle(&self, request: Request, reply: Reply) {
        let mut queue = lock(&self.shared.queue);
        queue.requests.push_back((request, self.permissions.clone(), reply));
        let has_idle = queue.idle > 0;
        drop(queue);
        if has_idle {
            self.shared.added.notify_one();
        }
    }
}

impl ClientHandler for Clients {
    fn handler(&self, description: &[u8]) -> Option<Arc<dyn Handler>> {
        let permissions = Arc::new(Permissions::of_key(description).ok()?);
        Some(Arc::new(Requests { shared: self.0.clone(), permissions }))
    }

    fn ended(&self, client: MemberId) {
        self.0.sessions.end(ClientId(client.0));
    }
}

impl Workers {
    pub(crate) fn start(
        sessions: Arc<Sessions>,
        committer: CommitterWaker,
        threads: usize,
        permit: Option<ReplyPermit>,
    ) -> io::Result<Workers> {
        let (queue, added) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { sessions, committer, permit, queue, added });
        let mut workers = Workers { shared, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = workers.shared.clone();
            let thread = std::thread::Builder::new().name("blob requests".into());
            match thread.spawn(move || shared.run()) {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    workers.end();
                    return Err(error);
                }
            }
        }
        Ok(workers)
    }

    pub(crate) fn handler(&self) -> Arc<Clients> {
        Arc::new(Clients(self.shared.clone()))
    }

    /// Ends the threads after they have executed the requests of the queue. A second call does
    /// nothing.
    pub(crate) fn end(&mut self) {
        lock(&self.shared.queue).is_ending = true;
        self.shared.added.notify_all();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let sends = peer::Server::collect();
        loop {
            let mut queue = lock(&self.queue);
            if queue.requests.is_empty() {
                queue.idle += 1;
                queue = wait_while(&self.added, queue, |queue| queue.requests.is_empty() && !queue.is_ending);
                queue.idle -= 1;
            }
            if queue.requests.is_empty() {
                return;
            }
            // The rest is left for the idle threads.
            let count = queue.requests.len().div_ceil(queue.idle + 1).min(TAKEN_MAX);
            let taken: Vec<_> = queue.requests.drain(..count).collect();
            drop(queue);
            let mut has_commits = false;
            for (request, permissions, reply) in taken {
                let client = ClientId(request.from.0);
                let permit = self.permit.clone();
                let replied = Box::new(move |bytes| {
                    if permit.is_none_or(|permit| (permit.0)()) {
                        reply.send(bytes);
                    }
                });
                let Request { bytes, reply_bytes_max, .. } = request;
                has_commits |= self.sessions.execute(client, &permissions, &bytes, reply_bytes_max, replied);
            }
            if has_commits {
                self.committer.wake();
            }
            sends.send();
        }
    }
}
