//! What an implementation can do, read by doors before they choose how to serve it and by the
//! conformance suite, which checks that every claim is true in both directions.

/// The claims of one mounted file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Names, attributes, link targets and extended attributes never change while mounted: a door
    /// may keep every answer, negative ones too, for ever.
    pub immutable: bool,
    /// Some node has extended attributes (when false, `xattr` answers `None` for every node).
    pub xattrs: bool,
    /// Some node has a POSIX access control list, kept as `system.posix_acl_*` attributes.
    pub acls: bool,
}
