//! A queue of requests of several users, of which one user can neither fill the queue nor occupy
//! all threads.

use std::collections::{HashMap, VecDeque};

/// The largest number of requests that wait.
const WAITING_MAX: usize = 256;
/// The largest number of waiting requests that have a user.
const WAITING_OF_USERS_MAX: usize = 192;
/// The largest number of waiting requests of one user.
const WAITING_OF_USER_MAX: usize = 64;

/// The requests that wait, each with its user. A request without a user is not limited, except by
/// the length of the queue.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    waiting: VecDeque<(Option<u32>, T)>,
    /// The number of requests of each user that are being executed, unless it is 0.
    running: HashMap<u32, usize>,
    running_of_user_max: usize,
}

impl<T> FairQueue<T> {
    /// Returns an empty queue for a number of threads, of which one user can occupy half, rounded
    /// up.
    pub(crate) fn new(threads: usize) -> FairQueue<T> {
        let running_of_user_max = threads.div_ceil(2);
        FairQueue { waiting: VecDeque::new(), running: HashMap::new(), running_of_user_max }
    }

    /// Adds a request, or returns it if too many wait.
    pub(crate) fn add(&mut self, user: Option<u32>, request: T) -> Result<(), T> {
        let of_user = self.waiting.iter().filter(|(other, _)| *other == user).count();
        let of_users = self.waiting.iter().filter(|(other, _)| other.is_some()).count();
        let is_refused = of_user >= WAITING_OF_USER_MAX || of_users >= WAITING_OF_USERS_MAX;
        if self.waiting.len() >= WAITING_MAX || user.is_some() && is_refused {
            return Err(request);
        }
        self.waiting.push_back((user, request));
        Ok(())
    }

    /// Returns the position of the first request that a thread may execute.
    fn position(&self) -> Option<usize> {
        let may_begin = |user: Option<u32>| {
            let running = user.and_then(|uid| self.running.get(&uid));
            running.is_none_or(|running| *running < self.running_of_user_max)
        };
        self.waiting.iter().position(|(user, _)| may_begin(*user))
    }

    /// Returns whether a thread may execute a request now.
    pub(crate) fn is_ready(&self) -> bool {
        self.position().is_some()
    }

    /// Removes the first request that a thread may execute. [`ended`](Self::ended) must be called
    /// with its user after it was executed.
    pub(crate) fn take(&mut self) -> Option<(Option<u32>, T)> {
        let (user, request) = self.waiting.remove(self.position()?)?;
        if let Some(uid) = user {
            *self.running.entry(uid).or_default() += 1;
        }
        Some((user, request))
    }

    /// Records that a request of a user was executed.
    pub(crate) fn ended(&mut self, user: Option<u32>) {
        if let Some(uid) = user
            && let Some(running) = self.running.get_mut(&uid)
        {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&uid);
            }
        }
    }

    /// Removes all requests.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_occupies_half_of_the_threads() {
        let mut queue = FairQueue::new(4);
        let requests = [(Some(1), 10), (Some(1), 11), (Some(1), 12), (Some(2), 20), (None, 0), (None, 1)];
        requests.into_iter().for_each(|(user, request)| queue.add(user, request).unwrap());
        let order = [(Some(1), 10), (Some(1), 11), (Some(2), 20), (None, 0), (None, 1)];
        for next in order {
            assert_eq!(queue.take(), Some(next));
        }
        assert!(!queue.is_ready() && queue.take().is_none());
        queue.ended(Some(2));
        queue.ended(None);
        assert!(!queue.is_ready());
        queue.ended(Some(1));
        assert_eq!(queue.take(), Some((Some(1), 12)));
        queue.ended(Some(1));
        queue.ended(Some(1));
        assert!(queue.running.is_empty());
    }

    #[test]
    fn neither_one_user_nor_all_users_can_fill_the_queue() {
        let mut queue = FairQueue::new(1);
        let mut number = 0;
        for user in 1..=3 {
            for _ in 0..WAITING_OF_USER_MAX {
                queue.add(Some(user), number).unwrap();
                number += 1;
            }
            assert_eq!(queue.add(Some(user), 1000), Err(1000));
        }
        assert_eq!(queue.add(Some(4), 1000), Err(1000));
        for number in number..WAITING_MAX {
            queue.add(None, number).unwrap();
        }
        assert_eq!((queue.add(None, 1000), queue.add(Some(2), 1001)), (Err(1000), Err(1001)));
        assert_eq!(queue.drain().collect::<Vec<_>>(), (0..WAITING_MAX).collect::<Vec<_>>());
        assert!(!queue.is_ready());
    }
}
