//! Answers the requests of other nodes.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use quell_threads::lock;
use quell_transport::peer::{self, ClientHandler, ClientIdentity, Handler, MemberId};
use quell_wire::job::{CheckResult, PROTOCOL, REQUEST_BYTES_MAX, Reply, Request, TEXT_BYTES_MAX};
use quell_wire::{decode, encode};

use crate::contents::{Contents, ContentsRequest};
use crate::shared_blocks::SharedBlocks;
use crate::tree::Tree;

/// The part of a node that answers other nodes.
pub struct Serving {
    pub contents: Arc<Contents>,
    /// `None` unless this node is the reader.
    pub tree: Mutex<Option<Tree>>,
    /// For the files by position, the results of the checks of whole trees that this node has made
    /// as the reader.
    pub checked: Mutex<BTreeMap<u32, CheckResult>>,
    /// `None` if this node shares no blocks of files.
    pub shared_blocks: Option<Arc<SharedBlocks>>,
    /// The clients that have requested shared blocks. A node requests shared blocks and the files
    /// of the job through separate connections. Clients that have ended can be among them.
    pub block_clients: Mutex<HashSet<MemberId>>,
}

/// Passes the requests of all nodes to one handler: every node of the job may send each request.
pub struct ServeNodes(pub Arc<Serving>);

impl ClientHandler for ServeNodes {
    fn handler(&self, _client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        Some(self.0.clone())
    }

    fn ended(&self, client: MemberId) {
        lock(&self.0.block_clients).remove(&client);
    }
}

impl Handler for Serving {
    fn handle(&self, request: peer::Request, reply: peer::Reply) {
        let is_bounded = request.bytes.len() <= REQUEST_BYTES_MAX;
        let decoded = decode::<Request<'_>>(&request.bytes).ok().filter(|_| is_bounded);
        let client = request.from;
        let Some(request) = decoded else {
            return reply.send(encode(&Reply::Refused("the request cannot be read")));
        };
        match request {
            Request::Files => self.contents.answer(ContentsRequest::Files, reply),
            Request::Block { file, block } => {
                self.contents.answer(ContentsRequest::Block { file, block }, reply)
            }
            Request::SharedBlock(id) => match &self.shared_blocks {
                Some(blocks) => {
                    lock(&self.block_clients).insert(client);
                    blocks.answer(id, reply);
                }
                None => reply.send(encode(&Reply::NotShared)),
            },
            Request::Samples if lock(&self.tree).is_some() => {
                self.contents.answer(ContentsRequest::Samples, reply)
            }
            Request::Checked { file } if lock(&self.tree).is_some() => {
                let result = lock(&self.checked).get(&file).cloned();
                reply.send(encode(&Reply::Checked(result)));
            }
            Request::Join { protocol, .. } if protocol != PROTOCOL => {
                reply.send(encode(&Reply::Refused("the reader has another version of quell")));
            }
            request => {
                let mut tree = lock(&self.tree);
                let answer = tree.as_mut().and_then(|tree| answer_of_tree(tree, &request));
                drop(tree);
                reply.send(encode(&answer.unwrap_or(Reply::Refused("the request is not for this node"))));
            }
        }
    }
}

/// Performs a request to the reader; `None` for one that is not valid.
fn answer_of_tree(tree: &mut Tree, request: &Request<'_>) -> Option<Reply<'static>> {
    match *request {
        Request::Join { address, name, .. } if name.len() <= TEXT_BYTES_MAX => {
            tree.join(address, name).map(Reply::Placed)
        }
        Request::Lost { node, parent } => tree.lost(node, parent).map(Reply::Placed),
        Request::Complete { node, received_bytes, read_bytes, milliseconds } => {
            tree.complete(node, received_bytes, read_bytes, milliseconds);
            Some(Reply::Noted)
        }
        Request::Tree => Some(Reply::Tree(tree.states())),
        Request::Join { .. }
        | Request::Files
        | Request::Block { .. }
        | Request::Samples
        | Request::Checked { .. }
        | Request::ReadLink { .. }
        | Request::CreateLink { .. }
        | Request::RemoveLink { .. }
        | Request::SharedBlock(_) => None,
    }
}
