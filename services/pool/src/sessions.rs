//! Records the requests between this member and the others for which the sender still waits. If the
//! sender has abandoned a request, or was started again, the request must not take effect after
//! later requests of the sender. The functions perform no I/O.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, MemberId, Reply};

/// The time for which a member keeps the references of another member that sends nothing.
pub const LEASE: Duration = Duration::from_secs(60);
/// The interval at which a member requests another one to keep its references.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// The largest number of requests without a reply that are remembered for each member.
const UNANSWERED_MAX: usize = 1 << 16;

/// The sender of a request, which gets the references that the request makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    pub member: MemberId,
    pub session: u64,
    /// The number of the request.
    pub number: u64,
}

/// The known state of the requests that another member has sent.
#[derive(Debug)]
pub struct Incoming {
    session: u64,
    first_waiting: u64,
    abandoned: BTreeSet<u64>,
    heard: Duration,
    /// The number of times that this member has dropped references of the other member.
    forgotten: u64,
    /// Whether the other member may have references.
    is_leased: bool,
}

/// The requests that this member sends to another member.
#[derive(Debug, Default)]
pub struct Outgoing {
    waiting: BTreeSet<u64>,
    /// The numbers of abandoned requests that are larger than the number of the first waiting
    /// request.
    abandoned: BTreeSet<u64>,
    /// The number of references that clients of this node have to nodes of the other member.
    pub held: u64,
    /// References that were not returned yet.
    pub returned: Vec<(FileId, u64)>,
    /// Requests without a reply, which may have made references.
    pub unanswered: Vec<u64>,
    /// Whether all references are being declared to the other member. No reference is returned
    /// meanwhile.
    pub is_declaring: bool,
    /// The session of the other member, and the number of times that it has dropped references.
    pub lease: Option<(u64, u64)>,
    /// The time of the last renewal.
    pub renewed: Option<Duration>,
}

/// The state of a sender's requests, which is sent with each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub first: u64,
    pub abandoned: Vec<u64>,
}

impl Outgoing {
    /// Begins a request. Its number must be larger than the numbers of all earlier requests.
    pub fn begin(&mut self, number: u64) -> Waiting {
        self.waiting.insert(number);
        let first = self.first();
        self.abandoned = self.abandoned.split_off(&first);
        Waiting { first, abandoned: self.abandoned.iter().copied().collect() }
    }

    /// Ends a request that has a reply, or that is abandoned.
    pub fn end(&mut self, number: u64, is_answered: bool) {
        self.waiting.remove(&number);
        if !is_answered {
            self.abandoned.insert(number);
            // The other member may have been started again.
            self.renewed = None;
        }
    }

    /// Records a request without a reply that may have made a reference.
    pub fn note_unanswered(&mut self, number: u64) {
        if self.unanswered.len() < UNANSWERED_MAX {
            self.unanswered.push(number);
        }
    }

    fn first(&self) -> u64 {
        self.waiting.first().copied().unwrap_or(u64::MAX)
    }
}

/// Returns the error of a request that the sender has abandoned.
pub fn late_request() -> Error {
    Error::new(ErrorKind::Unavailable, "perform a late request", "")
}

/// The requests of all other members.
#[derive(Debug, Default)]
pub struct Sessions(HashMap<MemberId, Incoming>);

/// The effect of a message on the references of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The session is known.
    Again,
    /// The sender was started again: references of its earlier session are dropped.
    First,
}

impl Sessions {
    /// Records the state of the sender's requests, which each message states.
    ///
    /// # Errors
    /// `Unavailable` if the sender has abandoned the request. Then it must not be performed.
    pub fn admit(&mut self, origin: Origin, waiting: &Waiting, now: Duration) -> Result<Admission> {
        let refused = || Err(late_request());
        let new = || Incoming {
            session: origin.session,
            first_waiting: 0,
            abandoned: BTreeSet::new(),
            heard: now,
            forgotten: 0,
            is_leased: false,
        };
        let known = self.0.entry(origin.member).or_insert_with(|| Incoming { session: 0, ..new() });
        let admission = match origin.session.cmp(&known.session) {
            std::cmp::Ordering::Less => return refused(),
            std::cmp::Ordering::Equal => Admission::Again,
            std::cmp::Ordering::Greater => {
                *known = new();
                Admission::First
            }
        };
        known.heard = now;
        known.abandoned.extend(&waiting.abandoned);
        if waiting.first > known.first_waiting {
            known.first_waiting = waiting.first;
            known.abandoned = known.abandoned.split_off(&waiting.first);
        }
        if admission == Admission::Again && !self.is_waited_for(origin) {
            return refused();
        }
        Ok(admission)
    }

