//! The users and groups of the user namespace of this process, as numbers of the namespace above
//! it. The nodes of a job exchange the owner and group of files; their user namespaces can differ.

use std::fs;

/// The number that stands for an owner or group without a number outside the namespace. The kernel
/// gives it to no user.
pub const UNMAPPED: u32 = u32::MAX;

/// The map of the users, or of the groups, of a user namespace: `uid_map` or `gid_map` in
/// user_namespaces(7).
#[derive(Debug, PartialEq, Eq)]
pub struct IdMap {
    /// For each range its first number inside and outside, and its length.
    ranges: Vec<(u32, u32, u32)>,
    /// The number that the kernel shows for a user or group that is not mapped.
    overflow: u32,
}

impl IdMap {
    /// Returns the map of the users of this process.
    pub fn of_users() -> IdMap {
        IdMap::read("/proc/self/uid_map", "/proc/sys/kernel/overflowuid")
    }

    /// Returns the map of the groups of this process.
    pub fn of_groups() -> IdMap {
        IdMap::read("/proc/self/gid_map", "/proc/sys/kernel/overflowgid")
    }

    fn read(map: &str, overflow: &str) -> IdMap {
        let overflow = fs::read_to_string(overflow).ok().and_then(|text| text.trim().parse().ok());
        // A kernel without user namespaces has no such file, and maps each number to itself.
        let map = fs::read_to_string(map).unwrap_or_else(|_| format!("0 0 {UNMAPPED}"));
        IdMap::parse(&map, overflow.unwrap_or(65534))
    }

    fn parse(map: &str, overflow: u32) -> IdMap {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse);
            let mut next = || numbers.next()?.ok();
            Some((next()?, next()?, next()?))
        };
        IdMap { ranges: map.lines().filter_map(range).collect(), overflow }
    }

    /// Returns the number outside the namespace; [`UNMAPPED`] for the number that the kernel shows
    /// for users or groups that are not mapped.
    pub fn outside(&self, inside: u32) -> u32 {
        let in_range = |(first, outside, length): &(u32, u32, u32)| {
            let offset = inside.checked_sub(*first).filter(|offset| offset < length)?;
            outside.checked_add(offset)
        };
        self.ranges.iter().find_map(in_range).unwrap_or(UNMAPPED)
    }

    /// Returns the number inside the namespace, as the kernel shows it.
    pub fn inside(&self, outside: u32) -> u32 {
        let in_range = |(inside, first, length): &(u32, u32, u32)| {
            let offset = outside.checked_sub(*first).filter(|offset| offset < length)?;
            inside.checked_add(offset)
        };
        self.ranges.iter().find_map(in_range).unwrap_or(self.overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_namespace_changes_no_number() {
        let map = IdMap::parse("         0          0 4294967295\n", 65534);
        for id in [0, 1000, 65534, u32::MAX - 1] {
            assert_eq!((map.outside(id), map.inside(id)), (id, id));
        }
        assert_eq!((map.outside(UNMAPPED), map.inside(UNMAPPED)), (UNMAPPED, 65534));
    }

    #[test]
    fn the_owner_in_a_container_is_not_root_outside_of_it() {
        // User 1000 is root in the container, and has subordinate users for the others.
        let map = IdMap::parse("0 1000 1\n1 100000 65536\n", 65534);
        assert_eq!((map.outside(0), map.inside(1000)), (1000, 0));
        assert_eq!((map.outside(7), map.inside(100_006)), (7 + 99_999, 7));
        // Root outside is unknown inside.
        assert_eq!(map.inside(0), 65534);
        let alone = IdMap::parse("0 1000 1\n", 65534);
        assert_eq!((alone.outside(65534), alone.inside(1001)), (UNMAPPED, 65534));
    }

    #[test]
    fn ranges_at_the_end_do_not_overflow() {
        let map = IdMap::parse("10 4294967290 100\nnot a line\n", 65534);
        assert_eq!(map.outside(15), u32::MAX);
        assert_eq!(map.outside(16), UNMAPPED);
        assert_eq!(map.outside(9), UNMAPPED);
    }

    #[test]
    fn the_map_of_this_process_is_read() {
        let own = rustix::process::geteuid().as_raw();
        let map = IdMap::of_users();
        assert_eq!(map.inside(map.outside(own)), own);
    }
}
