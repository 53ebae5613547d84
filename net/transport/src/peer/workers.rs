//! Threads that execute the requests of the clients of a server.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::handler::{Handler, Reply, Request};
use super::server::{ClientHandler, ClientIdentity, Server};
use super::settings::MemberId;

/// The largest number of requests that a thread takes at a time. Their replies are written
/// together.
const TAKEN_MAX: usize = 16;

/// A service whose requests may block.
pub trait Service: Send + Sync + 'static {
    /// The rights of a client.
    type Rights: Send + Sync + 'static;

    /// Returns the rights of a client: see [`ClientHandler::handler`]. Must not block.
    fn rights(&self, client: ClientIdentity<'_>) -> Option<Self::Rights>;

    /// Executes requests. The replies that are sent meanwhile are written together when it returns.
    fn execute(&self, taken: Vec<Taken<Self::Rights>>);

    /// A client has ended: see [`ClientHandler::ended`]. Must not block.
    fn ended(&self, client: MemberId);
}

/// A request that a thread has taken.
#[derive(Debug)]
pub struct Taken<R> {
    /// The request.
    pub request: Request,
    /// The rights of its client.
    pub rights: Arc<R>,
    /// The obligation to answer it.
    pub reply: Reply,
}

struct Queue<R> {
    /// The limits of the connections bound the number of requests.
    requests: VecDeque<Taken<R>>,
    /// The number of threads that wait for requests.
    idle: usize,
    is_ending: bool,
}

struct Shared<S: Service> {
    service: S,
    queue: Mutex<Queue<S::Rights>>,
    added: Condvar,
}

/// Running threads.
pub struct Workers<S: Service> {
    shared: Arc<Shared<S>>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Service> fmt::Debug for Workers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Passes the requests of the clients to the threads.
struct Clients<S: Service>(Arc<Shared<S>>);

/// Passes the requests of one client to the threads.
struct Requests<S: Service> {
    shared: Arc<Shared<S>>,
    rights: Arc<S::Rights>,
}

impl<S: Service> Handler for Requests<S> {
    fn handle(&self, request: Request, reply: Reply) {
        let mut queue = self.shared.lock();
        queue.requests.push_back(Taken { request, rights: self.rights.clone(), reply });
        let has_idle = queue.idle > 0;
        drop(queue);
        if has_idle {
            self.shared.added.notify_one();
        }
    }
}

impl<S: Service> ClientHandler for Clients<S> {
    fn handler(&self, client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        let rights = Arc::new(self.0.service.rights(client)?);
        Some(Arc::new(Requests { shared: self.0.clone(), rights }))
    }

    fn ended(&self, client: MemberId) {
        self.0.service.ended(client);
    }
}

impl<S: Service> Workers<S> {
    /// Starts at least one thread, which has this name.
    ///
    /// # Errors
    /// The error of the system if no thread can be created.
    pub fn start(service: S, threads: usize, name: &str) -> io::Result<Workers<S>> {
        let queue = Queue { requests: VecDeque::new(), idle: 0, is_ending: false };
        let shared = Arc::new(Shared { service, queue: Mutex::new(queue), added: Condvar::new() });
        let mut workers = Workers { shared, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = workers.shared.clone();
            match std::thread::Builder::new().name(name.into()).spawn(move || shared.run()) {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    workers.end();
                    return Err(error);
                }
            }
        }
        Ok(workers)
    }

    /// Returns the handler that passes the requests of clients to the threads.
    pub fn handler(&self) -> Arc<dyn ClientHandler> {
        Arc::new(Clients(self.shared.clone()))
    }

    /// Ends the threads after they have executed the requests of the queue. A second call does
    /// nothing.
    pub fn end(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.added.notify_all();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl<S: Service> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, Queue<S::Rights>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let sends = Server::collect();
        loop {
            let mut queue = self.lock();
            if queue.requests.is_empty() {
                queue.idle += 1;
                let is_waiting = |queue: &mut Queue<_>| queue.requests.is_empty() && !queue.is_ending;
                let waited = self.added.wait_while(queue, is_waiting);
                queue = waited.unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
            if queue.requests.is_empty() {
                return;
            }
            // The rest is left for the idle threads.
            let count = queue.requests.len().div_ceil(queue.idle + 1).min(TAKEN_MAX);
            let taken = queue.requests.drain(..count).collect();
            drop(queue);
            self.service.execute(taken);
            sends.send();
        }
    }
}