    /// Returns whether the sender of a request still waits for the reply, as far as is known.
    pub fn is_waited_for(&self, origin: Origin) -> bool {
        self.0.get(&origin.member).is_some_and(|known| {
            known.session == origin.session
                && known.first_waiting <= origin.number
                && !known.abandoned.contains(&origin.number)
        })
    }

    /// Records that a member may have references.
    pub fn lease(&mut self, member: MemberId) {
        if let Some(known) = self.0.get_mut(&member) {
            known.is_leased = true;
        }
    }

    /// Returns the reply to a member that renews its references.
    pub fn renew(&mut self, member: MemberId, own_session: u64) -> Reply<'static> {
        self.lease(member);
        let number = self.0.get(&member).map_or(0, |known| known.forgotten);
        Reply::Lease { session: own_session, number }
    }

    /// Returns the members that have sent nothing for [`LEASE`], whose references are to be
    /// dropped.
    pub fn expire(&mut self, now: Duration) -> Vec<MemberId> {
        let mut expired = Vec::new();
        for (member, known) in &mut self.0 {
            if known.is_leased && now.saturating_sub(known.heard) > LEASE {
                known.is_leased = false;
                known.forgotten += 1;
                expired.push(*member);
            }
        }
        expired.sort_unstable();
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn origin(session: u64, number: u64) -> Origin {
        Origin { member: MemberId(1), session, number }
    }

    fn waiting(first: u64, abandoned: &[u64]) -> Waiting {
        Waiting { first, abandoned: abandoned.to_vec() }
    }

    #[test]
    fn a_request_that_was_given_up_is_refused_after_a_later_one() {
        let mut outgoing = Outgoing::default();
        let first = outgoing.begin(1);
        let second = outgoing.begin(2);
        outgoing.end(2, false);
        let third = outgoing.begin(3);
        assert_eq!((third.first, third.abandoned.as_slice()), (1, &[2][..]));
        let mut sessions = Sessions::default();
        assert_eq!(sessions.admit(origin(5, 3), &third, NOW).unwrap(), Admission::First);
        assert!(sessions.admit(origin(5, 2), &second, NOW).is_err());
        assert!(sessions.admit(origin(5, 1), &first, NOW).is_ok());
        outgoing.end(1, true);
        outgoing.end(3, true);
        let fourth = outgoing.begin(4);
        assert_eq!((fourth.first, fourth.abandoned.len()), (4, 0));
        assert!(sessions.admit(origin(5, 4), &fourth, NOW).is_ok());
        assert!(!sessions.is_waited_for(origin(5, 3)));
        assert!(sessions.is_waited_for(origin(5, 4)));
    }

    #[test]
    fn an_earlier_session_is_refused_after_a_later_one() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.admit(origin(5, 9), &waiting(9, &[]), NOW).unwrap(), Admission::First);
        assert_eq!(sessions.admit(origin(6, 1), &waiting(1, &[]), NOW).unwrap(), Admission::First);
        assert!(sessions.admit(origin(5, 10), &waiting(10, &[]), NOW).is_err());
        assert!(!sessions.is_waited_for(origin(5, 9)));
    }

    #[test]
    fn a_silent_member_loses_its_references_once() {
        let mut sessions = Sessions::default();
        sessions.admit(origin(5, 1), &waiting(1, &[]), NOW).unwrap();
        assert_eq!(sessions.renew(MemberId(1), 7), Reply::Lease { session: 7, number: 0 });
        assert_eq!(sessions.expire(LEASE), []);
        let later = LEASE + Duration::from_nanos(1);
        assert_eq!(sessions.expire(later), [MemberId(1)]);
        assert_eq!(sessions.expire(later), []);
        assert_eq!(sessions.renew(MemberId(1), 7), Reply::Lease { session: 7, number: 1 });
    }
}
