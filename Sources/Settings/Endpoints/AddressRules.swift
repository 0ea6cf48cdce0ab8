import Encoding

/// The rules that say to which addresses webhooks may go: to public ones, and to those that `allowPrivate` of the
/// endpoint names.
///
/// A range is refused if an address of it can lead into the network of this server, or is no receiver on the internet.
/// IPv6 addresses that carry an IPv4 address are refused whatever they carry. Sources: the IANA special-purpose
/// registries for IPv4 and IPv6 (RFC 6890), and the clouds' own addresses.
package enum AddressRules {
    /// Why an address is refused, as the error says it.
    package enum Kind: String, Sendable, CaseIterable {
        case unspecified = "an unspecified address"
        case loopback = "an address of this machine"
        case privateUse = "an address of a private network"
        case shared = "an address that a provider shares (CGNAT)"
        case linkLocal = "an address of the local link"
        case metadata = "an address of a cloud's own services"
        case multicast = "a multicast address"
        case reserved = "a reserved address"
        case documentation = "an address of documentation or tests"
        case carrier = "an IPv6 address that carries an IPv4 address"
    }

    /// Nil for a public address.
    package static func kind(of address: IPAddress) -> Kind? {
        if let known = ranges.first(where: { $0.range.contains(address) }) { return known.kind }
        // IANA has given out no other IPv6 addresses for unicast (RFC 4291, 2.4).
        return address.bytes.count == 4 || globalUnicast.contains(address) ? nil : .reserved
    }

    private static let globalUnicast = range("2000::/3")

    /// The first range that has the address counts, so that narrower ones come before wider ones.
    private static let ranges = listed.flatMap { kind, texts in texts.map { (range: range($0), kind: kind) } }

    private static let listed: [(Kind, [String])] = [
        (.unspecified, ["0.0.0.0/8", "::"]),
        (.loopback, ["127.0.0.0/8", "::1"]),
        // Most clouds; Amazon's containers; Alibaba; Oracle; Azure; Amazon and Google by IPv6.
        (
            .metadata,
            [
                "169.254.169.254", "169.254.170.0/24", "100.100.100.200", "192.0.0.192", "168.63.129.16",
                "fd00:ec2::/32", "fd20:ce::254",
            ]
        ),
        (.privateUse, ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"]),
        (.shared, ["100.64.0.0/10"]),
        (.linkLocal, ["169.254.0.0/16", "fe80::/10"]),
        (.multicast, ["224.0.0.0/4", "ff00::/8"]),
        (
            .documentation,
            [
                "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "2001:db8::/32", "3fff::/20",
                "2001:2::/48",
            ]
        ),
        // Mapped, translated (RFC 2765), compatible, NAT64 (RFC 6052 and 8215), Teredo, 6to4.
        (
            .carrier,
            [
                "::ffff:0:0/96", "::ffff:0:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16",
            ]
        ),
        (.reserved, ["192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23"]),
    ]

    private static func range(_ text: String) -> AddressRange {
        guard let range = AddressRange(text) else { preconditionFailure("\(text) is no range") }
        return range
    }
}

/// The hosts and networks that an endpoint may be in although they are not public (`allowPrivate`).
package struct AllowedAddresses: Sendable, Equatable {
    /// In lower case.
    package private(set) var hosts: Set<String> = []
    package private(set) var ranges: [AddressRange] = []

    package init() {}

    /// Adds a host name, an address or a network.
    ///
    /// - Returns: false for a text that is none of them, also for an address in an unusual spelling. Then nothing was
    ///   added.
    package mutating func add(_ text: String) -> Bool {
        if let range = AddressRange(text) {
            ranges.append(range)
        } else if let name = EndpointURL.name(text) {
            hosts.insert(name)
        } else {
            return false
        }
        return true
    }

    /// Whether every address of the host is allowed.
    package func allows(host: String) -> Bool { hosts.contains { $0.isSameText(as: host) } }
    package func allows(_ address: IPAddress) -> Bool { ranges.contains { $0.contains(address) } }

    /// Why no webhook may go to this address of the host; nil: it may.
    package func refusal(of address: IPAddress, host: String) -> AddressRules.Kind? {
        allows(host: host) || allows(address) ? nil : AddressRules.kind(of: address)
    }
}
