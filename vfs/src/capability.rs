//! The capabilities of an implementation. A frontend reads them to choose how to serve the file
//! system. The conformance suite checks that each is claimed if and only if it holds.

/// The capabilities of one mounted file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Whether names, attributes, link targets and extended attributes never change while mounted.
    /// A frontend may then cache every answer, including negative ones, without expiry.
    pub immutable: bool,
    /// Whether at least one node has extended attributes, or can get them. If false, `xattr`
    /// returns `None` for every node.
    pub xattrs: bool,
    /// Whether at least one node has a POSIX access control list, kept as `system.posix_acl_*`
    /// attributes.
    pub acls: bool,
    /// Whether an operation whose [`Context::deadline`](crate::Context::deadline) has passed
    /// returns `TimedOut` and changes nothing. If false, deadlines have no effect.
    pub deadlines: bool,
}
