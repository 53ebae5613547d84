//! The address on which a member listens for others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use quell_wire::pool::Listen;

use crate::failure::Failure;

/// The address of an interface of this node.
struct OwnAddress {
    interface: String,
    address: IpAddr,
    is_loopback: bool,
}

/// Returns the address to listen on, with port 0.
///
/// # Errors
/// `Failure::cannot` if the node has no suitable address, or several of which none was selected.
pub fn choose(listen: &Listen) -> Result<SocketAddr, Failure> {
    let address = match listen {
        Listen::Loopback => Ipv4Addr::LOCALHOST.into(),
        Listen::Interface(name) => {
            let own = own_addresses()?;
            let found = preferred(own.iter().filter(|own| own.interface == *name));
            found.ok_or_else(|| Failure::cannot(format!("the interface {name} has no address")))?
        }
        Listen::Network { address, prefix_bits } => {
            let own = own_addresses()?;
            let found = preferred(own.iter().filter(|own| is_within(own.address, *address, *prefix_bits)));
            let none = || format!("this node has no address in the network {address}/{prefix_bits}");
            found.ok_or_else(|| Failure::cannot(none()))?
        }
        Listen::Host { name, addresses } => of_host(name, addresses)?,
    };
    Ok(SocketAddr::new(address, 0))
}

fn of_host(name: &str, addresses: &[IpAddr]) -> Result<IpAddr, Failure> {
    // A name that resolves to a loopback address on the starting node means that node itself.
    if let Some(found) = addresses.iter().find(|address| !address.is_loopback() && is_own(**address)) {
        return Ok(*found);
    }
    let resolved = (name, 0).to_socket_addrs().into_iter().flatten().map(|resolved| resolved.ip());
    if let Some(found) = resolved.filter(|address| !address.is_loopback()).find(|address| is_own(*address)) {
        return Ok(found);
    }
    let own = own_addresses()?;
    let others: Vec<&OwnAddress> = own.iter().filter(|own| !own.is_loopback).collect();
    let mut interfaces: Vec<&str> = others.iter().map(|own| own.interface.as_str()).collect();
    interfaces.dedup();
    match (preferred(others.iter().copied()), interfaces.as_slice()) {
        (Some(address), [_]) => Ok(address),
        (None, _) => Err(Failure::cannot("this node has no address that other nodes can reach")),
        (Some(_), interfaces) => Err(Failure::cannot(format!(
            "{name} is not an address of this node, which has several interfaces; select one with --interface ({}) or --network",
            interfaces.join(", ")
        ))),
    }
}

/// Returns the first IPv4 address, or else the first address.
fn preferred<'a>(addresses: impl Iterator<Item = &'a OwnAddress>) -> Option<IpAddr> {
    let mut addresses: Vec<IpAddr> = addresses.map(|own| own.address).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied()
}

/// Returns whether this node has an address, so that a socket can be bound to it.
fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && TcpListener::bind((address, 0)).is_ok()
}

/// Returns the addresses of all interfaces that are up, except link-local IPv6 addresses, which are
/// incomplete without an interface.
fn own_addresses() -> Result<Vec<OwnAddress>, Failure> {
    let interfaces = getifaddrs().map_err(|e| Failure::cannot(format!("cannot list the interfaces: {e}")))?;
    let mut own = Vec::new();
    for interface in interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP)) {
        let Some(address) = interface.address else { continue };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| address.ip());
        let v6 = v6.filter(|address| !address.is_unicast_link_local()).map(IpAddr::V6);
        let is_loopback = interface.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        own.extend(v4.or(v6).map(|address| OwnAddress {
            interface: interface.interface_name.clone(),
            address,
            is_loopback,
        }));
    }
    own.sort_by(|a, b| a.interface.cmp(&b.interface));
    Ok(own)
}

/// Returns whether the first `prefix_bits` bits of two addresses are equal.
fn is_within(address: IpAddr, network: IpAddr, prefix_bits: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let ((a, a_max), (b, b_max)) = (bits(address), bits(network));
    let different = a ^ b;
    a_max == b_max && prefix_bits <= a_max && different.leading_zeros() >= u32::from(prefix_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        let within = |address: &str, network: &str, bits| {
            is_within(address.parse().unwrap(), network.parse().unwrap(), bits)
        };
        assert!(within("10.1.2.3", "10.1.0.0", 16));
        assert!(!within("10.2.2.3", "10.1.0.0", 16));
        assert!(within("10.2.2.3", "0.0.0.0", 0));
        assert!(within("10.2.2.3", "10.2.2.3", 32));
        assert!(!within("10.2.2.3", "10.2.2.2", 32));
        assert!(!within("10.2.2.3", "10.2.2.3", 33), "more bits than an address has");
        assert!(within("fd00::17", "fd00::", 64));
        assert!(!within("fd00::17", "0.0.0.0", 0), "another family");
    }

    #[test]
    fn the_loopback_address_is_chosen_only_if_it_is_named() {
        let loopback = choose(&Listen::Loopback).unwrap();
        assert_eq!(loopback, "127.0.0.1:0".parse().unwrap());
        let interface = choose(&Listen::Interface("lo".into())).unwrap();
        assert!(interface.ip().is_loopback(), "{interface}");
        let network = Listen::Network { address: "127.0.0.0".parse().unwrap(), prefix_bits: 8 };
        assert_eq!(choose(&network).unwrap(), loopback);
        assert!(choose(&Listen::Interface("none".into())).is_err());
        let host = Listen::Host { name: "localhost".into(), addresses: vec![loopback.ip()] };
        assert!(choose(&host).is_ok_and(|found| !found.ip().is_loopback()) || choose(&host).is_err());
    }
}
