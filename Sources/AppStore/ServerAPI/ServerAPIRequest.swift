import AsyncHTTPClient
import Encoding
import Foundation
import NIOHTTP1

extension ServerAPIClient {
    struct QueryItem: Hashable, Sendable {
        let name: String
        let value: String
    }

    /// One question to the API, the same for either host.
    struct Request<Value: Sendable>: Sendable {
        let endpoint: Endpoint
        /// For the stars of the endpoint's path, in order.
        let ids: [String]
        var query: [QueryItem]
        let body: JSON?
        /// Reads the body of Apple's answer, nil if it is no JSON object.
        let read: @Sendable ([String: JSON]?) throws(FieldMismatch) -> Value

        init(
            _ endpoint: Endpoint, _ ids: String..., query: [QueryItem] = [], body: JSON? = nil,
            read: @escaping @Sendable ([String: JSON]) throws(FieldMismatch) -> Value
        ) {
            self.endpoint = endpoint
            self.ids = ids
            self.query = query
            self.body = body
            self.read = { (object) throws(FieldMismatch) in
                guard let object else { throw FieldMismatch() }
                return try read(object)
            }
        }

        /// As it goes out; nil if an id is empty.
        func http(to host: String, token: String) -> HTTPClientRequest? {
            guard !ids.contains("") else { return nil }
            var ids = ids[...]
            let path = endpoint.path.split(separator: "/").map { segment in
                segment == "*" ? ids.popFirst()?.percentEncoded ?? "" : String(segment)
            }
            let query = query.map { "\($0.name)=\($0.value.percentEncoded)" }.joined(separator: "&")
            var request = HTTPClientRequest(
                url: "\(host)/\(path.joined(separator: "/"))\(query.isEmpty ? "" : "?")\(query)")
            request.method = endpoint.method
            request.headers = [
                "Authorization": "Bearer \(token)", "Accept": "application/json", "User-Agent": "makegood",
            ]
            if let body {
                request.headers.add(name: "Content-Type", value: "application/json")
                request.body = .bytes(body.bytes)
            }
            return request
        }
    }
}

extension ServerAPIClient.Request where Value == Void {
    /// A request that Apple answers with its status alone.
    init(_ endpoint: ServerAPIClient.Endpoint, _ id: String, body: JSON? = nil) {
        self.endpoint = endpoint
        self.ids = [id]
        self.query = []
        self.body = body
        self.read = { _ in }
    }
}

/// A request that Apple's rules forbid: it cannot be made, let alone sent.
///
/// Not retryable: the same values are forbidden again.
package struct InvalidRequest: Error, Hashable, Sendable, CustomStringConvertible {
    /// As Apple calls it.
    package let field: String
    package let rule: String

    init(_ field: String, _ rule: String) {
        self.field = field
        self.rule = rule
    }

    package var description: String { "\(field) \(rule)" }
}

extension String {
    /// For a path or a query: all but letters, digits, `-`, `_`, and a dot between two of these, is encoded.
    ///
    /// Ids come from clients, and none may become a path.
    var percentEncoded: String {
        let digits = Array("0123456789ABCDEF".utf8)
        let bytes = Array(utf8)
        var encoded: [UInt8] = []
        for (index, byte) in bytes.enumerated() {
            let isDotInside =
                byte == UInt8(ascii: ".") && index > 0 && index + 1 < bytes.count
                && Self.isPlain(bytes[index - 1]) && Self.isPlain(bytes[index + 1])
            if Self.isPlain(byte) || isDotInside {
                encoded.append(byte)
            } else {
                encoded += [UInt8(ascii: "%"), digits[Int(byte >> 4)], digits[Int(byte & 0xF)]]
            }
        }
        return String(decoding: encoded, as: UTF8.self)
    }

    private static func isPlain(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"):
            true
        default: false
        }
    }
}

extension Date {
    /// UNIX milliseconds.
    func milliseconds(for field: String) throws(InvalidRequest) -> Int64 {
        guard let milliseconds = Int64(exactly: (timeIntervalSince1970 * 1000).rounded()) else {
            throw InvalidRequest(field, "is no date")
        }
        return milliseconds
    }
}
