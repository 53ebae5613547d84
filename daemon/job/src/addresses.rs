//! The addresses at which a node serves other nodes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use quell_vfs::{Error, ErrorKind, Result};

/// Returns the addresses of this node that other nodes may be able to reach, those of IPv4 first.
/// `interface`: the only interface whose addresses count; without it, all but the loopback
/// interface.
pub fn own_addresses(interface: Option<&str>) -> Result<Vec<IpAddr>> {
    let failed = |e: nix::Error| Error::from_io(e.into(), "list", "the network interfaces");
    let mut own = Vec::new();
    for found in getifaddrs().map_err(failed)? {
        let is_up = found.flags.contains(InterfaceFlags::IFF_UP);
        let is_loopback = found.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let is_wanted = match interface {
            Some(name) => found.interface_name == name,
            None => !is_loopback,
        };
        let Some(address) = found.address.filter(|_| is_up && is_wanted) else { continue };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| address.ip());
        // A link-local address is incomplete without an interface.
        let v6 = v6.filter(|address| !address.is_unicast_link_local()).map(IpAddr::V6);
        own.extend(v4.or(v6));
    }
    own.sort_by_key(IpAddr::is_ipv6);
    match (own.is_empty(), interface) {
        (false, _) => Ok(own),
        (true, None) => Err(Error::new(
            ErrorKind::Unavailable,
            "find an address that other nodes can reach on",
            "any network interface but the loopback interface",
        )),
        (true, Some(name)) => Err(Error {
            source: Some("it has no address".into()),
            ..Error::new(ErrorKind::InvalidInput, "use the interface", name)
        }),
    }
}

/// Returns the address of this node from which it reaches another one.
pub fn address_towards(other: SocketAddr) -> Result<IpAddr> {
    let failed = |e| Error::from_io(e, "find a route to", other.to_string());
    let unspecified: IpAddr = match other.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // The connection of a datagram socket sends nothing.
    let socket = UdpSocket::bind((unspecified, 0)).map_err(failed)?;
    socket.connect(other).map_err(failed)?;
    Ok(socket.local_addr().map_err(failed)?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_selected_by_its_name() {
        let loopback = own_addresses(Some("lo")).unwrap();
        assert!(loopback.iter().all(IpAddr::is_loopback), "{loopback:?}");
        assert!(own_addresses(Some("no such interface")).is_err());
        // Other nodes cannot reach the loopback interface.
        let other = own_addresses(None).unwrap_or_default();
        assert!(!other.iter().any(IpAddr::is_loopback), "{other:?}");
    }

    #[test]
    fn a_node_reaches_itself_from_its_own_address() {
        assert_eq!(address_towards(([127, 0, 0, 1], 9).into()).unwrap(), Ipv4Addr::LOCALHOST);
    }
}
