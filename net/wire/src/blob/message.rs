//! The requests of a client to the server of a store, and the replies.
//! docs/formats/blob-protocol.md describes them.

use serde::{Deserialize, Serialize};

use super::counters::{RequestKind, StoreCounters};
use super::joint::{JointReply, JointRequest};
use super::operation::{BlobStat, Committed, OPERATIONS_MAX, Operation, SnapshotId, Transaction, Version};
use super::refusal::Refusal;
use crate::Failure;
use crate::bounded::at_most;
use crate::encoding::{decode_first, encode};

/// The version of the protocol. A server that is not one of several groups refuses clients of
/// another version.
pub const PROTOCOL: u32 = 1;
/// The largest data of one read, of one part of an upload, and of one part of a long reply, in
/// bytes.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// The largest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = DATA_BYTES_MAX + (64 << 10);
/// The largest encoding of an upload, in bytes: of a transaction, or of a list of operations.
pub const UPLOAD_BYTES_MAX: usize = 257 << 20;
/// The largest number of names in one reply to `List`.
pub const NAMES_MAX: usize = 4096;

/// The number of an upload, which the client chooses, or of a long reply, which the server chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransferId(pub u64);

/// A draft: operations of a transaction that is not committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Draft {
    /// The operations; none for a read of a state without changes.
    Inline(#[serde(deserialize_with = "at_most::<OPERATIONS_MAX, _, _>")] Vec<Operation>),
    /// The encoding of an `Inline` draft was uploaded before.
    Uploaded(TransferId),
}

/// The data of an operation that was sent before the transaction, by [`Request::WriteExtent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenExtent {
    /// The position of the operation in the transaction: a write or an append without data.
    pub operation: u32,
    /// The number with which the data was sent.
    pub upload: TransferId,
    /// The length of the data, in bytes.
    pub length_bytes: u64,
}

