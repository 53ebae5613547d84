//! The future of a commit, for programs with any executor.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use quell_threads::lock;
use quell_wire::blob::Committed;

use crate::error::Result;

#[derive(Default)]
struct FutureState {
    result: Option<Result<Committed>>,
    waker: Option<Waker>,
}

/// A future that is ready when the commit has a result. It must not be polled again after it was
/// ready.
pub struct CommitFuture(Arc<Mutex<FutureState>>);

/// Completes a future.
pub(crate) struct Completion(Arc<Mutex<FutureState>>);

impl CommitFuture {
    pub(crate) fn pair() -> (Completion, CommitFuture) {
        let state = Arc::<Mutex<FutureState>>::default();
        (Completion(state.clone()), CommitFuture(state))
    }
}

impl Completion {
    pub(crate) fn complete(self, result: Result<Committed>) {
        let mut state = lock(&self.0);
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for CommitFuture {
    type Output = Result<Committed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Committed>> {
        let mut state = lock(&self.0);
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for CommitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitFuture").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;
    use std::thread::Thread;

    use super::*;
    use crate::Version;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn a_future_is_woken_by_its_result() {
        let (completion, mut future) = CommitFuture::pair();
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        let committed = Committed { version: Version(7), results: Vec::new() };
        std::thread::spawn(move || completion.complete(Ok(committed)));
        loop {
            match Pin::new(&mut future).poll(&mut context) {
                Poll::Ready(result) => return assert_eq!(result.unwrap().version, Version(7)),
                Poll::Pending => std::thread::park(),
            }
        }
    }
}
