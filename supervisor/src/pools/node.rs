//! The names by which launchers reach the nodes of a pool.

/// A node on which a daemon is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name by which the launcher reaches it.
    pub name: String,
    /// The rank of its broker, in a Flux instance.
    pub rank: Option<usize>,
}

/// Returns the name of a node without a preceding user name and `@`.
pub fn host_of(name: &str) -> &str {
    name.rsplit_once('@').map_or(name, |(_, host)| host)
}
