//! The counters of a pool at one time.

use quell_wire::pool::MemberCounters;

/// The counters of all members of a pool.
#[derive(Debug, Clone)]
pub struct PoolSample {
    /// The name of the pool.
    pub pool: String,
    /// The members, in the order of their numbers.
    pub members: Vec<MemberSample>,
}

/// The counters of a member.
#[derive(Debug, Clone)]
pub struct MemberSample {
    /// The number of the member.
    pub member: u16,
    /// The name of the member's node.
    pub machine: String,
    /// The counters; `None` if the member has not answered.
    pub counters: Option<MemberCounters>,
}
