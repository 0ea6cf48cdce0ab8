import Glibc

/// An IPv4 or IPv6 address. Two addresses are equal if their bytes are: an IPv6 address that carries an IPv4 address is
/// another one than the IPv4 address.
package struct IPAddress: Sendable, Hashable, CustomStringConvertible {
    /// 4 bytes of an IPv4 address, 16 of an IPv6 address, the first byte of the address first.
    package let bytes: [UInt8]

    /// Nil for any other number of bytes.
    package init?(bytes: [UInt8]) {
        guard bytes.count == 4 || bytes.count == 16 else { return nil }
        self.bytes = bytes
    }

    /// Reads four decimal numbers without leading zeros, or an IPv6 address by RFC 4291, 2.2, without brackets and
    /// without a zone. Nil for every other spelling.
    package init?(_ text: String) {
        // inet_pton(3) ends at a zero byte.
        guard !text.utf8.contains(0) else { return nil }
        var bytes = [UInt8](repeating: 0, count: 16)
        if inet_pton(AF_INET, text, &bytes) == 1 {
            self.bytes = Array(bytes.prefix(4))
        } else if inet_pton(AF_INET6, text, &bytes) == 1 {
            self.bytes = bytes
        } else {
            return nil
        }
    }

    /// The shortest spelling (RFC 5952), without brackets.
    package var description: String {
        var text = [UInt8](repeating: 0, count: Int(INET6_ADDRSTRLEN))
        let family = bytes.count == 4 ? AF_INET : AF_INET6
        let isWritten = text.withUnsafeMutableBytes { text in
            inet_ntop(family, bytes, text.baseAddress?.assumingMemoryBound(to: CChar.self), socklen_t(text.count))
        }
        precondition(isWritten != nil, "inet_ntop(3) has room for every address")
        return String(decoding: text.prefix { $0 != 0 }, as: UTF8.self)
    }
}

/// All addresses that begin with the same bits: `10.0.0.0/8`.
package struct AddressRange: Sendable, Hashable, CustomStringConvertible {
    package let first: IPAddress
    /// How many bits all addresses of the range share.
    package let prefix: Int

    /// Reads an address with a slash and a prefix, or one address alone. Nil for another text, for a prefix that is
    /// longer than the address, and for an address with bits behind its prefix.
    package init?(_ text: String) {
        let parts = text.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
        guard let first = IPAddress(String(parts[0])) else { return nil }
        let bits = first.bytes.count * 8
        self.first = first
        guard parts.count == 2 else {
            prefix = bits
            return
        }
        // A sign or leading zeros would be a second spelling.
        guard let prefix = Int(parts[1]), "\(prefix)" == parts[1], (0...bits).contains(prefix) else { return nil }
        self.prefix = prefix
        guard Self.begin(of: first, prefix) == first.bytes else { return nil }
    }

    package func contains(_ address: IPAddress) -> Bool {
        address.bytes.count == first.bytes.count && Self.begin(of: address, prefix) == first.bytes
    }

    package var description: String { "\(first)/\(prefix)" }

    /// The address with zeros behind its first `prefix` bits.
    private static func begin(of address: IPAddress, _ prefix: Int) -> [UInt8] {
        address.bytes.enumerated().map { index, byte in
            let bits = min(8, max(0, prefix - index * 8))
            return byte & ~UInt8(truncatingIfNeeded: 0xFF >> bits)
        }
    }
}
