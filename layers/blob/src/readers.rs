//! Threads that execute submitted reads which wait for a disk or for a server.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use quell_threads::lock;
use quell_vfs::{Error, Result};

use crate::backend::ReadDone;

/// The number of threads.
const THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, which the first read starts. They end with this value, after all reads.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Option<Threads>>);

struct Threads {
    jobs: Sender<Job>,
    handles: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Calls `read` on one of the threads, and passes its result to `done`.
    pub(crate) fn submit(&self, read: impl FnOnce() -> Result<Vec<u8>> + Send + 'static, done: ReadDone) {
        let mut threads = lock(&self.0);
        if threads.is_none() {
            match start() {
                Ok(started) => *threads = Some(started),
                Err(error) => {
                    drop(threads);
                    return done(Err(error));
                }
            }
        }
        if let Some(threads) = &*threads {
            // The threads receive until this value ends.
            let _ = threads.jobs.send(Box::new(move || done(read())));
        }
    }

    /// Waits for all reads and ends the threads. If one of the threads calls it, it does not wait
    /// for itself.
    pub(crate) fn stop(&self) {
        let Some(Threads { jobs, handles }) = lock(&self.0).take() else { return };
        drop(jobs);
        let own = std::thread::current().id();
        for handle in handles.into_iter().filter(|handle| handle.thread().id() != own) {
            let _ = handle.join();
        }
    }
}

fn start() -> Result<Threads> {
    let (jobs, receiver) = channel::<Job>();
    let receiver = Arc::new(Mutex::new(receiver));
    let thread = |_| {
        let receiver = receiver.clone();
        std::thread::Builder::new()
            .name("blob reads".into())
            .spawn(move || execute(&receiver))
            .map_err(|cause| Error::from_io(cause, "start a thread", "blob reads"))
    };
    let handles = (0..THREADS).map(thread).collect::<Result<_>>()?;
    Ok(Threads { jobs, handles })
}

fn execute(receiver: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is released before the job is executed.
        let job = lock(receiver).recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
