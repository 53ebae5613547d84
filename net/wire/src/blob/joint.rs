//! Joint transactions: transactions over blobs of several groups of servers, committed in two
//! phases. docs/formats/blob-protocol.md describes the messages, and
//! docs/decisions/0035-groups-of-servers.md the protocol.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::operation::{Committed, SnapshotId, Transaction, Version};
use crate::bounded::at_most;

/// The version of the protocol by which clients use the server of a group. Clients that do not know
/// groups are refused by it.
pub const GROUP_PROTOCOL: u32 = 2;
/// The largest number of groups of a store.
pub const GROUPS_MAX: usize = 64;
/// The largest encoding of the part of a joint transaction that concerns one group, in bytes.
pub const JOINT_BYTES_MAX: usize = 1 << 20;
/// The largest number of joint transactions in one reply to `Undecided`.
pub const UNDECIDED_MAX: usize = 4096;

/// Returns the group, of `groups`, that has the blob of a name.
pub fn group_of(name: &[u8], groups: u32) -> u32 {
    (xxh3_64(name) % u64::from(groups.max(1))) as u32
}

/// The identity of a joint transaction, which the client chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JointId {
    /// A random number of the client.
    pub client: u128,
    /// The number of the transaction, which no other joint transaction of the client has.
    pub number: u64,
}

/// A keyed hash, by which a server recognizes a statement of another one that a client passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof(pub [u8; 32]);

/// The outcome of a joint transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The transaction is committed.
    Committed,
    /// The transaction has no effect.
    Aborted,
}

/// The part of a joint transaction that concerns one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    /// The identity.
    pub id: JointId,
    /// A version of the group that the client knew before it chose the identity.
    pub begun: Version,
    /// The group that decides: one of the participants.
    pub coordinator: u32,
    /// The groups that the transaction concerns, ascending.
    #[serde(deserialize_with = "at_most::<GROUPS_MAX, _, _>")]
    pub participants: Vec<u32>,
    /// The reads and operations of this group. This transaction has no identity of its own.
    pub transaction: Transaction,
}

/// The decision of the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JointDecision {
    /// The identity.
    pub id: JointId,
    /// The group that has decided.
    pub coordinator: u32,
    /// The outcome.
    pub outcome: Outcome,
    /// The keyed hash of the other fields.
    pub proof: Proof,
}

/// A request about joint transactions, or about snapshots of several groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JointRequest {
    /// Compares the parts of the group that the transaction has read, and locks these and the parts
    /// that it changes. The reply is `Prepared`, or `Refused`.
    Prepare(Preparation),
    /// Commits the transaction at its coordinator. The reply is `Decided`.
    Commit {
        /// The identity.
        id: JointId,
        /// The participants, as in `Prepare`.
        #[serde(deserialize_with = "at_most::<GROUPS_MAX, _, _>")]
        participants: Vec<u32>,
        /// The votes of the participants, in their order.
        #[serde(deserialize_with = "at_most::<GROUPS_MAX, _, _>")]
        votes: Vec<Proof>,
    },
    /// Asks the coordinator for its decision. If it has not decided, the transaction is aborted.
    /// The reply is `Decided`.
    Resolve(JointId),
    /// Ends the transaction at a participant as the coordinator has decided. The reply is
    /// `Applied`.
    Apply(JointDecision),
    /// Lets the coordinator remove its decision, because all other participants have applied it.
    /// The reply is `Done`.
    Forget {
        /// The identity.
        id: JointId,
        /// The participants other than the coordinator, ascending.
        #[serde(deserialize_with = "at_most::<GROUPS_MAX, _, _>")]
        participants: Vec<u32>,
        /// The confirmations of these participants, in the same order.
        #[serde(deserialize_with = "at_most::<GROUPS_MAX, _, _>")]
        confirmations: Vec<Proof>,
    },
    /// Asks for the joint transactions that are prepared in the group, or whose decision is not
    /// confirmed by all participants. The reply is `Undecided`.
    Undecided,
    /// Asks whether a snapshot is still the latest state. The reply is `Latest`.
    Compare(SnapshotId),
    /// Lets commits of the group wait for this number of milliseconds, at most 500. 0 ends the
    /// wait. The reply is `Done`.
    Hold(u32),
}

/// A reply to a [`JointRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JointReply {
    /// The group has prepared the transaction.
    Prepared {
        /// The results that the operations have if the transaction is committed.
        committed: Committed,
        /// The vote, for the coordinator.
        vote: Proof,
    },
    /// The coordinator has decided.
    Decided {
        /// The decision.
        decision: JointDecision,
        /// The participants other than the coordinator, if not all of them have confirmed a commit;
        /// otherwise empty.
        #[serde(deserialize_with = "at_most::<GROUPS_MAX, _, _>")]
        unconfirmed: Vec<u32>,
    },
    /// The participant has applied the decision.
    Applied {
        /// The confirmation, for the coordinator.
        confirmation: Proof,
    },
    /// Joint transactions and their coordinators.
    Undecided(#[serde(deserialize_with = "at_most::<UNDECIDED_MAX, _, _>")] Vec<(JointId, u32)>),
    /// Whether the snapshot is the latest state.
    Latest(bool),
}