/// The state that a read concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadState {
    /// A snapshot; `None` for the latest state.
    pub snapshot: Option<SnapshotId>,
    /// Operations that are applied to the state before it is read. No other client sees them.
    pub draft: Draft,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first request of a client. The reply is `Welcome`.
    Hello {
        /// [`PROTOCOL`], or [`GROUP_PROTOCOL`](super::GROUP_PROTOCOL) for one of several groups.
        protocol: u32,
    },
    /// Begins a snapshot of the latest state. The reply is `Begun`.
    Begin,
    /// Ends a snapshot. The reply is `Done`, also if no snapshot has this number.
    End(SnapshotId),
    /// Reads bytes. The reply is `Data`.
    Read {
        /// The state.
        state: ReadState,
        /// The name of the blob.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The position of the first byte.
        offset: u64,
        /// The number of bytes, at most [`DATA_BYTES_MAX`].
        length_bytes: u32,
    },
    /// Asks for the attributes of a blob. The reply is `Stat`.
    Stat {
        /// The state.
        state: ReadState,
        /// The name of the blob.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Lists names. The reply is `Names`.
    List {
        /// The state.
        state: ReadState,
        /// The beginning of the names.
        #[serde(with = "serde_bytes")]
        prefix: Vec<u8>,
        /// Only later names are listed; empty for all.
        #[serde(with = "serde_bytes")]
        after: Vec<u8>,
        /// The largest number of names, at most [`NAMES_MAX`]. There may be fewer.
        count_max: u32,
    },
    /// Sends a part of an upload. Parts are sent in order, and the first one, at 0, begins the
    /// upload anew. The reply is `Done`.
    Upload {
        /// The upload.
        upload: TransferId,
        /// The position of the part.
        offset: u64,
        /// At most [`DATA_BYTES_MAX`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Removes an upload, or a long reply. The reply is `Done`, also if none has this number.
    Discard(TransferId),
    /// Commits a transaction. The reply is `Committed` or `Refused`.
    Commit(Transaction),
    /// Commits a transaction whose encoding was uploaded, and ends the upload. The reply is
    /// `Committed` or `Refused`.
    CommitUploaded(TransferId),
    /// Asks for a part of a long reply. The reply is `Data`, with at most [`DATA_BYTES_MAX`] bytes.
    Fetch {
        /// The long reply.
        reply: TransferId,
        /// The position of the part.
        offset: u64,
    },
    /// Removes all data that no state needs. The reply is `Done`.
    Collect,
    /// Asks for the first position with data. The reply is `Position`.
    NextData {
        /// The state.
        state: ReadState,
        /// The name of the blob.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The first position.
        offset: u64,
    },
    /// Asks for the counters of the server. The reply is `Counters`.
    Counters,
    /// Concerns joint transactions, or snapshots of several groups. The reply is `Joint` or `Done`.
    Joint(JointRequest),
    /// Sends a part of the data of an operation, which the server writes as an extent before the
    /// transaction is committed. Parts are sent in order, and the first one, at 0, begins anew. The
    /// reply is `Done`.
    WriteExtent {
        /// The upload. No other upload of the client has its number.
        upload: TransferId,
        /// The position of the part.
        offset: u64,
        /// At most [`DATA_BYTES_MAX`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Commits a transaction, the data of some of whose operations was sent before, and ends these
    /// uploads. The reply is `Committed` or `Refused`.
    CommitWritten {
        /// The transaction.
        transaction: Transaction,
        /// The data, ascending by the positions of the operations.
        #[serde(deserialize_with = "at_most::<OPERATIONS_MAX, _, _>")]
        extents: Vec<WrittenExtent>,
    },
}

/// The position of [`Request::WriteExtent`] among the requests.
const WRITE_EXTENT: u32 = 15;

/// A [`Request::WriteExtent`] whose data is borrowed, so that it is copied neither before it is
/// encoded nor after it was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentPart<'a> {
    /// The upload.
    pub upload: TransferId,
    /// The position of the part.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
}

impl<'a> ExtentPart<'a> {
    /// Returns the encoding of the request.
    pub fn encode(&self) -> Vec<u8> {
        let head = encode(&(WRITE_EXTENT, self.upload, self.offset, self.data.len() as u64));
        let mut bytes = Vec::with_capacity(head.len() + self.data.len());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(self.data);
        bytes
    }

    /// Returns the part, if the bytes are the encoding of a [`Request::WriteExtent`].
    pub fn decode(bytes: &'a [u8]) -> Option<ExtentPart<'a>> {
        let ((number, upload, offset, length), data) =
            decode_first::<(u32, TransferId, u64, u64)>(bytes).ok()?;
        let is_part = number == WRITE_EXTENT && length == data.len() as u64;
        is_part.then_some(ExtentPart { upload, offset, data })
    }

    /// Returns the request without the data, which is enough to check and to count it.
    pub fn without_data(&self) -> Request {
        Request::WriteExtent { upload: self.upload, offset: self.offset, data: Vec::new() }
    }
}

impl Request {
    /// Returns the kind for which the request is counted.
    pub fn kind(&self) -> RequestKind {
        match self {
            Request::Read { .. } | Request::NextData { .. } => RequestKind::Read,
            Request::Stat { .. } => RequestKind::Stat,
            Request::List { .. } => RequestKind::List,
            Request::Commit(_) | Request::CommitUploaded(_) | Request::CommitWritten { .. } => {
                RequestKind::Commit
            }
            Request::Begin | Request::End(_) => RequestKind::Snapshot,
            Request::Upload { .. }
            | Request::WriteExtent { .. }
            | Request::Discard(_)
            | Request::Fetch { .. } => RequestKind::Transfer,
            Request::Hello { .. } | Request::Collect | Request::Counters | Request::Joint(_) => {
                RequestKind::Other
            }
        }
    }
}

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The client is accepted.
    Welcome {
        /// The latest state.
        version: Version,
    },
    /// A snapshot was begun.
    Begun {
        /// Its number.
        snapshot: SnapshotId,
        /// Its state.
        version: Version,
    },
    /// The request has no other result.
    Done,
    /// Bytes. For a read they are fewer than requested only at the end of the blob.
    Data(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The attributes of a blob; `None` if no blob has this name.
    Stat(Option<BlobStat>),
    /// Names of blobs with their attributes, in ascending order.
    Names {
        /// The names.
        #[serde(deserialize_with = "at_most::<NAMES_MAX, _, _>")]
        names: Vec<(Vec<u8>, BlobStat)>,
        /// Whether there are no later names.
        is_complete: bool,
    },
    /// The transaction is committed.
    Committed(Committed),
    /// The transaction was not committed.
    Refused(Refusal),
    /// The reply is longer than the request allows. `Fetch` returns parts of its encoding.
    Long {
        /// The number of the reply.
        reply: TransferId,
        /// The length of its encoding, in bytes.
        length_bytes: u64,
    },
    /// The server does not have the snapshot, the upload or the long reply, because it was
    /// restarted or has ended the session of the client.
    Unknown,
    /// The request failed.
    Failed(Failure),
    /// The first position with data, in bytes; `None` if no data follows up to the end of the blob.
    Position(Option<u64>),
    /// The counters of the server.
    Counters(Box<StoreCounters>),
    /// The reply to a `Joint` request.
    Joint(JointReply),
}

/// The position of [`Reply::Data`] among the replies.
const DATA: u32 = 3;
/// The largest encoding of a [`Reply::Data`] without its data, in bytes.
const DATA_HEAD_BYTES_MAX: usize = 16;

impl Reply {
    /// Returns a buffer for the data of [`Reply::Data`], which [`into_encoding`] extends without
    /// another allocation. It has `length` zeros.
    ///
    /// [`into_encoding`]: Reply::into_encoding
    pub fn data_buffer(length: usize) -> Vec<u8> {
        // The kernel has zeros for an allocation of this size, so they are not written.
        let mut data = vec![0; length + DATA_HEAD_BYTES_MAX];
        data.truncate(length);
        data
    }

    /// Returns the encoding. The encoding of data is made in the buffer of the data.
    pub fn into_encoding(self) -> Vec<u8> {
        match self {
            Reply::Data(mut data) => {
                data.splice(0..0, encode(&(DATA, data.len() as u64)));
                data
            }
            other => encode(&other),
        }
    }

    /// Returns the data, if the bytes are the encoding of a [`Reply::Data`].
    pub fn decode_data(bytes: &[u8]) -> Option<&[u8]> {
        let ((number, length), data) = decode_first::<(u32, u64)>(bytes).ok()?;
        (number == DATA && length == data.len() as u64).then_some(data)
    }
}

#[cfg(test)]
mod tests {
    use quell_testkit::Random;

    use super::*;
    use crate::blob::{
        CellType, Conflict, FileAttributes, JointDecision, JointId, OperationResult, Outcome, Overflow, Part,
        Preparation, Proof, Read, Transform, TransformKind,
    };
    use crate::{decode, encode};

    const FILE: FileAttributes = FileAttributes { mode: 0o100_644, uid: 1, gid: 2 };

    fn operations() -> Vec<Operation> {
        let name = b"name".to_vec();
        let transform = Transform::one(TransformKind::Add, CellType::U64, Overflow::Wrap, &[1; 8]);
        vec![
            Operation::Create { name: name.clone(), may_exist: true },
            Operation::Write { name: name.clone(), offset: 1 << 40, data: vec![1; 300] },
            Operation::Append { name: name.clone(), data: vec![2; 3] },
            Operation::Resize { name: name.clone(), size_bytes: 7 },
            Operation::Transform { name: name.clone(), offset: 8, transform },
            Operation::Rename { name: name.clone(), to: b"other".to_vec() },
            Operation::SetAttributes { name: name.clone(), file: Some(FILE), modified_ns: Some(5) },
            Operation::Delete { name },
        ]
    }

    fn requests() -> Vec<Request> {
        let name = b"name".to_vec();
        let state = ReadState { snapshot: Some(SnapshotId(3)), draft: Draft::Inline(operations()) };
        let latest = ReadState { snapshot: None, draft: Draft::Uploaded(TransferId(9)) };
        let reads = [Part::Existence, Part::Size, Part::Range { start: 1, end: 9 }, Part::NamesWithPrefix];
        let reads = reads.into_iter().map(|part| Read { name: name.clone(), part }).collect();
        let transaction = Transaction {
            reads,
            snapshot: Some(Version(4)),
            operations: operations(),
            ..Transaction::default()
        };
        let written = WrittenExtent { operation: 1, upload: TransferId(2), length_bytes: 1 << 26 };
        [
            Request::Hello { protocol: PROTOCOL },
            Request::Begin,
            Request::End(SnapshotId(u64::MAX)),
            Request::Read { state, name: name.clone(), offset: 5, length_bytes: 800 },
            Request::Stat { state: latest.clone(), name: name.clone() },
            Request::NextData { state: latest.clone(), name, offset: 7 },
            Request::List { state: latest, prefix: b"a".to_vec(), after: b"ab".to_vec(), count_max: 10 },
            Request::Upload { upload: TransferId(1), offset: 0, data: vec![7; 100] },
            Request::Discard(TransferId(1)),
            Request::Commit(transaction.clone()),
            Request::CommitUploaded(TransferId(1)),
            Request::WriteExtent { upload: TransferId(2), offset: 1 << 20, data: vec![8; 100] },
            Request::CommitWritten { transaction, extents: vec![written] },
            Request::Fetch { reply: TransferId(2), offset: 1 << 20 },
            Request::Collect,
            Request::Counters,
        ]
        .into_iter()
        .chain(joint_requests().into_iter().map(Request::Joint))
        .collect()
    }

    const JOINT: JointId = JointId { client: 7, number: 8 };
    const PROOF: Proof = Proof([9; 32]);

    fn decision() -> JointDecision {
        JointDecision { id: JOINT, coordinator: 1, outcome: Outcome::Aborted, proof: PROOF }
    }

    fn joint_requests() -> Vec<JointRequest> {
        let transaction = Transaction { operations: operations(), ..Transaction::default() };
        let participants = vec![1, 3];
        let begun = Version(4);
        vec![
            JointRequest::Prepare(Preparation {
                id: JOINT,
                begun,
                coordinator: 1,
                participants: participants.clone(),
                transaction,
            }),
            JointRequest::Commit { id: JOINT, participants, votes: vec![PROOF; 2] },
            JointRequest::Resolve(JOINT),
            JointRequest::Apply(decision()),
            JointRequest::Forget { id: JOINT, participants: vec![3], confirmations: vec![PROOF] },
            JointRequest::Undecided,
            JointRequest::Compare(SnapshotId(3)),
            JointRequest::Hold(100),
        ]
    }

    fn replies() -> Vec<Reply> {
        let stat = BlobStat { size_bytes: 1, modified_ns: 2, file: Some(FILE) };
        let read = Read { name: b"n".to_vec(), part: Part::Size };
        let results =
            vec![OperationResult::Done, OperationResult::Appended(9), OperationResult::Before(vec![1; 8])];
        vec![
            Reply::Welcome { version: Version(1) },
            Reply::Begun { snapshot: SnapshotId(1), version: Version(2) },
            Reply::Done,
            Reply::Data(vec![3; 800]),
            Reply::Stat(Some(stat)),
            Reply::Names { names: vec![(b"a".to_vec(), stat)], is_complete: true },
            Reply::Committed(Committed { version: Version(3), results }),
            Reply::Refused(Refusal::Conflict(vec![Conflict { read, changed: Part::Size }])),
            Reply::Long { reply: TransferId(1), length_bytes: 1 << 30 },
            Reply::Unknown,
            Reply::Position(Some(1 << 62)),
            Reply::Counters(Box::new(StoreCounters { clients: 3, ..StoreCounters::default() })),
            Reply::Joint(JointReply::Prepared {
                committed: Committed { version: Version(3), results: Vec::new() },
                vote: PROOF,
            }),
            Reply::Joint(JointReply::Decided { decision: decision(), unconfirmed: vec![1] }),
            Reply::Joint(JointReply::Applied { confirmation: PROOF }),
            Reply::Joint(JointReply::Undecided(vec![(JOINT, 1)])),
            Reply::Joint(JointReply::Latest(true)),
            Reply::Refused(Refusal::Locked { id: JOINT, coordinator: 1 }),
            Reply::Refused(Refusal::Aborted),
            Reply::Failed(Failure::from(quell_vfs::ErrorKind::NotFound)),
        ]
    }

    /// Decodes bytes, which must be refused or be the encoding of a message.
    fn check(bytes: &[u8]) {
        if let Ok(request) = decode::<Request>(bytes) {
            assert_eq!(decode::<Request>(&encode(&request)).unwrap(), request);
        }
        if let Ok(reply) = decode::<Reply>(bytes) {
            assert_eq!(decode::<Reply>(&encode(&reply)).unwrap(), reply);
        }
    }

    #[test]
    fn every_message_is_encoded_and_decoded() {
        for request in requests() {
            assert_eq!(decode::<Request>(&encode(&request)).unwrap(), request);
        }
        for reply in replies() {
            assert_eq!(decode::<Reply>(&encode(&reply)).unwrap(), reply);
        }
    }

    #[test]
    fn data_that_is_not_copied_has_the_same_encoding() {
        for length in [0, 1, 127, 128, 70_000, DATA_BYTES_MAX] {
            let data: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let part = ExtentPart { upload: TransferId(300), offset: 5 << 20, data: &data };
            let request =
                Request::WriteExtent { upload: part.upload, offset: part.offset, data: data.clone() };
            let encoded = part.encode();
            assert_eq!(encoded, encode(&request));
            assert_eq!(ExtentPart::decode(&encoded), Some(part));
            assert_eq!(ExtentPart::decode(&encoded[..encoded.len() - 1]), None);
            let reply = Reply::Data(data.clone());
            assert_eq!(reply.clone().into_encoding(), encode(&reply));
            let mut buffer = Reply::data_buffer(length);
            buffer.copy_from_slice(&data);
            let encoded = Reply::Data(buffer).into_encoding();
            assert_eq!(encoded, encode(&reply));
            assert_eq!(Reply::decode_data(&encoded), Some(&data[..]));
            assert_eq!(Reply::decode_data(&encoded[..encoded.len() - 1]), None);
        }
        for request in requests() {
            let is_part = matches!(request, Request::WriteExtent { .. });
            assert_eq!(ExtentPart::decode(&encode(&request)).is_some(), is_part, "{request:?}");
        }
        for reply in replies() {
            let encoded = encode(&reply);
            assert_eq!(Reply::decode_data(&encoded).is_some(), matches!(reply, Reply::Data(_)), "{reply:?}");
            assert_eq!(reply.into_encoding(), encoded);
        }
    }

    #[test]
    fn the_examples_of_the_format_are_encoded() {
        let state = ReadState { snapshot: None, draft: Draft::Inline(Vec::new()) };
        let read = Request::Read { state, name: b"a/b".to_vec(), offset: 300, length_bytes: 800 };
        assert_eq!(encode(&read), [3, 0, 0, 0, 3, b'a', b'/', b'b', 0xac, 2, 0xa0, 6]);
        assert_eq!(encode(&Reply::Data(b"hi".to_vec())), [3, 2, b'h', b'i']);
    }

    #[test]
    fn random_and_changed_bytes_are_refused_or_decoded() {
        let mut random = Random::new(16);
        let messages: Vec<Vec<u8>> =
            requests().iter().map(encode).chain(replies().iter().map(encode)).collect();
        for _ in 0..20_000 {
            let length = random.below(60);
            check(&random.bytes(length));
            let mut message = random.pick(&messages).clone();
            for _ in 0..=random.below(3) {
                let at = random.below(message.len());
                match random.below(3) {
                    0 => message[at] = random.below(256) as u8,
                    1 => message.truncate(at + 1),
                    _ => message.insert(at, random.below(256) as u8),
                }
            }
            check(&message);
        }
    }

    #[test]
    fn a_list_with_too_many_elements_is_refused_before_memory_is_allocated() {
        let operation = Operation::Delete { name: vec![b'a'] };
        let most = Draft::Inline(vec![operation.clone(); OPERATIONS_MAX]);
        assert_eq!(decode::<Draft>(&encode(&most)).unwrap(), most);
        assert!(decode::<Draft>(&encode(&Draft::Inline(vec![operation; OPERATIONS_MAX + 1]))).is_err());
        // 2^60 elements, and no bytes of them.
        let mut huge = vec![0];
        huge.extend([0x80; 8]);
        huge.push(0x10);
        assert!(decode::<Draft>(&huge).is_err());
    }
}
