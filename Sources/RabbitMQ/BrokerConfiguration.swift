/// The broker's address, and how long this process waits for the broker.
///
/// The URL: `amqp://user:password@host:port/vhost` or `amqps://…?cacertfile=PATH`, percent-encoded
/// (https://www.rabbitmq.com/docs/uri-spec). Three things differ from that page: the URL may name several nodes of a
/// cluster, `host:port,host:port`; a path of a lone "/" means the default vhost "/"; an unknown parameter is an error.
/// TLS parameters (amqps only): `cacertfile` (PEM; needed unless `verify=verify_none`), `verify` (`verify_peer`, the
/// default, or `verify_none`), `certfile` and `keyfile` (PEM, together).
/// With TLS the host must be a DNS name: librabbitmq 0.11 compares no IP addresses (amqp_hostcheck, X509_check_host).
package struct BrokerConfiguration: Sendable {
    /// TLS towards the broker: 1.2 or newer.
    package struct TLS: Sendable, Equatable {
        /// PEM file with the accepted authorities. librabbitmq 0.11 knows no system store.
        package var authoritiesFile: String?
        package var verifiesPeer: Bool
        /// PEM files of the client's own certificate chain and key.
        package var certificateFile: String?
        package var keyFile: String?
    }

    /// A node of the cluster.
    package struct Node: Sendable, Equatable {
        package let host: String
        package let port: Int
    }

    /// The nodes to try, at least one. One node that answers is enough.
    package let nodes: [Node]
    package let user: String
    let password: String
    package let vhost: String
    /// Nil: plain TCP.
    package let tls: TLS?

    /// False: this process only checks that the queues exist and declares none, whatever the user may do.
    package var declaresQueues = true
    /// Shown in the broker's list of connections.
    package var connectionName = "makegood"
    /// The interval of heartbeats in both directions: silence of twice this length ends the connection. Below 5 s
    /// RabbitMQ may take a living connection for a dead one.
    package var heartbeat: Duration = .seconds(10)
    package var connectTimeout: Duration = .seconds(3)
    /// The time-out of the AMQP login on a connected socket. RabbitMQ itself waits 10 s.
    package var handshakeTimeout: Duration = .seconds(5)
    /// The time-out of one question to the broker (declare, qos, consume, cancel). On expiry the library closes the
    /// connection.
    package var rpcTimeout: Duration = .seconds(5)
    /// After a refused message on a connection older than this, the publisher makes a new connection. While refusals go
    /// on, the pause doubles four times (`RefusalPatience`).
    package var refusalPatience: Duration = .seconds(10)
    /// How long a publish waits for its confirm.
    package var confirmDeadline: Duration = .seconds(5)
    /// When a library call has blocked for this long, `Cutoff` shuts its socket down (librabbitmq 0.11 may wait without
    /// limit).
    package var stallDeadline: Duration = .seconds(15)
    /// The most messages sent and not yet confirmed. `window` times `bodyLimitBytes` must stay near the socket's send
    /// buffer.
    package var window = 256
    /// The most publishes that wait for a place in the window; one more throws `tooManyWaiting`. Offers take at most
    /// half of the window and of these places.
    package var queueLimit = 8192
    /// The largest body that is published; a larger one is `tooLarge`.
    package var bodyLimitBytes = 1024
    /// RabbitMQ 4.1 and newer refuse less than 8192.
    package var frameMaxBytes = 131_072

    /// Throws only `badURL`, with the name of the part.
    package init(url: String) throws(RabbitMQError) {
        let parts = try BrokerURL(url)
        (nodes, user, password, vhost, tls) = (parts.nodes, parts.user, parts.password, parts.vhost, parts.tls)
    }
}

extension BrokerConfiguration: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
    /// The broker's addresses and vhost, without user and password.
    package var description: String {
        let addresses = nodes.map { "\($0.host):\($0.port)" }.joined(separator: ",")
        return "\(tls == nil ? "amqp" : "amqps")://\(addresses)/\(vhost == "/" ? "" : vhost)"
    }
    package var debugDescription: String { description }
    /// Keeps the password out of `dump` as well.
    package var customMirror: Mirror { Mirror(self, children: ["url": description]) }
}

/// The parts of an AMQP URL. Pure.
struct BrokerURL {
    /// The most nodes of one URL: each may cost an attempt to connect its whole time-out.
    private static let nodesMax = 8

    var nodes: [BrokerConfiguration.Node] = []
    /// The default is RabbitMQ's own user, for a broker on this machine. The URL of any other host must name its user.
    var user = "guest"
    var password = "guest"
    var vhost = "/"
    var tls: BrokerConfiguration.TLS?

