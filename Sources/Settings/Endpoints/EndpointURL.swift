/// The URL of an endpoint, in the one spelling that every reader of URLs takes alike.
///
/// A URL is read by this program, by the HTTP client and by the resolver. If they disagreed about its host, the address
/// that was checked would be another one than the address that is connected to. So the grammar is narrow: a scheme, a
/// host without user, a port, and a path with a query of printable ASCII.
package struct EndpointURL: Sendable, Equatable, CustomStringConvertible {
    package static let bytesMax = 2048

    /// What the HTTP client gets. Scheme and host are in lower case.
    package let text: String
    /// A name in lower case, or an address without brackets.
    package let host: String
    /// The address that stands in the place of a name. Nil: the host is a name.
    package let address: IPAddress?
    package let isSecure: Bool

    package var description: String { text }

    /// Why a text is no URL of an endpoint, as the error of the configuration says it.
    package struct Defect: Error {
        package let problem: String
    }

    package init(_ text: String) throws(Defect) {
        guard text.utf8.count <= Self.bytesMax else {
            throw Defect(problem: "must have at most \(Self.bytesMax) characters")
        }
        // By bytes: a character of a text may be several of a URL.
        guard text.utf8.allSatisfy({ (0x21...0x7E).contains($0) }) else {
            throw Defect(
                problem: "must have no spaces and no letters beyond ASCII (a host in punycode, a path percent-encoded)")
        }
        guard
            let match = text.wholeMatch(
                of:
                    /(?i:(https?):\/\/)(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.\-]+)(?::([0-9]{1,5}))?((?:[\/?][^\\#"<>^`{|}]*)?)/
            )
        else {
            throw Defect(
                problem: "must be an address such as https://backend.example.com/hooks, without user and fragment")
        }
        let (_, scheme, host, port, rest) = match.output
        if let port, !(1...65_535).contains(Int(port) ?? 0) { throw Defect(problem: "has no port from 1 to 65535") }
        if host.hasPrefix("[") {
            guard let address = IPAddress(String(host.dropFirst().dropLast())), address.bytes.count == 16 else {
                throw Defect(problem: "has a host in brackets that is no IPv6 address")
            }
            (self.host, self.address) = (address.description, address)
        } else if let address = IPAddress(String(host)) {
            (self.host, self.address) = (address.description, address)
        } else if let name = Self.name(String(host)) {
            (self.host, self.address) = (name, nil)
        } else {
            throw Defect(
                problem: Self.isNumber(host.split(separator: ".", omittingEmptySubsequences: true).last ?? "")
                    ? "has a number as its host: spell an IPv4 address as four decimal numbers"
                    : "has a host that is no name")
        }
        isSecure = scheme.count == 5
        let shown = address?.bytes.count == 16 ? "[\(self.host)]" : self.host
        self.text = "\(scheme.lowercased())://\(shown)\(port.map { ":\($0)" } ?? "")\(rest)"
    }

    /// The host name in lower case. Nil for a text that is none: labels of 1 to 63 of a-z, 0-9 and -, at most 253 bytes
    /// in all, no dot at the end. A last label that is a number would be read as an IPv4 address (127.1, 0x7f000001,
    /// 2130706433).
    static func name(_ text: String) -> String? {
        let labels = text.split(separator: ".", omittingEmptySubsequences: false)
        guard text.utf8.count <= 253, let last = labels.last, !isNumber(last),
            labels.allSatisfy({ label in
                (1...63).contains(label.utf8.count) && !label.hasPrefix("-") && !label.hasSuffix("-")
                    && label.utf8.allSatisfy { byte in
                        (0x30...0x39).contains(byte) || (0x61...0x7A).contains(byte | 0x20) || byte == 0x2D
                    }
            })
        else { return nil }
        return text.lowercased()
    }

    /// Whether a label is a decimal, octal or hexadecimal number as inet_aton(3) reads one.
    private static func isNumber(_ label: Substring) -> Bool {
        let digits = label.lowercased()
        return !digits.isEmpty
            && (digits.utf8.allSatisfy { (0x30...0x39).contains($0) }
                || digits.wholeMatch(of: /0x[0-9a-f]*/) != nil)
    }
}