    init(_ url: String) throws(RabbitMQError) {
        guard url.utf8.count <= 4096 else { throw .badURL(field: "url") }
        var rest: Substring
        let isTLS: Bool
        if url.hasPrefix("amqp://") {
            (rest, isTLS) = (url.dropFirst("amqp://".count), false)
        } else if url.hasPrefix("amqps://") {
            (rest, isTLS) = (url.dropFirst("amqps://".count), true)
        } else {
            throw .badURL(field: "scheme")
        }
        guard !rest.contains("#") else { throw .badURL(field: "fragment") }

        var namesUser = false
        var query: Substring?
        if let mark = rest.firstIndex(of: "?") {
            query = rest[rest.index(after: mark)...]
            rest = rest[..<mark]
        }
        if let slash = rest.firstIndex(of: "/") {
            let path = rest[rest.index(after: slash)...]
            guard !path.contains("/") else { throw .badURL(field: "vhost") }
            if !path.isEmpty { vhost = try Self.decoded(path, field: "vhost") }
            rest = rest[..<slash]
        }
        guard vhost.utf8.count <= 255 else { throw .badURL(field: "vhost") }  // AMQP 0-9-1: shortstr

        if let at = rest.lastIndex(of: "@") {
            namesUser = true
            let credentials = rest[..<at]
            rest = rest[rest.index(after: at)...]
            guard !credentials.contains("@") else { throw .badURL(field: "password") }
            if let colon = credentials.firstIndex(of: ":") {
                user = try Self.decoded(credentials[..<colon], field: "user")
                password = try Self.decoded(credentials[credentials.index(after: colon)...], field: "password")
            } else {
                user = try Self.decoded(credentials, field: "user")
            }
            guard !user.isEmpty else { throw .badURL(field: "user") }
        }
        let authorities = rest.split(separator: ",", omittingEmptySubsequences: false)
        guard authorities.count <= Self.nodesMax else { throw .badURL(field: "host") }
        for authority in authorities { nodes.append(try Self.node(authority, defaultPort: isTLS ? 5671 : 5672)) }
        try parseQuery(query ?? "", isTLS: isTLS)
        guard namesUser || nodes.allSatisfy({ Self.isLoopback($0.host) }) else { throw .badURL(field: "user") }
    }

    private static func isLoopback(_ host: String) -> Bool {
        host == "localhost" || host == "::1" || host.wholeMatch(of: /127(\.[0-9]{1,3}){3}/) != nil
    }

    private static func node(
        _ authority: Substring, defaultPort: Int
    ) throws(RabbitMQError) -> BrokerConfiguration.Node {
        let host: String
        var portText: Substring?
        if authority.first == "[" {
            guard let end = authority.firstIndex(of: "]") else { throw .badURL(field: "host") }
            host = String(authority[authority.index(after: authority.startIndex)..<end])
            guard host.utf8.allSatisfy({ isHexadecimal($0) || $0 == UInt8(ascii: ":") || $0 == UInt8(ascii: ".") })
            else { throw .badURL(field: "host") }
            let after = authority[authority.index(after: end)...]
            if !after.isEmpty {
                guard after.first == ":" else { throw .badURL(field: "host") }
                portText = after.dropFirst()
            }
        } else if let colon = authority.firstIndex(of: ":") {
            host = try decoded(authority[..<colon], field: "host")
            portText = authority[authority.index(after: colon)...]
        } else {
            host = try decoded(authority, field: "host")
        }
        guard !host.isEmpty, host.utf8.count <= 253 else { throw .badURL(field: "host") }
        guard let portText else { return .init(host: host, port: defaultPort) }
        guard portText.utf8.allSatisfy({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }),
            let port = Int(portText), (1...65535).contains(port)
        else { throw .badURL(field: "port") }
        return .init(host: host, port: port)
    }

    private mutating func parseQuery(_ query: Substring, isTLS: Bool) throws(RabbitMQError) {
        var values: [String: String] = [:]
        for pair in query.split(separator: "&") {
            let halves = pair.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            let key = String(halves[0])
            // The error does not repeat the name of an unknown parameter: a password with a bare "?" would end up in
            // it.
            guard ["cacertfile", "certfile", "keyfile", "verify"].contains(key) else { throw .badURL(field: "query") }
            guard isTLS, halves.count == 2, values[key] == nil else { throw .badURL(field: key) }
            let value = try Self.decoded(halves[1], field: key)
            guard !value.isEmpty else { throw .badURL(field: key) }
            values[key] = value
        }
        guard isTLS else { return }
        let verifiesPeer: Bool
        switch values["verify"] {
        case nil, "verify_peer": verifiesPeer = true
        case "verify_none": verifiesPeer = false
        default: throw .badURL(field: "verify")
        }
        guard !verifiesPeer || values["cacertfile"] != nil else { throw .badURL(field: "cacertfile") }
        guard values["certfile"] == nil || values["keyfile"] != nil else { throw .badURL(field: "keyfile") }
        guard values["keyfile"] == nil || values["certfile"] != nil else { throw .badURL(field: "certfile") }
        tls = BrokerConfiguration.TLS(
            authoritiesFile: values["cacertfile"], verifiesPeer: verifiesPeer,
            certificateFile: values["certfile"], keyFile: values["keyfile"])
    }

    /// Decodes percent-encoding (RFC 3986 2.1). U+0000 is refused: these strings become C strings, and PLAIN separates
    /// its fields with it.
    private static func decoded(_ text: Substring, field: String) throws(RabbitMQError) -> String {
        var bytes: [UInt8] = []
        var rest = text.utf8[...]
        while let byte = rest.popFirst() {
            guard byte == UInt8(ascii: "%") else {
                bytes.append(byte)
                continue
            }
            guard let high = rest.popFirst(), let low = rest.popFirst(), isHexadecimal(high), isHexadecimal(low),
                let value = UInt8(String(decoding: [high, low], as: UTF8.self), radix: 16)
            else { throw .badURL(field: field) }
            bytes.append(value)
        }
        guard !bytes.contains(0), let string = String(validating: bytes, as: UTF8.self) else {
            throw .badURL(field: field)
        }
        return string
    }

    private static func isHexadecimal(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "a")...UInt8(ascii: "f"),
            UInt8(ascii: "A")...UInt8(ascii: "F"):
            true
        default: false
        }
    }
}
